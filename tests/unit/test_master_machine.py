"""The master: what it decides, what it stores first, and what it never forgets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from plugml.core.errors import Code
from plugml.core.job import JobSpec
from plugml.core.jobmap import FINISHED, LOST, RUNNING, STOPPED, JobMap, ranges_used
from plugml.core.limits import Limits
from plugml.core.table import TableSpec
from plugml.master.catalog import pack
from plugml.master.effects import STATE_KEY, StoreDone
from plugml.master.membership import RETURN_FACTOR
from plugml.master.store import MemoryStore
from plugml.wire import messages as m
from tests.fuzz.master_world import LIMITS, SECOND, MasterWorld, spec

S0, S1, A0, S2 = "s0.00000001", "s1.00000002", "a0.00000003", "s2.00000004"


@pytest.fixture
def world() -> MasterWorld:
    made = MasterWorld()
    for name in (S0, S1, A0):
        made.register(name)
    made.sent.clear()
    return made


def the_map(message: m.MapTold) -> JobMap:
    return JobMap.from_document(message.document)


# -- registration


def test_a_node_is_told_that_it_is_registered_and_again_when_it_asks_again() -> None:
    world = MasterWorld()
    for _ in range(2):
        world.register(S0)
        assert world.one(S0, m.Registered) == m.Registered(1, 0, "test", True, "")
    assert len(world.events("registered")) == 1
    assert world.state.nodes["s0"].name == S0


def test_a_beat_of_an_unknown_node_asks_it_to_register() -> None:
    world = MasterWorld()
    world.beat(S0)
    assert world.one(S0, m.BeatAck) == m.BeatAck(1, 0, False)
    world.register(S0)
    world.beat(S0)
    assert world.one(S0, m.BeatAck).known


@pytest.mark.parametrize(
    ("name", "message", "text"),
    [
        ("s0", m.Register("server", "h", "ipc:///x", 1, ""), "node name"),
        ("s0.1.2", m.Register("server", "h", "ipc:///x", 1, ""), "node name"),
        (S0, m.Register("worker", "h", "ipc:///x", 1, ""), "role"),
        (S0, m.Register("server", "h", "", 1, ""), "reach"),
        (S0, m.Register("server", "h" * 256, "ipc:///x", 1, ""), "255"),
    ],
)
def test_a_registration_that_makes_no_sense_is_refused_with_a_sentence(name: str, message: m.Register, text: str) -> None:
    world = MasterWorld()
    world.feed(name, message)
    told = world.one(name, m.Registered)
    assert not told.known and text in told.text
    assert world.state.nodes == {}


def test_a_restarted_node_takes_the_place_of_its_silent_predecessor(world: MasterWorld) -> None:
    world.register("s0.0000000a")
    assert world.take("s0.0000000a", m.Registered) == []  # the predecessor may be alive: it beat a moment ago
    for _ in range(8):
        world.run_for(250_000)
        world.register("s0.0000000a")
    assert world.take("s0.0000000a", m.Registered)[0].known
    assert world.state.nodes["s0"].name == "s0.0000000a"
    assert S0 in world.gone and "s0.0000000a took its place" in world.events("dead")[0]["why"]
    world.beat(S0)
    assert not world.one(S0, m.BeatAck).known


def test_a_restarted_node_is_taken_at_once_when_its_predecessor_was_seen_to_end(world: MasterWorld) -> None:
    world.feed("x.1", m.NodeExit(1, S0, -9))
    assert world.one("x.1", m.Done) == m.Done(1, 0, "")
    world.register("s0.0000000a")
    assert world.one("s0.0000000a", m.Registered).known


def test_a_second_process_of_one_id_is_refused_while_the_first_one_beats(world: MasterWorld) -> None:
    for _ in range(16):
        world.run_for(250_000)
        world.beat(S0, S1, A0)
        world.register("s0.0000000a")
    told = world.take("s0.0000000a", m.Registered)[0]
    assert not told.known and "process 1000 on h0" in told.text and "--id" in told.text
    assert world.state.nodes["s0"].name == S0


def test_a_late_registration_of_an_ended_process_is_ignored(world: MasterWorld) -> None:
    world.feed("x.1", m.NodeExit(1, S0, 0))
    world.register(S0)
    assert world.take(S0, m.Registered) == [] and "s0" not in world.state.nodes


# -- jobs


def test_a_job_is_placed_stored_told_to_its_servers_and_then_answered(world: MasterWorld) -> None:
    told = world.job(A0, spec())
    assert (told.code, told.job) == (Code.OK, 1) and "on 2 servers" in told.text
    maps = {name: the_map(world.one(name, m.MapTold)) for name in (S0, S1, A0)}
    found = maps[S0]
    assert found == maps[S1] == maps[A0]
    assert found.state == RUNNING and found.token == 1 and found.number == 1
    assert sorted(found.ranges) == ranges_used(found.spec, LIMITS.ranges)
    assert all(item.epoch == 1 and item.primary in (S0, S1) for item in found.ranges.values())
    assert found.endpoints == {S0: f"ipc:///run/plugml/ipc/{S0}", S1: f"ipc:///run/plugml/ipc/{S1}"}
    assert found.spec.tables[0].block_bytes == 1 << 19  # 4 MiB for two servers: about four blocks for each
    assert world.state.jobs[1].map(1, LIMITS.ranges) == found


def test_no_answer_leaves_before_the_store_has_it(world: MasterWorld) -> None:
    world.hold = True
    world.ask_job(A0, spec())
    assert world.take(A0, m.JobTold) == [] and world.take(S0, m.MapTold) == []
    world.feed(A0, m.AttachAsk(7, 1, 0, 0))
    world.feed("", world.held.popleft())
    assert world.one(A0, m.JobTold).job == 1 and world.take(A0, m.AttachTold) == []
    world.feed("", world.held.popleft())
    assert world.one(A0, m.AttachTold).gen == 1 and not world.held


def test_changes_that_come_together_are_stored_together(world: MasterWorld) -> None:
    before = world.store.read(STATE_KEY)[1]
    world.hold = True
    for number in range(5):
        world.ask_job(A0, spec(f"job{number}"))
    assert world.store.read(STATE_KEY)[1] == before + 1  # the first flies alone, four wait
    world.feed("", world.held.popleft())
    assert world.store.read(STATE_KEY)[1] == before + 2
    world.feed("", world.held.popleft())
    assert sorted(told.job for told in world.take(A0, m.JobTold)) == [1, 2, 3, 4, 5]


def test_the_same_document_again_is_the_same_job_while_it_runs(world: MasterWorld) -> None:
    assert world.job(A0, spec()).job == world.job(A0, spec()).job == 1
    chosen = world.state.jobs[1].spec
    assert world.job(A0, chosen).job == 1  # with the blocks that the master chose
    world.feed(A0, m.JobEnd(world.number(), 1, FINISHED, "done"))
    assert world.job(A0, spec()).job == 2


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (spec(workers=3), "workers = 2, here 3"),
        (spec(shape=(7,)), "table w: shape = [1048576], here [7]"),
        (spec(seed=5), "seed = 0, here 5"),
        (spec(settings={"run": "1"}), "a job 'job' is running already; choose another --name"),
        (JobSpec("job", 2, (TableSpec("v", (1 << 20,)),)), "table w: name = 'w', here 'v'"),
        (JobSpec("job", 2, (*spec().tables, TableSpec("v", (1,)))), "other tables"),
    ],
)
def test_another_job_of_a_running_name_is_refused_with_the_difference(world: MasterWorld, other: Any, text: str) -> None:
    world.job(A0, spec())
    told = world.job(A0, other)
    assert told.code == Code.COLLIDE and text in told.text and "plugml stop job" in told.text


SPARSE = TableSpec("e", (0, 16), "sparse", optimizer="adam")
WIDE = JobSpec("job", 2, (TableSpec("w", (4,)), SPARSE, TableSpec("s", (0, 2), "sparse", index="str")))


def test_a_job_with_sparse_tables_gets_its_buckets_and_is_the_same_when_asked_again(world: MasterWorld) -> None:
    told = world.job(A0, WIDE)
    assert told.code == Code.OK, told.text
    job = world.state.jobs[1]
    assert [table.buckets for table in job.spec.tables] == [0, 8, 8] and job.spec.tables[0].block_bytes
    assert sorted(job.seats) == ranges_used(job.spec, 256) and job.servers() == [S0, S1]
    assert the_map(world.one(S0, m.MapTold)).spec == job.spec
    assert world.job(A0, WIDE) == told._replace(request=told.request + 1)
    assert world.job(A0, job.spec).job == 1  # with the buckets that the master chose


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"lr_scale": "linear"}, "lr_scale = 'none', here 'linear'"),
        ({"lr_warmup": 5}, "lr_warmup = 0, here 5"),
        ({"bell": "sem"}, "bell = 'fifo', here 'sem'"),
        ({"memory_bytes": 1 << 30}, "memory_bytes = 0"),
        ({"snapshot_every": 10}, "snapshot_every = 0, here 10"),
        ({"stop_clock": 9}, "stop_clock = 0, here 9"),
        ({"pieces": 3}, "pieces = 0, here 3"),
        ({"passes": 2}, "passes = 0, here 2"),
        ({"tables": (WIDE.tables[0], SPARSE, TableSpec("s", (0, 2), "sparse"))}, "table s: index = 'str', here ''"),
        ({"tables": (WIDE.tables[0], TableSpec("e", (9, 16), "sparse", optimizer="adam"), WIDE.tables[2])}, "table e: shape"),
        ({"tables": (WIDE.tables[0], TableSpec("e", (16,)), WIDE.tables[2])}, "table e: shape"),
        ({"tables": (WIDE.tables[0], SPARSE.with_buckets(2), WIDE.tables[2])}, "table e: buckets = 8, here 2"),
    ],
)
def test_every_field_of_a_job_is_compared_with_the_running_one(world: MasterWorld, more: dict[str, Any], text: str) -> None:
    world.job(A0, WIDE)
    told = world.job(A0, replace(WIDE, **more))
    assert told.code == Code.COLLIDE and text in told.text, told.text
    assert world.state.jobs[1].spec == the_map(world.take(S0, m.MapTold)[-1]).spec


def test_buckets_count_against_what_messages_hold(world: MasterWorld) -> None:
    many = tuple(TableSpec(f"e{n}", (0, 1), "sparse", buckets=4096) for n in range(260))
    told = world.job(A0, JobSpec("job", 1, many))
    assert told.code == Code.RANGE and "1064960 blocks and buckets, at most 1048576" in told.text
    told = world.job(A0, JobSpec("job", 1, many[:250]))
    assert told.code == Code.OK, told.text


def test_a_name_may_be_used_again_when_its_agent_is_surely_gone(world: MasterWorld) -> None:
    world.job(A0, spec())
    world.feed("x.1", m.NodeExit(1, A0, -9))
    world.register("a1.00000007")
    told = world.job("a1.00000007", spec(workers=3))
    assert (told.code, told.job) == (Code.OK, 2)
    assert world.state.jobs[1].state == STOPPED and "its agent is gone" in world.state.jobs[1].reason
    assert [the_map(item).state for item in world.take(S0, m.MapTold)[-2:]] == [STOPPED, RUNNING]


@pytest.mark.parametrize(
    ("document", "code", "text"),
    [
        ({}, Code.FORMAT, "needs"),
        ({**spec().to_document(), "wrokers": 1}, Code.FORMAT, "did you mean 'workers'"),
        ({**spec().to_document(), "tables": [{"name": "w", "shape": [4], "kind": "sparse"}]}, Code.FORMAT, "sparse"),
        ({**spec().to_document(), "tables": [{"name": "w", "shape": [1 << 50]}]}, Code.RANGE, "blocks"),
        ({**spec().to_document(), "tables": [{"name": "w", "shape": [1 << 24], "block_bytes": 4}]}, Code.RANGE, "block_bytes"),
        ({**spec().to_document(), "workers": 4096, "settings": {"a": "x" * 20_000}}, Code.NOSPC, "map may come to"),
    ],
)
def test_a_job_that_cannot_be_is_refused_with_a_sentence(world: MasterWorld, document: Any, code: Code, text: str) -> None:
    told = world.job(A0, document)
    assert told.code == code and text in told.text and told.job == 0
    assert world.state.jobs == {}


def test_a_job_waits_for_a_server_and_is_answered_when_one_comes() -> None:
    world = MasterWorld()
    world.register(A0)
    request = world.ask_job(A0, spec())
    world.ask_job(A0, spec())
    assert world.take(A0, m.JobTold) == []
    assert [fields["text"] for fields in world.events("job_waits")] == ["no server is registered: start one with `plugml server`"]
    world.run_for(SECOND)
    world.register(S0)
    assert world.one(A0, m.JobTold)[:2] == (request, Code.OK)
    assert world.state.jobs[1].servers() == [S0]


def test_the_first_job_waits_for_the_servers_that_were_promised() -> None:
    world = MasterWorld(servers_expected=2)
    world.register(A0)
    world.register(S0)
    world.ask_job(A0, spec())
    assert world.take(A0, m.JobTold) == [] and "1 of 2 servers are there" in world.events("job_waits")[0]["text"]
    world.register(S1)
    assert world.one(A0, m.JobTold).code == Code.OK and world.state.jobs[1].servers() == [S0, S1]


def test_a_promise_that_is_not_kept_holds_nobody_for_ever() -> None:
    world = MasterWorld(servers_expected=2)
    for name in (A0, S0):
        world.register(name)
    world.ask_job(A0, spec())
    world.beats_for(LIMITS.settle_us + SECOND, A0, S0)
    assert world.one(A0, m.JobTold).code == Code.OK


# -- attachments


def test_each_attachment_has_the_next_gen_and_a_repeat_the_same(world: MasterWorld) -> None:
    world.job(A0, spec())
    first = world.attach(A0, 1, 0, request=10)
    assert (first.code, first.gen) == (Code.OK, 1)
    assert world.attach(A0, 1, 0, request=10) == first
    assert world.attach(A0, 1, 1, request=11).gen == 1
    assert world.attach(A0, 1, 0, request=12).gen == 2
    assert world.state.jobs[1].attached[0].gen == 2
    assert world.state.jobs[1].map(0, 1).gens == {0: 2, 1: 1}


def test_a_late_attachment_raises_nothing(world: MasterWorld) -> None:
    world.job(A0, spec())
    world.attach(A0, 1, 0, request=10)
    world.attach(A0, 1, 0, request=12)
    world.feed(A0, m.AttachAsk(10, 1, 0, 0))
    assert world.take(A0, m.AttachTold) == [] and world.state.jobs[1].attached[0].gen == 2
    world.feed("x.1", m.NodeExit(1, A0, -9))
    world.feed(A0, m.AttachAsk(99, 1, 0, 2))
    assert world.state.jobs[1].attached[0].gen == 2


def test_an_attachment_that_cannot_be_says_why(world: MasterWorld) -> None:
    world.job(A0, spec())
    assert "no job 9" in world.attach(A0, 9, 0).text
    told = world.attach(A0, 1, 2)
    assert told.code == Code.RANGE and "workers 0 to 1" in told.text
    world.feed(A0, m.JobEnd(world.number(), 1, "failed", "worker 1 exited with 3"))
    told = world.attach(A0, 1, 0)
    assert told.code == Code.STOP and "failed: worker 1 exited with 3" in told.text


def test_an_attachment_disturbs_nobody(world: MasterWorld) -> None:
    world.job(A0, spec())
    world.sent.clear()
    token = world.state.token
    world.attach(A0, 1, 0)
    assert world.state.token == token and world.sent == []


# -- maps


def test_a_map_is_told_to_whoever_asks_and_later_without_asking(world: MasterWorld) -> None:
    world.job(A0, spec())
    world.register("a1.00000009")
    world.feed("a1.00000009", m.MapAsk(1, 0))
    assert the_map(world.one("a1.00000009", m.MapTold)).state == RUNNING
    world.feed(A0, m.JobEnd(world.number(), 1, FINISHED, ""))
    assert the_map(world.one("a1.00000009", m.MapTold)).state == FINISHED


def test_a_map_of_the_future_is_told_when_it_is_there(world: MasterWorld) -> None:
    world.job(A0, spec())
    world.take(A0, m.MapTold)
    world.feed(A0, m.MapAsk(1, 2))
    assert world.take(A0, m.MapTold) == []
    world.job(A0, spec("other"))
    world.feed(A0, m.MapAsk(1, 2))
    assert the_map(world.take(A0, m.MapTold)[-1]).token == 2


def test_a_beat_is_answered_with_the_newest_token(world: MasterWorld) -> None:
    world.job(A0, spec())
    world.beat(A0)
    assert world.one(A0, m.BeatAck) == m.BeatAck(1, 1, True)


def test_a_job_that_nobody_remembers_is_an_ended_one_and_one_that_never_was_is_none(world: MasterWorld) -> None:
    world.job(A0, spec())
    world.admin("stop", job="job")
    world.admin("rm", job="job")
    world.take(S0, m.MapTold)
    world.feed(S0, m.MapAsk(1, 0))
    told = the_map(world.one(S0, m.MapTold))
    assert (told.number, told.state, told.spec.name, told.ranges) == (1, STOPPED, "job", {})
    world.feed(S0, m.MapAsk(7, 0))
    assert world.take(S0, m.MapTold) == []


# -- death


def test_a_silent_server_with_the_only_copy_is_waited_for_then_dead_and_its_job_is_lost(world: MasterWorld) -> None:
    world.beats_for(2 * LIMITS.dead_us, S0, S1, A0)
    world.job(A0, spec())
    held = sum(S1 in seat.replicas for seat in world.state.jobs[1].seats.values())
    world.beats_for(LIMITS.suspect_us + SECOND // 2, S0, A0)
    assert [fields["node"] for fields in world.events("suspect")] == [S1]
    assert world.state.jobs[1].state == RUNNING
    world.beats_for(LIMITS.dead_us, S0, A0)
    assert world.state.jobs[1].state == RUNNING and world.events("dead") == []
    why = f"nobody else has {held} ranges of job job, which wait for it a while"
    assert world.events("offline") == [{"node": S1, "why": why}]
    assert f"server s1 is silent: {why}" in world.admin("status").document["alarms"]
    assert "no server is registered" not in world.job(A0, spec("next")).text and world.state.jobs[2].servers() == [S0]
    world.beats_for((RETURN_FACTOR - 2) * LIMITS.dead_us, S0, A0)
    assert world.state.jobs[1].state == RUNNING
    world.beats_for(LIMITS.dead_us, S0, A0)
    job = world.state.jobs[1]
    assert job.state == LOST
    assert job.reason.startswith(f"server s1 held the only copy of {held} ranges (no beat for 30.")
    assert job.endpoints.keys() == {S0}
    assert {seat.epoch for seat in job.seats.values() if not seat.replicas} == {2}
    assert {seat.epoch for seat in job.seats.values() if seat.replicas} == {1}
    for name in (S0, A0):
        told = the_map(world.take(name, m.MapTold)[-1])
        assert (told.state, told.reason) == (LOST, job.reason)
    assert S1 in world.gone and world.attach(A0, 1, 0).code == Code.NOSERVER


def test_a_server_that_was_waited_for_goes_on_where_it_was(world: MasterWorld) -> None:
    world.beats_for(2 * LIMITS.dead_us, S0, S1, A0)
    world.job(A0, spec())
    before = world.state.jobs[1]
    world.beats_for(3 * LIMITS.dead_us, S0, A0)
    assert world.events("offline")
    world.beat(S1)
    assert world.take(S1, m.BeatAck)[-1].known and world.events("heard_again")[-1]["node"] == S1
    world.beats_for(2 * LIMITS.dead_us, S0, S1, A0)
    assert world.state.jobs[1] == before and world.admin("status").document["alarms"] == []


def test_who_is_waited_for_leaves_what_others_have(world: MasterWorld) -> None:
    world.beats_for(2 * LIMITS.dead_us, S0, S1, A0)
    world.job(A0, spec())
    world.job(A0, spec("both", copies=2))
    world.beats_for(2 * LIMITS.dead_us, S0, A0)
    assert world.events("offline") and world.events("dead") == []
    alone, both = world.state.jobs[1], world.state.jobs[2]
    assert S1 in alone.endpoints and all(seat.replicas == (S0,) and not seat.learner for seat in both.seats.values())
    version = world.state.token
    world.beats_for(LIMITS.dead_us, S0, A0)
    assert world.state.token == version  # nothing is left to be decided
    world.beats_for(20 * LIMITS.beat_us, S0, S1, A0)
    assert S1 in {seat.learner for seat in world.state.jobs[2].seats.values()}
    world.job(A0, spec("next"))
    world.admin("stop", job="job")
    world.admin("stop", job="next")
    world.beats_for(LIMITS.dead_us + 2 * SECOND, S0, A0)  # nothing of its own is left: it is dead like any other
    assert [fields["node"] for fields in world.events("dead")] == [S1]


@pytest.fixture
def held(world: MasterWorld) -> MasterWorld:
    """The state store has answered nothing since before a third server came, which has been declared dead and has come back."""
    world.beats_for(8 * SECOND, S0, S1, A0)
    world.hold = True
    world.register("a1.00000009")
    world.register(S2)
    world.beats_for(4 * SECOND, S0, S1, A0, "a1.00000009")
    assert [fields["node"] for fields in world.events("dead")] == [S2]
    world.beat(S2)
    world.register(S2)
    return world


def test_who_comes_back_while_its_death_waits_to_be_stored_is_stored_again(held: MasterWorld) -> None:
    held.hold = False
    held.release()
    assert held.take(S2, m.Registered)[-1].known
    held.beats_for(10 * SECOND, S0, S1, S2, A0, "a1.00000009")
    assert held.take(S2, m.BeatAck)[-1].known and held.state.nodes["s2"].name == S2


def test_who_dies_twice_while_nothing_can_be_stored_is_not_there(held: MasterWorld) -> None:
    held.beats_for(4 * SECOND, S0, S1, A0, "a1.00000009")
    held.hold = False
    held.release()
    held.beats_for(5 * SECOND, S0, S1, A0, "a1.00000009")
    assert "s2" not in held.state.nodes


def test_a_server_that_was_seen_to_end_is_dead_at_once(world: MasterWorld) -> None:
    world.job(A0, spec())
    world.feed("x.1", m.NodeExit(5, S0, -9))
    assert world.one("x.1", m.Done) == m.Done(5, 0, "")
    assert world.state.jobs[1].state == LOST and "(signal 9)" in world.state.jobs[1].reason
    world.feed("x.1", m.NodeExit(5, S0, -9))
    assert world.one("x.1", m.Done).code == Code.OK
    world.feed("x.1", m.NodeExit(6, S1, 3))
    assert "server s0 held" in world.state.jobs[1].reason and "server s1 held" in world.state.jobs[1].reason


def test_a_server_that_comes_back_gets_no_old_range(world: MasterWorld) -> None:
    world.job(A0, spec())
    world.feed("x.1", m.NodeExit(5, S0, -9))
    world.register("s0.0000000a")
    assert world.state.jobs[1].servers() == [S1]
    assert world.job(A0, spec("next")).job == 2
    assert world.state.jobs[2].servers() == ["s0.0000000a", S1]


def test_a_dead_agent_costs_nothing(world: MasterWorld) -> None:
    world.job(A0, spec())
    token = world.state.token
    world.feed("x.1", m.NodeExit(5, A0, -9))
    assert world.state.jobs[1].state == RUNNING and world.state.token == token


def test_a_node_that_was_declared_dead_by_mistake_registers_again(world: MasterWorld) -> None:
    world.beats_for(3 * LIMITS.dead_us, S0, A0)
    world.beat(S1)
    assert not world.one(S1, m.BeatAck).known
    world.register(S1)
    assert world.one(S1, m.Registered).known
    world.job(A0, spec())
    assert world.state.jobs[1].servers() == [S0, S1]


def test_nobody_is_dead_before_twice_the_limit_after_the_start(world: MasterWorld) -> None:
    world.beats_for(2 * LIMITS.dead_us - SECOND, S0)
    assert world.events("dead") == []
    world.beats_for(2 * SECOND, S0)
    assert [fields["node"] for fields in world.events("dead")] == [S1, A0]


def test_a_master_that_was_late_blames_nobody(world: MasterWorld) -> None:
    world.beats_for(3 * LIMITS.dead_us, S0, S1, A0)
    world.now_us += 10 * SECOND  # stopped, or its host was
    world.run_for(0)
    assert world.events("late") and world.events("dead") == []
    world.beats_for(LIMITS.dead_us - SECOND, S0)
    assert world.events("dead") == []
    world.beats_for(2 * SECOND, S0)
    assert [fields["node"] for fields in world.events("dead")] == [S1, A0]


def test_a_late_master_that_hears_beats_first_blames_nobody_either(world: MasterWorld) -> None:
    world.beats_for(3 * LIMITS.dead_us, S0, S1, A0)
    world.now_us += 10 * SECOND
    world.beat(S0)
    world.run_for(0)
    assert len(world.events("late")) == 1 and world.events("dead") == []


# -- endings


def test_the_first_ending_of_a_job_stays(world: MasterWorld) -> None:
    world.job(A0, spec())
    request = world.number()
    for _ in range(2):
        world.feed(A0, m.JobEnd(request, 1, FINISHED, "all workers are done"))
        assert world.one(A0, m.Done) == m.Done(request, 0, "")
    world.feed(A0, m.JobEnd(world.number(), 1, STOPPED, "too late"))
    assert world.one(A0, m.Done).code == Code.OK
    assert (world.state.jobs[1].state, world.state.jobs[1].reason) == (FINISHED, "all workers are done")
    assert [the_map(item).state for item in world.take(S0, m.MapTold)] == [RUNNING, FINISHED]


def test_an_ending_that_is_none_is_refused(world: MasterWorld) -> None:
    world.job(A0, spec())
    for state in ("running", "lost", "sleeping"):
        world.feed(A0, m.JobEnd(world.number(), 1, state, ""))
        assert world.one(A0, m.Done).code == Code.FORMAT
    world.feed(A0, m.JobEnd(world.number(), 1, FINISHED, "x" * 50_000))
    assert len(world.state.jobs[1].reason) <= 1000


def test_ended_jobs_are_forgotten_in_the_end() -> None:
    world = MasterWorld(Limits(jobs_kept=3))
    for name in (S0, A0):
        world.register(name)
    for number in range(1, 8):
        world.job(A0, spec(f"job{number}"))
        world.feed(A0, m.JobEnd(world.number(), number, FINISHED, ""))
    assert sorted(world.state.jobs) == [4, 5, 6, 7]
    assert world.state.removed == {1: "job1", 2: "job2", 3: "job3"}


# -- restarts


def test_a_restart_loses_nothing_and_disturbs_nobody(world: MasterWorld) -> None:
    world.job(A0, spec())
    world.attach(A0, 1, 0, request=70)
    before = world.state
    world.start()
    assert world.state == before._replace(term=2, writer="m0.00000002")
    world.sent.clear()
    world.beat(S0, S1, A0)
    assert world.one(S0, m.BeatAck) == m.BeatAck(2, before.token, True)
    assert [kind for _, kind in world.sent if isinstance(kind, m.MapTold)] == []
    assert world.attach(A0, 1, 0, request=70).gen == 1  # the answer may have been lost with the old process
    assert world.job(A0, spec()).job == 1
    world.beats_for(5 * LIMITS.dead_us, S0, S1, A0)
    assert world.state.jobs[1].state == RUNNING and world.state.token == before.token


def test_a_server_that_died_while_the_master_was_away_is_noticed(world: MasterWorld) -> None:
    world.job(A0, spec())
    world.start()
    world.beats_for(2 * LIMITS.dead_us + SECOND, S0, A0)
    assert world.events("offline")[0]["node"] == S1
    world.beats_for(RETURN_FACTOR * LIMITS.dead_us, S0, A0)
    assert world.state.jobs[1].state == LOST


def test_a_job_after_a_restart_waits_for_the_servers_that_are_still_unheard(world: MasterWorld) -> None:
    world.start()
    world.beat(S0)
    world.ask_job(A0, spec())
    assert world.take(A0, m.JobTold) == [] and f"{S1} may still be alive" in world.events("job_waits")[0]["text"]
    world.beat(S1)
    world.run_for(LIMITS.beat_us)
    assert world.one(A0, m.JobTold).code == Code.OK and world.state.jobs[1].servers() == [S0, S1]


def test_a_crash_between_store_and_answer_gives_the_same_answer_later(world: MasterWorld) -> None:
    world.hold = True
    request = world.ask_job(A0, spec())
    world.hold = False
    world.start()  # the store has it, nobody was told
    world.beat(S0, S1, A0)
    world.feed(A0, m.JobAsk(request, spec().to_document()))
    assert world.one(A0, m.JobTold)[:4:3] == (request, 1)


def test_a_lost_store_never_makes_a_number_go_back() -> None:
    world = MasterWorld()
    for name in (S0, A0):
        world.register(name)
    world.beat(S0, token=57)
    assert world.state.token == 57 and world.events("store_behind")
    assert world.job(A0, spec()).job == 58
    world.beat(S0, token=(1 << 64) - 1)
    assert world.state.token == 58


# -- the store


def test_an_unknown_outcome_is_asked_again_until_it_is_known() -> None:
    weather = iter(["", "", "", "", "lost", "landed", "", ""])
    world = MasterWorld(store=MemoryStore(lambda: next(weather)))
    for name in (S0, S1, A0):
        world.register(name)
    world.ask_job(A0, spec())
    assert world.take(A0, m.JobTold) == [] and world.events("store_unsure")
    world.run_for(LIMITS.resend_us)
    assert world.take(A0, m.JobTold) == []  # it has landed, but nobody has said so
    world.run_for(4 * LIMITS.resend_us)
    assert world.one(A0, m.JobTold).job == 1 and sorted(world.state.jobs) == [1]
    assert len(world.events("store_unsure")) == 1 and world.events("store_well")


def test_an_unknown_outcome_at_the_start_is_no_harm() -> None:
    weather = iter(["landed", "", "lost", "landed", ""])
    store = MemoryStore(lambda: next(weather, ""))
    world = MasterWorld(store=store)
    world.run_for(10 * SECOND)
    assert world.state.term == 1
    world.start()
    world.run_for(10 * SECOND)
    assert world.state.term == 2 and world.machine.ledger.state == world.state


def test_while_the_store_is_away_nodes_are_known_and_status_says_so() -> None:
    sick = [""]
    world = MasterWorld(store=MemoryStore(lambda: sick[0]))
    for name in (S0, A0):
        world.register(name)
    world.job(A0, spec())
    sick[0] = "lost"
    world.ask_job(A0, spec("other"))
    world.beats_for(20 * SECOND, S0, A0)
    assert world.take(A0, m.BeatAck)[-1].known
    assert world.admin("status").document["store"] == "no answer"
    sick[0] = ""
    world.beats_for(5 * SECOND, S0, A0)
    assert world.one(A0, m.JobTold).job == 2
    assert world.admin("status").document["store"] == "ok"


def test_too_many_changes_wait_outside() -> None:
    sick = [""]
    world = MasterWorld(Limits(changes_max=5), MemoryStore(lambda: sick[0]))
    for name in (S0, A0):
        world.register(name)
    sick[0] = "lost"
    for number in range(20):
        world.ask_job(A0, spec(f"job{number}"))
    assert len(world.machine.ledger.pending) == 5 and len(world.events("changes_full")) == 1
    world.feed("x.1", m.NodeExit(1, S0, 1))  # a death is never lost
    sick[0] = ""
    world.run_for(20 * SECOND)
    assert "s0" not in world.state.nodes


def test_a_deposed_master_ends_and_writes_nothing(world: MasterWorld) -> None:
    value, version = world.store.read(STATE_KEY)
    other = world.state._replace(term=9, writer="m1.0000000f")
    world.store.cas(STATE_KEY, version, pack(other))
    world.ask_job(A0, spec())
    assert world.stopped is not None and "m1.0000000f, term 9" in world.stopped.text
    assert world.state == other and world.take(A0, m.JobTold) == []


def test_an_emptied_store_ends_the_master(world: MasterWorld) -> None:
    world.store.values.clear()
    world.ask_job(A0, spec())
    assert world.stopped is not None and "emptied" in world.stopped.text


@pytest.mark.parametrize("value", [b"", b"\xc1", b"\x80", b"\x81\xa6format\x02", b"\x93\x01\x02\x03"])
def test_a_state_that_cannot_be_read_ends_the_master_with_a_sentence(value: bytes) -> None:
    store = MemoryStore()
    store.cas(STATE_KEY, 0, value)
    world = MasterWorld(store=store)
    assert world.stopped is not None and world.stopped.exit_code == 1
    assert "the stored state" in world.stopped.text and store.read(STATE_KEY) == (value, 1)


def test_an_answer_that_nobody_waits_for_is_ignored(world: MasterWorld) -> None:
    before = world.machine.digest()
    world.feed("", StoreDone(STATE_KEY, "ok", 99, b"x"))
    world.feed("", StoreDone("other", "conflict", 1, b"x"))
    assert world.machine.digest() == before


# -- strangers


def test_what_is_not_for_a_master_is_ignored(world: MasterWorld) -> None:
    before = world.machine.digest()
    world.feed(A0, m.PushAck(1, 2, 3, 4, 5, 6, 7))
    world.feed(A0, m.BeatAck(1, 2, True))
    assert world.machine.digest() == before and world.sent == []


def test_two_masters_that_saw_the_same_have_the_same_digest() -> None:
    def story() -> int:
        world = MasterWorld()
        for name in (S0, S1, A0):
            world.register(name)
        world.job(A0, spec())
        world.beats_for(5 * SECOND, S0, A0)
        return world.machine.digest()

    assert story() == story()
