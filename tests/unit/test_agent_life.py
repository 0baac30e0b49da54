"""Stop rules, pieces of input, twins, staleness: what an agent brings between programs, launchers and the job's clock."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from plugml.agent import effects as e
from plugml.core.errors import Code
from plugml.wire import messages as m

from .agent_rows import ONES, E, F, Rows, W, do, read, spec
from .test_agent_harness import Program, World, job


def plugged(workers: int = 1, servers: int = 2, **fields: Any) -> tuple[World, list[Program]]:
    world = World(servers=servers)
    made = job(workers=workers, **fields)
    world.register(made)
    return world, [world.plug("digits", worker) for worker in range(workers)]


def events(world: World, kind: str) -> list[dict[str, Any]]:
    return [document for document in world.told if document.get("event") == kind]


# -- stop


def test_the_reply_of_the_last_clock_says_stop_and_nothing_is_pushed_after_it() -> None:
    world, (program,) = plugged(stop_clock=2)
    assert not program.do("step", ONES).stop
    assert program.do("step", ONES).stop
    for verb in ("step", "push", "pushpull", "clock"):
        assert program.do(verb, ONES).code is Code.STOP
    reply = program.do("pull")
    assert reply.ok and reply.stop, "an ok whose clock is the job's stop clock says so"
    np.testing.assert_array_equal(program.param(), 2 * ONES)
    assert program.do("ping").ok and program.do("bye").ok
    assert world.ask("exited", job="digits", worker=0, gen=1, how="finished")["last_error"] == ""


@pytest.mark.parametrize("consistency", ["bsp", "asp"])
def test_a_rule_that_fires_ends_all_workers_at_one_clock(consistency: str) -> None:
    world, programs = plugged(2, consistency=consistency, stop_clock=50)
    first, second = programs
    for program in programs:
        program.begin("step", ONES)
    assert all(program.answer().ok for program in programs)
    answer = world.ask("stop", job="digits", reason="the metric has not improved for 3 evaluations")
    assert answer == {"id": answer["id"], "ok": True, "stop_clock": 2}
    for program in programs:
        program.begin("step", ONES)
    assert [program.answer().stop for program in programs] == [True, True]
    assert first.do("step", ONES).code is Code.STOP
    assert world.ask("stop", job="digits", reason="again")["stop_clock"] == 2
    assert world.ask("standing", job="digits")["stop_clock"] == 2
    assert second.do("pull").ok
    np.testing.assert_array_equal(second.param(), 4 * ONES)


def test_stop_is_said_until_it_is_heard() -> None:
    world, programs = plugged(2, stop_clock=50)
    world.interfere = lambda sender, to, message: () if isinstance(message, m.StopAsk) else (message,)
    world.feed("", e.Asked(1, {"op": "stop", "id": 7, "job": "digits", "reason": "x"}))
    for program in programs:
        program.begin("step", ONES)
    assert all(program.answer().ok for program in programs)
    world.run(3.0)
    assert not any(document.get("id") == 7 for document in world.told), "the end that the job began with is no answer"
    world.interfere = lambda sender, to, message: (message,)
    assert world.run(5.0, lambda: any(document.get("id") == 7 for document in world.told))
    assert next(document for document in world.told if document.get("id") == 7)["stop_clock"] == 2


def test_stop_of_an_ended_job_is_told_its_end() -> None:
    world, _programs = plugged()
    world.interfere = lambda sender, to, message: () if isinstance(message, m.StopAsk) else (message,)
    world.feed("", e.Asked(1, {"op": "stop", "id": 7, "job": "digits", "reason": "x"}))
    world.master.change(1, state="stopped", reason="by hand")
    world.queue.append(("m0", world.name, world.master.map_told(1)))
    world.run(1.0)
    assert [document["code"] for document in world.told if document.get("id") == 7] == ["STOP"]
    assert world.ask("stop", job="digits", reason="x")["code"] == "STOP"
    assert world.agent.desk.stops.running == []


def test_a_restarted_agent_knows_that_the_program_was_told_to_stop() -> None:
    """Before the clock has said anything, nothing may be pushed past the end."""
    world, (program,) = plugged(consistency="asp")
    world.ask("stop", job="digits", reason="x")
    assert program.do("step", ONES).stop
    world.kill_agent()
    world.interfere = lambda sender, to, message: () if isinstance(message, m.Standing) else (message,)
    assert program.do("step", ONES).code is Code.STOP
    world.interfere = lambda sender, to, message: (message,)
    assert program.do("pull").ok
    np.testing.assert_array_equal(program.param(), ONES)


def test_an_ok_is_given_only_when_the_clock_has_counted_the_tick() -> None:
    """Values of a closed clock say that the tick was heard, but not where the job ends."""
    world, (program,) = plugged(servers=1)
    world.interfere = lambda sender, to, message: () if isinstance(message, m.Standing) and to == world.name else (message,)
    program.begin("step", ONES)
    world.run(1.0)
    np.testing.assert_array_equal(program.param(), ONES)
    assert not program.replies()
    world.interfere = lambda sender, to, message: (message,)
    assert program.answer().ok


def test_replies_say_how_far_the_slowest_is_behind() -> None:
    world, (fast, slow) = plugged(2, consistency="asp")
    assert [fast.do("step", ONES).lag for _ in range(3)] == [1, 2, 3]
    assert slow.do("step", ONES).lag == 0
    assert fast.do("pull").lag == 2 and fast.do("clock").lag == 3 and fast.do("pushpull", ONES).lag == 3
    assert fast.do("push", ONES).lag is None and fast.do("ping").lag is None


# -- pieces


def pieces(workers: int = 2, **fields: Any) -> tuple[World, list[Program]]:
    return plugged(workers, settings={"pieces_file": "/lists/pieces"}, **fields)


def data(program: Program) -> bytes:
    return bytes(program.files.contents["data"])


def test_each_piece_is_handed_out_once_per_pass_and_then_nothing_is_left() -> None:
    world, programs = pieces(pieces=3, passes=2)
    found = []
    for number in range(6):
        program = programs[number % 2]
        reply = program.do("next")
        assert reply.ok and reply.n == len(data(program))
        found.append(data(program))
    assert sorted(found) == sorted(f"{turn} {piece} piece-{piece} of /lists/pieces\n".encode() for turn in (0, 1) for piece in range(3))
    for program in programs:
        reply = program.do("next")
        assert (reply.ok, reply.n, data(program)) == (True, 0, b"")


def test_next_waits_for_nobody_and_is_answered_once_whatever_dies() -> None:
    for die_at in range(-1, 14):
        world, (first, second) = pieces(pieces=4)
        second.begin("step", ONES)
        world.run(0.2)
        world.performed, world.die_at = 0, die_at
        lines = []
        for _ in range(2):
            reply = first.do("next")
            assert reply.ok and reply.n == len(data(first)), die_at
            lines.append(data(first))
        assert lines == [f"0 {piece} piece-{piece} of /lists/pieces\n".encode() for piece in (0, 1)], die_at


def test_a_job_without_pieces_has_none_to_hand_out() -> None:
    for fields in ({}, {"pieces": 3}, {"settings": {"pieces_file": "/x"}}):
        world, (program,) = plugged(**fields)
        assert program.do("next").code is Code.FORMAT and "no list of pieces" in program.err()


def test_a_piece_that_could_not_be_written_is_not_lost() -> None:
    world, (program, _other) = pieces(pieces=2)
    held = program.files.contents.pop("data")
    assert program.do("next").code is Code.PERM
    program.files.contents["data"] = held
    assert program.do("next").ok
    assert data(program).startswith(b"0 0 ")


def test_a_lost_worker_gives_its_piece_back_and_a_finished_one_does_not() -> None:
    for how, first_left in (("lost", b"0 0 "), ("finished", b"0 1 ")):
        world, (first, second) = pieces(pieces=3)
        assert first.do("next").ok and data(first).startswith(b"0 0 ")
        assert world.ask("exited", job="digits", worker=0, gen=1, how=how)["ok"]
        assert [message.reason for _to, message in world.sent if isinstance(message, m.Leave)] == [how]
        assert second.do("next").ok and data(second).startswith(first_left), how


def test_a_restarted_worker_gets_its_piece_again() -> None:
    world, (first, second) = pieces(pieces=3)
    assert first.do("next").ok
    assert world.ask("exited", job="digits", worker=0, gen=1, how="restarting")["ok"]
    heir = world.plug("digits", 0)
    assert heir.do("next").ok and data(heir).startswith(b"0 0 ")
    assert second.do("next").ok and data(second).startswith(b"0 1 ")


# -- twins


def test_workers_that_push_the_same_are_told_once_per_doubling() -> None:
    world, programs = plugged(2, table={"optimizer": "sgd"})
    for number in range(1, 46):
        for program in programs:
            program.begin("step", number * ONES)
        assert all(program.answer().ok for program in programs)
    found = [(*sorted((event["worker"], event["other"])), event["clocks"]) for event in events(world, "twins")]
    assert found == [(0, 1, 10), (0, 1, 20), (0, 1, 40)]
    assert events(world, "twins")[0]["run"] == 1


def test_workers_that_differ_or_push_zeros_are_no_twins() -> None:
    for grads in ([ONES, 2 * ONES], [0 * ONES, 0 * ONES]):
        world, programs = plugged(2, table={"optimizer": "sgd"})
        for _ in range(15):
            for program, grad in zip(programs, grads, strict=True):
                program.begin("step", grad)
            assert all(program.answer().ok for program in programs)
        assert not events(world, "twins")


def test_the_samples_of_a_clock_are_brought_together() -> None:
    """Two pushes in a clock, in two requests, of two workers: the same bytes in the same order."""
    ticks = []
    for second in (2, 3):
        world, (program,) = plugged(servers=1)
        assert program.do("push", ONES).ok
        assert program.do("push", 0 * ONES).ok
        assert program.do("step", second * ONES).ok
        assert program.do("clock").ok
        ticks.append([message.crc for _to, message in world.sent if isinstance(message, m.Tick)])
    assert ticks[0][0] != ticks[1][0] and ticks[0][0] and [crcs[1] for crcs in ticks] == [0, 0]


def test_twins_of_an_unknown_job_and_a_partial_are_dropped() -> None:
    world, (program,) = plugged()
    world.feed("s0.00000000", m.Twins(9, 1, 1, 0, 1, 10))
    world.feed("s0.00000000", m.Partial(1, 3, 1, 1, ((0, 1, 1),)))
    assert not events(world, "twins") and world.agent.counters()["strange"] == 1
    assert any(log.event == "strange_message" and "Partial" in log.fields["text"] for log in world.logs)
    assert program.do("step", ONES).ok


# -- staleness


def test_staleness_is_counted_by_worker_and_table() -> None:
    world = World(servers=2)
    world.register(spec(W, E, F, workers=2, consistency="asp"))
    fast, slow = (world.plug("rows", worker) for worker in range(2))
    for program in (fast, slow):
        assert do(program, "pull", Rows(E, want=[1]), dense=ONES).ok
    for _ in range(3):
        assert do(fast, "step", Rows(E, [1], [[1, 1, 1]], [1]), dense=ONES).ok
    assert do(slow, "step", Rows(E, [1], [[1, 1, 1]], [1]), dense=ONES).ok
    found = {(row["worker"], row["table"]): row for row in world.ask("standing", job="rows")["staleness"]}
    assert set(found) == {(worker, table) for worker in (0, 1) for table in ("w", "e")}
    mine, theirs = found[0, "e"], found[1, "e"]
    assert (mine["count"], mine["clocks"], mine["clocks_max"], mine["pushes"], mine["versions"]) == (4, 6, 3, 3, 0)
    assert (theirs["count"], theirs["clocks"], theirs["pushes"], theirs["versions"], theirs["versions_max"]) == (2, 0, 1, 3, 3)
    assert world.ask("stat")["staleness"] == {"1": {"pulls": 12, "clocks": 12, "clocks_max": 3, "pushes": 8, "versions": 6, "versions_max": 3}}
    np.testing.assert_array_equal(read(slow, Rows(E, want=[1]), dense=W)[0], [[4, 4, 4]])
