"""RMSProp: a = beta a + (1 - beta) g x g, w -= lr g / (sqrt(a) + eps).

Hinton, Tieleman 2012 (Coursera, Neural Networks for Machine Learning, lecture 6e), a from 0, eps outside the root.  The
share of an entry scales the step; a moves with the whole push.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

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
        return (share, table.setting("lr") * lr_factor * share, beta, 1.0 - beta, table.setting("eps"))

    def factors(self, scalars: Sequence[float], steps: Array) -> tuple[Array, ...]:
        return ()

    def step(self, work: Work, scalars: Numbers, factors: Numbers, scratch: Scratch) -> bool:
        _, rate, beta, rest, eps = scalars
        part, squares = scratch.part[: work.old.size], work.slots_out[0]
        mean_square(work.update, work.slots[0], beta, rest, squares, part)
        root_step(work, squares, rate, eps, part)
        return True


def mean_square(update: Array, before: Array, beta: Any, rest: Any, out: Array, part: Array) -> None:
    """out = beta x before + (rest x g) x g: in this order a large g overflows as late as it can."""
    np.multiply(update, rest, out=part)
    np.multiply(part, update, out=part)
    np.multiply(before, beta, out=out)
    np.add(out, part, out=out)


RMSPROP = RmsProp()
