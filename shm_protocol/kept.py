"""A push that was accepted before it was carried out, as it lies in `pend.0` or `pend.1`: head, then the bytes of its files.

    0x0000 .. 0x1fff   head: lengths, checksum, request line; written last, by one write
    0x2000 ..          the files that take part, each at the next multiple of 64

Knows bytes only, no files.  A head that is not whole is none.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

from ..core.limits import CACHE_LINE_BYTES
from .page import PAGE_BYTES, REQUEST_BYTES_MAX, Field

MAGIC = b"PLUGMLP1"
FREE = bytes(16)  # over magic, checksum and length: a new head that is torn behind its magic never wakes the old one
HEAD_BYTES = 2 * PAGE_BYTES
SLOTS = ("pend.0", "pend.1")
#: The files of a push, in their order; with fmt=text `.txt` of those that have one.
PARTS = ("grad", "gidx", "gkey", "want", "wkey")

FIELDS: tuple[Field, ...] = (
    Field(0x0000, "c", 8, "magic", 'the letters "PLUGMLP1"; zero bytes = free'),
    Field(0x0008, "I", 1, "crc32", "CRC-32 (zlib) of the head with this field zero"),
    Field(0x000C, "I", 1, "line_bytes", "bytes of the request line, without its newline"),
    Field(0x0010, "Q", len(PARTS), "sizes", f"bytes of {', '.join(PARTS)} (with fmt=text of their `.txt`)"),
    Field(0x0040, "c", REQUEST_BYTES_MAX, "line", "the request line"),
)
_HEAD = struct.Struct("<8sII5Q")
_LINE_AT = 0x40


class Kept(NamedTuple):
    """What the head says."""

    line: bytes
    sizes: tuple[int, ...]

    @property
    def offsets(self) -> tuple[int, ...]:
        """Where each part begins."""
        found = []
        at = HEAD_BYTES
        for size in self.sizes:
            found.append(at)
            at = -(-(at + size) // CACHE_LINE_BYTES) * CACHE_LINE_BYTES
        return tuple(found)

    def pack(self) -> bytes:
        """The whole head.

        >>> len(Kept(b"push 7 3", (16, 0, 0, 0, 0)).pack())
        8192
        """

        def with_crc(crc: int) -> bytes:
            words = _HEAD.pack(MAGIC, crc, len(self.line), *self.sizes)
            return (words.ljust(_LINE_AT, b"\0") + self.line).ljust(HEAD_BYTES, b"\0")

        return with_crc(zlib.crc32(with_crc(0)))


def read_kept(head: bytes, file_bytes: int) -> Kept | None:
    """The push that a file of so many bytes holds; None if its head is free, torn or does not fit to the file."""
    if len(head) < HEAD_BYTES:
        return None
    magic, crc, line_bytes, *sizes = _HEAD.unpack_from(head)
    if magic != MAGIC or line_bytes > REQUEST_BYTES_MAX:
        return None
    if zlib.crc32(head[:8] + bytes(4) + head[12:HEAD_BYTES]) != crc:
        return None
    found = Kept(head[_LINE_AT : _LINE_AT + line_bytes], tuple(sizes))
    end = max([offset + size for offset, size in zip(found.offsets, found.sizes) if size], default=0)  # an empty part lies nowhere
    return found if end <= file_bytes else None
