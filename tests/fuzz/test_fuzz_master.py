"""A master through any story: nodes come, go, repeat themselves and lie late; it dies; its store keeps quiet.

What was promised once stays: numbers never go back, no answer is ahead of the store, no generation is given twice.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plugml.core.errors import Code
from plugml.core.jobmap import RUNNING, Assignment, JobMap
from plugml.core.limits import Limits
from plugml.master.catalog import State
from plugml.master.store import MemoryStore
from plugml.wire import messages as m
from tests.fuzz.master_world import SECOND, MasterWorld, spec

LIMITS = Limits(ranges=8, points=8, jobs_kept=2, dead_kept=3, changes_max=16, block_bytes_min=64, block_bytes_max=1024)
NODES = [f"{node}.0000000{incarnation}" for node in ("s0", "s1", "s2", "a0", "a1") for incarnation in range(3)]
AGENTS = [name for name in NODES if name[0] == "a"]
SPECS = [
    spec("one", 2, (100,)), spec("one", 3, (100,)), spec("two", 1, (700, 3), copies=2), spec("three", 2, (900,), copies=0),
    spec("four", 2, (700,), copies=3, min_insync=2),
]  # fmt: skip
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
    st.tuples(st.just("seat"), st.sampled_from(["add", "drop", "drop by itself"]), st.integers(0, 40), st.integers(-1, 1)),
    st.tuples(st.just("order"), st.sampled_from(["drain", "gone", "scale"]), st.sampled_from(["s0", "s1", "s2"]), st.booleans()),
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
        self.seats: dict[tuple[int, int, int], Assignment] = {}  # by job, range and epoch: what any map has told

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
        elif kind == "seat":
            self.ask_for_a_seat(*rest)
        elif kind == "order":
            world.feed("cli.1", m.Admin(world.number(), rest[0], {"server": rest[1], "cancel": rest[2]}))
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

    def ask_for_a_seat(self, verb: str, pick: int, off: int) -> None:
        """Some range's primary or copy asks, in the newest epoch that was told or in one beside it."""
        jobs = [job for job in self.world.state.jobs.values() if job.running] if self.world.store.values else []
        seats = [(job.number, number, seat) for job in jobs for number, seat in sorted(job.seats.items()) if seat.replicas]
        if not seats:
            return
        wanted = [item for item in seats if item[2].learner] if verb == "add" else []
        job, number, seat = (wanted or seats)[pick % len(wanted or seats)]
        node = seat.learner or "s0.00000000" if verb == "add" else seat.names()[pick % len(seat.names())]
        sender = node if verb == "drop by itself" else seat.replicas[0]
        self.world.feed(sender, m.SeatAsk(self.world.number(), job, number, max(0, seat.epoch + off), verb[:4].strip(), node, "because"))

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
                for number, item in found_map.ranges.items():
                    assert {*item.replicas, item.learner} - {""} <= found_map.endpoints.keys()
                    assert self.seats.setdefault((message.job, number, item.epoch), item) == item, "one epoch, two sets of copies"
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
    for name in ("s0.000000aa", "a0.000000aa"):  # twice, as nodes do: where most servers are silent, none of them is dead yet
        world.register(name)
        world.register(name)
    for key in list(world.state.drained):
        world.admin("drain", server=key, cancel=True)
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
                ("register", name), ("beat", name, 0), ("time", 200_000), ("job", AGENTS[pick % len(AGENTS)], number, SPECS[pick % len(SPECS)]),
                ("attach", AGENTS[pick % len(AGENTS)], number, pick % 5, pick % 2, 0), ("exit", name, 1) if pick % 3 == 0 else ("time", 1_000),
            ][pick % 6]  # fmt: skip
            story.play(step)
        return story.world.machine.digest()

    assert play() == play()
