"""How several pushes of one block become one update: added in a fixed order, weighed, divided."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .base import Array, Scratch, checked_add


class Mix(NamedTuple):
    """Sum of `weights` x pushes, divided by `divisor`.

    `weights` None means 1 each.  One push with divisor 1 is used as it is, bit for bit.
    """

    arrays: tuple[Array, ...]
    weights: tuple[float, ...] | None
    divisor: float

    @classmethod
    def sum_of(cls, arrays: Sequence[Array]) -> Mix:
        return cls(tuple(arrays), None, 1.0)

    @classmethod
    def mean_of(cls, arrays: Sequence[Array], weights: Sequence[float], total: float) -> Mix | None:
        """The weighted mean; `total` counts those too who pushed nothing.  None when nobody weighs anything.

        Equal weights are taken as the unit: no multiplication, and whole numbers stay whole.
        """
        if total <= 0.0:
            return None
        first = weights[0]
        if first > 0.0 and all(weight == first for weight in weights):
            return cls(tuple(arrays), None, total / first)
        return cls(tuple(arrays), tuple(weights), total)

    def chunk(self, start: int, stop: int, scratch: Scratch) -> Array | None:
        """The update for these elements, perhaps in `scratch.sum`; None when an integer does not fit."""
        n = stop - start
        arrays, weights = self.arrays, self.weights
        total = scratch.sum[:n]
        number = total.dtype.type
        if weights is None:
            first = _worked(arrays[0][start:stop], total)
            if len(arrays) == 1 and self.divisor == 1.0:
                return first
            if len(arrays) == 1:
                np.divide(first, number(self.divisor), out=total)
                return total
            for i, array in enumerate(arrays[1:]):
                term = _worked(array[start:stop], scratch.part[:n])
                if not checked_add(total if i else first, term, total, scratch):
                    return None
        else:
            part = scratch.part[:n]
            np.multiply(_worked(arrays[0][start:stop], total), number(weights[0]), out=total)
            for array, weight in zip(arrays[1:], weights[1:]):
                np.multiply(_worked(array[start:stop], part), number(weight), out=part)
                np.add(total, part, out=total)
        if self.divisor != 1.0:
            np.divide(total, number(self.divisor), out=total)
        return total


def _worked(array: Array, room: Array) -> Array:
    """The numbers in the working kind: as they are, or converted into `room`."""
    if array.dtype == room.dtype:
        return array
    np.copyto(room, array)
    return room
