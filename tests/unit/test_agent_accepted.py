"""Requests that are answered before they are carried out: async=1, and t= when its time is over."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugml.core.errors import Code
from plugml.core.job import JobSpec
from plugml.core.table import TableSpec
from plugml.shm_protocol.request import Reply
from plugml.wire import messages as m

from .agent_rows import ONES, E, F, Rows, W, begin, do, read, spec
from .test_agent_crash import watch
from .test_agent_harness import Program, World, job
from .test_agent_network import Weather

INSIST_MAX = 1_000


def plugged(servers: int = 2, **fields: Any) -> tuple[World, Program]:
    world = World(servers=servers)
    world.register(job(**fields))
    return world, world.plug("digits", 0)


def hold(world: World, *kinds: type[Any]) -> None:
    """Messages of these kinds do not arrive."""
    world.interfere = lambda sender, to, message: () if isinstance(message, kinds) else (message,)


def let_go(world: World) -> None:
    world.interfere = lambda sender, to, message: (message,)


def insist(program: Program, reply: Reply) -> Reply:
    """Ring for the same line as long as there is no room."""
    for _ in range(INSIST_MAX):
        if reply.code is not Code.AGAIN:
            return reply
        program.world.run(0.01)
        program.ring()
        reply = program.answer(300.0)
    raise AssertionError(f"no room after {INSIST_MAX} rings: {program.err()}")


def slots(program: Program) -> list[bytes]:
    return [bytes(program.files.contents[f"pend.{slot}"][:8]) for slot in (0, 1)]


FREE = bytes(8)

# -- async=1


def test_two_pushes_are_answered_at_once_and_a_third_waits_for_room() -> None:
    world, program = plugged()
    hold(world, m.PushAck)
    for number in (1, 2):
        program.begin("push", number * ONES, "async=1")
        world.settle()
        (reply,) = program.replies()
        assert (reply.ok, reply.seq, reply.clock) == (True, number, 0)
        program.files.contents["grad"][:] = b"\xff" * 160  # the program goes on with its files
    program.begin("push", 4 * ONES, "async=1")
    world.run(1.0)
    assert not program.replies() and FREE not in slots(program)
    let_go(world)
    assert program.answer().ok
    assert program.do("step", 8 * ONES).ok
    np.testing.assert_array_equal(program.param(), 15 * ONES)
    assert slots(program) == [FREE, FREE]


@pytest.mark.parametrize("verb", ["push", "pull", "pushpull", "step", "clock"])
def test_every_other_request_waits_for_what_was_accepted(verb: str) -> None:
    world, program = plugged(consistency="asp")
    hold(world, m.PushAck)
    program.do("push", ONES, "async=1")
    program.begin(verb, ONES)
    world.run(1.0)
    assert not program.replies()
    seqs = [message.components[0].seq for _to, message in world.sent if isinstance(message, m.Push)]
    assert set(seqs) == {1}, "nothing of the second request went out"
    let_go(world)
    assert program.answer().ok
    assert program.do("pull").ok
    np.testing.assert_array_equal(program.param(), ONES * (1 if verb in ("pull", "clock") else 2))


def test_ping_next_and_hello_do_not_wait() -> None:
    world, program = plugged()
    hold(world, m.PushAck)
    program.do("push", ONES, "async=1")
    assert program.do("ping").ok
    assert program.do("next").code is Code.FORMAT
    program.say("hello 0 0")
    world.settle()
    assert [(reply.seq, reply.done) for reply in program.replies()] == [(0, 3)]


def test_pushes_are_carried_out_in_order() -> None:
    world = World(servers=2)
    world.register(job(consistency="asp", table={"optimizer": "assign"}))
    program = world.plug("digits", 0)
    for number in range(1, 8):
        assert program.do("push", number * ONES, "async=1").ok
    assert program.do("pull").ok
    np.testing.assert_array_equal(program.param(), 7 * ONES)


def test_what_cannot_be_read_is_refused_at_once() -> None:
    world, program = plugged()
    assert program.do("push", np.nan * ONES, "async=1").code is Code.NONFINITE
    program.files.contents["grad"][:] = bytes(8)
    assert program.do("push", None, "async=1").code is Code.SIZE
    assert slots(program) == [FREE, FREE]
    program.files.contents["grad"][:] = bytes(160)
    assert program.do("step", ONES, "n=40").ok
    np.testing.assert_array_equal(program.param(), ONES)


def test_a_push_that_fails_later_is_told_by_the_next_request_and_nothing_of_that_one_is_applied() -> None:  # SPEC 4.16
    world, program = plugged(consistency="asp")
    huge = np.full(40, 3e38, "<f4")
    assert program.do("push", huge).ok
    hold(world, m.Push)
    assert program.do("push", huge, "async=1").ok
    assert program.do("push", -huge / 3, "async=1").ok
    let_go(world)
    reply = program.do("step", ONES)
    assert reply.code in (Code.NONFINITE, Code.RANGE) and reply.clock == 0
    assert "push seq=2, accepted before, failed: " in program.err()
    assert slots(program) == [FREE, FREE]
    assert program.do("step", -huge / 3).ok
    np.testing.assert_allclose(program.param(), huge / 3, rtol=1e-6)
    assert world.ask("exited", job="digits", worker=0, gen=1, how="finished")["pushes"] == 3


def test_weights_of_what_failed_do_not_count() -> None:
    world = World(servers=1)
    world.register(JobSpec("digits", 1, (TableSpec("w", (40,), optimizer="add"),), combine="mean"))
    program = world.plug("digits", 0)
    assert program.do("push", 4 * ONES, "w=3").ok
    refused: list[int] = []

    def refuse(sender: str, to: str, message: Any) -> tuple[Any, ...]:
        if isinstance(message, m.Push) and message.components[0].seq == 2:
            refused.append(message.range)
            answer = m.Refuse(1, message.range, message.epoch, message.token, 0, 0, 1, 2, int(Code.NOSPC), "no memory")
            world.queue.append((to, sender, answer))
            return ()
        return (message,)

    world.interfere = refuse
    assert program.do("push", 100 * ONES, "w=4 async=1").ok
    assert program.do("clock").code is Code.NOSPC and refused
    assert program.do("step", 8 * ONES, "w=1").ok
    np.testing.assert_array_equal(program.param(), 5 * ONES)


# -- t=


def test_a_pull_that_is_late_has_done_nothing() -> None:
    world, program = plugged(workers=2)
    other = world.plug("digits", 1)
    assert program.do("clock").ok
    reply = program.do("pull", None, "t=300")
    assert (reply.code, reply.clock) == (Code.TIMEOUT, 1)
    assert other.do("step", ONES).ok
    assert program.do("pull", None, "t=300").ok
    np.testing.assert_array_equal(program.param(), ONES)


def test_a_step_that_is_late_is_carried_out_and_its_clock_is_the_one_after_it() -> None:
    world, program = plugged(workers=2)
    other = world.plug("digits", 1)
    reply = program.do("step", ONES, "t=300")
    assert (reply.code, reply.clock) == (Code.TIMEOUT, 1)
    assert slots(program) == [FREE, FREE], "only its values were waited for"
    assert other.do("step", 2 * ONES).ok
    assert program.do("pull").ok
    np.testing.assert_array_equal(program.param(), 3 * ONES)


@pytest.mark.parametrize("verb", ["push", "pushpull", "step", "clock"])
@pytest.mark.parametrize("lost", [m.PushAck, m.Push, m.Tick, m.Standing])
def test_what_is_late_goes_on_whatever_it_waits_for(verb: str, lost: type[Any]) -> None:
    world, program = plugged(consistency="asp")
    pushes, ticks = verb != "clock", verb in ("step", "clock")
    hold(world, lost)
    program.begin(verb, ONES, "t=300")
    reply = program.answer()
    late = (pushes and lost in (m.PushAck, m.Push)) or (ticks and lost in (m.Tick, m.Standing))
    assert (reply.code, reply.clock) == (Code.TIMEOUT if late else Code.OK, int(ticks)), program.err()
    program.files.contents["grad"][:] = b"\xff" * 160
    let_go(world)
    assert program.do("pull").ok
    np.testing.assert_array_equal(program.param(), ONES * int(pushes))
    assert slots(program) == [FREE, FREE]
    assert program.do("step", ONES).clock == int(ticks) + 1
    np.testing.assert_array_equal(program.param(), ONES * (1 + int(pushes)))


def test_an_answer_in_time_is_an_answer() -> None:
    world, program = plugged()
    for verb in ("step", "push", "pushpull", "pull", "clock"):
        assert program.do(verb, ONES, "t=10000").ok
    assert slots(program) == [FREE, FREE]


def test_no_room_to_accept_is_again_and_the_same_line_may_be_rung_for() -> None:
    world, program = plugged(consistency="asp")
    hold(world, m.PushAck)
    for _ in range(2):
        assert program.do("push", ONES, "async=1").ok
    reply = program.do("step", ONES, "t=200")
    assert (reply.code, reply.seq) == (Code.AGAIN, 3) and program.err().startswith("AGAIN seq=3: ")
    program.ring()
    assert program.answer().code is Code.AGAIN, "the same line, the same answer: nothing has changed"
    let_go(world)
    program.ring()
    assert insist(program, program.answer()).ok
    np.testing.assert_array_equal(program.param(), 3 * ONES)
    assert program.do("step", ONES).ok


def test_a_late_push_behind_another_one_is_accepted_while_there_is_room() -> None:
    world, program = plugged(consistency="asp")
    hold(world, m.PushAck)
    assert program.do("push", ONES, "async=1").ok
    assert program.do("push", 2 * ONES, "t=100").code is Code.TIMEOUT
    program.files.contents["grad"][:] = b"\xff" * 160
    let_go(world)
    assert program.do("pull").ok
    np.testing.assert_array_equal(program.param(), 3 * ONES)


def test_a_clock_that_is_not_over_keeps_its_weights() -> None:
    """The step's tick is on its way; pushes of the next clock wait, so that each clock has its own sum."""
    world = World(servers=1)
    world.register(JobSpec("digits", 1, (TableSpec("w", (40,), optimizer="add"),), combine="mean"))
    program = world.plug("digits", 0)
    assert program.do("push", 4 * ONES, "w=3").ok
    hold(world, m.PushAck, m.Standing)
    assert program.do("step", 8 * ONES, "t=200").code is Code.TIMEOUT
    assert program.clock == 1
    program.begin("push", 6 * ONES, "w=2 async=1")
    world.run(1.0)
    assert not program.replies()
    let_go(world)
    assert program.answer().ok
    assert program.do("step", 9 * ONES).ok
    np.testing.assert_array_equal(program.param(), (5 + 7) * ONES)


