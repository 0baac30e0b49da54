"""Adam and AdamW, with bias correction for step t:

    m = beta1 m + (1 - beta1) g        v = beta2 v + (1 - beta2) g x g
    w -= lr / (1 - beta1^t) x m / (sqrt(v / (1 - beta2^t)) + eps)          AdamW also: w -= lr x weight_decay x w

Kingma, Ba 2015 (arXiv 1412.6980), algorithm 1; Loshchilov, Hutter 2019 (arXiv 1711.05101), decoupled weight decay.
The share of an entry scales the step, decay included, and not g, to whose size Adam is blind; m and v move with the whole
push and t counts it.

Kept are p = m / (1 - beta1) and q = v / (1 - beta2), and the correction of v is drawn out of the root, which saves three
multiplications of each element:

    p = beta1 p + g      q = beta2 q + g x g      c = sqrt((1 - beta2^t) / (1 - beta2))
    w -= lr (1 - beta1) c / (1 - beta1^t) x p / (sqrt(q) + eps c)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...core.table import TableSpec
from .base import Array, Numbers, Scratch, Work
from .powers import powers


def _scalars(table: TableSpec, share: float, lr_factor: float) -> tuple[float, ...]:
    lr = table.setting("lr") * lr_factor * share
    return (share, lr, table.setting("beta1"), table.setting("beta2"), table.setting("eps"))


def _factors(scalars: Sequence[float], steps: Array) -> tuple[Array, ...]:
    """The rate of the step and what is added to the root, for each step number."""
    _, lr, beta1, beta2, eps = scalars[:5]
    c = np.sqrt((1.0 - powers(beta2).of(steps)) / (1.0 - beta2))
    return lr * (1.0 - beta1) * c / (1.0 - powers(beta1).of(steps)), eps * c


def _move(work: Work, scalars: Numbers, factors: Numbers, part: Array) -> None:
    """Moments into their slots, the step into `part`."""
    beta1, beta2 = scalars[2:4]
    rate, eps = factors
    p, q = work.slots_out
    np.multiply(work.slots[0], beta1, out=p)
    np.add(p, work.update, out=p)
    np.multiply(work.update, work.update, out=part)
    np.multiply(work.slots[1], beta2, out=q)
    np.add(q, part, out=q)
    np.sqrt(q, out=part)
    np.add(part, eps, out=part)
    np.divide(p, part, out=part)
    np.multiply(part, rate, out=part)


class Adam(NamedTuple):
    name: str = "adam"
    slots: int = 2
    counts: bool = True
    hidden: tuple[int, ...] = (1,)

    def scalars(self, table: TableSpec, share: float, lr_factor: float) -> tuple[float, ...]:
        return _scalars(table, share, lr_factor)

    def factors(self, scalars: Sequence[float], steps: Array) -> tuple[Array, ...]:
        return _factors(scalars, steps)

    def step(self, work: Work, scalars: Numbers, factors: Numbers, scratch: Scratch) -> bool:
        part = scratch.part[: work.old.size]
        _move(work, scalars, factors, part)
        np.subtract(work.old, part, out=work.out)
        return True


class AdamW(NamedTuple):
    name: str = "adamw"
    slots: int = 2
    counts: bool = True
    hidden: tuple[int, ...] = (1,)

    def scalars(self, table: TableSpec, share: float, lr_factor: float) -> tuple[float, ...]:
        common = _scalars(table, share, lr_factor)
        return (*common, common[1] * table.setting("weight_decay"))

    def factors(self, scalars: Sequence[float], steps: Array) -> tuple[Array, ...]:
        return _factors(scalars, steps)

    def step(self, work: Work, scalars: Numbers, factors: Numbers, scratch: Scratch) -> bool:
        part, decay = scratch.part[: work.old.size], scratch.other[: work.old.size]
        _move(work, scalars, factors, part)
        np.multiply(work.old, scalars[5], out=decay)
        np.add(part, decay, out=part)
        np.subtract(work.old, part, out=work.out)
        return True


ADAM = Adam()
ADAMW = AdamW()
