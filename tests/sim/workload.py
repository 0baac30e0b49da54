"""What the simulated programs push and want: pure functions of the plan, and where it lies in a channel's files.

The counting tables get (1, n, n^2) for push n of a stream: `count` in a slot of its own, `tally` in a few of its rows.
The exact tables (`exact`, `summed`) get integers that depend on (worker, clock, number) alone, so that a generation
which repeats a clock pushes the same again, and BSP values are known beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

import numpy as np

from plugml.core.job import JobSpec
from plugml.core.keys import mix, name_hash
from plugml.core.table import TableSpec

from .weather import GENS, Plan

Array = np.ndarray[Any, Any]
FILED = 77.0  # every number of the file that gives first values
STREAM_ROWS = 6  # rows of a table that are a stream's own
SHARED_ROWS = 24  # rows of a table that everybody pushes to
WORKERS_TOP = 8
#: Two keys with one hash: the first is the name of row 0, the other one nobody may use beside it.
KEY, OTHER_KEY = b"8yn0iYCKYHlIj4-BwPqk", b"GReLUrM4wMqfg9yzV3KQ"
#: Sparse tables of which each stream has rows of its own; all others are everybody's.
OWNED = ("tally", "order")


class Turn(NamedTuple):
    """What a worker does in one clock: its pushes' weights, and whether the last one is a `step`."""

    weights: tuple[float, ...]
    style: str  # step: push.., step | parts: push.., clock, pull | mixed: push.., pushpull, clock | ahead: push.., clock, waiting for nobody


def turn_of(seed: int, worker: int, clock: int, at_least: int = 0) -> Turn:
    """The same for every generation of the worker."""
    chance = Random(mix(mix(seed) + worker * 1_000 + clock))
    style = ("step", "step", "step", "parts", "mixed", "ahead")[chance.randrange(6)]
    pushes = 1 if style == "step" else chance.randrange(3)
    if chance.randrange(4) == 0:
        pushes += 1
    return Turn(tuple(float(chance.randrange(1, 6)) for _ in range(max(pushes, at_least))), style)


def end_clock(seed: int, plan: Plan, worker: int) -> int:
    """Clocks that the worker does before it says bye; worker 0 does all."""
    if worker and plan.ends_early:
        return max(1, plan.clocks - Random(mix(seed + worker)).randrange(3))
    return plan.clocks


class Section(NamedTuple):
    """Some rows of one sparse table, in the order of the request, perhaps twice; `rows` are numbers of our own (`name_of`)."""

    table: TableSpec
    rows: tuple[int, ...]


class Content(NamedTuple):
    """What takes part in one push or pull."""

    dense: bool
    sections: tuple[Section, ...]


def content_of(spec: JobSpec, seed: int, worker: int, gen: int, clock: int, number: int, dense: bool = False) -> Content:
    """Of the `number`-th push of a clock: the same for every generation, but for the rows that are a stream's own."""
    tables = [table for table in spec.tables if table.kind == "sparse"]
    if not tables:
        return Content(True, ())
    chance = Random(mix(mix(seed ^ 0x5EC7) + (worker * 1_000 + clock) * 64 + number))
    sections = []
    for table in tables:
        if chance.random() < 0.7:
            count = chance.randrange(min(5, table.batch_rows + 1))
            owned = table.name in OWNED
            rows = tuple(chance.randrange(STREAM_ROWS if owned else SHARED_ROWS) for _ in range(count))
            if table.name == "written":
                rows = tuple(dict.fromkeys(rows))
            sections.append(Section(table, tuple(stream_row(worker, gen, row) for row in rows) if owned else rows))
    chance.shuffle(sections)
    return Content(chance.random() < 0.6 or not sections or dense, tuple(sections))


def exact_gradient(table: TableSpec, worker: int, clock: int, number: int) -> Array:
    """Small numbers that depend on place, worker, clock and push; above zero where a step divides by their size."""
    return _integers(table, np.arange(table.count, dtype=np.int64), worker, clock, number).astype(table.numpy_dtype)


def exact_row(table: TableSpec, row: int, worker: int, clock: int, number: int) -> Array:
    """The same of one row."""
    return _integers(table, row * 3 + np.arange(table.width, dtype=np.int64), worker, clock, number).astype(table.numpy_dtype)


