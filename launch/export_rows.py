"""Sparse tables as the agent wrote them, rows in any order -> the same files in order, so that equal runs give equal files.

Owns `NAME.bin` with its `NAME.idx` or `NAME.keys` while a result is made.  Memory: some 40 bytes a row, whatever its width;
the rows themselves pass by in pieces.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import WorldError
from ..core.table import TableSpec
from .export import Numbers, Values, index_dtype, raw_files

_PIECE_BYTES = 1 << 22
_PIECE_KEYS = 1 << 13  # of up to 255 bytes
_NEWLINE = 10


def mapped(path: Path, dtype: np.dtype[Any]) -> Numbers:
    """The numbers in a file, as it is on disk; an empty one cannot be mapped."""
    size = path.stat().st_size
    if size % dtype.itemsize:
        raise WorldError(f"{path.name} has {size} bytes, which is no multiple of {dtype.itemsize}")
    return np.memmap(path, dtype=dtype, mode="r") if size else np.empty(0, dtype)


def sorted_values(table: TableSpec, directory: Path) -> Values:
    """Put the rows of a sparse table's raw files into order, and read them.  Raises `WorldError` for what cannot be right."""
    numbers_path, index_path = (directory / name for name in raw_files(table))
    flat = mapped(numbers_path, table.numpy_dtype)
    if len(flat) % table.width:
        raise WorldError(f"{numbers_path.name} has {len(flat)} numbers, which is no multiple of the width {table.width}")
    rows = flat.reshape(-1, table.width)
    if table.index_name == "str":
        text = mapped(index_path, np.dtype(np.uint8))
        ends = _line_ends(text, index_path.name)
        _check_count(len(ends), rows, index_path, numbers_path)
        order = _order_of_keys(text, ends, index_path.name)
        if not _is_sorted(order):
            _write_keys(index_path, text, ends, order)
            _write_rows(numbers_path, rows, order)
        text = mapped(index_path, np.dtype(np.uint8))
        return Values(table, mapped(numbers_path, table.numpy_dtype).reshape(-1, table.width), keys=text)
    ids = mapped(index_path, index_dtype(table))
    _check_count(len(ids), rows, index_path, numbers_path)
    order = np.argsort(ids, kind="stable")
    _check_ids(table, ids, order, index_path.name)
    if not _is_sorted(order):
        _write_rows(index_path, ids.reshape(-1, 1), order)
        _write_rows(numbers_path, rows, order)
    ids = mapped(index_path, index_dtype(table))
    return Values(table, mapped(numbers_path, table.numpy_dtype).reshape(-1, table.width), rows=ids)


def _check_count(count: int, rows: Numbers, index_path: Path, numbers_path: Path) -> None:
    if count != len(rows):
        raise WorldError(f"{index_path.name} names {count} rows, {numbers_path.name} has {len(rows)}")


def _check_ids(table: TableSpec, ids: Numbers, order: Numbers, name: str) -> None:
    if not len(ids):
        return
    if table.rows and int(ids[order[-1]]) >= table.rows:
        raise WorldError(f"{name} names row {int(ids[order[-1]])}, the table has {table.rows} rows")
    for start in range(0, len(order), _PIECE_BYTES):
        piece = ids[order[start : start + _PIECE_BYTES + 1]]
        twice = np.flatnonzero(piece[1:] == piece[:-1])
        if len(twice):
            raise WorldError(f"{name} names row {int(piece[twice[0]])} twice")


def _is_sorted(order: Numbers) -> bool:
    return bool((order[1:] > order[:-1]).all())


def _write_rows(path: Path, rows: Numbers, order: Numbers) -> None:
    """The file again with its rows in this order; the old one is mapped, and stays until it is read."""
    step = max(1, _PIECE_BYTES // (rows.shape[1] * rows.itemsize))
    scratch = path.with_name(path.name + ".sorted")
    with scratch.open("wb") as file:
        for start in range(0, len(order), step):
            file.write(np.ascontiguousarray(rows[order[start : start + step]]).data)
    os.replace(scratch, path)


# -- keys -------------------------------------------------------------------------------------------------------------


def _line_ends(text: Numbers, name: str) -> Numbers:
    """Where each key's newline is."""
    if len(text) and text[-1] != _NEWLINE:
        raise WorldError(f"{name} ends inside of a line")
    pieces = [np.empty(0, np.int64)]
    for start in range(0, len(text), _PIECE_BYTES):
        pieces.append(np.flatnonzero(text[start : start + _PIECE_BYTES] == _NEWLINE) + start)
    return np.concatenate(pieces)


def _order_of_keys(text: Numbers, ends: Numbers, name: str) -> Numbers:
    """Sorted by bytes: eight bytes of each key at a time, and only of those that are equal so far."""
    starts = np.zeros_like(ends)
    starts[1:] = ends[:-1] + 1
    order = np.arange(len(ends))
    group = np.zeros(len(ends), np.int64)
    active = np.arange(len(ends))  # positions in `order` whose keys are not told apart yet
    depth = 0
    while len(active):
        keys = order[active]
        left = ends[keys] - starts[keys] - depth
        if bool((left < 0).any()):
            first = int(keys[np.flatnonzero(left < 0)[0]])
            raise WorldError(f"{name} names {bytes(text[starts[first] : ends[first]])!r} twice")
        words = _words(text, starts[keys] + depth, left)
        lengths = np.minimum(left, 8)  # a key that ends is before one that goes on with zero bytes
        by = np.lexsort((lengths, words, group[active]))
        order[active] = keys[by]
        words, lengths, groups = words[by], lengths[by], group[active]
        same = (words[1:] == words[:-1]) & (lengths[1:] == lengths[:-1]) & (groups[1:] == groups[:-1])
        first_ones = np.concatenate(([True], ~same))
        group[active] = active[np.flatnonzero(first_ones)][np.cumsum(first_ones) - 1]
        tied = np.concatenate(([False], same)) | np.concatenate((same, [False]))
        active = active[tied]
        depth += 8
    return order


def _words(text: Numbers, starts: Numbers, left: Numbers) -> Numbers:
    """Eight bytes from each start, big end first, zeros behind the end of a key."""
    words = np.zeros(len(starts), np.uint64)
    for byte in range(8):
        inside = left > byte
        words <<= np.uint64(8)
        words[inside] |= text[starts[inside] + byte].astype(np.uint64)
    return words


def _write_keys(path: Path, text: Numbers, ends: Numbers, order: Numbers) -> None:
    scratch = path.with_name(path.name + ".sorted")
    starts = np.zeros_like(ends)
    starts[1:] = ends[:-1] + 1
    with scratch.open("wb") as file:
        for at in range(0, len(order), _PIECE_KEYS):
            some = order[at : at + _PIECE_KEYS]
            lengths = ends[some] + 1 - starts[some]
            before = np.cumsum(lengths) - lengths
            file.write(text[np.repeat(starts[some] - before, lengths) + np.arange(int(lengths.sum()))].data)
    os.replace(scratch, path)
