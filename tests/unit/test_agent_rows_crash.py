"""Pushes of rows that touch few ranges, and agents that die before any of their effects: each row counts once."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugml.core.table import TableSpec
from plugml.wire import messages as m

from .agent_rows import ONES, E, F, Rows, W, begin, do, pull, read, spec
from .test_agent_crash import watch
from .test_agent_harness import Program, World
from .test_agent_network import Weather

KEYS = ["ab", "cd", "ef"]


def sections(number: int) -> list[Rows]:
    """What request `number` pushes: other rows each time, few of them, one of them twice."""
    ids = [number, number + 1, 100 * number % 7, number]
    keys = [KEYS[number % 3]]
    return [Rows(E, ids, np.full((4, 3), number), [0, 1, 2, 3]), Rows(F, keys, np.full((1, 2), number), KEYS)]


class Model:
    """What the tables must hold."""

    def __init__(self) -> None:
        self.e = np.zeros((1000, 3))
        self.f = {key: np.zeros(2) for key in KEYS}
        self.w = np.zeros(40)

    def add(self, number: int, dense: bool) -> None:
        for rows in sections(number):
            for row, value in zip(rows.ids, rows.values, strict=True):
                (self.e if rows.table is E else self.f)[row] += value
        self.w += number if dense else 0

    def check(self, program: Program, number: int, dense: bool) -> None:
        e, f = read(program, *sections(number), dense=W if dense else None)
        np.testing.assert_array_equal(e, self.e[[0, 1, 2, 3]])
        np.testing.assert_array_equal(f, [self.f[key] for key in KEYS])
        if dense:
            np.testing.assert_array_equal(program.param()[:40], self.w)


def story(consistency: str, die_at: int) -> World:
    world = World(servers=2)
    world.register(spec(W, E, F, consistency=consistency))
    program = world.plug("rows", 0)
    watch(program)
    model = Model()
    world.performed, world.die_at = 0, die_at
    for number in range(1, 5):
        dense = number % 2 == 0
        reply = do(program, "step", *sections(number), dense=number * ONES if dense else None)
        assert reply.ok, program.err()
        model.add(number, dense)
        model.check(program, number, dense)
    return world


@pytest.mark.parametrize("consistency", ["bsp", "asp"])
def test_a_death_before_any_effect_changes_nothing_but_time(consistency: str) -> None:
    effects = story(consistency, -1).performed
    assert effects > 60
    for die_at in range(effects):
        world = story(consistency, die_at)
        assert world.lives == 2, f"effect {die_at} of {effects} never came"


def test_a_restart_asks_only_the_ranges_that_the_push_touches_for_their_last_one() -> None:
    world = World(servers=2)
    world.register(spec(E))
    program = world.plug("rows", 0)
    assert do(program, "step", Rows(E, list(range(60)), np.ones((60, 3)))).ok
    world.kill_agent()
    world.run(1.0)
    world.sent.clear()
    assert do(program, "step", Rows(E, [3], [[1, 1, 1]])).ok
    asked = [message.range for _to, message in world.sent if isinstance(message, m.LastAsk)]
    assert len(asked) == 1
    world.sent.clear()
    assert do(program, "step", Rows(E, [3], [[1, 1, 1]])).ok, "now it is known"
    assert not any(isinstance(message, m.LastAsk) for _to, message in world.sent)
    np.testing.assert_array_equal(pull(program, E, [3, 4]), [[3] * 3, [1] * 3])


def test_prev_skips_the_pushes_that_brought_a_range_nothing() -> None:
    world = World(servers=2)
    world.register(spec(E))
    program = world.plug("rows", 0)
    for row in (3, 4, 5, 3):
        assert do(program, "push", Rows(E, [row], [[1, 1, 1]])).ok
    found = [(message.components[0].seq, message.components[0].prev) for _to, message in world.sent if isinstance(message, m.Push)]
    assert found[0] == (1, 0) and found[-1] == (4, max(seq for seq, _prev in found[:3] if same_range(world, seq, 4)))


def same_range(world: World, one: int, other: int) -> bool:
    ranges = {message.components[0].seq: message.range for _to, message in world.sent if isinstance(message, m.Push)}
    return ranges[one] == ranges[other]


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1 << 30), consistency=st.sampled_from(["bsp", "asp", "ssp:1"]))
def test_bad_weather_and_restarts_cost_time_only(seed: int, consistency: str) -> None:
    world = World(servers=3)
    rows = TableSpec("e", (1000, 3), kind="sparse", optimizer="add", combine="sum", batch=64, index="u32")
    world.register(spec(rows, workers=2, consistency=consistency))
    programs = [world.plug("rows", worker) for worker in range(2)]
    Weather(world, seed, lose=0.15, double=0.15, shuffle=0.3)
    random = Random(seed)
    total = np.zeros((1000, 3))
    for _ in range(6):
        for program in programs:
            ids = [random.randrange(12) for _ in range(random.randrange(1, 4))]
            np.add.at(total, ids, 1.0)
            begin(program, "step", Rows(rows, ids, np.ones((len(ids), 3)), ids))
        if random.random() < 0.5:
            world.run(random.random())
            world.kill_agent()
        for program in programs:
            assert program.answer(200.0).ok, program.err()
    world.interfere = lambda sender, to, message: (message,)
    for program in programs:
        np.testing.assert_array_equal(pull(program, rows, list(range(12))), total[:12])
    world.run(5.0)
    assert world.agent.house.credits.used == {}


def test_weights_of_rows_survive_the_agent() -> None:
    """Two tables in two requests of a clock, and the agent dies between them: each is weighed by its own."""
    rows = [TableSpec(name, (100, 1), kind="sparse", optimizer="add", combine="mean", batch=64) for name in ("e", "f")]
    dense = TableSpec("w", (40,), optimizer="add", combine="mean")
    for deaths in (0b000, 0b001, 0b010, 0b100, 0b111):
        world = World(servers=2)
        world.register(spec(dense, *rows))
        program = world.plug("rows", 0)
        steps: list[Any] = [
            lambda p=program: do(p, "push", Rows(rows[0], [1], [[8]]), more="w=3"),
            lambda p=program: do(p, "push", Rows(rows[1], [1], [[6]]), more="w=2"),
            lambda p=program: do(p, "push", Rows(rows[1], [1], [[3]])),
            lambda p=program: do(p, "step", Rows(rows[0], [], [], [1]), Rows(rows[1], want=[1]), dense=4 * ONES, more="w=5"),
        ]
        for number, step in enumerate(steps):
            assert step().ok, program.err()
            if deaths >> number & 1:
                world.kill_agent()
                world.run(1.0)
        e, f = read(program, Rows(rows[0], want=[1]), Rows(rows[1], want=[1]), dense=dense)
        np.testing.assert_array_equal(program.param()[:40], 4 * ONES)
        assert e.tolist() == [[24 / 8]] and f.tolist() == [[15 / 8]], bin(deaths)
