"""Pushes that wait for their clock to close, by (clock, worker), and the one order in which a close sums them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..core.errors import PeerError
from ..wire.messages import Component
from . import plain
from .blocks import Blocks
from .buckets import Buckets, Pushed, RowParts
from .dump import Array, Layout, Shape, frozen
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

    # -- copies

    def dump(self) -> tuple[list[tuple[Any, ...]], dict[str, Array]]:
        """Each push as (components, blocks, buckets with numbers of rows), in order, and what was pushed, by reference."""
        meta: list[tuple[Any, ...]] = []
        arrays: dict[str, Array] = {}
        for staged in [staged for clock in sorted(self._clocks) for staged in self._of(clock)]:
            name = f"staged/{len(meta)}"
            blocks = [(place.table, place.block.number) for place, _ in staged.items]
            buckets = [(pushed.rows.table, pushed.rows.number, len(pushed.slots)) for pushed in staged.pushed]
            meta.append((staged.components, blocks, buckets))
            for number, (_, array) in enumerate(staged.items):
                arrays[f"{name}/{number}"] = frozen(array)
            for number, pushed in enumerate(staged.pushed, len(blocks)):
                arrays[f"{name}/{number}"], arrays[f"{name}/{number}/slots"] = frozen(pushed.values), frozen(pushed.slots)
        return meta, arrays

    @staticmethod
    def layout(meta: Any, blocks: Blocks, buckets: Buckets) -> Layout:
        """The arrays of a dump.  Raises `PeerError`."""
        found: dict[str, Shape] = {}
        for n, (_, places, some) in enumerate(_read(meta)):
            for number, key in enumerate(places):
                place = blocks.places.get(key)
                if place is None:
                    raise PeerError(f"a copy has a push to block {key[1]} of table {key[0]}, which does not lie in its range")
                found[f"staged/{n}/{number}"] = Shape(place.dtype, (place.segment.elements,))
            for number, (table, bucket, count) in enumerate(some, len(places)):
                rows = buckets.held.get((table, bucket))
                if rows is None:
                    raise PeerError(f"a copy has a push to bucket {bucket} of table {table}, which does not lie in its range")
                found[f"staged/{n}/{number}"] = Shape(rows.dtype, (count, rows.spec.width))
                found[f"staged/{n}/{number}/slots"] = Shape(np.dtype(np.int64), (count,))
        return found

    def load(self, meta: Any, arrays: dict[str, Array], blocks: Blocks, buckets: Buckets) -> None:
        """What a dump has, in place of what is here; the rows are there already.  Takes the arrays out.  Raises `PeerError`."""
        self.forget()
        for n, (components, places, some) in enumerate(_read(meta)):
            items = [(blocks.places[key], arrays.pop(f"staged/{n}/{number}")) for number, key in enumerate(places)]
            pushed = []
            for number, (table, bucket, _) in enumerate(some, len(places)):
                rows = buckets.held[table, bucket]
                slots, values = arrays.pop(f"staged/{n}/{number}/slots"), arrays.pop(f"staged/{n}/{number}")
                if int(slots.min()) < 0 or int(slots.max()) >= rows.count:
                    raise PeerError(f"a copy has a push to rows that {rows} has not")
                pushed.append(Pushed(rows, slots, values))
            self.add(Staged(components, items, pushed))

    def forget(self) -> None:
        """Nothing waits."""
        self._clocks.clear()
        self._counts.clear()

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


def _read(meta: Any) -> Iterator[tuple[tuple[Component, ...], list[tuple[int, int]], list[tuple[int, int, int]]]]:
    """The pushes of a dump.  Raises `PeerError`."""
    kinds = (plain.whole, plain.whole, plain.whole, plain.whole, plain.whole, plain.number)
    for components, blocks, buckets in plain.records(meta, plain.listed, plain.listed, plain.listed):
        found = tuple([Component(*component) for component in plain.records(components, *kinds)])
        if not found or len({component.clock for component in found}) > 1:
            raise PeerError("a copy has a push of no clock, or of several")
        places = [(table, block) for table, block in plain.records(blocks, plain.whole, plain.whole)]
        some = [(table, bucket, count) for table, bucket, count in plain.records(buckets, plain.whole, plain.whole, _counted)]
        yield found, places, some


def _counted(value: Any) -> int:
    return plain.whole(value, 1)
