"""The checkers of rows, order, input and stop rules, and the reference: each planted fault is seen."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from plugml.core.job import JobSpec
from plugml.core.table import TableSpec

from .cells import Cell, Reader, read_order, read_tally
from .checkers import Broken
from .inputs import Input
from .ordered import FOLD, folded
from .reference import Dense, Rows, RowsStaged, Staged, State, stepped
from .stopping import Stopping

READER = Reader((0, 1), 3)


def cell(*requests: tuple[int, int]) -> Cell:
    """Requests as (clock, pushes)."""
    made = Cell()
    for clock, pushes in requests:
        made.begin(clock, pushes)
    return made


def tally(m: int) -> np.ndarray:  # type: ignore[type-arg]
    return np.array([m, m * (m + 1) / 2, m * (m + 1) * (2 * m + 1) / 6, 0.0])


def test_a_row_shows_whole_requests_between_two_bounds_and_never_fewer_than_before() -> None:
    three = cell((0, 1), (1, 2), (2, 1))
    assert read_tally(READER, "row", three, tally(3), 1, 4) == 3
    with pytest.raises(Broken, match="were there before"):
        read_tally(READER, "row", three, tally(1), 0, 4)
    with pytest.raises(Broken, match="half of a request"):
        read_tally(Reader((1, 1), 3), "row", three, tally(2), 0, 4)
    with pytest.raises(Broken, match="must be 4 to 4"):
        read_tally(READER, "row", three, tally(3), 4, 4)
    with pytest.raises(Broken, match="doubled"):
        read_tally(READER, "row", three, tally(3) + tally(1), 0, 9)
    assert (three.before(1), three.before(2), three.before(9)) == (1, 3, 4)


def test_a_push_that_was_refused_is_withdrawn() -> None:
    made = cell((0, 1), (1, 2))
    made.withdraw(2)
    assert (made.begun, made.whole, made.clocks) == (1, [0, 1], [0])


def test_pushes_in_another_order_are_seen() -> None:
    made = cell((0, 1), (0, 1), (1, 1))

    def pushed(n: int) -> np.ndarray:  # type: ignore[type-arg]
        return np.array([float(n * n)])

    right = folded(folded(np.zeros(1), pushed(1)), pushed(2))
    assert read_order(READER, "row", made, right, 0, 3, pushed) == 2
    wrong = folded(folded(np.zeros(1), pushed(2)), pushed(1))
    with pytest.raises(Broken, match="another order"):
        read_order(READER, "row", made, wrong, 0, 3, pushed)


def held() -> Input:
    """Two streams hold pieces 0 and 1 of four."""
    book = Input(4, 1)
    for worker, piece in ((0, 0), (1, 1)):
        book.ask((worker, 1))
        book.told((worker, 1), 0, piece)
    return book


def test_a_piece_goes_out_once_in_order_and_comes_back_from_the_dead() -> None:
    book = held()
    book.died((1, 1))
    book.succeeded(1, 2)
    due = book.begin()
    assert due == [1]
    book.ask((0, 1))
    book.told((0, 1), 0, 1)
    assert book.begin() == []


FAULTS: dict[str, tuple[str, Callable[[Input], None]]] = {
    "held by another": ("which .* has", lambda book: book.told((0, 1), 0, 1)),
    "out of order": ("never given", lambda book: book.told((0, 1), 0, 3)),
    "not there": ("which there is not", lambda book: book.told((0, 1), 1, 0)),
    "empty too early": ("never given", lambda book: book.told_empty((0, 1), [])),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_input_is_seen(fault: str) -> None:
    text, plant = FAULTS[fault]
    book = held()
    book.ask((0, 1))
    with pytest.raises(Broken, match=text):
        plant(book)


def test_a_piece_that_came_back_must_go_out_again() -> None:
    book = Input(2, 1)
    for worker, piece in ((0, 0), (1, 1)):
        book.ask((worker, 1))
        book.told((worker, 1), 0, piece)
    book.died((1, 1))
    book.succeeded(1, 2)
    due = book.begin()
    book.ask((0, 1))
    with pytest.raises(Broken, match="come back from the dead"):
        book.told_empty((0, 1), due)


def test_stop_is_said_exactly_where_all_end() -> None:
    stopping = Stopping(0)
    stopping.replied((0, 1), 4, False)
    stopping.told(6, 5)
    stopping.replied((1, 1), 6, True)
    with pytest.raises(Broken, match="not told stop=1"):
        stopping.replied((0, 1), 6, False)
    with pytest.raises(Broken, match="was said before"):
        Stopping.told(stopping, 7, 6)
    with pytest.raises(Broken, match="nobody is further"):
        Stopping(0).told(9, 3)
    nearer = Stopping(9)
    nearer.replied((0, 1), 2, False)
    nearer.told(4, 3)
    assert nearer.nearest(9) == 4


def test_the_reference_closes_a_clock_like_the_contract_says() -> None:
    def after(optimizer: str, combine: str, pushes: list[Staged]) -> list[float]:
        table = TableSpec("w", (2,), dtype="f64", optimizer=optimizer, settings={"lr": 0.5} if optimizer == "sgd" else {}, combine=combine)
        return list(Dense(JobSpec("j", 2, (table,)), table, lambda clock: pushes).at(1).tolist())

    both = [Staged(0, 1.0, np.array([1.0, 2.0])), Staged(1, 3.0, np.array([4.0, -2.0]))]
    assert after("add", "sum", both) == [5.0, 0.0]
    assert after("add", "mean", both) == [13 / 4, -1.0]
    assert after("sgd", "sum", both) == [-2.5, 0.0]
    assert after("assign", "mean", both[:1]) == [1.0, 2.0]
    assert after("assign", "mean", []) == [0.0, 0.0]
    assert after(FOLD, "sum", both) == [5.0, 0.0]


def test_rows_that_nobody_pushed_are_not_stepped_and_those_without_rows_weigh() -> None:
    table = TableSpec("e", (0, 1), kind="sparse", dtype="f64", optimizer="sgd", settings={"lr": 1.0}, combine="mean")
    pushes = [RowsStaged(0, 1.0, {4: np.array([8.0])}), RowsStaged(1, 3.0, {})]
    rows = Rows(JobSpec("j", 2, (table,)), table, lambda clock: pushes, {4: 4, 5: 5})
    assert set(rows.at(2)) == {4}
    assert rows.read(4, 2).tolist() == [-4.0] and rows.read(5, 2).tolist() == [0.0]


def test_adam_of_the_reference_is_that_of_the_paper() -> None:
    table = TableSpec("w", (1,), dtype="f64", optimizer="adam", settings={"lr": 0.1})
    state = stepped(table, State(np.zeros(1), (), 0), np.array([2.0]))
    assert state.values == pytest.approx([-0.1], rel=1e-8)  # the first step has the size of the rate
    assert stepped(table, state, np.array([2.0])).steps == 2
