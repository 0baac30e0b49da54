"""w = u: the pushed values take the place of the old ones (a mean of models when several are combined).

A scaled step goes that share of the way from the old values to the pushed ones, so that `mean` says the same under
every consistency model.  `lr_factor` does not touch it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...core.table import TableSpec
from .base import Array, Numbers, Scratch, Work


class Assign(NamedTuple):
    name: str = "assign"
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
            np.copyto(work.out, work.update)
            return True

        part = scratch.part[: work.old.size]
        np.subtract(work.update, work.old, out=part)
        np.multiply(part, share, out=part)
        np.add(work.old, part, out=work.out)
        return True


ASSIGN = Assign()
