"""Exports on disk: files under temporary names that all get their own at the end, or none does.

Owns exports under way.  Decides nothing; what a file refuses becomes an event.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ..core.errors import Code
from . import effects as e

Feed = Callable[[Any], None]


class ExportDisk:
    """Performers for every export effect."""

    def __init__(self, loop: asyncio.AbstractEventLoop, feed: Feed) -> None:
        self._loop = loop
        self._feed = feed
        self._exports: dict[int, ExportFiles] = {}
        self._thread = ThreadPoolExecutor(1, "export")

    def performers(self) -> dict[type[Any], Callable[[Any], object]]:
        return {
            e.MakeExport: self._make_export, e.WriteExport: self._write_export, e.CutExport: self._cut_export, e.EndExport: self._end_export,
        }  # fmt: skip

    def abandon(self) -> None:
        """The agent ends: nothing stays under a final name."""
        for files in self._exports.values():
            files.remove()
        self._exports.clear()
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _make_export(self, effect: e.MakeExport) -> None:
        files = self._exports.setdefault(effect.export, ExportFiles(Path(effect.place)))
        self._export_step(effect.export, lambda: files.make(effect.file, effect.nbytes))

    def _write_export(self, effect: e.WriteExport) -> None:
        files = self._exports.get(effect.export)
        if files is not None:
            self._export_step(effect.export, lambda: files.write(effect.file, effect.offset, effect.buffer))

    def _cut_export(self, effect: e.CutExport) -> None:
        files = self._exports.get(effect.export)
        if files is not None:
            self._export_step(effect.export, lambda: files.cut(effect.file, effect.nbytes))

    def _export_step(self, number: int, step: Callable[[], None]) -> None:
        """The first failure of an export is told; what comes after it does nothing."""
        try:
            step()
        except OSError as error:
            files = self._exports.pop(number)
            files.remove()
            self._feed(e.ExportFailed(number, *_explained(files.place, error)))

    def _end_export(self, effect: e.EndExport) -> None:
        files = self._exports.pop(effect.export, None)
        if files is None:
            return
        if not effect.keep:
            files.remove()
            return
        # Waiting for the disk belongs into a thread: other jobs' programs go on meanwhile.
        future = self._loop.run_in_executor(self._thread, files.publish)
        future.add_done_callback(lambda done: self._published(effect.export, files, done))

    def _published(self, number: int, files: ExportFiles, done: asyncio.Future[int]) -> None:
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            self._feed(e.ExportEnded(number, done.result()))
        elif isinstance(error, OSError):
            self._feed(e.ExportFailed(number, *_explained(files.place, error)))
        else:
            raise error


class ExportFiles:
    """Files under temporary names in one directory; all of them get their names, or none."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._open: dict[str, tuple[int, str]] = {}  # final name -> descriptor, temporary name

    def make(self, name: str, nbytes: int) -> None:
        if name in self._open:
            return
        temporary = f".{name}.{secrets.token_hex(4)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(self.place / temporary, flags, 0o644)
        self._open[name] = (fd, temporary)
        if nbytes:  # 0 = not known yet: rows of a sparse table
            os.posix_fallocate(fd, 0, nbytes)  # a full disk is found here, before anything was read

    def write(self, name: str, offset: int, buffer: Any) -> None:
        fd, _temporary = self._open[name]
        view = memoryview(buffer).cast("B")
        done = 0
        while done < len(view):
            done += os.pwrite(fd, view[done:], offset + done)

    def cut(self, name: str, nbytes: int) -> None:
        os.ftruncate(self._open[name][0], nbytes)

    def publish(self) -> int:
        """On disk first, then under the final names; returns the bytes.  Runs in a thread.  Raises OSError."""
        total = 0
        try:
            for fd, _temporary in self._open.values():
                os.fsync(fd)
                total += os.fstat(fd).st_size
            for name, (_fd, temporary) in self._open.items():
                os.rename(self.place / temporary, self.place / name)
            directory = os.open(self.place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        finally:
            self.remove()
        return total

    def remove(self) -> None:
        """Whatever has no final name yet is gone after this."""
        for fd, temporary in self._open.values():
            os.close(fd)
            (self.place / temporary).unlink(missing_ok=True)
        self._open.clear()


def _explained(place: Path, error: OSError) -> tuple[Code, str]:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return Code.NOSPC, f"{place} is full: nothing was exported; free space or choose another place"
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return Code.FORMAT, f"{place} is no directory: make it before the export"
    return Code.PERM, f"{place} cannot be written: {error.strerror}; nothing was exported"
