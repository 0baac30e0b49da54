"""w = u: the pushed values take the place of the old ones (a mean of models when several are combined).

A scaled step goes that share of the way from the old values to the pushed ones, so that `mean` says the same under
every consistency model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...core.table import TableSpec
from .base import Array, Scratch


class Assign(NamedTuple):
    name: str = "assign"
    slots: int = 0

    def scalars(self, table: TableSpec, scale: float) -> tuple[float, ...]:
        return (scale,)

    def step(self, old: Array, update: Array, out: Array, scalars: Sequence[float], scratch: Scratch) -> bool:
        scale = scalars[0]
        if scale == 1.0:
            np.copyto(out, update)
            return True

        part = scratch.part[: old.size]
        np.subtract(update, old, out=part)
        np.multiply(part, old.dtype.type(scale), out=part)
        np.add(old, part, out=out)
        return True


ASSIGN = Assign()
