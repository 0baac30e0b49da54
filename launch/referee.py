"""Evaluations beside training, and the rules that end a run: when, on which values, and what their numbers decide.  Pure.

    due -> PrepareModel -> export (of the snapshot, or as it is) -> Evaluate -> better? KeepBest -> enough? stop, once, for all

One evaluation at a time; one that is late takes the newest clock and leaves out those between.  A failing one is said and
never ends the training.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any

from ..core.jobmap import FINISHED
from . import effects as e
from . import words
from .crew import Crew, Verdict
from .rules import Judge, Reading
from .watch import Watch
from .worker import RUNNING

IDLE, PREPARING, EXPORTING, EVALUATING, KEEPING = "idle", "preparing", "exporting", "evaluating", "keeping"
READINGS_MAX = 1_000  # that the summary lists: the newest
LOUD_FAILURES = 3  # in a row; later ones are only told with -v
REASON_MAX = 500


class Referee:
    """`reason`: why the rule ended the run, "" = it has not.  `over`: the last evaluation has been done, or given up."""

    def __init__(self, crew: Crew, watch: Watch, ask: Callable[..., e.Ask]) -> None:
        self.reason = ""
        self.stop_clock = 0  # where all workers end, once it is known
        self.best_place = ""
        self.readings: deque[Reading] = deque(maxlen=READINGS_MAX)
        self.failures = 0
        self.over = False
        self.phase = IDLE
        self._crew = crew
        self._watch = watch
        self._ask = ask
        self._rules = crew.plan.rules
        self._judge = Judge(self._rules)
        self._in_a_row = 0
        self._clock = 0  # of the evaluation under way, or the last one
        self._looked = 0  # at values of this clock, the newest so far
        self._model = ""
        self._exact = False  # the snapshot of that very clock is asked for
        self._last = False  # training is over
        self._final = False  # and the evaluation under way is that of the final values
        self._end_us: int | None = None
        self._overtime = False  # the time of the rule is over: at `_end_us` so is that of programs that have not heard of it

    @property
    def due_us(self) -> int | None:
        return self._end_us

    @property
    def busy(self) -> bool:
        """Numbers are waited for, so that looking often is worth it."""
        return bool(self._rules.command)

    @property
    def best(self) -> Reading | None:
        return self._judge.best

    def begin(self, now_us: int) -> None:
        """Training starts: so does the time of the rule."""
        if self._rules.seconds_us:
            self._end_us = now_us + self._rules.seconds_us
        self.stop_clock = self._crew.plan.spec.stop_clock

    def on_time(self, now_us: int) -> list[Any]:
        if self._end_us is None or now_us < self._end_us:
            return []
        over = f"{self._rules.seconds_us / 1e6:g} s are over"
        if self._overtime:
            return self._cut_short(over)
        self._overtime, self._end_us = True, now_us + self._crew.plan.grace_us
        return self._stop(over)

    def _cut_short(self, over: str) -> list[Any]:
        """Somebody has not ended at the clock that was told: perhaps it never asks.  The rest is as at a signal."""
        self._end_us, self.reason = None, self.reason or over
        late = words.names([worker.number for worker in self._crew.which(RUNNING)] or [worker.number for worker in self._crew.workers])
        text = f"{over}, and {words.span(self._crew.plan.grace_us)} later {late} had not ended: SIGTERM"
        self._crew.warnings.append(text)
        return [e.Tell("warn", text), Verdict(FINISHED, self.reason, 0)]

    def stood(self) -> list[Any]:
        """The clock has moved, perhaps: is an evaluation due?"""
        every = self._rules.every
        if not self._rules.command or self.phase != IDLE or self._last or self.reason:
            return []
        reached = self._watch.closed if self._crew.plan.at_clocks else self._watch.slowest
        clock = reached // every * every
        return self._start(clock) if clock > self._clock else []

    def picture(self, picture: e.Picture) -> e.Picture:
        """The same with what is known of metric and end."""
        metric = f"{self._rules.metric_name} {self.readings[-1].value:g} at clock {self.readings[-1].clock}" if self.readings else ""
        return picture._replace(metric=metric, goal=self.stop_clock, end_us=0 if self._overtime else self._end_us or 0)

    # -- the last one ---------------------------------------------------------------------------------------------------

    def wants_last(self) -> bool:
        return bool(self._rules.command) and any(worker.pushes or worker.clocks for worker in self._crew.workers)

    def last(self) -> list[Any]:
        """All workers have ended: evaluate the final values, after the evaluation that is under way."""
        self._last, self._end_us = True, None
        return self._start_last() if self.phase == IDLE else []

    def _start_last(self) -> list[Any]:
        self._final = True
        return self._start(max(worker.clocks for worker in self._crew.workers))

    def cancel(self) -> list[Any]:
        """No number is waited for any more."""
        running, model = self.phase == EVALUATING, self._model
        self.phase, self.over, self._end_us, self._model = IDLE, True, None, ""
        if running:
            return [e.EndEvaluation()]
        return [e.DropModel(model)] if model else []

    # -- one evaluation -------------------------------------------------------------------------------------------------

    def _start(self, clock: int) -> list[Any]:
        self.phase, self._clock, self._exact = PREPARING, clock, self._crew.plan.at_clocks and not self._final
        return [e.PrepareModel()]

    def on_ready(self, event: e.ModelReady, now_us: int) -> list[Any]:
        if self.phase != PREPARING:
            return [e.DropModel(event.directory)]
        self.phase, self._model = EXPORTING, event.directory
        return [self._export()]

    def _export(self) -> e.Ask:
        at = {"at": self._clock} if self._exact else {}
        return self._ask("export", key="model", dir=self._model, **at)

    def on_failed(self, event: e.ModelFailed, now_us: int) -> list[Any]:
        return self._fail(event.text, ()) if self.phase == PREPARING else []

    def exported(self, event: e.Answer, now_us: int) -> list[Any]:
        if self.phase != EXPORTING:
            return []
        if event.code and self._exact:  # training has gone on over it: two snapshots are kept
            self._exact = False
            return [self._export()]
        if event.code:
            return self._fail(f"{event.code}: {event.text}", ())
        if self._crew.plan.at_clocks:
            self._clock = int(event.fields.get("clock") or self._clock)
            if self._clock <= self._looked and self._final:  # these very values have been evaluated
                return self._done()
        self.phase, self._looked = EVALUATING, self._clock
        return [e.Evaluate(self._model, self._clock)]

    def on_evaluated(self, event: e.Evaluated, now_us: int) -> list[Any]:
        if self.phase != EVALUATING or event.directory != self._model:
            return [e.DropModel(event.directory)]
        if event.value is None:
            return self._fail(event.text, event.tail)
        self._in_a_row = 0
        reading = Reading(event.clock, event.value)
        self.readings.append(reading)
        better = self._judge.hear(reading)
        told = e.Tell("info", f"clock {reading.clock:,}: {self._rules.metric_name} {reading.value:g}{' (best so far)' if better else ''}")
        if better and self._rules.keep_best:
            self.phase = KEEPING
            document = {"job": self._crew.plan.spec.name, "clock": reading.clock, "metric": self._rules.metric, "value": number(reading.value)}
            return [told, e.KeepBest(self._model, document), *self._decide()]
        return [told, *self._decide(), *self._done()]

    def _decide(self) -> list[Any]:
        if not self._judge.fired or self._last:
            return []
        return self._stop(self._judge.why())

    def on_kept(self, event: e.BestKept, now_us: int) -> list[Any]:
        if event.text:
            text = f"the best model could not be kept in {event.directory}: {event.text}"
            self._crew.warnings.append(text)
            return [e.Tell("warn", text), *(self._done() if self.phase == KEEPING else [])]
        self.best_place = event.directory
        return self._done() if self.phase == KEEPING else []

    def _done(self) -> list[Any]:
        """This one is over: the next may come, or it was the last."""
        out: list[Any] = [e.DropModel(self._model)] if self._model else []
        self.phase, self._model, self.over = IDLE, "", self._final
        return out if self.over or not self._last else out + self._start_last()

    def _fail(self, text: str, tail: tuple[str, ...]) -> list[Any]:
        self.failures += 1
        self._in_a_row += 1
        lines = [f"the evaluation of clock {self._clock:,} failed: {text}", *(f"    {line}" for line in tail)]
        if self._in_a_row == LOUD_FAILURES:
            lines.append(f"  {LOUD_FAILURES} evaluations in a row have failed; training goes on all the same, later ones are told by -v")
        level = "warn" if self._in_a_row <= LOUD_FAILURES else "detail"
        return [e.Tell(level, "\n".join(lines)), *self._done()]

    # -- the rule -------------------------------------------------------------------------------------------------------

    def _stop(self, reason: str) -> list[Any]:
        if self.reason:
            return []
        self.reason = reason
        return [e.Tell("info", f"{reason}: all workers end at one clock"), self._ask("stop", reason=reason[:REASON_MAX])]

    def stopped(self, event: e.Answer, now_us: int) -> list[Any]:
        if event.code:
            self.reason = ""
            text = f"the stop rule could not be carried out: {event.code}: {event.text}"
            if text in self._crew.warnings:  # patience fires again after the next evaluation
                return []
            self._crew.warnings.append(text)
            return [e.Tell("warn", text)]
        self.stop_clock = int(event.fields.get("stop_clock") or 0)
        return [e.Tell("info", f"all workers end at clock {self.stop_clock:,}")]

    def ended_by(self) -> str:
        """Which rule ended the run, for its last words."""
        clocks = self._crew.plan.spec.stop_clock
        if self.reason or not clocks or not all(worker.clocks >= clocks for worker in self._crew.workers):
            return self.reason
        return f"{words.count(clocks, 'clock')} are done"

    def to_document(self) -> dict[str, Any]:
        """For the summary."""
        best = self._judge.best
        return {
            "stopped_by": self.ended_by(), "stop_clock": self.stop_clock, "metric": self._rules.metric_name if self._rules.command else "",
            "evaluations": [{"clock": reading.clock, "value": number(reading.value)} for reading in self.readings],
            "evaluations_failed": self.failures,
            "best": {"clock": best.clock, "value": number(best.value), "dir": self.best_place} if best else None,
        }  # fmt: skip


def number(value: float) -> float | None:
    """JSON has no word for what is no number."""
    return value if math.isfinite(value) else None
