"""What every optimizer is: its state arrays, its scalars, one chunk of a step; and the working memory that it gets.

Deterministic: + - x / and square root only, in the written order, each rounded to the working kind of number, no fused
multiply-add; the same entry gives the same bits on every copy.  Scalars (rates, decays) are made in float64 by whoever
orders the entries and travel with it.  Knows neither blocks' places nor who pushed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from ...core.table import TableSpec

Array = np.ndarray[Any, np.dtype[Any]]
Numbers = tuple[Any, ...]  # scalars, or arrays as long as the chunk, of the working kind

#: Elements of a chunk: an array at work fills 256 KiB of float32.  Smaller ones spend their time on calls, larger ones
#: leave the second-level cache (measured).
CHUNK = 1 << 16


def working(storage: np.dtype[Any]) -> np.dtype[Any]:
    """The kind of number that a step is computed in, and its state kept in: half precision is for values alone."""
    return np.dtype("<f4") if storage.itemsize == 2 else storage


class Scratch:
    """Working memory for tables of one kind of number, allocated once."""

    def __init__(self, storage: np.dtype[Any]) -> None:
        self.work = working(storage)
        self.sum = np.empty(CHUNK, self.work)  # the combined pushes
        self.part = np.empty(CHUNK, self.work)  # one term
        self.other = np.empty(CHUNK, self.work)  # another one
        self.flags = np.empty(CHUNK, np.bool_)
        wide = 0 if self.work == storage else CHUNK
        self.before = np.empty(wide, self.work)  # values in the working kind, where they are kept in another
        self.after = np.empty(wide, self.work)


class Work(NamedTuple):
    """One chunk of at most CHUNK elements, all of the working kind: flat arrays of one length.

    `update` and `old` are only read; `out` may be `old`, each of `slots_out` the same one of `slots`.
    """

    old: Array
    update: Array
    slots: tuple[Array, ...]
    out: Array
    slots_out: tuple[Array, ...]


class Kernel(Protocol):
    """One optimizer.

    `slots` counts its state arrays, each as long as the values and zero before the first step.  `counts`: it has to know
    the number of the step.  `hidden` names the slots of which an infinity would not show in the values.
    """

    @property
    def name(self) -> str: ...

    @property
    def slots(self) -> int: ...

    @property
    def counts(self) -> bool: ...

    @property
    def hidden(self) -> tuple[int, ...]: ...

    def scalars(self, table: TableSpec, share: float, lr_factor: float) -> tuple[float, ...]:
        """What the step of one entry needs beside arrays; `share` comes first.

        `share` is its part of a full step (1 under BSP), `lr_factor` what the table's lr is multiplied with in this clock.
        """
        ...

    def factors(self, scalars: Sequence[float], steps: Array) -> tuple[Array, ...]:
        """What depends on the number of the step (int64, from 1), in float64, for each of `steps`."""
        ...

    def step(self, work: Work, scalars: Numbers, factors: Numbers, scratch: Scratch) -> bool:
        """`out` and `slots_out` after one step.  False when an integer does not fit (floats are checked by `advance`)."""
        ...


def checked_add(a: Array, b: Array, out: Array, scratch: Scratch) -> bool:
    """`out` = a + b; False if an integer does not fit, which numpy would wrap around silently.  `out` may be `a`."""
    if out.dtype.kind == "f":
        np.add(a, b, out=out)
        return True

    # A sum has left the range iff it moved against the sign of what was added.
    n = out.size
    total = np.add(a, b, out=scratch.part[:n])
    fell = np.less(total, a, out=scratch.flags[:n])
    fits = bool((fell == (b < 0)).all())
    np.copyto(out, total)
    return fits
