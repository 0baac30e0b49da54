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
        else:
            self._map(-(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE)

    def _map(self, nbytes: int) -> None:
        """Enlarge the mapping, or make it and move in."""
        old = self.array
        dtype, width = old.dtype, old.shape[1]
        try:
            if self._mapping is None:
                self._mapping = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                _in_large_pages(self._mapping)
                self.array = self._view(self._mapping, dtype, width)
                self.array[: len(old)] = old
                return
            held = self._mapping
            self.array = old = np.zeros((0, width), dtype)  # a mapping with a view of it cannot grow
            try:
                held.resize(nbytes)
                _in_large_pages(held)
            finally:
                self.array = self._view(held, dtype, width)
        except OSError as error:
            raise MemoryError(f"no memory for {nbytes} bytes of rows: {error}") from error

    @staticmethod
    def _view(mapping: mmap.mmap, dtype: np.dtype[Any], width: int) -> Array:
        rows = len(mapping) // (width * dtype.itemsize)
        return np.frombuffer(mapping, dtype, rows * width).reshape(rows, width)


def _in_large_pages(mapping: mmap.mmap) -> None:
    """Ask for large pages: the first touch of new rows costs half.  A kernel without them says no, and nothing is lost."""
    with contextlib.suppress(OSError):
        mapping.madvise(mmap.MADV_HUGEPAGE)
