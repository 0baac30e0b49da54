"""What a history must look like, as pure functions over what programs wrote and read.  Knows no machine.

Counting: each push number n of a stream (worker, gen) adds (1, n, n^2) to a slot that is its own, so that any pull at
any time tells how many pushes it holds, and a gap, a double or a mix-up shows at once: m pushes give the sums m,
m(m+1)/2 and m(m+1)(2m+1)/6, exact integers in every dtype.  Exactness: under BSP the values after c clocks are a
function of the plan alone; the reference is plain numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

SLOT = 4  # elements of a slot: count, sum, sum of squares, and a zero, so that a slot never lies in two blocks

Stream = tuple[int, int]  # (worker, gen)


class Broken(AssertionError):
    """A promise was broken; the text says which, to whom, and what was seen."""


class Pull(NamedTuple):
    """What a stream read, and what it knew.

    `slots` is an array [replica, worker, gen - 1, SLOT] of the counting table; `own` counts those of the stream's own
    pushes that must be there; `known` counts, for any stream, what somebody had been told to be applied before, `most`
    those of a stream that may be there where the clock says so (BSP).
    """

    started_us: int
    ended_us: int
    stream: Stream
    clock: int
    own: int
    slots: np.ndarray[Any, Any]
    known: dict[Stream, int] = {}
    most: dict[Stream, int] = {}


class Issued(NamedTuple):
    """Pushes of one stream at the end: `begun` were perhaps seen, `acked` surely counted."""

    begun: int
    acked: int


def counts(pull: Pull) -> np.ndarray[Any, Any]:
    """Pushes per [replica, worker, gen - 1]; raises `Broken` for a gap, a double or a swap (I1, I2)."""
    slots = pull.slots.astype(np.float64)
    m = slots[..., 0]
    good = (
        (slots[..., 1] == m * (m + 1) / 2)
        & (slots[..., 2] == m * (m + 1) * (2 * m + 1) / 6)
        & (slots[..., 3] == 0)
        & (m >= 0)
        & (m == np.floor(m))
    )
    if not good.all():
        where = tuple(int(i[0]) for i in np.nonzero(~good))
        raise Broken(
            f"stream {pull.stream} at clock {pull.clock}: slot of replica {where[0]}, worker {where[1]}, gen {where[2] + 1} "
            f"holds {slots[where].tolist()}: a push is missing, doubled or misplaced"
        )
    return m


def check_counting(pulls: Sequence[Pull], issued: dict[Stream, Issued]) -> None:
    """I1 to I4 for reads under any consistency: no gap, no double, nothing invented, never back, own pushes seen."""
    last: dict[Stream, tuple[int, np.ndarray[Any, Any]]] = {}
    for pull in sorted(pulls, key=lambda item: item.ended_us):
        m = counts(pull)
        for worker in range(m.shape[1]):
            for gen in range(1, m.shape[2] + 1):
                begun = issued.get((worker, gen), Issued(0, 0)).begun
                seen = int(m[:, worker, gen - 1].max(initial=0))
                if seen > begun:
                    raise Broken(f"stream {pull.stream} read {seen} pushes of ({worker}, {gen}), which began {begun}")
        worker, gen = pull.stream
        own = m[:, worker, gen - 1]
        if own.size and own.min() < pull.own:
            raise Broken(f"stream {pull.stream} at clock {pull.clock} read {own.tolist()} of its own {pull.own} acked pushes")
        for (worker, gen), acked in pull.known.items():
            if (seen := m[:, worker, gen - 1]).size and seen.min() < acked:
                raise Broken(f"stream {pull.stream} read {seen.tolist()} of the {acked} pushes that ({worker}, {gen}) knew to be applied")
        for (worker, gen), most in pull.most.items():
            if (seen := m[:, worker, gen - 1]).size and seen.max() > most:
                raise Broken(f"stream {pull.stream} at clock {pull.clock} read {seen.tolist()} pushes of ({worker}, {gen}), at most {most} were to be seen")
        before = last.get(pull.stream)
        if before is not None and before[0] <= pull.started_us and (m < before[1]).any():
            raise Broken(f"stream {pull.stream} at clock {pull.clock}: a later pull shows fewer pushes than an earlier one")
        last[pull.stream] = (pull.ended_us, m)


def check_final(slots: np.ndarray[Any, Any], issued: dict[Stream, Issued]) -> None:
    """I1 at rest: every acked push is there exactly once, an unacked one at most once, the same in every replica."""
    m = counts(Pull(0, 0, (-1, 0), -1, 0, slots))
    for worker in range(m.shape[1]):
        for gen in range(1, m.shape[2] + 1):
            begun, acked = issued.get((worker, gen), Issued(0, 0))
            seen = m[:, worker, gen - 1]
            if seen.size and not (acked <= seen.min() and seen.max() <= begun):
                raise Broken(f"stream ({worker}, {gen}): {acked} acked, {begun} begun, but the values hold {seen.tolist()}")


def check_equal(values: dict[int, tuple[Stream, bytes]], clock: int, stream: Stream, image: bytes) -> None:
    """I7: two workers that read after the same closed clock read the same bits.  `values` remembers the first reader."""
    first = values.setdefault(clock, (stream, image))
    if first[1] != image:
        raise Broken(f"stream {stream} and stream {first[0]} read different values at clock {clock}")


# -- exactness under BSP: `reference` says what is expected -------------------------------------------------------


def check_exact(stream: Stream, clock: int, table: str, seen: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], relative: float) -> None:
    """A BSP pull is the expected value: to the last bit where `relative` is 0, else to rounding."""
    wanted = expected.astype(seen.dtype)
    if relative == 0:
        bad = seen != wanted
    else:
        scale = np.maximum(np.abs(expected.astype(np.float64)), 1.0)
        bad = np.abs(seen.astype(np.float64) - expected.astype(np.float64)) > relative * scale
    if bad.any():
        at = int(np.nonzero(bad)[0][0])
        raise Broken(
            f"stream {stream} at clock {clock}, table {table}: element {at} is {seen[at]!r}, expected {wanted[at]!r} "
            f"({int(bad.sum())} of {bad.size} differ)"
        )


def check_whole(stream: Stream, table: str, block: np.ndarray[Any, Any], known: dict[float, Stream]) -> None:
    """`assign` outside of BSP: a block holds one number, that of one push (or its first value 0), never a mixture."""
    tag = float(block[0])
    if (block != block[0]).any() or (tag and tag not in known):
        raise Broken(f"stream {stream}, table {table}: a block holds {block[:4].tolist()}.., which nobody wrote as a whole")
