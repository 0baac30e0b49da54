"""RMSProp: a = beta a + (1 - beta) g x g, w -= lr g / (sqrt(a) + eps).

Hinton, Tieleman 2012 (Coursera, Neural Networks for Machine Learning, lecture 6e), a from 0, eps outside the root.  The
share of an entry scales the step; a moves with the whole push.

Kept is s = a / (1 - beta), which saves a multiplication of each element: s = beta s + g x g, and with c = sqrt(1 - beta)
w -= lr / c x g / (sqrt(s) + eps / c).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...core.table import TableSpec
from .adagrad import root_step
from .base import Array, Numbers, Scratch, Work


class RmsProp(NamedTuple):
    name: str = "rmsprop"
    slots: int = 1
    counts: bool = False
    hidden: tuple[int, ...] = (0,)

    def scalars(self, table: TableSpec, share: float, lr_factor: float) -> tuple[float, ...]:
        beta = table.setting("beta")
        c = math.sqrt(1.0 - beta)
        return (share, table.setting("lr") * lr_factor * share / c, beta, table.setting("eps") / c)

    def factors(self, scalars: Sequence[float], steps: Array) -> tuple[Array, ...]:
        return ()

    def step(self, work: Work, scalars: Numbers, factors: Numbers, scratch: Scratch) -> bool:
        _, rate, beta, eps = scalars
        part, squares = scratch.part[: work.old.size], work.slots_out[0]
        np.multiply(work.update, work.update, out=part)
        np.multiply(work.slots[0], beta, out=squares)
        np.add(squares, part, out=squares)
        root_step(work, squares, rate, eps, part)
        return True


RMSPROP = RmsProp()
