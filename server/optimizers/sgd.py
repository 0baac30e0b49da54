"""Gradient descent: w -= lr x g, with lr rounded to the table's kind of number, as a C loop without contraction does it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...core.table import TableSpec
from .base import Array, Numbers, Scratch, Work


class Sgd(NamedTuple):
    name: str = "sgd"
    slots: int = 0
    counts: bool = False
    hidden: tuple[int, ...] = ()

    def scalars(self, table: TableSpec, share: float, lr_factor: float) -> tuple[float, ...]:
        return (share, table.setting("lr") * lr_factor * share)

    def factors(self, scalars: Sequence[float], steps: Array) -> tuple[Array, ...]:
        return ()

    def step(self, work: Work, scalars: Numbers, factors: Numbers, scratch: Scratch) -> bool:
        part = scratch.part[: work.old.size]
        np.multiply(work.update, scalars[1], out=part)
        np.subtract(work.old, part, out=work.out)
        return True


SGD = Sgd()
