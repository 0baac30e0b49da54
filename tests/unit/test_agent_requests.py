"""What a program may ask of its agent, and what it is told when it asks for something wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugml.core.errors import Code
from plugml.core.job import JobSpec
from plugml.core.table import TableSpec
from plugml.shm_protocol.page import BROKEN, read_moving
from plugml.shm_protocol.request import VERBS, parse_reply
from plugml.wire import messages as m

from .test_agent_harness import Program, World, job, lost

ONES = np.ones(40, "<f4")


def plugged(**fields: Any) -> tuple[World, Program]:
    world = World()
    spec = job(**fields)
    world.register(spec)
    return world, world.plug(spec.name, 0)


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("stepp 1 0", Code.FORMAT, "unknown verb 'stepp'"),
        ("step 1", Code.FORMAT, "2 words"),
        ("step 1 0 n", Code.FORMAT, "no key=value"),
        ("step 1 0 q=1", Code.FORMAT, "unknown key"),
        ("step 1 0 w=1e17", Code.RANGE, "from 0 to 2^53"),
        ("step 1 0 n=41", Code.SIZE, "40 elements"),
        ("step 1 7", Code.SEQ, "clock 7 is not this worker's next one: 0 is"),
        ("next 1 0", Code.FORMAT, "no list of pieces"),
        ("step 1 0 async=1", Code.FORMAT, "only push can be answered before"),
        ("next 1 0 t=500", Code.FORMAT, "waits for nobody"),
        ("step 1 0 table=w k=1 want=1", Code.FORMAT, "it is dense"),
    ],
)
def test_a_wrong_request_is_refused_once_and_the_next_one_is_served(line: str, code: Code, words: str) -> None:
    world, program = plugged()
    program.seq = 1
    program.say(line, ONES)
    reply = program.answer()
    assert (reply.ok, reply.code, reply.clock) == (False, code, 0)
    assert words in program.err() and program.err().startswith(f"{code.name} seq=1: ")
    program.ring()
    world.run(0.5)
    assert program.replies() == [], "the same line again does nothing"
    assert program.do("step", ONES).ok
    np.testing.assert_array_equal(program.param(), ONES)


def test_a_line_without_a_seq_is_refused_as_the_one_that_is_waited_for() -> None:
    world, program = plugged()
    program.do("step", ONES)
    program.seq = 2
    program.say("nonsense")
    assert program.answer().code is Code.FORMAT
    assert program.do("step", ONES).ok


@pytest.mark.parametrize("seq", [0, 1, 3, 99])
def test_another_seq_is_refused_and_changes_nothing(seq: int) -> None:
    world, program = plugged()
    program.do("step", ONES)
    program.say(f"ping {seq} 1")
    world.run(0.5)
    (reply,) = program.replies()
    assert reply.seq == seq and reply.code in (Code.SEQ, Code.FORMAT)
    assert read_moving(bytes(program.files.contents["ctl"])).done_seq == 1
    assert program.do("step", ONES).ok


def test_hello_is_always_answered_with_what_is_done() -> None:
    world, program = plugged()
    for done in range(3):
        for _ in range(2):
            program.say("hello 0 0")
            world.run(0.2)
            (reply,) = program.replies()
            assert (reply.ok, reply.seq, reply.done, reply.clock) == (True, 0, done, done)
        assert program.do("step", ONES).ok


def test_a_hello_during_a_request_is_answered_after_it() -> None:
    world, program = plugged(workers=2)
    other = world.plug("digits", 1)
    program.begin("step", ONES)
    world.run(1.0)
    program.say("hello 0 0")
    world.run(1.0)
    assert program.replies() == []
    assert other.do("step", ONES).ok
    world.run(1.0)
    assert [(reply.seq, reply.done) for reply in program.replies()] == [(1, None), (0, 1)]


def test_no_newline_is_no_request_yet() -> None:
    world, program = plugged()
    for text in (b"", b"st", b"step 1 0"):
        program.files.contents["cmd"][:] = text
        program.ring()
        world.run(0.2)
        assert program.replies() == []
    program.seq = 1
    program.say("ping 1 0")
    assert program.answer().ok


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", [0, 17, 39])
def test_nothing_of_a_push_with_one_bad_number_is_sent(bad: float, where: int) -> None:
    world, program = plugged()
    grad = ONES.copy()
    grad[where] = bad
    world.sent.clear()
    reply = program.do("step", grad)
    assert reply.code is Code.NONFINITE and f"element {where} of table w" in program.err()
    assert not any(type(message).__name__ in ("Push", "Tick") for _to, message in world.sent)
    assert program.do("step", ONES).ok
    np.testing.assert_array_equal(program.param(), ONES)


@pytest.mark.parametrize("nbytes", [0, 156, 164, 168, 320])
def test_a_push_of_the_wrong_size_is_refused(nbytes: int) -> None:
    world, program = plugged()
    program.files.contents["grad"][:] = bytes(nbytes)
    program.begin("step")
    assert program.answer().code is Code.SIZE
    program.files.contents["grad"][:] = bytes(160)
    assert program.do("step", ONES).ok


def test_pushes_of_one_clock_add_up_and_pull_sees_only_closed_clocks() -> None:
    world, program = plugged()
    assert program.do("push", ONES).ok
    assert program.do("pushpull", 2 * ONES).clock == 0
    np.testing.assert_array_equal(program.param(), 0 * ONES)
    assert program.do("clock").clock == 1
    assert program.do("pull").ok
    np.testing.assert_array_equal(program.param(), 3 * ONES)


def test_text_goes_in_and_comes_back_with_the_same_bits() -> None:
    world, program = plugged()
    values = np.linspace(-1, 1, 40, dtype="<f4") ** 3
    program.files.contents["grad.txt"][:] = "".join(f"{x:.9g}\n" for x in values).encode()
    assert program.do("step", None, "fmt=text").ok
    text = bytes(program.files.contents["param.txt"]).decode()
    np.testing.assert_array_equal(np.array(text.split(), "<f4"), values)
    program.files.contents["grad.txt"][:] = b"1\n2\n"
    assert program.do("step", None, "fmt=text").code is Code.SIZE


def test_bye_leaves_and_nothing_follows() -> None:
    world, program = plugged(workers=2)
    other = world.plug("digits", 1)
    program.begin("step", ONES)
    other.begin("step", ONES)
    assert program.answer().ok and other.answer().ok
    assert program.do("bye").ok
    assert program.do("step", ONES).code is Code.GONE
    for _ in range(3):
        assert other.do("step", ONES).ok, "nobody waits for a worker that has said bye"
    np.testing.assert_array_equal(other.param(), 5 * ONES)


def test_init_gives_the_first_values_to_everybody() -> None:
    world = World()
    world.register(job(workers=3, table={"init": "program"}))
    first, second, third = (world.plug("digits", worker) for worker in range(3))
    third.begin("pull")
    world.run(0.5)
    assert third.replies() == []
    assert first.do("init", 7 * ONES).ok
    assert second.do("init", 9 * ONES).ok
    assert third.answer().ok
    for program in (first, second, third):
        np.testing.assert_array_equal(program.param(), 7 * ONES)


def test_the_claim_of_a_worker_that_dies_falls_to_the_next() -> None:
    world = World()
    world.register(job(workers=2, table={"init": "program"}))
    first, second = (world.plug("digits", worker) for worker in range(2))
    world.interfere = lambda sender, to, message: () if type(message).__name__ == "Init" else (message,)
    first.begin("init", 7 * ONES)
    world.run(0.1)
    second.begin("init", 9 * ONES)
    world.run(0.5)
    world.interfere = lambda sender, to, message: () if type(message).__name__ == "Init" and message.claim == 1 else (message,)
    assert world.ask("exited", job="digits", worker=0, gen=1, how="lost")["ok"]
    assert second.answer().ok
    np.testing.assert_array_equal(second.param(), 9 * ONES)


def test_a_program_that_does_not_read_its_replies_is_given_up() -> None:
    world, program = plugged()
    for _ in range(1100):
        program.say("hello 0 0")
    world.run(0.5)
    assert read_moving(bytes(program.files.contents["ctl"])).state == BROKEN
    assert "does not read its replies" in program.err()
    assert any(document.get("event") == "channel" and document["state"] == "broken" for document in world.told)
    assert world.ask("exited", job="digits", worker=0, gen=1, how="lost")["ok"]


def test_several_tables_of_different_kinds_travel_together() -> None:
    tables = (
        TableSpec("a", (5, 3), dtype="f64", optimizer="add", combine="sum"),
        TableSpec("n", (7,), dtype="i64", optimizer="add"),
        TableSpec("b", (33,), optimizer="add", combine="sum", consistency="asp"),
    )
    world = World(servers=3)
    world.register(JobSpec("mixed", 1, tables))
    program = world.plug("mixed", 0)
    grad = bytearray(len(program.files.contents["grad"]))
    for (table, offset), scale in zip(JobSpec("mixed", 1, tables).layout.places, (1, 2, 3), strict=True):
        np.frombuffer(grad, table.numpy_dtype, table.count, offset)[:] = np.arange(table.count) * scale
    for clock in range(1, 4):
        assert program.do("step", grad).ok
        for (table, offset), scale in zip(JobSpec("mixed", 1, tables).layout.places, (1, 2, 3), strict=True):
            found = np.frombuffer(bytes(program.files.contents["param"]), table.numpy_dtype, table.count, offset)
            np.testing.assert_array_equal(found, np.arange(table.count) * scale * clock)


def test_a_lost_job_is_told_with_the_masters_reason() -> None:
    world, program = plugged(workers=2)
    program.begin("step", ONES)
    world.run(1.0)
    lost(world, 1, "server s1 held the only copy of 3 ranges")
    reply = program.answer()
    assert reply.code is Code.NOSERVER and "server s1 held the only copy of 3 ranges" in program.err()
    assert {"event": "job", "run": 1, "job": "digits", "state": "lost", "reason": "server s1 held the only copy of 3 ranges"} in world.told
    assert program.do("step", ONES).code is Code.NOSERVER
    assert program.do("bye").ok, "whoever leaves a lost job has left"


@pytest.mark.parametrize(("state", "code"), [("stopped", Code.STOP), ("failed", Code.GONE), ("finished", Code.STOP)])
def test_an_ended_job_answers_with_its_end(state: str, code: Code) -> None:
    world, program = plugged()
    world.master.change(1, state=state, reason="because")
    world.queue.append(("m0", world.name, world.master.map_told(1)))
    world.run(0.2)
    assert program.do("step", ONES).code is code and "because" in program.err()


def test_a_long_wait_says_whom_it_waits_for() -> None:
    world, program = plugged(workers=2)
    other = world.plug("digits", 1)
    assert other.do("ping").ok
    program.begin("step", ONES)
    world.run(12.0)
    (text,) = [document["text"] for document in world.told if document.get("event") == "waiting"]
    assert text.startswith("clock 0: waiting for worker 1, last seen 1") and text.endswith(" s ago")
    assert other.do("step", ONES).ok and program.answer().ok


def test_a_wait_for_a_silent_server_names_it() -> None:
    world, program = plugged()
    world.interfere = lambda sender, to, message: () if to.startswith("s") and type(message).__name__ == "Push" else (message,)
    program.begin("step", ONES)
    world.run(12.0)
    assert any("waiting for server s0, s1" in document.get("text", "") for document in world.told)


def test_param_that_cannot_be_written_is_an_error_and_not_a_success() -> None:
    world, program = plugged()
    del program.files.contents["param"]
    reply = program.do("step", ONES)
    assert reply.code is Code.PERM and reply.clock == 1, "the step was taken, its values could not be handed over"
    program.files.contents["param"] = bytearray(160)
    assert program.do("pull").ok
    np.testing.assert_array_equal(program.param(), ONES)


LINES = st.one_of(
    st.binary(max_size=120),
    st.builds(
        lambda verb, seq, clock, rest: f"{verb} {seq} {clock} {rest}".encode(),
        st.sampled_from([*VERBS, "x"]), st.integers(0, 4), st.integers(0, 3),
        st.sampled_from(["", "n=40", "n=4", "w=2", "w=x", "fmt=text", "t=1", "async=1", "table=w k=1", "n=40 n=40"]),
    ),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(LINES, max_size=8))
def test_whatever_stands_in_cmd_each_bell_has_at_most_one_answer_and_done_seq_counts(lines: list[bytes]) -> None:
    world, program = plugged()
    done = 0
    for line in lines:
        program.files.contents["cmd"][:] = line.replace(b"\0", b"") + b"\n"
        program.ring()
        world.run(1.0)
        records = list(program.files.replies)
        program.files.replies.clear()
        moving = read_moving(bytes(program.files.contents["ctl"]))
        assert len(records) <= 1 and moving.done_seq in (done, done + 1)
        if records:
            reply = parse_reply(records[0])
            assert reply.seq == moving.done_seq or not reply.ok or reply.seq == 0
        done = moving.done_seq
    world.agent.check()


def at_home() -> tuple[World, Program]:
    """A job that has everything on one server."""
    world = World(servers=1)
    spec = job()
    world.register(spec)
    return world, world.plug(spec.name, 0)


def ticks_of(world: World) -> list[m.Tick]:
    return [message for _to, message in world.sent if isinstance(message, m.Tick)]


def test_where_one_server_has_it_all_the_tick_rides_behind_the_push() -> None:
    world, program = at_home()
    assert program.do("step", ONES).ok
    assert [(tick.seq, bool(tick.ranges)) for tick in ticks_of(world)] == [(1, True)]


def test_a_tick_whose_push_was_lost_follows_the_acks() -> None:
    world, program = at_home()
    pushes = []

    def lose_the_first_push(sender: str, to: str, message: Any) -> tuple[Any, ...]:
        if isinstance(message, m.Push):
            pushes.append(message)
        return () if isinstance(message, m.Push) and len(pushes) == 1 else (message,)

    world.interfere = lose_the_first_push
    assert program.do("step", ONES).ok
    ticks = ticks_of(world)
    assert ticks[0].seq == 1 and ticks[-1].seq == 0
    np.testing.assert_array_equal(program.param(), ONES)


def test_between_servers_a_tick_follows_the_acks() -> None:
    world, program = plugged(elements=4000)
    assert program.do("step", np.ones(4000, "<f4")).ok
    assert [tick.seq for tick in ticks_of(world)] == [0]


def test_a_lone_worker_that_never_gives_first_values_is_told_so() -> None:
    world = World(servers=1)
    spec = JobSpec("alone", 1, (TableSpec("w", (40,), init="program"),))
    world.register(spec)
    program = world.plug(spec.name, 0)
    reply = program.do("step", ONES)
    assert (reply.ok, reply.code) == (False, Code.SEQ) and "send init first" in program.err()
    assert program.do("init", ONES).ok
    assert program.do("step", ONES).ok


@pytest.mark.parametrize("model", ["bsp", "asp"])
def test_a_push_without_weight_takes_part_in_its_clock_and_moves_nothing(model: str) -> None:
    world = World(servers=2)
    world.register(job(workers=2, consistency=model, table={"combine": "mean"}))
    full, empty = world.plug("digits", 0), world.plug("digits", 1)
    for clock in range(2):
        empty.begin("step", np.full(40, 7, "<f4"), "w=0")
        world.settle()
        full.begin("step", np.ones(40, "<f4"), "w=3" if clock == 0 else "w=0")
        assert full.answer().ok and empty.answer().ok
    assert full.do("pull").ok
    np.testing.assert_array_equal(full.param(), np.ones(40))


def test_a_wait_for_first_values_names_the_call_that_gives_them() -> None:
    world, program = plugged(workers=2, table={"init": "program"})
    world.plug("digits", 1)
    program.begin("step", ONES)
    world.run(12.0)
    (text,) = [document["text"] for document in world.told if document.get("event") == "waiting"]
    assert text == "clock 0: waiting for initial values of table w; a program gives them by `init`"
