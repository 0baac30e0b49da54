"""A program dies in the middle of a request, and its agent before any of its effects as well: a push is whole or was never there.

What is told to the launcher afterwards (clocks and pushes) is what the servers have.
"""

from __future__ import annotations

import numpy as np
import pytest

from .test_agent_harness import Program, World, job

GRAD = np.arange(40, dtype="<f4") + 1
DEATHS = 40  # effects of a step are fewer


def world_of_two(model: str) -> tuple[World, Program, Program]:
    world = World(servers=2)
    world.register(job(workers=2, consistency=model))
    return world, world.plug("digits", 0), world.plug("digits", 1)


def exited(world: World) -> tuple[int, int]:
    answer = world.ask("exited", job="digits", worker=0, gen=1, how="restarting")
    assert answer["ok"], answer
    return answer["pushes"], answer["clocks"]


def check_whole(world: World, model: str, other: Program, pushes: int, clocks: int) -> None:
    """Both workers go on to clock 1; of worker 0 every clock counts once."""
    again = world.plug("digits", 0)
    assert again.clock == clocks
    if model == "asp":
        assert other.do("pull").ok
        np.testing.assert_array_equal(other.param(), GRAD * pushes)
    assert pushes == clocks, "a step is carried out whole, its tick too"
    if not clocks:
        again.begin("step", GRAD)
    assert other.do("step", GRAD * 10).ok
    if not clocks:
        assert again.answer().ok
    np.testing.assert_array_equal(other.param(), GRAD * 11)


@pytest.mark.parametrize("model", ["bsp", "asp"])
def test_a_program_and_its_agent_die_together(model: str) -> None:
    outcomes = set()
    for die_at in range(DEATHS):
        world, program, other = world_of_two(model)
        world.performed, world.die_at = 0, die_at
        program.begin("step", GRAD)
        while world.lives == 1 and world.queue:
            world.deliver_one()
        world.die_at = -1
        pushes, clocks = exited(world)
        outcomes.add((pushes, clocks))
        check_whole(world, model, other, pushes, clocks)
    assert outcomes == {(0, 0), (1, 1)}


@pytest.mark.parametrize("model", ["bsp", "asp"])
def test_a_program_dies_while_its_push_is_on_its_way(model: str) -> None:
    """After each message that is delivered in turn."""
    for delivered in range(30):
        world, program, other = world_of_two(model)
        program.begin("step", GRAD)
        for _ in range(delivered):
            if world.queue:
                world.deliver_one()
        pushes, clocks = exited(world)
        assert (pushes, clocks) == (1, 1), "it was begun, so it is brought to an end"
        check_whole(world, model, other, pushes, clocks)


def test_an_orphan_whose_tables_have_no_first_values_is_forgotten() -> None:
    """It cannot have pushed, and nobody else may ever give them."""
    world = World(servers=2)
    world.register(job(workers=1, table={"init": "program"}))
    program = world.plug("digits", 0)
    program.begin("step", GRAD)
    world.run(1.0)
    world.kill_agent()
    world.settle()
    assert exited(world) == (0, 0)
    again = world.plug("digits", 0)
    assert again.do("init", GRAD).ok and again.do("step", GRAD).ok
    np.testing.assert_array_equal(again.param(), 2 * GRAD)
