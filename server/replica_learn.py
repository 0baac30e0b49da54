"""A learner of one range: asks for a copy by parts, not faster than it may, and follows once the copy is whole.

    CopyAsk(0) -> CopyTold: a copy made at some log position -> the rest of its parts -> load -> Held(position)
    Held is said again until the primary sends what comes after; from there on it is a backup that nobody waits for yet

A copy belongs to one epoch, in which its primary makes one: in the next one the node forgets all of it and begins anew, unless it is in sync by then.
"""

from __future__ import annotations

from typing import Any

from ..core.effects import Log as LogLine
from ..core.effects import Send
from ..core.errors import PeerError, RequestError
from ..wire import messages as m
from .dump import Filling
from .log import Log
from .range import RangeMachine
from .replica_follow import BrokenCopy, Follow
from .replica_seat import Seat

_SECOND_US = 1_000_000


class Learn(Follow):
    def __init__(self, seat: Seat, log: Log, held: RangeMachine, born: int, now_us: int) -> None:
        super().__init__(seat, log, held)
        self._born = born
        self._version = 0  # of the copy
        self._filling: Filling | None = None
        self._asked: dict[int, int] = {}  # cursor -> when
        self._free_us = now_us  # when the next part may be asked for
        self.whole = False
        self._heard = False  # the primary has answered our Held
        self.due_us: int | None = now_us

    # -- messages

    def on_copy_told(self, told: m.CopyTold, now_us: int) -> list[Any]:
        """Raises `BrokenCopy`."""
        if told.born != self._born or self.whole:
            return []
        try:
            if self._filling is None:
                self._filling = Filling(told.total, told.head, self._seat.limits.copy_part_bytes, self._range.layout)
                self._version = told.version
            elif told.version != self._version:
                raise PeerError(f"it is sent parts of two copies, of positions {self._version} and {told.version}")
            self._asked.pop(told.cursor, None)
            self._filling.put(told.cursor, told.payload[0] if told.payload else b"")
            if self._filling.complete:
                return self._load(now_us)
        except (PeerError, RequestError, MemoryError) as error:
            self._filling = None
            raise BrokenCopy(f"server {self._seat.name} cannot take a copy: {error}") from None
        return self._ask(now_us)

    def _load(self, now_us: int) -> list[Any]:
        assert self._filling is not None
        self._range.load(self._filling.taken())
        self._filling = None
        if self._range.version != self._version:
            raise PeerError(f"a copy of position {self._version} says that it is of {self._range.version}")
        self._log.begin(self._version)
        self.whole = self.synced = True
        line = LogLine("copy_here", {"job": self._seat.job, "range": self._seat.range, "version": self._version})
        return [line, *self._say(now_us)]

    def on_sync(self, sender: str, sync: m.Sync) -> list[Any]:
        return []  # that is for those in sync

    def on_replicate(self, sender: str, told: m.Replicate) -> list[Any]:
        if self.whole and not self._heard:
            self._heard = True
            self.due_us = None
        return super().on_replicate(sender, told)

    # -- time

    def on_time(self, now_us: int) -> list[Any]:
        if self.due_us is None or now_us < self.due_us:
            return []
        return self._say(now_us) if self.whole else self._ask(now_us)

    def _say(self, now_us: int) -> list[Any]:
        """The copy is here."""
        self.due_us = now_us + self._seat.limits.resend_us
        return [self._held(self._seat.primary)]

    def _ask(self, now_us: int) -> list[Any]:
        """Parts that are missing and not on their way, as many at once as may be, and what was not answered again."""
        limits = self._seat.limits
        for cursor in [cursor for cursor, asked_us in self._asked.items() if now_us >= asked_us + limits.resend_us]:
            del self._asked[cursor]
        missing = [0] if self._filling is None else self._filling.missing(2 * limits.copy_parts)
        wanted = [cursor for cursor in missing if cursor not in self._asked]
        effects = []
        for cursor in wanted[: max(0, limits.copy_parts - len(self._asked))]:
            if self._free_us > now_us + self._slack_us():
                break
            self._free_us = max(now_us, self._free_us) + self._part_us()
            self._asked[cursor] = now_us
            effects.append(Send(self._seat.primary, self._part(cursor)))
        again_us = min(self._asked.values(), default=now_us) + limits.resend_us
        full = len(self._asked) >= limits.copy_parts or all(cursor in self._asked for cursor in missing)
        self.due_us = again_us if full else min(again_us, max(self._free_us - self._slack_us(), now_us + 1))
        return effects

    def _part(self, cursor: int) -> m.CopyAsk:
        seat = self._seat
        return m.CopyAsk(seat.job, seat.range, seat.epoch, seat.token, self._born, self._version, cursor)

    def _part_us(self) -> int:
        """Time that one part takes at the rate that is allowed."""
        return self._seat.limits.copy_part_bytes * _SECOND_US // self._seat.limits.copy_bytes_a_second

    def _slack_us(self) -> int:
        """So much may be asked for at once after a pause."""
        return self._part_us() * (self._seat.limits.copy_parts - 1)
