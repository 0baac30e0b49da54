"""Everything that a range holds, taken and put back as one `Dump`: for its copies, and for its file in a checkpoint.

What is applied and nothing else: no entry of the log, no snapshot, nobody who waits.  What was dumped and loaded shows
the same values and goes on bit for bit.  Nothing changes the arrays of a dump, so that a thread may read them while the
range goes on.  Refuses to know who asks for it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..core.errors import PeerError, RequestError
from . import plain
from .clock import ClockMachine
from .contents import Contents
from .dump import Dump, Layout
from .shares import Shares
from .staging import Staging
from .streams import Streams


class Facts(NamedTuple):
    """What a range knows of itself: log position, clocks closed, claim of its first values, running checksum, failure."""

    version: int
    closed: int
    claim: int
    mark: int
    failure: RequestError | None


class Holding(NamedTuple):
    """The parts of one range."""

    contents: Contents
    staging: Staging
    streams: Streams
    shares: Shares
    clock: ClockMachine | None

    def dump(self, facts: Facts) -> Dump:
        """Dense blocks and staged pushes by reference, rows copied.  `contents.let_go` ends it.  Raises MemoryError."""
        inside = self.contents.dump()
        staged, pushed = self.staging.dump()
        meta = {
            "version": facts.version, "closed": facts.closed, "claim": facts.claim, "mark": facts.mark, "failure": plain.from_failure(facts.failure),
            "contents": inside.meta, "staged": staged, "streams": self.streams.dump(), "shares": self.shares.dump(),
            "clock": self.clock.dump() if self.clock is not None else {},
        }  # fmt: skip
        return Dump(meta, {**inside.arrays, **pushed}, inside.kept)

    def layout(self, meta: Any) -> Layout:
        """The arrays that belong to such a document.  Raises `PeerError`, and `RequestError` where there is no room for its rows."""
        inside = self.contents.layout(plain.field(meta, "contents"))
        return {**inside, **self.staging.layout(plain.field(meta, "staged"), self.contents.blocks, self.contents.buckets)}

    def load(self, dump: Dump) -> Facts:
        """What a dump has, in place of what is here; takes its arrays.

        Raises `PeerError`, MemoryError, and `RequestError` where there is no room for its rows: `forget` then.
        """
        meta, arrays = dump.meta, dump.arrays
        facts = _facts(meta)
        self.streams.load(plain.field(meta, "streams"))
        self.shares.load(plain.field(meta, "shares"))
        if (self.clock is not None) != bool(plain.field(meta, "clock")):
            raise PeerError("a copy of a range with the job's clock is none of one without")
        if self.clock is not None:
            self.clock.load(plain.field(meta, "clock"))
        self.staging.forget()
        self.contents.load(plain.field(meta, "contents"), arrays)
        self.staging.load(plain.field(meta, "staged"), arrays, self.contents.blocks, self.contents.buckets)
        self._check_staged(facts.closed)
        return facts

    def rewind(self, closed: int) -> None:
        """From a checkpoint: incarnations are counted anew, and what they had under way is done again."""
        self.staging.forget()
        self.streams.rewind()
        self.shares.number = 0
        if self.clock is not None:
            self.clock.rewind(closed)

    def forget(self) -> None:
        """Nothing is here any more, and memory is given back.  (Streams, shares and clock are the next load's to replace.)"""
        self.staging.forget()
        self.contents.forget()

    def _check_staged(self, closed: int) -> None:
        newest: dict[tuple[int, int, int], int] = {}
        for clock, worker, gen, seq in self.staging.pushes():
            if not closed <= clock <= closed + 1 or (gen, seq) > self.streams.rows.get(worker, (0, 0)):
                raise PeerError(f"a copy has a push of worker {worker} in clock {clock}, which cannot be")
            if seq <= newest.get((clock, worker, gen), 0):
                raise PeerError(f"a copy has pushes of worker {worker} out of order")
            newest[clock, worker, gen] = seq


def _facts(meta: Any) -> Facts:
    version, closed, claim = [plain.whole(plain.field(meta, name)) for name in ("version", "closed", "claim")]
    mark, failure = plain.whole(plain.field(meta, "mark"), 0, 0xFFFFFFFF), plain.failure(plain.field(meta, "failure"))
    return Facts(version, closed, claim, mark, failure)
