"""w += u: counts, finished steps, anything whose step the program has already made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...core.table import TableSpec
from .base import Array, Scratch, checked_add


class Add(NamedTuple):
    name: str = "add"
    slots: int = 0

    def scalars(self, table: TableSpec, scale: float) -> tuple[float, ...]:
        return (scale,)

    def step(self, old: Array, update: Array, out: Array, scalars: Sequence[float], scratch: Scratch) -> bool:
        scale = scalars[0]
        if scale == 1.0:
            return checked_add(old, update, out, scratch)

        part = scratch.part[: old.size]
        np.multiply(update, old.dtype.type(scale), out=part)
        np.add(old, part, out=out)
        return True


ADD = Add()
