"""When equal pushes are worth a warning: only where they are gradients, counts and finished values may well be equal."""

from __future__ import annotations

import pytest

from plugml.wire import messages as m
from tests.scenario.kit import Box, job, table
from tests.scenario.sparse import sparse_table

COUNT = table("n", 1, "i64", "add")


def told(there: Box, tables: tuple[int, ...]) -> list[m.Twins]:
    """What is said when two workers are equal in twelve clocks, in which they pushed to these tables."""
    weights = tuple((number, 1.0) for number in tables)
    for clock in range(12):
        for worker in (0, 1):
            there.clock(m.Tick, clock, weights, 0, (), clock + 5, worker=worker)
    return there.take(m.Twins)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "nesterov", "adagrad", "rmsprop", "adam", "adamw"])
def test_equal_gradients_are_told(optimizer: str) -> None:
    assert len(told(Box(job(table(optimizer=optimizer), COUNT, workers=2)), (0, 1))) == 1
    assert len(told(Box(job(COUNT, sparse_table(optimizer=optimizer), workers=2)), (1,))) == 1


@pytest.mark.parametrize("optimizer", ["add", "assign"])
@pytest.mark.parametrize("dtype", ["f32", "i64"])
def test_equal_counts_and_equal_values_are_not(optimizer: str, dtype: str) -> None:
    assert not told(Box(job(table("n", 4, dtype, optimizer), workers=2)), (0,))


def test_clocks_in_which_only_counts_were_pushed_are_not_compared() -> None:
    there = Box(job(table(), COUNT, workers=2))
    assert not told(there, (1,))
    there = Box(job(table(), COUNT, workers=2))
    for clock in range(18):
        for worker in (0, 1):
            tables = ((0, 1.0), (1, 1.0)) if clock % 9 else ((1, 1.0),)
            there.clock(m.Tick, clock, tables, 0, (), clock + 5, worker=worker)
    assert not there.take(m.Twins), "a clock of counts alone ends the row"
