"""The server as a whole: maps and tokens, one close for many ranges, several servers, the master's words, memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plugml.core.effects import Connect, Disconnect, Log, Send, Stop
from plugml.core.errors import Code
from plugml.core.jobmap import FINISHED, LOST, Assignment
from plugml.core.limits import Limits
from plugml.server.effects import Turn
from plugml.server.link import Identity
from plugml.server.main import free_bytes
from plugml.server.node import ServerMachine
from plugml.wire import messages as m
from tests.scenario.kit import Box, job, make_map, seen, table

COUNT = table("n", 64, "f64", "add", combine="sum", block_bytes=64)
LIMITS = Limits()


def wide(**rest: Any) -> Box:
    """Eight blocks in many ranges on three servers."""
    box = Box(job(COUNT, workers=2), servers=("s0.1", "s1.1", "s2.1"), ring=16, **rest)
    box.take()
    return box


def test_one_step_over_three_servers() -> None:
    there = wide()
    for worker in (0, 1):
        there.push({"n": np.arange(64)}, worker)
        there.pull(worker=worker, closed=1, request=worker + 1)
    there.take()
    there.tick(0, 0)
    there.tick(0, 1)
    answers = there.take(m.Values)
    for worker in (0, 1):
        found = seen([answer for answer in answers if answer.request == worker + 1], there.spec, "n")
        np.testing.assert_array_equal(found, 2.0 * np.arange(64))
    clock = next(h.clock for s in there.servers.values() for h in s.jobs.values() if h.clock is not None)
    assert clock.outbox.floor == 1 and clock.deadline_us() is None


def test_a_close_that_was_lost_on_the_way_comes_again() -> None:
    there = wide()
    there.push({"n": np.ones(64)}, 0)
    there.push({"n": np.ones(64)}, 1)
    there.hold = True
    there.tick(0, 0)
    there.tick(0, 1)
    assert {type(item.message) for item in there.transit} == {m.Close, m.Roster}
    there.transit.clear()
    there.hold = False
    assert np.count_nonzero(there.values("n")) < 64
    there.time(LIMITS.resend_us)
    np.testing.assert_array_equal(there.values("n"), np.full(64, 2.0))


def test_a_close_counts_only_from_the_keeper_of_the_clock() -> None:
    there = wide()
    for name, machine in there.servers.items():
        before = machine.digest()
        epoch = there.map.epoch(there.map.clock_range)
        there.feed(name, "s9.9", m.Close(1, epoch, 1, 0, ((0, 1),), ()))
        keeper = there.map.primary(there.map.clock_range)
        there.feed(name, keeper, m.Close(1, epoch + 1, 1, 0, ((0, 1),), ()))
        assert machine.digest() == before


def test_a_long_close_is_done_in_turns() -> None:
    there = Box(job(table("w", 64, "f64", block_bytes=64)), ring=16, limits=Limits(turn_bytes=128))
    there.push({"w": np.ones(64)})
    there.pull(closed=1)
    there.take()
    machine = there.servers["s0.1"]
    epoch = there.map.epoch(there.map.clock_range)
    effects = machine.on_message("a0.1", m.Tick(1, epoch, 1, 0, 1, 0, ((0, 1.0),)), 0)
    machine.check()
    turns = answered = 0
    while any(isinstance(effect, Turn) for effect in effects):
        assert isinstance(effects[-1], Turn)
        answered += sum(isinstance(effect, Send) and isinstance(effect.message, m.Values) for effect in effects)
        turns += 1
        effects = machine.on_message("", effects[-1], 0)
        machine.check()
    answered += sum(isinstance(effect, Send) and isinstance(effect.message, m.Values) for effect in effects)
    assert turns >= 3 and answered == len(there.parts())
    assert all(held.closed == 1 for held in machine.jobs[1].ranges.values())


def test_a_job_that_ends_within_a_long_close_is_forgotten() -> None:
    there = Box(job(table("w", 64, "f64", block_bytes=64)), ring=16, limits=Limits(turn_bytes=128))
    there.push({"w": np.ones(64)})
    machine = there.servers["s0.1"]
    epoch = there.map.epoch(there.map.clock_range)
    effects = machine.on_message("a0.1", m.Tick(1, epoch, 1, 0, 1, 0, ((0, 1.0),)), 0)
    assert isinstance(effects[-1], Turn)
    end = there.map._replace(token=2, state=FINISHED)
    machine.on_message("m0", m.MapTold(1, 2, end.to_document()), 0)
    assert not any(isinstance(effect, Send) for effect in machine.on_message("", Turn(), 0))
    machine.check()
    assert not machine.jobs


def test_what_is_left_of_a_lost_job_gives_its_memory_back() -> None:
    there = wide()
    there.push({"n": np.ones(64)})
    ranges = {n: Assignment(2, ()) if item.primary == "s2.1" else item for n, item in there.map.ranges.items()}
    there.tell_map(there.map._replace(token=2, state=LOST, ranges=ranges))
    assert not any(machine.jobs for machine in there.servers.values())
    there.take()
    there.feed("s0.1", "a0.1", m.StandingAsk(1, 1, 1, 0, 1))
    assert [nack.token for nack in there.take(m.Nack)] == [2]


def test_a_late_ride_does_not_count_by_a_later_push() -> None:
    """The push that it rode behind was refused by one range; the next one has reached that range, and not the others."""
    spec = job(table("n", 64, "f64", "add", combine="sum", block_bytes=64), workers=2, consistency="ssp:1")
    there = Box(spec, ring=16)
    *others, last = there.parts()
    ones = {"n": np.ones(64)}
    for number in others:
        there.push(ones, seq=1, only=number)
    there.push(ones, seq=2, prev=0, only=last)
    there.take()
    there.clock(m.Tick, 0, ((0, 1.0),), 1, (*others, last))
    assert there.take() == []


def test_nobody_speaks_in_the_name_of_the_server_itself() -> None:
    there = wide()
    machine = there.servers["s0.1"]
    before = machine.digest()
    for message in (m.Join(1, 1, 1, 0, 1), m.LastAsk(1, 0, 1, 1, 0, 1), m.Pull(1, 0, 1, 1, 1, 0, 1, 0, 0, ())):
        there.feed("s0.1", "s0.1", message)
    assert machine.digest() == before and machine.counters["dropped"] == 3


# -- maps


def nacks(box: Box) -> list[tuple[str, Any]]:
    return [(type(message).__name__, getattr(message, "token", None)) for message in box.take()]


def test_who_is_behind_asks_the_master_and_does_not_answer() -> None:
    there = Box(job(COUNT))
    there.take()
    there.map = there.map._replace(token=5)
    there.push({"n": np.ones(64)})
    there.tick(0)
    there.pull()
    assert nacks(there) == [("MapAsk", 5), ("Nack", 1), ("Nack", 1), ("Nack", 1)]  # asked once, not three times
    there.tell_map(there.map)
    there.push({"n": np.ones(64)})
    there.tick(0)
    assert there.values("n")[0] == 1


def test_an_unanswered_question_for_a_map_is_asked_again() -> None:
    there = Box(job(COUNT))
    there.take()
    there.map = there.map._replace(token=5)
    for _ in range(3):
        there.pull()
        there.now_us += LIMITS.resend_us
    assert nacks(there) == [("MapAsk", 5), ("Nack", 1)] * 3


@pytest.mark.parametrize("epoch", (1, 3))
def test_another_epoch_is_not_taken(epoch: int) -> None:
    there = Box(job(COUNT))
    raised = there.map._replace(token=2, ranges={number: Assignment(2, item.replicas) for number, item in there.map.ranges.items()})
    there.tell_map(raised)
    there.take()
    there.map = raised._replace(ranges={number: Assignment(epoch, item.replicas) for number, item in raised.ranges.items()})
    there.push({"n": np.ones(64)})
    there.tick(0)
    found = there.take()
    assert [type(message) for message in found] == [m.Nack] * len(found)
    assert all(nack.epoch == 2 for nack in found)


def test_an_unknown_job_is_asked_for() -> None:
    there = Box(job(COUNT))
    there.take()
    there.feed("s0.1", "a0.1", m.Pull(9, 0, 1, 4, 77, 0, 1, 0, 0, (m.Segment(0, 0, 8, 2, m.BLOCK, m.ABSENT),)))
    found = there.take()
    assert found == [m.MapAsk(9, 4), m.Nack(9, 0, 0, 0, 77)]


def test_a_range_that_is_led_elsewhere_now_is_dropped() -> None:
    there = wide()
    moved = there.map._replace(token=2, ranges={number: Assignment(2, ("s1.1",)) for number in there.map.ranges})
    there.tell_map(moved)
    assert not there.servers["s0.1"].jobs[1].ranges
    there.servers["s0.1"].check()
    before = moved._replace(ranges=make_map(there.spec, ("s0.1",), 16).ranges)
    there.map = before
    there.push({"n": np.ones(64)})
    assert {type(message) for message in there.take()} == {m.Nack}


def test_who_was_told_an_old_map_goes_on_asking_for_the_newest() -> None:
    """The cluster is at 12; the answer is lost, and map 11 comes, which has been on its way for long."""
    box = wide()
    (name, machine), *_ = box.servers.items()
    sent = [m.Registered(1, 1, "box", True, ""), m.BeatAck(1, 12, True), m.MapTold(1, 11, box.map._replace(token=11).to_document())]
    for message in sent:
        machine.on_message("m0", message, 100)
    asked = [effect.message for effect in machine.on_message("m0", m.BeatAck(1, 12, True), 10_000_000) if isinstance(effect, Send)]
    assert any(isinstance(message, m.MapAsk) for message in asked)


def test_an_older_map_changes_nothing() -> None:
    there = wide()
    there.tell_map(there.map._replace(token=4))
    there.feed("s0.1", "m0", m.MapTold(1, 2, there.map._replace(token=2, state=FINISHED).to_document()))
    assert 1 in there.servers["s0.1"].jobs and there.servers["s0.1"].jobs[1].token == 4


def test_a_job_that_ended_is_dropped_and_not_asked_for_again() -> None:
    there = Box(job(COUNT))
    there.push({"n": np.ones(64)})
    there.take()
    there.tell_map(there.map._replace(token=7, state=FINISHED))
    machine = there.servers["s0.1"]
    assert not machine.jobs and not machine._memory._free
    there.push({"n": np.ones(64)}, seq=2)
    assert nacks(there) == [("Nack", 7)]
    assert there.logs[-1][1].event == "job_dropped"


def test_the_keeper_of_a_clock_connects_to_the_other_servers() -> None:
    identity = Identity("s0.1", "here", "ipc://s0.1", 1, "test", {"m0": "ipc://m0"})
    machine = ServerMachine(identity, LIMITS)
    spec = job(COUNT)
    new = make_map(spec, ("s0.1", "s1.1"), 16)
    new = new._replace(ranges={**new.ranges, new.clock_range: Assignment(1, ("s0.1",))})
    effects = machine.on_message("m0", m.MapTold(1, 1, new.to_document()), 0)
    assert Connect("s1.1", "ipc://s1.1") in effects
    again = machine.on_message("m0", m.MapTold(1, 2, new._replace(token=2).to_document()), 0)
    assert not any(isinstance(effect, (Connect, Disconnect)) for effect in again)
    end = machine.on_message("m0", m.MapTold(1, 3, new._replace(token=3, state=FINISHED).to_document()), 0)
    assert Disconnect("s1.1") in end


# -- the master


def fresh() -> tuple[ServerMachine, list[Any]]:
    machine = ServerMachine(Identity("s0.1", "here", "ipc://s0.1", 42, "test", {"m0": "ipc://m0"}), LIMITS)
    assert machine.deadline_us() == 0
    return machine, machine.on_time(1)


def test_a_server_knocks_until_it_is_registered_and_then_beats() -> None:
    machine, effects = fresh()
    register = m.Register("server", "here", "ipc://s0.1", 42, "test")
    assert effects == [Connect("m0", "ipc://m0"), Send("m0", register)]
    due = machine.deadline_us()
    assert due == 1 + LIMITS.resend_us
    assert machine.on_time(due) == [Send("m0", register)]
    told = machine.on_message("m0", m.Registered(1, 3, "box", True, ""), due)
    assert [type(effect) for effect in told] == [Log]
    due = machine.deadline_us()
    assert due is not None
    beat = machine.on_time(due)
    assert isinstance(beat[0].message, m.Beat) and beat[0].message.token == 3
    assert beat[0].message.counters["ranges"] == 0


def test_a_server_that_the_master_forgot_registers_again() -> None:
    machine, _ = fresh()
    machine.on_message("m0", m.Registered(1, 3, "box", True, ""), 10)
    effects = machine.on_message("m0", m.BeatAck(1, 3, False), 20)
    assert isinstance(effects[-1].message, m.Register)
    assert not any(isinstance(effect, Send) for effect in machine.on_message("m0", m.BeatAck(1, 3, False), 30))


def test_a_second_process_of_one_id_ends() -> None:
    machine, _ = fresh()
    effects = machine.on_message("m0", m.Registered(1, 3, "box", False, "s0 runs already as s0.9"), 10)
    assert effects == [Stop(1, "s0 runs already as s0.9")]


def test_a_higher_token_in_a_beat_makes_a_server_look_for_its_maps_once() -> None:
    there = Box(job(COUNT))
    there.take()
    for _ in range(3):
        there.feed("s0.1", "m0", m.BeatAck(1, 9, True))
    assert there.take() == [m.MapAsk(1, 1)]
    there.tell_map(there.map._replace(token=9))  # as it was: a master tells it with the newest token
    there.now_us += 10 * LIMITS.resend_us
    there.feed("s0.1", "m0", m.BeatAck(1, 9, True))
    assert there.take() == []


@pytest.mark.parametrize("message", (m.Registered(1, 9, "box", False, "end"), m.BeatAck(1, 9, False), m.Done(1, 0, ""), m.MapTold(1, 9, {})))
def test_only_the_master_speaks_as_the_master(message: Any) -> None:
    there = Box(job(COUNT))
    there.take()
    there.feed("s0.1", "a0.1", message)
    assert there.take() == [] and there.logs[-1][1].event == "peer_dropped"


def test_what_a_server_has_no_use_for_is_logged() -> None:
    there = Box(job(COUNT))
    there.take()
    there.feed("s0.1", "m0", m.MapTold(1, 9, {"nonsense": 1}))
    there.feed("s0.1", "a0.1", m.PushAck(1, 0, 1, 1, 0, 1, 1))
    assert there.take() == []
    assert [log.event for _, log in there.logs[-2:]] == ["peer_dropped"] * 2


# -- memory


def test_a_model_that_does_not_fit_is_refused_with_a_sentence() -> None:
    there = Box(job(COUNT), room=lambda: 500)
    heard = there.take()
    assert [message.state for message in heard if isinstance(message, m.JobEnd)] == ["failed"]
    there.push({"n": np.ones(64)})
    there.pull(request=5)
    there.last()
    refusals = there.take(m.Refuse)
    assert {Code(refusal.code) for refusal in refusals} == {Code.NOSPC}
    assert "needs 512 bytes on server s0.1, which has 500 left" in refusals[0].text
    assert 5 in {refusal.request for refusal in refusals}


def test_memory_that_is_promised_but_not_touched_counts() -> None:
    there = Box(job(COUNT), room=lambda: 900)
    there.feed("s0.1", "m0", m.MapTold(2, 1, make_map(job(COUNT), number=2).to_document()))
    machine = there.servers["s0.1"]
    assert not machine.jobs[1].full and machine.jobs[2].full
    there.pull()  # touches job 1: now its bytes are gone from what the host has left
    there.feed("s0.1", "m0", m.MapTold(3, 1, make_map(job(COUNT), number=3).to_document()))
    assert not machine.jobs[3].full


def test_no_memory_in_the_middle_is_an_answer_too(monkeypatch: pytest.MonkeyPatch) -> None:
    there = Box(job(table("n", 4, "f64", "add", combine="sum"), consistency="asp"))
    memory = there.servers["s0.1"]._memory

    def none(dtype: Any, count: int) -> Any:
        raise MemoryError

    monkeypatch.setattr(memory, "take", none)
    there.push({"n": np.ones(4)})
    there.pull()
    assert [Code(refusal.code).name for refusal in there.take(m.Refuse)] == ["NOSPC"] * 2
    monkeypatch.undo()
    there.push({"n": np.ones(4)})
    assert there.values("n")[0] == 1


def test_free_memory_is_the_tightest_of_host_and_groups(tmp_path: Path) -> None:
    proc, group = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    inner = group / "a" / "b"
    inner.mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 100 kB\nMemAvailable: 50 kB\n")
    (proc / "self" / "cgroup").write_text("0::/a/b\n")
    assert free_bytes(proc, group) == 50 * 1024
    (group / "a" / "memory.max").write_text("30000\n")
    (group / "a" / "memory.current").write_text("10000\n")
    (inner / "memory.max").write_text("max\n")
    (inner / "memory.current").write_text("10000\n")
    assert free_bytes(proc, group) == 20_000
    (group / "a" / "memory.stat").write_text("anon 1\ninactive_file 4000\n")
    assert free_bytes(proc, group) == 24_000
    assert free_bytes() > 0


def test_a_tick_that_rides_counts_only_behind_a_push_that_is_held() -> None:
    there = Box(job(table("w", 8, "f64")), ring=16)
    machine = there.servers["s0.1"]
    epoch = there.map.epoch(there.map.clock_range)
    ranges = tuple(there.parts())
    riding = m.Tick(1, epoch, 1, 0, 1, 0, ((0, 1.0),), 1, ranges)
    assert machine.on_message("a0.1", riding, 0) == [], "the push that it rides behind was lost"
    there.push({"w": np.ones(8)})
    there.take()
    for wrong in (riding._replace(seq=2), riding._replace(gen=2), riding._replace(ranges=(*ranges, 999))):
        assert machine.on_message("a0.1", wrong, 0) == []
    effects = machine.on_message("a0.1", riding, 0)
    assert [effect.message.finished for effect in effects if isinstance(effect.message, m.Standing)] == [1]
    machine.check()
