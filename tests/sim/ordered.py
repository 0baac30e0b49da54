"""An optimizer that exists in the simulator only: w <- (31 w + g) mod 2^31, whose result depends on the order of the pushes.

Whole numbers below 2^53 kept as f64: every step is exact, on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from plugml.agent import sparse
from plugml.core.kinds import OPTIMIZERS
from plugml.core.table import TableSpec
from plugml.server import buckets
from plugml.server.optimizers import KERNELS

FOLD = "fold31"
FACTOR, MODULUS = 31.0, 2.0**31

Array = np.ndarray[Any, np.dtype[Any]]


def folded(values: Array, update: Array) -> Array:
    """One step, as the reference makes it too."""
    return np.mod(FACTOR * values + update, MODULUS)


class Fold(NamedTuple):
    name: str = FOLD
    slots: int = 0
    counts: bool = False
    hidden: tuple[int, ...] = ()

    def scalars(self, table: TableSpec, share: float, lr_factor: float) -> tuple[float, ...]:
        return (share,)

    def factors(self, scalars: Sequence[float], steps: Array) -> tuple[Array, ...]:
        return ()

    def step(self, work: Any, scalars: Any, factors: Any, scratch: Any) -> bool:
        np.copyto(work.out, folded(work.old, work.update))
        return True


@contextmanager
def registered() -> Iterator[None]:
    """Tables may name it within the block; and rows travel in small frames, a few in each, as they do where there are many."""
    before = FOLD in OPTIMIZERS
    OPTIMIZERS[FOLD] = {}
    KERNELS[FOLD] = Fold()
    sizes = buckets.SCAN_BYTES, sparse.GROUP_BYTES
    buckets.SCAN_BYTES, sparse.GROUP_BYTES = 100, 60
    try:
        yield
    finally:
        buckets.SCAN_BYTES, sparse.GROUP_BYTES = sizes
        if not before:
            del OPTIMIZERS[FOLD], KERNELS[FOLD]
