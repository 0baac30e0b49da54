"""The tables of a channel as `info` names them, and the arrays that a program gives for the dense ones.

Everything is checked before anything is written.  Knows neither files nor requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .errors import ChannelError, Code
from .rows import SparseTable

_DTYPES: dict[str, np.dtype[Any]] = {"f32": np.dtype("<f4"), "f64": np.dtype("<f8"), "i64": np.dtype("<i8")}


class Table(NamedTuple):
    """A dense table: its shape, and where it lies in the files (`offset` in bytes)."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    order: str
    offset: int
    elements: int

    def view(self, buffer: Any) -> NDArray[Any]:
        """The table inside a buffer laid out like `grad` and `param`, in its shape and order; nothing is copied."""
        flat: NDArray[Any] = np.frombuffer(buffer, self.dtype, self.elements, self.offset)
        return flat.reshape(self.shape, order="F" if self.order == "F" else "C")

    def shaped(self, array: NDArray[Any]) -> NDArray[Any]:
        """The array in the table's shape; a flat one is in the order of the file."""
        if array.shape == self.shape:
            return array
        return array.reshape(self.shape, order="F" if self.order == "F" else "C")


def parse_tables(text: str) -> tuple[dict[str, str], tuple[Table, ...], dict[str, SparseTable]]:
    """What stands in `info` besides tables, the dense tables, and the sparse ones.  Raises KeyError, ValueError."""
    head: dict[str, str] = {}
    dense, sparse = [], {}
    for line in text.splitlines():
        words = dict(word.partition("=")[::2] for word in line.split(" "))
        if "table" not in words:
            head.update(words)
            continue
        name, shape = words["table"], tuple(int(n) for n in words["shape"].split(","))
        if words["kind"] == "dense":
            offset, count = int(words["offset"]), int(words["count"])
            dense.append(Table(name, shape, _DTYPES[words["dtype"]], words["order"], offset, count))
        elif words["kind"] == "sparse":
            dtype, index = _DTYPES[words["dtype"]], words["index"]
            sparse[name] = SparseTable(name, shape[0], int(words["width"]), dtype, index, int(words["batch"]))
    return head, tuple(dense), sparse


def table_named(tables: Sequence[Table], name: str | None) -> Table:
    """The table of that name; without a name the only one.  Raises `ChannelError` RANGE."""
    if name is None and len(tables) == 1:
        return tables[0]
    for table in tables:
        if table.name == name:
            return table
    known = ", ".join(table.name for table in tables) or "none"
    raise ChannelError(Code.RANGE, f"{'no table is named' if name is None else f'there is no table {name!r}'}; known are {known}")


def matched(tables: Sequence[Table], arrays: Any, what: str, *, writable: bool = False) -> list[tuple[Table, NDArray[Any]]]:
    """The given arrays beside their tables.  Raises `ChannelError` SIZE, RANGE, PERM."""
    result = []
    for table, given in _paired(tables, arrays, what, writable):
        if writable and not (isinstance(given, np.ndarray) and given.flags.writeable):
            raise ChannelError(Code.PERM, f"{what} for table {table.name} must be a numpy array that can be written")
        array = np.asarray(given)
        if array.shape != table.shape and array.shape != (table.elements,):
            raise ChannelError(Code.SIZE, f"{what} for table {table.name} has shape {array.shape}, the table has {table.shape}: {_agree(table, array)}")
        here, there = (table.dtype, array.dtype) if writable else (array.dtype, table.dtype)
        if not np.can_cast(here, there, casting="same_kind"):
            raise ChannelError(Code.RANGE, f"{what} for table {table.name}: {here} cannot become {there}")
        result.append((table, array))
    return result


def _paired(tables: Sequence[Table], arrays: Any, what: str, writable: bool) -> list[tuple[Table, Any]]:
    if isinstance(arrays, Mapping):
        pairs = [(table_named(tables, name), array) for name, array in arrays.items()]
        if not writable and len(pairs) != len(tables):
            missing = [table.name for table in tables if table.name not in arrays]
            raise ChannelError(Code.SIZE, f"{what} lacks the tables {', '.join(missing)}: a dense push holds all of them")
        return pairs
    if len(tables) == 1:
        return [(tables[0], arrays)]
    if isinstance(arrays, (list, tuple)) and len(arrays) == len(tables):
        return list(zip(tables, arrays))
    names = ", ".join(table.name for table in tables)
    raise ChannelError(Code.SIZE, f"{what} must be a mapping or a sequence of the {len(tables)} tables {names}")


def _agree(table: Table, array: NDArray[Any]) -> str:
    """What to change where a table and an array have different shapes."""
    declared, given = (",".join(map(str, shape)) for shape in (table.shape, array.shape))
    if not given:
        return f"give an array of the table's shape, or declare the table as --table {table.name}=1"
    return f"make them agree: the job declares --table {table.name}={declared}, this array needs --table {table.name}={given}"
