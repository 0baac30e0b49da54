"""What one range holds of its job's tables, dense blocks and sparse rows together: read, stepped, shown, kept as snapshots.

Whatever cannot be taken raises `RequestError` and leaves no trace.  Knows neither streams nor clocks nor the log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Union

from ..core.errors import Code, PeerError, RequestError
from ..core.job import JobSpec
from ..core.jobmap import Bucket, Piece
from ..wire.messages import ABSENT, BLOCK, BY_VALUE, IDS, Segment
from . import plain
from .blocks import Array, Blocks, Scalars, Slices
from .buckets import Buckets, Pushed
from .buckets import Room as Room
from .dump import Dump, Layout
from .memory import Memory
from .place import Items, News, Place
from .pool import Pool
from .rowgroups import Group
from .rows import Kept, Rows, Step
from .staging import Plan

Holder = Union[Place, Rows]

SNAPSHOTS_KEPT = 2


class Load(NamedTuple):
    """The numbers of a message, as views of the received frames."""

    items: Items
    groups: list[Group]

    def holders(self) -> list[Holder]:
        """What they are for: blocks and buckets."""
        holders: list[Holder] = [place for place, _ in self.items]
        if self.groups:
            holders += [group.rows for group in self.groups]
        return holders

    def split(self) -> tuple[Load, Load]:
        """What is stepped at once, and what waits for a close: nearly always all or nothing."""
        staged = [holder.staged for holder in self.holders()]
        if True not in staged:
            return self, NOTHING
        if False not in staged:
            return NOTHING, self
        return self._split()

    def _split(self) -> tuple[Load, Load]:
        at_once = Load([item for item in self.items if not item[0].staged], [group for group in self.groups if not group.rows.staged])
        waiting = Load([item for item in self.items if item[0].staged], [group for group in self.groups if group.rows.staged])
        return at_once, waiting


class Taken(NamedTuple):
    """What was read of a message that becomes an entry: its numbers, what they are for, and room for rows that are new."""

    load: Load
    holders: list[Holder]
    room: Room | None


class Prepared(NamedTuple):
    """What applying an entry will do: states to swap in, rows to step, numbers to keep for a close."""

    news: News
    steps: list[Step]
    staged: Load


NOTHING = Load([], [])


class Snapshot(NamedTuple):
    blocks: dict[Place, Array]
    rows: dict[Rows, Kept]
    nbytes: int  # of all values in it


class Contents:
    def __init__(
        self, job: JobSpec, number: int, pieces: Sequence[Piece], buckets: Sequence[Bucket], memory: Memory, pool: Pool
    ) -> None:
        self.number = number
        self.blocks = Blocks(job, number, pieces, memory)
        self.buckets = Buckets(job, number, buckets, memory, pool)
        self.changes = 0  # steps of anything here, and rows that came: a block or bucket knows its last one
        self.kept: dict[int, Snapshot | None] = {}  # by clock; None where there was no memory for it
        self._every = job.snapshot_every
        self._pool = pool

    # -- messages

    def read(self, segments: Sequence[Segment], payload: Sequence[Any]) -> Load:
        """The numbers of a push or of first values."""
        if len(payload) != len(segments):
            raise RequestError(Code.SIZE, f"{len(payload)} payloads for {len(segments)} segments")
        if not self.buckets.held:
            return Load(self.blocks.read(segments, payload), [])
        dense: list[tuple[Segment, Any]] = []
        sparse: list[tuple[Segment, Any]] = []
        for part in zip(segments, payload):
            (dense if part[0].kind == BLOCK else sparse).append(part)
        items = self.blocks.read([segment for segment, _ in dense], [buffer for _, buffer in dense])
        return Load(items, self.buckets.read(sparse, with_values=True))

    def show(self, segments: Sequence[Segment], payload: Sequence[Any]) -> tuple[tuple[Segment, ...], tuple[Array, ...]]:
        """Blocks by reference and copies of rows, in the order in which they are asked for."""
        carried = [segment for segment in segments if segment.carry == BY_VALUE]
        if len(carried) != len(payload):
            raise RequestError(Code.SIZE, f"{len(payload)} payloads for {len(carried)} segments by value")
        if not carried:
            _check_absent(segments)
            return self.blocks.show(segments)
        dense = [segment for segment in segments if segment.kind == BLOCK]
        _check_absent(dense)
        groups = self.buckets.read([part for part in zip(carried, payload) if part[0].kind != BLOCK], with_values=False)
        blocks, rows = iter(zip(*self.blocks.show(dense))), iter(groups)
        found = []
        for segment in segments:
            if segment.kind == BLOCK:
                found.append(next(blocks))
            elif segment.kind == IDS:
                found.append(self.buckets.show(next(rows)))
        return tuple(segment for segment, _ in found), tuple(array for _, array in found)

    # -- steps, beside what is visible

    def admit(self, load: Load) -> Room | None:
        """What its new rows need, if there is room for them.  Raises `RequestError`."""
        room = self.buckets.wanted(load.groups)
        if room is not None:
            self.buckets.admit(room)
        return room

    def prepare(self, load: Load, scalars: Scalars, room: Room | None) -> Slices[Prepared]:
        """Steps of what is not staged, made beside the visible values; memory for all rows that are new."""
        at_once, staged = load.split()
        steps: list[Step] = []
        if load.groups:
            if room is not None:
                self.buckets.reserve(room)
            steps = yield from self.buckets.stepped(at_once.groups, scalars)
        news = yield from self.blocks.stepped(at_once.items, scalars)
        return Prepared(news, steps, staged)

    def close(self, plan: Plan, totals: Mapping[int, float], scalars: Scalars) -> Slices[Prepared]:
        """One step with what the members of a clock have pushed."""
        steps = yield from self.buckets.closed(plan.rows, totals, scalars)
        news = yield from self.blocks.closed(plan.blocks, totals, scalars)
        return Prepared(news, steps, NOTHING)

    def check_offer(self, load: Load) -> None:
        """Whether these may be first values.  Raises `RequestError`."""
        if load.groups:
            raise RequestError(Code.RANGE, f"{load.groups[0].rows} is sparse and takes no first values")
        self.blocks.check_offer(load.items)

    def offer(self, load: Load) -> Prepared:
        """First values."""
        return Prepared(self.blocks.offered(load.items), [], NOTHING)

    def apply(self, prepared: Prepared) -> Slices[None]:
        """Make steps visible."""
        self.changes += 1
        self.blocks.replace(prepared.news, self.changes)
        if prepared.steps:
            yield from self.buckets.take(prepared.steps, self.changes)

    def hold(self, load: Load) -> Slices[list[Pushed]]:
        """Rows that wait for a close have their places from here on."""
        if not load.groups:
            return []
        self.changes += 1
        return (yield from self.buckets.hold(load.groups, self.changes))

    # -- snapshots

    def closed(self, clocks: int) -> None:
        """So many clocks are closed: keep what there is, if this is one to keep.  The newest two are kept."""
        if not self._every or clocks % self._every:
            return
        spared = 0
        if len(self.kept) == SNAPSHOTS_KEPT:
            old = self.kept.pop(next(iter(self.kept)))
            if old is not None:
                self.blocks.let_go(old.blocks)
                spared = old.nbytes
        self.kept[clocks] = self._snapped(spared)

    def _snapped(self, spared: int) -> Snapshot | None:
        """What there is now; None where there is no memory for it beyond the `spared` bytes that have just come free.

        Blocks cost theirs only when they are stepped again, but a step that finds no memory then would end the job.
        """
        nbytes = self.blocks.values_bytes + self.buckets.values_bytes
        if not self._pool.spare(nbytes - spared):
            return None
        try:
            rows = self.buckets.keep()
            return Snapshot(self.blocks.keep(), rows, nbytes)
        except MemoryError:
            return None

    def show_kept(self, at: int, closed: int, segments: Sequence[Segment]) -> tuple[tuple[Segment, ...], tuple[Array, ...]]:
        """Blocks as they were when `at` clocks were closed."""
        snapshot = self._snapshot(at, closed)
        _check_absent(segments)
        return self.blocks.show(segments, snapshot.blocks)

    def scan(self, at: int, closed: int, cursor: int, table: int, bucket: int) -> tuple[tuple[Segment, ...], tuple[Array, ...], int]:
        """Rows of a bucket from a slot on, of the snapshot `at` or (0) as they are; and the slot to go on at, 0 = that was all."""
        rows = self.buckets.rows(table, bucket)
        return self.buckets.scan(rows, cursor, self._snapshot(at, closed).rows[rows] if at else None)

    def _snapshot(self, at: int, closed: int) -> Snapshot:
        if at > closed:
            raise RequestError(Code.AGAIN, f"clock {at} is not closed yet; {closed} are")
        if at not in self.kept:
            kept = " and ".join(str(clock) for clock in self.kept) or "none"
            raise RequestError(Code.RANGE, f"no snapshot of clock {at} is kept; every {self._every} clocks, the newest two: {kept}")
        snapshot = self.kept[at]
        if snapshot is None:
            raise RequestError(Code.NOSPC, f"the server had no memory for the snapshot of clock {at}")
        return snapshot

    # -- copies

    def dump(self) -> Dump:
        """What entries have made of all tables: blocks by reference, rows copied; snapshots are not in it.  Raises MemoryError.

        Steps go on beside it and take memory of their own, so that somebody has to `let_go` of it.
        """
        nbytes = self.blocks.nbytes + self.buckets.cost
        if not self._pool.spare(nbytes):
            raise MemoryError(f"no memory for a copy of {nbytes} bytes")
        buckets, rows = self.buckets.dump()
        blocks, arrays, shown = self.blocks.dump()
        return Dump({"changes": self.changes, "blocks": blocks, "buckets": buckets}, {**arrays, **rows}, shown)

    def let_go(self, dump: Dump) -> None:
        """Nobody reads the dump any more."""
        self.blocks.let_go_of_dump(dump.kept)

    def layout(self, meta: Any) -> Layout:
        """The arrays of a dump.  Raises `PeerError`, and `RequestError` where there is no room for its rows."""
        found = {**self.blocks.layout(plain.field(meta, "blocks")), **self.buckets.layout(plain.field(meta, "buckets"))}
        self.buckets.admit_dump(plain.field(meta, "buckets"))
        return found

    def load(self, meta: Any, arrays: dict[str, Array]) -> None:
        """What a dump has, in place of what is here; takes the arrays out.

        Raises `PeerError`, MemoryError and `RequestError` (no room for its rows); nothing is here then.
        """
        self.forget()
        try:
            self.layout(meta)
            self.blocks.load(plain.field(meta, "blocks"), arrays)
            self.buckets.load(plain.field(meta, "buckets"), arrays)
            self.changes = plain.whole(plain.field(meta, "changes"))
        except (MemoryError, PeerError, RequestError):
            self.forget()
            raise

    def forget(self) -> None:
        """The range holds nothing here any more, or begins anew: all memory is given back."""
        self.kept.clear()
        self.blocks.forget()
        self.buckets.forget()
        self.changes = 0

    def digest(self) -> int:
        return self.buckets.digest(self.blocks.digest())


def _check_absent(segments: Sequence[Segment]) -> None:
    for segment in segments:
        if (segment.kind, segment.carry) != (BLOCK, ABSENT):
            raise RequestError(
                Code.SIZE, f"a pull names blocks without numbers, not kind {segment.kind} carried {segment.carry}"
            )
