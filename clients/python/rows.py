"""Rows of sparse tables on their way: what a request says of them, and where they lie in its files (SPEC 3.12 to 3.20).

Knows neither files nor requests: it fills and reads buffers that are laid out like `grad`, `gidx`, `want` and `param`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .errors import ChannelError, Code

_INDEXES: dict[str, np.dtype[Any]] = {"u32": np.dtype("<u4"), "u64": np.dtype("<u8"), "str": np.dtype("V0")}
_DENSE_ALIGN, _ALIGN = 64, 8


class SparseTable(NamedTuple):
    """A table of rows.  `rows` 0 = every number of the index; `batch` = the most rows that one request pushes or wants."""

    name: str
    rows: int
    width: int
    dtype: np.dtype[Any]
    index_type: str  # u32, u64 or str
    batch: int

    @property
    def row_bytes(self) -> int:
        return self.width * self.dtype.itemsize

class Named(NamedTuple):
    """Some rows of a table: their numbers, or the lines of their keys."""

    rows: int
    numbers: NDArray[Any] | None = None
    keys: bytes = b""


class Section(NamedTuple):
    """What a request says of one sparse table."""

    table: SparseTable
    pushed: Named
    values: NDArray[Any] | None
    wanted: Named

    def words(self) -> str:
        """The section in the request line."""
        k = f" k={self.pushed.rows}" if self.pushed.rows else ""
        want = f" want={self.wanted.rows}" if self.wanted.rows else ""
        return f" table={self.table.name}{k}{want}"


def is_pair(value: Any) -> bool:
    """Rows and their values, and no array of a dense table."""
    return isinstance(value, tuple) and len(value) == 2 and not all(np.isscalar(one) for one in value)


class Sections(tuple[Section, ...]):
    """All sections of one request, in their order."""

    @classmethod
    def of(cls, tables: Mapping[str, SparseTable], pushed: Mapping[str, Any], wanted: Mapping[str, Any]) -> Sections:
        """Check what the program gave.  Raises `ChannelError`; nothing was written then."""
        sections = []
        for name in dict.fromkeys([*pushed, *wanted]):
            if name not in tables:
                raise ChannelError(Code.RANGE, f"the job has no sparse table {name}; it has {', '.join(tables) or 'none'}")
            table, values, named = tables[name], None, Named(0)
            if name in pushed:
                if not isinstance(pushed[name], (tuple, list)) or len(pushed[name]) != 2:
                    raise ChannelError(Code.FORMAT, f"table {name} is sparse: push a pair (rows, values)")
                rows, numbers = pushed[name]
                named = named_rows(table, rows)
                values = _values(table, numbers, named.rows)
            sections.append(Section(table, named, values, named_rows(table, wanted[name]) if name in wanted else Named(0)))
        return cls(sections)

    def words(self) -> str:
        return "".join(section.words() for section in self)

    @property
    def has_strings(self) -> bool:
        return any(section.table.index_type == "str" for section in self)

    def fill_grad(self, buffer: Any, start: int) -> int:
        """Lay what is pushed behind a dense part of `start` bytes; returns where it ends."""
        at = end = _up(start, _DENSE_ALIGN)
        for section in self:
            if section.values is not None and section.pushed.rows:
                place: NDArray[Any] = np.frombuffer(buffer, section.table.dtype, section.values.size, at)
                np.copyto(place.reshape(section.values.shape), section.values, casting="same_kind")
                end = at + section.pushed.rows * section.table.row_bytes
                at = _up(end, _ALIGN)
        return end

    def fill_index(self, which: str, buffer: Any) -> int:
        """Lay row numbers out as `gidx` or `want` holds them; returns where they end."""
        at = end = 0
        for section in self:
            named = section.pushed if which == "gidx" else section.wanted
            if named.numbers is not None and named.rows:
                np.frombuffer(buffer, named.numbers.dtype, named.rows, at)[:] = named.numbers
                end = at + named.numbers.nbytes
                at = _up(end, _ALIGN)
        return end

    def keys(self, which: str) -> bytes:
        """The text of `gkey` or `wkey`."""
        return b"".join((section.pushed if which == "gkey" else section.wanted).keys for section in self)

    def param(self, start: int) -> Iterator[tuple[Section, int]]:
        """(section, offset) of the rows that are wanted, behind a dense part of `start` bytes."""
        at = _up(start, _DENSE_ALIGN)
        for section in self:
            yield section, at
            at = _up(at + section.wanted.rows * section.table.row_bytes, _ALIGN)

    def param_bytes(self, start: int) -> int:
        """Bytes of `param` that take part."""
        ends = (at + section.wanted.rows * section.table.row_bytes for section, at in self.param(start) if section.wanted.rows)
        return max(ends, default=start)

    def take(self, buffer: Any, start: int) -> dict[str, NDArray[Any]]:
        """The rows that were wanted, as arrays of the program's own."""
        taken = {}
        for section, at in self.param(start):
            table, count = section.table, section.wanted.rows
            flat: NDArray[Any] = np.frombuffer(buffer, table.dtype, count * table.width, at)
            taken[table.name] = flat.reshape(count, table.width).copy()
        return taken


