"""When does a wait explain itself?  Keeps what the launcher knows of the clock, and finds stalls in it.  Pure.

A stall is a time in which nothing moved for `explain_us`, or for twice the longest clock so far where clocks are
slower than that.  It is explained once, then again after ever longer pauses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.limits import Limits

AGAIN = 4  # each explanation of one stall comes after four times the wait of the one before


class Watch:
    """`clocks` finished per worker, `closed` clocks, `waiting` members that hold the clock back."""

    def __init__(self, limits: Limits, now_us: int) -> None:
        self.clocks: dict[int, int] = {}
        self.closed = 0
        self.waiting: list[int] = []
        self._limits = limits
        self._since_us = now_us
        self._longest_us = 0
        self._due_us = now_us + limits.explain_us

    def take(self, fields: Mapping[str, Any], now_us: int) -> list[int]:
        """Take an answer to `standing`; returns the workers whose clock has grown."""
        moved = []
        for word, finished in dict(fields.get("clocks") or {}).items():
            worker = int(word)
            if finished > self.clocks.get(worker, 0):
                moved.append(worker)
            self.clocks[worker] = max(finished, self.clocks.get(worker, 0))
        closed = max(self.closed, int(fields.get("closed") or 0))
        if moved or closed > self.closed:
            self.moved(now_us)
        self.closed = closed
        self.waiting = [int(worker) for worker in fields.get("waiting") or ()]
        return moved

    def moved(self, now_us: int) -> None:
        """Something went on: a new wait begins."""
        if self.clocks and max(self.clocks.values()) > 1:
            self._longest_us = max(self._longest_us, now_us - self._since_us)
        self._since_us = now_us
        self._due_us = now_us + max(self._limits.explain_us, 2 * self._longest_us)

    def due(self, now_us: int) -> bool:
        """Is it time to explain?  True once per due time."""
        if now_us < self._due_us:
            return False
        self._due_us = now_us + (AGAIN - 1) * max(now_us - self._since_us, self._limits.explain_us)
        return True

    def waited_us(self, now_us: int) -> int:
        return now_us - self._since_us

    @property
    def due_us(self) -> int:
        return self._due_us
