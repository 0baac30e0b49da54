"""Pieces of input: line `piece` of a file that the user named, found without reading the file again for each.

Owns where the lines of such files begin.  Refuses to know whose turn it is: that is the clock's.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core.errors import Code, RequestError
from ..core.limits import KIB, MIB

LINE_BYTES_MAX = 64 * KIB  # of one piece: it names input, it is none
_READ_BYTES = 1 * MIB
_FILES_MAX = 16  # whose lines are remembered


class _Known(NamedTuple):
    mark: tuple[int, ...]  # inode, size, time: another file is looked at anew
    ends: NDArray[np.int64]  # of each line, at its newline


class Pieces:
    """Lines by number, of a few files."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def line(self, path: str, piece: int) -> bytes:
        """Without its newline.  Raises `RequestError` PERM, SIZE or RANGE."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                return self._line(fd, path, piece)
            finally:
                os.close(fd)
        except OSError as error:
            raise RequestError(Code.PERM, f"the list of input {path} cannot be read: {error.strerror}") from None

    def _line(self, fd: int, path: str, piece: int) -> bytes:
        found = os.fstat(fd)
        mark = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
        known = self._known.get(path)
        if known is None or known.mark != mark:
            if len(self._known) >= _FILES_MAX:
                del self._known[next(iter(self._known))]
            known = self._known[path] = _Known(mark, _line_ends(fd, found.st_size))
        if piece >= len(known.ends):
            raise RequestError(Code.RANGE, f"the list of input {path} has {len(known.ends)} lines now, piece {piece} is none of them")
        start = int(known.ends[piece - 1]) + 1 if piece else 0
        nbytes = int(known.ends[piece]) - start
        if nbytes > LINE_BYTES_MAX:
            raise RequestError(Code.SIZE, f"line {piece + 1} of the list of input {path} has {nbytes} bytes, {LINE_BYTES_MAX} is the most")
        return os.pread(fd, nbytes, start).removesuffix(b"\r")


def _line_ends(fd: int, size: int) -> NDArray[np.int64]:
    """Where the newlines stand; a last line without one ends with the file."""
    found = []
    at = 0
    last = b"\n"
    while part := os.pread(fd, _READ_BYTES, at):
        found.append(np.flatnonzero(np.frombuffer(part, np.uint8) == 10) + at)
        at += len(part)
        last = part[-1:]
    if last != b"\n":
        found.append(np.array([at]))
    return np.concatenate(found).astype(np.int64) if found else np.zeros(0, np.int64)


def data_line(turn: int, piece: int, text: bytes) -> bytes:
    """The answer of `next` as it stands in `data`.

    >>> data_line(0, 12, b"part-12.csv")
    b'0 12 part-12.csv\\n'
    """
    return b"%d %d %s\n" % (turn, piece, text)


def read_piece(pieces: Pieces, path: str, piece: int, turn: int) -> bytes:
    """What `data` is to hold; path "" = nothing is left.  Raises `RequestError`."""
    return data_line(turn, piece, pieces.line(path, piece)) if path else b""

