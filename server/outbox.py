"""What a clock has to bring to every range of its job: closes in order, and the newest roster.  Resent until acked.

Knows where ranges lie and what each has acked; neither who is a member nor why a clock was closed.
"""

from __future__ import annotations

from typing import Any

from ..core.effects import Send
from ..core.errors import PeerError
from ..core.limits import Limits
from ..wire.messages import Close, CloseAck, Roster, RosterAck

_CATCH_UP = 16  # closes that one resend brings to a server that is behind


class Outbox:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._servers: dict[str, list[int]] = {}  # server -> its ranges
        self._owner: dict[int, str] = {}  # range -> its server, "" when every copy is lost
        self._closed: dict[int, int] = {}  # range -> clocks that it has closed
        self._rostered: dict[int, int] = {}  # range -> number of the roster that it has
        self._closes: dict[int, Close] = {}  # by clock, until every range has acked
        self._roster: Roster | None = None
        self._wait_us = limits.resend_us
        self.due_us: int | None = None  # when to send again
        self.floor = 0  # clocks that every range has closed

    def place(self, owners: dict[int, str]) -> None:
        """Where the ranges are now (a new map)."""
        self._owner = dict(owners)
        self._servers = {}
        for number, server in sorted(owners.items()):
            if server:
                self._servers.setdefault(server, []).append(number)
            self._closed.setdefault(number, 0)
            self._rostered.setdefault(number, 0)

    def owns(self, server: str, number: int) -> bool:
        return bool(server) and self._owner.get(number) == server

    def close(self, close: Close, now_us: int) -> list[Send]:
        self._closes[close.clock] = close
        self._arm(now_us)
        return [Send(server, close) for server in self._servers]

    def roster(self, roster: Roster, now_us: int) -> list[Send]:
        self._roster = roster
        self._arm(now_us)
        return [Send(server, roster) for server in self._servers]

    def on_close_ack(self, sender: str, ack: CloseAck, now_us: int) -> None:
        """Raises `PeerError` for a close that was never sent."""
        if ack.closed > self.floor + len(self._closes):
            raise PeerError(f"CloseAck of {ack.closed} clocks, {self.floor + len(self._closes)} are closed")
        for number in ack.ranges:
            if self._owner.get(number) == sender and ack.closed > self._closed[number]:
                self._closed[number] = ack.closed
        floor = min(self._closed.values())
        while self.floor < floor:
            self._closes.pop(self.floor, None)
            self.floor += 1
        self._progress(now_us)

    def on_roster_ack(self, sender: str, ack: RosterAck, now_us: int) -> None:
        if self._roster is None or ack.number > self._roster.number:
            return
        for number in ack.ranges:
            if self._owner.get(number) == sender and ack.number > self._rostered[number]:
                self._rostered[number] = ack.number
        if min(self._rostered.values()) >= self._roster.number:
            self._roster = None
        self._progress(now_us)

    def resend(self, epoch: int, token: int, now_us: int) -> list[Send]:
        """To every server that owes an ack, what its ranges lack."""
        effects: list[Send] = []
        for server, ranges in self._servers.items():
            if self._roster is not None and min(self._rostered[number] for number in ranges) < self._roster.number:
                effects.append(Send(server, self._roster._replace(epoch=epoch, token=token)))
            lowest = min(self._closed[number] for number in ranges)
            for clock in range(lowest, min(lowest + _CATCH_UP, self.floor + len(self._closes))):
                effects.append(Send(server, self._closes[clock]._replace(epoch=epoch, token=token)))
        self._wait_us = min(2 * self._wait_us, self._limits.resend_us_max)
        self.due_us = now_us + self._wait_us if self._owing() else None
        return effects

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

    def check(self) -> None:
        assert list(self._closes) == list(range(self.floor, self.floor + len(self._closes))), "a close is missing"
        assert self._owing() == (self.due_us is not None)

    def state(self) -> tuple[Any, ...]:
        return (self.floor, sorted(self._closed.items()), sorted(self._rostered.items()))