def _integers(table: TableSpec, index: Array, worker: int, clock: int, number: int) -> Array:
    # Fractions where a mean is rounded anyway: the bits show the order of its sums.
    unit = 0.1 if table.combine == "mean" else 1
    lowest = 1 if table.optimizer in ("adagrad", "rmsprop", "adam", "adamw") else -5
    return ((index * 5 + worker * 31 + clock * 7 + number * 3) % 11 + lowest) * unit


# -- names of rows


def stream_row(worker: int, gen: int, row: int) -> int:
    return (worker * GENS + gen - 1) * STREAM_ROWS + row


def owner_of(row: int) -> tuple[int, int]:
    """The stream whose row it is."""
    worker, gen = divmod(row // STREAM_ROWS, GENS)
    return worker, gen + 1


def name_of(table: TableSpec, row: int) -> int | bytes:
    """What a program calls the row: every kind of table has each once."""
    if table.rows:
        return row
    if table.index_name == "str":
        if not row:
            return KEY
        return f"{'é' * (row % 3)}row {row}/{table.name}".encode()
    return row * 2654435761 & 0xFFFFFFFF if table.index_name == "u32" else mix(row)


def number_of(table: TableSpec, row: int) -> int:
    """What the servers call it."""
    name = name_of(table, row)
    return name_hash(name.decode()) if isinstance(name, bytes) else name


# -- places in files: a stranger's reading of SPEC.md


class Place(NamedTuple):
    table: TableSpec
    offset: int
    elements: int

    @property
    def nbytes(self) -> int:
        return self.elements * self.table.numpy_dtype.itemsize


def _up(offset: int, step: int) -> int:
    return -(-offset // step) * step


def places_of(spec: JobSpec, content: Content) -> tuple[list[Place], list[Place], int]:
    """Dense tables, sections that have rows, and the end of `grad` or `param`."""
    dense = [Place(place.table, place.offset, place.table.count) for place in spec.layout.places] if content.dense else []
    end = max((place.offset + place.nbytes for place in dense), default=0)
    sections, at = [], _up(end, 64)
    for table, rows in content.sections:
        if rows:
            at = _up(at, 8)
            sections.append(Place(table, at, len(rows) * table.width))
            end = at = at + sections[-1].nbytes
    return dense, sections, end


def in_places(spec: JobSpec, content: Content, dense: bytes | bytearray, rows: Sequence[Array]) -> bytearray:
    """`grad`: the dense tables as they lie there, then the rows of each section."""
    _, sections, end = places_of(spec, content)
    data = bytearray(end)
    if content.dense:
        data[: len(dense)] = dense
    for place, values in zip(sections, [values for values in rows if values.size]):
        data[place.offset : place.offset + place.nbytes] = values.astype(place.table.numpy_dtype).tobytes()
    return data


def names_in_places(content: Content, text: bool) -> tuple[bytes, bytes]:
    """Row numbers as they lie in `gidx` or `want`, and keys as in `gkey` or `wkey`."""
    numbers, lines, keys = bytearray(), [], []
    for table, rows in content.sections:
        names = [name_of(table, row) for row in rows]
        if table.index_name == "str":
            keys += [name + b"\n" for name in names if isinstance(name, bytes)]
        elif names:
            numbers += bytes(_up(len(numbers), 8) - len(numbers))
            numbers += np.array(names, "<u4" if table.index_name == "u32" else "<u8").tobytes()
            lines += [f"{name}\n".encode() for name in names if isinstance(name, int)]
    return b"".join(lines) if text else bytes(numbers), b"".join(keys)


def to_text(spec: JobSpec, content: Content, data: bytes | bytearray) -> bytes:
    """One number a line, everything that takes part."""
    dense, sections, _ = places_of(spec, content)
    lines: list[str] = []
    for place in (*dense, *sections):
        lines += map(repr, np.frombuffer(data, place.table.numpy_dtype, place.elements, place.offset).tolist())
    return "".join(f"{line}\n" for line in lines).encode()


def from_text(spec: JobSpec, content: Content, text: bytes) -> bytes:
    """Back into the layout of `param`.  Raises ValueError for another count of numbers."""
    dense, sections, end = places_of(spec, content)
    data = bytearray(end)
    words, at = text.split(), 0
    for place in (*dense, *sections):
        kind = int if place.table.dtype == "i64" else float
        values = np.array([kind(word) for word in words[at : at + place.elements]], place.table.numpy_dtype)
        data[place.offset : place.offset + place.nbytes] = values.tobytes()
        at += place.elements
    if at != len(words):
        raise ValueError(f"param.txt holds {len(words)} numbers instead of {at}")
    return bytes(data)
