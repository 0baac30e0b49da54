"""A named POSIX semaphore (bell=sem), by the C library: Python has none of its own.

Knows neither requests nor replies.
"""

from __future__ import annotations

import ctypes
import errno
import os
import time
from typing import Any

from .errors import ChannelError, Code

#: A wait ends after so long, only for its caller to look whether anybody is left who could post.
LOOK_S = 1


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class Semaphore:
    """An open semaphore that somebody else has made.  A post that comes too often does no harm."""

    def __init__(self, name: str) -> None:
        library: Any = ctypes.CDLL(None, use_errno=True)
        if not hasattr(library, "sem_timedwait"):  # C libraries before glibc 2.34 keep it apart
            library = ctypes.CDLL("libpthread.so.0", use_errno=True)
        self._library = library
        library.sem_open.restype = ctypes.c_void_p
        self._handle = ctypes.c_void_p(library.sem_open(name.encode(), 0))
        if not self._handle:
            number = ctypes.get_errno()
            code = Code.GONE if number == errno.ENOENT else Code.PERM
            raise ChannelError(code, f"the semaphore {name} cannot be opened: {os.strerror(number)}")

    def drain(self) -> None:
        """Forget what was posted for an earlier program."""
        while self._library.sem_trywait(self._handle) == 0:
            pass

    def wait(self) -> bool:
        """Sleep until a post comes (True); False after a second without one, and after a signal."""
        until = time.time() + LOOK_S
        at = _Timespec(int(until), int(until % 1 * 1e9))
        if self._library.sem_timedwait(self._handle, ctypes.byref(at)) == 0:
            return True
        number = ctypes.get_errno()
        if number not in (errno.ETIMEDOUT, errno.EINTR):
            raise ChannelError(Code.PERM, f"the semaphore cannot be waited for: {os.strerror(number)}")
        return False

    def close(self) -> None:
        if self._handle:
            self._library.sem_close(self._handle)
            self._handle = ctypes.c_void_p(None)
