"""What numpy cannot do at speed for rows: find them by number, move them, compare their keys.  Compiled by numba.

    cells   u64, a power of two of them, open addressing: the top half of a row's hash, then its slot + 1; 0 = free
    stored  u64, the row's number by slot
    hash    core.keys.row_hashes, less the bits that name the bucket (they are the same for every row here)

A row's place among the cells is the top of its hash, so that a table of twice the size is filled from the old one in
order, without a look at the numbers.  Importing this file compiles what is not yet in numba's cache, which takes seconds:
only `WarmUp` does it, in a thread.  No fastmath and no arithmetic on values: bits are moved as they are.
Knows neither tables nor messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import types

Array = np.ndarray[Any, np.dtype[Any]]

#: What `checked` says of rows that are all right.
ASCENDING, UNORDERED = -1, -2

_U = np.uint64  # mixed with signed numbers, unsigned ones would become floats
_GOLDEN, _MIX_1, _MIX_2 = _U(0x9E3779B97F4A7C15), _U(0xBF58476D1CE4E5B9), _U(0x94D049BB133111EB)
_FNV_OFFSET, _FNV_PRIME = _U(0xCBF29CE484222325), _U(0x100000001B3)
_LOW = _U(0xFFFFFFFF)


def _in(kind: Any, dimensions: int = 1) -> Any:
    """An array that is only read: received frames may not be written."""
    return types.Array(kind, dimensions, "C", readonly=True)


def _out(kind: Any, dimensions: int = 1) -> Any:
    return types.Array(kind, dimensions, "C")


_u8, _u64, _i32, _i64 = types.uint8, types.uint64, types.int32, types.int64
_words = (types.uint16, types.uint32, types.uint64)


def _compiled(*signatures: Any) -> Callable[[Any], Any]:
    """Compile now, or take it from numba's cache; where nothing can be kept it is compiled anew at each start."""

    def compile_it(function: Any) -> Any:
        try:
            return numba.njit(list(signatures), cache=True, nogil=True, error_model="numpy")(function)
        except (OSError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "cannot cache" not in str(error):
                raise
            return numba.njit(list(signatures), nogil=True, error_model="numpy")(function)

    return compile_it


@numba.njit(inline="always")
def _mixed(number: Any) -> Any:
    """core.keys.mix."""
    z = number + _GOLDEN
    z = (z ^ (z >> _U(30))) * _MIX_1
    z = (z ^ (z >> _U(27))) * _MIX_2
    return z ^ (z >> _U(31))


@numba.njit(inline="always")
def _shift_of(cells: Any) -> Any:
    """How far the top half of a hash is shifted to be a place among so many cells."""
    shift = _U(32)
    size = cells.size
    while size > 1:
        size >>= 1
        shift -= _U(1)
    return shift


# -- row numbers


@_compiled(_i64(_in(_u64), _u64, _u64, _u64, _u64))
def checked(ids: Array, rows: int, start: int, bits: int, bucket: int) -> int:
    """ASCENDING or UNORDERED; else the position of the first row that is not below `rows` (0 = any) or not of this bucket."""
    state = -1
    for i in range(ids.size):
        row = ids[i]
        if rows != _U(0) and row >= rows:
            return i
        if bits != _U(0) and _mixed(row ^ start) >> (_U(64) - bits) != bucket:
            return i
        if i > 0 and ids[i - 1] >= row:
            state = -2
    return state


@_compiled(_i64(_in(_u64), _in(_u64), _in(_u64), _u64, _u64, _out(_i64)))
def find(cells: Array, stored: Array, ids: Array, start: int, bits: int, slots: Array) -> int:
    """Write the slot of each row, -1 for one that is not there; returns how many are not."""
    shift, mask = _shift_of(cells), _U(cells.size - 1)
    missing = 0
    for i in range(ids.size):
        row = ids[i]
        tag = (_mixed(row ^ start) << bits) >> _U(32)
        at = tag >> shift
        slot = -1
        while True:
            cell = cells[at]
            if cell == _U(0):
                missing += 1
                break
            if cell >> _U(32) == tag and stored[(cell & _LOW) - _U(1)] == row:
                slot = _i64(cell & _LOW) - 1
                break
            at = (at + _U(1)) & mask
        slots[i] = slot
    return missing


@_compiled(_i64(_out(_u64), _out(_u64), _in(_u64), _u64, _u64, _out(_i64), _i64))
def add(cells: Array, stored: Array, ids: Array, start: int, bits: int, slots: Array, count: int) -> int:
    """Give a slot, from `count` on, to each row that has -1 for one; returns the new count.  There is room, and none comes twice."""
    shift, mask = _shift_of(cells), _U(cells.size - 1)
    for i in range(ids.size):
        if slots[i] >= 0:
            continue
        row = ids[i]
        tag = (_mixed(row ^ start) << bits) >> _U(32)
        at = tag >> shift
        while cells[at] != _U(0):
            at = (at + _U(1)) & mask
        stored[count] = row
        slots[i] = count
        count += 1
        cells[at] = (tag << _U(32)) | _U(count)
    return count


@_compiled(types.void(_in(_u64), _out(_u64)))
def spread(old: Array, new: Array) -> None:
    """Fill larger cells, all free, from `old`."""
    shift, mask = _shift_of(new), _U(new.size - 1)
    for i in range(old.size):
        cell = old[i]
        if cell != _U(0):
            at = (cell >> _U(32)) >> shift
            while new[at] != _U(0):
                at = (at + _U(1)) & mask
            new[at] = cell


# -- rows, as words of 2, 4 or 8 bytes


@_compiled(*[types.void(_in(word, 2), _in(_i64), _out(word, 2)) for word in _words])
def gather(kept: Array, slots: Array, out: Array) -> None:
    """`out[i]` = row `slots[i]`; one with the slot -1 is left alone."""
    width = kept.shape[1]
    if width == 1:
        for i in range(slots.size):
            if slots[i] >= 0:
                out[i, 0] = kept[slots[i], 0]
        return
    for i in range(slots.size):
        slot = slots[i]
        if slot >= 0:
            for word in range(width):
                out[i, word] = kept[slot, word]


@_compiled(*[types.void(_out(word, 2), _in(_i64), _in(word, 2)) for word in _words])
def scatter(kept: Array, slots: Array, new: Array) -> None:
    """Row `slots[i]` = `new[i]`."""
    width = kept.shape[1]
    if width == 1:
        for i in range(slots.size):
            kept[slots[i], 0] = new[i, 0]
        return
    for i in range(slots.size):
        slot = slots[i]
        for word in range(width):
            kept[slot, word] = new[i, word]


@_compiled(_i64(_in(_i64), _out(_i32), _out(_i64), _out(_i64), _i64))
def unite(slots: Array, place_of: Array, united: Array, places: Array, count: int) -> int:
    """Append those slots that are not among the `count` united ones yet; returns the new count.

    `places[i]` = where slot i stands among the united; `place_of` holds the same by slot, -1 = not yet.
    """
    for i in range(slots.size):
        slot = slots[i]
        place = place_of[slot]
        if place < 0:
            place = _i32(count)
            place_of[slot] = place
            united[count] = slot
            count += 1
        places[i] = place
    return count


# -- keys: the text of all, one behind the other, and where each ends


@_compiled(_i64(_in(_u8), _in(_i64), _in(_u64)))
def wrong_key(text: Array, ends: Array, ids: Array) -> int:
    """Position of the first key whose hash (core.keys.name_hash) is not its row number, -1 if there is none."""
    start = 0
    for i in range(ends.size):
        value = _FNV_OFFSET
        for at in range(start, ends[i]):
            value = (value ^ _U(text[at])) * _FNV_PRIME
        if _mixed(value) != ids[i]:
            return i
        start = ends[i]
    return -1


@_compiled(_i64(_in(_u8), _in(_i64), _in(_i64), _in(_u8), _in(_i64)))
def other_key(text: Array, ends: Array, slots: Array, kept_text: Array, kept_ends: Array) -> int:
    """Position of the first key that differs from the one kept in its slot, -1 if there is none."""
    start = 0
    for i in range(ends.size):
        slot = slots[i]
        if slot >= 0:
            kept_start = kept_ends[slot - 1] if slot > 0 else 0
            if ends[i] - start != kept_ends[slot] - kept_start:
                return i
            for at in range(ends[i] - start):
                if text[start + at] != kept_text[kept_start + at]:
                    return i
        start = ends[i]
    return -1


@_compiled(types.void(_in(_u8), _in(_i64), _in(_i64), _i64, _out(_u8), _out(_i64)))
def keep_keys(text: Array, ends: Array, slots: Array, first: int, kept_text: Array, kept_ends: Array) -> None:
    """Append the keys of slots from `first` on, which come in order, behind those that are kept.  There is room."""
    start = 0
    end = kept_ends[first - 1] if first > 0 else 0
    for i in range(ends.size):
        if slots[i] >= first:
            for at in range(start, ends[i]):
                kept_text[end] = text[at]
                end += 1
            kept_ends[slots[i]] = end
        start = ends[i]
