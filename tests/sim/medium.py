"""What lies under the files of checkpoints: it forgets what was not synced, fails, and flips bits.

A directory in memory is what programs see.  Beside it stands what a crash leaves: of a file the bytes at its last fsync, of a
directory its names at its own last fsync.  Who loses power loses all of its changes that are not there, each by chance:
a file is torn, empty or full of zeros, a rename or a removal has never been.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

CHANGES = ("open", "write", "rename", "unlink", "rmdir", "mkdir")


class Died(BaseException):
    """Whoever worked died in the middle of it."""


class Reader(io.FileIO):
    """A file that is read; now and then it cannot be."""

    def __init__(self, path: Path, comes: Callable[..., str]) -> None:
        super().__init__(path)
        self._comes = comes

    def read(self, size: int | None = -1) -> bytes:
        self._may_fail()
        return super().read(-1 if size is None else size)

    def readinto(self, buffer: Any) -> int:
        self._may_fail()
        return super().readinto(buffer)

    def _may_fail(self) -> None:
        if self._comes("read"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))


class Medium:
    """`draw` is the one source of chance here."""

    def __init__(self, draw: Random) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="plugml-sim-", dir="/dev/shm"))
        self.draw = draw
        self.flipped: dict[Path, None] = {}  # files that hold a bit which nobody wrote
        self._names: dict[int, dict[str, int]] = {os.stat(self.home).st_ino: {}}  # what lasts, by directory: the inode behind each name
        self._bytes: dict[int, bytes] = {}  # what lasts, by file
        self._author: dict[int, str] = {}  # of a file
        self._changed: dict[tuple[int, str], str] = {}  # names that do not last yet: who changed them
        self.failed = False  # somebody's trouble has come
        self._trouble: tuple[str, int] | None = None  # its kind, and so many calls before it
        self._real = {name: getattr(os, name) for name in (*CHANGES, "fsync")}

    def end(self) -> None:
        shutil.rmtree(self.home)

    def path(self, name: str) -> Path:
        """Where an absolute path of the cluster's lies."""
        return self.home / name.lstrip("/")

    # -- somebody works

    @contextmanager
    def work(self, who: str, trouble: tuple[str, int] | None = None) -> Iterator[None]:
        """`trouble`: after so many calls of its kind one fails: "write", "sync", "read" (EIO), "full" (ENOSPC); or it is the last, "die"."""
        self._trouble, self.failed = trouble, False
        hooks: dict[str, Callable[..., Any]] = {name: self._hook(who, name) for name in CHANGES}

        def reader(path: Path, *arguments: Any, **more: Any) -> io.FileIO:
            return Reader(path, self._comes)

        with patch.multiple(os, fsync=self._fsync, **hooks), patch.object(Path, "open", reader):
            yield

    def _comes(self, *kinds: str) -> str:
        """The trouble of one of these kinds that is due at this call, "" = none."""
        if self._trouble is None or self._trouble[0] not in kinds:
            return ""
        kind, left = self._trouble
        self._trouble = (kind, left - 1) if left else None
        self.failed = self.failed or not left
        return "" if left else kind

    def _hook(self, who: str, name: str) -> Callable[..., Any]:
        real = self._real[name]

        def call(*arguments: Any, **more: Any) -> Any:
            changes = name != "open" or arguments[1] & os.O_CREAT
            trouble = self._comes("die", *(("write", "full") if name in ("write", "rename") else ())) if changes else ""
            if trouble and name == "write":
                real(arguments[0], arguments[1][: len(arguments[1]) // 2])
            if trouble == "die":
                raise Died
            if trouble:
                number = errno.ENOSPC if trouble == "full" else errno.EIO
                raise OSError(number, os.strerror(number))
            result = real(*arguments, **more)
            if name == "open" and changes:
                self._author[os.fstat(result).st_ino] = who
            if changes and name != "write":
                for path in arguments[:2] if name == "rename" else arguments[:1]:
                    self._touch(who, path, more.get("dir_fd"))
            return result

        return call

    def _touch(self, who: str, path: Any, fd: int | None) -> None:
        folder, name = os.path.split(os.fspath(path))
        self._changed[(os.fstat(fd) if fd is not None else os.stat(folder)).st_ino, name] = who

    def _fsync(self, fd: int) -> None:
        if self._comes("die"):
            raise Died
        if self._comes("sync"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        found = os.fstat(fd)
        if not stat.S_ISDIR(found.st_mode):
            self._bytes[found.st_ino] = Path(f"/proc/self/fd/{fd}").read_bytes()
            return
        with os.scandir(fd) as entries:
            self._names[found.st_ino] = {entry.name: entry.inode() for entry in entries}
        for key in [key for key in self._changed if key[0] == found.st_ino]:
            del self._changed[key]

    # -- harm

    def lose(self, who: str) -> int:
        """Its host loses power; how many of its changes were not there."""
        lost = self._fall_back(self.home, os.stat(self.home).st_ino, who)
        self._changed = {key: author for key, author in self._changed.items() if author != who}
        return lost

    def _fall_back(self, folder: Path, lasting: int, who: str) -> int:
        """A directory; `lasting` is the one that was behind its name at the last sync."""
        here = {name: os.lstat(folder / name).st_ino for name in os.listdir(folder)}
        there = self._names.get(lasting, {})
        lost = 0
        for name in sorted({**here, **there}):
            path, now, before = folder / name, here.get(name), there.get(name)
            own = self._changed.get((lasting, name)) == who
            if own and now != before and self.draw.random() < 0.5:
                lost += 1
                self._undo(path, now, before, who)
            elif now is not None and path.is_dir():
                lost += self._fall_back(path, now, who)
            elif now is not None and now not in self._bytes and self._author.get(now) == who:
                lost += 1
                self._tear(path)
            if own:
                there = {key: inode for key, inode in there.items() if key != name}
                if os.path.lexists(path):
                    there[name] = os.lstat(path).st_ino
        self._names[lasting] = there
        return lost

    def _undo(self, path: Path, now: int | None, before: int | None, who: str) -> None:
        if now is not None:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        if before in self._names:  # a directory that was removed: with it what was in it
            path.mkdir()
            for name, inode in sorted(self._names[before].items()):
                if self.draw.random() < 0.5:
                    self._undo(path / name, None, inode, who)
            self._names[os.stat(path).st_ino] = {name: os.lstat(path / name).st_ino for name in os.listdir(path)}
        elif before is not None:
            self._put(path, self._bytes.get(before, b""))

    def _tear(self, path: Path) -> None:
        data = path.read_bytes()
        kind = self.draw.randrange(4)
        if kind == 0:
            data = bytes(len(data))
        elif kind == 1:
            data = data[: self.draw.randrange(len(data) + 1)]
        elif kind == 2:
            data = b""
        self._put(path, data)

    def _put(self, path: Path, data: bytes) -> None:
        """What it holds now lasts."""
        path.write_bytes(data)
        self._bytes[os.stat(path).st_ino] = data

    def flip(self) -> Path | None:
        """One bit of a stored file."""
        files = sorted(path for path in self.home.rglob("*") if path.is_file() and path.stat().st_size)
        if not files:
            return None
        path = files[self.draw.randrange(len(files))]
        data = bytearray(path.read_bytes())
        at = self.draw.randrange(8 * len(data))
        data[at // 8] ^= 1 << at % 8
        self._put(path, bytes(data))
        self.flipped[path] = None
        return path