def test_a_step_that_fails_after_it_was_accepted_gives_the_clock_back() -> None:
    world, program = plugged(consistency="asp")
    huge = np.full(40, 3e38, "<f4")
    assert program.do("push", huge).ok
    hold(world, m.Push)
    assert program.do("step", huge, "t=200").clock == 1
    let_go(world)
    reply = program.do("pull")
    assert (reply.code in (Code.NONFINITE, Code.RANGE), reply.clock) == (True, 0)
    assert "step seq=2, accepted before, failed: " in program.err()
    assert program.do("step", -huge).clock == 1


# -- deaths


def story(verbs: list[tuple[str, str]], consistency: str, die_at: int) -> World:
    """Requests of one worker, some late because the acks are; the agent dies before its effect number `die_at`."""
    world = World(servers=2)
    world.register(spec(W, E, F, consistency=consistency))
    program = world.plug("rows", 0)
    watch(program)
    world.performed, world.die_at = 0, die_at
    pushed = 0
    for number, (verb, more) in enumerate(verbs, 1):
        if "t=" in more:
            hold(world, m.PushAck)
        rows = [Rows(E, [1, 2, 1], np.full((3, 3), number)), Rows(F, ["a"], np.full((1, 2), number))] if verb != "clock" else []
        reply = do(program, verb, *rows, dense=number * ONES if verb != "clock" else None, more=more)
        let_go(world)
        reply = insist(program, reply)  # the end of the clock before may still be under way
        assert reply.ok or reply.code is Code.TIMEOUT, program.err()
        program.files.contents["grad"][:] = b"\xff" * len(program.files.contents["grad"])
        pushed += number if verb != "clock" else 0
    wanted = Rows(E, want=[1, 2, 3]), Rows(F, want=["a"])
    assert do(program, "pull", *wanted, dense=ONES).ok, program.err()
    e, f = read(program, *wanted, dense=W)
    np.testing.assert_array_equal(program.param()[:40], pushed * ONES)
    np.testing.assert_array_equal(e, np.array([[2], [1], [0]]) * pushed * np.ones(3))
    np.testing.assert_array_equal(f, np.full((1, 2), pushed))
    assert slots(program) == [FREE, FREE]
    answer = world.ask("exited", job="rows", worker=0, gen=1, how="finished")
    assert answer["pushes"] == sum(verb != "clock" for verb, _more in verbs)
    return world


