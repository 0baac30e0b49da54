"""Who takes part in which clocks of a job, how far each has come, and who holds the others back.

A clock counts finished iterations.  Workers 0 .. W - 1 are members from clock 0 on, whether they have come or not.
Knows neither consistency models nor messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any

from ..core.errors import PeerError
from . import plain


@dataclass(slots=True)
class Member:
    """A worker, under its newest incarnation.  It takes part in clocks `first` <= c, and c < `end` unless that is -1."""

    worker: int
    gen: int
    first: int
    end: int
    finished: int
    agent: str  # the node that speaks for it, "" = nobody yet

    @property
    def here(self) -> bool:
        return self.end < 0


class Members:
    """`slowest` is the least number of clocks that a member has finished; it never falls."""

    def __init__(self, workers: int) -> None:
        self.rows = {worker: Member(worker, 0, 0, -1, 0, "") for worker in range(workers)}
        self.number = 0  # of the roster: raised by every change of membership or incarnation
        self.count = 0  # of those that are here
        self.slowest = 0
        self._behind: dict[int, None] = {}  # those whose clock is the slowest one, by number
        self._count_anew()

    def get(self, worker: int) -> Member | None:
        return self.rows.get(worker)

    def join(self, worker: int, gen: int, agent: str, first: int) -> Member:
        """A new incarnation: it goes on where the one before stood, or begins at `first` if that had left or never was."""
        member = self.rows.get(worker)
        if member is None:
            member = self.rows[worker] = Member(worker, gen, first, -1, first, agent)
            self.rows = dict(sorted(self.rows.items()))
        elif not member.here:
            member.first = member.finished = max(first, member.end)
            member.end = -1
        member.gen = gen
        member.agent = agent
        self.number += 1
        self._count_anew()
        return member

    def leave(self, member: Member) -> None:
        """It has no part in the clock that it is in, nor in later ones; what it has finished stands."""
        member.end = member.finished
        self.number += 1
        self._count_anew()

    def finish(self, member: Member) -> None:
        """One more clock of a member is done."""
        member.finished += 1
        self._behind.pop(member.worker, None)
        if not self._behind:
            self._count_anew()

    @property
    def farthest(self) -> int:
        """The most clocks that a member has finished, or anybody when nobody is left."""
        here = [member.finished for member in self.rows.values() if member.here]
        return max(here or [member.finished for member in self.rows.values()], default=0)

    def waiting(self, most: int) -> tuple[int, ...]:
        """The members that hold the clock back, the lowest numbers first."""
        return tuple(islice(self._behind, most))

    def roster(self) -> tuple[tuple[int, int, int, int], ...]:
        return tuple((member.worker, member.gen, member.first, member.end) for member in self.rows.values())

    def _count_anew(self) -> None:
        here = [member for member in self.rows.values() if member.here]
        self.count = len(here)
        if here:
            slowest = min(member.finished for member in here)
            assert slowest >= self.slowest, "the slowest clock would fall: a newcomer began too early"
            self.slowest = slowest
        self._behind = {member.worker: None for member in here if member.finished <= self.slowest}

    # -- copies

    def dump(self) -> dict[str, Any]:
        """Everything, as a plain document."""
        rows = [(row.worker, row.gen, row.first, row.end, row.finished, row.agent) for row in self.rows.values()]
        return {"number": self.number, "slowest": self.slowest, "rows": rows}

    def load(self, meta: Any) -> None:
        """What a copy's document says, in place of what is here.  Raises `PeerError`."""
        kinds = (plain.whole, plain.whole, plain.whole, plain.signed, plain.whole, plain.text)
        found = [Member(*row) for row in plain.records(plain.field(meta, "rows"), *kinds)]
        number, slowest = plain.whole(plain.field(meta, "number")), plain.whole(plain.field(meta, "slowest"))
        rows = plain.once([(row.worker, row) for row in found])
        if any(row.here and row.finished < slowest for row in found):
            raise PeerError(f"a copy has a member that is slower than the slowest clock, {slowest}")
        if any(row.first > row.finished or row.end not in (-1, row.finished) for row in found):
            raise PeerError("a copy has a member that ended where it never was")
        self.rows, self.number, self.slowest = dict(sorted(rows.items())), number, slowest
        self._count_anew()

    def rewind(self, clocks: int, workers: int) -> None:
        """From a checkpoint, for a job that begins with so many workers: nobody has come yet.

        Whoever took part in the clock behind the cut stands there (-1: where it stood), and so do workers that are new: at the cut, or with the
        slowest.  Numbers beyond (who had joined, or a job of more workers) have no part any more.
        """
        new = [worker for worker in range(workers) if worker not in self.rows]
        for row in list(self.rows.values()):
            row.gen, row.agent = 0, ""
            if row.worker >= workers or row.first > clocks >= 0:
                del self.rows[row.worker]
            elif clocks >= 0 and (row.here or row.end >= clocks):
                row.end, row.finished = -1, clocks
        here = [row.finished for row in self.rows.values() if row.here]
        start = min(here, default=max(0, clocks))
        here += [start] * len(new)
        self.rows = dict(sorted({**self.rows, **{worker: Member(worker, 0, start, -1, start, "") for worker in new}}.items()))
        self.number = max(1, self.number)
        self.slowest = min(here, default=max(0, clocks))
        self._count_anew()

    def check(self) -> None:
        here = [member for member in self.rows.values() if member.here]
        assert self.count == len(here)
        assert list(self._behind) == [member.worker for member in here if member.finished <= self.slowest]
        for member in self.rows.values():
            assert member.first <= member.finished and (member.here or member.end == member.finished)
            assert not member.here or member.finished >= self.slowest
