"""The sums of weights of the clock under way, one for each sparse table: where the page has room for one sum alone.

Two rows of f64, used in turns like the page's results: that of done_seq stays whole while the next one is written.
The dense tables always take part together; theirs is the page's `weight`.  A channel without sparse tables has no such file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from ..core.errors import Code, RequestError
from .files import Files
from .info import Info

NAME = "sums"


def sparse_tables(info: Info) -> tuple[str, ...]:
    return tuple(table.name for table in info.tables if table.kind == "sparse")


def file_bytes(info: Info) -> int:
    """Of the file; 0 = there is none."""
    return 2 * 8 * len(sparse_tables(info))


class Sums:
    """Of one channel."""

    def __init__(self, files: Files, info: Info) -> None:
        self._files = files
        self._names = sparse_tables(info)
        self._row = struct.Struct(f"<{len(self._names)}d")

    def read(self, seq: int) -> tuple[tuple[str, float], ...]:
        """What stands beside the result of `seq`, tables without a weight left out.  Raises `RequestError`."""
        if not self._names:
            return ()
        self._files.size(NAME)
        row = self._files.read(NAME, 2 * self._row.size)[self._at(seq) :][: self._row.size]
        if len(row) < self._row.size:
            raise RequestError(Code.PERM, f"{NAME} was made shorter than it was: a channel's own files must stay as they are")
        return tuple((name, weight) for name, weight in zip(self._names, self._row.unpack(row)) if weight)

    def write(self, seq: int, weights: Iterable[tuple[str, float]]) -> None:
        """Before the result of `seq`.  Raises `RequestError`."""
        if self._names:
            known = dict(weights)
            self._files.write(NAME, self._at(seq), self._row.pack(*(known.get(name, 0.0) for name in self._names)))

    def _at(self, seq: int) -> int:
        return (seq & 1) * self._row.size
