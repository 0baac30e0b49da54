"""Evaluation and stop rules: what may be written, how a number is read, and when enough is enough."""

from __future__ import annotations

import math
import tomllib
from typing import Any

import pytest

from plugml.core.errors import UsageError
from plugml.launch.plan import RunPlan, make_plan
from plugml.launch.rules import Judge, Reading, Rules, reading_of

EVALUATE = "[evaluate]\ncommand = './test {model}'\nevery = 10\n"


def plan(text: str = "", **flags: Any) -> RunPlan:
    return make_plan(tomllib.loads(text), "job.toml", {"tables": ["w=4"], "argv": ["./t"], **flags}, "/dir")


@pytest.mark.parametrize(
    ("printed", "metric", "number"),
    [
        ("accuracy=0.97\n", "accuracy", 0.97),
        ("accuracy: 0.97", "accuracy", 0.97),
        ("Accuracy 97 %", "accuracy", 97.0),
        ("accuracy=0.1\nepoch 3: accuracy=0.97 loss=0.4 in 12 s\nbye", "accuracy", 0.97),
        ("val_accuracy=0.5 pre-accuracy=0.4", "accuracy", None),
        ("val_accuracy=0.5", "val_accuracy", 0.5),
        ('{"accuracy": 9.7e-1, "loss": 0.2}', "accuracy", 0.97),
        ("accuracy of the last 100 is 0.97", "accuracy", 0.97),
        ("accuracy: high", "accuracy", None),
        ("loss=nan", "loss", math.nan),
        ("loss = -inf", "loss", -math.inf),
        ("97 of 100 are right", "", 100.0),
        ("v1.2 model7 -3", "", -3.0),
        ("no number", "", None),
        ("", "accuracy", None),
        ("a 1 (x) 2\na 3 (x) 4", r"^a (\d+)", 3.0),
        ("a b", r"^a (\S+)", None),
    ],
)
def test_the_number_of_an_evaluation(printed: str, metric: str, number: float | None) -> None:
    got = reading_of(printed, metric)
    assert got == number or (number is not None and got is not None and math.isnan(number) and math.isnan(got))


def judged(values: list[float], **rules: Any) -> tuple[list[bool], int | None]:
    """Which were the best so far, and after how many the rule fired."""
    judge = Judge(Rules(("t",), 1, **rules))
    better: list[bool] = []
    for number, value in enumerate(values, 1):
        better.append(judge.hear(Reading(number, value)))
        if judge.fired:
            return better, number
    return better, None


def test_patience_counts_evaluations_without_a_better_one() -> None:
    assert judged([1, 2, 2, 1, 3, 3, 3, 3], patience=3) == ([True, True, False, False, True, False, False, False], 8)
    assert judged([3, 2, 2.5], patience=1, mode="min") == ([True, True, False], 3)
    assert judged([1, math.nan, math.nan], patience=2)[1] == 3, "what is no number is no improvement"
    assert judged([math.nan, 1], patience=3)[0] == [False, True]


def test_a_small_improvement_is_the_best_but_not_enough() -> None:
    assert judged([1.0, 1.05, 1.09, 2.0], patience=2, min_delta=0.1) == ([True, True, True], 3)
    assert judged([1.0, 1.05, 1.2, 1.25], patience=2, min_delta=0.1)[1] is None


@pytest.mark.parametrize(
    ("text", "flags", "says"),
    [
        ("[stop]\npatience = 3", {}, "needs [evaluate] command"),
        ("[result]\nkeep_best = true", {}, "needs [evaluate] command"),
        ("[evaluate]\nevery = 3", {}, "needs [evaluate] command"),
        ("[stop]\nmetric = 'x'", {}, "needs [evaluate] command"),
        ("[evaluate]\ncommand = './e'", {}, "needs every = N"),
        ("[evaluate]\ncommand = './e'\nevery = 0", {}, "every = 0; a whole number from 1 on"),
        ("[evaluate]\ncommand = ''\nevery = 1", {}, "the command is empty"),
        ("[evaluate]\ncomand = './e'", {}, "did you mean 'command'?"),
        ("[stop]\nclock = 3", {}, "did you mean 'clocks'?"),
        ("[stop]\nclocks = 0", {}, "clocks = 0"),
        ("[stop]\nseconds = 0", {}, "seconds = 0"),
        ("[stop]\nmode = 'max'", {}, "needs [evaluate] command"),
        ("[stop]\npasses = 2", {}, "passes over the pieces of [data], and this job has none"),
        (EVALUATE + "[stop]\nmode = 'most'\npatience = 1", {}, "max (more is better) or min"),
        (EVALUATE + "[stop]\nmin_delta = -1\npatience = 1", {}, "min_delta = -1"),
        (EVALUATE + "[stop]\nmin_delta = 1", {}, "better for patience, and there is none"),
        (EVALUATE + "metric = 'a'\n[stop]\nmetric = 'b'", {}, "keep one"),
        (EVALUATE + "metric = 'val_loss'", {}, "is less better? say mode = min (or max)"),
        (EVALUATE + "metric = '(a'", {}, "no regular expression"),
        (EVALUATE + "metric = '(a)(b)'", {}, "has 2 groups"),
        ("[result]\nexport = 'excel'", {}, "export"),
        ("[result]\nkeep_best = 1", {}, "keep_best = 1 is not true or false"),
    ],
)
def test_rules_that_cannot_be_are_refused(text: str, flags: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        plan(text, **flags)
    assert says in str(caught.value)


def test_rules_come_from_file_and_flags() -> None:
    made = plan(EVALUATE + "metric = 'loss'\n[stop]\nmode = 'min'\npatience = 5\nclocks = 100\nseconds = 1.5", evaluate_every=20)
    rules = made.rules
    assert (rules.command, rules.every, rules.metric, rules.mode, rules.patience, rules.clocks) == (("./test", "{model}"), 20, "loss", "min", 5, 100)
    assert rules.seconds_us == 1_500_000 and made.spec.stop_clock == 100 and made.spec.snapshot_every == 20
    assert made.evaluation("/m odel", 7) == ["./test", "/m odel"]
    made = plan(EVALUATE + "metric = 'a'\n[stop]\nmetric = 'a'", metric="accuracy", consistency="asp")
    assert made.rules.metric == "accuracy" and made.spec.snapshot_every == 0
    assert any("not those of one clock" in note for note in made.notes)
    assert plan("[result]\nexport = ['csv', 'raw']").formats == plan(export="csv, raw").formats == ("raw", "csv")
