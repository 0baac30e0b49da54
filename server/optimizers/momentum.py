"""Momentum: v = beta v + g, w -= lr v; and Nesterov's: w -= lr (g + beta v), with the v of this step.

Polyak 1964, Nesterov 1983 in the form of Sutskever et al. 2013 ("On the importance of initialization and momentum in deep
learning") as PyTorch writes it: lr stands outside v, so that a change of lr acts at once.

Both are linear in g, so the share of an entry scales g itself: over all later steps each push moves the values by the part
of the mean that it weighs, whatever the others weigh.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...core.table import TableSpec
from .base import Array, Numbers, Scratch, Work


def _scalars(table: TableSpec, share: float, lr_factor: float) -> tuple[float, ...]:
    return (share, table.setting("lr") * lr_factor, table.setting("beta"))


def _velocity(work: Work, scalars: Numbers, scratch: Scratch) -> Array:
    """v of this step into its slot; answers the scaled push."""
    share, _, beta = scalars
    (v,), update = work.slots_out, work.update
    if share != 1.0:
        update = np.multiply(update, share, out=scratch.other[: update.size])
    np.multiply(work.slots[0], beta, out=v)
    np.add(v, update, out=v)
    return update


class Momentum(NamedTuple):
    name: str = "momentum"
    slots: int = 1
    counts: bool = False
    hidden: tuple[int, ...] = ()  # lr x infinity is never finite

    def scalars(self, table: TableSpec, share: float, lr_factor: float) -> tuple[float, ...]:
        return _scalars(table, share, lr_factor)

    def factors(self, scalars: Sequence[float], steps: Array) -> tuple[Array, ...]:
        return ()

    def step(self, work: Work, scalars: Numbers, factors: Numbers, scratch: Scratch) -> bool:
        _velocity(work, scalars, scratch)
        part = scratch.part[: work.old.size]
        np.multiply(work.slots_out[0], scalars[1], out=part)
        np.subtract(work.old, part, out=work.out)
        return True


class Nesterov(NamedTuple):
    name: str = "nesterov"
    slots: int = 1
    counts: bool = False
    hidden: tuple[int, ...] = ()

    def scalars(self, table: TableSpec, share: float, lr_factor: float) -> tuple[float, ...]:
        return _scalars(table, share, lr_factor)

    def factors(self, scalars: Sequence[float], steps: Array) -> tuple[Array, ...]:
        return ()

    def step(self, work: Work, scalars: Numbers, factors: Numbers, scratch: Scratch) -> bool:
        update = _velocity(work, scalars, scratch)
        part = scratch.part[: work.old.size]
        np.multiply(work.slots_out[0], scalars[2], out=part)
        np.add(part, update, out=part)
        np.multiply(part, scalars[1], out=part)
        np.subtract(work.old, part, out=work.out)
        return True


MOMENTUM = Momentum()
NESTEROV = Nesterov()
