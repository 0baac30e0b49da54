"""Evaluation beside training, stop rules, the last evaluation: as stories, without a process or a clock."""

from __future__ import annotations

from typing import Any

import pytest

from plugml.launch import effects as e
from plugml.launch.referee import LOUD_FAILURES
from tests.unit.test_launch_machine import Theatre, ends


class Court(Theatre):
    """Also plays the evaluations: each gives the next of `values` when the test says so, or at once."""

    def __init__(self, *values: float | str, **flags: Any) -> None:
        flags = {"evaluate": "./e {model}", "evaluate_every": 10, "metric": "accuracy", "workers": 2, **flags}
        super().__init__(**flags)
        self.values = list(values)
        self.models = 0
        self.evaluating: list[e.Evaluate] = []
        self.dropped: list[str] = []
        self.kept: list[dict[str, Any]] = []
        self.at_once = True
        self.snapshots = True
        self.stop_clock = 0
        self.ended_evaluations = 0
        self.staleness: list[dict[str, Any]] = []

    def answer(self, ask: e.Ask) -> None:
        slowest = min(self.clocks.get(worker, 0) for worker in range(self.machine.plan.workers))
        fields: dict[str, Any] = {}
        if ask.op == "standing":
            told = {str(worker): clocks for worker, clocks in self.clocks.items()}
            fields = {"clocks": told, "closed": slowest, "slowest": slowest, "waiting": [], "staleness": self.staleness}
        elif ask.op == "export":
            if "at" in ask.fields and not self.snapshots:
                self.errors["export"] = ("RANGE", "no such snapshot")
            fields = {"clock": ask.fields.get("at", slowest)}
        elif ask.op == "stop":
            self.stop_clock = max(self.clocks.values(), default=0) + 1
            fields = {"stop_clock": self.stop_clock}
        else:
            return super().answer(ask)
        code, text = self.errors.pop(ask.op, ("", ""))
        self.asked.remove(ask)
        self.tell(e.Answer(ask.number, code, text, fields))

    def do_PrepareModel(self, effect: e.PrepareModel) -> None:
        self.models += 1
        self.tell(e.ModelReady(f"/m{self.models}"))

    def do_Evaluate(self, effect: e.Evaluate) -> None:
        self.evaluating.append(effect)
        if self.at_once:
            self.judge()

    def judge(self) -> None:
        """The evaluation that runs ends."""
        effect, value = self.evaluating.pop(0), self.values.pop(0)
        number = value if isinstance(value, float) else None
        self.tell(e.Evaluated(effect.directory, effect.clock, number, str(value), ("Traceback",)))

    def do_EndEvaluation(self, effect: e.EndEvaluation) -> None:
        self.ended_evaluations += 1
        effect_, _ = self.evaluating.pop(0), self.values.pop(0)
        self.tell(e.Evaluated(effect_.directory, effect_.clock, None, "killed", ()))

    def do_KeepBest(self, effect: e.KeepBest) -> None:
        self.kept.append(effect.document)
        self.tell(e.BestKept("/dir/best", ""))

    def do_DropModel(self, effect: e.DropModel) -> None:
        self.dropped.append(effect.directory)

    def go(self, clocks: int) -> None:
        self.train(clocks)
        self.wait(1.5)

    def finish_all(self) -> None:
        for worker in list(self.running):
            self.exit(worker, 0)


def clocks_of(t: Court) -> list[tuple[int, float | None]]:
    return [(reading["clock"], reading["value"]) for reading in t.summary["evaluations"]]


def test_the_model_is_evaluated_beside_training_and_at_the_end() -> None:
    t = Court(0.1, 0.3, 0.2, 0.25)
    t.start()
    for clocks in (9, 1, 10, 10, 5):
        t.go(clocks)
    t.finish_all()
    summary = ends(t, 0, "finished")
    assert clocks_of(t) == [(10, 0.1), (20, 0.3), (30, 0.2), (35, 0.25)]
    assert summary["best"] == {"clock": 20, "value": 0.3, "dir": ""} and summary["stopped_by"] == ""
    exports = [name for name in t.log if name.startswith(("export", "PrepareResult", "Evaluate"))]
    assert exports[-4:] == ["export()", "Evaluate()", "PrepareResult()", "export()"], "the last evaluation comes before the result"
    assert t.dropped == ["/m1", "/m2", "/m3", "/m4"] and not t.kept


def test_final_values_that_were_evaluated_are_not_evaluated_again() -> None:
    t = Court(0.1, 0.3)
    t.start()
    t.go(10)
    t.go(10)
    t.finish_all()
    ends(t, 0, "finished")
    assert clocks_of(t) == [(10, 0.1), (20, 0.3)] and t.dropped == ["/m1", "/m2", "/m3"]


