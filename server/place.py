"""One block in its range: what it is, how it steps, and the values and optimizer state that are visible now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from ..core.clock import BSP
from ..core.errors import PeerError
from ..core.job import JobSpec
from ..core.jobmap import Piece
from ..core.table import DTYPE_CODES, OPTIMIZERS, TableSpec
from ..wire.messages import Segment
from . import firsts
from .dump import Layout, Shape, finite, frozen, owned
from .memory import Memory
from .optimizers import KERNELS, Mix, advance, working

Array = np.ndarray[Any, np.dtype[Any]]


class State(NamedTuple):
    """What a block holds.  Its arrays are never changed, only replaced, all together."""

    values: Array
    slots: tuple[Array, ...]  # of the optimizer; none before the first step
    step: int  # steps made so far


class Place:
    """`state` is None until somebody touches the block."""

    __slots__ = (
        "table", "spec", "dtype", "state_dtype", "block", "seed", "kernel", "staged", "mean", "segment", "wire_bytes", "nbytes", "state",
        "changed", "_job", "_full", "_entered",
    )  # fmt: skip

    def __init__(self, job: JobSpec, piece: Piece) -> None:
        self.table = piece.table
        self.spec = job.tables[piece.table]
        self.dtype = self.spec.storage_dtype
        self.state_dtype = working(self.dtype)  # of the optimizer's arrays
        self.block = piece.block
        self.seed = job.seed
        self.kernel = KERNELS[self.spec.optimizer]
        self.staged = job.consistency_of(self.spec).model == BSP
        self.mean = job.combine_of(self.spec) == "mean"
        count = piece.block.stop - piece.block.start
        self.segment = Segment(piece.table, piece.block.number, count, DTYPE_CODES[self.spec.storage_name])
        self.wire_bytes = piece.stored_nbytes  # of the values alone
        self.nbytes = self.wire_bytes + self.kernel.slots * count * self.state_dtype.itemsize
        self.state: State | None = None
        self.changed = 0  # which of the range's changes has given it its state, 0 = none
        self._entered = False  # an entry has given it its state, not just somebody's look at the first values
        self._job = job
        self._full = self.kernel.scalars(self.spec, 1.0, job.lr_full)

    def __str__(self) -> str:
        return f"block {self.block.number} of table {self.spec.name!r}"

    @property
    def values(self) -> Array | None:
        """The visible values, if there are some."""
        return self.state.values if self.state is not None else None

    @property
    def owed_bytes(self) -> int:
        """Room that the block will still take: what no array holds yet."""
        if self.state is None:
            return self.nbytes
        return 0 if self.state.slots else self.nbytes - self.wire_bytes

    def scalars(self, clock: int, share: float = 1.0) -> tuple[float, ...]:
        """Of a step in this clock; the lr follows `lr_scale` and its warm-up."""
        if share == 1.0 and clock >= self._job.lr_warmup:
            return self._full
        return self.kernel.scalars(self.spec, share, self._job.lr_factor(clock))

    def current(self, memory: Memory) -> Array:
        """The visible values; the first touch makes them.  Raises MemoryError."""
        return self._touched(memory).values

    def _touched(self, memory: Memory) -> State:
        if self.state is None:
            values = memory.take(self.dtype, self.segment.elements)
            firsts.fill(self.spec, self.seed, self.block.start, self.block.stop, values)
            self.state = State(values, (), 0)
        return self.state

    def stepped(self, mix: Mix, scalars: tuple[float, ...], memory: Memory) -> State | None:
        """What the block holds after a step, not visible yet; None if a number of it is not finite.  Raises MemoryError."""
        old = self._touched(memory)
        count = old.values.size
        taken: list[Array] = []
        try:
            taken.append(memory.take(self.dtype, count))
            for _ in range(self.kernel.slots):
                taken.append(memory.take(self.state_dtype, count))
        except MemoryError:
            _give(taken, memory)
            raise
        values, slots = taken[0], tuple(taken[1:])
        if not old.slots:
            for slot in slots:
                slot.fill(0)
        scratch = memory.scratch(self.dtype)
        if not advance(self.kernel, old.values, mix, old.slots or slots, values, slots, old.step + 1, scalars, scratch):
            _give(taken, memory)
            return None
        counted = scalars[0] != 0.0  # an entry that nobody weighs is no step
        return State(values, slots, old.step + counted)

    def offered(self, array: Array, memory: Memory) -> State:
        """What the block holds once these are its first values.  Raises MemoryError."""
        values = memory.take(self.dtype, array.size)
        np.copyto(values, array)
        return State(values, (), 0)

    def replace(self, new: State, memory: Memory) -> None:
        """Make it visible."""
        old, self.state, self._entered = self.state, new, True
        if old is not None:
            _give((old.values, *old.slots), memory)

    def take_back(self, new: State, memory: Memory) -> None:
        """It will never be visible."""
        _give((new.values, *new.slots), memory)

    # -- copies

    @property
    def name(self) -> str:
        """In front of its arrays' names in a dump."""
        return f"{self.spec.name}/{self.block.number}"

    def dump(self) -> tuple[tuple[int, ...], dict[str, Array]] | None:
        """What entries have made of it: (table, block, step, change, whether it has slots) and arrays; None if nothing."""
        if self.state is None or not self._entered:
            return None
        arrays = {f"{self.name}/values": frozen(self.state.values)}
        arrays |= {f"{self.name}/slot{i}": frozen(slot) for i, slot in enumerate(self.state.slots)}
        return (self.table, self.block.number, self.state.step, self.changed, len(arrays) - 1), arrays

    def layout(self, row: tuple[int, ...]) -> Layout:
        """The arrays that come with such a row of a dump.  Raises `PeerError`."""
        count, slots = (self.segment.elements,), row[4]
        if slots not in (0, self.kernel.slots):
            raise PeerError(f"a copy of {self} has {slots} arrays of state, {self.kernel.slots} belong to {self.spec.optimizer}")
        found = {f"{self.name}/values": Shape(self.dtype, count)}
        return {**found, **{f"{self.name}/slot{i}": Shape(self.state_dtype, count) for i in range(slots)}}

    def load(self, row: tuple[int, ...], arrays: dict[str, Array]) -> None:
        """What a dump has of a block that nobody has touched; takes the arrays out.  Raises `PeerError`."""
        values, *slots = [owned(arrays.pop(name)) for name in self.layout(row)]
        if not finite(values):
            raise PeerError(f"a copy of {self} holds NaN or infinity")
        self.state, self._entered, self.changed = State(values, tuple(slots), row[2]), True, row[3]

    def forget(self) -> State | None:
        """Nothing has touched the block; gives what it held."""
        state, self.state, self._entered, self.changed = self.state, None, False, 0
        return state

    def digest(self, total: int) -> int:
        """A checksum over what entries have made of it, begun at `total`: who has looked at first values changes nothing."""
        if self.state is None or not self._entered:
            return total
        for array in (self.state.values, *self.state.slots):
            total = crc32(array.data, total)
        return crc32(b"%d" % self.state.step, total) if self.kernel.slots else total


