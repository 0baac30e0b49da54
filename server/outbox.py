"""What a clock has to bring to every range of its job: closes in order, and the newest roster.  Resent until acked.

Every copy of the clock keeps what is not acked yet; only the one that leads sends it and hears acks.  Knows where ranges
lie and what each has acked; neither who is a member nor why a clock was closed.
"""

from __future__ import annotations

from typing import Any

from ..core.effects import Send
from ..core.errors import PeerError
from ..core.limits import Limits
from ..wire.messages import Close, CloseAck, Roster, RosterAck
from . import plain

_CATCH_UP = 16  # closes that one resend brings to a server that is behind


class Outbox:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._servers: dict[str, list[int]] = {}  # server -> its ranges
        self._owner: dict[int, str] = {}  # range -> its server, "" when every copy is lost
        self._closed: dict[int, int] = {}  # range -> clocks that it has closed
        self._rostered: dict[int, int] = {}  # range -> number of the roster that it has
        self._closes: dict[int, Close] = {}  # by clock, until every range has acked
        self._roster: Roster | None = None  # the newest, until every range has acked
        self._carried: dict[str, int] = {}  # server -> number of the roster that is on its way there
        self._asked: set[str] = set()  # servers that were asked how far their ranges are
        self._wait_us = limits.resend_us
        self.due_us: int | None = None  # when to send again
        self.floor = 0  # clocks that every range has closed
        self.told = 0  # of them, how many all copies of the clock know of

    def place(self, owners: dict[int, str]) -> None:
        """Where the ranges are now (a new map).  Who leads one anew is brought what it lacks at once."""
        if owners != self._owner and self._owing():
            self._wait_us, self.due_us = self._limits.resend_us, 0
        self._owner = dict(owners)
        self._servers = {}
        self._carried = {}
        for number, server in sorted(owners.items()):
            if server:
                self._servers.setdefault(server, []).append(number)
            self._closed.setdefault(number, 0)
            self._rostered.setdefault(number, 0)

    def lead(self, roster: Roster | None, epoch: int, token: int, now_us: int) -> list[Send]:
        """This copy of the clock was a backup: nobody has acked anything to it.  Ask how far the ranges are."""
        self._closed = dict.fromkeys(self._owner, self.floor)
        self._rostered = dict.fromkeys(self._owner, 0)
        self._roster = roster
        self._asked = set(self._servers) if self._closes else set()
        self._progress(now_us)
        effects: list[Send] = []
        for server in self._servers:
            if roster is not None:
                effects += self._bring_roster(server, roster, epoch, token)
            if self._closes:
                effects.append(Send(server, next(reversed(self._closes.values()))._replace(epoch=epoch, token=token)))
        return effects

    def owns(self, server: str, number: int) -> bool:
        return bool(server) and self._owner.get(number) == server

    def close(self, close: Close, now_us: int) -> list[Send]:
        self._closes[close.clock] = close
        self._arm(now_us)
        return [Send(server, close) for server in self._servers]

    def roster(self, roster: Roster, now_us: int) -> list[Send]:
        """One at a time to each server: of many changes in a row it gets the last."""
        self._roster = roster
        self._arm(now_us)
        return [send for server in self._servers for send in self._bring_roster(server, roster, roster.epoch, roster.token)]

    def _bring_roster(self, server: str, roster: Roster, epoch: int, token: int) -> list[Send]:
        if server in self._carried:
            return []
        self._carried[server] = roster.number
        return [Send(server, roster._replace(epoch=epoch, token=token))]

    def on_close_ack(self, sender: str, ack: CloseAck, epoch: int, token: int, now_us: int) -> list[Send]:
        """Raises `PeerError` for a close that was never sent."""
        if ack.closed > self.floor + len(self._closes):
            raise PeerError(f"CloseAck of {ack.closed} clocks, {self.floor + len(self._closes)} are closed")
        for number in ack.ranges:
            if self._owner.get(number) == sender and ack.closed > self._closed[number]:
                self._closed[number] = ack.closed
        self.forget(min(self._closed.values()))
        self._progress(now_us)
        if sender in self._asked:
            self._asked.discard(sender)
            return self._catch_up(sender, epoch, token)
        return []

    def forget(self, floor: int) -> None:
        """Every range has closed the clocks below this one."""
        while self.floor < floor:
            self._closes.pop(self.floor, None)
            self.floor += 1
        if not self._owing():
            self.due_us = None

    def settle(self, floor: int) -> None:
        """The same, and every copy of the clock hears it."""
        self.forget(floor)
        self.told = max(self.told, floor)

    def on_roster_ack(self, sender: str, ack: RosterAck, epoch: int, token: int, now_us: int) -> list[Send]:
        if self._roster is None or ack.number > self._roster.number:
            return []
        for number in ack.ranges:
            if self._owner.get(number) == sender and ack.number > self._rostered[number]:
                self._rostered[number] = ack.number
        newest, effects = self._roster, []
        if sender in self._servers and min(self._rostered[number] for number in self._servers[sender]) >= self._carried.get(sender, 0):
            if self._carried.pop(sender, newest.number) < newest.number:
                effects = self._bring_roster(sender, newest, epoch, token)
        if min(self._rostered.values()) >= newest.number:
            self._roster = None
        self._progress(now_us)
        return effects

    def resend(self, epoch: int, token: int, now_us: int) -> list[Send]:
        """To every server that owes an ack, what its ranges lack."""
        effects: list[Send] = []
        for server, ranges in self._servers.items():
            if self._roster is not None and min(self._rostered[number] for number in ranges) < self._roster.number:
                self._carried.pop(server, None)
                effects += self._bring_roster(server, self._roster, epoch, token)
            effects += self._catch_up(server, epoch, token)
        self._wait_us = min(2 * self._wait_us, self._limits.resend_us_max)
        self.due_us = now_us + self._wait_us if self._owing() else None
        return effects

    def _catch_up(self, server: str, epoch: int, token: int) -> list[Send]:
        ranges = self._servers.get(server)
        if not ranges:
            return []
        lowest = min(self._closed[number] for number in ranges)
        clocks = range(lowest, min(lowest + _CATCH_UP, self.floor + len(self._closes)))
        return [Send(server, self._closes[clock]._replace(epoch=epoch, token=token)) for clock in clocks]

    def _owing(self) -> bool:
        return bool(self._closes) or self._roster is not None

    def _arm(self, now_us: int) -> None:
        if self.due_us is None:
            self._wait_us = self._limits.resend_us
            self.due_us = now_us + self._wait_us

    def _progress(self, now_us: int) -> None:
        """Something was acked: what is left gets its full time again."""
        self._wait_us = self._limits.resend_us
        self.due_us = now_us + self._wait_us if self._owing() else None

    @property
    def decided(self) -> int:
        """Clocks that are closed, whether every range knows or not."""
        return self.floor + len(self._closes)

    # -- copies

    def dump(self) -> dict[str, Any]:
        """Closes that some range may lack, as a plain document; what was acked is known to the one that leads alone."""
        return {"floor": self.floor, "told": self.told, "closes": [close[3:] for close in self._closes.values()]}

    def load(self, meta: Any, job: int, epoch: int, token: int) -> None:
        """What a copy's document says, in place of what is here.  Raises `PeerError`."""
        floor = plain.whole(plain.field(meta, "floor"))
        told = plain.whole(plain.field(meta, "told"), 0, floor)
        closes = {}
        for clock, members, totals, save in plain.records(plain.field(meta, "closes"), plain.whole, plain.listed, plain.listed, plain.whole):
            streams = tuple(plain.records(members, plain.whole, plain.whole))
            closes[clock] = Close(job, epoch, token, clock, streams, tuple(plain.records(totals, plain.whole, plain.number)), save)
        if list(closes) != list(range(floor, floor + len(closes))):
            raise PeerError(f"a copy's closes are not those of clock {floor} and the next ones")
        self.floor, self.told, self._closes, self._roster = floor, told, closes, None
        self._closed = dict.fromkeys(self._owner, floor)
        self._rostered = dict.fromkeys(self._owner, 0)
        self.due_us = 0 if self._owing() else None

    def rewind(self, closed: int) -> None:
        """Every range stands behind so many closes, and has no roster."""
        self.floor, self.told, self._closes, self._roster, self.due_us = closed, closed, {}, None, None
        self._closed = dict.fromkeys(self._owner, closed)
        self._rostered = dict.fromkeys(self._owner, 0)

    def check(self) -> None:
        assert list(self._closes) == list(range(self.floor, self.floor + len(self._closes))), "a close is missing"
        assert self._owing() == (self.due_us is not None)
        assert self.told <= self.floor
