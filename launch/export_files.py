"""The files of a result: each format written from the agent's raw files, piece by piece, the same bytes for the same values.

Knows no final names and no result.json: `result` moves what is made here.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ..core.errors import WorldError
from ..core.table import TableSpec
from .export import (
    CELLS,
    NPZ,
    SAFETENSORS,
    Numbers,
    Values,
    csv_cells,
    csv_columns,
    csv_head,
    csv_lines,
    quoted,
    raw_files,
)
from .export_rows import mapped, sorted_values

_ZIP_DAY = (1980, 1, 1, 0, 0, 0)  # the first that a zip archive knows: when a file was made is no part of a result
_PIECE_BYTES = 1 << 22


def values_of(table: TableSpec, directory: Path) -> Values:
    """What the agent wrote of one table, checked and in order.  Raises `WorldError`."""
    if table.kind == "sparse":
        return sorted_values(table, directory)
    path = directory / raw_files(table)[0]
    size = path.stat().st_size
    if size != table.nbytes:
        raise WorldError(f"{path.name} has {size} bytes, the table {table.nbytes}")
    return Values(table, mapped(path, table.numpy_dtype).reshape(table.shape, order="F" if table.order == "F" else "C"))


def write_formats(values: Sequence[Values], directory: Path, formats: Sequence[str]) -> None:
    """Write every format but raw, which is there already."""
    if "npz" in formats:
        write_npz(values, directory / NPZ)
    if "safetensors" in formats:
        write_safetensors(values, directory / SAFETENSORS)
    if "csv" in formats:
        for one in values:
            with (directory / f"{one.table.name}.csv").open("wb") as file:
                write_csv(one, file)


def write_npz(values: Sequence[Values], path: Path) -> None:
    """As `numpy.savez`, which takes no table called "file" and writes the time of day."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as file:
        for one in values:
            for name, array in one.arrays.items():
                with file.open(zipfile.ZipInfo(f"{name}.npy", _ZIP_DAY), "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)


def write_safetensors(values: Sequence[Values], path: Path) -> None:
    """The library writes arrays as they lie in memory, and the format knows one order only: columns are turned into rows."""
    from safetensors.numpy import save_file

    turned: list[Path] = []
    arrays = {}
    try:
        for one in values:
            for name, array in one.arrays.items():
                if not array.flags.c_contiguous:
                    turned.append(path.with_name(f"{one.table.name}.turned"))
                    array = _in_rows(array, turned[-1])
                arrays[name] = array
        save_file(arrays, path)
    finally:
        for scratch in turned:
            scratch.unlink(missing_ok=True)


def _in_rows(array: Numbers, path: Path) -> Numbers:
    """The same array with the last index running fastest, in a file of its own."""
    made: Numbers = np.memmap(path, dtype=array.dtype, mode="w+", shape=array.shape)
    step = max(1, _PIECE_BYTES // max(1, array[0].nbytes))
    for start in range(0, len(array), step):
        made[start : start + step] = array[start : start + step]
    return made


def write_csv(values: Values, file: BinaryIO) -> None:
    """A line of names, then a line for each row.  A line may be longer than what is made at once."""
    for piece in csv_head(values):
        file.write(piece)
    columns = csv_columns(values)
    step = max(1, CELLS // columns)
    labels = _labels(values, step)
    for matrix in _matrices(values.array):
        for start in range(0, len(matrix), step):
            block = matrix[start : start + step]
            label = next(labels, [])
            if columns <= CELLS:
                file.write(csv_lines(block, label))
                continue
            file.write(b"".join(name + b"," for name in label))
            for column in range(0, columns, CELLS):
                file.write(csv_cells(block[0, column : column + CELLS]) + (b"," if column + CELLS < columns else b"\n"))


def _matrices(array: Numbers) -> Iterator[Numbers]:
    """An array as matrices, one below the other, without a copy of the whole."""
    if array.ndim <= 1:
        yield array.reshape(-1, 1)
    elif array.flags.c_contiguous:
        yield array.reshape(-1, array.shape[-1])
    else:
        for place in np.ndindex(array.shape[:-2]):
            yield array[place]


def _labels(values: Values, step: int) -> Iterator[list[bytes]]:
    """What stands in front of the lines of a sparse table, `step` lines at a time."""
    if values.rows is not None:
        for start in range(0, len(values.rows), step):
            yield values.rows[start : start + step].astype("S20").tolist()
    if values.keys is not None:
        keys = _keys(values.keys)
        for _ in range(0, len(values.array), step):
            yield quoted(islice(keys, step))


def _keys(text: Numbers) -> Iterator[bytes]:
    """Each key, without its newline."""
    rest = b""
    for start in range(0, len(text), _PIECE_BYTES):
        *whole, rest = (rest + bytes(text[start : start + _PIECE_BYTES].data)).split(b"\n")
        yield from whole
