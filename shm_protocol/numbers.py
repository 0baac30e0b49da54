"""A push as numbers: text to binary and back, the storage's kind, and the look for NaN and infinity.  Knows no files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core.errors import Code, RequestError
from ..core.limits import CACHE_LINE_BYTES
from .info import InfoTable

LINE_BYTES_MAX = 64  # of one number as text
_FORMATTED = 1 << 16  # numbers that are formatted at once, so that a big table makes no big tuple
_SMALL = 4096  # below this a mask costs less than silencing the warnings of a sum
_NUMBER = re.compile(rb"[ \t]*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[ \t\r]*\Z")
_WHOLE = re.compile(rb"[ \t]*[+-]?[0-9]+[ \t\r]*\Z")
_WORD = re.compile(rb"[ \t]*[+-]?(nan|inf|infinity|na)[ \t\r]*\Z", re.IGNORECASE)


def aligned(nbytes: int) -> NDArray[np.uint8]:
    """Zeros that start on a cache line: reading a file into them is up to four times as fast as into a default array."""
    room = np.zeros(nbytes + CACHE_LINE_BYTES, np.uint8)
    skip = -room.ctypes.data % CACHE_LINE_BYTES
    return room[skip : skip + nbytes]


def view(buffer: Any, table: InfoTable) -> NDArray[Any]:
    """The elements of a table, flat and in file order, inside a buffer laid out like `grad`."""
    return np.frombuffer(buffer, table.numpy_dtype, table.elements, table.offset)


class Series(NamedTuple):
    """Numbers of one table, flat: the whole of a dense one, or rows of a sparse one."""

    table: InfoTable
    values: NDArray[Any]

    def name_of(self, element: int) -> str:
        if self.table.kind == "dense":
            return f"element {element} of table {self.table.name}"
        return f"element {element % self.table.width} of row {element // self.table.width} of the push to table {self.table.name}"


def dense_series(tables: Iterable[InfoTable], buffer: Any) -> list[Series]:
    """The dense tables in a buffer that is laid out like `grad`."""
    return [Series(table, view(buffer, table)) for table in tables]


def store(series: Series, into: NDArray[Any]) -> None:
    """Bring numbers into the storage's kind; `into` may be their own place.  Raises `RequestError` NONFINITE or RANGE."""
    values = series.values
    if into is not values:
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            into[:] = values
    if into.dtype.kind == "i" or _all_finite(into):
        return
    lost = ~np.isfinite(into)
    at = int(lost.argmax())
    if not lost[at]:
        return
    bad = ~np.isfinite(values)
    if bad.any():
        at = int(bad.argmax())
        raise RequestError(Code.NONFINITE, f"{series.name_of(at)} is {values[at]}; nothing was applied")
    kept = series.table.storage or series.table.dtype
    raise RequestError(Code.RANGE, f"{series.name_of(at)} is {values[at]}, and its servers keep {kept}, which cannot hold that; nothing was applied")


def _all_finite(values: NDArray[Any]) -> bool:
    """False means: look closer.  NaN and infinity survive every sum, so one pass without a copy is enough."""
    if len(values) <= _SMALL:
        return bool(np.logical_and.reduce(np.isfinite(values)))
    if values.dtype.itemsize == 2:
        return bool(np.isfinite(values).all())  # sums of float16 overflow at once
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(np.add.reduce(values)))


def lines_of(text: bytes, count: int, name: str) -> list[bytes]:
    """The lines of a text file that must have `count` of them.  Raises `RequestError` SIZE."""
    lines = text.split(b"\n")
    if lines and not lines[-1].strip():
        lines.pop()
    if len(lines) != count:
        raise RequestError(Code.SIZE, f"{name} has {len(lines)} lines, {count} are declared; nothing was applied")
    return lines


def parse_text(text: bytes, series: Sequence[Series], name: str) -> None:
    """Read one number a line, one series after the other, into their values.

    Raises `RequestError`: SIZE for another number of lines, FORMAT and RANGE naming the line.
    """
    lines = lines_of(text, sum(len(item.values) for item in series), name)
    start = 0
    for item in series:
        part = lines[start : start + len(item.values)]
        _parse(part, start, item.table.name, item.values, name, b"_" in text)
        start += len(part)


