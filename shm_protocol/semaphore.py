"""The semaphore of a channel with bell=sem: what a blocking program waits for in the place of a FIFO.

Its name is in `info`, and only such names are made, opened and removed.  It lies in /dev/shm whatever the channel root is, so
that nobody finds it once the directory is gone: its maker holds a lock on it, as on `keeper`, and what nobody holds is swept.
`posix_ipc` is imported where one is used: a channel with FIFOs never needs it (docs/decisions/0008-semaphores.md).
"""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
from typing import Any

from ..core.errors import Code, RequestError, RootError
from .info import SEMAPHORE

_DIRECTORY = "/dev/shm"
_PREFIXES = ("sem.", "")  # of the file there in which C libraries of Linux keep the semaphore that is called /NAME
_TRIES = 3  # an agent that starts just now may sweep one that is not locked yet


def new_name() -> str:
    """A name that nobody has.

    >>> bool(SEMAPHORE.match(new_name()))
    True
    """
    return f"/plugml-{secrets.token_hex(16)}"


class Semaphore:
    """An open semaphore; whoever has it posts, nobody of ours waits.  Its maker holds it locked."""

    def __init__(self, opened: Any, lock_fd: int = -1) -> None:
        self._opened = opened
        self._lock_fd = lock_fd

    @classmethod
    def make(cls, name: str) -> Semaphore:
        """A new one of mode 0600 with count 0, which is kept until it is closed.  Raises `RootError`."""
        import posix_ipc

        assert SEMAPHORE.match(name)
        try:
            for _ in range(_TRIES):
                made = cls(posix_ipc.Semaphore(name, posix_ipc.O_CREX, mode=0o600, initial_value=0))
                if made._keep(name):
                    return made
                made.close()
        except (posix_ipc.Error, OSError) as error:
            raise RootError(f"a semaphore cannot be made: {error}; make room in /dev/shm, or use bell=fifo") from error
        raise RootError("a semaphore was removed while it was being made; start again, or use bell=fifo")

    def _keep(self, name: str) -> bool:
        """Lock it against sweeps; False: it has been swept before we could."""
        fd = _open_file(name)
        if fd < 0:
            return False
        fcntl.flock(fd, fcntl.LOCK_EX)  # waits, for an agent that sweeps looks at the lock by taking it for a moment
        if not os.fstat(fd).st_nlink:
            os.close(fd)
            return False
        self._lock_fd = fd
        return True

    @classmethod
    def open(cls, name: str) -> Semaphore:
        """One that is there.  Raises `RequestError` PERM."""
        import posix_ipc

        if not SEMAPHORE.match(name) or not _is_ours(name):
            raise RequestError(Code.PERM, f"the semaphore {name[:60]} is not there, or not yours")
        try:
            return cls(posix_ipc.Semaphore(name))
        except (posix_ipc.Error, OSError) as error:
            raise RequestError(Code.PERM, f"the semaphore {name} cannot be opened: {error}") from None

    def post(self) -> None:
        try:
            self._opened.release()
        except OSError:  # its count is at the top: nobody sleeps there
            return

    def close(self) -> None:
        """May be done once."""
        self._opened.close()
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1


def remove(name: str) -> bool:
    """Post and remove a semaphore that is there, ours, and kept by nobody: who still waits for it must look.  Tells whether it did.

    One that is kept goes with its keeper, whoever names it.
    """
    fd = _open_file(name) if SEMAPHORE.match(name) else -1
    if fd < 0:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.fstat(fd).st_nlink > 0 and _remove(name)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)


def _remove(name: str) -> bool:
    try:
        import posix_ipc
    except ImportError:  # a run with FIFOs needs no such package: it stays for an agent that has it
        return False
    try:
        semaphore = posix_ipc.Semaphore(name)
        semaphore.release()
        semaphore.close()
        posix_ipc.unlink_semaphore(name)
    except (posix_ipc.Error, OSError):
        return False  # somebody else has removed it meanwhile
    return True


def sweep() -> list[str]:
    """Remove what makers that were killed, or directories that were deleted by hand, have left behind; gives the names.

    Whatever root they belonged to: what is kept, and what is another user's, stays.
    """
    try:
        found = os.listdir(_DIRECTORY)
    except OSError:  # there is none: then no semaphore either
        return []
    names = {f"/{entry.removeprefix(prefix)}" for entry in found for prefix in _PREFIXES if entry.startswith(prefix)}
    return sorted(name for name in names if SEMAPHORE.match(name) and remove(name))


def _open_file(name: str) -> int:
    """Of a semaphore of ours; -1 = there is none.

    The superuser could remove everybody's: the owner is looked at, not only the mode.
    """
    for prefix in _PREFIXES:
        try:
            fd = os.open(f"{_DIRECTORY}/{prefix}{name[1:]}", os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue
        found = os.fstat(fd)
        if stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid():
            return fd
        os.close(fd)
    return -1


def _is_ours(name: str) -> bool:
    fd = _open_file(name)
    if fd >= 0:
        os.close(fd)
    return fd >= 0
