"""Arrays that grow at their end: what is in them keeps its place, and a large one is never copied to make room.

Small ones are copied into twice the room.  From 1 MiB on the memory is a mapping of its own, which the kernel enlarges by
moving its page tables; pages that nobody has written to take no memory, so the room ahead costs nothing.
Knows nothing of rows.
"""

from __future__ import annotations

import contextlib
import mmap
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

MAPPED_BYTES = 1 << 20
_FIRST_BYTES = 1 << 10


class Column:
    """`array` has the shape (room, width), new rows hold zeros.  It is another array after `reserve`: keep no reference to it."""

    __slots__ = ("array", "_mapping")

    def __init__(self, dtype: np.dtype[Any], width: int) -> None:
        self.array: Array = np.zeros((0, width), dtype)
        self._mapping: mmap.mmap | None = None

    def reserve(self, rows: int) -> None:
        """Have room for so many rows.  Raises MemoryError, and nothing is lost."""
        room, width = self.array.shape
        if rows <= room:
            return
        row_bytes = width * self.array.dtype.itemsize
        nbytes = max(rows * row_bytes, 2 * room * row_bytes, _FIRST_BYTES)
        if nbytes < MAPPED_BYTES:
            grown = np.zeros((nbytes // row_bytes, width), self.array.dtype)
            grown[:room] = self.array
            self.array = grown
            return
        # Twice may be more than the host has, and what is needed not.
        if not (self._map(nbytes) or self._map(rows * row_bytes)):
            raise MemoryError(f"no memory for {rows * row_bytes} bytes of rows")

    def _map(self, nbytes: int) -> bool:
        """Enlarge the mapping, or make it and move in; False if there is no memory."""
        nbytes = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        try:
            if self._mapping is None or not self._enlarge(self._mapping, nbytes):
                self._move(mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        except (OSError, OverflowError, ValueError):
            return False
        assert self._mapping is not None
        with contextlib.suppress(OSError):  # the first touch of new rows costs half in large pages; some kernels have none
            self._mapping.madvise(mmap.MADV_HUGEPAGE)
        return True

    def _enlarge(self, mapping: mmap.mmap, nbytes: int) -> bool:
        """False if somebody still looks at the array: its memory must stay where it is.  Raises OSError."""
        like = np.zeros((0, self.array.shape[1]), self.array.dtype)
        self.array = like  # a mapping with a view of it cannot grow
        try:
            mapping.resize(nbytes)
        except BufferError:
            return False
        finally:
            self.array = _view(mapping, like)
        return True

    def _move(self, mapping: mmap.mmap) -> None:
        grown = _view(mapping, self.array)
        grown[: len(self.array)] = self.array
        self.array, self._mapping = grown, mapping


def _view(mapping: mmap.mmap, like: Array) -> Array:
    width = like.shape[1]
    rows = len(mapping) // (width * like.dtype.itemsize)
    return np.frombuffer(mapping, like.dtype, rows * width).reshape(rows, width)
