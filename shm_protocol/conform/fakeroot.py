"""The directories in memory in which scripted agents make their channels, and the end of those whose agent was killed.

A root's name holds the process that made it, and that process holds a lock on it: one whose maker has ended and that
nobody has locked is of no use to anybody.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

from ..root import remove_channel

MEMORY = Path("/dev/shm")
PREFIX = "plugml-fake-"


def new_root() -> Path:
    """An empty directory, to be held at once."""
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=MEMORY))


def hold(root_fd: int) -> None:
    """As long as this descriptor is open the root is in use, whatever its name says (the maker may live in another container)."""
    fcntl.flock(root_fd, fcntl.LOCK_SH)


def sweep() -> list[Path]:
    """Remove the roots of this user whose makers were killed; returns them."""
    roots = sorted(MEMORY.glob(f"{PREFIX}*-*"))
    return [path for path in roots if not _alive(path.name.removeprefix(PREFIX).partition("-")[0]) and _removed(path)]


def _alive(pid: str) -> bool:
    """Whether this may be a process; what is no number of ours is left alone."""
    return not pid.isdecimal() or os.path.exists(f"/proc/{int(pid)}")


def _removed(path: Path) -> bool:
    """Remove it, if it is a directory of ours that nobody holds."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False  # gone meanwhile, or not ours
    try:
        if os.fstat(fd).st_uid != os.getuid():
            return False
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for name in os.listdir(fd):
            remove_channel(fd, name)
        os.rmdir(path)
    except (BlockingIOError, FileNotFoundError):
        return False  # held, or somebody else sweeps at this moment
    finally:
        os.close(fd)
    return True