def named_rows(table: SparseTable, rows: Any) -> Named:
    """Row numbers or keys as the files hold them.

    >>> named_rows(SparseTable("e", 10, 1, np.dtype("f4"), "str", 5), ["a", "bc"]).keys
    b'a\\nbc\\n'
    """
    if table.index_type == "str":
        keys = _key_lines(table, rows)
    else:
        keys = _row_numbers(table, rows)
    if keys.rows > table.batch:
        text = f"{keys.rows} rows of table {table.name}: one request takes at most {table.batch} (the table's batch=)"
        raise ChannelError(Code.RANGE, text)
    return keys


def _row_numbers(table: SparseTable, rows: Any) -> Named:
    given = np.asarray(rows)
    if given.ndim != 1 or (given.dtype.kind not in "iu" and given.size):
        raise ChannelError(Code.FORMAT, f"rows of table {table.name} are one array of whole numbers, not {given.dtype} of shape {given.shape}")
    dtype = _INDEXES[table.index_type]
    if given.size and (int(given.min()) < 0 or int(given.max()) > np.iinfo(dtype).max):
        raise ChannelError(Code.RANGE, f"rows of table {table.name} from {given.min()} to {given.max()}: the index is {table.index_type}")
    return Named(given.size, given.astype(dtype, copy=False))


def _key_lines(table: SparseTable, rows: Any) -> Named:
    keys: Sequence[Any] = rows.tolist() if isinstance(rows, np.ndarray) else list(rows)
    if isinstance(rows, (str, bytes)) or not all(isinstance(key, str) for key in keys):
        raise ChannelError(Code.FORMAT, f"rows of table {table.name} are named by strings: give a list of str")
    text = "\n".join(keys)
    if text.count("\n") != max(0, len(keys) - 1):
        number = next(number for number, key in enumerate(keys) if "\n" in key)
        raise ChannelError(Code.FORMAT, f"key {number} of table {table.name} holds a newline, which ends a key")
    return Named(len(keys), None, text.encode("utf-8", "surrogatepass") + b"\n" if keys else b"")


def _values(table: SparseTable, numbers: Any, count: int) -> NDArray[Any]:
    array = np.asarray(numbers)
    if array.shape not in ((count, table.width), (count * table.width,)):
        text = f"{count} rows of table {table.name} need values of shape ({count}, {table.width}), not {array.shape}"
        raise ChannelError(Code.SIZE, text)
    if not np.can_cast(array.dtype, table.dtype, casting="same_kind") and array.size:
        raise ChannelError(Code.RANGE, f"values for table {table.name}: {array.dtype} cannot become {table.dtype}")
    return array


def _up(at: int, step: int) -> int:
    return -(-at // step) * step
