"""Memory that the sockets still read: which arrays are lent, and how many bytes wait for one peer.

Knows neither sockets nor messages: it is handed a buffer and a tracker that says when its reader is through.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from typing import Any, Protocol

import numpy as np


class Tracker(Protocol):
    """What zmq gives for a frame that was sent without a copy."""

    @property
    def done(self) -> bool: ...


def span(buffer: Any) -> tuple[int, int]:
    """First address and end of a contiguous buffer."""
    view = np.frombuffer(buffer, np.uint8)
    start: int = view.__array_interface__["data"][0]
    return start, start + view.nbytes


class Lent:
    """Spans of memory with the sends that read them.

    >>> class Done:
    ...     done = False
    >>> lent, block, tracker = Lent(), np.zeros(8), Done()
    >>> lent.add(block[2:4], tracker)
    >>> lent.covers(block), lent.covers(block[4:])
    (True, False)
    >>> tracker.done = True
    >>> lent.covers(block)
    False
    """

    def __init__(self) -> None:
        self._starts: list[int] = []  # sorted, each once
        self._spans: dict[int, list[tuple[int, Tracker]]] = {}  # start -> (end, reader)
        self._longest = 0
        self._sweep_at = 1024

    def __len__(self) -> int:
        return len(self._starts)

    def add(self, buffer: Any, tracker: Tracker) -> None:
        """From now on `buffer` is lent until the tracker is done."""
        start, end = span(buffer)
        if start not in self._spans:
            insort(self._starts, start)
            self._spans[start] = []
        self._spans[start].append((end, tracker))
        self._longest = max(self._longest, end - start)
        if len(self._starts) >= self._sweep_at:
            for old in tuple(self._starts):
                self._reap(old)
            self._sweep_at = 2 * len(self._starts) + 1024

    def covers(self, array: Any) -> bool:
        """True while a send still reads some byte of this contiguous array."""
        starts = self._starts
        if not starts:
            return False
        start, end = span(array)
        index = bisect_left(starts, start - self._longest)
        near = starts[index : bisect_left(starts, end, index)]
        return any([self._reap(other) > start for other in near])

    def _reap(self, start: int) -> int:
        """Forget the finished readers of one span; gives the highest end of those that are left, 0 = none."""
        left = [(end, tracker) for end, tracker in self._spans[start] if not tracker.done]
        if left:
            self._spans[start] = left
            return max(end for end, _ in left)
        del self._spans[start]
        del self._starts[bisect_left(self._starts, start)]
        return 0


class Queue:
    """Bytes handed to a socket for one peer and not yet taken by it.

    Frames reach a peer in order, so one tracked frame tells of everything before it: `note` is given a tracker for
    some sends only, and `wants_tracker` says when the next one is due.
    """

    __slots__ = ("_marks", "_marked", "_unmarked")

    MARK_BYTES = 1 << 18  # so often small frames get a tracker; a tracker costs about as much as copying 64 KiB

    def __init__(self) -> None:
        self._marks: deque[tuple[Tracker, int]] = deque()
        self._marked = 0
        self._unmarked = 0

    def nbytes(self) -> int:
        """How much waits (at most MARK_BYTES too much)."""
        marks = self._marks
        while marks and marks[0][0].done:
            self._marked -= marks.popleft()[1]
        return self._marked + self._unmarked

    def wants_tracker(self, nbytes: int) -> bool:
        return self._unmarked + nbytes > self.MARK_BYTES

    def note(self, nbytes: int, tracker: Tracker | None) -> None:
        """`nbytes` were sent, and `tracker` (of the last of them) is done when they are gone."""
        self._unmarked += nbytes
        if tracker is not None:
            self._marks.append((tracker, self._unmarked))
            self._marked += self._unmarked
            self._unmarked = 0
