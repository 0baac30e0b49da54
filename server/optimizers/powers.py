"""beta to the power of a step's number, with the same bits on every machine and for one step as for many.

No mathematical library is asked.  The exponent is cut into three digits to the base 4096; each digit has a table that
repeated multiplication in float64 has made, and the power is the product of three entries, lowest digit first:

    beta^t = A[t mod 4096] x B[t / 4096 mod 4096] x C[t / 4096^2]     A[i] = A[i - 1] x beta, B[1] = A[4095] x beta, ...
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

_DIGIT_BITS = 12
_DIGIT = 1 << _DIGIT_BITS
#: Later steps count as this one: 7 x 10^10 steps are more than anybody makes.
STEPS_MAX = _DIGIT**3 - 1


class Powers:
    def __init__(self, beta: float) -> None:
        low, base = _table(beta)
        middle, base = _table(base)
        high, _ = _table(base)
        self._tables = (low, middle, high)

    def of(self, steps: Array) -> Array:
        """beta to each of these powers (int64, from 0)."""
        low, middle, high = self._tables
        bounded = np.minimum(steps, STEPS_MAX)
        power = low[bounded & (_DIGIT - 1)]
        if steps.size and int(steps.max()) >= _DIGIT:
            power *= middle[(bounded >> _DIGIT_BITS) & (_DIGIT - 1)]
            power *= high[bounded >> 2 * _DIGIT_BITS]
        return np.asarray(power)


def _table(base: float) -> tuple[Array, float]:
    """The powers 0 to 4095 of `base`, and the next one."""
    found = [1.0]
    for _ in range(_DIGIT):
        found.append(found[-1] * base)
    return np.array(found[:_DIGIT]), found[_DIGIT]


@lru_cache(maxsize=64)
def powers(beta: float) -> Powers:
    """The table of a decay rate; those of the last 64 rates are kept (100 KB each)."""
    return Powers(beta)
