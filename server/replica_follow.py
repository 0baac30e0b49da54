"""A backup of one range: holds exactly what the primary of its epoch has ordered, and says how far that goes.

Before it has heard the primary's Sync it takes nothing: what it holds may be of another primary, which this one never
heard of.  It forgets no more than that: what both hold may be committed, by a primary that nobody hears any more.  Knows
neither what an entry means nor when it is applied.
"""

from __future__ import annotations

from typing import Any

from ..core.effects import Send
from ..wire import messages as m
from .log import Log, payload_bytes
from .range import RangeMachine
from .replica_seat import Seat


class BrokenCopy(Exception):
    """This copy is none: it can take no more, and has to be dropped.  The text says why."""


class Follow:
    def __init__(self, seat: Seat, log: Log, held: RangeMachine) -> None:
        self._seat = seat
        self._log = log
        self._range = held
        self.synced = False  # in this epoch
        self._mark = (0, 0)  # version and digest to compare with

    def on_sync(self, sender: str, sync: m.Sync) -> list[Any]:
        """Once in an epoch: a repeat of it that comes late must not cut off what came meanwhile.  Raises `BrokenCopy`."""
        log = self._log
        if not self.synced:
            if sync.last < log.committed:
                raise BrokenCopy(f"{log.committed} entries are committed, and the primary {sender} has {sync.last}")
            self.synced = True
            log.cut(log.same(sync.commit, sync.last, sync.runs))
            log.commit(min(sync.commit, log.last))
        return [self._held(sender)]

    def on_replicate(self, sender: str, told: m.Replicate) -> list[Any]:
        """The next entry, a repeat, or news of the commit.  A gap is silence: what lies in it comes again."""
        if not self.synced:
            return []
        log = self._log
        effects: list[Any] = []
        if told.version:
            if told.version == log.last + 1:
                log.append(told.origin, told.entry, payload_bytes(told.entry), told.made)
            if told.version <= log.last:
                effects.append(self._held(sender))
        log.commit(min(told.commit, log.last))
        if told.mark[0] and told.mark[0] >= self._range.version:
            self._mark = told.mark
            self.compare()
        return effects

    def compare(self) -> None:
        """After each entry that was applied: is this copy what the primary is at the same position?  Raises `BrokenCopy`."""
        version, digest = self._mark
        if version == self._range.version and version:
            self._mark = (0, 0)
            if digest != self._range.mark:
                raise BrokenCopy(f"the copy on {self._seat.name} differs from that on {self._seat.primary} at position {version}")

    def _held(self, sender: str) -> Send:
        seat = self._seat
        return Send(sender, m.Held(seat.job, seat.range, seat.epoch, seat.token, self._log.last))
