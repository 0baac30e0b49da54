"""A channel's making and end, as its launcher does it: the memory is charged to the launcher's control group.

    mkdir .tmp-* -> lock keeper -> files at full size, ctl, info -> semaphore -> FIFOs -> rename: nobody sees half a channel

The launcher holds keeper locked and both FIFOs open for as long as the channel lives; all of it is close-on-exec.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import time
from pathlib import Path

from ..core.errors import Code, RootError
from . import sums
from .info import Info
from .kept import HEAD_BYTES, SLOTS
from .page import PAGE_BYTES, RECORD_BYTES, REQUEST_BYTES_MAX, Moving, new_page, read_moving
from .request import Reply, format_reply, seq_of
from .root import full_error, need_space, remove_channel
from .semaphore import Semaphore, new_name
from .semaphore import remove as remove_semaphore

_TRIES = 3  # an agent that starts just now may sweep a directory whose keeper is not locked yet


class Channel:
    """A channel that we made and keep.  `directory` is its path; `req_fd` rings for us once the agent is given up."""

    def __init__(
        self, root: Path, name: str, info: Info, root_fd: int, keeper_fd: int, req_fd: int, rep_fd: int, semaphore: Semaphore | None
    ) -> None:
        self.root = root
        self.name = name
        self.info = info
        self.req_fd = req_fd
        self._root_fd = root_fd
        self._keeper_fd = keeper_fd
        self._rep_fd = rep_fd
        self._semaphore = semaphore

    @property
    def directory(self) -> Path:
        return self.root / self.name

    def retire(self) -> None:
        """The agent is given up: rename the directory, so that no late agent acts on it, and answer GONE."""
        if not self.name.startswith(".dead-"):
            dead = f".dead-{self.name}-{secrets.token_hex(4)}"
            try:
                os.rename(self.name, dead, src_dir_fd=self._root_fd, dst_dir_fd=self._root_fd)
            except FileNotFoundError:
                pass  # swept by an agent that took us for dead: there is no request left to answer
            self.name = dead
        if not self.answer_gone() and self._semaphore is not None:
            self._semaphore.post()  # whoever sleeps there finds no channel under its name any more

    def answer_gone(self) -> bool:
        """Answer the request in `cmd`, if there is one, with GONE (indefinite).  Only after `retire`; returns whether it did."""
        assert self.name.startswith(".dead-"), "a live channel is answered by its agent only"
        drain(self.req_fd)
        line, done_seq = self._read_state()
        if line is None:
            return False
        seq = seq_of(line)
        if seq is not None and 0 < seq <= done_seq:
            return False
        record = format_reply(Reply(False, done_seq + 1 if seq is None else seq, 0, code=Code.GONE))
        if self._semaphore is not None:
            return self._answer_by_semaphore(record)
        try:
            return os.write(self._rep_fd, record) == RECORD_BYTES
        except BlockingIOError:  # full of answers that nobody reads
            return False

    def _answer_by_semaphore(self, record: bytes) -> bool:
        assert self._semaphore is not None
        try:
            fd = os.open(f"{self.name}/reply", os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._root_fd)
        except OSError:  # taken away by the program
            return False
        try:
            answered = os.pwrite(fd, record, 0) == RECORD_BYTES
        finally:
            os.close(fd)
        self._semaphore.post()
        return answered

    def _read_state(self) -> tuple[bytes | None, int]:
        """The request line, and done_seq."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        found = []
        for name in ("cmd", "ctl"):
            try:
                fd = os.open(f"{self.name}/{name}", flags, dir_fd=self._root_fd)
            except OSError:
                return None, 0
            try:
                found.append(os.pread(fd, PAGE_BYTES, 0))
            finally:
                os.close(fd)
        line, newline, _rest = found[0][: REQUEST_BYTES_MAX + 1].partition(b"\n")
        return (line if newline else None), read_moving(found[1].ljust(PAGE_BYTES, b"\0")).done_seq

    def close(self, *, remove: bool = True) -> None:
        """End it: remove the directory (the agent must have closed it) and let go of keeper and FIFOs.  May be repeated."""
        if self._keeper_fd < 0:
            return
        if remove:
            remove_channel(self._root_fd, self.name)
        if self._semaphore is not None:
            self._semaphore.close()
            if remove:
                remove_semaphore(self.info.sem)  # also when somebody has taken the directory away
        for fd in (self.req_fd, self._rep_fd, self._keeper_fd, self._root_fd):
            os.close(fd)
        self._keeper_fd = self.req_fd = self._rep_fd = self._root_fd = -1

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def files_of(info: Info) -> tuple[tuple[str, int, int], ...]:
    """(name, mode, bytes) of each regular file of a channel.

    Texts are not preallocated: nobody knows their length.  Nor are accepted pushes, beyond their heads: most programs never
    send one, and two of them would double a channel's memory.
    """
    kinds = {table.index_type for table in info.tables if table.kind == "sparse"}
    files = [
        ("cmd", 0o600, PAGE_BYTES), ("grad", 0o600, info.cap_grad), ("param", 0o600, info.cap_param), ("ctl", 0o644, PAGE_BYTES),
        ("err", 0o644, PAGE_BYTES), ("data", 0o644, PAGE_BYTES), *((slot, 0o600, HEAD_BYTES) for slot in SLOTS),
        ("grad.txt", 0o600, 0), ("param.txt", 0o600, 0), ("info", 0o444, 0), ("keeper", 0o600, 0),
    ]  # fmt: skip
    if kinds - {"str"}:
        files += [("gidx", 0o600, info.cap_idx), ("want", 0o600, info.cap_idx), ("gidx.txt", 0o600, 0), ("want.txt", 0o600, 0)]
    if kinds:
        files.append((sums.NAME, 0o600, sums.file_bytes(info)))
    if "str" in kinds:
        files += [("gkey", 0o600, 0), ("wkey", 0o600, 0)]
    if info.bell == "sem":
        files.append(("reply", 0o644, RECORD_BYTES))
    return tuple(files)


