"""Copies under crashes, false alarms, handovers, cuts and pauses, by seed: nothing that was acked is lost, nothing counts twice.

Worker w adds (1, n, n^2) with its n-th push to its own three numbers of every block: whatever anybody reads must be a
whole prefix of each worker's pushes, and at the end it is all of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from plugml.core.limits import MS, SECOND
from plugml.server.blocks import whole
from plugml.server.range import RangeMachine
from plugml.wire import messages as m
from tests.scenario.kit import job, table

from .replica_world import LIMITS, Agent, World

WORKERS = 2
COUNT = table("n", 3 * WORKERS * 3, "f64", "add", combine="sum", block_bytes=3 * WORKERS * 8)


class Pusher(Agent):
    """ASP: pushes to every range, one after the other, and reads now and then."""

    def __init__(self, world: World, worker: int, pushes: int) -> None:
        super().__init__(world, f"a{worker}.00000001")
        self.worker, self.pushes = worker, pushes
        self.seq = 0
        self.seen: dict[int, int] = {}  # range -> own pushes that the next read has to show
        self.requests = 0
        self.next()

    @property
    def done(self) -> bool:
        return self.seq > self.pushes

    def next(self) -> None:
        self.seq += 1
        if self.done:
            return
        for number in self.parts:
            component = m.Component(self.worker, 1, self.seq, self.seq - 1, 0, 1.0)
            self.owe(("push", number), self.push(number, component, lambda piece: grown(self.worker, self.seq)))
        if self.world.draw.random() < 0.5:
            self.requests += 1
            number = self.world.draw.choice(list(self.parts))
            self.seen[number] = max(self.seen.get(number, 0), self.seq - 1)
            self.owe(("pull", number), self.pull(number, self.requests, self.worker, self.seq - 1, 0))

    def on_answer(self, message: Any) -> None:
        if isinstance(message, m.PushAck):
            assert message.seq <= self.seq
            if message.seq == self.seq and self.owed.pop(("push", message.range), None) is not None:
                if not any(key[0] == "push" for key in self.owed):
                    self.next()
        elif isinstance(message, m.Values) and message.request == self.requests and self.owed.pop(("pull", message.range), None) is not None:
            for payload in message.payload:
                count = prefixes(np.frombuffer(payload))[self.worker]
                assert self.seen[message.range] <= count <= self.seq, "an acked push is not seen any more, or one too many is"
                self.seen[message.range] = count


class Stepper(Agent):
    """BSP: push, tick, wait for the close, read all: exactly so many clocks of everybody, and nothing else."""

    def __init__(self, world: World, worker: int, clocks: int) -> None:
        super().__init__(world, f"a{worker}.00000001")
        self.worker, self.clocks = worker, clocks
        self.clock = -1
        self.closed = 0
        self.owe("join", self.to_clock(m.Join, worker, 1))

    @property
    def done(self) -> bool:
        return self.clock >= self.clocks

    def next(self) -> None:
        self.clock += 1
        if self.done:
            self.owed.clear()
            return
        seq = self.clock + 1
        for number in self.parts:
            component = m.Component(self.worker, 1, seq, seq - 1, self.clock, 1.0)
            self.owe(("push", number), self.push(number, component, lambda piece: grown(self.worker, seq)))

    def on_answer(self, message: Any) -> None:
        if isinstance(message, m.PushAck) and message.seq == self.clock + 1:
            if self.owed.pop(("push", message.range), None) is not None and not any(key[0] == "push" for key in self.owed):
                self.owe("tick", self.to_clock(m.Tick, self.worker, 1, self.clock, ((0, 1.0),)))
        elif isinstance(message, m.Standing):
            self.on_standing(message)
        elif isinstance(message, m.Values) and message.request == self.clock + 1 and ("pull", message.range) in self.owed:
            del self.owed["pull", message.range]
            for payload in message.payload:
                assert prefixes(np.frombuffer(payload)) == [self.clock + 1] * WORKERS, "a read under BSP is not what was pushed"
            if not self.owed:
                self.next()

    def on_standing(self, standing: m.Standing) -> None:
        if "join" in self.owed and standing.worker == self.worker:
            del self.owed["join"]
            self.next()
        if standing.worker == self.worker and standing.finished > self.clock and self.owed.pop("tick", None) is not None:
            for number in self.parts:
                self.owe(("pull", number), self.pull(number, self.clock + 1, self.worker, self.clock + 1, self.clock + 1))


def grown(worker: int, n: int) -> Any:
    values = np.zeros(3 * WORKERS)
    values[3 * worker : 3 * worker + 3] = (1, n, n * n)
    return values


def prefixes(values: Any) -> list[int]:
    """How many pushes of each worker are in these numbers: the first ones, each once."""
    counts = []
    for worker in range(WORKERS):
        count, total, squares = values[3 * worker : 3 * worker + 3]
        n = int(count)
        assert (total, squares) == (n * (n + 1) / 2, n * (n + 1) * (2 * n + 1) / 6), "what is read is no prefix of a stream"
        counts.append(n)
    return counts


class Monkey:
    """Does one thing after the other, as long as it may."""

    def __init__(self, world: World, until_us: int, every_us: int = 60 * MS) -> None:
        self.world, self.until_us, self.every_us = world, until_us, every_us
        self.deeds: list[str] = []
        world.later(0, every_us, self.turn)

    def turn(self) -> None:
        world = self.world
        if world.now_us > self.until_us:
            world.cut.clear()
            return
        deed = world.draw.choice(("kill", "accuse", "hand over", "cut", "cut", "heal", "pause", "rest"))
        name = world.draw.choice(sorted(world.servers))
        self.deeds.append(deed)
        if deed == "kill" and world.master.may_die(name):
            self.kill(name)
        elif deed == "accuse" and world.master.may_die(name):
            world.master.dead(name)
        elif deed == "hand over":
            world.master.hand_over(world.draw.choice(sorted(world.master.map.ranges)))
        elif deed == "cut":
            other = world.draw.choice([*sorted(world.servers), *sorted(world.agents)])
            world.cut.add((name, other) if world.draw.random() < 0.5 else (other, name))
        elif deed == "heal":
            world.cut.clear()
        elif deed == "pause":
            world.pause(name, world.draw.randint(1 * MS, 400 * MS))
        world.later(0, self.every_us, self.turn)

    def kill(self, name: str) -> None:
        world = self.world
        world.kill(name)
        if world.draw.random() < 0.7:
            world.later(0, 100 * MS, lambda: world.start(name.split(".")[0]) and None)
        else:  # at once: it knocks before anybody has missed it
            world.start(name.split(".")[0])
        world.later(0, 150 * MS, lambda: world.master.dead(name))


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[World]]:
    """Whatever is applied is written down in the one world of the test."""
    worlds: list[World] = []
    plain = RangeMachine.apply

    def apply(self: RangeMachine, entry: Any, *rest: Any) -> Any:
        worlds[0].note(self, entry)
        return plain(self, entry, *rest)

    monkeypatch.setattr(RangeMachine, "apply", apply)
    yield worlds


def play(worlds: list[World], seed: int, kind: Any, model: str) -> World:
    draw = random.Random(seed)
    copies = draw.choice((2, 2, 3))
    spec = job(COUNT, workers=WORKERS, consistency=model, copies=copies, min_insync=draw.choice((1, 1, 2)))
    limits = replace(LIMITS, turn_bytes=48) if seed % 2 else LIMITS  # each block of an entry is a slice of its own
    world = World(spec, seed, servers=draw.choice((3, 4)), limits=limits, loss=draw.choice((0.0, 0.05, 0.2)), double=draw.choice((0.0, 0.1)))
    worlds[:] = [world]
    agents = [kind(world, worker, draw.randint(5, 25)) for worker in range(WORKERS)]
    if kind is Stepper:
        for agent in agents:
            agent.clocks = agents[0].clocks
    world.master.begin()
    monkey = Monkey(world, world.now_us + 1 * SECOND)
    done = world.run(lambda: world.now_us > monkey.until_us and all(agent.done for agent in agents) and world.settled(), 60 * SECOND)
    assert not world.master.failed, world.master.failed
    assert done, f"seed {seed} hangs: {[(agent.name, list(agent.owed)) for agent in agents]} {world.master.map.ranges} {monkey.deeds}"
    world.check_copies()
    for number in agents[0].parts:
        for replica in world.copies(number).values():
            for entry in replica.log.after(replica.log.applied):
                whole(replica.range.apply(entry, False, 0))
            for place in replica.range.blocks.places.values():
                assert place.values is not None
                expected = [agent.pushes if kind is Pusher else agent.clocks for agent in agents]
                assert prefixes(place.values) == expected, f"seed {seed}"
    return world


@pytest.mark.parametrize("seed", range(100))
def test_every_push_counts_once_whoever_leads(seed: int, noted: list[World]) -> None:
    play(noted, seed, Pusher, "asp")


@pytest.mark.parametrize("seed", range(100))
def test_bsp_reads_exactly_what_was_pushed_whoever_leads(seed: int, noted: list[World]) -> None:
    play(noted, 1_000 + seed, Stepper, "bsp")
