"""Files of ranges in a checkpoint: written so that each is there whole or not at all, and read so that nothing wrong gets in.

A file lies under a root directory and is named from there.  Arrays that have not changed since an earlier file was
written are not written again: the new file names the one that holds them (`refers` lists these), so the earlier one has
to stay as long as the new one.  Refuses to know which files make a checkpoint, and when one is made.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from ..core.errors import PeerError, WorldError
from ..core.job import JobSpec
from ..runtime import solid
from ..runtime.solid import SyncError as SyncError
from . import plain
from .dump import Array, Dump, Layout, Meta, Shape, blank, octets
from .tensorfile import Header, difference, header_bytes, packed, placed, unpacked

PIECE = solid.PIECE
#: What a table must be like for its numbers to be its own: also where first values come from, which no file holds.
_TABLE = (
    "name", "kind", "shape", "dtype", "storage", "index", "optimizer", "block_bytes", "buckets", "init", "init_settings",
)  # fmt: skip


class Written(NamedTuple):
    """`nbytes` of the file and its crc32; how many bytes of numbers lie in earlier files, and which these are."""

    nbytes: int
    spared: int
    crc: int
    refers: frozenset[str]


def about(spec: JobSpec, ring_ranges: int, number: int) -> Meta:
    """What a file of range `number` says of itself."""
    tables = [{key: value for key, value in table.to_document().items() if key in _TABLE} for table in spec.tables]
    return {"job": spec.name, "range": number, "ranges": ring_ranges, "seed": spec.seed, "tables": tables}


def write_range(root: Path, name: str, dump: Dump, about: Meta, earlier: str = "") -> Written:
    """Write the file `name`; it is there when this returns, whatever happens then.

    Raises `WorldError` with a sentence; the file is not there then, or is another server's, which nobody replaces.  After a
    `SyncError` nobody knows.
    """
    arrays = dump.arrays
    crcs = {array_name: _crc(array) for array_name, array in arrays.items()}
    where = _unchanged(root, earlier, dump, about, crcs)
    shapes = {array_name: Shape(array.dtype, array.shape) for array_name, array in arrays.items() if array_name not in where}
    path = root / name
    try:
        head = packed(about, dump.meta, crcs, where, shapes)
        path.parent.mkdir(parents=True, exist_ok=True)
        nbytes, crc = solid.place(path, [memoryview(head), *[octets(arrays[array_name]) for array_name in placed(shapes)]])
        solid.sync_directories(path.parent, root)
    except (OSError, ValueError) as error:
        raise WorldError(f"{path} cannot be written: {getattr(error, 'strerror', None) or error}") from error
    return Written(nbytes, sum(arrays[array_name].nbytes for array_name in where), crc, frozenset(where.values()))


def read_range(root: Path, name: str, about: Meta, layout: Callable[[Meta], Layout] | None = None) -> Dump:
    """What `write_range` was given, checked in every respect; `layout(meta)` says which arrays there have to be.

    Without one they have the shapes that the files say, and whoever takes them looks at these.

    Raises `WorldError` with a sentence, MemoryError, and `RequestError` where the range has no room for it.
    """
    with _opened(root, name) as (file, header):
        _check_about(header, about)
        wanted = layout(header.meta) if layout is not None else None
        if wanted is not None and wanted.keys() != header.crcs.keys():
            raise PeerError(f"it has {len(header.crcs)} arrays, not the {len(wanted)} that it describes")
        arrays: dict[str, Array] = {}
        for array_name in header.shapes:
            arrays[array_name] = _read(file, header, array_name, _shape(wanted, header, array_name), header.crcs[array_name])
    for other, names in _by_file(header.where).items():
        with _opened(root, other) as (file, held):
            _check_about(held, about)
            for array_name in names:
                arrays[array_name] = _read(file, held, array_name, _shape(wanted, held, array_name), header.crcs[array_name])
    return Dump(header.meta, arrays)


def refers(root: Path, name: str) -> frozenset[str]:
    """The other files that are needed to read this one.  Raises `WorldError`."""
    with _opened(root, name) as (_, header):
        return frozenset(header.where.values())


# -- what has not changed


def _unchanged(root: Path, earlier: str, dump: Dump, about: Meta, crcs: Mapping[str, int]) -> dict[str, str]:
    """Arrays that an earlier file has, or names, and the file that holds each.

    One is the same if its block or bucket has made no change since, by its own count, and its checksum says so too.
    """
    if not earlier:
        return {}
    try:
        with _opened(root, earlier) as (_, header):
            _check_about(header, about)
            before, now = _changes(header.meta, about), _changes(dump.meta, about)
    except WorldError:
        return {}  # what cannot be read spares nothing
    found = {}
    for array_name, crc in crcs.items():
        table, number, *_ = array_name.split("/")
        key = f"{table}/{number}"
        if key in now and now[key] == before.get(key) and header.crcs.get(array_name) == crc:
            found[array_name] = header.where.get(array_name, earlier)
    return found


def _changes(meta: Any, about: Meta) -> dict[str, list[Any]]:
    """Row of each block and bucket in a document, under what its arrays' names begin with.  Raises `PeerError`."""
    inside = plain.field(meta, "contents")
    names = [table["name"] for table in about["tables"]]
    rows = [row for kind in ("blocks", "buckets") for row in plain.records(plain.field(inside, kind), *[plain.whole] * 5)]
    return {f"{names[row[0]]}/{row[1]}": list(row) for row in rows if row[0] < len(names)}


