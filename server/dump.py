"""What a range holds as one thing that can be sent and stored: a plain document, and arrays by name.

    <table>/<block>/values slot0 ...                       a dense block that entries have changed
    <table>/<bucket>/ids steps values slot0 ... keys ends  a bucket that has rows; keys only where strings name them
    staged/<n>/<m>  staged/<n>/<m>/slots                   numbers of a push that waits for its close, rows' slots

As bytes it is the document (msgpack), then all arrays, one behind the other in order of their names.  Which arrays there
are, of which kind and shape, follows from document and job (`Layout`): a peer can claim no others.  Arrays of a dump are
read-only views of what the range shows, which no step changes; rows are copies.

Owns the order of the bytes.  Refuses to know what a block, a row or a push is, and who sends or stores it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgpack
import numpy as np

from ..core.errors import PeerError
from .memory import aligned

Array = np.ndarray[Any, np.dtype[Any]]
Meta = dict[str, Any]

HEAD_MAX = 16 << 20  # bytes of the document: one that cannot be decoded in a moment is refused
_CHECKED = 1 << 16  # numbers
JOINED = 64 << 10  # smaller arrays are copied together into one part, larger ones are parts of their own


class Shape(NamedTuple):
    """What one array has to be."""

    dtype: np.dtype[Any]
    sizes: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.sizes) * self.dtype.itemsize


Layout = Mapping[str, Shape]


class Dump(NamedTuple):
    """`kept` is what the range needs to let go of the arrays again (`Contents.let_go`)."""

    meta: Meta
    arrays: dict[str, Array]
    kept: Any = None


class Places:
    """Where arrays of these sizes begin and end among the bytes, behind `first` bytes of something else."""

    def __init__(self, sizes: Mapping[str, int], first: int) -> None:
        self.names = [name for name in sorted(sizes) if sizes[name]]
        self.starts = [first]
        for name in self.names:
            self.starts.append(self.starts[-1] + sizes[name])
        self.total = self.starts.pop()
        self._ends = [*self.starts[1:], self.total]

    def at(self, cursor: int) -> int:
        """Position of the array that byte `cursor` belongs to, -1 for the head."""
        return bisect_right(self.starts, cursor) - 1

    def end(self, position: int) -> int:
        return self._ends[position] if position >= 0 else self.starts[0] if self.starts else self.total

    def cut(self, cursor: int, nbytes: int) -> int:
        """Where the part ends that begins at `cursor` and has at most so many bytes (at least 1)."""
        most = min(cursor + nbytes, self.total)
        position = self.at(cursor)
        end = self.end(position)
        while end < most and end - cursor < JOINED:
            position += 1
            if self._ends[position] - self.starts[position] >= JOINED:
                break
            end = self._ends[position]
        return min(end, most)


class Stream:
    """A dump as bytes, of which any part may be had at any time."""

    def __init__(self, dump: Dump) -> None:
        self.dump = dump
        self.head = msgpack.packb(dump.meta)
        if len(self.head) > HEAD_MAX:
            raise MemoryError(f"a copy's document has {len(self.head)} bytes, at most {HEAD_MAX}")
        self._places = Places({name: array.nbytes for name, array in dump.arrays.items()}, len(self.head))
        self.total = self._places.total

    def part(self, cursor: int, nbytes: int) -> memoryview:
        """At least one byte and at most `nbytes` from `cursor` on; of a large array a view.  Raises `PeerError` beyond the end."""
        if not 0 <= cursor < self.total or nbytes < 1:
            raise PeerError(f"{nbytes} bytes from {cursor} on were asked for, of {self.total} of a copy")
        end = self._places.cut(cursor, nbytes)
        pieces = []
        while cursor < end:
            position = self._places.at(cursor)
            start = self._places.starts[position] if position >= 0 else 0
            stop = min(end, self._places.end(position))
            pieces.append(self._bytes(position)[cursor - start : stop - start])
            cursor = stop
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))

    def _bytes(self, position: int) -> memoryview:
        return memoryview(self.head) if position < 0 else octets(self.dump.arrays[self._places.names[position]])


class Filling:
    """A dump on its way here: parts come in any order, again and cut anew; nothing is believed before it is checked.

    `layout(meta)` says which arrays there have to be; it raises `PeerError`, and `RequestError` (NOSPC) where there is no
    room for them.  No array exists before the whole head is here and found good.
    """

    def __init__(self, total: int, head: int, part_bytes: int, layout: Callable[[Meta], Layout]) -> None:
        if not 0 < head <= min(total, HEAD_MAX):
            raise PeerError(f"a copy of {total} bytes has a head of {head}; from 1 to {HEAD_MAX}")
        self.total = total
        self.size = head
        self._part_bytes = part_bytes
        self._layout = layout
        self._head = bytearray(head)
        self._gaps = [(0, head)]  # what is missing, in order
        self._places = Places({"": head}, 0)  # the head's bytes alone, until it is known what follows
        self._targets = [memoryview(self._head)]
        self._dump: Dump | None = None

    def missing(self, most: int) -> list[int]:
        """Where parts begin that are not here, the first ones: of the head, and once that is here of the rest."""
        found: list[int] = []
        for cursor, end in self._gaps:
            while cursor < end and len(found) < most:
                found.append(cursor)
                cursor = self._places.cut(cursor, self._part_bytes)
        return found

    @property
    def complete(self) -> bool:
        return not self._gaps

    def put(self, cursor: int, data: Any) -> None:
        """A part.  Raises `PeerError`, for what `layout` says of it too, and MemoryError; nothing of it counts then."""
        part = memoryview(data).cast("B")
        end = cursor + len(part)
        if not part or not 0 <= cursor < end <= self.total:
            raise PeerError(f"bytes {cursor} to {end} of a copy that has {self.total}")
        known = self._dump is not None
        at = max(cursor, self.size) if known else cursor
        stop = min(end, self._places.total)
        while at < stop:
            position = self._places.at(at)
            start, until = self._places.starts[position], min(stop, self._places.end(position))
            self._targets[position][at - start : until - start] = part[at - cursor : until - cursor]
            at = until
        left = without(self._gaps, cursor, stop)
        if known or left:
            self._gaps = left
            return
        self._begin()
        if end > self.size:
            self.put(self.size, part[self.size - cursor :])

    def _begin(self) -> None:
        """The head is here: the arrays can be."""
        meta = unpacked(self._head)
        layout = self._layout(meta)
        places = Places({name: shape.nbytes for name, shape in layout.items()}, self.size)
        if places.total != self.total:
            raise PeerError(f"a copy of {self.total} bytes describes {places.total}")
        arrays = {name: blank(shape) for name, shape in layout.items()}
        self._dump = Dump(meta, arrays)
        self._targets = [*(octets(arrays[name]) for name in places.names)]
        self._places = places
        self._gaps = without([(self.size, self.total)], 0, 0)

    def taken(self) -> Dump:
        """All of it; the arrays are the taker's."""
        assert self._dump is not None and self.complete, "a copy is taken before it is here"
        return self._dump


