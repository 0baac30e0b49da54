"""Rows of sparse tables as a request names them: by numbers, by keys, raw and as text.  Knows no files.

Everything works on all rows at once.  What comes is kept as it came: unsorted, twins still twice.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core.errors import Code, RequestError
from ..core.keys import key_hashes
from .info import InfoTable

KEY_BYTES_MAX = 255
_NEWLINE = 10
_COMPARED = 1 << 16  # keys that are compared at once, so that many twins make no huge array

Ids = NDArray[np.uint64]
Bytes = NDArray[np.uint8]
Ends = NDArray[np.int64]


class Rows(NamedTuple):
    """Rows of one table.  `values` has a line for each, in the storage's kind of number, None where rows are wanted.

    With string keys `ids` are their hashes, `keys` their bytes one behind the other, and key i ends before byte `ends[i]`.
    """

    table: int
    ids: Ids
    values: NDArray[Any] | None = None
    keys: Bytes | None = None
    ends: Ends | None = None

    @property
    def size(self) -> int:
        return len(self.ids)


def read_ids(raw: Bytes, table: InfoTable) -> Ids:
    """Row numbers as they lie in gidx and want."""
    return raw.view(f"<u{table.index_bytes}").astype(np.uint64, copy=False)


def check_ids(ids: Ids, table: InfoTable, name: str) -> None:
    """Raises `RequestError` RANGE that names the first row which the table has not."""
    top = (table.rows or 1 << 8 * table.index_bytes) - 1  # a text can name more than the index holds
    if not len(ids) or int(ids.max()) <= top:
        return
    at = int((ids > np.uint64(top)).argmax())
    text = f"row {ids[at]}, number {at} of table {table.name} in {name}, is not below {top + 1}; nothing was applied"
    raise RequestError(Code.RANGE, text)


def key_bytes_max(count: int) -> int:
    """A file of so many keys that is longer is refused by its start alone."""
    return count * (KEY_BYTES_MAX + 1)


def why_too_long(start: Bytes, count: int, name: str) -> RequestError:
    """What is wrong with a file of keys whose `start` is longer than `key_bytes_max`: one of the keys, or else the number of lines."""
    stops = np.flatnonzero(start == _NEWLINE)
    lengths = np.diff(stops, prepend=-1, append=len(start))[:count] - 1
    if (lengths > KEY_BYTES_MAX).any():
        return _bad_length(int((lengths > KEY_BYTES_MAX).argmax()), "more", name)
    return RequestError(Code.SIZE, f"{name} has more than {count} lines, {count} keys are declared; nothing was applied")


def _bad_length(at: int, found: str, name: str) -> RequestError:
    return RequestError(Code.FORMAT, f"line {at + 1} of {name}: a key has 1 to {KEY_BYTES_MAX} bytes, this one has {found}; nothing was applied")


def split_keys(text: Bytes, count: int, name: str) -> tuple[Bytes, Ends]:
    """The keys without their newlines, and where each ends.  Raises `RequestError` SIZE or FORMAT, naming the line."""
    stops = np.flatnonzero(text == _NEWLINE)
    if len(text) and text[-1] != _NEWLINE:
        stops = np.append(stops, len(text))
    if len(stops) != count:
        raise RequestError(Code.SIZE, f"{name} has {len(stops)} lines, {count} keys are declared; nothing was applied")
    lengths = np.diff(stops, prepend=-1) - 1
    wrong = (lengths < 1) | (lengths > KEY_BYTES_MAX)
    if wrong.any():
        at = int(wrong.argmax())
        raise _bad_length(at, str(lengths[at]), name)
    try:
        text.tobytes().decode()
    except UnicodeDecodeError as error:
        line = int(np.count_nonzero(text[: error.start] == _NEWLINE)) + 1
        text_ = f"line {line} of {name}: byte {text[error.start]:#04x} is not UTF-8; write keys in UTF-8; nothing was applied"
        raise RequestError(Code.FORMAT, text_) from None
    return text[text != _NEWLINE], np.cumsum(lengths, dtype=np.int64)


def cut_keys(keys: Bytes, ends: Ends, start: int, count: int) -> tuple[Bytes, Ends]:
    """The `count` keys from number `start` on."""
    begin = int(ends[start - 1]) if start else 0
    some = ends[start : start + count]
    return keys[begin : int(some[-1])], some - begin


def check_collisions(named: list[Rows], table: InfoTable) -> None:
    """Raises `RequestError` COLLIDE for two different keys with one hash among rows of one table."""
    if len(named) == 1:
        ids, keys, ends = named[0].ids, named[0].keys, named[0].ends
    else:
        ids = np.concatenate([rows.ids for rows in named])
        keys = np.concatenate([rows.keys for rows in named if rows.keys is not None])
        sizes = np.cumsum([0, *(len(rows.keys) for rows in named if rows.keys is not None)])
        ends = np.concatenate([rows.ends + size for rows, size in zip(named, sizes) if rows.ends is not None])
    assert keys is not None and ends is not None
    order = np.argsort(ids, kind="stable")
    twins = np.flatnonzero(ids[order[1:]] == ids[order[:-1]])
    for start in range(0, len(twins), _COMPARED):
        some = twins[start : start + _COMPARED]
        pair = _unlike(keys, ends, order[some], order[some + 1])
        if pair is not None:
            one, other = (_key(keys, ends, at) for at in pair)
            text = f"keys {one!r} and {other!r} of table {table.name} have one hash; rename one of them; nothing was applied"
            raise RequestError(Code.COLLIDE, text)


def _unlike(keys: Bytes, ends: Ends, left: NDArray[np.intp], right: NDArray[np.intp]) -> tuple[int, int] | None:
    """The first pair of keys, left[i] and right[i], that are not the same bytes."""
    starts = np.zeros(len(ends), np.int64)
    starts[1:] = ends[:-1]
    lengths = ends[left] - starts[left]
    unlike = lengths != ends[right] - starts[right]
    if not unlike.any():
        offsets = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        bytes_unlike = keys[np.repeat(starts[left], lengths) + offsets] != keys[np.repeat(starts[right], lengths) + offsets]
        unlike = np.zeros(len(left), bool)
        unlike[np.repeat(np.arange(len(left)), lengths)[bytes_unlike]] = True
    if not unlike.any():
        return None
    at = int(unlike.argmax())
    return int(left[at]), int(right[at])


def _key(keys: Bytes, ends: Ends, at: int) -> str:
    return keys[int(ends[at - 1]) if at else 0 : int(ends[at])].tobytes().decode(errors="replace")


def hashed(table: int, keys: Bytes, ends: Ends, values: NDArray[Any] | None = None) -> Rows:
    """Rows that are named by keys."""
    return Rows(table, key_hashes(keys, ends), values, keys, ends)
