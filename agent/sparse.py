"""Rows of sparse tables on their way to buckets: twins added up, rows cut by hash, groups that fit into frames.

    pushed   rows as they came -> each once -> by bucket -> IDS [KEYS] ROWS of at most about 1 MiB -> with the dense blocks of the range
    wanted   rows as they came -> each once -> by bucket -> IDS [KEYS]; `Wanted` knows where the answers' rows belong

Works on all rows at once.  Refuses to know files, servers and requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import Code, RequestError
from ..core.limits import MIB, Limits
from ..shm_protocol.request import Request
from ..shm_protocol.rows import Rows
from ..wire import messages as m
from ..wire.codec import U8, U64
from .cuts import Cut, Cuts, distinct, sorting, take_keys
from .plan import Part, Plan, Slice, Sparse, Spot

GROUP_BYTES = MIB  # of values, or of row numbers, in one frame
KEY_BYTES_MAX = 255
KEYS_BYTES = 4 * MIB  # of keys in one frame
_ITEM_BYTES = 8  # of a row number


def check_sections(plan: Plan, request: Request, names: Sequence[str]) -> None:
    """Whether the job has these tables and takes so many rows of them.  Raises `RequestError`."""
    for section in request.sections:
        table = plan.sparse.get(section.table)
        if table is None and section.table in names:
            raise RequestError(Code.FORMAT, f"table={section.table}: it is dense; only sparse tables are named, n= brings all dense ones")
        if table is None:
            raise RequestError(Code.RANGE, f"table={section.table}: the job has no such table, only {', '.join(names)}")
        for word, count in (("k", section.rows), ("want", section.want)):
            if count > table.batch:
                raise RequestError(Code.RANGE, f"table={section.table} {word}={count}: one request has at most {table.batch} rows of it (batch)")


# -- each row once


def add_up(rows: Rows, table: Sparse) -> Rows:
    """The same rows, those that come twice added up in order of their coming.  Raises `RequestError`.

    >>> from plugml.agent.plan import Sparse
    >>> table = Sparse(0, "e", 0, (0,), 1, 9, "u64", np.dtype("<f4"), np.dtype("<f4"), 1)
    >>> rows = Rows(0, np.array([7, 5, 7], np.uint64), np.array([[1], [2], [4]], np.float32))
    >>> add_up(rows, table).ids.tolist(), add_up(rows, table).values.tolist()
    ([5, 7], [[2.0], [5.0]])
    """
    if distinct(rows.ids):
        return rows
    assert rows.values is not None
    order = sorting(rows.ids)
    ids = rows.ids.take(order)
    new = np.concatenate([np.ones(1, bool), ids[1:] != ids[:-1]])
    ids, first = ids[new], order[new]
    home = np.empty(rows.size, np.int64)
    home[order] = np.cumsum(new) - 1
    later = np.ones(rows.size, bool)
    later[first] = False
    sums = rows.values.take(first, 0)
    if sums.dtype.kind == "i":
        _check_whole(sums, home[later], rows.values[later], ids, table)
    if sums.dtype.itemsize < 4:  # halves: added as singles, rounded once
        wide = sums.astype(np.float32)
        np.add.at(wide, home[later], rows.values[later].astype(np.float32))
        with np.errstate(over="ignore"):
            sums = wide.astype(sums.dtype)
    else:
        with np.errstate(over="ignore"):
            np.add.at(sums, home[later], rows.values[later])
    if sums.dtype.kind == "f" and not np.isfinite(sums).all():
        raise _too_large(int(ids[int((~np.isfinite(sums)).any(axis=1).argmax())]), table)
    if rows.keys is None:
        return Rows(rows.table, ids, sums)
    assert rows.ends is not None
    return Rows(rows.table, ids, sums, *take_keys(rows.keys, rows.ends, first))


def _check_whole(sums: NDArray[Any], home: NDArray[Any], more: NDArray[Any], ids: NDArray[Any], table: Sparse) -> None:
    """Whole numbers wrap around: their halves are added apart, which is exact, and the sum must fit again."""
    high, low = sums >> 32, sums & 0xFFFFFFFF
    np.add.at(high, home, more >> 32)
    np.add.at(low, home, more & 0xFFFFFFFF)
    high += low >> 32
    bad = ((high < -(1 << 31)) | (high >= 1 << 31)).any(axis=1)
    if bad.any():
        raise _too_large(int(ids[int(bad.argmax())]), table)


def _too_large(row: int, table: Sparse) -> RequestError:
    what = f"the key whose row number is {row}" if table.index_name == "str" else f"row {row}"
    return RequestError(Code.RANGE, f"{what} of table {table.name} comes several times, and the sum leaves the range of its numbers; nothing was applied")


# -- keys


def _key_frame(keys: NDArray[np.uint8], ends: NDArray[np.int64], start: int, stop: int) -> NDArray[np.uint8]:
    """The u32 length of each key, then the bytes of all."""
    low = int(ends[start - 1]) if start else 0
    lengths = np.diff(ends[start:stop], prepend=low).astype("<u4")
    return np.concatenate([lengths.view(np.uint8), keys[low : int(ends[stop - 1])]])


# -- by bucket


def _groups(table: Sparse, ends: NDArray[Any]) -> Iterator[tuple[int, int, int]]:
    """(bucket, first row, end) of each group, none of them empty."""
    most = max(1, min(GROUP_BYTES // (table.width * table.storage.itemsize), GROUP_BYTES // _ITEM_BYTES))
    if table.index_name == "str":
        most = min(most, KEYS_BYTES // (KEY_BYTES_MAX + 4))
    start = 0
    for bucket, end in enumerate(ends.tolist()):
        for low in range(start, end, most):
            yield bucket, low, min(low + most, end)
        start = end


class _Load:
    """What goes to one range."""

    __slots__ = ("segments", "slices", "frames", "asked", "spots", "nbytes")

    def __init__(self, part: Part | None) -> None:
        self.segments: list[m.Segment] = [] if part is None else list(part.segments)
        self.slices: tuple[Slice, ...] = () if part is None else part.slices
        self.asked: list[m.Segment] = [] if part is None else list(part.asked)
        self.nbytes = 0 if part is None else part.nbytes
        self.frames: list[Any] = []
        self.spots: list[Spot] = []


def _loads(dense: Iterable[Part]) -> dict[int, _Load]:
    return {part.range: _Load(part) for part in dense}


def _packed(loads: dict[int, _Load], limits: Limits) -> tuple[Part, ...]:
    """Raises `RequestError` for more than one message holds."""
    for load in loads.values():
        if max(len(load.segments), len(load.asked)) > limits.segments_max or len(load.frames) + len(load.slices) >= limits.frames_max:
            raise RequestError(Code.RANGE, "more rows in one request than one message to a server holds; push and pull them in several requests")
    return tuple(
        Part(number, tuple(load.segments), load.slices, load.nbytes, tuple(load.asked), tuple(load.frames), tuple(load.spots))
        for number, load in loads.items()
    )


def cut_push(plan: Plan, rows: Sequence[Rows], dense: bool, limits: Limits, cuts: Cuts | None = None) -> tuple[Part, ...]:
    """The parts of a push: each range's rows beside its dense blocks; a range that gets nothing has none.  Raises `RequestError`."""
    cuts = cuts or Cuts()
    if not rows:
        return plan.parts if dense else ()
    loads = _loads(plan.parts if dense else ())
    tables = {table.number: table for table in plan.sparse.values()}
    for came in rows:
        table = tables[came.table]
        cut = cuts.of(came, table)
        values = add_up(came, table).values if cut.twins else came.values
        assert values is not None
        if cut.order is not None:
            values = values.take(cut.order, 0)
        ids, keys, key_ends = cut.sent.ids, cut.sent.keys, cut.sent.ends
        for bucket, start, stop in _groups(table, cut.ends):
            home = table.ranges[bucket]
            load = loads.get(home) or loads.setdefault(home, _Load(None))
            frames = [ids[start:stop], values[start:stop]]
            kinds = [m.Segment(table.number, bucket, stop - start, U64, m.IDS)]
            if keys is not None and key_ends is not None:
                frames.insert(1, _key_frame(keys, key_ends, start, stop))
                kinds.append(m.Segment(table.number, bucket, len(frames[1]), U8, m.KEYS))
            kinds.append(m.Segment(table.number, bucket, (stop - start) * table.width, table.code, m.ROWS))
            load.segments += kinds
            load.frames += [frame.data.cast("B") for frame in frames]
            load.nbytes += sum(frame.nbytes for frame in frames)
    return _packed(loads, limits)


