"""PyTorch's `.pt`: a zip whose stored members are the bytes of storages, beside a pickle that says what they are.

The pickle is a program, and is not run: its instructions are listed (`pickletools` only names them), which tells each storage's
kind, and the words in it, which must be the same afterwards.  Storages are changed where they lie, so that each stays
aligned as it was; their sums are written anew.
"""

from __future__ import annotations

import io
import pickletools
import struct
import zipfile
import zlib
from typing import Any, NamedTuple

from .archives import BAD
from .base import Content, LayoutError, Numbers, Span, decode, patched

_KINDS = {"DoubleStorage": "f64", "FloatStorage": "f32", "HalfStorage": "f16", "BFloat16Storage": "bf16"}
_DESCRIPTOR = b"PK\x07\x08"
_SUM_FOLLOWS = 8  # the bit of a member whose sum stands behind its bytes
PROGRAM = "data.pkl"


class Place(NamedTuple):
    """Where the sums of a member stand: of its own bytes from `start` on."""

    start: int
    nbytes: int
    sums: tuple[int, ...]


class Storage(NamedTuple):
    key: str
    kind: str  # torch's
    elements: int


def read(data: bytes, layout: str) -> Content:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            infos = {info.filename: info for info in archive.infolist()}
            name = next((name for name in infos if name.rpartition("/")[2] == PROGRAM), None)
            if name is None:
                raise LayoutError(f"no PyTorch file: there is no {PROGRAM} in it")
            folder = name.removesuffix(PROGRAM)
            storages, words = storages_of(archive.read(name))
            if infos.get(f"{folder}byteorder") is not None and archive.read(f"{folder}byteorder").strip() != b"little":
                raise LayoutError("a PyTorch file of a big-endian machine is not shared")
            entries = _entries(data, archive.start_dir, len(infos))
            if (bad := archive.testzip()) is not None:
                raise LayoutError(f"the sum of {bad} is wrong: the archive is damaged")
        found = {storage.key: storage for storage in storages}
        places = {key: _place(data, infos[f"{folder}data/{key}"], entries) for key in sorted(found, key=_number)}
    except KeyError as error:
        raise LayoutError(f"the PyTorch file has no member {error}: it is not complete") from error
    except BAD as error:
        raise LayoutError(f"the PyTorch file is damaged or not complete ({error})") from error
    spans = []
    for key, place in places.items():
        kind = _KINDS.get(found[key].kind, "")
        if kind:
            spans.append(Span(key, place.start, found[key].elements, kind))
            if spans[-1].nbytes != place.nbytes:
                raise LayoutError(f"storage {key} has {place.nbytes:,} bytes for {found[key].elements:,} numbers of {kind}")
    if not spans:
        raise LayoutError(f"no storage of floats ({', '.join(_KINDS)}) is in it")
    skeleton = (tuple(found[key] for key in places), words)
    return Content(layout, data, decode(data, tuple(spans)), ("torch", *skeleton), tuple(spans), places)


def storages_of(program: bytes) -> tuple[list[Storage], tuple[str, ...]]:
    """The storages that a pickle names, and all its words in their order.  Raises `LayoutError`."""
    recent: list[Any] = []  # what was named last, oldest first
    memo: dict[Any, Any] = {}
    storages, words = [], []
    try:
        for code, argument, _at in pickletools.genops(program):
            if code.name in ("BINPUT", "LONG_BINPUT", "PUT"):
                memo[int(argument or 0)] = recent[-1] if recent else None
                continue
            if code.name == "MEMOIZE":
                memo[len(memo)] = recent[-1] if recent else None
                continue
            if code.name in ("BINGET", "LONG_BINGET", "GET"):
                argument = memo.get(int(argument or 0))
            if code.name == "BINPERSID":
                said = [thing for thing in recent[:-1]][-5:]  # the tuple itself is the last one
                if len(said) != 5 or said[0] != "storage" or not isinstance(said[1], str) or not isinstance(said[4], int):
                    raise LayoutError("the PyTorch file names its storages in a way that is not known: save safetensors (safetensors.torch.save_file)")
                storages.append(Storage(str(said[2]), said[1].rpartition(" ")[2], said[4]))
            if isinstance(argument, str):
                words.append(argument)
            recent = [*recent[-8:], argument]
    except (ValueError, IndexError, UnicodeError, OverflowError) as error:
        raise LayoutError("the PyTorch file's data.pkl is damaged or not complete") from error
    return storages, tuple(words)


def _number(key: str) -> tuple[int, str]:
    return (int(key) if key.isdecimal() and len(key) < 18 else 1 << 62, key)


def _entries(data: bytes, start: int, count: int) -> dict[str, int]:
    """Where each member's entry in the directory begins."""
    found = {}
    for _ in range(count):
        if data[start : start + 4] != b"PK\x01\x02":
            raise LayoutError("the directory of the PyTorch file is damaged")
        name, extra, comment = struct.unpack_from("<3H", data, start + 28)
        found[data[start + 46 : start + 46 + name].decode("utf-8", "replace")] = start
        start += 46 + name + extra + comment
    return found


def _place(data: bytes, info: zipfile.ZipInfo, entries: dict[str, int]) -> Place:
    if info.compress_type != zipfile.ZIP_STORED:
        raise LayoutError(f"{info.filename} is packed; storages of PyTorch are stored")
    head = info.header_offset
    start = head + 30 + sum(struct.unpack_from("<2H", data, head + 26))
    sums = [entries[info.filename] + 16]
    if info.flag_bits & _SUM_FOLLOWS:
        end = start + info.file_size
        sums.append(end + 4 if data[end : end + 4] == _DESCRIPTOR else end)
    else:
        sums.append(head + 14)
    return Place(start, info.file_size, tuple(sums))


def write(content: Content, values: Numbers) -> bytes:
    """The same archive with other numbers and their sums."""
    out = patched(content, values)
    for place in content.more.values():
        new = bytes(out[place.start : place.start + place.nbytes])
        if new != content.data[place.start : place.start + place.nbytes]:
            for at in place.sums:
                struct.pack_into("<I", out, at, zlib.crc32(new))
    return bytes(out)
