"""The log of one range: what changes it, in one order.  An entry is appended, committed, applied, and only then answered.

With one copy an entry is committed as it is appended; with more, when every copy in sync holds it.  Whatever an entry
needs to be applied again elsewhere with the same bits lies in it: the message and the scalars of its steps.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, Union

from ..wire.messages import Close, Init, Push, Roster


class Entry(NamedTuple):
    """`version` is its position; `scalars` lists (table, scalars of its optimizer), made by the primary in float64."""

    version: int
    message: Union[Push, Init, Close, Roster]
    scalars: tuple[tuple[int, tuple[float, ...]], ...]


class Log:
    """Entries that are not applied everywhere yet."""

    def __init__(self) -> None:
        self.entries: deque[Entry] = deque()
        self.last = 0  # version of the newest entry
        self.committed = 0

    def append(self, message: Union[Push, Init, Close, Roster], scalars: tuple[tuple[int, tuple[float, ...]], ...]) -> Entry:
        self.last += 1
        entry = Entry(self.last, message, scalars)
        self.entries.append(entry)
        return entry

    def commit(self) -> list[Entry]:
        """Entries that are committed now and were not before, in order.  There is one copy, ours: all of them."""
        ready = list(self.entries)
        self.entries.clear()
        self.committed = self.last
        return ready