# -- wanted rows


class Wanted:
    """The rows that a request wants of one table: what was asked for, and where the answers belong.

    `found` has a line for each row that is asked for.  `take` lays them out as the program wants them, None = as they are.
    """

    __slots__ = ("table", "count", "take", "rows", "found", "ends")

    def __init__(self, cut: Cut, table: Sparse) -> None:
        self.table = table
        self.count = cut.came.size
        self.take = cut.home
        self.found: NDArray[Any] | None = None
        self.rows = cut.sent
        self.ends = cut.ends

    def ask(self, number: int, loads: dict[int, _Load]) -> None:
        """The questions, each to the range of its bucket; `number` names this table's rows in their spots."""
        rows, table = self.rows, self.table
        ids, keys, key_ends = rows.ids, rows.keys, rows.ends
        for bucket, start, stop in _groups(table, self.ends):
            home = table.ranges[bucket]
            load = loads.get(home) or loads.setdefault(home, _Load(None))
            load.asked.append(m.Segment(table.number, bucket, stop - start, U64, m.IDS))
            load.frames.append(ids[start:stop].data.cast("B"))
            if keys is not None and key_ends is not None:
                frame = _key_frame(keys, key_ends, start, stop)
                load.asked.append(m.Segment(table.number, bucket, len(frame), U8, m.KEYS))
                load.frames.append(frame.data)
            elements = (stop - start) * table.width
            load.segments.append(m.Segment(table.number, bucket, elements, table.code, m.ROWS))
            load.spots.append(Spot(number, start, stop))
            load.nbytes += elements * table.storage.itemsize + (stop - start) * _ITEM_BYTES

    @property
    def plain(self) -> bool:
        """An answer's bytes are the program's bytes, in their place."""
        return self.take is None and self.table.dtype == self.table.storage

    @property
    def row_bytes(self) -> int:
        """Of a row in `param`."""
        return self.table.width * self.table.dtype.itemsize

    def put(self, spot: Spot, frame: Any) -> None:
        if self.found is None:
            self.found = np.empty((self.rows.size, self.table.width), self.table.storage)
        self.found[spot.start : spot.stop] = np.frombuffer(frame, self.table.storage).reshape(-1, self.table.width)

    def laid_out(self) -> NDArray[Any]:
        """All rows as the program wants them."""
        found = np.empty((0, self.table.width), self.table.storage) if self.found is None else self.found
        rows = found if self.take is None else found.take(self.take, 0)
        with np.errstate(over="ignore"):
            return rows.astype(self.table.dtype, copy=False)


def cut_pull(
    plan: Plan, wants: Sequence[Rows], dense: bool, limits: Limits, cuts: Cuts | None = None
) -> tuple[tuple[Part, ...], tuple[Wanted, ...]]:
    """The parts of a pull, and what is wanted of each table.  Raises `RequestError`."""
    if not wants:
        return plan.parts if dense else (), ()
    loads = _loads(plan.parts if dense else ())
    tables = {table.number: table for table in plan.sparse.values()}
    cuts = cuts or Cuts()
    wanted = tuple(Wanted(cuts.of(rows, tables[rows.table]), tables[rows.table]) for rows in wants)
    for number, one in enumerate(wanted):
        one.ask(number, loads)
    return _packed(loads, limits), wanted
