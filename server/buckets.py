"""The sparse tables' buckets in one range: reads rows out of messages, makes steps beside what is visible, shows rows to pulls.

Whatever cannot be taken raises `RequestError` and leaves no trace.  Knows neither streams nor clocks nor the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..core.errors import Code, RequestError
from ..core.job import JobSpec
from ..core.jobmap import Bucket
from ..core.table import DTYPE_CODES
from ..wire.codec import U8, U64
from ..wire.messages import BY_VALUE, IDS, KEYS, ROWS, Segment
from . import plain
from .blocks import Slices
from .dump import Layout
from .memory import Memory
from .optimizers import Mix, working
from .place import Parts, smaller_steps
from .pool import Pool
from .rowgroups import Carried, Group, read_groups
from .rownames import Array, Keys, Slots, kernels
from .rows import Kept, Rows, Step, no_memory

Scalars = Mapping[int, tuple[float, ...]]

SCAN_BYTES = 1 << 20  # of one answer
STEP_BYTES = 1 << 20  # of values that are stepped at once


class Pushed(NamedTuple):
    """Rows of one push that wait for a close: what they are pushed lies in the received frames."""

    rows: Rows
    slots: Slots
    values: Array


class Room(NamedTuple):
    """What the new rows of a push need: (rows, bytes of keys) by bucket, and bytes of values and state, and of all."""

    new: dict[Rows, tuple[int, int]]
    nbytes: int
    cost: int
    names: str


class RowParts(Parts):
    """What one bucket has to combine at a close, in the order of the sum."""

    __slots__ = ("slots",)

    def __init__(self) -> None:
        super().__init__()
        self.slots: list[Slots] = []

    def append(self, pushed: Pushed, weight: float) -> None:
        self.add(pushed.values, weight)
        self.slots.append(pushed.slots)


class Buckets:
    def __init__(self, job: JobSpec, number: int, buckets: Sequence[Bucket], memory: Memory, pool: Pool) -> None:
        self.number = number
        self.held = {(bucket.table, bucket.number): Rows(job, bucket) for bucket in buckets}
        self._memory = memory
        self._pool = pool

    @property
    def count(self) -> int:
        """Rows here."""
        return sum(rows.count for rows in self.held.values())

    @property
    def values_bytes(self) -> int:
        """Of the rows here, their state aside."""
        return sum(rows.count * rows.row_bytes for rows in self.held.values())

    def read(self, carried: Carried, with_values: bool) -> list[Group]:
        """The rows of a message."""
        return read_groups(self.held, self.number, carried, with_values) if carried else []

    # -- room

    def wanted(self, groups: Sequence[Group]) -> Room | None:
        """Room for the rows of a push that are not here; None if all are."""
        new: dict[Rows, tuple[int, int]] = {}
        for group in groups:
            missing = group.slots < 0
            count = int(np.count_nonzero(missing))
            if count:
                before, key_bytes = new.get(group.rows, (0, 0))
                more = int(np.diff(group.keys.ends, prepend=0)[missing].sum()) if group.keys is not None else 0
                new[group.rows] = (before + count, key_bytes + more)
        if not new:
            return None
        nbytes = sum(count * rows.state_bytes for rows, (count, _) in new.items())
        names = "table " + ", ".join(sorted({repr(rows.spec.name) for rows in new}))
        return Room(new, nbytes, sum(rows.cost(*wanted) for rows, wanted in new.items()), names)

    def admit(self, room: Room) -> None:
        """Whether a push may bring so many rows here.  Raises `RequestError`."""
        self._pool.admit(room.nbytes, room.cost, room.names)

    def reserve(self, room: Room) -> None:
        """Have the memory for new rows, so that adding them cannot fail.  Raises `RequestError`."""
        self._pool.find(room.cost, room.names)
        for rows, wanted in room.new.items():
            try:
                rows.reserve(*wanted)
            except MemoryError:
                raise no_memory(rows) from None

    def _count(self, rows: Rows, count: int, text: int) -> None:
        """Rows have come into being since there were `count`, with `text` bytes of keys."""
        new = rows.count - count
        if new:
            self._pool.take(new * rows.state_bytes, rows.cost(new, rows.names.text_bytes - text))

    # -- steps, beside what is visible

    def stepped(self, groups: Sequence[Group], scalars: Scalars) -> Slices[list[Step]]:
        """What rows will hold after one push; an entry that weighs nothing steps none."""
        steps = []
        for group in groups:
            assert group.values is not None
            step = self._step(group.rows, group.ids, group.keys, group.slots, group.values, scalars)
            if step is None:
                raise RequestError(Code.NONFINITE, f"the step of {group.rows} leaves the range of {group.rows.spec.storage_name}")
            if scalars[group.rows.table][0] != 0.0:
                steps.append(step)
            yield group.values.nbytes
        return steps

    def closed(self, plan: Mapping[Rows, RowParts], totals: Mapping[int, float], scalars: Scalars) -> Slices[list[Step]]:
        """What rows will hold after a close; `totals` are the weights of all members, by table.  Each row is stepped for itself."""
        steps = []
        for rows, parts in plan.items():
            mix = _mix(rows, parts, totals)
            if mix is None:
                continue  # nobody weighs anything
            try:
                slots, update = yield from self._combined(rows, parts, mix)
            except MemoryError:
                raise no_memory(rows) from None
            if update is None:
                raise RequestError(Code.NONFINITE, _overflow(rows, parts))
            ids, most = rows.names.ids, max(1, STEP_BYTES // rows.row_bytes)
            for start in range(0, len(slots), most):
                some = slots[start : start + most]
                step = self._step(rows, ids[some], None, some, update[start : start + most], scalars)
                if step is None:
                    raise RequestError(Code.NONFINITE, _overflow(rows, parts))
                steps.append(step)
                yield step.nbytes
        return steps

    def _step(self, rows: Rows, ids: Array, keys: Keys | None, slots: Slots, update: Array, scalars: Scalars) -> Step | None:
        try:
            return rows.stepped(ids, keys, slots, update, scalars[rows.table], self._memory)
        except MemoryError:
            raise no_memory(rows) from None

    def _combined(self, rows: Rows, parts: RowParts, mix: Mix) -> Slices[tuple[Slots, Array | None]]:
        """The rows that the members pushed to, and one update for each; None when an integer does not fit.

        A row's pushes are added in the order of `parts`.  Between rows there is no order to keep: each is stepped for itself.
        """
        work = working(rows.dtype)
        if len(parts.slots) == 1 and mix.weights is None:
            values = parts.arrays[0]
            with np.errstate(all="ignore"):
                return parts.slots[0], values if mix.divisor == 1.0 else values.astype(work, copy=False) / work.type(mix.divisor)

        union, places = self._united(rows, parts.slots)
        total = np.empty((len(union), rows.spec.width), work)
        weights = mix.weights or (None,) * len(places)
        seen = 0
        for array, weight, place in zip(mix.arrays, weights, places):
            with np.errstate(all="ignore"):
                term = array.astype(work, copy=False) if weight is None else array.astype(work, copy=False) * work.type(weight)
                seen = _add_term(total, place, term, seen)
            if seen < 0:
                return union, None
            yield term.nbytes
        if mix.divisor != 1.0:
            with np.errstate(all="ignore"):
                np.divide(total, work.type(mix.divisor), out=total)
        return union, total

    def _united(self, rows: Rows, pushes: Sequence[Slots]) -> tuple[Slots, list[Slots]]:
        """Every slot once, and for each push where its rows stand among them."""
        place_of = self._pool.places(rows.count)
        union = np.empty(sum(map(len, pushes)), np.int64)
        count = 0
        places = []
        for slots in pushes:
            place = np.empty(len(slots), np.int64)
            count = kernels().unite(slots, place_of, union, place, count)
            places.append(place)
        place_of[union[:count]] = -1
        return union[:count], places

    def take(self, steps: Iterable[Step], change: int) -> Slices[None]:
        """Make steps visible."""
        for step in steps:
            rows = step.rows
            count, text = rows.count, rows.names.text_bytes
            rows.take(step)
            rows.changed = change
            self._count(rows, count, text)
            yield step.nbytes

    def hold(self, groups: Iterable[Group], change: int) -> Slices[list[Pushed]]:
        """Rows of a push that waits for its clock's close: each has a slot from here on."""
        pushed = []
        for group in groups:
            rows = group.rows
            assert group.values is not None
            count, text = rows.count, rows.names.text_bytes
            slots = rows.hold(group.ids, group.slots, group.keys)
            if rows.count > count:
                self._count(rows, count, text)
                rows.changed = change
            pushed.append(Pushed(rows, slots, group.values))
            yield group.values.nbytes
        return pushed

    # -- answers

    def show(self, group: Group) -> tuple[Segment, Array]:
        """A copy of the rows that are asked for."""
        rows = group.rows
        try:
            values = rows.read(group.ids, group.slots)
        except MemoryError:
            raise no_memory(rows) from None
        return _rows_segment(rows, values), values

    def scan(self, rows: Rows, cursor: int, kept: Kept | None) -> tuple[tuple[Segment, ...], tuple[Array, ...], int]:
        """Rows from a slot on as IDS, KEYS, ROWS, none if there are none, and where to go on (0 = that was all)."""
        ids, keys, values, follow = rows.scan(cursor, SCAN_BYTES, kept)
        if not len(ids):
            return (), (), follow
        segments = [Segment(rows.table, rows.number, len(ids), U64, IDS, BY_VALUE)]
        payload: list[Array] = [ids]
        if keys is not None:
            lengths = np.diff(keys.ends, prepend=0).astype("<u4")
            payload.append(np.concatenate([lengths.view(np.uint8), keys.text]))
            segments.append(Segment(rows.table, rows.number, payload[-1].size, U8, KEYS, BY_VALUE))
        return (*segments, _rows_segment(rows, values)), (*payload, values), follow

    def rows(self, table: int, bucket: int) -> Rows:
        rows = self.held.get((table, bucket))
        if rows is None:
            raise RequestError(Code.RANGE, f"range {self.number} has no bucket {bucket} of table {table}")
        return rows

    def keep(self) -> dict[Rows, Kept]:
        """Copies of all values.  Raises MemoryError."""
        return {rows: rows.keep() for rows in self.held.values()}

    # -- copies

    @property
    def cost(self) -> int:
        """Bytes of memory that the rows here take, all told."""
        return sum(rows.cost(rows.count, rows.names.text_bytes) for rows in self.held.values())

    def dump(self) -> tuple[list[tuple[int, ...]], dict[str, Array]]:
        """Copies of all rows.  Raises MemoryError."""
        meta, arrays = [], {}
        for key in sorted(self.held):
            found = self.held[key].dump()
            if found is not None:
                meta.append(found[0])
                arrays.update(found[1])
        return meta, arrays

    def layout(self, meta: Any) -> Layout:
        """The arrays of a dump.  Raises `PeerError`."""
        return {name: shape for rows, row in plain.placed(meta, self.held, self.number, "bucket") for name, shape in rows.layout(row).items()}

    def admit_dump(self, meta: Any) -> None:
        """Whether the rows of a dump have room, those here aside.  Raises `RequestError`."""
        nbytes = cost = 0
        names = set()
        for rows, (_, _, count, text, _) in plain.placed(meta, self.held, self.number, "bucket"):
            nbytes += count * rows.state_bytes
            cost += rows.cost(count, text)
            names.add(repr(rows.spec.name))
        self._pool.admit(nbytes, cost, "table " + ", ".join(sorted(names)))

    def load(self, meta: Any, arrays: dict[str, Array]) -> None:
        """What a dump has, in place of what is here; takes the arrays out.  Raises `PeerError` and MemoryError."""
        self.forget()
        for rows, row in plain.placed(meta, self.held, self.number, "bucket"):
            try:
                rows.load(row, arrays)
            finally:
                self._count(rows, 0, 0)

    def forget(self) -> None:
        """There are no rows."""
        for rows in self.held.values():
            count, text = rows.count, rows.names.text_bytes
            rows.forget()
            self._pool.take(-count * rows.state_bytes, -rows.cost(count, text))

    def digest(self, total: int) -> int:
        for key in sorted(self.held):
            total = self.held[key].digest(total)
        return total


