"""One of several masters: it decides while it leads, and otherwise says who does.

Puts together the leadership and, for each reign, a master machine of its own: whatever that knew of nodes and questions
ends with the reign, since the next leader is asked again.  Refuses to know what is decided.
"""

from __future__ import annotations

from itertools import count
from typing import Any
from zlib import crc32

from ..core.effects import Send, Stop
from ..core.errors import WorldError
from ..core.limits import Limits
from ..wire import messages as m
from .effects import LEADER_KEY, StoreDone
from .leadership import Leadership
from .machine import MasterMachine

#: What nodes and people say to a master.
TO_A_MASTER = frozenset({m.Register, m.Beat, m.JobAsk, m.AttachAsk, m.MoreAsk, m.MapAsk, m.JobEnd, m.NodeExit, m.SeatAsk, m.SaveEnd, m.Retire, m.Admin})


class RivalMaster:
    """Like MasterMachine, with `endpoint`: where it listens, for the others to know."""

    def __init__(
        self, name: str, incarnation: str, endpoint: str, cluster: str, limits: Limits = Limits(), servers_expected: int = 1, copies: int = 0
    ) -> None:
        self.name = name
        self.incarnation = incarnation
        self.cluster = cluster
        self.limits = limits
        self.servers_expected = servers_expected
        self.copies = copies
        self.reigning: MasterMachine | None = None
        self._term = 0  # of the reign, 0 = none
        self._numbers = count(1)
        self.leadership = Leadership(name, f"{name}.{incarnation}", endpoint, limits, self._numbers)

    # -- events

    def on_message(self, sender: str, message: Any, now_us: int) -> list[Any]:
        effects = self._on_clock(now_us)
        if isinstance(message, StoreDone) and message.key == LEADER_KEY:
            try:
                effects += self.leadership.on_done(message, now_us)
            except WorldError as error:
                return [*effects, Stop(1, str(error))]
            return effects + self._succeed(now_us)
        if self.reigning is not None:
            effects += self.reigning.on_message(sender, message, now_us)
            return effects + self._succeed(now_us)
        if type(message) in TO_A_MASTER:
            effects.append(Send(sender, m.NotLeader(self.leadership.term, self.leadership.leader(now_us))))
        return effects

    def on_time(self, now_us: int) -> list[Any]:
        effects = self._on_clock(now_us)
        if self.reigning is not None:
            effects += self.reigning.on_time(now_us)
        return effects + self._succeed(now_us)

    def deadline_us(self) -> int | None:
        dues_us = [self.leadership.deadline_us(), self.reigning.deadline_us() if self.reigning is not None else None]
        return min((due_us for due_us in dues_us if due_us is not None), default=None)

    def _on_clock(self, now_us: int) -> list[Any]:
        """Before anything else: one that has slept has perhaps been followed by another, and must not speak as the leader."""
        due_us = self.leadership.deadline_us()
        if due_us is not None and now_us - due_us > self.limits.late_us:
            self.leadership.was_late()
        return self.leadership.on_time(now_us) + self._succeed(now_us)

    # -- reigns

    def _succeed(self, now_us: int) -> list[Any]:
        """A reign has begun or ended, if one has."""
        effects: list[Any] = []
        found = self.reigning.ledger.outdone if self.reigning is not None else None
        if found is not None:
            effects += self.leadership.outdone(found.term, now_us)
        if self.leadership.reign == self._term:
            return effects
        self._term = self.leadership.reign
        self.reigning = None
        if self._term:
            self.reigning = MasterMachine(
                self.name, self.incarnation, self.cluster, self.limits, self.servers_expected, self.copies, self._term, self._numbers
            )
            effects += self.reigning.on_time(now_us)
        return effects

    def last_word(self, value: bytes) -> bytes:
        """What to write over this value of the leader's key at a clean end, b"" = nothing."""
        return self.leadership.last_word(value)

    # -- invariants

    def check(self) -> None:
        self.leadership.check()
        assert (self.reigning is not None) == (self._term > 0) and self._term == self.leadership.reign
        if self.reigning is not None:
            assert self.reigning.ledger.outdone is None
            state = self.reigning.ledger.state
            assert state is None or state.term == self._term
            self.reigning.check()

    def digest(self) -> int:
        of_reign = self.reigning.digest() if self.reigning is not None else 0
        return crc32(repr(self.leadership.state()).encode(), of_reign)
