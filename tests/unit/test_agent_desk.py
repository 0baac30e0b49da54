"""The ops of agent.sock: what launchers and tools ask, each repeatable, each refused with a sentence when it is wrong."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugml.agent import effects as e
from plugml.agent.asked import FIELDS
from plugml.core.errors import Code
from plugml.core.jobmap import STOPPED
from plugml.shm_protocol.info import parse_info
from plugml.wire import messages as m

from .test_agent_harness import BOOT, World, job, lost

ONES = np.ones(40, "<f4")


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({}, "unknown op None"),
        ({"op": ["hello"], "id": 1}, "unknown op"),
        ({"op": "helo", "id": 1}, "known are hello, register"),
        ({"op": "stat"}, "id None is neither"),
        ({"op": "hello", "id": 1}, "the field version is missing"),
        ({"op": "hello", "id": 1, "version": True}, "version True is no number"),
        ({"op": "hello", "id": 1, "version": 1, "x": 2}, "unknown field 'x'"),
        ({"op": "attach", "id": 1, "job": "digits", "worker": -1}, "worker -1 is no number"),
        ({"op": "attach", "id": 1, "job": "digits", "worker": 1 << 40}, "is no number"),
        ({"op": "attach", "id": 1, "job": 7, "worker": 1}, "job 7 is no text"),
        ({"op": "attach", "id": 1, "job": "nobody", "worker": 1}, "register it first"),
        ({"op": "attach", "id": 1, "job": "\ud800", "worker": 1}, "is no text"),
        ({"op": "register", "id": 1, "spec": []}, "is no document"),
        ({"op": "register", "id": 1, "spec": {"name": "x"}}, "a job needs 'workers'"),
        ({"op": "register", "id": 1, "spec": {"name": "../x", "workers": 1, "tables": []}}, "job name"),
        ({"op": "exited", "id": 1, "job": "digits", "worker": 0, "gen": 1, "how": "well"}, "none of finished"),
        ({"op": "end", "id": 1, "job": "digits", "state": "over", "reason": ""}, "none of finished"),
        ({"op": "export", "id": 1, "job": "digits", "dir": "here"}, "no absolute path"),
        ({"op": "opened", "id": 1, "job": "digits", "worker": 0, "gen": 1, "dir": "/elsewhere/other.0.1"}, "is not the channel"),
    ],
)
def test_bad_input_is_answered_with_a_sentence_and_changes_nothing(document: dict[str, Any], words: str) -> None:
    world = World()
    world.register(job())
    before = world.agent.digest()
    world.told.clear()
    world.feed("", e.Asked(1, document))
    (answer,) = world.told
    assert (answer["ok"], answer["code"], answer["id"]) == (False, "FORMAT", document.get("id"))
    assert words in answer["text"]
    assert world.agent.digest() == before


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(sorted(FIELDS)), st.dictionaries(st.text(max_size=5), VALUES, max_size=2), st.data()), max_size=5))
def test_any_objects_are_answered_once_each(items: list[Any]) -> None:
    world = World()
    world.register(job())
    world.told.clear()
    for number, (op, more, data) in enumerate(items):
        fields = {key: data.draw(st.one_of(VALUES, st.sampled_from(["digits", "/tmp", "finished", 0, 1]))) for key in FIELDS[op]}
        world.feed("", e.Asked(1, {**fields, **more, "op": op, "id": number}))
        world.run(0.5)
    answers = [document["id"] for document in world.told if "id" in document]
    assert len(answers) == len(set(answers)) <= len(items)
    world.agent.check()


def test_hello_says_who_answers() -> None:
    world = World()
    answer = world.ask("hello", version=1)
    assert (answer["cluster"], answer["node"], answer["boot_id"]) == ("test", world.name, BOOT)
    assert world.ask("hello", version=2)["code"] == "VERSION"


def test_register_waits_for_a_master_and_may_be_repeated() -> None:
    world = World()
    world.master_away = True
    world.feed("", e.Asked(1, {"op": "register", "id": 1, "spec": job().to_document()}))
    world.run(5.0)
    assert world.told == []
    world.master_away = False
    world.run(3.0)
    (answer,) = world.told
    assert answer["job"] == 1 and answer["spec"]["tables"][0]["block_bytes"] == 64
    assert world.register(job())["job"] == 1


def test_a_restarted_agent_is_told_of_a_run_by_its_number_and_believes_the_master() -> None:
    world = World()
    world.register(job())
    world.kill_agent()
    assert world.ask("attach", job="digits", worker=0)["code"] == "FORMAT"
    wrong = world.ask("register", spec=job("other").to_document(), job=1)
    assert wrong["code"] == "FORMAT" and "job 1 is 'digits', not 'other'" in wrong["text"]
    assert world.ask("register", spec=job().to_document(), job=1)["job"] == 1
    assert world.ask("attach", job="digits", worker=0)["ok"]
    assert world.ask("attach", job="other", worker=0)["code"] == "FORMAT"
    world.master.change(1, state="stopped", reason="by hand")
    world.kill_agent()
    assert world.ask("register", spec=job().to_document(), job=1)["code"] == "STOP", "a run that has ended does not begin anew"


def test_attach_tells_everything_that_a_launcher_needs() -> None:
    world = World()
    world.register(job(workers=2))
    answer = world.ask("attach", job="digits", worker=1)
    info = parse_info(answer["info"])
    assert (answer["gen"], answer["clock"], answer["sizes"]) == (1, 0, {"grad": 160, "idx": 0, "param": 160})
    assert (info.job, info.number, info.worker, info.gen, info.elements, info.boot_id) == ("digits", 1, 1, 1, 40, BOOT)
    assert world.ask("attach", job="digits", worker=1)["gen"] == 2, "each attach is a new generation"
    assert world.ask("attach", job="digits", worker=4096)["code"] == "RANGE"


def test_a_restarted_worker_goes_on_at_its_clock() -> None:
    world = World()
    world.register(job())
    program = world.plug("digits", 0)
    for _ in range(3):
        program.do("step", ONES)
    answer = world.ask("exited", job="digits", worker=0, gen=1, how="restarting")
    assert (answer["clocks"], answer["pushes"]) == (3, 3)
    heir = world.plug("digits", 0)
    assert (heir.gen, heir.clock) == (2, 3)
    assert heir.do("step", ONES).ok
    np.testing.assert_array_equal(heir.param(), 4 * ONES)


def test_exited_may_be_asked_again_also_of_the_next_agent() -> None:
    for die_at in range(25):
        world = World()
        world.register(job(workers=2))
        program, other = world.plug("digits", 0), world.plug("digits", 1)
        program.begin("step", ONES)
        assert other.do("step", ONES).ok and program.answer().ok
        world.performed, world.die_at = 0, die_at
        first = world.ask("exited", job="digits", worker=0, gen=1, how="finished")
        assert (first["clocks"], first["pushes"]) == (1, 1), die_at
        world.die_at = -1
        assert world.ask("exited", job="digits", worker=0, gen=1, how="finished")["clocks"] == 1
        assert program.name not in world.files
        assert other.do("step", ONES).ok, "nobody waits for a worker that has finished"


def test_a_worker_that_is_given_up_after_its_channel_was_closed_leaves_the_clock() -> None:
    world = World()
    world.register(job(workers=2))
    program, other = world.plug("digits", 0), world.plug("digits", 1)
    other.begin("step", ONES)
    assert world.ask("exited", job="digits", worker=0, gen=1, how="restarting")["ok"]
    world.run(1.0)
    assert other.replies() == []
    assert world.ask("exited", job="digits", worker=0, gen=1, how="lost")["ok"]
    assert other.answer().ok
    assert program.name not in world.files


def test_a_leave_is_said_until_it_is_heard() -> None:
    world = World()
    world.register(job(workers=2))
    world.plug("digits", 0)
    other = world.plug("digits", 1)
    world.interfere = lambda sender, to, message: () if isinstance(message, m.Leave) else (message,)
    world.feed("", e.Asked(1, {"op": "exited", "id": 5, "job": "digits", "worker": 0, "gen": 1, "how": "finished"}))
    other.begin("step", ONES)
    world.run(3.0)
    assert not any(document.get("id") == 5 for document in world.told) and other.replies() == []
    world.interfere = lambda sender, to, message: (message,)
    assert other.answer(10.0).ok
    assert any(document.get("id") == 5 for document in world.told)


def test_a_launcher_that_dies_takes_its_channels_along() -> None:
    world = World()
    world.register(job(workers=2))
    program, other = world.plug("digits", 0), world.plug("digits", 1)
    program.begin("step", ONES)
    world.run(0.5)
    program.files.kept = False
    world.feed("", e.KeeperGone(program.name))
    world.run(0.5)
    assert program.name not in world.files and program.replies() == []
    world.kill_agent()
    world.run(0.5)
    assert list(world.agent.house.channels) == [other.name]


def test_standing_says_who_is_awaited_and_how_far_everybody_is() -> None:
    world = World()
    world.register(job(workers=3))
    programs = [world.plug("digits", worker) for worker in range(3)]
    for program in programs:
        program.begin("step", ONES)
    assert all(program.answer().ok for program in programs)
    programs[1].begin("step", ONES)
    world.run(2.0)
    world.ask("standing", job="digits")
    answer = world.ask("standing", job="digits")
    assert (answer["closed"], answer["slowest"], answer["members"], answer["state"]) == (1, 1, 3, "running")
    assert answer["waiting"] == [0, 2] and answer["clocks"]["0"] == 1


def test_end_is_stored_by_the_master() -> None:
    world = World()
    world.register(job())
    assert world.ask("end", job="digits", state="finished", reason="all done")["ok"]
    (ended,) = world.master.ended
    assert (ended.job, ended.state, ended.reason) == (1, "finished", "all done")


def test_export_of_a_running_bsp_job_is_one_clock() -> None:
    """Closes arrive at the ranges at different times while the export reads: what is written is one state all the same."""
    world = World(servers=3)
    world.register(job(elements=200))
    program = world.plug("digits", 0)
    ones = np.ones(200, "<f4")
    for number in range(1, 30):
        program.begin("step", ones)
        if number % 3 == 0:
            world.feed("", e.Asked(1, {"op": "export", "id": number, "job": "digits", "dir": "/out"}))
            for _ in range(number):
                if world.queue:
                    world.deliver_one()
        assert program.answer().ok
        world.run(0.3)
        if number % 3 == 0:
            assert any(document.get("id") == number and document["ok"] for document in world.told)
            assert len(set(np.frombuffer(world.exported["w.bin"], "<f4"))) == 1


def test_an_export_that_cannot_be_written_leaves_nothing() -> None:
    world = World()
    world.register(job())
    program = world.plug("digits", 0)
    program.do("step", ONES)
    world._do_MakeExport = lambda effect: world.events.append(("", e.ExportFailed(effect.export, Code.NOSPC, "/x is full")))  # type: ignore[method-assign]
    world._do_WriteExport = lambda effect: None  # type: ignore[method-assign]
    answer = world.ask("export", job="digits", dir="/x")
    assert (answer["code"], answer["text"]) == ("NOSPC", "/x is full")
    assert world.exported == {} and world.agent.house.by_request == {}


def test_asks_about_a_lost_job_are_answered_with_its_reason() -> None:
    world = World()
    world.register(job())
    program = world.plug("digits", 0)
    lost(world, 1, "server s0 is gone")
    world.run(0.5)
    for op, fields in (("attach", {"worker": 0}), ("export", {"dir": "/x"})):
        answer = world.ask(op, job="digits", **fields)
        assert answer["code"] == "NOSERVER" and "server s0 is gone" in answer["text"]
    assert world.ask("exited", job="digits", worker=0, gen=1, how="finished")["ok"]
    assert program.name not in world.files


def test_a_connection_that_ends_takes_its_questions_along() -> None:
    world = World()
    world.master_away = True
    world.feed("", e.Asked(1, {"op": "register", "id": 1, "spec": job().to_document()}))
    world.feed("", e.Hung(1))
    world.run(1.0)
    assert not any(isinstance(question.message, m.JobAsk) for question in world.agent.house.link.questions.values())


def test_too_many_unanswered_requests_are_sent_away() -> None:
    world = World()
    world.master_away = True
    for number in range(4100):
        world.feed("", e.Asked(1, {"op": "register", "id": number, "spec": job().to_document()}))
    assert [document["code"] for document in world.told] == ["AGAIN"] * 4


def test_a_launcher_that_is_still_going_away_does_not_speak_for_the_next_run_of_its_name() -> None:
    world = World(servers=1)
    world.register(job(workers=2))
    old = [world.plug("digits", worker) for worker in range(2)]
    world.master.change(1, state=STOPPED, reason="stopped by hand")
    for node in (world.name, *world.servers):
        world.queue.append(("m0", node, world.master.map_told(1)))
    world.settle()
    world.master.change(1, spec=dataclasses.replace(world.master.jobs[1].spec, name="before"))  # its name is free
    assert world.register(job(workers=2))["job"] == 2
    world.sent.clear()
    for program in old:
        fields = {"job": "digits", "run": 1, "worker": old.index(program), "gen": program.gen, "how": "lost"}
        for _ in range(2):  # the answer was lost: it is asked again
            assert world.ask("exited", **fields)["ok"]
        assert program.name not in world.files
    assert not [message for _, message in world.sent if isinstance(message, m.Leave)]
    assert world.ask("end", job="digits", run=1, state="failed", reason="late")["ok"]
    assert [end.job for end in world.master.ended] == [1]
    assert "not known" in world.ask("exited", job="other", run=1, worker=0, gen=1, how="lost")["text"]
