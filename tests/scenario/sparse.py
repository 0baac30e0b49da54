"""Rows of sparse tables as an agent sends them: cut by bucket, in ascending order, each once; and read back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Union

import numpy as np

from plugml.core.job import JobSpec
from plugml.core.jobmap import buckets
from plugml.core.keys import buckets_of, name_hash, row_hashes, table_hash
from plugml.core.table import DTYPE_CODES, TableSpec
from plugml.wire import messages as m
from plugml.wire.codec import U8, U64

Array = np.ndarray[Any, np.dtype[Any]]
Name = Union[int, str]  # of a row
Rows = Mapping[str, Mapping[Name, Any]]  # by table: what is pushed to each row
Wants = Mapping[str, Sequence[Name]]
Group = tuple[tuple[m.Segment, ...], tuple[Any, ...]]


def sparse_table(
    name: str = "e", rows: int = 0, width: int = 2, dtype: str = "f32", optimizer: str = "sgd", buckets: int = 1, **rest: Any
) -> TableSpec:
    keys = ("lr", "beta", "beta1", "beta2", "eps", "weight_decay")
    settings = {key: rest.pop(key) for key in keys if key in rest}
    return TableSpec(name, (rows, width), kind="sparse", dtype=dtype, optimizer=optimizer, settings=settings, buckets=buckets, **rest)


def number_of(name: Name) -> int:
    return name_hash(name) if isinstance(name, str) else name


def bucket_of(spec: JobSpec, table: TableSpec, name: Name) -> int:
    hashes = row_hashes(np.array([number_of(name)], np.uint64), table_hash(spec.name, table.name))
    return int(buckets_of(hashes, table.buckets)[0])


def group(table: int, bucket: int, ids: Sequence[int], values: Array | None, dtype: str, keys: Sequence[str] | None = None) -> Group:
    """IDS, KEYS, ROWS as they are given, right or wrong."""
    segments = [m.Segment(table, bucket, len(ids), U64, m.IDS)]
    payload: list[Any] = [np.array(ids, np.uint64)]
    if keys is not None:
        text = [key.encode() for key in keys]
        data = np.array([len(key) for key in text], "<u4").tobytes() + b"".join(text)
        segments.append(m.Segment(table, bucket, len(data), U8, m.KEYS))
        payload.append(np.frombuffer(data, np.uint8))
    if values is not None:
        segments.append(m.Segment(table, bucket, values.size, DTYPE_CODES[dtype], m.ROWS))
        payload.append(values)
    return tuple(segments), tuple(payload)


def by_range(spec: JobSpec, ring: int, rows: Rows | Wants) -> dict[int, list[Group]]:
    """The groups that go to each range.  With a mapping by row they carry its numbers."""
    homes = {(bucket.table, bucket.number): bucket.range for bucket in buckets(spec, ring)}
    found: dict[int, list[Group]] = {}
    for name, wanted in rows.items():
        number = spec.table_number(name)
        table = spec.tables[number]
        cut: dict[int, list[Name]] = {}
        for row in sorted(wanted, key=number_of):
            cut.setdefault(bucket_of(spec, table, row), []).append(row)
        for bucket, names in sorted(cut.items()):
            values = None
            if isinstance(wanted, Mapping):
                values = np.array([wanted[row] for row in names], table.storage_dtype).reshape(len(names), table.width)
            keys = [str(row) for row in names] if table.index_name == "str" else None
            made = group(number, bucket, [number_of(row) for row in names], values, table.storage_name, keys)
            found.setdefault(homes[number, bucket], []).append(made)
    return found


def joined(groups: Sequence[Group]) -> Group:
    return tuple(s for segments, _ in groups for s in segments), tuple(p for _, payload in groups for p in payload)


def read_keys(frame: Any, count: int) -> list[str]:
    data = bytes(frame)
    lengths = np.frombuffer(data[: 4 * count], "<u4")
    ends = 4 * count + np.cumsum(lengths)
    return [data[end - length : end].decode() for end, length in zip(ends.tolist(), lengths.tolist())]


def read_scanned(spec: JobSpec, scanned: m.Scanned) -> dict[Name, Array]:
    """Rows of an answer to Scan, by number or key."""
    found: dict[Name, Array] = {}
    names: list[Name] = []
    for segment, frame in zip(scanned.segments, scanned.payload):
        if segment.kind == m.IDS:
            names = np.frombuffer(frame, np.uint64).tolist()
        elif segment.kind == m.KEYS:
            names = [*read_keys(frame, len(names))]
        else:
            table = spec.tables[segment.table]
            found.update(zip(names, np.frombuffer(frame, table.storage_dtype).reshape(-1, table.width)))
    return found
