"""Consistency models as arithmetic on clocks.  A clock counts finished iterations of a worker, never wall time.

BSP: Valiant 1990.  SSP: Ho et al., NIPS 2013.  A worker in clock c has finished c iterations (0 to c - 1).
"""

from __future__ import annotations

from typing import NamedTuple

from .errors import UsageError, shown

BSP, SSP, ASP = "bsp", "ssp", "asp"


class Consistency(NamedTuple):
    """A model and its slack in clocks (BSP 0, ASP none)."""

    model: str
    slack: int | None

    @classmethod
    def parse(cls, text: object) -> Consistency:
        """Read `bsp`, `asp` or `ssp:N`.

        >>> Consistency.parse("ssp:2")
        Consistency(model='ssp', slack=2)
        """
        word, colon, number = text.partition(":") if isinstance(text, str) else ("", "", "")
        if word == BSP and not colon:
            return cls(BSP, 0)
        if word == ASP and not colon:
            return cls(ASP, None)
        if word == SSP and number.isdecimal() and len(number) <= 10 and int(number) < 1 << 31:
            return cls(SSP, int(number))
        raise UsageError(f"consistency {shown(text)}: use bsp, asp or ssp:N (N clocks of slack)")

    def __str__(self) -> str:
        return f"ssp:{self.slack}" if self.model == SSP else self.model

    def closed_needed(self, clock: int) -> int:
        """Number of clocks that a range must have closed before a worker in `clock` may read it (BSP only, else 0)."""
        return clock if self.model == BSP else 0

    def slowest_needed(self, clock: int) -> int:
        """Number of clocks that the slowest worker must have finished before a worker in `clock` may read."""
        if self.slack is None:
            return 0
        return max(0, clock - self.slack)
