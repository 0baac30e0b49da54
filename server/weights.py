"""What a Tick says that its worker's pushes of a clock weigh, table by table: checked before it is believed."""

from __future__ import annotations

import math
from typing import Any

from ..core.errors import PeerError
from . import plain

Weights = tuple[tuple[int, float], ...]

WEIGHT_MAX = 2.0**53 * 4096


def checked_weights(weights: tuple[Any, ...], tables: int) -> Weights:
    """Raises `PeerError` for anything that is not (table, sum of weights) of each table at most once."""
    known: set[int] = set()
    for pair in weights:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise PeerError("a weight in a Tick is no pair")
        table, weight = pair
        if not isinstance(table, int) or not 0 <= table < tables or table in known:
            raise PeerError(f"a weight in a Tick names table {table!r}")
        if not isinstance(weight, (int, float)) or not math.isfinite(weight) or not 0.0 <= weight <= WEIGHT_MAX:
            raise PeerError(f"a weight in a Tick is {weight!r}")
        known.add(table)
    return weights


def read_ticks(some: Any, tables: int) -> dict[int, tuple[int, Weights]]:
    """Ticks of one clock in a copy's document: worker -> (gen, weights).  Raises `PeerError`."""
    rows = plain.records(some, plain.whole, plain.whole, plain.listed)
    found = [(worker, (gen, checked_weights(tuple(map(tuple, map(plain.listed, weights))), tables))) for worker, gen, weights in rows]
    return plain.once(found)


def sorted_ticks(ticks: dict[int, dict[int, tuple[int, Weights]]]) -> list[tuple[int, list[tuple[int, int, Weights]]]]:
    """By clock and worker, as a plain document."""
    return [(clock, [(worker, *tick) for worker, tick in sorted(some.items())]) for clock, some in sorted(ticks.items())]