def parse_numbers(lines: list[bytes], start: int, table: InfoTable, name: str) -> NDArray[np.uint64]:
    """Row numbers, one a line; `start` lines stand before them.  Raises `RequestError` FORMAT or RANGE, naming the line."""
    into = np.empty(len(lines), np.uint64)
    _parse(lines, start, table.name, into, name, any(b"_" in line for line in lines))
    return into


def _parse(lines: list[bytes], start: int, table: str, into: NDArray[Any], name: str, doubtful: bool) -> None:
    whole = into.dtype.kind in "iu"
    if doubtful and any(b"_" in line for line in lines):  # Python would take 1_000 for a number
        raise _bad_line(lines, start, table, into.dtype, name)
    try:
        if whole:
            into[:] = np.fromiter(map(int, lines), into.dtype, len(lines))
            return
        values = np.fromiter(map(float, lines), np.float64, len(lines))
    except (ValueError, OverflowError):
        raise _bad_line(lines, start, table, into.dtype, name) from None
    with np.errstate(over="ignore", under="ignore"):
        into[:] = values
    if _all_finite(into):
        return
    for at in np.flatnonzero(np.isinf(into)).tolist():
        if not _WORD.match(lines[at]):  # a number, and not the word for infinity
            raise _too_large(lines[at], start + at, table, into.dtype, name)


def _too_large(line: bytes, at: int, table: str, dtype: np.dtype[Any], name: str) -> RequestError:
    text = f"line {at + 1} of {name}: {_shown(line)} does not fit into {_kind(dtype)} (table {table}); nothing was applied"
    return RequestError(Code.RANGE, text)


def _kind(dtype: np.dtype[Any]) -> str:
    return f"{dtype.kind}{8 * dtype.itemsize}"


def _bad_line(lines: list[bytes], start: int, table: str, dtype: np.dtype[Any], name: str) -> RequestError:
    """The error for the first line that is no number."""
    whole = dtype.kind in "iu"
    for at, line in enumerate(lines, start):
        where = f"line {at + 1} of {name}: {_shown(line)}"
        if whole:
            if not _WHOLE.match(line):
                return RequestError(Code.FORMAT, f"{where} is no whole number (table {table} is {_kind(dtype)})")
            limits = np.iinfo(dtype)
            if len(line) > 40 or not limits.min <= int(line) <= limits.max:
                return _too_large(line, at, table, dtype, name)
            continue
        if _NUMBER.match(line) or _WORD.match(line):
            if line.strip().lower().lstrip(b"+-") == b"na":
                return RequestError(Code.NONFINITE, f"{where} is no value; nothing was applied")
            continue
        hint = "; the decimal point is '.', run the program with LC_NUMERIC=C" if b"," in line else ""
        hint = hint or ("; write one number a line" if len(line.split()) > 1 else "")
        return RequestError(Code.FORMAT, f"{where} is no number{hint}")
    return RequestError(Code.FORMAT, f"{name} holds a line that is no number")


def _shown(line: bytes) -> str:
    return repr(line.rstrip(b"\r")[:40].decode(errors="replace"))


def format_text(series: Iterable[NDArray[Any]]) -> bytes:
    """One number a line, shortest or 9 digits for f32, so that reading gives the same bits again."""
    parts = []
    for values in series:
        flat = values.reshape(-1)
        for start in range(0, len(flat), _FORMATTED):
            some = flat[start : start + _FORMATTED].tolist()
            if flat.dtype.itemsize == 4:
                parts.append("%.9g\n" * len(some) % tuple(some))
            else:
                parts.append("\n".join(map(repr, some)) + "\n")
    return "".join(parts).encode()


def text_bytes_max(count: int) -> int:
    """A text file of so many numbers that is longer is refused unread."""
    return (count + 1) * (LINE_BYTES_MAX + 1)
