"""What pushed numbers tell of the program that wrote them: which sentences they touch, and whether their bytes are foreign.

A number read the wrong way round is not refused: it is only absurd.  Absurd in the one reading and tame in the other is
what is looked for, over all numbers of a push.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import numbers
from ..info import Info
from ..reading import Data
from ..request import Request

LEAST = 2  # numbers other than zero, below which nothing is said
TAME = 40  # binary orders of magnitude around 1 in which the numbers of training lie
_WHOLE_TAME, _WHOLE_WILD = 1 << 31, 1 << 40


def reached(request: Request, data: Data, info: Info) -> set[str]:
    """Sentences that a request was read by."""
    found = {"3.4"} if request.n is not None else set()
    if request.pushes:
        found |= _reached_by_push(request, data, info)
    by_number = [table for table in _named(data) if info.tables[table].index_bytes]
    by_key = [table for table in _named(data) if not info.tables[table].index_bytes]
    if request.sections:
        found |= {"4.12", "4.13"}
    if by_number:
        found |= {"3.20", "3.16"} if request.text else {"3.14", "3.16"}
    if by_key:
        found |= {"3.17", "3.18", "3.19"}
    return found


def _reached_by_push(request: Request, data: Data, info: Info) -> set[str]:
    moved = [info.tables[rows.table] for rows in data.rows] + (list(info.dense) if data.buffer is not None else [])
    found = {"4.10", "3.21"} if any(table.storage for table in moved) else {"4.10"}
    if request.text:
        return found | {"3.7", "3.8", "3.9"}
    if request.n is None:
        found.add("3.3")
    if any(table.dtype != "i64" for table in moved):
        found.add("3.5")
    if data.buffer is not None:
        found.add("3.1")
    return found


def _named(data: Data) -> list[int]:
    return [rows.table for rows in (*data.rows, *data.wants)]


def digest(data: Data) -> bytes:
    """The same for the same numbers in the same rows."""
    crc = zlib.crc32(data.buffer.tobytes()) if data.buffer is not None else 0
    for rows in data.rows:
        crc = zlib.crc32(rows.ids.tobytes(), crc)
        crc = zlib.crc32(rows.values.tobytes(), crc) if rows.values is not None else crc
    return crc.to_bytes(4, "little")


def foreign_numbers(data: Data, info: Info) -> str:
    """Why the dense numbers look as if written by another kind of machine; empty if they do not."""
    if data.buffer is None or any(table.storage for table in info.dense):
        return ""
    for table in info.dense:
        values = numbers.view(data.buffer, table)
        values = values[values != 0]
        if len(values) < LEAST:
            continue
        swapped = values.byteswap()
        if (_whole_foreign if table.dtype == "i64" else _float_foreign)(values, swapped):
            return f"the numbers of table {table.name} begin with {values[0]}; read big-endian they would be {swapped[0]}"
    return ""


def _whole_foreign(values: NDArray[Any], swapped: NDArray[Any]) -> bool:
    own, other = (np.abs(array.astype(np.float64)) for array in (values, swapped))
    return bool((other < _WHOLE_TAME).all() and np.median(own) > _WHOLE_WILD)


def _float_foreign(values: NDArray[Any], swapped: NDArray[Any]) -> bool:
    if not np.isfinite(swapped).all():
        return False
    own, other = (np.abs(np.frexp(array.astype(np.float64))[1]) for array in (values, swapped))
    return bool((other <= TAME).all() and np.median(own) > 3 * TAME)