def smaller_steps(spec: TableSpec) -> str:
    """What to do about a step that leaves the range of a table's numbers."""
    steps = "a smaller learning rate" if "lr" in OPTIMIZERS[spec.optimizer] else "smaller pushes"
    wider = " or dtype f64" if spec.storage_name in ("f16", "f32") else ""
    return f"try {steps}{wider}"


def _give(arrays: list[Array] | tuple[Array, ...], memory: Memory) -> None:
    for array in arrays:
        memory.give(array)


Items = list[tuple[Place, Array]]  # numbers that came to blocks
News = list[tuple[Place, State]]  # what blocks will hold


class Parts:
    """What one block has to combine at a close, in the order of the sum.

    `pushed` weighs all pushes in them, and `beyond` those of them that no member's weight counts.
    """

    __slots__ = ("arrays", "weights", "pushed", "beyond")

    def __init__(self) -> None:
        self.arrays: list[Array] = []
        self.weights: list[float] = []
        self.pushed = 0.0
        self.beyond = 0.0

    def add(self, array: Array, weight: float) -> None:
        self.arrays.append(array)
        self.weights.append(weight)

    def weigh(self, weight: float, pushes: int, strange: int) -> None:
        """An entry holds so many pushes of this weight, `strange` ones of those who are no members."""
        self.pushed += pushes * weight
        self.beyond += strange * weight

    def total(self, totals: Mapping[int, float], table: int) -> float:
        """What a mean divides by."""
        return totals[table] + self.beyond if table in totals else self.pushed
