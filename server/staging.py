"""Pushes that wait for their clock to close, by (clock, worker), and the one order in which a close sums them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .place import Items, Parts, Place


class Staged(NamedTuple):
    """One push.  Its arrays are the received frames: nothing is copied until the close reads them."""

    gen: int
    seq: int
    weight: float
    items: Items


class Staging:
    """Bounded by whoever adds: at most two clocks, and so many pushes of a worker in each."""

    def __init__(self) -> None:
        self._clocks: dict[int, dict[int, list[Staged]]] = {}

    def add(self, clock: int, worker: int, staged: Staged) -> None:
        self._clocks.setdefault(clock, {}).setdefault(worker, []).append(staged)

    def count(self, clock: int, worker: int) -> int:
        workers = self._clocks.get(clock)
        return len(workers.get(worker, ())) if workers else 0

    def plan(self, clock: int, members: Sequence[tuple[int, int]]) -> dict[Place, Parts]:
        """For each block what the members pushed to it: by number of worker, then by seq.  Others' pushes are left out."""
        workers = self._clocks.get(clock)
        plan: dict[Place, Parts] = {}
        if not workers:
            return plan
        for worker, gen in sorted(members):
            for staged in workers.get(worker, ()):
                if staged.gen != gen:
                    continue  # an incarnation that did not live to tick this clock
                for place, array in staged.items:
                    parts = plan.get(place)
                    if parts is None:
                        parts = plan[place] = Parts()
                    parts.arrays.append(array)
                    parts.weights.append(staged.weight)
        return plan

    def drop(self, clock: int) -> None:
        """The clock is closed: what was not summed is gone."""
        self._clocks.pop(clock, None)

    def clocks(self) -> list[int]:
        return sorted(self._clocks)

    def pushes(self) -> list[tuple[int, int, int, int]]:
        """(clock, worker, gen, seq) of everything that waits, in order."""
        return [
            (clock, worker, staged.gen, staged.seq)
            for clock in sorted(self._clocks)
            for worker in sorted(self._clocks[clock])
            for staged in self._clocks[clock][worker]
        ]