def bytes_of(info: Info) -> int:
    """Bytes that a channel takes from the root, in whole pages."""
    return sum(max(1, -(-size // PAGE_BYTES)) * PAGE_BYTES for _name, _mode, size in files_of(info)) + PAGE_BYTES


def create_channel(root: Path, info: Info) -> Channel:
    """Make the channel that `info` describes, with bell=sem its semaphore, too.  Raises `RootError`; nothing is left behind then."""
    if info.bell == "sem":
        info = info._replace(sem=new_name())
    need_space(root, bytes_of(info))
    root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        for attempt in range(_TRIES):
            try:
                return _create(root, root_fd, info)
            except FileNotFoundError:
                if attempt == _TRIES - 1:
                    raise RootError(f"the channel root {root} was emptied while a channel was being made; start again") from None
        raise AssertionError("unreachable")
    except BaseException:
        os.close(root_fd)
        raise


def _create(root: Path, root_fd: int, info: Info) -> Channel:
    temporary = f".tmp-{info.directory_name}-{secrets.token_hex(4)}"
    opened: list[int] = []
    semaphore: Semaphore | None = None
    try:
        os.mkdir(temporary, 0o700, dir_fd=root_fd)
        directory_fd = os.open(temporary, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=root_fd)
        opened.append(directory_fd)
        os.fchmod(directory_fd, 0o700)  # whatever the umask
        keeper_fd = _new_file(directory_fd, "keeper", 0o600, 0)
        opened.append(keeper_fd)
        fcntl.flock(keeper_fd, fcntl.LOCK_EX)  # waits, for an agent that sweeps looks at the lock by taking it for a moment
        _fill(directory_fd, info)
        if info.sem:
            semaphore = Semaphore.make(info.sem)  # after info, by which whoever sweeps finds it
        fifo_fds = []
        for name in ("req", "rep"):
            os.mkfifo(name, 0o600, dir_fd=directory_fd)
            os.chmod(name, 0o600, dir_fd=directory_fd)
            fifo_fds.append(os.open(name, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=directory_fd))
            opened.append(fifo_fds[-1])
        os.rename(temporary, info.directory_name, src_dir_fd=root_fd, dst_dir_fd=root_fd)
    except BaseException as error:
        for fd in opened:
            os.close(fd)
        remove_channel(root_fd, temporary)
        if semaphore is not None:
            semaphore.close()
            remove_semaphore(info.sem)
        raise _explained(root, info, error) from error
    os.close(directory_fd)
    return Channel(root, info.directory_name, info, root_fd, keeper_fd, fifo_fds[0], fifo_fds[1], semaphore)


def _fill(directory_fd: int, info: Info) -> None:
    """Every regular file at its full size, so that a full file system is found here and not by a signal later."""
    contents = {
        "ctl": new_page(info.constant(time.time_ns()), Moving(clock=info.clock)),
        "err": b"\n",
        "info": info.format().encode(),
    }
    for name, mode, size in files_of(info):
        if name == "keeper":
            continue
        fd = _new_file(directory_fd, name, mode, size)
        try:
            if name in contents:
                os.pwrite(fd, contents[name], 0)
            if name == "err":
                os.ftruncate(fd, len(contents[name]))
        finally:
            os.close(fd)


def _new_file(directory_fd: int, name: str, mode: int, size: int) -> int:
    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode, dir_fd=directory_fd)
    try:
        os.fchmod(fd, mode)
        if size:
            os.posix_fallocate(fd, 0, size)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _explained(root: Path, info: Info, error: BaseException) -> BaseException:
    """The error as the user should read it."""
    if not isinstance(error, OSError) or isinstance(error, FileNotFoundError):
        return error
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return full_error(root, bytes_of(info))
    if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
        return RootError(f"the channel {root / info.directory_name} exists already; its generation must be a new one")
    return RootError(f"a channel cannot be made in {root}: {error.strerror}; see the mode and the mount options of that directory")


def drain(fd: int) -> int:
    """Empty a FIFO of bells; returns the bytes that were in it."""
    total = 0
    while True:
        try:
            part = os.read(fd, 4096)
        except BlockingIOError:
            return total
        total += len(part)
        if len(part) < 4096:
            return total
