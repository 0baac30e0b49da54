"""What one stream alone adds to, and what a read of it may show."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .checkers import Broken, Stream
from .ordered import folded

Array = np.ndarray[Any, Any]


class Reader(NamedTuple):
    """Who reads: the stream, and the clock that it is in.  An export reads as nobody."""

    stream: Stream
    clock: int


class Cell:
    """Pushes begun and acked, numbered from 1; `clocks` has that of each, `groups` those that came in one request together."""

    __slots__ = ("begun", "acked", "clocks", "whole", "seen", "states", "known")

    def __init__(self) -> None:
        self.begun = 0
        self.acked = 0
        self.clocks: list[int] = []
        self.whole: list[int] = [0]  # counts at which a request ends: it is taken as a whole
        self.seen: dict[Stream, int] = {}  # by reader: what it saw last
        self.known = False  # of a stream that is over: all of it is there
        self.states: list[Array] = []  # of a row whose value depends on the order, after so many requests

    def begin(self, clock: int, pushes: int) -> None:
        self.begun += pushes
        self.clocks += [clock] * pushes
        self.whole.append(self.begun)

    def withdraw(self, pushes: int) -> None:
        self.begun -= pushes
        del self.clocks[self.begun :], self.whole[-1:], self.states[len(self.whole) :]

    def until(self, clock: int, known: bool) -> Cell:
        """What there is of it in values that hold the pushes of clocks before this one and no others; `known`: certainly all of them."""
        cell = Cell()
        cell.begun = self.before(clock)
        cell.acked, cell.known = cell.begun if known else 0, known
        cell.clocks = self.clocks[: cell.begun]
        cell.whole = [count for count in self.whole if count <= cell.begun]
        cell.states = self.states[: len(cell.whole)]
        return cell

    def before(self, clock: int) -> int:
        """Pushes of clocks before this one."""
        return bisect_left(self.clocks, clock)

    def look(self, reader: Reader, what: str, count: int, least: int, most: int) -> int:
        """Whether a read may show so many."""
        who = f"stream {reader.stream} at clock {reader.clock}: {what}"
        if not least <= count <= most:
            raise Broken(f"{who} shows {count} pushes, it must be {least} to {most} ({self.acked} acked, {self.begun} begun)")
        if count not in self.whole:
            raise Broken(f"{who} shows {count} pushes: half of a request")
        if count < self.seen.get(reader.stream, 0):
            raise Broken(f"{who} shows {count} pushes, {self.seen[reader.stream]} were there before")
        if reader.stream[0] >= 0:
            self.seen[reader.stream] = count
        return count


def read_tally(reader: Reader, what: str, cell: Cell, values: Array, least: int, most: int) -> int:
    """A counting row: m pushes show m, m(m+1)/2, m(m+1)(2m+1)/6 and zeros."""
    m = float(values[0])
    good = m >= 0 and m == np.floor(m) and values[1] == m * (m + 1) / 2 and values[2] == m * (m + 1) * (2 * m + 1) / 6
    if not good or values[3:].any():
        raise Broken(f"stream {reader.stream} at clock {reader.clock}: {what} holds {values.tolist()}: a push is missing, doubled or misplaced")
    return cell.look(reader, what, int(m), least, most)


def read_order(
    reader: Reader, what: str, cell: Cell, values: Array, least: int, most: int, pushed: Callable[[int], Array]
) -> int:
    """A row whose value tells which pushes came, and in which order: it is that after some request, all before it included."""
    while len(cell.states) < len(cell.whole):
        at = len(cell.states)
        if not at:
            cell.states.append(np.zeros(len(values)))
            continue
        update = sum((pushed(n) for n in range(cell.whole[at - 1] + 1, cell.whole[at] + 1)), np.zeros(len(values)))
        cell.states.append(folded(cell.states[-1], update))
    for at in range(len(cell.whole) - 1, -1, -1):
        if (cell.states[at] == values).all():
            return cell.look(reader, what, cell.whole[at], least, most)
    raise Broken(f"stream {reader.stream} at clock {reader.clock}: {what} holds {values.tolist()}: its pushes came in another order, or not all")
