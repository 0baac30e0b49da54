"""The files of one channel as its agent touches them: by directory descriptor, each checked, none ever mapped.

`Files` is the port; `DiskFiles` is the real one, `twin.MemoryFiles` the simulator's.  Knows names, sizes, owners and
types; refuses to know what the bytes mean.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Any, Protocol

from ..core.errors import Code, RequestError
from .kept import SLOTS
from .page import RECORD_BYTES
from .semaphore import Semaphore

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
#: Files that the agent writes; it only reads all others.
WRITTEN = frozenset({"param", "param.txt", "data", "reply", "ctl", "err", "sums", *SLOTS})


class Files(Protocol):
    """What a channel asks of its files.  Every method raises `RequestError` (PERM, NOSPC) and nothing else."""

    def size(self, name: str) -> int:
        """Look at the file by its name, as its last writer left it; returns its bytes.  To be called before a read."""
        ...

    def read(self, name: str, nbytes: int) -> bytes:
        """At most `nbytes` from the start."""
        ...

    def read_into(self, name: str, buffer: Any, offset: int = 0) -> int:
        """Fill the buffer from `offset` on; returns the bytes that there were."""
        ...

    def write(self, name: str, offset: int, data: Any) -> None: ...

    def truncate(self, name: str, nbytes: int) -> None: ...

    def send(self, record: bytes) -> bool:
        """Wake the program with a record; False = its bell is full, it does not read."""
        ...

    def wake(self) -> None:
        """The channel ends: a program that waits for a semaphore must look."""
        ...

    def drain(self) -> bool:
        """Empty the request bell; False = nobody can ring it any more."""
        ...

    def check_bells(self) -> None:
        """Refuse bells that somebody has replaced."""
        ...

    def close(self) -> None: ...


class DiskFiles:
    """The files in a directory of the root.  Descriptors are kept; a file that was replaced is opened anew."""

    def __init__(self, directory_fd: int) -> None:
        """Takes over `directory_fd`, also when it raises."""
        self._directory_fd = directory_fd
        self._uid = os.getuid()
        self._open: dict[str, tuple[int, tuple[int, ...]]] = {}
        self._bells: dict[str, tuple[int, int]] = {}
        self._semaphore: Semaphore | None = None
        self.req_fd = self.rep_fd = -1
        try:
            self.req_fd = self._fifo("req", os.O_RDONLY)
            self.rep_fd = self._fifo("rep", os.O_WRONLY)
        except BaseException:
            self.close()
            raise

    def use_semaphore(self, name: str) -> None:
        """From here on replies go through `reply` and the semaphore."""
        self._semaphore = Semaphore.open(name)

    def _fifo(self, name: str, mode: int) -> int:
        try:
            fd = os.open(name, mode | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._directory_fd)
        except OSError as error:
            if error.errno == errno.ENXIO:
                raise _refused(f"{name} is held open by nobody: the channel's launcher is gone") from None
            raise _refused(f"{name} cannot be opened: {error.strerror}") from None
        found = os.fstat(fd)
        if not stat.S_ISFIFO(found.st_mode) or found.st_uid != self._uid:
            os.close(fd)
            raise _refused(f"{name} is not the FIFO that was made with the channel")
        self._bells[name] = (found.st_dev, found.st_ino)
        return fd

    def size(self, name: str) -> int:
        try:
            found = os.stat(name, dir_fd=self._directory_fd, follow_symlinks=False)
        except OSError as error:
            raise _refused(f"{name} cannot be reached: {error.strerror}") from None
        mark = (found.st_ino, found.st_dev, found.st_mode, found.st_uid)
        known = self._open.get(name)
        if known is None or known[1] != mark:
            return self._reopen(name)
        return found.st_size

    def _reopen(self, name: str) -> int:
        """Open the file that has this name now; its type and owner are judged by what was opened."""
        self._forget(name)
        try:
            fd = os.open(name, _WRITE if name in WRITTEN else _READ, dir_fd=self._directory_fd)
        except OSError as error:
            text = "is a symbolic link" if error.errno == errno.ELOOP else f"cannot be opened: {error.strerror}"
            raise _refused(f"{name} {text}") from None
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != self._uid:
            os.close(fd)
            raise _refused(f"{name} is no regular file of yours")
        self._open[name] = (fd, (found.st_ino, found.st_dev, found.st_mode, found.st_uid))
        return found.st_size

    def _forget(self, name: str) -> None:
        known = self._open.pop(name, None)
        if known:
            os.close(known[0])

    def _fd(self, name: str) -> int:
        known = self._open.get(name)
        if known is None:
            self._reopen(name)
            known = self._open[name]
        return known[0]

    def read(self, name: str, nbytes: int) -> bytes:
        try:
            return os.pread(self._fd(name), nbytes, 0)
        except OSError as error:
            raise _refused(f"{name} cannot be read: {error.strerror}") from None

    def read_into(self, name: str, buffer: Any, offset: int = 0) -> int:
        fd = self._fd(name)
        view = memoryview(buffer).cast("B")
        done = 0
        try:
            while done < len(view):
                part = os.preadv(fd, [view[done:]], offset + done)
                if part == 0:
                    break
                done += part
        except OSError as error:
            raise _refused(f"{name} cannot be read: {error.strerror}") from None
        return done

    def write(self, name: str, offset: int, data: Any) -> None:
        fd = self._fd(name)
        try:
            done = os.pwrite(fd, data, offset)
            nbytes = data.nbytes if hasattr(data, "nbytes") else len(data)
            while done < nbytes:
                done += os.pwrite(fd, memoryview(data).cast("B")[done:], offset + done)
        except OSError as error:
            raise _write_error(name, error) from None

    def truncate(self, name: str, nbytes: int) -> None:
        try:
            os.ftruncate(self._fd(name), nbytes)
        except OSError as error:
            raise _write_error(name, error) from None

    def send(self, record: bytes) -> bool:
        if self._semaphore is not None:
            self.size("reply")  # somebody may have put another file there
            self.write("reply", 0, record)
            self._semaphore.post()
            return True
        try:
            return os.write(self.rep_fd, record) == RECORD_BYTES
        except (BlockingIOError, BrokenPipeError):
            return False

    def wake(self) -> None:
        if self._semaphore is not None:
            self._semaphore.post()

    def drain(self) -> bool:
        try:
            while True:
                part = os.read(self.req_fd, 4096)
                if len(part) < 4096:
                    return bool(part)
        except BlockingIOError:
            return True

    def check_bells(self) -> None:
        for name, mark in self._bells.items():
            try:
                found = os.stat(name, dir_fd=self._directory_fd, follow_symlinks=False)
            except OSError:
                raise _refused(f"{name} has been removed: a channel's FIFOs must stay") from None
            if (found.st_dev, found.st_ino) != mark:
                raise _refused(f"{name} has been replaced, perhaps by writing to it after it was removed; its FIFO must stay")

    def close(self) -> None:
        for name in list(self._open):
            self._forget(name)
        if self._semaphore is not None:
            self._semaphore.close()
            self._semaphore = None
        for fd in (self.req_fd, self.rep_fd, self._directory_fd):
            if fd >= 0:
                os.close(fd)
        self.req_fd = self.rep_fd = self._directory_fd = -1


def open_directory(root_fd: int, name: str) -> int:
    """The channel's directory, checked: ours, 0700, no link.  Raises `RequestError` PERM."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=root_fd)
    except OSError as error:
        raise _refused(f"the channel's directory {name} cannot be opened: {error.strerror}") from None
    found = os.fstat(fd)
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        os.close(fd)
        raise _refused(f"the channel's directory {name} must be yours and have mode 0700, not {found.st_mode & 0o777:04o}")
    return fd


def _refused(text: str) -> RequestError:
    return RequestError(Code.PERM, text)


def _write_error(name: str, error: OSError) -> RequestError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return RequestError(Code.NOSPC, f"{name} cannot be written: the channel root is full")
    return _refused(f"{name} cannot be written: {error.strerror}")
