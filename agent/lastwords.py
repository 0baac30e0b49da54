"""Last words of channels that are gone: how far their workers came.  `exited` may be asked again."""

from __future__ import annotations

from typing import Any, NamedTuple

from .asked import Ticket
from .house import House

ENDED_MAX = 4096  # channels whose last words are remembered


class Ended(NamedTuple):
    gen: int
    clocks: int
    pushes: int
    last_error: str

    def to_document(self) -> dict[str, Any]:
        return {"clocks": self.clocks, "pushes": self.pushes, "last_error": self.last_error}


class LastWords:
    def __init__(self, house: House) -> None:
        self._house = house
        self._ended: dict[tuple[int, int], Ended] = {}  # (job, worker)

    def of(self, ticket: Ticket) -> Ended:
        """What is known of the generation that an `exited` speaks of."""
        assert ticket.job is not None
        channel = self._house.by_stream.get((ticket.job.number, ticket.worker, ticket.gen))
        if channel is not None:
            return Ended(channel.gen, channel.clock, channel.pushes, channel.last_error)
        ended = self._ended.get((ticket.job.number, ticket.worker))
        if ended is not None and ended.gen == ticket.gen:
            return ended
        return Ended(ticket.gen, ticket.job.finished.get(ticket.worker, 0), 0, "")

    def keep(self, key: tuple[int, int], ended: Ended) -> None:
        self._ended.pop(key, None)
        if len(self._ended) >= ENDED_MAX:
            del self._ended[next(iter(self._ended))]
        self._ended[key] = ended
