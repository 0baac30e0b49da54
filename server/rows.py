"""One bucket of a sparse table: its rows with their values, optimizer state and number of steps, by slot.

A row that is not here reads as its first value.  One that is here without a step (a push waits for its clock's close)
holds its first value, and no scan shows it.  Steps are made beside: nothing changes before `take`.
Pulls get copies, so that nothing that is still being sent ever changes.  Knows neither streams nor clocks nor the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from ..core.clock import BSP
from ..core.errors import Code, PeerError, RequestError
from ..core.job import JobSpec
from ..core.jobmap import Bucket
from ..core.keys import table_hash
from . import firsts
from .dump import Layout, Shape, finite
from .growing import Column
from .memory import Memory
from .optimizers import KERNELS, advance_rows, working
from .rownames import KEY_BYTES_MAX, NAME_BYTES, Array, Ids, Keys, Names, Slots, kernels

_ROWS_MAX = (1 << 32) - 2  # a cell has 32 bits for a slot
_STEPS_BYTES = 4
_END_BYTES = 8  # of a key
_ID_BYTES, _LENGTH_BYTES = 8, 4  # of a row's number and of its key's length in an answer


class Step(NamedTuple):
    """What some rows will hold; nobody sees it before `Rows.take`."""

    rows: Rows
    ids: Ids
    keys: Keys | None
    slots: Slots  # -1 = the row comes into being
    values: Array
    state: tuple[Array, ...]
    counts: Array  # number of this step, by row

    @property
    def nbytes(self) -> int:
        return self.values.nbytes


class Kept(NamedTuple):
    """The rows of a bucket as they were at a snapshot, by slot."""

    values: Array
    exists: Array


class Rows:
    """A row keeps its slot; slots are given in order of creation."""

    __slots__ = (
        "table", "spec", "number", "strings", "dtype", "kernel", "staged", "mean", "row_bytes", "state_bytes", "names", "changed", "_job",
        "_full", "_words", "_state_words", "_values", "_state", "_steps",
    )  # fmt: skip

    def __init__(self, job: JobSpec, bucket: Bucket) -> None:
        self.table, self.number = bucket.table, bucket.number
        self.spec = job.tables[bucket.table]
        self.strings = self.spec.index_name == "str"
        self.dtype = self.spec.storage_dtype
        self.kernel = KERNELS[self.spec.optimizer]
        self.staged = job.consistency_of(self.spec).model == BSP
        self.mean = job.combine_of(self.spec) == "mean"
        work = working(self.dtype)
        self.row_bytes = self.spec.width * self.dtype.itemsize
        self.state_bytes = self.row_bytes + self.kernel.slots * self.spec.width * work.itemsize  # of values and state
        self._job = job
        self._full = self.kernel.scalars(self.spec, 1.0, job.lr_full)
        self._words, self._state_words = _word(self.row_bytes), _word(self.spec.width * work.itemsize)
        self.forget()

    def forget(self) -> None:
        """There are no rows."""
        self.names = Names(table_hash(self._job.name, self.spec.name), self.spec.buckets.bit_length() - 1, self.strings)
        self.changed = 0  # the range's last change that has changed rows here, 0 = none
        self._values = Column(self.dtype, self.spec.width)
        self._state = tuple([Column(working(self.dtype), self.spec.width) for _ in range(self.kernel.slots)])
        self._steps = Column(np.dtype(np.uint32), 1)

    def __str__(self) -> str:
        return f"bucket {self.number} of table {self.spec.name!r}"

    @property
    def count(self) -> int:
        """Rows that have a slot."""
        return self.names.count

    def cost(self, new: int, key_bytes: int) -> int:
        """Bytes of memory that so many new rows take, all told."""
        return new * (self.state_bytes + NAME_BYTES + _STEPS_BYTES) + (new * _END_BYTES + key_bytes if self.strings else 0)

    def scalars(self, clock: int, share: float = 1.0) -> tuple[float, ...]:
        """Of a step in this clock; the lr follows `lr_scale` and its warm-up."""
        if share == 1.0 and clock >= self._job.lr_warmup:
            return self._full
        return self.kernel.scalars(self.spec, share, self._job.lr_factor(clock))

    # -- reading

    def read(self, ids: Ids, slots: Slots) -> Array:
        """A copy of the rows' values, (rows, width).  Raises MemoryError."""
        out = np.empty((len(ids), self.spec.width), self.dtype)
        self._gather(self._values, slots, out, self._words)
        missing = np.flatnonzero(slots < 0)
        if len(missing) == len(ids):
            firsts.fill_rows(self.spec, self._job.seed, ids, out)
        elif len(missing):
            fresh = np.empty((len(missing), self.spec.width), self.dtype)
            firsts.fill_rows(self.spec, self._job.seed, ids[missing], fresh)
            out[missing] = fresh
        return out

    def _read_state(self, slots: Slots) -> tuple[Array, ...]:
        found = []
        for column in self._state:
            out = np.zeros((len(slots), self.spec.width), column.array.dtype)
            self._gather(column, slots, out, self._state_words)
            found.append(out)
        return tuple(found)

    def _read_steps(self, slots: Slots) -> Array:
        out = np.zeros((len(slots), 1), np.uint32)
        self._gather(self._steps, slots, out, _word(_STEPS_BYTES))
        return out[:, 0]

    # -- steps

    def stepped(self, ids: Ids, keys: Keys | None, slots: Slots, update: Array, scalars: Sequence[float], memory: Memory) -> Step | None:
        """What the rows will hold after a step with `update`; None if a number of it is not finite.  Raises MemoryError."""
        out = self.read(ids, slots)
        state = self._read_state(slots)
        counts = self._read_steps(slots).astype(np.int64) + 1
        if not advance_rows(self.kernel, out, update, state, out, state, counts, scalars, memory.scratch(self.dtype)):
            return None
        return Step(self, ids, keys, slots, out, state, counts)

    def reserve(self, new: int, key_bytes: int) -> None:
        """Room for so many more rows: adding them cannot fail then.  Raises MemoryError."""
        for column in (self._values, *self._state, self._steps):
            column.reserve(self.count + new)
        self.names.reserve(new, key_bytes)

    def take(self, step: Step) -> None:
        """Make a step visible; room for new rows is reserved."""
        slots = self.names.add(step.ids, step.slots, step.keys)
        self._scatter(self._values, slots, step.values, self._words)
        for column, new in zip(self._state, step.state):
            self._scatter(column, slots, new, self._state_words)
        counts = np.minimum(step.counts, 0xFFFFFFFF).astype(np.uint32).reshape(-1, 1)
        self._scatter(self._steps, slots, counts, _word(_STEPS_BYTES))

    def hold(self, ids: Ids, slots: Slots, keys: Keys | None) -> Slots:
        """Slots for rows that a close may step: they hold their first values.  Room for new ones is reserved."""
        first = self.count
        slots = self.names.add(ids, slots, keys)
        if self.count > first and self.spec.init in ("normal", "uniform"):
            firsts.fill_rows(self.spec, self._job.seed, self.names.ids[first:], self._values.array[first : self.count])
        return slots

    @staticmethod
    def _gather(column: Column, slots: Slots, out: Array, word: np.dtype[Any]) -> None:
        kernels().gather(column.array.view(word), slots, out.view(word))

    @staticmethod
    def _scatter(column: Column, slots: Slots, new: Array, word: np.dtype[Any]) -> None:
        kernels().scatter(column.array.view(word), slots, new.view(word))

    # -- snapshots and scans

    def keep(self) -> Kept:
        """A copy of all values.  Raises MemoryError."""
        count = self.count
        return Kept(self._values.array[:count].copy(), self._steps.array[:count, 0] > 0)

    def scan(self, cursor: int, most_bytes: int, kept: Kept | None) -> tuple[Ids, Keys | None, Array, int]:
        """Rows from slot `cursor` on, of at most so many bytes but at least one, and the slot to go on at, 0 = no more."""
        values = self._values.array if kept is None else kept.values
        count = self.count if kept is None else len(kept.exists)
        stop = min(count, cursor + max(1, most_bytes // (self.row_bytes + _ID_BYTES)))
        if cursor >= stop:
            cursor = stop
        if self.strings:
            stop = self.names.within(cursor, stop, most_bytes, self.row_bytes + _ID_BYTES + _LENGTH_BYTES)
        exists = self._steps.array[cursor:stop, 0] > 0 if kept is None else kept.exists[cursor:stop]
        positions = np.flatnonzero(exists)
        ids = self.names.ids[cursor:stop][positions]
        keys = self.names.keys(cursor, stop).some(positions) if self.strings else None
        return ids, keys, values[cursor:stop][positions], stop if stop < count else 0

    # -- copies

    @property
    def name(self) -> str:
        """In front of its arrays' names in a dump."""
        return f"{self.spec.name}/{self.number}"

    def dump(self) -> tuple[tuple[int, ...], dict[str, Array]] | None:
        """(table, bucket, rows, bytes of keys, change) and copies of everything, by slot; None without rows.  Raises MemoryError."""
        count = self.count
        if not count:
            return None
        row = (self.table, self.number, count, self.names.text_bytes, self.changed)
        columns = {"values": self._values, "steps": self._steps, **{f"slot{i}": column for i, column in enumerate(self._state)}}
        arrays = {"ids": self.names.ids.copy(), **{name: column.array[:count].copy() for name, column in columns.items()}}
        if self.strings:
            keys = self.names.keys(0, count)
            arrays |= {"keys": keys.text, "ends": keys.ends}
        return row, {f"{self.name}/{name}": array for name, array in arrays.items()}

    def layout(self, row: tuple[int, ...]) -> Layout:
        """The arrays that come with such a row of a dump.  Raises `PeerError`."""
        count, text = row[2:4]
        if not 1 <= count <= (self.spec.rows or _ROWS_MAX) or not (count <= text <= count * KEY_BYTES_MAX if self.strings else text == 0):
            raise PeerError(f"a copy of {self} has {count} rows with {text} bytes of keys")
        numbers, work = (count, self.spec.width), working(self.dtype)
        found = {"ids": Shape(np.dtype(np.uint64), (count,)), "steps": Shape(np.dtype(np.uint32), (count, 1)), "values": Shape(self.dtype, numbers)}
        found |= {f"slot{i}": Shape(work, numbers) for i in range(self.kernel.slots)}
        if self.strings:
            found |= {"keys": Shape(np.dtype(np.uint8), (text,)), "ends": Shape(np.dtype(np.int64), (count,))}
        return {f"{self.name}/{name}": shape for name, shape in found.items()}

    def load(self, row: tuple[int, ...], arrays: dict[str, Array]) -> None:
        """What a dump has of a bucket without rows; takes the arrays out.  Raises `PeerError` and MemoryError."""
        found = {name.rsplit("/", 1)[1]: arrays.pop(name) for name in self.layout(row)}
        keys = Keys(found.pop("keys"), found.pop("ends")) if self.strings else None
        wrong = self.names.load(found.pop("ids"), keys, self.spec.rows, self.number)
        if not wrong and not finite(found["values"]):
            wrong = "NaN or infinity"
        if wrong:
            raise PeerError(f"a copy of {self} holds {wrong}")
        columns = {"values": self._values, "steps": self._steps, **{f"slot{i}": column for i, column in enumerate(self._state)}}
        for name, column in columns.items():
            column.reserve(row[2])
            column.array[: row[2]] = found.pop(name)
        self.changed = row[4]

    def state(self, slots: Slots) -> tuple[tuple[Array, ...], Array]:
        """Optimizer state and number of steps of some rows, for whoever compares."""
        return self._read_state(slots), self._read_steps(slots)

    def digest(self, total: int) -> int:
        """Over everything, in order of slots."""
        count = self.count
        total = crc32(self.names.ids.tobytes(), total)
        for column in (self._values, *self._state, self._steps):
            total = crc32(column.array[:count].data if count else b"", total)
        return crc32(self.names.keys(0, count).text.data, total) if self.strings and count else total


def _word(row_bytes: int) -> np.dtype[Any]:
    """The largest word that a row is made of."""
    return np.dtype(np.uint64 if row_bytes % 8 == 0 else np.uint32 if row_bytes % 4 == 0 else np.uint16)


def no_memory(rows: Rows) -> RequestError:
    return RequestError(Code.NOSPC, f"the server has no memory left for rows of table {rows.spec.name!r}; add servers")