# -- bytes


def _crc(array: Array) -> int:
    whole, crc = octets(array), 0
    for at in range(0, len(whole), PIECE):
        crc = crc32(whole[at : at + PIECE], crc)
    return crc


@contextmanager
def _opened(root: Path, name: str) -> Iterator[tuple[FileIO, Header]]:
    """The file and its header; whatever is wrong with it becomes a `WorldError`."""
    path = root / name
    try:
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            header = unpacked(_exactly(file, header_bytes(_exactly(file, 8), size)), size)
            yield file, header
    except OSError as error:
        raise WorldError(f"{path} cannot be read: {error.strerror or error}") from error
    except PeerError as error:
        raise WorldError(f"{path} cannot be used: {error}") from error


def _exactly(file: FileIO, nbytes: int) -> bytes:
    data = bytearray()
    while len(data) < nbytes:
        piece = file.read(min(PIECE, nbytes - len(data)))
        if not piece:
            raise PeerError(f"it ends {nbytes - len(data)} bytes too early")
        data += piece
    return bytes(data)


def _check_about(header: Header, wanted: Meta) -> None:
    wrong = difference(header.about, wanted)
    if wrong:
        raise PeerError(f"it is of {wrong}")


def _shape(wanted: Layout | None, header: Header, name: str) -> Shape:
    found = header.shapes.get(name) if wanted is None else wanted[name]
    if found is None:
        raise PeerError(f"it has no array {name!r}")
    return found


def _read(file: FileIO, header: Header, name: str, wanted: Shape, crc: int) -> Array:
    if header.shapes.get(name) != wanted or header.crcs.get(name) != crc:
        raise PeerError(f"its array {name!r} is not {'x'.join(map(str, wanted.sizes))} of {wanted.dtype}, or not the one that is meant")
    array = blank(wanted)
    whole, at, found = octets(array), 0, 0
    file.seek(header.start + header.offsets[name])
    while at < len(whole):
        piece = whole[at : at + PIECE]
        count = file.readinto(piece)
        if not count:
            raise PeerError(f"it ends in the middle of the array {name!r}")
        found = crc32(piece[:count], found)
        at += count
    if found != crc:
        raise PeerError(f"its array {name!r} is damaged: the checksum differs")
    return array


def _by_file(where: Mapping[str, str]) -> dict[str, list[str]]:
    files: dict[str, list[str]] = {}
    for name, file in sorted(where.items()):
        files.setdefault(file, []).append(name)
    return files
