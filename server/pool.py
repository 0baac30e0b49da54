"""What the tables of one job share on one server: the bytes that rows and snapshots may take, and working memory.

Knows neither rows nor ranges.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..core.errors import Code, RequestError
from ..core.limits import MIB
from .growing import Array, Column

#: Bytes of memory that the host is asked about at once: the question costs more than a small push.
ASKED_BYTES = 64 * MIB
#: Memory of the host that is left for frames, growth and other processes.
SPARE_BYTES = 64 * MIB


def endless_room() -> int:
    """For places where nobody counts memory."""
    return 1 << 62


class Pool:
    """`used` counts values and optimizer state of the rows here, `taken` all memory that they have.

    `left()`: bytes of memory that the host has for them.
    """

    def __init__(self, left: Callable[[], int]) -> None:
        self.share: int | None = None  # most bytes of values and state of the rows on this server; None = no bound
        self.used = 0
        self.taken = 0
        self.promised = 0  # of `used`, to pushes that are in a log and not applied
        self._left = left
        self._granted = 0  # bytes of memory that the host had, less what was taken since
        self._places = Column(np.dtype(np.int32), 1)

    def admit(self, nbytes: int, cost: int, names: str) -> None:
        """Whether rows with so many bytes of values and state, `cost` with all that belongs to them, have room.  Raises `RequestError`."""
        used = self.used + self.promised
        if self.share is not None and used + nbytes > self.share:
            text = f"{names}: {nbytes} bytes of new rows do not fit, {used} of this server's share of {self.share} are taken"
            raise RequestError(Code.NOSPC, f"{text}; raise the job's memory (--memory), or push fewer rows")
        self.find(cost, names)

    def find(self, cost: int, names: str) -> None:
        """Whether the host has so many bytes for new rows.  Raises `RequestError`."""
        left = self._missed(cost)
        if left is not None:
            text = f"{names}: new rows need {cost} bytes of memory, the server has {left} left"
            raise RequestError(Code.NOSPC, f"{text}; add servers, or push fewer rows")

    def promise(self, nbytes: int, cost: int) -> None:
        """They will be taken later; below 0: a promise is over."""
        self.promised += nbytes
        self._granted -= cost

    def spare(self, cost: int) -> bool:
        """Whether the host has so many bytes for a copy; they are taken then."""
        if cost > 0 and self._missed(cost) is not None:
            return False
        self._granted -= max(0, cost)
        return True

    def _missed(self, cost: int) -> int | None:
        """None if the host has so many bytes, else how many it has."""
        if cost > self._granted:
            left = self._left() - SPARE_BYTES
            if cost > left:
                return max(0, left)
            self._granted = max(cost, min(left, ASKED_BYTES))
        return None

    def take(self, nbytes: int, cost: int) -> None:
        """They are there now."""
        self.used += nbytes
        self.taken += cost
        self._granted -= cost

    def places(self, count: int) -> Array:
        """At least `count` numbers, each -1: whoever changes some puts them back.  Raises MemoryError."""
        before = len(self._places.array)
        self._places.reserve(count)
        self._places.array[before:] = -1
        return self._places.array[:, 0]