def test_a_slow_evaluation_takes_the_newest_clock_and_leaves_out_those_between() -> None:
    t = Court(0.1, 0.2, 0.3)
    t.at_once = False
    t.start()
    t.go(10)
    t.go(33)
    assert len(t.evaluating) == 1
    t.judge()
    t.wait(1.5)
    assert [effect.clock for effect in t.evaluating] == [40]
    t.judge()
    t.finish_all()
    t.judge()
    assert [clock for clock, _ in clocks_of(t)] == [10, 40, 43]


def test_a_snapshot_that_is_gone_is_replaced_by_the_newest_values() -> None:
    t = Court(0.1, 0.2)
    t.snapshots = False
    t.start()
    t.go(13)
    t.finish_all()
    ends(t, 0, "finished")
    assert clocks_of(t) == [(13, 0.1)]


def test_without_closed_clocks_the_values_are_taken_as_they_are() -> None:
    t = Court(0.1, 0.2, consistency="asp")
    t.start()
    t.train(12, 0)
    t.wait(1.5)
    assert not t.values[2:] and len(t.values) == 2, "the slowest has not passed the clock"
    t.train(12, 1)
    t.wait(1.5)
    assert all("at" not in ask.fields for ask in t.asked)
    t.finish_all()
    ends(t, 0, "finished")
    assert clocks_of(t) == [(10, 0.1), (12, 0.2)]
    assert any("not those of one clock" in note for note in t.machine.plan.notes)


def test_patience_ends_all_workers_at_one_clock() -> None:
    t = Court(0.5, 0.4, 0.3, 0.2, patience=2, keep_best=True)
    t.start()
    for _ in range(3):
        t.go(10)
    assert t.stop_clock == 31 and t.log.count("stop()") == 1
    assert "accuracy has not become better in 2 evaluations (best 0.5 at clock 10): all workers end at one clock" in t.text
    assert "all workers end at clock 31" in t.text
    t.go(1)
    t.finish_all()
    summary = ends(t, 0, "finished")
    assert summary["reason"] == summary["stopped_by"] == "accuracy has not become better in 2 evaluations (best 0.5 at clock 10)"
    assert summary["best"] == {"clock": 10, "value": 0.5, "dir": "/dir/best"} and len(t.kept) == 1
    assert t.kept[0]["clock"] == 10 and t.log.count("stop()") == 1, "a rule is decided once"


def test_a_stop_that_the_agent_refuses_is_said_and_tried_again() -> None:
    t = Court(0.5, 0.4, 0.3, patience=1)
    t.errors["stop"] = ("AGAIN", "later")
    t.start()
    t.go(10)
    t.go(10)
    assert "the stop rule could not be carried out: AGAIN: later" in t.text
    t.go(10)
    assert t.log.count("stop()") == 2 and t.stop_clock == 31


def test_less_may_be_better() -> None:
    t = Court(3.0, 2.0, 2.5, metric="loss", mode="min")
    t.start()
    for _ in range(3):
        t.go(10)
    t.finish_all()
    assert ends(t, 0, "finished")["best"]["value"] == 2.0


def test_a_failing_evaluation_is_a_warning_and_ends_nothing() -> None:
    t = Court(*["exit code 1"] * 5, 0.5, 0.6)
    t.start()
    for _ in range(LOUD_FAILURES + 2):
        t.go(10)
    assert t.text.count("failed: exit code 1") == LOUD_FAILURES + 2 and "    Traceback" in t.text
    assert t.text.count("3 evaluations in a row have failed; training goes on") == 1
    t.go(10)
    t.finish_all()
    summary = ends(t, 0, "finished")
    assert summary["evaluations_failed"] == 5 and clocks_of(t) == [(60, 0.5)]


def test_seconds_end_the_run_at_one_clock() -> None:
    t = Theatre(seconds=20.0).start()
    t.train(7)
    t.errors["stop"] = ("", "")
    t.wait(19)
    assert "stop()" not in t.log
    t.wait(2)
    assert "20 s are over: all workers end at one clock" in t.text and t.log.count("stop()") == 1
    for worker in list(t.running):
        t.exit(worker, 0)
    assert ends(t, 0, "finished")["stopped_by"] == "20 s are over"


def test_seconds_are_a_bound_for_programs_that_never_ask() -> None:
    t = Theatre(workers=2, seconds=20.0, grace=5).start()
    t.train(7)
    t.wait(21)
    t.exit(0, 0)
    t.wait(3)
    t.dies_of_sigterm = False
    assert t.signals == []
    t.wait(3)
    assert "20 s are over, and 5 s later worker 1 had not ended: SIGTERM" in t.text
    t.wait(6)
    assert t.signals == [(1, 15), (1, 9)]
    summary = ends(t, 0, "finished")
    assert summary["stopped_by"] == "20 s are over" and summary["result"]


