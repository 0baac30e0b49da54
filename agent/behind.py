"""What a channel's program need not wait for any more: requests that were accepted before they were carried out.

At most two, each with its copy in `pend.<slot>`; they are carried out one after the other, in the order of their seq.
What fails keeps its slot until the program has been told.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from ..core.errors import Code
from ..shm_protocol.request import Request
from .channel import Channel

if TYPE_CHECKING:
    from .operation import Operation

SLOTS = (0, 1)


class Failure(NamedTuple):
    """An accepted request that failed after all."""

    request: Request
    slot: int
    code: Code
    text: str
    ticking: bool  # its tick was counted, and has not happened
    pushed: bool  # but its push has
    held: tuple[str, ...]  # tables of which ranges have taken their part of it

    def told(self) -> str:
        return f"{self.request.verb} seq={self.request.seq}, accepted before, failed: {self.text}"


class Behind:
    """Of one channel.  The first of the queue is under way."""

    __slots__ = ("channel", "free", "queue", "failures")

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.free = list(SLOTS)
        self.queue: deque[Operation] = deque()
        self.failures: list[Failure] = []

    @property
    def busy(self) -> bool:
        return bool(self.queue or self.failures)

    def take(self, slot: int = -1) -> int:
        """A free slot, or this one; it must be free."""
        return self.free.pop(0 if slot < 0 else self.free.index(slot))

    def release(self, slot: int) -> None:
        assert slot not in self.free
        self.free.append(slot)
        self.free.sort()

    def forget_failures(self) -> list[Failure]:
        """They do not count any more, and their slots are free: whoever asks drops the copies."""
        failures, self.failures = self.failures, []
        for failure in reversed(failures):
            self.channel.undo(failure.request, ticking=failure.ticking, pushed=failure.pushed, held=failure.held)
            self.release(failure.slot)
        return failures
