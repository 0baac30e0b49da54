"""Which copies here have committed entries that wait to be applied, and how much one event applies of them.

An entry that has nothing before it is applied in the event that committed it, while that event has not done its share;
the rest goes on in turns, copy by copy, so that others have their turn and what was answered so far travels meanwhile.
A large entry is applied in slices, one in each turn: until it is done nothing else is.  Knows neither messages nor what an
entry is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from .replica import Replica

_MANY = 1 << 30
_SOME = 16  # entries of one copy before the next one has its turn


class Turns:
    def __init__(self, turn_bytes: int, emit: Callable[[list[Any]], None]) -> None:
        self.turning = False  # a Turn is on its way back
        self.queue: deque[Replica] = deque()
        self.left_bytes = turn_bytes  # of this event; whoever begins one sets it anew
        self._emit = emit

    def apply(self, replica: Replica, now_us: int) -> None:
        """Now, as far as this event may; the rest later."""
        if self.left_bytes > 0 and not (replica.queued or replica.suspended or self.busy):
            self.left_bytes, effects = replica.apply(self.left_bytes, _MANY, now_us)
            self._emit(effects)
        if replica.ready:
            self.later(replica)

    def later(self, replica: Replica) -> None:
        if not replica.queued:
            replica.queued = True
            if replica.suspended:
                self.queue.appendleft(replica)
            else:
                self.queue.append(replica)

    @property
    def busy(self) -> bool:
        """A range is in the middle of something large: nobody else may look at it."""
        return bool(self.queue) and self.queue[0].suspended

    def finish(self, now_us: int) -> None:
        """All slices of it that are left, for somebody who cannot wait."""
        while self.busy:
            replica = self.queue.popleft()
            replica.queued = False
            self._emit(replica.apply(1, 1, now_us)[1])
            if replica.ready:
                self.later(replica)

    def wants_turn(self) -> bool:
        """Asked at the end of each event; True: give a Turn out."""
        if self.turning or not self.queue:
            return False
        self.turning = True
        return True

    def on_turn(self, now_us: int) -> list[Replica]:
        """Go on; returns the copies that had a turn."""
        self.turning = False
        served = []
        while self.queue and self.left_bytes > 0:
            replica = self.queue.popleft()
            replica.queued = False
            if replica.gone or not replica.ready:
                continue
            self.left_bytes, effects = replica.apply(self.left_bytes, _SOME, now_us)
            self._emit(effects)
            served.append(replica)
            if replica.ready:
                self.later(replica)
        return served

    def check(self) -> None:
        assert bool(self.queue) <= self.turning, "entries wait, and nobody's turn comes"
        assert not any(replica.suspended for replica in list(self.queue)[1:]), "two entries are applied at once"
        assert len(self.queue) == len(set(self.queue)) and all(replica.queued for replica in self.queue)