def test_a_run_that_is_stopped_after_its_rule_has_not_ended_by_it() -> None:
    t = Theatre(workers=1, seconds=20.0).start()
    t.train(7)
    t.wait(21)
    t.tell(e.Signalled(2))
    assert ends(t, 130, "stopped")["stopped_by"] == ""


def test_clocks_are_known_from_the_start() -> None:
    t = Theatre(clocks=10).start()
    assert t.machine.plan.spec.stop_clock == 10
    t.train(10)
    t.wait(1.5)
    assert t.machine.referee.picture(t.machine.watch.picture()).goal == 10
    for worker in list(t.running):
        t.exit(worker, 0)
    assert ends(t, 0, "finished")["stopped_by"] == "10 clocks are done"


def test_ctrl_c_ends_the_evaluation_and_keeps_the_best() -> None:
    t = Court(0.5, 0.6, 0.7, keep_best=True)
    t.start()
    t.go(10)
    t.at_once = False
    t.go(10)
    assert t.evaluating
    t.tell(e.Signalled(2))
    summary = ends(t, 130, "stopped")
    assert t.ended_evaluations == 1 and summary["best"]["value"] == 0.5 and summary["result"] and t.dropped[-1] == "/m2"


@pytest.mark.parametrize(("signum", "code"), [(2, 0), (15, 143)])
def test_a_signal_during_the_last_evaluation_gives_it_up_and_saves(signum: int, code: int) -> None:
    t = Court(0.5, 0.6)
    t.start()
    t.go(10)
    t.at_once = False
    t.go(5)
    t.finish_all()
    assert t.finish is None and len(t.evaluating) == 1
    t.tell(e.Signalled(signum))
    assert ends(t, code, "finished")["result"] and t.ended_evaluations == 1


def test_a_job_that_is_lost_during_the_last_evaluation() -> None:
    t = Court(0.5)
    t.at_once = False
    t.start()
    t.go(5)
    t.finish_all()
    t.tell(e.AgentNews({"event": "job", "job": "t", "run": 7, "state": "lost", "reason": "server s0 is gone"}))
    assert ends(t, 1, "lost")["result"] == "" and t.ended_evaluations == 1


def test_a_run_that_fails_evaluates_nothing_more() -> None:
    t = Court(0.5)
    t.at_once = False
    t.start()
    t.go(10)
    t.exit(0, 3)
    ends(t, 3, "failed")
    assert t.ended_evaluations == 1


def test_sigterm_after_the_last_worker_is_never_a_success() -> None:
    t = Theatre(workers=1)
    t.silent.add("export")
    t.start()
    t.train(1)
    t.exit(0, 0)
    t.tell(e.Signalled(15))
    t.silent.clear()
    t.answer(t.asked[0])
    summary = ends(t, 143, "finished")
    assert summary["result"] and "SIGTERM" in summary["reason"] and "exit code 143" in t.text


def test_twins_are_warned_of_once_a_pair() -> None:
    t = Theatre().start()
    for one, other in ((1, 2), (2, 1), (1, 2), (0, 2)):
        t.tell(e.AgentNews({"event": "twins", "job": "t", "run": 7, "worker": one, "other": other, "clocks": 10}))
    t.train(1)
    for worker in range(3):
        t.exit(worker, 0)
    warnings = ends(t, 0, "finished")["warnings"]
    assert warnings == [
        "workers 1 and 2 push the same numbers, clock after clock: same shard and seed?",
        "workers 0 and 2 push the same numbers, clock after clock: same shard and seed?",
    ]


def test_staleness_is_told_at_the_end() -> None:
    t = Court(0.1, consistency="asp", evaluate_every=1000)
    t.staleness = [{"worker": 1, "table": "w", "versions": 6, "versions_max": 4, "pushes": 3, "clocks": 1, "clocks_max": 1, "count": 3}]
    t.start()
    t.go(3)
    t.finish_all()
    assert ends(t, 0, "finished")["staleness"] == t.staleness


def test_shrink_says_which_files_nobody_reads_any_more() -> None:
    t = Theatre(argv=["./t", "{data}"], data=["x*"], on_worker_loss="shrink", max_restarts=0)
    plan = t.machine.plan
    from dataclasses import replace

    t.machine.crew.plan = plan.with_data(replace(plan.data, found=("x0", "x1", "x2", "x3")))
    t.start()
    t.train(2)
    t.exit(0, -9)
    assert "going on without it (shrink): no longer seen: x0, x3" in t.text


@pytest.mark.parametrize(("model", "closed"), [("bsp", 4), ("ssp:1", None)])
def test_a_summary_names_no_metric_and_no_clock_that_there_is_not(model: str, closed: int | None) -> None:
    t = Theatre(workers=1, consistency=model).start()
    t.train(4)
    t.machine.watch.closed = 4 if closed else 0
    t.exit(0, 0)
    summary = ends(t, 0, "finished")
    assert summary["metric"] == "" and summary["closed"] == closed