STORIES = {
    "async": [("push", "async=1"), ("push", "async=1"), ("push", "async=1"), ("step", "")],
    "late": [("push", "t=100"), ("step", "t=100"), ("pushpull", "t=100"), ("clock", "")],
    "both": [("push", "async=1"), ("step", "t=100"), ("push", "async=1"), ("clock", "t=5000")],
}


@pytest.mark.parametrize("consistency", ["bsp", "asp"])
@pytest.mark.parametrize("name", STORIES)
def test_a_death_before_any_effect_changes_nothing_but_time(name: str, consistency: str) -> None:
    effects = story(STORIES[name], consistency, -1).performed
    assert effects > 50
    for die_at in range(effects):
        story(STORIES[name], consistency, die_at)


def test_a_failure_is_told_once_whatever_dies() -> None:
    huge = np.full(40, 3e38, "<f4")
    told = 0
    for die_at in range(-1, 60):
        world, program = plugged(consistency="asp")
        assert program.do("push", huge, "w=2").ok
        world.performed, world.die_at = 0, die_at
        assert program.do("push", huge, "w=5 async=1").ok
        codes = []
        for _ in range(3):
            reply = program.do("push", ONES)
            codes.append(reply.code)
            told += "accepted before" in program.err()
        assert codes == [Code.NONFINITE, Code.OK, Code.OK] or codes == [Code.RANGE, Code.OK, Code.OK], (die_at, codes)
        assert slots(program) == [FREE, FREE]
        (channel,) = world.agent.house.channels.values()
        assert (channel.sums, channel.pushes) == ({"": 4.0}, 3), die_at
    assert told