def check_shapes(dump: Dump, layout: Layout) -> None:
    """Whether it has the arrays that belong to it, and no others.  Raises `PeerError`."""
    found = {name: Shape(array.dtype, array.shape) for name, array in dump.arrays.items()}
    wanted = dict(layout)
    for name in sorted(found.keys() | wanted.keys()):
        if found.get(name) != wanted.get(name):
            raise PeerError(f"its array {name!r} is not what its document says: {found.get(name)}, not {wanted.get(name)}")


def unpacked(head: bytes | bytearray) -> Meta:
    """The document.  Raises `PeerError`."""
    try:
        meta = msgpack.unpackb(head, use_list=False, max_ext_len=0, strict_map_key=True)
    except (ValueError, msgpack.exceptions.UnpackException) as error:  # ValueError is the root of what it raises on bytes
        raise PeerError(f"a copy's document is no msgpack: {error}") from error
    if type(meta) is not dict:
        raise PeerError("a copy's document is no mapping")
    return meta


def blank(shape: Shape) -> Array:
    """An array for it, not filled.  Raises MemoryError."""
    return aligned(shape.dtype, math.prod(shape.sizes)).reshape(shape.sizes)


def octets(array: Array) -> memoryview:
    """Its bytes, where they lie."""
    return array.reshape(-1).view(np.uint8).data


def frozen(array: Array) -> Array:
    """A view that cannot be written."""
    view = array.view()
    view.flags.writeable = False
    return view


def owned(array: Array) -> Array:
    """The array itself if it may be kept; a copy of one that somebody else shows."""
    return array if array.flags.writeable else array.copy()


def finite(array: Array) -> bool:
    """Whether its numbers are, a piece at a time while it is in the cache."""
    flat = array.reshape(-1)
    return array.dtype.kind != "f" or all(bool(np.isfinite(flat[at : at + _CHECKED]).all()) for at in range(0, flat.size, _CHECKED))


def without(gaps: list[tuple[int, int]], start: int, stop: int) -> list[tuple[int, int]]:
    """What is left of some spans, in order, when one is taken out; empty ones are no spans."""
    left = []
    for low, high in gaps:
        if low < start:
            left.append((low, min(high, start)))
        if high > stop:
            left.append((max(low, stop), high))
    return [(low, high) for low, high in left if low < high]
