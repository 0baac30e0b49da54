"""The tables of a job as raw files, written as they come: of one closed clock, or of a snapshot that the ranges keep.

    StandingAsk -> newest closed clock -> Pull of every range, Scan of every bucket -> WriteExport ... -> all at one clock? -> EndExport
                   snapshot            -> PullAt, Scan of it

Under BSP a state is whole only if all ranges stand at one closed clock.  While training goes on some may be one
further: then everything is read again at that clock, a bounded number of times.  Of a job that cannot close any more
each range is read as it is: some may have made the step that another could not make.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Any

from ..core.errors import Code
from ..core.limits import Limits
from ..wire import messages as m
from . import effects as e
from .landing import converted
from .router import Job, code_of
from .scan import Scans, SparseFile
from .transfer import Gather

ROUNDS_MAX = 16


class Export:
    """One `export` of agent.sock.  `failure` or `finished` once it is over.  `at` 0 = the newest closed clock."""

    def __init__(self, job: Job, number: int, place: str, at: int, limits: Limits, draw: Callable[[], int], now_us: int) -> None:
        self.job = job
        self.number = number
        self.place = place
        self.at = at
        self.limits = limits
        self.gather: Gather | None = None
        self.scans: Scans | None = None
        self.files: list[str] = []
        self._draw = draw  # gives the number of a question
        self.low = self.high = 0  # closed clocks of the answers of this round
        self.rounds = 0
        self.failure: tuple[Code, str] | None = None
        self.written = False  # EndExport is out
        self.due_us = now_us
        self._heard_us = now_us
        self._backoff_us = limits.resend_us

    @property
    def clock(self) -> int:
        """Of what was written; of a job that cannot go on, the one that all ranges have closed."""
        return self.at or (self.high if self.job.failure is None else self.low)

    def on_standing(self, now_us: int) -> list[Any]:
        """The clock has told how it stands: begin."""
        if self.gather is not None or self.failure is not None:
            return []
        plan = self.job.plan
        assert plan is not None
        effects: list[Any] = []
        for placed in self.job.spec.layout.places:
            effects += self._make(f"{placed.table.name}.bin", placed.table.nbytes)
        for table in plan.sparse.values():
            for file in SparseFile.names(table):
                effects += self._make(file, 0)
        return effects + self._read(0 if self.at or self.job.failure is not None else self.job.closed, now_us)

    def _make(self, file: str, nbytes: int) -> list[Any]:
        self.files.append(file)
        return [e.MakeExport(self.number, self.place, file, nbytes)]

    def on_answer(self, answer: m.Values | m.Scanned, now_us: int) -> list[Any]:
        gather, scans = self.gather, self.scans
        if gather is None or scans is None or self.written or self.failure is not None:
            return []
        effects = self._blocks(gather, answer) if isinstance(answer, m.Values) else scans.on_scanned(answer)
        if effects is None:
            return []
        self._heard_us = now_us
        self._backoff_us = self.limits.resend_us
        self.low, self.high = min(self.low, answer.closed), max(self.high, answer.closed)
        if not (gather.done and scans.done):
            return [*effects, *gather.pump(), *scans.pump()]
        if self.low < self.high and not self.at and self.job.failure is None:
            return effects + self._again(now_us)
        return effects + self._end()

    def _blocks(self, gather: Gather, values: m.Values) -> list[Any] | None:
        part, plan = gather.on_values(values), self.job.plan
        assert plan is not None
        if part is None:
            return None
        effects: list[Any] = []
        places = self.job.spec.layout.places
        starts = [placed.offset for placed in places]
        for place, frame in zip(part.slices, values.payload, strict=True):
            placed = places[bisect_right(starts, place.offset) - 1]
            frame = converted(plan, place.table, frame)
            effects.append(e.WriteExport(self.number, f"{placed.table.name}.bin", place.offset - placed.offset, frame))
        return effects

    def _again(self, now_us: int) -> list[Any]:
        self.rounds += 1
        if self.rounds >= ROUNDS_MAX:
            text = f"training went on too fast: {ROUNDS_MAX} reads of job {self.job.name!r} met no clock at which all ranges stood"
            return self.fail(Code.AGAIN, text)
        return self._read(self.high, now_us)

    def _read(self, closed: int, now_us: int) -> list[Any]:
        plan = self.job.plan
        assert plan is not None
        self.low, self.high = 1 << 62, 0
        self.gather = Gather(self.job, self.number, m.NOBODY, 0, plan.parts, closed, self.limits.window_bytes, self.at)
        self.scans = Scans(self.job, self.number, self.at, closed, self.limits, self._draw)
        self._heard_us = now_us
        self.due_us = now_us + self.limits.resend_us
        return [*self.gather.pump(), *self.scans.pump()]

    def _end(self) -> list[Any]:
        assert self.scans is not None
        self.written = True
        cuts = [e.CutExport(self.number, file, nbytes) for file, nbytes in self.scans.sizes()]
        return [*cuts, e.EndExport(self.number, True)]

    def on_map(self, moved: frozenset[int]) -> list[Any]:
        if self.gather is None or self.scans is None or self.written:
            return []
        return [*self.gather.resend(moved), *self.scans.resend(moved)]

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
        if self.gather is None or self.scans is None:
            return list(self.job.to_clock(m.StandingAsk, m.NOBODY, 0))
        if now_us < self._heard_us + self._backoff_us:
            return []
        self._heard_us = now_us
        self._backoff_us = min(2 * self._backoff_us, self.limits.resend_us_max)
        return [*self.gather.resend(), *self.gather.pump(), *self.scans.resend(), *self.scans.pump()]
