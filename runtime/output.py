"""What a child writes: bytes into bounded pieces of text, the last bytes kept.  Pure; `process.Pump` reads the pipe.

A program may write anything: 50 MB without a newline, a progress bar of carriage returns, NULs, bytes that are no
UTF-8.  Memory stays bounded, and every piece can be printed.
"""

from __future__ import annotations

import re
from typing import NamedTuple

LINE_BYTES_MAX = 16 << 10

NEWLINE, RETURN, CUT, END = "newline", "return", "cut", "end"

_ENDS = re.compile(rb"\r?\n|\r")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f]")  # tab, newline and escape (colours) stay


class Piece(NamedTuple):
    """A line, or a part of one.  `ended` by: newline · return (a progress bar goes on in the same place) · cut (too
    long: the next piece continues it) · end (of the output, without a newline)."""

    text: str
    ended: str


def readable(raw: bytes) -> str:
    """Text that can be printed: what is no UTF-8 and what would confuse a terminal is shown as an escape.

    >>> readable(b"caf\\xc3\\xa9 \\xff\\x00")
    'café \\\\xff\\\\x00'
    """
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", raw.decode("utf-8", "backslashreplace"))


class Splitter:
    """Cuts a stream of bytes into pieces of at most LINE_BYTES_MAX.

    >>> splitter = Splitter()
    >>> splitter.feed(b"10 %\\r20 %\\rdo")
    [Piece(text='10 %', ended='return'), Piece(text='20 %', ended='return')]
    >>> splitter.feed(b"ne\\r\\nby"), splitter.end()
    ([Piece(text='done', ended='newline')], [Piece(text='by', ended='end')])
    """

    def __init__(self, line_bytes_max: int = LINE_BYTES_MAX) -> None:
        self._max = line_bytes_max
        self._rest = b""

    def feed(self, chunk: bytes) -> list[Piece]:
        data = self._rest + chunk
        pieces: list[Piece] = []
        at = 0
        for match in _ENDS.finditer(data):
            if match.end() == len(data) and match[0] == b"\r":
                break  # The next byte decides whether this is one end or two.
            line = self._cut(data[at : match.start()], pieces)
            pieces.append(Piece(readable(line), RETURN if match[0] == b"\r" else NEWLINE))
            at = match.end()
        self._rest = self._cut(data[at:], pieces)
        return pieces

    def end(self) -> list[Piece]:
        """The output is over; what is left is the last piece."""
        rest, self._rest = self._rest.removesuffix(b"\r"), b""
        return [Piece(readable(rest), END)] if rest else []

    def _cut(self, line: bytes, pieces: list[Piece]) -> bytes:
        """Give the full pieces of an overlong line; returns what is left."""
        start = 0
        while len(line) - start > self._max:
            stop = start + self._max
            while stop > start + self._max - 4 and line[stop] & 0xC0 == 0x80:
                stop -= 1  # not inside a character
            pieces.append(Piece(readable(line[start:stop]), CUT))
            start = stop
        return line[start:]


class Tail:
    """The last `bytes_max` bytes of a stream.

    >>> tail = Tail(8)
    >>> tail.feed(b"first\\nsecond\\nthird\\n")
    >>> tail.lines(5)
    ['third']
    """

    def __init__(self, bytes_max: int) -> None:
        self._max = bytes_max
        self._bytes = bytearray()
        self._whole = True

    def feed(self, chunk: bytes) -> None:
        self._bytes += chunk
        if len(self._bytes) > self._max:
            del self._bytes[: len(self._bytes) - self._max]
            self._whole = False

    def raw(self) -> bytes:
        return bytes(self._bytes)

    def lines(self, count: int, width: int = 500) -> list[str]:
        """The last `count` lines that say something, each with at most its last `width` characters; of a progress bar
        the last state."""
        lines = []
        for line in bytes(self._bytes).split(b"\n"):
            shown = [part for part in line.split(b"\r") if part.strip(b" \t\0")]
            lines.append(shown[-1] if shown else b"")
        if not self._whole and len(lines) > 1:
            lines = lines[1:]  # its beginning is lost
        texts = [readable(line).rstrip() for line in lines]
        texts = [text if len(text) <= width else "..." + text[-width:] for text in texts if text]
        return texts[-count:]
