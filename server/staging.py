"""Pushes that wait for their clock to close, by (clock, worker), and the one order in which a close sums them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..wire.messages import Component
from .buckets import Pushed, RowParts
from .place import Items, Parts, Place
from .rows import Rows


class Staged(NamedTuple):
    """One push.  Its arrays are the received frames: nothing is copied until the close reads them."""

    components: tuple[Component, ...]
    items: Items
    pushed: list[Pushed]


class Plan(NamedTuple):
    """For each block and bucket what the members pushed to it, in the order of the sum."""

    blocks: dict[Place, Parts]
    rows: dict[Rows, RowParts]

    def holders(self) -> list[Place | Rows]:
        return [*self.blocks, *self.rows]


class Staging:
    """Bounded by whoever adds: at most two clocks, and so many pushes of an incarnation in each."""

    def __init__(self) -> None:
        self._clocks: dict[int, dict[int, list[Staged]]] = {}  # a sum of several workers stands under the lowest
        self._counts: dict[int, dict[tuple[int, int], int]] = {}  # clock -> stream -> pushes

    def add(self, staged: Staged) -> None:
        clock = staged.components[0].clock
        streams = [component[:2] for component in staged.components]
        self._clocks.setdefault(clock, {}).setdefault(min(streams)[0], []).append(staged)
        counts = self._counts.setdefault(clock, {})
        for stream in streams:
            counts[stream] = counts.get(stream, 0) + 1

    def count(self, component: Component) -> int:
        """Pushes of its stream that wait for the same clock, as one of several too; not those of incarnations before it."""
        counts = self._counts.get(component.clock)
        return counts.get(component[:2], 0) if counts else 0

    def row_bytes(self, clock: int) -> int:
        """Bytes of rows that a close of this clock has to add up."""
        return sum(pushed.values.nbytes for staged in self._of(clock) for pushed in staged.pushed)

    def plan(self, clock: int, members: Sequence[tuple[int, int]]) -> Plan:
        """By number of worker, then by seq.  Others' pushes are left out.

        A sum counts if one of its workers is a member; what the others of it weigh, no member's weight holds: it comes
        on top of the total.
        """
        plan = Plan({}, {})
        ticked = set(members)
        for staged in self._of(clock):
            components = staged.components
            strange = sum(component[:2] not in ticked for component in components)
            if strange == len(components):
                continue  # incarnations that did not live to tick this clock
            weight, pushes = components[0].weight, len(components)
            for place, array in staged.items:
                parts = plan.blocks.get(place)
                if parts is None:
                    parts = plan.blocks[place] = Parts()
                parts.add(array, weight)
                parts.weigh(weight, pushes, strange)
            if staged.pushed:
                _add_rows(plan, staged.pushed, weight)
                for rows in {pushed.rows for pushed in staged.pushed}:
                    plan.rows[rows].weigh(weight, pushes, strange)
        return plan

    def drop(self, clock: int) -> None:
        """The clock is closed: what was not summed is gone."""
        self._clocks.pop(clock, None)
        self._counts.pop(clock, None)

    def clocks(self) -> list[int]:
        return sorted(self._clocks)

    def pushes(self) -> list[tuple[int, int, int, int]]:
        """(clock, worker, gen, seq) of everything that waits, in order."""
        return [
            (clock, worker, gen, seq)
            for clock in sorted(self._clocks)
            for worker, gen, seq in sorted(component[:3] for staged in self._of(clock) for component in staged.components)
        ]

    def _of(self, clock: int) -> Iterator[Staged]:
        """Everything that waits for this clock, in the order of the sum."""
        workers = self._clocks.get(clock, {})
        for worker in sorted(workers):
            yield from workers[worker]


def _add_rows(plan: Plan, some: Sequence[Pushed], weight: float) -> None:
    for pushed in some:
        parts = plan.rows.get(pushed.rows)
        if parts is None:
            parts = plan.rows[pushed.rows] = RowParts()
        parts.append(pushed, weight)
