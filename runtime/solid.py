"""Files that are there whole or not at all, and last: written beside, synced, renamed, and the directories synced too.

Refuses to know what is in them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from zlib import crc32

from ..core.errors import WorldError

PIECE = 1 << 22  # bytes that are read or written at once


class SyncError(WorldError):
    """The disk could not say that it holds what it was given.  Nothing that was written since then can be trusted."""


def place(path: Path, buffers: Sequence[memoryview]) -> tuple[int, int]:
    """Write a file that is not there yet; returns bytes and crc32.  Its name lasts once its directory is synced.

    Raises `OSError` and `SyncError`; `FileExistsError` where it is there, or where somebody is writing it: nothing is replaced.
    """
    scratch, placed = path.with_name(f".{path.name}.tmp"), False
    written = write(scratch, buffers)
    try:
        if os.path.lexists(path):  # nobody else is about to make it: the scratch file is ours
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        os.rename(scratch, path)
        placed = True
        return written
    finally:
        if not placed:
            _remove(scratch)


def write(scratch: Path, buffers: Sequence[memoryview]) -> tuple[int, int]:
    """Write a file that nobody looks for yet, and that is nobody else's; returns bytes and crc32.  Raises `OSError` and `SyncError`."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd, whole = os.open(scratch, flags, 0o600), False
    try:
        nbytes = crc = 0
        for buffer in buffers:
            at = 0
            while at < len(buffer):
                done = os.write(fd, buffer[at : at + PIECE])
                crc = crc32(buffer[at : at + done], crc)
                at += done
            nbytes += at
        sync(fd, scratch)
        whole = True
        return nbytes, crc
    finally:
        os.close(fd)
        if not whole:
            _remove(scratch)


def _remove(scratch: Path) -> None:
    with suppress(OSError):
        scratch.unlink(missing_ok=True)


def sync(fd: int, path: Path) -> None:
    try:
        os.fsync(fd)
    except OSError as error:
        raise SyncError(f"{path}: the disk failed to keep what was written: {error.strerror}") from error


def sync_directories(folder: Path, root: Path) -> None:
    """New names last once the directories that have them do, up to the root."""
    for place in (folder, *folder.parents):
        _sync_directory(place)
        if place == root or root not in place.parents:
            return


def sync_path(folder: Path) -> None:
    """The same up to where its file system begins: a directory that somebody made on the way, and did not sync, lasts then too."""
    folder = folder.resolve()
    device = folder.stat().st_dev
    for place in (folder, *folder.parents):
        if place.stat().st_dev != device:
            return
        with suppress(PermissionError):  # it may be passed through and not be read: whoever made it was somebody else, long before
            _sync_directory(place)


def _sync_directory(place: Path) -> None:
    fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(fd, place)
    finally:
        os.close(fd)


def checksum(path: Path) -> tuple[int, int]:
    """Bytes and crc32 of a file.  Raises `OSError`."""
    nbytes = crc = 0
    with path.open("rb", buffering=0) as file:
        while piece := file.read(PIECE):
            nbytes, crc = nbytes + len(piece), crc32(piece, crc)
    return nbytes, crc
