"""Rows in a message: IDS, KEYS, ROWS of one bucket, checked in every respect, as views of the received frames.

Whatever is wrong raises `RequestError`, and nothing of the message counts.  Knows the buckets' names, not their values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..core.errors import Code, RequestError
from ..core.table import BLOCK_BYTES_TOP, DTYPE_CODES, DTYPE_NAMES
from ..wire.codec import U8, U64
from ..wire.messages import BY_VALUE, IDS, KEYS, ROWS, Segment
from .rownames import KEY_BYTES_MAX, Array, Ids, Keys, Slots, kernels
from .rows import Rows

_KIND_NAMES = {IDS: "row numbers", KEYS: "keys", ROWS: "rows"}


class Group(NamedTuple):
    """Some rows of one bucket, each once in the whole message; `slots` says where they are, -1 = nowhere yet."""

    rows: Rows
    ids: Ids
    keys: Keys | None
    slots: Slots
    values: Array | None  # (rows, width); None where they are only asked for
    ascending: bool


Carried = Sequence[tuple[Segment, Any]]  # sparse segments of a message with their frames
Held = Mapping[tuple[int, int], Rows]


def read_groups(held: Held, number: int, carried: Carried, with_values: bool) -> list[Group]:
    """The groups of a message to range `number`."""
    groups: list[Group] = []
    at = 0
    while at < len(carried):
        segment = carried[at][0]
        rows = held.get((segment.table, segment.block))
        if rows is None:
            raise RequestError(Code.RANGE, f"range {number} has no bucket {segment.block} of table {segment.table}")
        kinds = (IDS, *((KEYS,) if rows.strings else ()), *((ROWS,) if with_values else ()))
        parts = carried[at : at + len(kinds)]
        found = [(part.table, part.block, part.kind, part.carry) for part, _ in parts]
        if found != [(segment.table, segment.block, kind, BY_VALUE) for kind in kinds]:
            raise RequestError(Code.SIZE, f"a group of {rows} is not {' and '.join(_KIND_NAMES[kind] for kind in kinds)}")
        groups.append(_group(rows, dict(zip(kinds, parts))))
        at += len(kinds)
    _check_once(groups)
    return groups


def _group(rows: Rows, parts: dict[int, tuple[Segment, Any]]) -> Group:
    ids = _array(rows, parts[IDS], U64, np.dtype(np.uint64))
    state = rows.names.checked(ids, rows.spec.rows, rows.number)
    if state >= 0:
        row, most = int(ids[state]), rows.spec.rows
        why = f"of 0 to {most - 1}" if most and row >= most else f"which does not belong to bucket {rows.number}"
        raise RequestError(Code.RANGE, f"row {row} of table {rows.spec.name!r}, {why}")
    keys = _keys(rows, parts[KEYS], ids) if rows.strings else None
    slots = rows.names.find(ids)
    if keys is not None:
        other = rows.names.clash(keys, slots)
        if other >= 0:
            slot = int(slots[other])
            raise _collide(rows, rows.names.keys(slot, slot + 1).key(0), keys.key(other))
    values = None
    if ROWS in parts:
        values = _array(rows, parts[ROWS], DTYPE_CODES[rows.spec.storage_name], rows.dtype)
        if len(values) != len(ids) * rows.spec.width:
            raise RequestError(Code.SIZE, f"{len(values)} numbers for {len(ids)} rows of {rows}, which have {rows.spec.width} each")
        values = values.reshape(len(ids), rows.spec.width)
    elif len(ids) * rows.row_bytes > BLOCK_BYTES_TOP and len(ids) > 1:
        raise RequestError(Code.SIZE, f"{len(ids)} rows of {rows} asked for at once; at most {BLOCK_BYTES_TOP // rows.row_bytes}")
    return Group(rows, ids, keys, slots, values, state == kernels().ASCENDING)


def _array(rows: Rows, part: tuple[Segment, Any], code: int, dtype: np.dtype[Any]) -> Array:
    """The numbers of a frame; one that lies askew in memory is copied, for the compiled part."""
    segment, buffer = part
    if segment.dtype != code:
        raise RequestError(Code.SIZE, f"{_KIND_NAMES[segment.kind]} of {rows} come as {DTYPE_NAMES.get(segment.dtype, segment.dtype)}")
    nbytes = memoryview(buffer).nbytes
    if not segment.elements or nbytes != segment.elements * dtype.itemsize:
        raise RequestError(Code.SIZE, f"{nbytes} bytes for {segment.elements} {_KIND_NAMES[segment.kind]} of {rows}")
    array = np.frombuffer(buffer, dtype)
    return array if array.flags.aligned else array.copy()


def _keys(rows: Rows, part: tuple[Segment, Any], ids: Ids) -> Keys:
    data = _array(rows, part, U8, np.dtype(np.uint8))
    head = 4 * len(ids)
    if len(data) < head:
        raise RequestError(Code.SIZE, f"{len(data)} bytes of keys for {len(ids)} rows of {rows}")
    lengths = data[:head].copy().view("<u4").astype(np.int64)
    text = data[head:]
    if int(lengths.min()) < 1 or int(lengths.max()) > KEY_BYTES_MAX or int(lengths.sum()) != len(text):
        raise RequestError(Code.SIZE, f"keys of {rows}: the lengths do not fit the {len(text)} bytes of text, 1 to {KEY_BYTES_MAX} each")
    keys = Keys(text, np.cumsum(lengths))
    wrong = kernels().wrong_key(text, keys.ends, ids)
    if wrong >= 0:
        raise RequestError(Code.RANGE, f"row {int(ids[wrong])} of {rows} is not the number of the key {shown_key(keys.key(wrong))}")
    return keys


# -- no row twice


def _check_once(groups: Sequence[Group]) -> None:
    """Rows that ascend through all groups of a bucket are each there once; others are sorted to see it."""
    by_rows: dict[Rows, list[Group]] = {}
    for group in groups:
        by_rows.setdefault(group.rows, []).append(group)
    for rows, some in by_rows.items():
        apart = all(one.ids[-1] < two.ids[0] for one, two in zip(some, some[1:]))
        if apart and all(group.ascending for group in some):
            continue
        ids = np.concatenate([group.ids for group in some])
        ordered = np.sort(ids)
        twice = np.flatnonzero(ordered[1:] == ordered[:-1])
        if len(twice):
            one, two = np.flatnonzero(ids == ordered[twice[0]])[:2]
            raise _twice(rows, some, int(one), int(two))


def _twice(rows: Rows, groups: Sequence[Group], one: int, two: int) -> RequestError:
    """Two places of a message with one row number."""
    keys, ids = [], []
    for group in groups:
        for position in (one, two):
            if 0 <= position < len(group.ids):
                ids.append(int(group.ids[position]))
                if group.keys is not None:
                    keys.append(group.keys.key(position))
        one, two = one - len(group.ids), two - len(group.ids)
    if keys and keys[0] != keys[1]:
        return _collide(rows, keys[0], keys[1])
    return RequestError(Code.RANGE, f"row {ids[0]} of {rows} comes twice in one message")


def _collide(rows: Rows, one: bytes, two: bytes) -> RequestError:
    text = f"keys {shown_key(one)} and {shown_key(two)} of table {rows.spec.name!r} have the same hash; rename one of them"
    return RequestError(Code.COLLIDE, text)


def shown_key(key: bytes) -> str:
    """A key for an error's text, whatever its bytes are."""
    return repr(key.decode(errors="backslashreplace"))
