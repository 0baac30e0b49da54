"""Evaluation and stop rules as they are written: what is measured, how a number is read, when enough is enough.  Pure.

Owns the keys of [evaluate] and [stop], and the judgement of a row of numbers.  Knows no run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..core.errors import UsageError
from ..core.limits import SECOND
from .jobfile import split_command

MAX, MIN = "max", "min"
_NUMBER = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|[iI]nf(?:inity)?|[nN]a[nN])(?![\w.])"
_NUMBERS = re.compile(rf"(?<![\w.]){_NUMBER}")
#: Words of a metric that nobody wants large.
_SMALL_IS_GOOD = re.compile(r"loss|error|\berr\b|rmse|mse|mae|perplexity|\bppl\b|nll|cost", re.IGNORECASE)


@dataclass(slots=True, frozen=True)
class Rules:
    """What is evaluated and when the run stops by itself; no command = no evaluation, 0 = no such rule."""

    command: tuple[str, ...] = ()
    every: int = 0  # clocks
    metric: str = ""
    mode: str = MAX
    clocks: int = 0
    seconds_us: int = 0
    patience: int = 0  # evaluations without improvement
    min_delta: float = 0.0
    keep_best: bool = False

    @property
    def metric_name(self) -> str:
        """For sentences."""
        return self.metric if self.metric and "(" not in self.metric else "the metric"


class Reading(NamedTuple):
    """One evaluation that gave a number."""

    clock: int
    value: float


def parse_rules(evaluate: Mapping[str, Any], stop: Mapping[str, Any], keep_best: bool) -> Rules:
    """Check [evaluate], [stop] and [result] keep_best together.  Raises `UsageError`."""
    command = tuple(split_command(evaluate["command"], "[evaluate] command")) if "command" in evaluate else ()
    if not command:
        for what, given in (("[evaluate] every", "every" in evaluate), ("a metric", bool(evaluate.get("metric") or stop.get("metric"))),
                            ("[stop] patience", "patience" in stop), ("[stop] mode", "mode" in stop), ("[result] keep_best", keep_best)):  # fmt: skip
            if given:
                raise UsageError(f"{what} needs [evaluate] command: nothing is evaluated (--evaluate CMD)")
    if command and "every" not in evaluate:
        raise UsageError("[evaluate] needs every = N: clocks from one evaluation to the next (--evaluate-every N)")
    for section, key in ((evaluate, "every"), (stop, "clocks"), (stop, "patience")):
        if key in section and not 1 <= section[key] <= 1 << 62:
            raise UsageError(f"{key} = {section[key]}; a whole number from 1 on")
    seconds = stop.get("seconds", 0)
    if "seconds" in stop and not 0 < seconds <= 366 * 86_400:
        raise UsageError(f"[stop] seconds = {seconds}; above 0")
    delta = stop.get("min_delta", 0.0)
    if not (math.isfinite(delta) and delta >= 0):
        raise UsageError(f"[stop] min_delta = {delta}; from 0 on")
    if "min_delta" in stop and "patience" not in stop:
        raise UsageError(f"[stop] min_delta = {delta} says what counts as better for patience, and there is none")
    metric = _metric(evaluate.get("metric", ""), stop.get("metric", ""))
    return Rules(
        command, int(evaluate.get("every", 0)), metric, _mode(stop, metric), int(stop.get("clocks", 0)), int(seconds * SECOND),
        int(stop.get("patience", 0)), float(delta), keep_best,
    )  # fmt: skip


def _metric(first: str, second: str) -> str:
    if first and second and first != second:
        raise UsageError(f"[evaluate] says metric = {first!r} and [stop] says {second!r}: one number is read of each evaluation; keep one")
    metric = first or second
    if "(" in metric:
        check_expression(metric, "metric")
    return metric


def check_expression(text: str, what: str) -> None:
    """It is one, with one group.  Raises `UsageError`."""
    try:
        groups = re.compile(text).groups
    except re.error as error:
        raise UsageError(f"{what} {text!r} is no regular expression: {error}") from error
    if groups != 1:
        raise UsageError(f"{what} {text!r} has {groups} groups; the number is what stands in its only group, as in 'loss is (.*)'")


def _mode(stop: Mapping[str, Any], metric: str) -> str:
    mode: str = stop.get("mode", "")
    if mode not in ("", MAX, MIN):
        raise UsageError(f"[stop] mode = {mode!r}; max (more is better) or min")
    if not mode and _SMALL_IS_GOOD.search(metric):
        raise UsageError(f"metric {metric!r}: is less better? say mode = min (or max)")
    return mode or MAX


def reading_of(text: str, metric: str) -> float | None:
    """The number that an evaluation has printed, None if there is none.

    Without a metric the last number of all; a name: the number behind it in the last line that names it, or the last
    number of that line; a regular expression with a group: what the group holds in its last match.

    >>> reading_of("epoch 3 accuracy=0.97 loss: 0.1", "accuracy"), reading_of("97 of 100 right", "")
    (0.97, 100.0)
    >>> reading_of("loss is 1e-3.", "loss is ([0-9.e-]*[0-9])")
    0.001
    """
    if "(" in metric:
        found = [match.group(1) for match in re.finditer(metric, text, re.MULTILINE)]
        return _float(found[-1]) if found else None
    if not metric:
        numbers = _NUMBERS.findall(text)
        return _float(numbers[-1]) if numbers else None
    name = re.compile(rf"(?<![\w.-]){re.escape(metric)}(?![\w.-])", re.IGNORECASE)
    lines = [line for line in text.splitlines() if name.search(line) and _NUMBERS.search(name.sub(" ", line))]
    if not lines:
        return None
    behind = re.findall(rf"{name.pattern}[\"']?\s*[=:]?\s*({_NUMBER})", lines[-1], re.IGNORECASE)
    return _float(behind[-1] if behind else _NUMBERS.findall(name.sub(" ", lines[-1]))[-1])


def _float(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None


class Judge:
    """Compares readings as they come: the best so far, and how many have not been better since."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self.best: Reading | None = None
        self.since = 0  # evaluations since one that was better by at least min_delta
        self._mark = math.nan  # what it said

    def hear(self, reading: Reading) -> bool:
        """Is it the best so far?  What is no number never is."""
        self.since += 1
        if math.isnan(reading.value):
            return False
        if self._better(reading.value, self._mark, self._rules.min_delta):
            self._mark, self.since = reading.value, 0
        if self.best is not None and not self._better(reading.value, self.best.value, 0.0):
            return False
        self.best = reading
        return True

    def _better(self, value: float, than: float, by: float) -> bool:
        return math.isnan(than) or (value > than + by if self._rules.mode == MAX else value < than - by)

    @property
    def fired(self) -> bool:
        return 0 < self._rules.patience <= self.since

    def why(self) -> str:
        """The reason of a stop, for people."""
        best = f"best {self.best.value:g} at clock {self.best.clock}" if self.best else "it never was a number"
        times = f"{self.since} evaluation{'s' * (self.since != 1)}"
        return f"{self._rules.metric_name} has not become better in {times} ({best})"


def rule_lines(rules: Rules, command: str) -> list[str]:
    """What is evaluated, and what ends the run, for `--check` and the first lines; `command` is shown as it is."""
    lines = []
    if rules.command:
        number = f"reads {rules.metric!r}" if rules.metric else "reads the last number"
        lines.append(f"evaluation every {rules.every:,} clocks, beside training: {command}; {number}")
    if rules.keep_best:
        lines.append(f"the best model ({rules.mode} {rules.metric_name}) is kept in best/")
    stops = []
    if rules.clocks:
        stops.append(f"after {rules.clocks:,} clocks")
    if rules.seconds_us:
        stops.append(f"after {rules.seconds_us / 1e6:g} s")
    if rules.patience:
        stops.append(f"when {rules.metric_name} has not become better ({rules.mode}) in {rules.patience} evaluations")
    if stops:
        lines.append(f"all workers end at one clock {', or '.join(stops)}")
    return lines
