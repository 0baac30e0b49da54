"""Lines of the form `time event=... key=value ...`, one per change, to a descriptor.  Never raises, never waits for a reader.

Owns the form of a line and the descriptor.  A log that cannot be written (full disk, closed pipe) costs lines, not the
process: the lost ones are counted and the next line that gets through says how many.
"""

from __future__ import annotations

import os
import re
import select
import time
from collections.abc import Mapping
from typing import Any

from ..core.errors import WorldError

ROTATE_BYTES = 16 << 20  # a log that is longer at the start of a process is put aside, once

LINE_BYTES_MAX = 4_096  # PIPE_BUF of Linux

_PLAIN = re.compile(r"[\w.,:;/@%+*<>()\[\]{}|~^!?&$#-]+\Z")


def line_of(event: str, fields: Mapping[str, Any]) -> str:
    """The text of a line, without time and newline.

    >>> line_of("dead", {"node": "s0.9f3a01c2", "why": "no beat for 3 s", "n": 2})
    'event=dead node=s0.9f3a01c2 why="no beat for 3 s" n=2'
    """
    words = [f"event={_word(event)}"]
    words += [f"{key}={_word(value)}" for key, value in fields.items()]
    return " ".join(words)


def _word(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    if _PLAIN.match(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return '"' + "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in escaped) + '"'


class LogFile:
    """Writes lines to `path` (appending) or, without one, to standard error.  `node` stands in every line."""

    def __init__(self, node: str, path: str = "", verbose: bool = False) -> None:
        self.node = node
        self.verbose = verbose
        self.lost = 0
        self._descriptor = 2
        if path:
            try:
                if os.path.isfile(path) and os.path.getsize(path) > ROTATE_BYTES:
                    os.replace(path, f"{path}.1")
                self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise WorldError(f"cannot write the log {path}: {error.strerror}; give another --log") from error
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLOUT)

    def __call__(self, event: str, **fields: Any) -> None:
        self.write(event, fields)

    def detail(self, event: str, **fields: Any) -> None:
        """A line for -v only."""
        if self.verbose:
            self.write(event, fields)

    def write(self, event: str, fields: Mapping[str, Any]) -> None:
        text = line_of(event, fields)
        if self.lost:
            text += f" lines_lost={self.lost}"
        now_ns = time.time_ns()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now_ns // 1_000_000_000))
        line = f"{stamp}.{now_ns // 1_000_000 % 1000:03d}Z node={self.node} {text}".encode()
        if len(line) >= LINE_BYTES_MAX:
            line = line[: LINE_BYTES_MAX - 5] + b" ..."
        try:
            # A pipe that is writable takes PIPE_BUF bytes at once; one that nobody reads must not hold us up.
            if not self._poll.poll(0):
                raise BlockingIOError
            os.write(self._descriptor, line + b"\n")
            self.lost = 0
        except OSError:
            self.lost += 1

    def close(self) -> None:
        if self._descriptor != 2:
            os.close(self._descriptor)
            self._descriptor = 2
