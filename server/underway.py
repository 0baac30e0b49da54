"""What a range's log holds and has not applied: the primary looks at it before it takes more, so that nothing is taken twice.

Knows only what decides about the next message: streams, closes, claims, the roster, and room that was promised.
"""

from __future__ import annotations

from typing import Any

from ..wire import messages as m
from ..wire.messages import Close, Component, Init, Push, Roster
from .contents import Room
from .log import Entry
from .pool import Pool
from .streams import FENCED, GAP, NEXT, SEEN, VOID, WAITS

#: What is asked again until it is answered, and said to the clock.
_ASKED = (m.ClaimAsk, m.InitDone, m.Join, m.Leave, m.NextAsk, m.SaveAsk, m.StopAsk, m.Tick)


class Underway:
    """`count` is the number of entries; with none of them everything is as it was applied."""

    def __init__(self, pool: Pool) -> None:
        self.count = 0
        self.closed = 0  # clocks that are closed once all of it is applied; 0 = as many as now
        self.claim = 0
        self.roster = 0
        self._pool = pool
        self._streams: dict[int, tuple[int, int, int]] = {}  # worker -> (gen, seq, version) of its last push under way
        self._rooms: dict[int, Room] = {}  # by version
        self._asked: dict[tuple[str, type[Any], Any], int] = {}  # what was asked by whom -> version

    def add(self, entry: Entry) -> None:
        self.count += 1
        message = entry.message
        if isinstance(message, Push):
            for worker, gen, seq, *_ in message.components:
                self._streams[worker] = (gen, seq, entry.version)
            room = entry.taken.room if entry.taken is not None else None
            if room is not None:
                self._rooms[entry.version] = room
                self._pool.promise(room.nbytes, room.cost)
        elif isinstance(message, Close):
            self.closed = message.clock + 1
        elif isinstance(message, Init):
            self.claim = message.claim
        elif isinstance(message, Roster):
            self.roster = message.number
        elif isinstance(message, _ASKED):
            self._asked[_question(entry.origin, message)] = entry.version

    def asks(self, origin: str, message: Any) -> bool:
        """Whether the very same is asked already, and will be answered: an entry each time that it comes again could fill the log faster than it is applied."""
        return isinstance(message, _ASKED) and _question(origin, message) in self._asked

    def done(self, entry: Entry) -> None:
        """An entry is about to be applied: its room may be taken now."""
        self.count -= 1
        message = entry.message
        if isinstance(message, Push):
            for component in message.components:
                found = self._streams.get(component.worker)
                if found is not None and found[2] == entry.version:
                    del self._streams[component.worker]
            room = self._rooms.pop(entry.version, None)
            if room is not None:
                self._pool.promise(-room.nbytes, -room.cost)
        elif isinstance(message, Init) and message.claim == self.claim:
            self.claim = 0
        elif isinstance(message, _ASKED):
            question = _question(entry.origin, message)
            if self._asked.get(question) == entry.version:
                del self._asked[question]
        if not self.count:
            self.closed = self.roster = 0

    def clear(self) -> None:
        """Nothing is considered here any more."""
        for room in self._rooms.values():
            self._pool.promise(-room.nbytes, -room.cost)
        self._rooms.clear()
        self._streams.clear()
        self._asked.clear()
        self.count = self.closed = self.claim = self.roster = 0

    def look(self, component: Component, applied: int) -> int:
        """What this push of a stream is; `applied` says what it is to what was applied."""
        found = self._streams.get(component.worker)
        if found is None or applied in (FENCED, SEEN, VOID):
            return applied
        gen, last, _ = found
        if component.gen < gen:
            return WAITS
        if component.gen > gen:
            last = 0
        if component.seq <= last:
            return WAITS
        return GAP if component.prev > last else WAITS if component.prev < last else NEXT


def _question(origin: str, message: Any) -> tuple[str, type[Any], Any]:
    """What is asked by whom, in whatever epoch.  (Tuples of two kinds may be equal.)"""
    return origin, type(message), message._replace(epoch=0, token=0)
