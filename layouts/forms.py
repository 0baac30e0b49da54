"""Layouts by name: what a user writes behind FILE:, what a file looks like, and each layout's three operations."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core.errors import UsageError
from ..core.table import unknown_key
from . import archives, arrays, lines, raw, tensors, text, torchzip
from .base import KINDS, Content, LayoutError, Numbers, patched
from .opaque import opaque

_READERS: dict[str, Callable[[bytes, str], Content]] = {
    "text": text.read, "lines": lines.read, "npy": arrays.read, "npz": archives.read, "safetensors": tensors.read, "torch": torchzip.read,
}  # fmt: skip
#: Of layouts that do more than change numbers where they lie.
_WRITERS: dict[str, Callable[[Content, Numbers], bytes]] = {
    "text": text.write, "lines": lines.write, "npz": archives.write, "torch": torchzip.write,
}  # fmt: skip
NAMED = tuple(_READERS)
RAW = tuple(kind for kind in KINDS if kind != "bf16")
_HOW = "write FILE, or FILE:LAYOUT with text, lines, npy, npz, safetensors, torch, or f32, f64 and the like with offset=BYTES (negative: from the end) and count=N"


class Layout(NamedTuple):
    """`name` is one of NAMED, a kind of raw numbers, or "" = by what the file looks like."""

    name: str = ""
    offset: int = 0
    elements: int = 0

    def __str__(self) -> str:
        return self.name + f",offset={self.offset}" * bool(self.offset) + f",count={self.elements}" * bool(self.elements)


def parse_layout(text: str) -> Layout:
    """Read what stands behind FILE:, e.g. `f32,offset=20`.  Raises `UsageError`.

    >>> parse_layout("f32,offset=-400")
    Layout(name='f32', offset=-400, elements=0)
    """
    if not text:
        return Layout()
    name, *rest = text.split(",")
    if name not in NAMED and name not in RAW:
        raise unknown_key(name, [*NAMED, *RAW], f"--model: {_HOW}; layout", "value")
    found = {"offset": 0, "count": 0}
    for part in rest:
        key, _, value = part.partition("=")
        good = value.isascii() and value.removeprefix("-").isdecimal() and len(value) < 20
        if key not in found or name in NAMED or not good or (key == "count" and int(value) < 1):
            raise UsageError(f"--model: {part!r} says nothing about the layout {name}: {_HOW}")
        found[key] = int(value)
    return Layout(name, found["offset"], found["count"])


def split_file(text: str) -> tuple[str, Layout]:
    """Read `FILE[:layout]`; a colon in a name is no layout unless one of their names stands behind it.

    >>> split_file("net.bin:f32,offset=20")
    ('net.bin', Layout(name='f32', offset=20, elements=0))
    """
    path, colon, rest = text.rpartition(":")
    if not colon or "/" in rest:
        return text, Layout()
    return path, parse_layout(rest)


def detect(data: bytes) -> Layout:
    """The layout of a file by its bytes.  Raises `LayoutError` with advice."""
    if not data:
        raise LayoutError("it is empty")
    if why := opaque(data):
        raise LayoutError(why)
    if data.startswith(arrays.MAGIC):
        return Layout("npy")
    if data.startswith(b"PK\x03\x04"):
        return _archive(data)
    if data[8:9] == b"{" and 2 <= int.from_bytes(data[:8], "little") <= len(data) - 8:
        return Layout("safetensors")
    if b"\0" not in data and _is_text(data):
        return Layout("text")
    raise LayoutError("nothing in it says where its numbers are: say it, e.g. FILE:f32, FILE:f64,offset=20 or FILE:f32,offset=-4096 (from the end); plugml inspect FILE makes a guess")


def _archive(data: bytes) -> Layout:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = archive.namelist()
    except archives.BAD as error:
        raise LayoutError(f"it is a zip archive that is damaged or not complete ({error})") from error
    if names and all(name.endswith(".npy") for name in names):
        return Layout("npz")
    if any(name.rpartition("/")[2] == torchzip.PROGRAM for name in names):
        return Layout("torch")
    raise LayoutError("it is a zip archive of something else than arrays: save .npz, safetensors, text or raw floats")


def _is_text(data: bytes) -> bool:
    """Most of the first bytes are those of a text, in whatever encoding."""
    head = np.frombuffer(data[: 1 << 16], np.uint8)
    control = (head < 32) & ~np.isin(head, (9, 10, 12, 13))
    return not control.any()


def read(data: bytes, layout: Layout) -> Content:
    """The numbers of a whole model file.  Raises `LayoutError`: empty, not complete, opaque, not of that layout, not finite."""
    if not data:
        raise LayoutError("it is empty")
    found = layout if layout.name else detect(data)
    if found.name not in RAW and (why := opaque(data)):
        raise LayoutError(why)
    name = str(found)
    reader = _READERS.get(found.name)
    content = reader(data, name) if reader else raw.read(data, name, found.name, found.offset, found.elements)
    if not content.numbers.size:
        raise LayoutError("no number is in it")
    finite = np.isfinite(content.numbers)
    if not finite.all():
        bad = int(np.argmin(finite))
        count = int(np.count_nonzero(~finite))
        raise LayoutError(f"{count:,} of its {finite.size:,} numbers {'is' if count == 1 else 'are'} not finite, the first one number {bad:,} ({content.numbers[bad]})")
    return content


def matches(given: Content, taken: Content) -> NDArray[np.bool_]:
    """May number i of one be compared with number i of the other?  Raises `LayoutError` if not.

    True in the answer: a whole number that the program counts for itself, which no other program shall have.
    """
    if given.layout.partition(",")[0] == "text":
        return text.matches(given, taken)
    if given.layout == "lines":
        return lines.matches(given, taken)
    if given.skeleton != taken.skeleton:
        raise LayoutError(f"it is another kind of file than it was: {_difference(given.skeleton, taken.skeleton)}. Models that grow or change their shape cannot be shared yet")
    if len(taken.data) < len(given.data) and "offset=-" in given.layout:
        raise LayoutError(f"it has {len(taken.data):,} bytes and had {len(given.data):,}: is it complete? What is counted from the end would be another number")
    return np.zeros(given.numbers.size, np.bool_)


def place_of(content: Content, number: int) -> str:
    """Where a number of a text stands, for sentences."""
    return lines.place_of(content, number) if content.layout == "lines" else text.place_of(content, number)


def _difference(old: tuple[object, ...], new: tuple[object, ...]) -> str:
    for was, now in zip(old, new):
        if isinstance(was, tuple) and isinstance(now, tuple) and was != now:
            return _difference(was, now)
        if was != now:
            return f"{was!r} has become {now!r}"
    return f"{len(old):,} parts have become {len(new):,}"


def write(content: Content, values: Numbers) -> bytes:
    """The file with other numbers, each rounded to what the file keeps; what does not change keeps its bytes.  Raises `LayoutError`."""
    if values.shape != content.numbers.shape:
        raise LayoutError(f"{values.size:,} values for a file of {content.numbers.size:,} numbers")
    if not np.isfinite(values).all():
        raise LayoutError("a shared value is not finite")
    writer = _WRITERS.get(content.layout.partition(",")[0])
    return writer(content, values) if writer else bytes(patched(content, values))
