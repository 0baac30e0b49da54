"""Workers that push the same bytes clock after clock: most likely the same shard with the same seed.

A worker's ticks come with a checksum of its clock's pushes, 0 = nothing to compare.  Who has the checksums of another
worker in STREAK clocks in a row is its twin; the two are watched from there on, and named again whenever the streak has
doubled.  Of many equal workers each is watched against one of them.

Owns the last KEPT checksums of each worker, so that workers which are up to KEPT - STREAK clocks apart are compared.
Refuses to know what a push is and whom to tell.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..core.errors import PeerError
from . import plain

STREAK = 10
KEPT = 32


class Pair(NamedTuple):
    """Workers `worker` and `other` were equal in `clocks` clocks in a row."""

    worker: int
    other: int
    clocks: int


class Row:
    """The newest checksums of one worker, up to that of clock `last`, and the twin that it is watched against."""

    __slots__ = ("crcs", "last", "other", "since", "upto", "due")

    def __init__(self) -> None:
        self.crcs: deque[int] = deque(maxlen=KEPT)
        self.last = -1
        self.other = -1  # -1 = nobody
        self.since = 0  # first clock of the streak
        self.upto = 0  # clocks below this one are compared
        self.due = 0  # length of the streak at which to say so again

    @classmethod
    def loaded(cls, last: int, other: int, since: int, upto: int, due: int, crcs: Sequence[Any]) -> Row:
        row = cls()
        row.last, row.other, row.since, row.upto, row.due = last, other, since, upto, due
        row.crcs.extend([plain.whole(crc) for crc in crcs])
        return row

    def at(self, clock: int) -> int:
        """The checksum of a clock, 0 when it is not known (any more, or yet)."""
        back = self.last - clock
        return self.crcs[-1 - back] if 0 <= back < len(self.crcs) else 0


class Twins:
    def __init__(self) -> None:
        self._rows: dict[int, Row] = {}
        self._first: dict[int, dict[int, int]] = {}  # clock -> checksum -> who had it first
        self._newest = -1  # clock of all

    def note(self, worker: int, clock: int, crc: int, slowest: int) -> Pair | None:
        """A worker has finished a clock, everybody `slowest` clocks; the twin that is to be named, if there is one."""
        row = self._rows.setdefault(worker, Row())
        assert not row.crcs or clock == row.last + 1, "a clock was left out: who leaves is forgotten"
        row.crcs.append(crc)
        row.last = clock
        if clock > self._newest:
            self._newest = clock
            self._forget_clocks(slowest)
        if row.other >= 0:
            self._compare(row)
        if row.other < 0 and crc and clock >= self._newest - KEPT + STREAK:
            self._look(worker, row, clock, crc)
        equal = row.upto - row.since
        if row.other < 0 or equal < row.due:
            return None
        row.due *= 2
        return Pair(worker, row.other, equal)

    def forget(self, worker: int) -> None:
        """The worker takes part no more."""
        self._rows.pop(worker, None)

    def _compare(self, row: Row) -> None:
        """Go on with a pair, as far as both have come; the streak ends where they differ or can be compared no more."""
        other = self._rows.get(row.other)
        while other is not None and row.upto <= min(row.last, other.last):
            crc = row.at(row.upto)
            if not crc or crc != other.at(row.upto):
                other = None
                break
            row.upto += 1
        if other is None:
            row.other = -1

    def _look(self, worker: int, row: Row, clock: int, crc: int) -> None:
        """Is there somebody who had the same checksums in the last clocks?"""
        first = self._first.setdefault(clock, {}).setdefault(crc, worker)
        other = self._rows.get(first)
        if first == worker or other is None:
            return
        for back in range(STREAK):
            if not row.at(clock - back) or row.at(clock - back) != other.at(clock - back):
                return
        row.other, row.since, row.upto, row.due = first, clock - STREAK + 1, clock + 1, STREAK

    def _forget_clocks(self, slowest: int) -> None:
        """Clocks that everybody has finished, or that are too old to compare."""
        oldest = max(slowest, self._newest - KEPT + STREAK)
        for clock in [clock for clock in self._first if clock < oldest]:
            del self._first[clock]

    # -- copies

    def dump(self) -> dict[str, Any]:
        """Everything, as a plain document."""
        rows = [(worker, row.last, row.other, row.since, row.upto, row.due, list(row.crcs)) for worker, row in sorted(self._rows.items())]
        first = [(clock, sorted(found.items())) for clock, found in sorted(self._first.items())]
        return {"newest": self._newest, "rows": rows, "first": first}

    def load(self, meta: Any) -> None:
        """What a copy's document says, in place of what is here.  Raises `PeerError`."""
        kinds = (plain.whole, plain.signed, plain.signed, plain.whole, plain.whole, plain.whole, plain.listed)
        rows = plain.once([(row[0], Row.loaded(*row[1:])) for row in plain.records(plain.field(meta, "rows"), *kinds)])
        first = plain.records(plain.field(meta, "first"), plain.whole, plain.listed)
        newest = plain.signed(plain.field(meta, "newest"))
        if any(row.other >= 0 and not self._may_be(worker, row, rows) for worker, row in rows.items()) or len(first) > KEPT:
            raise PeerError("a copy has twins that cannot be")
        self._first = plain.once([(clock, plain.once(plain.records(some, plain.whole, plain.whole))) for clock, some in first])
        self._rows, self._newest = rows, newest

    @staticmethod
    def _may_be(worker: int, row: Row, rows: dict[int, Row]) -> bool:
        other = rows.get(row.other)
        return row.other != worker and row.upto <= row.last + 1 and row.due > STREAK and (other is None or other.other != worker)

    @property
    def heard(self) -> dict[int, int]:
        """The clock that each worker has told of last."""
        return {worker: row.last for worker, row in self._rows.items()}

    def check(self) -> None:
        assert len(self._first) <= KEPT, "clocks are kept for ever"
        for worker, row in self._rows.items():
            other = self._rows.get(row.other)
            assert row.other < 0 or (row.other != worker and row.upto <= row.last + 1 and row.due > STREAK)
            assert other is None or other.other != worker, "two are watched against each other"
