"""The semaphore of a channel with bell=sem: what a blocking program waits for in the place of a FIFO.

Its name is in `info`, and only such names are made, opened and removed.  It lies in /dev/shm whatever the channel root is.
`posix_ipc` is imported where one is used: a channel with FIFOs never needs it (docs/decisions/0008-semaphores.md).
"""

from __future__ import annotations

import os
import secrets
from typing import Any

from ..core.errors import Code, RequestError, RootError
from .info import SEMAPHORE

_PLACES = ("/dev/shm/sem.", "/dev/shm/")  # where C libraries of Linux keep the semaphore that is called /NAME


def new_name() -> str:
    """A name that nobody has.

    >>> bool(SEMAPHORE.match(new_name()))
    True
    """
    return f"/plugml-{secrets.token_hex(16)}"


class Semaphore:
    """An open semaphore; whoever has it posts, nobody of ours waits."""

    def __init__(self, opened: Any) -> None:
        self._opened = opened

    @classmethod
    def make(cls, name: str) -> Semaphore:
        """A new one of mode 0600 with count 0.  Raises `RootError`."""
        import posix_ipc

        assert SEMAPHORE.match(name)
        try:
            return cls(posix_ipc.Semaphore(name, posix_ipc.O_CREX, mode=0o600, initial_value=0))
        except (posix_ipc.Error, OSError) as error:
            raise RootError(f"a semaphore cannot be made: {error}; make room in /dev/shm, or use bell=fifo") from error

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


def remove(name: str) -> None:
    """Post and remove a channel's semaphore, if it is there and ours: who still waits for it must look."""
    import posix_ipc

    if not SEMAPHORE.match(name) or not _is_ours(name):
        return
    try:
        semaphore = posix_ipc.Semaphore(name)
        semaphore.release()
        semaphore.close()
        posix_ipc.unlink_semaphore(name)
    except (posix_ipc.Error, OSError):
        return  # somebody else has removed it meanwhile


def _is_ours(name: str) -> bool:
    """The superuser could remove everybody's: the owner is looked at, not only the mode."""
    for place in _PLACES:
        try:
            return os.lstat(place + name[1:]).st_uid == os.getuid()
        except FileNotFoundError:
            continue
    return False
