"""w += u: counts, finished steps, anything whose step the program has already made.  `lr_factor` does not touch it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...core.table import TableSpec
from .base import Array, Numbers, Scratch, Work, checked_add


class Add(NamedTuple):
    name: str = "add"
    slots: int = 0
    counts: bool = False
    hidden: tuple[int, ...] = ()

    def scalars(self, table: TableSpec, share: float, lr_factor: float) -> tuple[float, ...]:
        return (share,)

    def factors(self, scalars: Sequence[float], steps: Array) -> tuple[Array, ...]:
        return ()

    def step(self, work: Work, scalars: Numbers, factors: Numbers, scratch: Scratch) -> bool:
        share = scalars[0]
        if share == 1.0:
            return checked_add(work.old, work.update, work.out, scratch)

        part = scratch.part[: work.old.size]
        np.multiply(work.update, share, out=part)
        np.add(work.old, part, out=work.out)
        return True


ADD = Add()
