"""The agent dies before each of its effects in turn: each request answered once, each push applied once, `param` left alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from plugml.core.errors import Code
from plugml.core.job import JobSpec
from plugml.core.table import TableSpec
from plugml.shm_protocol.page import OFFSET, read_moving
from plugml.shm_protocol.twin import MemoryFiles

from .test_agent_harness import Program, World, job

GRAD = np.arange(40, dtype="<f4")


class Watched(MemoryFiles):
    """Files that notice a store into `param` after done_seq and a reply before it."""

    def write(self, name: str, offset: int, data: Any) -> None:
        moving = read_moving(bytes(self.contents["ctl"]))
        if name in ("param", "param.txt"):
            assert moving.cur_seq == moving.done_seq + 1, f"param was written although {moving.done_seq} is done"
        if name == "ctl" and offset == OFFSET["done_seq"]:
            assert int.from_bytes(bytes(data), "little") == moving.done_seq + 1
        super().write(name, offset, data)

    def send(self, record: bytes) -> bool:
        words = record.split()
        done = read_moving(bytes(self.contents["ctl"])).done_seq
        assert words[0] == b"err" or int(words[1]) <= done, f"{record!r} before done_seq"
        return super().send(record)


def watch(program: Program) -> None:
    """From now on its stores are looked at."""
    program.files.__class__ = Watched


def story(spec: JobSpec, verbs: list[str], die_at: int) -> World:
    """One worker's requests, the agent killed before its effect number `die_at` (counted from the first request)."""
    world = World(servers=2)
    world.register(spec)
    program = world.plug(spec.name, 0)
    watch(program)
    world.performed = 0
    world.die_at = die_at
    pushed = 0
    for number, verb in enumerate(verbs, 1):
        reply = program.do(verb, GRAD * number, "n=40" if number % 2 else "")
        assert reply.ok, program.err()
        pushed += number if verb in ("push", "pushpull", "step") else 0
        if verb in ("step", "pull"):
            np.testing.assert_array_equal(program.param(), GRAD * pushed)
    program.seq += 1
    program.say(f"pull {program.seq} {program.clock}")
    assert program.answer().ok
    np.testing.assert_array_equal(program.param(), GRAD * pushed)
    return world


BSP = ["step", "push", "pushpull", "step", "clock", "pull"]
STORIES = {
    "bsp": (job(workers=1), BSP),
    "asp": (job(workers=1, consistency="asp"), ["step", "push", "pull", "step", "clock", "pull"]),
}


@pytest.mark.parametrize("name", STORIES)
def test_a_death_before_any_effect_changes_nothing_but_time(name: str) -> None:
    spec, verbs = STORIES[name]
    spec = JobSpec(spec.name, 1, spec.tables, consistency=spec.consistency)
    whole = story(spec, verbs if name == "asp" else BSP_ALONE, die_at=-1)
    effects = whole.performed
    assert effects > 40
    for die_at in range(effects):
        world = story(spec, verbs if name == "asp" else BSP_ALONE, die_at)
        assert world.lives == 2, f"effect {die_at} of {effects} never came"


#: Under BSP a pull shows closed clocks only, so that every push must be followed by its clock before it is looked for.
BSP_ALONE = ["step", "push", "clock", "pull", "push", "step", "clock", "pull"]


def test_every_reply_comes_and_repeats_say_the_same() -> None:
    """After each death the whole conversation is kept: a reply that is given twice is the same record twice."""
    whole = story(job(), BSP_ALONE, -1)
    for die_at in range(whole.performed):
        world = World(servers=1)
        world.register(job())
        program = world.plug("digits", 0)
        watch(program)
        world.performed, world.die_at = 0, die_at
        records: dict[int, bytes] = {}
        for number in range(1, 4):
            program.begin("step", GRAD)
            assert world.run(until=lambda program=program, number=number: any(r.split()[1] == b"%d" % number for r in program.files.replies))
            for record in program.files.replies:
                assert records.setdefault(int(record.split()[1]), record) == record
            program.files.replies.clear()
            program.clock += 1
        assert sorted(records) == [1, 2, 3]


def test_weights_of_a_clock_survive_the_agent() -> None:
    """push w=3, death, step w=1: the mean divides by 4."""
    spec = JobSpec("digits", 1, (TableSpec("w", (40,), optimizer="add"),), combine="mean")
    world = World()
    world.register(spec)
    program = world.plug("digits", 0)
    assert program.do("push", np.full(40, 4.0, "<f4"), "w=3").ok
    world.kill_agent()
    assert program.do("step", np.full(40, 8.0, "<f4"), "w=1").ok
    np.testing.assert_allclose(program.param(), np.full(40, (3 * 4 + 8) / 4))


def test_pushes_are_counted_exactly_over_deaths() -> None:
    for die_at in range(0, 60, 3):
        world = World()
        world.register(job())
        program = world.plug("digits", 0)
        world.performed, world.die_at = 0, die_at
        for _ in range(3):
            program.do("step", GRAD)
        answer = world.ask("exited", job="digits", worker=0, gen=1, how="finished")
        assert (answer["pushes"], answer["clocks"]) == (3, 3), die_at


def test_init_is_taken_once_whatever_dies() -> None:
    spec = job(workers=1, table={"init": "program"})
    for die_at in range(40):
        world = World()
        world.register(spec)
        program = world.plug("digits", 0)
        watch(program)
        world.performed, world.die_at = 0, die_at
        assert program.do("init", GRAD).ok
        np.testing.assert_array_equal(program.param(), GRAD)
        assert program.do("step", GRAD).ok
        np.testing.assert_array_equal(program.param(), 2 * GRAD)


def test_an_answered_request_is_never_carried_out_again_by_the_next_agent() -> None:
    world = World()
    world.register(job())
    program = world.plug("digits", 0)
    assert program.do("step", GRAD).ok
    before = bytes(program.files.contents["param"])
    for _ in range(3):
        world.kill_agent()
        world.run(1.0)
        assert [reply.seq for reply in program.replies()] == [1]
    assert bytes(program.files.contents["param"]) == before
    assert program.do("step", GRAD).ok
    np.testing.assert_array_equal(program.param(), 2 * GRAD)


def test_a_refusal_is_repeated_with_its_code() -> None:
    world = World()
    world.register(job())
    program = world.plug("digits", 0)
    reply = program.do("step", GRAD, "n=41")
    assert reply.code is Code.SIZE
    world.kill_agent()
    world.run(1.0)
    (again,) = program.replies()
    assert (again.seq, again.code) == (1, Code.SIZE)


def test_an_agent_that_starts_before_the_master_waits_with_the_pending_request() -> None:
    world = World()
    world.register(job())
    program = world.plug("digits", 0)
    program.do("step", GRAD)
    world.master_away = True
    world.kill_agent()
    program.begin("step", GRAD)
    world.run(15.0)
    assert program.replies() == [] or all(reply.seq == 1 for reply in program.replies())
    assert any(log.event == "waiting" and "map of job digits" in log.fields["text"] for log in world.logs)
    world.master_away = False
    assert program.answer().ok
    np.testing.assert_array_equal(program.param(), 2 * GRAD)
