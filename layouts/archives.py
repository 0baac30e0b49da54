"""Archives of arrays: numpy's `.npz`.  Arrays are met by name; whole numbers are carried through.

An archive in which no number is another keeps its bytes; else it is packed anew, each member as it was packed.
"""

from __future__ import annotations

import io
import lzma
import struct
import zipfile
import zlib
from typing import NamedTuple

import numpy as np

from . import arrays
from .base import Content, LayoutError, Numbers, Span, decode, patched

BAD = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, NotImplementedError, RuntimeError, EOFError, OSError, ValueError, KeyError, OverflowError, MemoryError)
UNPACKED_MAX = 1 << 34


class Member(NamedTuple):
    info: zipfile.ZipInfo
    data: bytes
    header: arrays.Header


def members_of(data: bytes) -> list[Member]:
    """All arrays, sorted by name."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            infos = sorted(archive.infolist(), key=lambda info: info.filename)
            if sum(info.file_size for info in infos) > UNPACKED_MAX:
                raise LayoutError("the archive unpacks to more than 16 GiB")
            found = [(info, archive.read(info)) for info in infos]
    except BAD as error:
        raise LayoutError(f"the archive is damaged or not complete ({error})") from error
    names = [info.filename for info, _ in found]
    if len(set(names)) < len(names):
        raise LayoutError("the archive holds two members of one name")
    return [Member(info, inner, arrays.header_of(inner, info.filename)) for info, inner in found]


def read(data: bytes, layout: str) -> Content:
    members = members_of(data)
    parts, spans = [], []
    for member in members:
        if member.header.kind:
            span = Span(member.info.filename, member.header.start, member.header.elements, member.header.kind)
            spans.append(span)
            parts.append(decode(member.data, (span,)))
    if not spans:
        raise LayoutError("no array of floats (f64, f32, f16) is in it")
    skeleton = tuple((m.info.filename, m.header.descr, m.header.fortran, m.header.shape) for m in members)
    return Content(layout, data, np.concatenate(parts), ("npz", skeleton), tuple(spans), members)


def write(content: Content, values: Numbers) -> bytes:
    """The archive with other numbers; the very same bytes where none is another."""
    members: list[Member] = content.more
    named, at, changed = {span.name: span for span in content.spans}, 0, {}
    for member in members:
        span = named.get(member.info.filename)
        if span is None:
            continue
        own, new = content.numbers[at : at + span.elements], values[at : at + span.elements]
        at += span.elements
        if not np.array_equal(own, new):
            part = Content("", member.data, own, (), (span._replace(name=""),))
            changed[span.name] = bytes(patched(part, new))
    if not changed:
        return content.data
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for member in sorted(members, key=lambda member: member.info.header_offset):
            info = zipfile.ZipInfo(member.info.filename, member.info.date_time)
            info.compress_type, info.external_attr, info.create_system = member.info.compress_type, member.info.external_attr, member.info.create_system
            archive.writestr(info, changed.get(member.info.filename, member.data))
    return out.getvalue()

