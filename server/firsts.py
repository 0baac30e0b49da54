"""First values of a table: each element is a function of (seed, table, element) alone, on any number of servers.

Element i draws from splitmix64 at counter i (core.keys.mix, here on whole arrays), so that blocks need no order:

    key      = mix(seed xor name_hash(table))
    uniform  u = top 53 bits of mix(key + i * GOLDEN), as a fraction in [0, 1); the value is low + (high - low) * u
    normal   twelve 32-bit halves of six draws at counters 6 i ... 6 i + 5 are added as integers; their sum, centred and
             divided by 2^32, has mean 0 and variance 1 (Irwin-Hall of order 12); the value is scale * that

Only integers and one or two float64 operations: no mathematical library is asked, every machine gets the same bits.
A normal value never lies further out than six scales.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.keys import GOLDEN, mix, name_hash
from ..core.table import TableSpec

Array = np.ndarray[Any, np.dtype[Any]]
Counters = np.ndarray[Any, np.dtype[np.uint64]]

_CHUNK = 1 << 16
_DRAWS = 6  # of a normal value
_CENTRE = 12 * ((1 << 32) - 1) / 2  # mean of the sum of twelve 32-bit numbers, exact in float64


def fill(table: TableSpec, seed: int, start: int, stop: int, out: Array) -> None:
    """Write the first values of elements `start` to `stop` into `out`.

    Tables with init=program or init=file are zero until their values are offered.
    """
    if table.init not in ("normal", "uniform"):
        out.fill(0)
        return

    for at in range(start, stop, _CHUNK):
        end = min(at + _CHUNK, stop)
        out[at - start : end - start] = _drawn(table, seed, np.arange(at, end, dtype=np.uint64))


def fill_rows(table: TableSpec, seed: int, rows: Counters, out: Array) -> None:
    """Write the first values of some rows of a sparse table into `out` (rows, width).

    Column j of row r is element r x width + j, modulo 2^64: the same as in a dense table of that name and shape.
    """
    if table.init not in ("normal", "uniform"):
        out.fill(0)
        return

    columns = np.arange(table.width, dtype=np.uint64)
    step = max(1, _CHUNK // table.width)
    for at in range(0, len(rows), step):
        elements = rows[at : at + step, None] * np.uint64(table.width) + columns
        out[at : at + step] = _drawn(table, seed, elements.reshape(-1)).reshape(elements.shape)


def _drawn(table: TableSpec, seed: int, elements: Counters) -> Array:
    key = mix(seed ^ name_hash(table.name))
    if table.init == "uniform":
        low, high = table.init_setting("low"), table.init_setting("high")
        return low + (high - low) * _fractions(key, elements)
    return table.init_setting("scale") * _normals(key, elements)


def _fractions(key: int, elements: Counters) -> Array:
    return (_mixed(key, elements) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _normals(key: int, elements: Counters) -> Array:
    total = np.zeros(len(elements), np.uint64)
    for draw in range(_DRAWS):
        z = _mixed(key, elements * np.uint64(_DRAWS) + np.uint64(draw))
        total += (z >> np.uint64(32)) + (z & np.uint64(0xFFFFFFFF))
    return (total.astype(np.float64) - _CENTRE) * 2.0**-32


def _mixed(key: int, counters: Counters) -> Counters:
    """core.keys.mix(key + counter * GOLDEN) of each counter; arrays of uint64 wrap around as C does."""
    z = counters * np.uint64(GOLDEN) + np.uint64((key + GOLDEN) & 0xFFFFFFFFFFFFFFFF)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
