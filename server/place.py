"""One block in its range: what it is, how it steps, and the array that is visible now."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.clock import BSP
from ..core.job import JobSpec
from ..core.jobmap import Piece
from ..core.table import DTYPE_CODES
from ..wire.messages import Segment
from . import firsts
from .memory import Memory
from .optimizers import KERNELS, Mix, advance

Array = np.ndarray[Any, np.dtype[Any]]


class Place:
    """`values` is None until somebody touches the block; an array in it is never changed, only replaced."""

    __slots__ = ("table", "spec", "dtype", "block", "seed", "kernel", "staged", "mean", "segment", "nbytes", "scalars", "values")

    def __init__(self, job: JobSpec, piece: Piece) -> None:
        self.table = piece.table
        self.spec = job.tables[piece.table]
        self.dtype = self.spec.numpy_dtype
        self.block = piece.block
        self.seed = job.seed
        self.kernel = KERNELS[self.spec.optimizer]
        self.staged = job.consistency_of(self.spec).model == BSP
        self.mean = job.combine_of(self.spec) == "mean"
        count = piece.block.stop - piece.block.start
        self.segment = Segment(piece.table, piece.block.number, count, DTYPE_CODES[self.spec.dtype])
        self.nbytes = piece.nbytes
        self.scalars = self.kernel.scalars(self.spec, 1.0)  # of a full step
        self.values: Array | None = None

    def __str__(self) -> str:
        return f"block {self.block.number} of table {self.spec.name!r}"

    def current(self, memory: Memory) -> Array:
        """The visible values; the first touch makes them.  Raises MemoryError."""
        if self.values is None:
            values = memory.take(self.dtype, self.segment.elements)
            firsts.fill(self.spec, self.seed, self.block.start, self.block.stop, values)
            self.values = values
        return self.values

    def stepped(self, mix: Mix, scalars: tuple[float, ...], memory: Memory) -> Array | None:
        """The values after a step, not visible yet; None if one of them is not a finite number.  Raises MemoryError."""
        old = self.current(memory)
        new = memory.take(old.dtype, old.size)
        if advance(self.kernel, old, mix, new, scalars, memory.scratch(old.dtype)):
            return new
        memory.give(new)
        return None

    def replace(self, new: Array, memory: Memory) -> None:
        """Make the array visible."""
        old, self.values = self.values, new
        if old is not None:
            memory.give(old)


Items = list[tuple[Place, Array]]  # numbers that came, or will come, to blocks


class Parts:
    """What one block has to combine at a close, in the order of the sum."""

    __slots__ = ("arrays", "weights")

    def __init__(self) -> None:
        self.arrays: list[Array] = []
        self.weights: list[float] = []
