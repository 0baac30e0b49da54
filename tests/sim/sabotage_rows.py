"""Sabotages of the rules of rows, their optimizers, snapshots and storage: see `mutants.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from plugml.agent import sparse
from plugml.agent.sparse import Wanted
from plugml.agent.transfer import Scatter
from plugml.core.effects import Send
from plugml.server.blocks import whole
from plugml.server.buckets import Buckets
from plugml.server.contents import Contents
from plugml.server.range import RangeMachine
from plugml.server.rows import Rows, Step
from plugml.server.staging import Staging
from plugml.server.streams import NEXT, SEEN
from plugml.wire import messages as m

Original = Callable[..., Any]


def read_creates(original: Original) -> Original:
    """A row that is asked for comes into being."""

    def show(self: Buckets, group: Any) -> Any:
        missing = np.flatnonzero(group.slots < 0)
        if len(missing):
            held, ids, slots = group.rows, group.ids[missing], group.slots[missing]
            keys = group.keys.some(missing) if group.keys is not None else None
            state = held._read_state(slots)
            held.reserve(len(ids), len(keys.text) if keys is not None else 0)
            whole(self.take([Step(held, ids, keys, slots, held.read(ids, slots), state, np.ones(len(ids), np.int64))], held.changed))
        return original(self, group)

    return show


def show_what_waits(original: Original) -> Original:
    """A scan shows rows that a close has not stepped yet."""

    def scan(self: Rows, cursor: int, most_bytes: int, kept: Any) -> Any:
        steps = self._steps.array[: self.count, 0].copy()
        self._steps.array[: self.count, 0] = np.maximum(steps, 1)
        try:
            return original(self, cursor, most_bytes, kept)
        finally:
            self._steps.array[: self.count, 0] = steps

    return scan


def number_without_gaps(original: Original) -> Original:
    """Every push is said to follow the stream's last one, whether that range got it or not."""

    def on_ack(self: Scatter, ack: Any) -> bool:
        news = bool(original(self, ack))
        if news and not self.claim:
            self.stream.prev = dict.fromkeys(range(len(self.job.routes)), self.seq)
        return news

    return on_ack


def first_of_twins(original: Original) -> Original:
    """Of a row that comes twice the first push counts."""

    def add_up(came: Any, table: Any) -> Any:
        if sparse.distinct(came.ids):
            return came
        _, first = np.unique(came.ids, return_index=True)
        keys = () if came.keys is None else sparse.take_keys(came.keys, came.ends, first)
        return came._replace(ids=came.ids[first], values=came.values[first], **dict(zip(("keys", "ends"), keys)))

    return add_up


def any_order(original: Original) -> Original:
    """Rows are handed over as the servers hold them."""

    def ask(self: Wanted, number: int, loads: Any) -> None:
        original(self, number, loads)
        if self.take is not None and len(self.take) == self.rows.size:
            self.take = None

    return ask


def by_arrival(original: Original) -> Original:
    """A close sums pushes as they have come."""

    def of(self: Staging, clock: int) -> Any:
        for pushes in self._clocks.get(clock, {}).values():
            yield from pushes

    return of


def live_blocks(original: Original) -> Original:
    def show_kept(self: Contents, at: int, closed: int, segments: Any) -> Any:
        self._snapshot(at, closed)
        return self.blocks.show(segments)

    return show_kept


def live_rows(original: Original) -> Original:
    def scan(self: Contents, at: int, closed: int, *rest: Any) -> Any:
        if at:
            self._snapshot(at, closed)
        return original(self, 0, closed, *rest)

    return scan


def forget_state(original: Original) -> Original:
    def read_state(self: Rows, slots: Any) -> Any:
        return tuple(np.zeros_like(array) for array in original(self, slots))

    return read_state


def count_together(original: Original) -> Original:
    """All rows of a bucket count their steps together."""

    def read_steps(self: Rows, slots: Any) -> Any:
        most = self._steps.array[: self.count, 0].max(initial=0)
        return np.full_like(original(self, slots), most)

    return read_steps


def step_unpushed_rows(original: Original) -> Original:
    """A close steps every row of the bucket, with nothing where nobody pushed."""

    def combined(self: Buckets, held: Rows, parts: Any, mix: Any) -> Any:  # a step of slices, as the original
        slots, update = yield from original(self, held, parts, mix)
        if update is None:
            return slots, update
        whole = np.zeros((held.count, update.shape[1]), update.dtype)
        whole[slots] = update
        return np.arange(held.count, dtype=np.int64), whole

    return combined


def forget_keys(original: Original) -> Original:
    """Two keys with one hash are one row."""
    return lambda *arguments: None


def any_key(original: Original) -> Original:
    return lambda self, keys, slots: -1


def convert_only_what_differs(original: Original) -> Original:
    """A table that is kept as it is, beside one that is converted, was not copied."""

    def store(series: Any, into: Any) -> None:
        if into is series.values or into.dtype != series.values.dtype:
            original(series, into)

    return store


def scan_from_the_start(original: Original) -> Original:
    """Every answer to a scan begins at the first slot."""
    return lambda self, cursor, most_bytes, held: (*original(self, 0, most_bytes, held)[:3], original(self, cursor, most_bytes, held)[3])


# -- sums of several workers


def ack_what_is_partly_seen(original: Original) -> Original:
    """Where some components of a sum are taken, all are said to be."""

    def not_next(self: RangeMachine, sender: str, components: Any, looks: Any) -> Any:
        effects = original(self, sender, components, looks)
        if any(isinstance(effect.message, m.Partial) for effect in effects):
            return [Send(sender, self._ack(*component[:3])) for component in components]
        return effects

    return not_next


def count_a_component_again(original: Original) -> Original:
    """A sum is taken although one of its components was."""

    def on_push(self: RangeMachine, sender: str, push: m.Push) -> Any:
        looks = [self.streams.look(component) for component in push.components]
        if len(looks) > 1 and NEXT in looks and SEEN in looks:
            push = push._replace(components=tuple(component._replace(prev=component.seq - 1) for component in push.components))
            for component in push.components:
                self.streams.rows[component.worker] = (component.gen, component.prev)
        return original(self, sender, push)

    return on_push
