"""The header of a range's file: a safetensors file whose `__metadata__` says all that its reader has to check.

    8 bytes  length of the header, little-endian
    header   JSON, with spaces behind it up to a multiple of 8: {"__metadata__": {...}, name: {dtype, shape, data_offsets}}
    numbers  each array where its offsets say, without holes; arrays of wide numbers first, so that all lie aligned

    __metadata__   format   "plugml range 1"
                   header   crc32 of the header with eight zeros in this place, in hex
                   about    JSON: which job and range this is, and what the job's tables are
                   meta     JSON: the document of the dump
                   crc32    JSON: the crc32 of each array of the dump
                   where    JSON: the file that holds an array, for those that have not changed since that was written

Makes headers and reads them; whatever is not exactly one is refused with a sentence.  Refuses to know files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from ..core.errors import PeerError, shown
from .dump import Layout, Meta, Shape

FORMAT = "plugml range 1"
HEADER_MAX = 64 << 20  # the safetensors package reads somewhat more
_ALIGN = 8
_KINDS: dict[str, np.dtype[Any]] = {
    "F16": np.dtype("<f2"), "F32": np.dtype("<f4"), "F64": np.dtype("<f8"), "I64": np.dtype("<i8"), "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"), "U8": np.dtype("u1"),
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _KINDS.items()}
_MARK = re.compile(rb'"header":"([0-9a-f]{8})"')
#: Name of a file under the root: no way out of it.
_FILE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")
_FILE_MAX = 1024


class Header(NamedTuple):
    """`start` is where the numbers begin in the file; `offsets` where each array lies behind that."""

    about: Meta
    meta: Meta
    crcs: dict[str, int]
    where: dict[str, str]
    shapes: dict[str, Shape]
    offsets: dict[str, int]
    start: int
    size: int  # of the whole file


def placed(shapes: Layout) -> list[str]:
    """The arrays in the order of the file."""
    return sorted(shapes, key=lambda name: (-shapes[name].dtype.itemsize, name))


def packed(about: Meta, meta: Meta, crcs: Mapping[str, int], where: Mapping[str, str], shapes: Layout) -> bytes:
    """Length and header of a file with these arrays.  Raises `ValueError` where it would be too long."""
    metadata = {"format": FORMAT, "header": "0" * 8}
    metadata |= {"about": _json(about), "meta": _json(meta), "crc32": _json(dict(crcs)), "where": _json(dict(where))}
    header: dict[str, Any] = {"__metadata__": metadata}
    at = 0
    for name in placed(shapes):
        shape = shapes[name]
        header[name] = {"dtype": _NAMES[shape.dtype], "shape": shape.sizes, "data_offsets": (at, at + shape.nbytes)}
        at += shape.nbytes
    text = _json(header).encode()
    text += b" " * (-len(text) % _ALIGN)
    if len(text) > HEADER_MAX:
        raise ValueError(f"a header of {len(text)} bytes, at most {HEADER_MAX}")
    mark = _MARK.search(text)
    assert mark is not None
    text = text[: mark.start(1)] + b"%08x" % crc32(text) + text[mark.end(1) :]
    return len(text).to_bytes(8, "little") + text


def header_bytes(first: bytes, size: int) -> int:
    """Length of the header of a file of `size` bytes that begins with these 8.  Raises `PeerError`."""
    length = int.from_bytes(first, "little")
    if len(first) < 8 or length > min(size - 8, HEADER_MAX) or length < 2:
        raise PeerError(f"it has {size} bytes and no header of a range's file")
    return length


def unpacked(text: bytes, size: int) -> Header:
    """The header of a file of `size` bytes.  Raises `PeerError`."""
    mark = _MARK.search(text)
    if mark is None or b"%08x" % crc32(text[: mark.start(1)] + b"0" * 8 + text[mark.end(1) :]) != mark.group(1):
        raise PeerError("its header is damaged, or not that of a range's file")
    header = _parsed(text)
    metadata = header.pop("__metadata__", None)
    if type(metadata) is not dict or metadata.get("format") != FORMAT:
        raise PeerError(f"it is no file of the format {FORMAT!r}")
    about, meta, crcs, where = [_parsed(metadata.get(name)) for name in ("about", "meta", "crc32", "where")]
    shapes, offsets, end = {}, {}, 0
    for name, value in header.items():
        shapes[name], offsets[name] = _tensor(name, value, end)
        end = offsets[name] + shapes[name].nbytes
    start = 8 + len(text)
    if start + end != size:
        raise PeerError(f"it has {size} bytes, its header describes {start + end}")
    if any(type(crc) is not int or not 0 <= crc <= 0xFFFFFFFF for crc in crcs.values()):
        raise PeerError("its header has a checksum that is none")
    if any(type(file) is not str or len(file) > _FILE_MAX or not _FILE.fullmatch(file) for file in where.values()):
        raise PeerError("its header names a file that it must not name")
    if shapes.keys() & where.keys() or shapes.keys() | where.keys() != crcs.keys():
        raise PeerError("its header does not say of each array where it is and what its checksum is")
    return Header(about, meta, crcs, where, shapes, offsets, start, size)


def _tensor(name: str, value: Any, at: int) -> tuple[Shape, int]:
    """Kind, shape and place of an array that begins where the one before it ends."""
    if type(value) is not dict or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise PeerError(f"its header has {shown(value)} for the array {shown(name)}")
    if type(value["dtype"]) is not str or value["dtype"] not in _KINDS:
        raise PeerError(f"its header has {shown(value)} for the array {shown(name)}")
    sizes, offsets = value["shape"], value["data_offsets"]
    if type(sizes) is not list or not all(type(size) is int and 0 < size < 1 << 48 for size in sizes) or len(sizes) > 2:
        raise PeerError(f"its header has the shape {shown(sizes)} for the array {shown(name)}")
    shape = Shape(_KINDS[value["dtype"]], tuple(sizes))
    if offsets != [at, at + shape.nbytes]:
        raise PeerError(f"its array {shown(name)} of {shape.nbytes} bytes lies at {shown(offsets)}, not behind the one before it, at {at}")
    return shape, at


def difference(found: Meta, wanted: Meta) -> str:
    """The first thing in which a file's `about` is not what is wanted; "" if there is none."""
    for key in wanted:
        if key == "tables":
            continue
        if found.get(key) != wanted[key]:
            return f"{key} {shown(found.get(key))}, not {shown(wanted[key])}"
    theirs, ours = found.get("tables"), wanted["tables"]
    if type(theirs) is not list or len(theirs) != len(ours):
        return f"{len(theirs) if type(theirs) is list else 'no'} tables, not {len(ours)}"
    for their, our in zip(theirs, ours):
        for key in our:
            if type(their) is not dict or their.get(key) != our[key]:
                return f"table {our['name']!r} with {key} {shown(their.get(key) if type(their) is dict else their)}, not {shown(our[key])}"
    return ""


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _parsed(text: Any) -> Meta:
    if not isinstance(text, (str, bytes)):
        raise PeerError("its header lacks a part")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PeerError(f"its header is no JSON: {shown(str(error))}") from error
    if type(value) is not dict:
        raise PeerError("its header is no mapping")
    return value
