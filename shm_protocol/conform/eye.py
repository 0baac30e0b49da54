"""What a program does to the files of its channel, one event after the other, as the kernel tells it (inotify).

A write through a descriptor is an event, a store into a mapping is none, and FIFOs tell nothing.  `cmd` is watched twice,
by its directory and by itself: equal events that follow each other would be told as one, and the two alternate.
"""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path
from typing import NamedTuple

from ...core.errors import WorldError

READ, WROTE, OPENED, WENT_BY, CAME_BY, MADE, REMOVED = 0x1, 0x2, 0x20, 0x40, 0x80, 0x100, 0x200
_MASK = WROTE | OPENED | WENT_BY | CAME_BY | MADE | REMOVED
_HEAD = struct.Struct("iIII")
_BUFFER_BYTES = 1 << 16
_libc = ctypes.CDLL(None, use_errno=True)


class Event(NamedTuple):
    kind: int
    name: str


class Eye:
    """Watches one channel's directory.  `fd` becomes readable when something has happened."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.fd = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise WorldError(f"files cannot be watched: {os.strerror(ctypes.get_errno())}; see /proc/sys/fs/inotify/max_user_instances")
        self._whole = self._watch(directory, _MASK)
        self._cmd = self._watch(directory / "cmd", WROTE)

    def _watch(self, path: Path, mask: int) -> int:
        number = int(_libc.inotify_add_watch(self.fd, os.fsencode(path), mask))
        if number < 0:
            raise WorldError(f"{path} cannot be watched: {os.strerror(ctypes.get_errno())}")
        return number

    def look(self) -> list[Event]:
        """What has happened since the last look, in order.  Each write to `cmd` is one event, other files' may be fewer."""
        found: list[Event] = []
        while True:
            try:
                data = os.read(self.fd, _BUFFER_BYTES)
            except BlockingIOError:
                return found
            at = 0
            while at < len(data):
                number, kind, _cookie, length = _HEAD.unpack_from(data, at)
                name = data[at + _HEAD.size : at + _HEAD.size + length].rstrip(b"\0").decode(errors="replace")
                at += _HEAD.size + length
                found += self._event(number, kind, name)

    def _event(self, number: int, kind: int, name: str) -> list[Event]:
        if number == self._cmd:
            return [Event(WROTE, "cmd")] if kind & WROTE else []
        if name == "cmd":
            if kind & WROTE:
                return []  # told by the watch on the file itself
            if kind & (CAME_BY | MADE):
                self._follow()
        return [Event(kind & _MASK, name)] if number == self._whole and kind & _MASK else []

    def _follow(self) -> None:
        """Another file is called `cmd` now."""
        _libc.inotify_rm_watch(self.fd, self._cmd)
        try:
            self._cmd = self._watch(self.directory / "cmd", WROTE)
        except WorldError:
            self._cmd = -1  # it has gone again already

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