def _rows_segment(rows: Rows, values: Array) -> Segment:
    return Segment(rows.table, rows.number, values.size, DTYPE_CODES[rows.spec.storage_name], ROWS, BY_VALUE)


def _mix(rows: Rows, parts: RowParts, totals: Mapping[int, float]) -> Mix | None:
    if not rows.mean:
        return Mix.sum_of(parts.arrays)
    return Mix.mean_of(parts.arrays, parts.weights, parts.total(totals, rows.table))


def _add_term(total: Array, place: Slots, term: Array, seen: int) -> int:
    """Add one push to the rows at `place`, of which those from `seen` on are new; returns how many there are, -1 = does not fit."""
    fresh = place >= seen
    total[place[fresh]] = term[fresh]
    again = ~fresh
    if again.any():
        old, new = total[place[again]], term[again]
        added = old + new
        if added.dtype.kind == "i" and ((added < old) != (new < 0)).any():
            return -1
        total[place[again]] = added
    return max(seen, int(place.max()) + 1)


def _overflow(rows: Rows, parts: RowParts) -> str:
    bad = sum(1 for array in parts.arrays if rows.dtype.kind == "f" and not np.isfinite(array).all())
    if bad:
        return f"{bad} of {len(parts.arrays)} pushes to {rows} hold NaN or infinity"
    return f"the step of {rows} leaves the range of {rows.spec.storage_name}; {smaller_steps(rows.spec)}"
