"""Gradient descent: w -= lr x g, with lr rounded to the table's kind of number, as a C loop without contraction does it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...core.table import TableSpec
from .base import Array, Scratch


class Sgd(NamedTuple):
    name: str = "sgd"
    slots: int = 0

    def scalars(self, table: TableSpec, scale: float) -> tuple[float, ...]:
        return (table.setting("lr") * scale,)

    def step(self, old: Array, update: Array, out: Array, scalars: Sequence[float], scratch: Scratch) -> bool:
        part = scratch.part[: old.size]
        np.multiply(update, old.dtype.type(scalars[0]), out=part)
        np.subtract(old, part, out=out)
        return True


SGD = Sgd()
