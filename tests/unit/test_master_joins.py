"""Numbers for workers that join a running job: never twice, the same for the same launcher, and stored before they are told."""

from __future__ import annotations

import pytest

from plugml.core.errors import Code
from plugml.core.job import JobSpec
from plugml.core.limits import Limits
from plugml.core.table import TableSpec
from plugml.master import catalog
from plugml.wire import messages as m
from tests.fuzz.master_world import MasterWorld

A0, A1, S0 = "a0.00000001", "a1.00000002", "s0.00000003"


def spec(workers: int = 2) -> JobSpec:
    return JobSpec("digits", workers, (TableSpec("w", (10,)),))


@pytest.fixture
def world() -> MasterWorld:
    made = MasterWorld()
    for name in (S0, A0, A1):
        made.register(name)
    return made


def more(world: MasterWorld, agent: str, workers: int, launcher: str, request: int = 0) -> m.MoreTold:
    world.feed(agent, m.MoreAsk(request or world.number(), "digits", workers, launcher))
    told: m.MoreTold = world.one(agent, m.MoreTold)
    return told


def test_joins_get_the_next_numbers_and_a_repeat_the_same_whoever_carries_it(world: MasterWorld) -> None:
    job = world.job(A0, spec()).job
    assert world.attach(A1, job, 2).code == Code.RANGE
    assert (more(world, A1, 0, "").first, more(world, A1, 2, "one").first) == (2, 2)
    assert (more(world, A0, 1, "two").first, more(world, A0, 2, "one").first, more(world, A1, 0, "").first) == (4, 2, 5)
    assert world.attach(A1, job, 4).gen == 1 and world.attach(A1, job, 5).code == Code.RANGE
    assert world.state.jobs[job].map(1, 64).workers == 5


def test_the_map_of_the_told_version_knows_of_them(world: MasterWorld) -> None:
    world.job(A0, spec())
    told = more(world, A1, 3, "one")
    maps = [found for found in world.take(A0, m.MapTold) if found.token == told.token]
    assert maps and maps[-1].document["joined"] == 3


def test_a_join_is_stored_before_it_is_told_and_read_back(world: MasterWorld) -> None:
    world.job(A0, spec())
    world.hold = True
    world.feed(A1, m.MoreAsk(9, "digits", 2, "one"))
    assert world.take(A1, m.MoreTold) == []
    world.feed("", world.held.popleft())
    assert world.one(A1, m.MoreTold).first == 2
    again = catalog.unpack(catalog.pack(world.state))
    assert again.jobs[1].joins == ((2, 2, "one"),) and again.jobs[1].workers == 4 and again == world.state


def test_who_cannot_join_is_told_why(world: MasterWorld) -> None:
    assert more(world, A1, 1, "one").code == Code.RANGE
    job = world.job(A0, spec()).job
    many = more(world, A1, Limits().workers_max, "many")
    assert many.code == Code.RANGE and "at most 4096" in many.text
    world.feed(A0, m.JobEnd(world.number(), job, "finished", "all workers have finished"))
    told = more(world, A1, 1, "one")
    assert told.code == Code.STOP and "is finished: all workers have finished" in told.text


def beats(world: MasterWorld, seconds: float, *nodes: str) -> None:
    for _ in range(int(2 * seconds)):
        world.run_for(500_000)
        for node in nodes:
            world.feed(node, m.Beat(0, {}))


def test_who_joined_on_a_host_that_is_lost_is_told_by_the_map_after_a_while(world: MasterWorld) -> None:
    job = world.job(A0, spec()).job
    more(world, A1, 2, "one")
    for agent, worker in ((A0, 0), (A1, 1), (A1, 2), (A0, 3)):
        world.attach(agent, job, worker)
    gone_s = Limits().gone_us / 1e6
    beats(world, gone_s, S0, A0)
    assert world.state.jobs[job].gone == () and world.events("dead")
    beats(world, 10, S0, A0)
    assert world.state.jobs[job].gone == ((2, 1),), "neither the job's own worker nor the one on a living host"
    assert world.take(A0, m.MapTold)[-1].document["gone"] == ((2, 1),)
    assert catalog.unpack(catalog.pack(world.state)) == world.state
    before = world.state.token
    beats(world, 5, S0, A0)
    assert world.state.token == before, "once"


def test_an_agent_that_is_started_again_in_time_loses_nobody(world: MasterWorld) -> None:
    job = world.job(A0, spec()).job
    more(world, A1, 1, "one")
    world.attach(A1, job, 2)
    beats(world, 10, S0, A0)
    world.register("a1.00000009")
    beats(world, 40, S0, A0, "a1.00000009")
    assert world.state.jobs[job].gone == ()
