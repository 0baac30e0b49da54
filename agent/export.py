"""The tables of a job as raw files: one read of every range at one closed clock, written as it comes.

    StandingAsk -> newest closed clock -> Pull of every range -> WriteExport ... -> all at one clock? -> EndExport

Under BSP a state is whole only if all ranges stand at one closed clock.  While training goes on some may be one
further: then everything is read again at that clock, a bounded number of times.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from ..core.errors import Code
from ..core.limits import Limits
from ..wire import messages as m
from . import effects as e
from .router import Job, code_of
from .transfer import Gather

ROUNDS_MAX = 16


class Export:
    """One `export` of agent.sock.  `failure` or `finished` once it is over."""

    def __init__(self, job: Job, number: int, place: str, limits: Limits, now_us: int) -> None:
        self.job = job
        self.number = number
        self.place = place
        self.limits = limits
        self.gather: Gather | None = None
        self.low = self.high = 0  # closed clocks of the answers of this round
        self.rounds = 0
        self.failure: tuple[Code, str] | None = None
        self.written = False  # EndExport is out
        self.due_us = now_us
        self._heard_us = now_us
        self._backoff_us = limits.resend_us

    @property
    def files(self) -> list[str]:
        return [f"{placed.table.name}.bin" for placed in self.job.spec.layout.places]

    def on_standing(self, now_us: int) -> list[Any]:
        """The clock has told how it stands: begin."""
        if self.gather is not None or self.failure is not None:
            return []
        effects: list[Any] = []
        for placed in self.job.spec.layout.places:
            effects.append(e.MakeExport(self.number, self.place, f"{placed.table.name}.bin", placed.table.nbytes))
        return effects + self._read(self.job.closed, now_us)

    def on_values(self, values: m.Values, now_us: int) -> list[Any]:
        if self.gather is None or self.written or self.failure is not None:
            return []
        slices = self.gather.on_values(values)
        if slices is None:
            return []
        self._heard_us = now_us
        self._backoff_us = self.limits.resend_us
        self.low, self.high = min(self.low, values.closed), max(self.high, values.closed)
        effects: list[Any] = []
        places = self.job.spec.layout.places
        starts = [placed.offset for placed in places]
        for place, frame in zip(slices, values.payload, strict=True):
            placed = places[bisect_right(starts, place.offset) - 1]
            effects.append(e.WriteExport(self.number, f"{placed.table.name}.bin", place.offset - placed.offset, frame))
        if not self.gather.done:
            return effects + self.gather.pump()
        if self.low < self.high:
            return effects + self._again(now_us)
        self.written = True
        return [*effects, e.EndExport(self.number, True)]

    def _again(self, now_us: int) -> list[Any]:
        self.rounds += 1
        if self.rounds >= ROUNDS_MAX:
            text = f"training went on too fast: {ROUNDS_MAX} reads of job {self.job.name!r} met no clock at which all ranges stood"
            return self.fail(Code.AGAIN, text)
        return self._read(self.high, now_us)

    def _read(self, closed: int, now_us: int) -> list[Any]:
        self.low, self.high = 1 << 62, 0
        self.gather = Gather(self.job, self.number, m.NOBODY, 0, closed, self.limits.window_bytes)
        self._heard_us = now_us
        self.due_us = now_us + self.limits.resend_us
        return self.gather.pump()

    def on_map(self, moved: frozenset[int]) -> list[Any]:
        return [] if self.gather is None or self.written else self.gather.resend(moved)

    def fail(self, code: int, text: str) -> list[Any]:
        """Give up: nothing stays under a final name."""
        if self.failure is not None:
            return []
        self.failure = (code_of(code), text)
        return [e.EndExport(self.number, False)]

    def on_time(self, now_us: int) -> list[Any]:
        if now_us < self.due_us:
            return []
        self.due_us = now_us + self.limits.resend_us
        if self.written or self.failure is not None:
            return []
        if self.gather is None:
            return list(self.job.to_clock(m.StandingAsk, m.NOBODY, 0))
        if now_us < self._heard_us + self._backoff_us:
            return []
        self._heard_us = now_us
        self._backoff_us = min(2 * self._backoff_us, self.limits.resend_us_max)
        return [*self.gather.resend(), *self.gather.pump()]
