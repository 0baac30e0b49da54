"""What a table must hold after so many closed clocks (BSP): the servers' arithmetic once more, in plain numpy.

Nothing is shared with the servers but the first values.  Rows of a sparse table are steps of their own: one that nobody
pushed to is not stepped, and each counts its own steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from plugml.core.job import JobSpec
from plugml.core.table import TableSpec
from plugml.server import firsts

from .ordered import FOLD, folded

Array = np.ndarray[Any, Any]

#: How far rounding may lead away from the reference: where the steps are exact nowhere, else by the servers' numbers.
ROUNDING = {"f16": 2e-3, "f32": 1e-5, "f64": 1e-12, "i64": 0.0}
ROUNDING_OF_STATE = {"f32": 2e-3, "f64": 1e-8}
STATEFUL = ("momentum", "nesterov", "adagrad", "rmsprop", "adam", "adamw")


class Staged(NamedTuple):
    """One push of one worker in one clock, as the program wrote it."""

    worker: int
    weight: float
    gradient: Array


class RowsStaged(NamedTuple):
    """The same of rows; a table may take part without any."""

    worker: int
    weight: float
    rows: dict[int, Array]


class State(NamedTuple):
    """Values, the optimizer's state, and how many steps were made."""

    values: Array
    slots: tuple[Array, ...]
    steps: int


def stepped(table: TableSpec, state: State, g: Array, factor: float = 1.0) -> State:
    """One step with `g`; `factor` is what the lr is multiplied with in this clock."""
    w, name, steps = state.values, table.optimizer, state.steps + 1
    if name == "add":
        return State(w + g, (), steps)
    if name == "assign":
        return State(np.array(g, np.float64), (), steps)
    if name == FOLD:
        return State(folded(w, g), (), steps)
    lr = table.setting("lr") * factor
    slots = state.slots or (np.zeros_like(w), np.zeros_like(w))
    one, two = slots
    if name == "sgd":
        return State(w - lr * g, (), steps)
    if name in ("momentum", "nesterov"):
        beta = table.setting("beta")
        one = beta * one + g
        return State(w - lr * (one if name == "momentum" else g + beta * one), (one, two), steps)
    eps = table.setting("eps")
    if name == "adagrad":
        one = one + g * g
        return State(w - lr * g / (np.sqrt(one) + eps), (one, two), steps)
    if name == "rmsprop":
        beta = table.setting("beta")
        one = beta * one + (1 - beta) * g * g
        return State(w - lr * g / (np.sqrt(one) + eps), (one, two), steps)
    beta1, beta2 = table.setting("beta1"), table.setting("beta2")
    one, two = beta1 * one + (1 - beta1) * g, beta2 * two + (1 - beta2) * g * g
    move = lr * (one / (1 - beta1**steps)) / (np.sqrt(two / (1 - beta2**steps)) + eps)
    if name == "adamw":
        move = move + lr * table.setting("weight_decay") * w
    return State(w - move, (one, two), steps)


def combined(pushes: Sequence[tuple[float, Array]], combine: str, total: float) -> Array:
    """Pushes (weight, numbers) as one update; `total` weighs all of the clock."""
    if combine == "sum":
        return np.sum([gradient for _, gradient in pushes], axis=0)
    return np.sum([weight * gradient for weight, gradient in pushes], axis=0) / total


def is_exact(spec: JobSpec, table: TableSpec) -> bool:
    """Whole numbers all the way: every order and every machine gives the same."""
    scaled = table.optimizer == "sgd" and spec.lr_scale != "none"  # by a root, or by parts of a warm-up
    return spec.combine_of(table) == "sum" and table.init == "zeros" and table.optimizer not in STATEFUL and not scaled


def rounding(spec: JobSpec, table: TableSpec) -> float:
    """How far a number may be from the reference, in parts of it; 0 = to the last bit."""
    if is_exact(spec, table):
        return 0.0
    kinds = ROUNDING_OF_STATE if table.optimizer in STATEFUL else ROUNDING
    return max(kinds[table.storage_name], kinds[table.dtype])


class Dense:
    """A dense table, clock by clock; `staged(clock)` are its pushes in the order that the contract fixes."""

    def __init__(self, spec: JobSpec, table: TableSpec, staged: Callable[[int], list[Staged]]) -> None:
        self._spec, self._table, self._staged = spec, table, staged
        first = np.zeros(table.count, table.storage_dtype)
        firsts.fill(table, spec.seed, 0, table.count, first)
        self._states = [State(first.astype(np.float64), (), 0)]

    def at(self, clock: int) -> Array:
        """Values with so many clocks closed."""
        spec, table = self._spec, self._table
        while len(self._states) <= clock:
            done = len(self._states) - 1
            state, pushes = self._states[-1], self._staged(done)
            if pushes:
                total = sum(push.weight for push in pushes)
                update = combined([(push.weight, push.gradient) for push in pushes], spec.combine_of(table), total)
                state = stepped(table, state, update, spec.lr_factor(done))
            self._states.append(state)
        return self._states[clock].values


class Rows:
    """A sparse table: by clock, each row that was ever stepped."""

    def __init__(self, spec: JobSpec, table: TableSpec, staged: Callable[[int], list[RowsStaged]], names: dict[int, int]) -> None:
        """`names` gives the number under which the servers know a row."""
        self._spec, self._table, self._staged, self._names = spec, table, staged, names
        self._states: list[dict[int, State]] = [{}]

    def first(self, row: int) -> Array:
        out = np.zeros((1, self._table.width), self._table.storage_dtype)
        firsts.fill_rows(self._table, self._spec.seed, np.array([self._names[row]], np.uint64), out)
        return out[0].astype(np.float64)

    def at(self, clock: int) -> dict[int, State]:
        """The rows with so many clocks closed; those that are not there read as their first values."""
        while len(self._states) <= clock:
            self._states.append(self._close(self._states[-1], len(self._states) - 1))
        return self._states[clock]

    def _close(self, before: dict[int, State], clock: int) -> dict[int, State]:
        spec, table, pushes = self._spec, self._table, self._staged(clock)
        total = sum(push.weight for push in pushes)
        after = dict(before)
        for row in sorted({row for push in pushes for row in push.rows}):
            update = combined([(push.weight, push.rows[row]) for push in pushes if row in push.rows], spec.combine_of(table), total)
            state = before.get(row) or State(self.first(row), (), 0)
            after[row] = stepped(table, state, update, spec.lr_factor(clock))
        return after

    def read(self, row: int, clock: int) -> Array:
        state = self.at(clock).get(row)
        return self.first(row) if state is None else state.values
