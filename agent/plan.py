"""What each range holds of a job, and where those numbers lie in the channel's files.

The plan depends on the job's tables and the ring only, so that it never changes.  Its parts are those of the dense
tables; a request that moves rows makes parts of its own (`sparse`).  Refuses to know who leads a range just now.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from ..core.clock import BSP, Consistency
from ..core.job import JobSpec
from ..core.jobmap import buckets, pieces
from ..core.keys import table_hash
from ..core.table import DTYPE_CODES
from ..wire import messages as m

Buffer = Any


class Slice(NamedTuple):
    """A block's bytes in `grad` and `param`, and (`start` to `end`) where they lie in a push as it travels."""

    offset: int
    stop: int
    start: int
    end: int
    table: int


class Spot(NamedTuple):
    """Rows `start` to `stop` of those that a request wants of one table, in the order in which they are asked for."""

    want: int
    start: int
    stop: int


class Part(NamedTuple):
    """What one message brings to a range, or asks of it.

    `segments` are those of a push, or of the answer to a pull; `asked` those of the pull.  Dense blocks come first, each with
    its slice; `frames` is the payload behind them.  `spots` say where the rows of an answer belong.
    """

    range: int
    segments: tuple[m.Segment, ...]
    slices: tuple[Slice, ...]
    nbytes: int
    asked: tuple[m.Segment, ...]
    frames: tuple[Buffer, ...] = ()
    spots: tuple[Spot, ...] = ()

    def only(self, tables: frozenset[int]) -> Part:
        """The same part of some dense tables alone."""
        kept = [(segment, place) for segment, place in zip(self.segments, self.slices) if segment.table in tables]
        segments = tuple(segment for segment, _place in kept)
        slices = tuple(place for _segment, place in kept)
        return Part(self.range, segments, slices, sum(place.end - place.start for place in slices), absent(segments))

    @property
    def tables(self) -> set[int]:
        return {segment.table for segment in self.segments}


def absent(segments: Iterable[m.Segment]) -> tuple[m.Segment, ...]:
    """The same pieces without their numbers."""
    return tuple(segment._replace(carry=m.ABSENT) for segment in segments)


class Sparse(NamedTuple):
    """One sparse table as requests are cut by it."""

    number: int
    name: str
    start: int  # its place on the ring, which is part of each row's hash
    ranges: tuple[int, ...]  # of each bucket
    width: int
    batch: int
    index_name: str
    dtype: np.dtype[Any]  # the program's
    storage: np.dtype[Any]
    code: int  # of the storage on the wire


class Gate(NamedTuple):
    """What a worker waits for that reads some tables together: the strictest of their models."""

    closes: bool  # BSP: clocks before its own are closed
    slack: int | None  # SSP: clocks that the slowest worker may be behind
    own: bool  # its own pushes are visible before a close

    @classmethod
    def of(cls, models: Iterable[Consistency]) -> Gate:
        models = list(models)
        slacks = [model.slack for model in models if model.model != BSP and model.slack is not None]
        return cls(any(model.model == BSP for model in models), min(slacks, default=None), any(model.model != BSP for model in models))

    def closed(self, clock: int) -> int:
        """Clocks that must be closed before a worker in `clock` may read."""
        return clock if self.closes else 0

    def slowest(self, clock: int) -> int:
        """Clocks that the slowest worker must have finished (BSP has closes)."""
        return max(0, clock - self.slack) if self.slack is not None else 0


class Plan(NamedTuple):
    """Every part of a job's dense tables, in order of their first byte, and its sparse tables by name."""

    parts: tuple[Part, ...]
    by_range: dict[int, Part]
    nbytes: int  # of the dense tables in `grad` and `param`
    stored_nbytes: int  # of them in a push as it travels
    elements: int  # of all dense tables
    tables: tuple[int, ...]  # numbers of the dense tables
    program_tables: frozenset[int]  # those whose first values a program gives
    first_tables: frozenset[int]  # the same, and those whose first values lie in files
    files: tuple[tuple[str, int, int], ...]  # path, offset, bytes of first values in files
    model_of: tuple[Consistency, ...]  # of each table
    gate: Gate  # of all tables
    dense_gate: Gate  # of the dense ones
    sparse: dict[str, Sparse]
    dtypes: dict[int, tuple[np.dtype[Any], np.dtype[Any]]]  # of dense tables: the program's kind of number, the servers'
    converts: bool  # there is one where they differ
    ranges: frozenset[int]  # that hold something

    @classmethod
    def of(cls, spec: JobSpec, ring_ranges: int) -> Plan:
        parts = _dense_parts(spec, ring_ranges)
        dense = tuple(number for number, table in enumerate(spec.tables) if table.kind == "dense")
        model_of = tuple(spec.consistency_of(table) for table in spec.tables)
        sparse = _sparse(spec, ring_ranges)
        dtypes = {number: (spec.tables[number].numpy_dtype, spec.tables[number].storage_dtype) for number in dense}
        return cls(
            parts,
            {part.range: part for part in parts},
            spec.layout.nbytes,
            spec.stored_layout.nbytes,
            sum(spec.tables[number].count for number in dense),
            dense,
            frozenset(number for number in dense if spec.tables[number].init == "program"),
            frozenset(number for number in dense if spec.tables[number].init in ("program", "file")),
            tuple(
                (str(table.init_settings["path"]), offset, table.nbytes)
                for table, offset in spec.layout.places
                if table.init == "file"
            ),
            model_of,
            Gate.of(model_of),
            Gate.of(model_of[number] for number in dense),
            sparse,
            dtypes,
            any(mine != stored for mine, stored in dtypes.values()),
            frozenset([part.range for part in parts] + [number for table in sparse.values() for number in table.ranges]),
        )

    def gate_of(self, dense: bool, names: Iterable[str]) -> Gate:
        """What must have happened before some tables may be read; if there are none, before any of the job's."""
        if not names:
            return self.dense_gate if dense and self.tables else self.gate
        models = {self.model_of[self.sparse[name].number] for name in names}
        return Gate.of(models.union(self.model_of[number] for number in self.tables) if dense else models)


def _dense_parts(spec: JobSpec, ring_ranges: int) -> tuple[Part, ...]:
    segments: dict[int, list[m.Segment]] = {}
    slices: dict[int, list[Slice]] = {}
    for piece in pieces(spec, ring_ranges):
        elements = piece.block.stop - piece.block.start
        code = DTYPE_CODES[spec.tables[piece.table].storage_name]
        place = Slice(
            piece.offset, piece.offset + piece.nbytes, piece.stored_offset, piece.stored_offset + piece.stored_nbytes, piece.table
        )
        segments.setdefault(piece.range, []).append(m.Segment(piece.table, piece.block.number, elements, code))
        slices.setdefault(piece.range, []).append(place)
    return tuple(
        Part(
            number, tuple(segments[number]), tuple(slices[number]), sum(place.end - place.start for place in slices[number]),
            absent(segments[number]),
        )
        for number in segments
    )  # fmt: skip


def _sparse(spec: JobSpec, ring_ranges: int) -> dict[str, Sparse]:
    ranges: dict[int, list[int]] = {}
    for bucket in buckets(spec, ring_ranges):
        ranges.setdefault(bucket.table, []).append(bucket.range)
    found = {}
    for number, homes in ranges.items():
        table = spec.tables[number]
        found[table.name] = Sparse(
            number, table.name, table_hash(spec.name, table.name), tuple(homes), table.width, table.batch_rows, table.index_name,
            table.numpy_dtype, table.storage_dtype, DTYPE_CODES[table.storage_name],
        )  # fmt: skip
    return found
