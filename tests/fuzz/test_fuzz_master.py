"""A master through any story: nodes come, go, repeat themselves and lie late; it dies; its store keeps quiet.

What was promised once stays: numbers never go back, no answer is ahead of the store, no generation is given twice.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plugml.core.errors import Code
from plugml.core.jobmap import RUNNING, JobMap
from plugml.core.limits import Limits
from plugml.master.catalog import State
from plugml.master.store import MemoryStore
from plugml.wire import messages as m
from tests.fuzz.master_world import SECOND, MasterWorld, spec

LIMITS = Limits(ranges=8, points=8, jobs_kept=2, dead_kept=3, changes_max=16, block_bytes_min=64, block_bytes_max=1024)
NODES = [f"{role}{number}.0000000{incarnation}" for role in "sa" for number in range(2) for incarnation in range(3)]
AGENTS = [name for name in NODES if name[0] == "a"]
SPECS = [spec("one", 2, (100,)), spec("one", 3, (100,)), spec("two", 1, (700, 3)), spec("three", 2, (9,))]
WEATHERS = ["", "", "", "lost", "landed"]

node, agent = st.sampled_from(NODES), st.sampled_from(AGENTS)
job, worker, request = st.integers(0, 9), st.integers(0, 3), st.integers(1, 30)
STEPS = st.one_of(
    st.tuples(st.just("register"), node),
    st.tuples(st.just("beat"), node, st.integers(0, 12)),
    st.tuples(st.just("beats"), st.lists(node, max_size=5)),
    st.tuples(st.just("exit"), node, st.integers(-15, 3)),
    st.tuples(st.just("job"), agent, request, st.sampled_from(SPECS)),
    st.tuples(st.just("attach"), agent, request, job, worker, st.integers(0, 3)),
    st.tuples(st.just("map"), node, job, st.integers(0, 9)),
    st.tuples(st.just("end"), agent, request, job, st.sampled_from(["finished", "failed", "running"])),
    st.tuples(st.just("admin"), st.sampled_from(["status", "jobs", "job", "stop", "rm"]), st.sampled_from(["one", "two", "7"])),
    st.tuples(st.just("time"), st.sampled_from([1_000, 200_000, SECOND, 4 * SECOND])),
    st.tuples(st.just("sleep"), st.sampled_from([SECOND, 20 * SECOND])),
    st.tuples(st.just("crash")),
    st.tuples(st.just("hold"), st.booleans()),
    st.tuples(st.just("weather"), st.sampled_from(WEATHERS)),
)


class Story:
    """Plays steps on a master and keeps what it has promised."""

    def __init__(self) -> None:
        self.weather = ""
        self.world = MasterWorld(LIMITS, MemoryStore(lambda: self.weather))
        self.last: State | None = None
        self.gens: dict[tuple[int, int, int], tuple[str, int]] = {}
        self.numbers: dict[int, str] = {}

    def play(self, step: tuple[Any, ...]) -> None:
        world, (kind, *rest) = self.world, step
        if kind == "register":
            world.register(rest[0])
        elif kind == "beat":
            world.beat(rest[0], token=rest[1])
        elif kind == "beats":
            world.beats_for(SECOND, *rest[0])
        elif kind == "exit":
            world.feed("u0.00000000", m.NodeExit(world.number(), rest[0], rest[1]))
        elif kind == "job":
            world.feed(rest[0], m.JobAsk(rest[1], rest[2].to_document()))
        elif kind == "attach":
            world.feed(rest[0], m.AttachAsk(*rest[1:]))
        elif kind == "map":
            world.feed(rest[0], m.MapAsk(*rest[1:]))
        elif kind == "end":
            world.feed(rest[0], m.JobEnd(rest[1], rest[2], rest[3], "because"))
        elif kind == "admin":
            world.feed("cli.1", m.Admin(world.number(), rest[0], {"job": rest[1]}))
        elif kind == "time":
            world.run_for(rest[0])
        elif kind == "sleep":
            world.now_us += rest[0]
            world.run_for(0)
        elif kind == "crash":
            world.start()
        elif kind == "hold":
            world.hold = rest[0]
            if not world.hold:
                world.release()
        else:
            self.weather = rest[0]
        self.look()

    def look(self) -> None:
        """Nothing that was said is ahead of the store, and nothing goes back."""
        world = self.world
        assert world.stopped is None, world.stopped
        if not world.store.values:
            assert not world.sent
            return
        state = world.state
        if self.last is not None:
            assert state.term >= self.last.term and state.token >= self.last.token and state.last >= self.last.last
        self.last = state
        for to, message in world.sent:
            assert getattr(message, "token", 0) <= state.token or isinstance(message, m.BeatAck) and not message.known
            if isinstance(message, m.JobTold) and message.code == Code.OK:
                assert 0 < message.job <= state.last
                name = state.jobs[message.job].spec.name if message.job in state.jobs else ""
                assert self.numbers.setdefault(message.job, name) in (name, "") or not name
            elif isinstance(message, m.AttachTold) and message.code == Code.OK:
                found = state.jobs.get(message.job)
                assert found is None or message.gen <= found.attached[message.worker].gen
                key = (message.job, message.worker, message.gen)
                assert self.gens.setdefault(key, (to, message.request)) == (to, message.request)
            elif isinstance(message, m.MapTold):
                found_map = JobMap.from_document(message.document)
                assert found_map.state != RUNNING or all(item.replicas for item in found_map.ranges.values())
                assert all(item.primary in found_map.endpoints for item in found_map.ranges.values() if item.replicas)
        world.sent.clear()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(steps=st.lists(STEPS, max_size=60))
def test_a_master_keeps_its_promises_through_any_story(steps: list[tuple[Any, ...]]) -> None:
    story = Story()
    for step in steps:
        story.play(step)
    # When the weather clears, everything that waits is settled, and a job can be registered, placed and attached to.
    story.weather = ""
    story.play(("hold", False))
    story.play(("time", 60 * SECOND))
    world = story.world
    for name in ("s0.000000aa", "a0.000000aa"):
        world.register(name)
    world.sent.clear()
    assert world.job("a0.000000aa", spec("last", 1)).code == Code.OK
    number = world.state.last
    assert world.attach("a0.000000aa", number, 0).gen == 1
    assert world.machine.ledger.flying is None and world.machine.ledger.trouble == ""


@pytest.mark.parametrize("seed", range(3))
def test_the_same_story_gives_the_same_digest(seed: int) -> None:
    def play() -> int:
        story = Story()
        for number in range(300):
            pick = (seed * 7919 + number * 104729) % 1009
            name = NODES[pick % len(NODES)]
            step: tuple[Any, ...] = [
                ("register", name), ("beat", name, 0), ("time", 200_000), ("job", AGENTS[pick % len(AGENTS)], number, SPECS[pick % 4]),
                ("attach", AGENTS[pick % len(AGENTS)], number, pick % 5, pick % 2, 0), ("exit", name, 1) if pick % 3 == 0 else ("time", 1_000),
            ][pick % 6]  # fmt: skip
            story.play(step)
        return story.world.machine.digest()

    assert play() == play()
