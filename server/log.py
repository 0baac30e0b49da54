"""The log of one range: what changes it, in one order.  An entry is appended, committed, applied, and only then answered.

With one copy an entry is committed as it is appended; with more, when every copy in sync holds it.  An entry is the
message as it was received: each copy makes the same of it.  Knows neither who holds what nor what an entry means.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from .contents import Taken

#: An entry takes so much beside its numbers, in memory and on its way: many small ones are much, too.
HEAD_BYTES = 128


class Entry(NamedTuple):
    """`version` is its position, `origin` the node that sent its message; `upto` counts the log's bytes to its end.

    `made` is the epoch in which it was appended first: (version, made) never name two entries, since an epoch has one
    primary, which gives a position once.  `taken` is what was read of it when the range stood at `seen`, for whoever need
    not read it again.
    """

    version: int
    origin: str
    message: Any
    nbytes: int
    upto: int
    made: int = 0
    taken: Taken | None = None
    seen: int = -1


class Log:
    """Entries that are not applied yet, and those that a learner lacks."""

    def __init__(self, start: int = 0) -> None:
        self.entries: deque[Entry] = deque()
        self.last = start  # version of the newest entry
        self.committed = start
        self.applied = start
        self.written = 0  # bytes of all entries that were ever here

    def append(
        self, origin: str, message: Any, nbytes: int, made: int = 0, taken: Taken | None = None, seen: int = -1
    ) -> Entry:
        self.last += 1
        nbytes += HEAD_BYTES
        self.written += nbytes
        entry = Entry(self.last, origin, message, nbytes, self.written, made, taken, seen)
        self.entries.append(entry)
        return entry

    def pass_by(self) -> None:
        """An entry that nobody else is to have was applied at once."""
        if self.entries:  # that were kept for somebody who has gone
            self.entries.clear()
        self.last += 1
        self.committed = self.applied = self.last

    def begin(self, version: int) -> None:
        """A copy was loaded that holds everything up to here."""
        assert not self.entries
        self.last = self.committed = self.applied = version

    def commit(self, version: int) -> None:
        """Every copy in sync holds the entries up to this one.  That never falls."""
        if version > self.committed:
            self.committed = version

    def next(self) -> Entry:
        """The entry that is to be applied next."""
        return self.entries[self.applied + 1 - self.entries[0].version]

    def after(self, version: int) -> Iterator[Entry]:
        """Entries behind this one, in order; all of them must be here still."""
        if not self.entries:
            return iter(())
        skip = version + 1 - self.entries[0].version
        assert skip >= 0, f"entries behind {version} are asked for, the first one here is {self.entries[0].version}"
        return islice(self.entries, skip, None)

    def runs(self, version: int) -> tuple[tuple[int, int], ...]:
        """(version, made) of the entries behind this one that were made in another epoch than the one before them."""
        found: list[tuple[int, int]] = []
        for entry in self.after(version):
            if not found or found[-1][1] != entry.made:
                found.append((entry.version, entry.made))
        return tuple(found)

    def same(self, commit: int, last: int, runs: Sequence[tuple[int, int]]) -> int:
        """Up to where this log is that of a primary, of which everything up to `commit` is the same; see Sync."""
        same = min(max(self.committed, commit), self.last)
        for entry in self.after(same):
            made = [made for version, made in runs if version <= entry.version]
            if entry.version > last or not made or made[-1] != entry.made:
                break
            same = entry.version
        return same

    def bytes_after(self, version: int) -> int:
        """Bytes of the entries behind this one that are still here."""
        if version >= self.last or not self.entries:
            return 0
        entries = self.entries
        at = version - entries[0].version
        return self.written - (entries[at].upto if at >= 0 else entries[0].upto - entries[0].nbytes)

    def trim(self, lacked: int) -> None:
        """Forget what is applied, up to the version that somebody who learns has got."""
        entries, most = self.entries, min(self.applied, lacked)
        while entries and entries[0].version <= most:
            entries.popleft()

    def cut(self, version: int) -> None:
        """Forget what lies behind this version: it was never committed."""
        assert version >= self.committed, "a committed entry would be forgotten"
        while self.entries and self.entries[-1].version > version:
            self.written -= self.entries.pop().nbytes
        self.last = version

    def check(self) -> None:
        versions = [entry.version for entry in self.entries]
        assert self.applied <= self.committed <= self.last
        assert versions == list(range(self.last - len(versions) + 1, self.last + 1)), "the log has a hole"
        assert not versions or versions[0] <= self.applied + 1
        assert versions or self.applied == self.last


def payload_bytes(message: Any) -> int:
    """Bytes of the numbers in a message."""
    payload = getattr(message, "payload", ())
    return sum([memoryview(buffer).nbytes for buffer in payload]) if payload else 0
