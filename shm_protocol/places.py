"""Where in the files lies what takes part in a request: dense tables at their offsets, the sections' rows behind them.

    grad, param    dense tables | from the next multiple of 64: rows of the 1st section | of the 2nd, from a multiple of 8 | ...
    gidx, want     row numbers of the 1st section | of the 2nd, from a multiple of 8 | ...

Knows bytes and tables, no files.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ..core.errors import Code, RequestError
from ..core.limits import CACHE_LINE_BYTES
from .info import ROW_ALIGN, Info, InfoTable, rounded
from .request import Request


class Place(NamedTuple):
    """The rows of one section: `table` is its number in the job, `at` where they begin."""

    table: int
    rows: int
    at: int
    nbytes: int


class Layout(NamedTuple):
    """What takes part in one file: the dense tables or not, the sections that have rows, and where the last number ends."""

    dense: bool
    places: tuple[Place, ...]
    nbytes: int


def lay_out(sizes: Iterable[int], start: int) -> tuple[list[int], int]:
    """Where sections of so many bytes begin, from `start` on, and where the last byte ends; an empty one takes no room.

    >>> lay_out([36, 0, 16], 64)
    ([64, 104, 104], 120)
    """
    offsets = []
    end = at = start
    for size in sizes:
        offsets.append(at)
        if size:
            end = at + size
            at = rounded(end, ROW_ALIGN)
    return offsets, end


def rows_start(dense_bytes: int) -> int:
    """Where the first section begins behind dense tables that end at `dense_bytes` (0 = they take no part)."""
    return rounded(dense_bytes, CACHE_LINE_BYTES)


class Places:
    """The places of one channel's requests."""

    def __init__(self, info: Info) -> None:
        self.info = info
        self.tables: tuple[InfoTable, ...] = info.tables
        self.dense_bytes = info.dense_bytes
        self._numbers = {table.name: number for number, table in enumerate(info.tables)}

    def grad(self, request: Request) -> Layout:
        """What is pushed.  The request has passed `Info.check`, here and below."""
        return self._values(request, request.pushes, [(section.table, section.rows) for section in request.sections])

    def param(self, request: Request) -> Layout:
        """What is handed over."""
        return self._values(request, request.pulls, [(section.table, section.want) for section in request.sections])

    def gidx(self, request: Request) -> Layout:
        return self._indices([(section.table, section.rows) for section in request.sections])

    def want(self, request: Request) -> Layout:
        return self._indices([(section.table, section.want) for section in request.sections])

    def _values(self, request: Request, moves: bool, sections: list[tuple[str, int]]) -> Layout:
        dense = moves and request.takes_dense
        dense_bytes = self.dense_bytes if dense else 0
        counts = self._counts(sections)
        offsets, end = lay_out([rows * self.tables[number].row_bytes for number, rows in counts], rows_start(dense_bytes))
        places = self._places(counts, offsets, [self.tables[number].row_bytes for number, _rows in counts])
        return Layout(dense, places, end if places else dense_bytes)

    def _indices(self, sections: list[tuple[str, int]]) -> Layout:
        counts = [(number, rows) for number, rows in self._counts(sections) if self.tables[number].index_bytes]
        widths = [self.tables[number].index_bytes for number, _rows in counts]
        offsets, end = lay_out([rows * width for (_number, rows), width in zip(counts, widths)], 0)
        return Layout(False, self._places(counts, offsets, widths), end)

    def _counts(self, sections: list[tuple[str, int]]) -> list[tuple[int, int]]:
        return [(self._numbers[name], rows) for name, rows in sections if rows]

    @staticmethod
    def _places(counts: list[tuple[int, int]], offsets: list[int], widths: list[int]) -> tuple[Place, ...]:
        return tuple(Place(number, rows, at, rows * width) for (number, rows), at, width in zip(counts, offsets, widths))

    def number(self, table: str) -> int:
        return self._numbers[table]

    def keys(self, sections: Iterable[tuple[str, int]]) -> list[tuple[int, int]]:
        """Table and rows of each section whose rows are named by strings."""
        return [(number, rows) for number, rows in self._counts(list(sections)) if not self.tables[number].index_bytes]


def fits(size: int, needed: int, cap: int, request: Request) -> bool:
    """Whether a file of `size` bytes may hold the `needed` ones: exactly these or all that it can have, with `n=` more is no harm."""
    return size >= needed if request.n is not None else size in (needed, cap)


def check_size(name: str, size: int, needed: int, cap: int, request: Request) -> None:
    """Raises `RequestError` SIZE for a file that does not fit."""
    if not fits(size, needed, cap, request):
        raise RequestError(Code.SIZE, f"{name} has {size} bytes, {needed} are declared; nothing was applied")
