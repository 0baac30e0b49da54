"""Which rows one bucket has: row number -> slot, and the key of each where rows are named by strings.

A row gets the next slot when it is added and keeps it.  Knows neither values nor messages.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from .growing import Column

Array = np.ndarray[Any, np.dtype[Any]]
Ids = np.ndarray[Any, np.dtype[np.uint64]]
Slots = np.ndarray[Any, np.dtype[np.int64]]

KEY_BYTES_MAX = 255
_CELLS_FIRST = 64
_LOAD = 2 / 3  # of the cells, at most
#: Bytes of a row's name: its number, and its share of the cells (8 bytes each, a third to two thirds of them taken).
NAME_BYTES = 8 + 18
_MEMO_ROWS = 1024  # a look-up of fewer is as quick as a comparison
_MEMO_MOST = 32


class Keys(NamedTuple):
    """Keys one behind the other: key i ends before byte `ends[i]` of `text`."""

    text: Array
    ends: Slots

    def key(self, position: int) -> bytes:
        start = int(self.ends[position - 1]) if position else 0
        return bytes(self.text[start : int(self.ends[position])])

    def some(self, positions: Array) -> Keys:
        """The keys at these positions, in their order."""
        ends = self.ends[positions]
        starts = np.where(positions > 0, self.ends[positions - 1], 0)
        lengths = ends - starts
        new_ends = np.cumsum(lengths)
        # Byte j of the new text lies as far behind its key's start as it did before.
        source = np.arange(int(new_ends[-1]) if len(new_ends) else 0) + np.repeat(starts - (new_ends - lengths), lengths)
        return Keys(self.text[source], new_ends)


def kernels() -> ModuleType:
    """The compiled part, which `WarmUp` has brought in by then: importing it for the first time takes seconds."""
    from . import rowindex

    return rowindex


class Names:
    """`start` is `core.keys.table_hash`, `bits` the number of bits that name a bucket."""

    __slots__ = ("count", "_start", "_bits", "_cells", "_stored", "_text", "_ends", "_strings", "_memo")

    def __init__(self, start: int, bits: int, strings: bool) -> None:
        self.count = 0
        self._start, self._bits = np.uint64(start), np.uint64(bits)
        self._cells: Array = np.zeros(_CELLS_FIRST, np.uint64)
        self._stored = Column(np.dtype(np.uint64), 1)
        self._text = Column(np.dtype(np.uint8), 1)
        self._ends = Column(np.dtype(np.int64), 1)
        self._strings = strings
        self._memo: list[tuple[Ids, Slots]] = []

    @property
    def ids(self) -> Ids:
        """Row numbers by slot: a view, gone with the next `add`."""
        return self._stored.array[: self.count, 0]

    def checked(self, ids: Ids, rows: int, bucket: int) -> int:
        """Position of the first row that is not below `rows` (0 = any) or not of this bucket; else ASCENDING or UNORDERED."""
        state: int = kernels().checked(ids, np.uint64(rows), self._start, self._bits, np.uint64(bucket))
        return state

    def find(self, ids: Ids) -> Slots:
        """The slot of each row, -1 for one that is not here.  Only read it: the same look-up again gives the same array."""
        for known, slots in self._memo:
            if len(known) == len(ids) and known[-1] == ids[-1] and np.array_equal(known, ids):
                return slots
        slots = np.empty(len(ids), np.int64)
        missing = kernels().find(self._cells, self._stored.array[:, 0], ids, self._start, self._bits, slots)
        if not missing and len(ids) >= _MEMO_ROWS:  # rows never move, so this stays true
            self._memo = [(ids, slots), *self._memo[: _MEMO_MOST - 1]]
        return slots

    def reserve(self, new: int, key_bytes: int) -> None:
        """Room for so many more rows, with keys of so many bytes.  Raises MemoryError, and no row is lost."""
        self._stored.reserve(self.count + new)
        if self._strings:
            self._ends.reserve(self.count + new)
            self._text.reserve(self.text_bytes + key_bytes)
        size = len(self._cells)
        while self.count + new > _LOAD * size:
            size *= 2
        if size > len(self._cells):
            cells = np.zeros(size, np.uint64)
            kernels().spread(self._cells, cells)
            self._cells = cells

    def add(self, ids: Ids, slots: Slots, keys: Keys | None) -> Slots:
        """Add the rows whose slot is -1; returns all slots.  No row comes twice, and there is room."""
        if not (slots < 0).any():
            return slots
        filled = slots.copy()
        first = self.count
        self.count = kernels().add(self._cells, self._stored.array[:, 0], ids, self._start, self._bits, filled, first)
        if self._strings:
            assert keys is not None
            kernels().keep_keys(keys.text, keys.ends, filled, first, self._text.array[:, 0], self._ends.array[:, 0])
        return filled

    # -- keys

    @property
    def text_bytes(self) -> int:
        return int(self._ends.array[self.count - 1, 0]) if self._strings and self.count else 0

    def clash(self, keys: Keys, slots: Slots) -> int:
        """Position of the first key that is not the one kept in its slot, -1 if there is none."""
        found: int = kernels().other_key(keys.text, keys.ends, slots, self._text.array[:, 0], self._ends.array[:, 0])
        return found

    def within(self, start: int, stop: int, most_bytes: int, each: int) -> int:
        """Where to end before `stop`, so that the keys from slot `start` on, and `each` bytes more a row, are not more than that."""
        if start >= stop:
            return stop
        begin = int(self._ends.array[start - 1, 0]) if start else 0
        sizes = self._ends.array[start:stop, 0] - begin + each * np.arange(1, stop - start + 1)
        return start + max(1, int(np.searchsorted(sizes, most_bytes, side="right")))

    def keys(self, start: int, stop: int) -> Keys:
        """A copy of the keys in these slots."""
        if stop <= start:
            return Keys(np.zeros(0, np.uint8), np.zeros(0, np.int64))
        ends = self._ends.array[:stop, 0]
        begin = int(ends[start - 1]) if start else 0
        return Keys(self._text.array[begin : int(ends[-1]), 0].copy(), ends[start:] - begin)

    # -- copies

    def load(self, ids: Ids, keys: Keys | None, rows: int, bucket: int) -> str:
        """Rows for the slots from 0 on, where there are none; says what is wrong with them, "" if nothing is.  Raises MemoryError."""
        if self.checked(ids, rows, bucket) >= 0:
            return "a row that does not belong there"
        if keys is not None and not _whole_keys(keys):
            return "keys whose lengths do not fit their text"
        if keys is not None and kernels().wrong_key(keys.text, keys.ends, ids) >= 0:
            return "a key that has another row's number"
        self.reserve(len(ids), len(keys.text) if keys is not None else 0)
        slots = self.add(ids, np.full(len(ids), -1, np.int64), keys)
        kernels().find(self._cells, self._stored.array[:, 0], ids, self._start, self._bits, slots)
        return "" if np.array_equal(slots, np.arange(len(ids))) else "a row twice"


def _whole_keys(keys: Keys) -> bool:
    """Whether each key has 1 to KEY_BYTES_MAX bytes, and all together the text."""
    lengths = np.diff(keys.ends, prepend=0)
    return bool(lengths.min() >= 1 and lengths.max() <= KEY_BYTES_MAX and keys.ends[-1] == len(keys.text))
