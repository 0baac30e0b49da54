"""Signals and checkpoints in the life of a run; what [checkpoint] may say; which checkpoint a run goes on from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plugml.core.errors import UsageError, WorldError
from plugml.launch import effects as e
from plugml.launch import resume
from plugml.launch.plan import RunPlan, make_plan
from plugml.runtime import checkpoints

from .test_launch_machine import Theatre, ends

USR1, TERM = 10, 15


class Stage(Theatre):
    """A run whose job has a place for checkpoints; each is answered when the test says so."""

    def __init__(self, **flags: Any) -> None:
        super().__init__(**flags)
        self.machine.crew.plan = self.machine.plan.with_checkpoints(1)
        self.silent = {"checkpoint"}

    def answered(self, code: str = "", text: str = "", **fields: Any) -> None:
        ask = next(ask for ask in self.asked if ask.op == "checkpoint")
        self.asked.remove(ask)
        self.tell(e.Answer(ask.number, code, text, fields))

    @property
    def asks(self) -> int:
        return sum(ask.op == "checkpoint" for ask in self.asked)


def test_sigterm_waits_for_a_checkpoint_then_ends_with_75() -> None:
    t = Stage().start()
    t.train(4)
    t.tell(e.Signalled(TERM))
    assert t.asks == 1 and not t.signals, "programs go on to the next clock"
    t.answered(number=3, clock=5)
    summary = ends(t, 75, "stopped")
    assert "--resume /dir/plugml-runs/t/checkpoints/000003" in summary["reason"] and summary["result"]
    assert "run again with --resume auto" in t.text


def test_sigterm_without_one_in_time_ends_with_143() -> None:
    t = Stage(grace=7).start()
    t.train(4)
    t.tell(e.Signalled(TERM))
    t.wait(6)
    assert not t.signals
    t.wait(2)
    assert "no checkpoint within 7 s" in t.text
    assert "without a checkpoint" in ends(t, 143, "stopped")["reason"]


def test_sigterm_with_one_that_fails_ends_with_143() -> None:
    t = Stage().start()
    t.train(4)
    t.tell(e.Signalled(TERM))
    t.answered("INTERNAL", "checkpoint 1 of job 't' has failed")
    ends(t, 143, "stopped")
    assert "has failed" in t.text


def test_a_second_signal_does_not_wait() -> None:
    t = Stage().start()
    t.tell(e.Signalled(TERM))
    t.tell(e.Signalled(2))
    assert t.finish is not None and t.finish.exit_code == 130


def test_a_run_that_finishes_while_it_waits_never_ends_with_0() -> None:
    t = Stage().start()
    t.train(4)
    t.tell(e.Signalled(TERM))
    for worker in range(3):
        t.exit(worker, 0)
    ends(t, 143, "finished")


def test_sigusr1_makes_one_and_goes_on() -> None:
    t = Stage().start()
    t.train(4)
    t.tell(e.Signalled(USR1))
    t.tell(e.Signalled(USR1))
    assert t.asks == 1 and "on its way already" in t.text
    t.answered(number=1, clock=5)
    assert "checkpoint of clock 5 in /dir/plugml-runs/t/checkpoints/000001" in t.text and t.finish is None
    t.tell(e.Signalled(USR1))
    t.answered("INTERNAL", "no room")
    assert "no checkpoint: no room" in t.text
    t.tell(e.Signalled(USR1))
    t.tell(e.Signalled(TERM))
    assert t.asks == 1, "the one that is on its way is the one that is waited for"
    t.answered(number=2, clock=9)
    ends(t, 75, "stopped")


def test_before_anything_trains_there_is_nothing_to_keep() -> None:
    t = Stage()
    t.tell(e.Signalled(USR1))
    assert "nothing now" in t.text
    t.tell(e.Signalled(TERM))
    assert t.finish is not None and t.finish.exit_code == 143


def test_a_lost_job_is_remembered_as_lost_unless_somebody_ended_it() -> None:
    news = {"event": "job", "job": "t", "run": 7, "state": "lost", "reason": "server s1 held the only copy of 3 ranges"}
    t = Stage().start()
    t.tell(e.AgentNews(news))
    assert t.machine.lost
    t = Stage().start()
    t.tell(e.Signalled(2))
    t.tell(e.AgentNews(news))
    assert not t.machine.lost


def planned(**flags: Any) -> RunPlan:
    return make_plan({}, "job.toml", {"tables": ["w=4"], "argv": ["./t"], "workers": 2, **flags}, "/dir")


def test_what_the_section_may_say() -> None:
    plan = planned(checkpoint_every=5, checkpoint_keep=3, checkpoint_dir="saves", resume="auto").with_checkpoints(8)
    spec = plan.spec
    assert (spec.checkpoint_dir, spec.checkpoint_every, spec.checkpoint_keep, spec.checkpoint_first) == ("/dir/saves", 5, 3, 8)
    assert planned().checkpoints == "/dir/plugml-runs/t/checkpoints" and planned(checkpoint_dir="/x").checkpoints == "/x"
    for flags, text in (({"checkpoint_every": -1}, "every = -1"), ({"checkpoint_keep": 0}, "keep = 0"), ({"resume": ""}, "resume")):
        with pytest.raises(UsageError, match=text):
            planned(**flags)
    with pytest.raises(UsageError, match="every"):
        make_plan({"checkpoint": {"evry": 3}}, "job.toml", {"tables": ["w=4"], "argv": ["./t"]}, "/dir")


def saved(root: Path, number: int, clock: int, plan: RunPlan, **more: Any) -> Path:
    table = plan.spec.tables[0].with_block_bytes(4096)
    spec = replace(plan.spec, tables=(table,))
    document = {"clock": clock, "cut": "closed", "job": spec.to_document(), "ring_ranges": 256, "workers": [[0, 1, 0, -1], [1, 1, 0, -1]], **more}
    (root / checkpoints.folder(number)).mkdir(parents=True)
    checkpoints.write_manifest(root, number, document, {}, [], 0)
    return root / checkpoints.folder(number)


def test_the_newest_is_taken_with_its_blocks_and_who_had_ended_stays_away(tmp_path: Path) -> None:
    root = tmp_path / "saves"
    saved(root, 1, 4, planned())
    place = saved(root, 2, 8, planned(), workers=[[0, 1, 0, -1], [1, 1, 0, 5]])
    plan, told = resume.resolve(planned(resume="auto", checkpoint_dir=str(root)))
    assert plan.spec.resume == str(place) and plan.spec.tables[0].block_bytes == 4096 and plan.name_given
    assert plan.saves.absent == ((1, 5),) and "clock 8" in told[-1]
    for where in (root, place):
        plan, _ = resume.resolve(planned(resume=str(where)))
        assert plan.spec.resume == str(place) and plan.checkpoints == str(root), "the next ones go where it lies"
    t = Theatre(workers=2)
    t.machine = type(t.machine)(plan, "here", "/logs", "/rescue", t.machine.limits, t.now_us)
    t.start()
    assert list(t.running) == [0], "a worker that had ended is not started again"
    t.exit(0, 0)
    assert [worker["clocks"] for worker in ends(t, 0, "finished")["workers"]][1] == 5


def test_none_is_none(tmp_path: Path) -> None:
    plan, told = resume.resolve(planned(resume="auto", checkpoint_dir=str(tmp_path)))
    assert not plan.spec.resume and "begins at clock 0" in told[-1]
    assert resume.resolve(planned()) == (planned(), [])
    with pytest.raises(WorldError, match="never completed"):
        resume.resolve(planned(resume=str(tmp_path)))
    (tmp_path / "000004").mkdir()
    with pytest.raises(WorldError, match="is whole"):
        resume.resolve(planned(resume=str(tmp_path)))


def test_what_is_lost_goes_back_three_times_and_no_more(tmp_path: Path) -> None:
    plan = planned(checkpoint_dir=str(tmp_path), on_lost="restore")
    counts: dict[int, int] = {}
    assert resume.after_loss(plan, plan, counts) is None
    saved(tmp_path, 1, 4, plan)
    for _ in range(resume.RESTORES_MAX):
        again = resume.after_loss(plan, plan.with_checkpoints(2), counts)
        assert again is not None and again[0].spec.resume == str(tmp_path / "000001") and "on_lost = restore" in again[1][0]
    assert resume.after_loss(plan, plan, counts) is None
    saved(tmp_path, 2, 8, plan)
    assert resume.after_loss(plan, plan, counts) is not None


def test_another_number_of_workers_goes_on_where_that_means_something(tmp_path: Path) -> None:
    root = tmp_path / "saves"
    saved(root, 1, 8, planned())
    plan, told = resume.resolve(planned(resume=str(root), workers=3))
    assert plan.saves.absent == () and "3 workers instead of 2: programs find another `workers`" in told[0]
    _, told = resume.resolve(planned(resume=str(root), workers=1, lr_scale="linear"))
    assert "lr_scale = linear makes another lr of it" in told[0]


def test_a_part_that_was_done_cannot_be_dealt_out_anew_unless_it_is_pieces(tmp_path: Path) -> None:
    workers = [[0, 1, 0, -1], [1, 1, 0, 5]]
    saved(tmp_path / "own", 1, 8, planned(), workers=workers)
    with pytest.raises(UsageError, match="is of 2 workers, here 3: worker 1 had ended before it.*go on with -n 2"):
        resume.resolve(planned(resume=str(tmp_path / "own"), workers=3))
    pieces = replace(planned(), spec=replace(planned().spec, pieces=9))
    saved(tmp_path / "pieces", 1, 8, pieces, workers=workers)
    plan, told = resume.resolve(replace(pieces, saves=planned(resume=str(tmp_path / "pieces")).saves, spec=replace(pieces.spec, workers=3)))
    assert plan.saves.absent == () and "pieces that are left go to whoever asks" in told[0]


def test_who_had_joined_has_no_part_in_the_run_that_goes_on(tmp_path: Path) -> None:
    root = tmp_path / "saves"
    saved(root, 1, 8, planned(), workers=[[0, 1, 0, -1], [1, 1, 0, 5], [2, 1, 3, 6], [3, 1, 4, -1]])
    plan, told = resume.resolve(planned(resume=str(root)))
    assert plan.saves.absent == ((1, 5),) and "1 worker that had joined the job has no part in it any more" in told[0]
