"""Runs that not every seed has: sums of several workers, and one job twice in different weathers."""

from __future__ import annotations

import pytest

from .repeats import Twice
from .summing import Summed
from .weather import draw_plan
from .weathers import of_fractions, summed
from .world import World


@pytest.mark.parametrize("seed", range(1, 9))
def test_sums_of_two_workers_count_once_all_none_or_some_of_them_taken(seed: int) -> None:
    world = World(seed)
    plan = draw_plan(world)
    summed(world, plan)
    assert Summed(world, plan).run() == "finished"


def test_some_of_a_sum_had_been_taken() -> None:
    seen = 0
    for seed in range(1, 9):
        world = World(seed)
        plan = draw_plan(world)
        summed(world, plan)
        Summed(world, plan).run()
        seen += world.marks.get("partial", 0)
    assert seen > 10


@pytest.mark.parametrize("seed", range(1, 6))
def test_the_same_pushes_in_another_order_give_the_same_bits(seed: int) -> None:
    world = World(seed)
    plan = draw_plan(world)
    of_fractions(world, plan)
    assert Twice(world, plan).run() == "finished"
