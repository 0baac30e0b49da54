"""A push as numbers: text to binary and back, and the look for NaN and infinity.  Knows no files.

Buffers are laid out like `grad` and `param`: the tables of `info`, each at its offset.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import Code, RequestError
from ..core.limits import CACHE_LINE_BYTES
from .info import Info, InfoTable

LINE_BYTES_MAX = 64  # of one number as text
_FORMATTED = 1 << 16  # numbers that are formatted at once, so that a big table makes no big tuple
_SMALL = 4096  # below this a mask costs less than silencing the warnings of a sum
_NUMBER = re.compile(rb"[ \t]*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[ \t\r]*\Z")
_WORD = re.compile(rb"[ \t]*[+-]?(nan|inf|infinity|na)[ \t\r]*\Z", re.IGNORECASE)


def aligned(nbytes: int) -> NDArray[np.uint8]:
    """Zeros that start on a cache line: reading a file into them is up to four times as fast as into a default array."""
    room = np.zeros(nbytes + CACHE_LINE_BYTES, np.uint8)
    skip = -room.ctypes.data % CACHE_LINE_BYTES
    return room[skip : skip + nbytes]


def view(buffer: Any, table: InfoTable) -> NDArray[Any]:
    """The elements of a table, flat and in file order, inside a buffer laid out like `grad`."""
    return np.frombuffer(buffer, table.numpy_dtype, table.elements, table.offset)


def check_finite(info: Info, buffer: Any) -> None:
    """Raises `RequestError` NONFINITE that names the first element which is NaN or infinite."""
    for table in info.dense:
        if table.dtype == "i64":
            continue
        values = view(buffer, table)
        if _all_finite(values):
            continue
        bad = ~np.isfinite(values)
        at = int(bad.argmax())
        if bad[at]:
            raise RequestError(Code.NONFINITE, f"element {at} of table {table.name} is {values[at]}; nothing was applied")


def _all_finite(values: NDArray[Any]) -> bool:
    """False means: look closer.  NaN and infinity survive every sum, so one pass without a copy is enough."""
    if len(values) <= _SMALL:
        return bool(np.logical_and.reduce(np.isfinite(values)))
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(np.add.reduce(values)))


def parse_text(info: Info, text: bytes, buffer: NDArray[np.uint8], name: str) -> None:
    """Read one number a line, all dense tables one after the other, into `buffer`.

    Raises `RequestError`: SIZE for another number of lines, FORMAT and RANGE naming the line.
    """
    lines = text.split(b"\n")
    if lines and not lines[-1].strip():
        lines.pop()
    if len(lines) != info.elements:
        raise RequestError(Code.SIZE, f"{name} has {len(lines)} lines, {info.elements} are declared; nothing was applied")
    start = 0
    for table in info.dense:
        part = lines[start : start + table.elements]
        into = np.frombuffer(buffer, table.numpy_dtype, table.elements, table.offset)
        if b"_" in text and any(b"_" in line for line in part):  # Python would take 1_000 for a number
            raise _bad_line(part, start, table, name)
        try:
            if table.dtype == "i64":
                into[:] = np.fromiter(map(int, part), np.int64, table.elements)
            else:
                values = np.fromiter(map(float, part), np.float64, table.elements)
        except (ValueError, OverflowError):
            raise _bad_line(part, start, table, name) from None
        if table.dtype != "i64":
            with np.errstate(over="ignore"):
                into[:] = values
            _check_overflow(values, into, start, table, name)
        start += table.elements


def _check_overflow(values: NDArray[Any], into: NDArray[Any], start: int, table: InfoTable, name: str) -> None:
    """A number that the table's dtype cannot hold is refused, not stored as infinity."""
    if _all_finite(into):
        return
    lost = np.isinf(into) & np.isfinite(values)
    at = int(lost.argmax())
    if lost[at]:
        raise RequestError(Code.RANGE, f"line {start + at + 1} of {name}: {float(values[at])!r} does not fit into {table.dtype}")


def _bad_line(lines: list[bytes], start: int, table: InfoTable, name: str) -> RequestError:
    """The error for the first line that is no number."""
    for number, line in enumerate(lines, start + 1):
        shown = repr(line[:40].decode(errors="replace"))
        where = f"line {number} of {name}"
        if table.dtype == "i64":
            if not re.fullmatch(rb"[ \t]*[+-]?[0-9]{1,40}[ \t\r]*", line):
                return RequestError(Code.FORMAT, f"{where}: {shown} is no whole number (table {table.name} is i64)")
            if not -(1 << 63) <= int(line) < 1 << 63:
                return RequestError(Code.RANGE, f"{where}: {shown} does not fit into i64")
            continue
        if _NUMBER.match(line) or _WORD.match(line):
            if line.strip().lower() == b"na":
                return RequestError(Code.NONFINITE, f"{where}: {shown} is no value; nothing was applied")
            continue
        hint = "; the decimal point is '.', run the program with LC_NUMERIC=C" if b"," in line else ""
        hint = hint or ("; write one number a line" if len(line.split()) > 1 else "")
        return RequestError(Code.FORMAT, f"{where}: {shown} is no number{hint}")
    return RequestError(Code.FORMAT, f"{name} holds a line that is no number")


def format_text(info: Info, buffer: Any) -> bytes:
    """One number a line, shortest or 9 digits for f32, so that reading gives the same bits again."""
    parts = []
    for table in info.dense:
        values = view(buffer, table)
        for start in range(0, table.elements, _FORMATTED):
            some = values[start : start + _FORMATTED].tolist()
            if table.dtype == "f32":
                parts.append("%.9g\n" * len(some) % tuple(some))
            else:
                parts.append("\n".join(map(repr, some)) + "\n")
    return "".join(parts).encode()


def text_bytes_max(info: Info) -> int:
    """A text file that is longer is refused unread."""
    return (info.elements + 1) * (LINE_BYTES_MAX + 1)
