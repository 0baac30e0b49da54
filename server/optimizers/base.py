"""How pushes become a step: combined in a fixed order, then one optimizer, chunk by chunk while the chunk is in cache.

    pushes of one block  --Mix-->  one update  --Kernel.step-->  new values, checked to be finite

Deterministic: + - x / only, in the written order, each rounded to the table's kind of number, no fused multiply-add;
the same entry gives the same bits on every copy.  Scalars (lr times the scale of the step) are made in float64 by
whoever orders the entries and travel with it.  Knows neither blocks' places nor who pushed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from ...core.table import TableSpec

Array = np.ndarray[Any, np.dtype[Any]]

#: Elements of a chunk: one of the arrays at work fills 256 KiB of float32, so that they stay in the second-level cache.
CHUNK = 1 << 16


class Scratch:
    """Working memory for one kind of number, allocated once."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.sum = np.empty(CHUNK, dtype)  # the combined pushes
        self.part = np.empty(CHUNK, dtype)  # one term
        self.flags = np.empty(CHUNK, np.bool_)


class Kernel(Protocol):
    """One optimizer.  `slots` counts its state arrays, each as long as the values."""

    @property
    def name(self) -> str: ...

    @property
    def slots(self) -> int: ...

    def scalars(self, table: TableSpec, scale: float) -> tuple[float, ...]:
        """What the step of one entry needs beside arrays; `scale` is its share of a full step (1 under BSP)."""
        ...

    def step(self, old: Array, update: Array, out: Array, scalars: Sequence[float], scratch: Scratch) -> bool:
        """One chunk of at most CHUNK elements: `out` = `old` after `update`; `out` may be `old`.

        `update` is only read.  False when an integer does not fit (floats are checked by `advance`).
        """
        ...


class Mix(NamedTuple):
    """How several pushes of one block become one update: sum of `weights` x pushes, divided by `divisor`.

    `weights` None means 1 each.  One push with divisor 1 is used as it is, bit for bit.
    """

    arrays: tuple[Array, ...]
    weights: tuple[float, ...] | None
    divisor: float

    @classmethod
    def sum_of(cls, arrays: Sequence[Array]) -> Mix:
        return cls(tuple(arrays), None, 1.0)

    @classmethod
    def mean_of(cls, arrays: Sequence[Array], weights: Sequence[float], total: float) -> Mix | None:
        """The weighted mean; `total` counts those too who pushed nothing.  None when nobody weighs anything.

        Equal weights are taken as the unit: no multiplication, and whole numbers stay whole.
        """
        if total <= 0.0:
            return None
        first = weights[0]
        if first > 0.0 and all(weight == first for weight in weights):
            return cls(tuple(arrays), None, total / first)
        return cls(tuple(arrays), tuple(weights), total)

    def chunk(self, start: int, stop: int, scratch: Scratch) -> Array | None:
        """The update for these elements, perhaps in `scratch.sum`; None when an integer does not fit."""
        n = stop - start
        arrays, weights = self.arrays, self.weights
        total = scratch.sum[:n]
        number = total.dtype.type
        if weights is None:
            if len(arrays) == 1:
                if self.divisor == 1.0:
                    return arrays[0][start:stop]
                np.divide(arrays[0][start:stop], number(self.divisor), out=total)
                return total
            for i, array in enumerate(arrays[1:]):
                before = total if i else arrays[0][start:stop]
                if not checked_add(before, array[start:stop], total, scratch):
                    return None
        else:
            part = scratch.part[:n]
            np.multiply(arrays[0][start:stop], number(weights[0]), out=total)
            for array, weight in zip(arrays[1:], weights[1:]):
                np.multiply(array[start:stop], number(weight), out=part)
                np.add(total, part, out=total)
        if self.divisor != 1.0:
            np.divide(total, number(self.divisor), out=total)
        return total


def advance(kernel: Kernel, old: Array, mix: Mix, out: Array, scalars: Sequence[float], scratch: Scratch) -> bool:
    """`out` = `old` after one step with the combined pushes; False if a result is not a finite number (`out` is void).

    `old` is only read unless it is `out`.
    """
    count = old.size
    floats = old.dtype.kind == "f"
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        for start in range(0, count, CHUNK):
            stop = min(start + CHUNK, count)
            update = mix.chunk(start, stop, scratch)
            if update is None:
                return False
            result = out[start:stop]
            if not kernel.step(old[start:stop], update, result, scalars, scratch):
                return False
            if floats and not np.isfinite(result, out=scratch.flags[: stop - start]).all():
                return False
    return True


def checked_add(a: Array, b: Array, out: Array, scratch: Scratch) -> bool:
    """`out` = a + b; False if an integer does not fit, which numpy would wrap around silently.  `out` may be `a`."""
    if a.dtype.kind == "f":
        np.add(a, b, out=out)
        return True

    # A sum has left the range iff it moved against the sign of what was added.
    n = out.size
    total = np.add(a, b, out=scratch.part[:n])
    fell = np.less(total, a, out=scratch.flags[:n])
    fits = bool((fell == (b < 0)).all())
    np.copyto(out, total)
    return fits
