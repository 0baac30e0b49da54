"""Adagrad: a += g x g, w -= lr g / (sqrt(a) + eps).

Duchi, Hazan, Singer 2011 ("Adaptive subgradient methods for online learning and stochastic optimization"), diagonal form,
a from 0, eps outside the root.  The share of an entry scales the step; a grows by the whole push.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...core.table import TableSpec
from .base import Array, Numbers, Scratch, Work


class Adagrad(NamedTuple):
    name: str = "adagrad"
    slots: int = 1
    counts: bool = False
    hidden: tuple[int, ...] = (0,)

    def scalars(self, table: TableSpec, share: float, lr_factor: float) -> tuple[float, ...]:
        return (share, table.setting("lr") * lr_factor * share, table.setting("eps"))

    def factors(self, scalars: Sequence[float], steps: Array) -> tuple[Array, ...]:
        return ()

    def step(self, work: Work, scalars: Numbers, factors: Numbers, scratch: Scratch) -> bool:
        _, rate, eps = scalars
        part = scratch.part[: work.old.size]
        np.multiply(work.update, work.update, out=part)
        squares = np.add(work.slots[0], part, out=work.slots_out[0])
        root_step(work, squares, rate, eps, part)
        return True


def root_step(work: Work, squares: Array, rate: Any, eps: Any, part: Array) -> None:
    """w -= rate x g / (sqrt(squares) + eps)."""
    np.sqrt(squares, out=part)
    np.add(part, eps, out=part)
    np.divide(work.update, part, out=part)
    np.multiply(part, rate, out=part)
    np.subtract(work.old, part, out=work.out)


ADAGRAD = Adagrad()