@pytest.mark.parametrize("consistency", ["bsp", "asp"])
def test_a_program_that_dies_takes_nothing_back_that_was_accepted(consistency: str) -> None:
    for die_at in range(-1, 50, 3):
        world, program = plugged(consistency=consistency)
        world.performed, world.die_at = 0, die_at
        hold(world, m.PushAck)
        assert program.do("push", ONES, "async=1").ok
        assert program.do("step", 2 * ONES, "t=50").code is Code.TIMEOUT
        let_go(world)
        answer = world.ask("exited", job="digits", worker=0, gen=1, how="restarting")
        assert (answer["pushes"], answer["clocks"]) == (2, 1), (die_at, answer)
        world.die_at = -1
        world.register(job(consistency=consistency))
        heir = world.plug("digits", 0)
        assert heir.clock == 1 and heir.do("pull").ok
        np.testing.assert_array_equal(heir.param(), 3 * ONES)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1 << 30), consistency=st.sampled_from(["bsp", "asp"]))
def test_bad_weather_and_restarts_cost_time_only(seed: int, consistency: str) -> None:
    world = World(servers=3)
    world.register(spec(W, E, workers=2, consistency=consistency))
    programs = [world.plug("rows", worker) for worker in range(2)]
    Weather(world, seed, lose=0.15, double=0.15, shuffle=0.3)
    random = Random(seed)
    dense, total = 0, np.zeros((20, 3))
    for _ in range(6):
        # Both do the same, so that neither waits for a clock that the other one has not come to.
        verb, more = random.choice([("push", "async=1"), ("push", f"t={random.randrange(400)}"), ("step", f"t={random.randrange(400)}"), ("step", "")])
        for program in programs:
            ids = [random.randrange(12) for _ in range(random.randrange(1, 4))]
            np.add.at(total, ids, 1.0)
            dense += 1
            begin(program, verb, Rows(E, ids, np.ones((len(ids), 3))), dense=ONES, more=more)
        if random.random() < 0.4:
            world.run(random.random() / 4)
            world.kill_agent()
        for program in programs:
            reply = insist(program, program.answer(300.0))
            assert reply.ok or reply.code is Code.TIMEOUT, program.err()
    world.interfere = lambda sender, to, message: (message,)
    for program in programs:
        assert program.do("clock").ok, program.err()
    for program in programs:
        wanted = Rows(E, want=list(range(20)))
        assert do(program, "pull", wanted, dense=ONES).ok, program.err()
        np.testing.assert_array_equal(program.param()[:40], dense * ONES)
        np.testing.assert_array_equal(read(program, wanted, dense=W)[0], total)
