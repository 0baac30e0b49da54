"""A run whose workers have joined another launcher's job, and the run that others have joined: whose end is whose."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from plugml.core.limits import Limits
from plugml.launch import effects as e
from plugml.launch.machine import RunMachine
from plugml.launch.plan import Joins, make_plan

from .test_launch_machine import Theatre, ends


class Guest(Theatre):
    """Two workers, 3 and 4, in a job that has three of its own."""

    def __init__(self, **flags: Any) -> None:
        super().__init__(**flags)
        plan = make_plan({}, "job.toml", {"tables": ["w=4"], "argv": ["./t", "{worker}/{workers}"], "workers": 3, "name": "t", **flags}, "/dir")
        plan = replace(plan, commands=plan.commands[:2], joins=Joins(7, 2, 3, "x"))
        self.machine = RunMachine(plan, "here", "/dir/logs", "/rescue", Limits(), self.now_us)


def test_joined_workers_end_and_nothing_of_the_job_does() -> None:
    t = Guest().start()
    assert set(t.running) == {3, 4}
    assert t.machine.plan.arguments(4) == ["./t", "4/5"]
    t.log.clear()
    t.train(10)
    t.exit(3, 0)
    t.exit(4, 0)
    assert t.log == ["exited(3,finished)", "DropChannel(3)", "exited(4,finished)", "DropChannel(4)", "Finish()"]
    ends(t, 0, "finished")


def test_it_registers_the_run_that_it_joins_and_no_other() -> None:
    t = Guest()
    t.silent.add("register")
    t.start()
    assert (t.asked[0].fields["job"], t.asked[0].fields["joined"]) == (7, 1)


def test_ctrl_c_takes_its_workers_out_and_neither_saves_nor_ends_the_job() -> None:
    t = Guest().start()
    t.train(2)
    t.log.clear()
    t.tell(e.Signalled(2))
    assert {"exited(3,lost)", "exited(4,lost)"} <= set(t.log) and not {"export()", "end()", "PrepareResult()"} & set(t.log)
    assert "leaving the job, which goes on" in t.text
    ends(t, 130, "stopped")


def test_sigterm_makes_no_checkpoint_of_a_job_of_somebody_else() -> None:
    t = Guest()
    t.machine.crew.plan = replace(t.machine.plan, spec=replace(t.machine.plan.spec, checkpoint_dir="/c"))
    t.start()
    t.tell(e.Signalled(15))
    assert "checkpoint()" not in t.log
    ends(t, 143, "stopped")


def test_a_joined_program_that_fails_leaves_and_ends_its_own_run() -> None:
    t = Guest().start()
    t.train(2)
    t.exit(3, 5)
    assert {"exited(3,lost)", "exited(4,lost)"} <= set(t.log) and "end()" not in t.log
    ends(t, 5, "failed")


def test_one_that_is_killed_too_often_leaves_whatever_the_jobs_policy_says() -> None:
    t = Guest(on_worker_loss="wait", max_restarts=1).start()
    t.train(2)
    for _ in range(2):
        t.exit(3, -9)
    assert "exited(3,lost)" in t.log
    t.exit(4, 0)
    ends(t, 0, "finished")


def test_the_jobs_end_is_the_end_of_those_that_joined() -> None:
    t = Guest().start()
    t.train(2)
    t.tell(e.AgentNews({"event": "job", "job": "t", "run": 7, "state": "finished", "reason": "all workers have finished"}))
    ends(t, 0, "finished")


class Host(Theatre):
    """`members`: of the clock, when all workers of this run have left it."""

    members = 0

    def answer(self, ask: e.Ask) -> None:
        if ask.op not in ("exited", "standing"):
            return super().answer(ask)
        self.asked.remove(ask)
        worker = ask.fields.get("worker", -1)
        fields = {"clocks": self.clocks.get(worker, 0), "pushes": self.pushes.pop(worker, 0), "last_error": ""} if ask.op == "exited" else {"clocks": {}}
        self.tell(e.Answer(ask.number, "", "", {**fields, "members": self.members + len(self.running)}))
        return None


def test_a_run_waits_for_those_that_joined_before_it_saves() -> None:
    t = Host(workers=1)
    t.members = 2
    t.start()
    t.train(3)
    t.exit(0, 0)
    t.wait(3)
    assert "2 workers that have joined the job still train" in t.text and t.finish is None and "export()" not in t.log
    t.members = 0
    t.wait(3)
    assert "export()" in t.log
    ends(t, 0, "finished")


def test_ctrl_c_ends_that_wait() -> None:
    t = Host(workers=1)
    t.members = 1
    t.start()
    t.train(3)
    t.exit(0, 0)
    t.tell(e.Signalled(2))
    assert "export()" in t.log and "end()" in t.log
    ends(t, 130, "stopped")
