"""Rows of a sparse table by bucket: each once, ascending within its bucket, so that no server need sort them.

    as they came -> sorted -> each once -> by bucket        `Cut` says which row went where, and back

Sorting and hashing cost more than moving the numbers, and programs push the rows that they have just pulled, or the same ones for
ever: a channel remembers its last cuts (`Cuts`).  Refuses to know values, messages and ranges.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core.keys import buckets_of, row_hashes
from ..core.limits import MIB
from ..shm_protocol.rows import Rows
from .plan import Sparse

REMEMBERED_BYTES = 64 * MIB  # of one channel's cuts; a larger one is made anew each time
REMEMBERED = 2  # of one table: the rows that are pushed, and those that are wanted beside them

Ids = NDArray[np.uint64]
Order = NDArray[Any]


def ascending(ids: Ids) -> bool:
    """Each number above the one before it: so none comes twice."""
    return bool(np.all(ids[1:] > ids[:-1]))


def distinct(ids: Ids) -> bool:
    return ascending(ids) or ascending(np.sort(ids))


def sorting(ids: Ids) -> Order:
    """The order in which the numbers ascend, twins in order of their coming.

    >>> sorting(np.array([7, 5, 7, 0], np.uint64)).tolist()
    [3, 1, 0, 2]
    """
    bits = max(1, (len(ids) - 1).bit_length())
    if len(ids) and int(ids.max()).bit_length() + bits <= 64:  # number and place in one word: a plain sort is ten times as fast
        words = (ids << np.uint64(bits)) | np.arange(len(ids), dtype=np.uint64)
        words.sort()
        return (words & np.uint64((1 << bits) - 1)).astype(np.int64)
    order = np.argsort(ids)
    return order if ascending(ids.take(order)) else np.argsort(ids, kind="stable")


def take_keys(keys: NDArray[np.uint8], ends: NDArray[np.int64], order: Order) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The keys in another order: bytes and ends."""
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]]) if len(ends) else ends
    lengths = (ends - starts)[order]
    new = np.cumsum(lengths)
    total = int(new[-1]) if len(new) else 0
    at = np.arange(total) + np.repeat(starts[order] - (new - lengths), lengths)
    return keys[at], new


class Cut(NamedTuple):
    """The rows of one request and table as they are sent.

    `order` says which row is sent where, None = as they came; of `twins` it counts those that `add_up` gives, each once and
    ascending.  `home` says where each row that came is among those sent, None = where it was.  `ends`: of each bucket.
    """

    came: Rows  # without values
    sent: Rows  # each once
    order: Order | None
    home: Order | None
    ends: NDArray[Any]
    twins: bool

    @property
    def nbytes(self) -> int:
        arrays = (*self.came[1:], *self.sent[1:], self.order, self.home, self.ends)
        return sum(array.nbytes for array in arrays if array is not None)


def cut(came: Rows, table: Sparse) -> Cut:
    """Sort them, leave out twins, and put them by bucket."""
    came = came._replace(values=None)
    ids = came.ids
    order: Order | None = None
    group: Order | None = None
    first = None
    if not ascending(ids):
        order = sorting(ids)
        ids = ids.take(order)
        new = np.concatenate([np.ones(1, bool), ids[1:] != ids[:-1]])
        if not new.all():
            group, first, ids = np.cumsum(new) - 1, order[new], ids[new]
    by, ends = _by_bucket(ids, table)
    if by is not None:
        ids = ids.take(by)
    if first is None or group is None:
        moved = by if order is None else order if by is None else order.take(by)
        return _made(came, ids, moved, moved, None if moved is None else _inverse(moved), ends, False)
    assert order is not None
    home = np.empty(came.size, np.int64)
    home[order] = group if by is None else _inverse(by).take(group)
    return _made(came, ids, first if by is None else first.take(by), by, home, ends, True)


def _by_bucket(ids: Ids, table: Sparse) -> tuple[Order | None, NDArray[Any]]:
    """The order that puts them by bucket, None = they are so; and where each bucket ends."""
    buckets = len(table.ranges)
    if buckets == 1:
        return None, np.array([len(ids)])
    at = buckets_of(row_hashes(ids, table.start), buckets).astype(np.uint16)  # 16 bits are sorted by counting
    return np.argsort(at, kind="stable"), np.cumsum(np.bincount(at, minlength=buckets))


def _inverse(order: Order) -> Order:
    found = np.empty(len(order), np.int64)
    found[order] = np.arange(len(order))
    return found


def _made(came: Rows, ids: Ids, places: Order | None, order: Order | None, home: Order | None, ends: NDArray[Any], twins: bool) -> Cut:
    """`places` are those of the rows sent among those that came."""
    keys = (came.keys, came.ends)
    if places is not None and came.keys is not None and came.ends is not None:
        keys = take_keys(came.keys, came.ends, places)
    return Cut(came, Rows(came.table, ids, None, *keys), _short(order), _short(home), ends, twins)


def _short(order: Order | None) -> Order | None:
    """Half the bytes: they are kept."""
    return None if order is None else order.astype(np.int32)


class Cuts:
    """The last cuts of one channel, so few and so small that they never matter beside its files."""

    __slots__ = ("_known", "_nbytes", "_most")

    def __init__(self, most: int = REMEMBERED_BYTES) -> None:
        self._known: dict[int, list[Cut]] = {}  # by table, the newest first; the table that was asked for last comes last
        self._nbytes = 0
        self._most = most

    @property
    def nbytes(self) -> int:
        return self._nbytes

    def of(self, came: Rows, table: Sparse) -> Cut:
        """The cut of these rows, made anew only if they are others than the last ones."""
        known = self._known.pop(came.table, [])
        found = next((one for one in known if _same(one.came, came)), None)
        if found is None:
            found = cut(came, table)
            if found.nbytes > self._most:
                self._known[came.table] = known
                return found
            self._nbytes += found.nbytes
        known = [found, *(one for one in known if one is not found)]
        self._forget(known[REMEMBERED:])
        self._known[came.table] = known[:REMEMBERED]
        while self._nbytes > self._most:
            oldest = next(iter(self._known))
            self._forget([self._known[oldest].pop()])
            if not self._known[oldest]:
                del self._known[oldest]
        return found

    def _forget(self, cuts: list[Cut]) -> None:
        self._nbytes -= sum(one.nbytes for one in cuts)


def _same(one: Rows, other: Rows) -> bool:
    """The same rows in the same order; of keys every byte is looked at, since two may have one hash."""
    if one.size != other.size or not np.array_equal(one.ids, other.ids):
        return False
    if one.keys is None or other.keys is None or one.ends is None or other.ends is None:
        return one.keys is other.keys
    return np.array_equal(one.ends, other.ends) and np.array_equal(one.keys, other.keys)
