"""The files of a channel as the program touches them: bells, request, page, data.  Knows no arrays and no clocks.

The order of system calls is the protocol: data, then `cmd`, then the bell, then the wait.
"""

from __future__ import annotations

import errno
import mmap
import os
import select
import struct
import time
from typing import Any, NamedTuple

from .errors import ChannelError, Code
from .semaphore import Semaphore

PROTOCOL_VERSION = 1
MAGIC = b"PLUGMLC1"
ABI_MAJOR = 1
ENDIAN_TAG = 0x01020304
PAGE_BYTES = 4096
RECORD_BYTES = 64
PIECE_BYTES_MAX = 1 << 20
DONE_SEQ_AT = 0x80
STATE_AT = 0xA4
STATES_OVER = (4, 5)  # CLOSED, BROKEN: nothing is answered any more
INFO_BYTES_MAX = 1 << 18

#: A request that was answered AGAIN is repeated so often, with pauses that grow.
AGAIN_TRIES = 60
_AGAIN_S, _AGAIN_S_MAX = 0.01, 1.0
_FLAGS = {
    "req": os.O_RDWR, "rep": os.O_RDONLY, "cmd": os.O_WRONLY, "grad": os.O_RDWR, "param": os.O_RDONLY, "gidx": os.O_RDWR,
    "want": os.O_RDWR, "reply": os.O_RDONLY,
}  # fmt: skip
_GONE_TEXT = "agent and launcher have gone away"


class Reply(NamedTuple):
    """One record of `rep`."""

    ok: bool
    seq: int
    clock: int
    code: Code
    done: int
    version: int
    lag: int | None
    stop: bool


class Piece(NamedTuple):
    """A piece of input: what the job's list says of it (a file's name), its number, and the pass that it belongs to."""

    text: str
    number: int
    turn: int

    @classmethod
    def parse(cls, line: str) -> Piece:
        """What `data` holds.

        >>> Piece.parse("0 12 part-12.txt\\n")
        Piece(text='part-12.txt', number=12, turn=0)
        """
        turn, number, text = line.rstrip("\n").split(" ", 2)
        return cls(text, int(number), int(turn))


class ChannelFiles:
    """Open files of the directory `path`, opened again by path when somebody closed them behind our back."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.semaphore: Semaphore | None = None  # what wakes us in place of `rep` (bell=sem)
        self._held: dict[str, tuple[int, int, int]] = {}  # name -> descriptor, device, inode

    def fd(self, name: str) -> int:
        """A descriptor of the file.  Its number may belong to another file by now: device and inode tell."""
        held = self._held.get(name)
        if held:
            try:
                found = os.fstat(held[0])
                if (found.st_dev, found.st_ino) == held[1:]:
                    return held[0]
            except OSError:  # closed, for instance by a program that becomes a daemon
                pass
        return self._open(name)

    def _open(self, name: str) -> int:
        flags = _FLAGS[name] | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            # Without O_NONBLOCK the open of a FIFO would wait for a launcher that may be dead.
            fd = os.open(f"{self.path}/{name}", flags | os.O_NONBLOCK)
        except OSError as error:
            raise self._why(name, error) from None
        if name == "rep":
            os.set_blocking(fd, True)
        found = os.fstat(fd)
        self._held[name] = (fd, found.st_dev, found.st_ino)
        return fd

    def _why(self, name: str, error: OSError) -> ChannelError:
        if error.errno == errno.ENOENT and not os.path.isdir(self.path):
            return ChannelError(Code.GONE, f"the channel {self.path} does not exist (any more)")
        if error.errno == errno.ENOSPC:
            return ChannelError(Code.NOSPC, f"{self.path}/{name} cannot be written")
        return ChannelError(Code.PERM, f"{self.path}/{name}: {error.strerror}")

    def text(self, name: str, nbytes: int) -> str:
        """The start of a small file that is read once in a while.  What is no UTF-8 comes back the same by `os.fsencode`."""
        try:
            fd = os.open(f"{self.path}/{name}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            raise self._why(name, error) from None
        try:
            return os.pread(fd, nbytes, 0).decode(errors="surrogateescape")
        finally:
            os.close(fd)

    def check_page(self) -> None:
        """Raises `ChannelError` VERSION unless `ctl` is a page that we can read."""
        page = self._page()
        if len(page) < PAGE_BYTES or not page.startswith(MAGIC):
            raise ChannelError(Code.VERSION, f"{self.path}/ctl is no page of a channel")
        major, _minor, endian = struct.unpack_from("=HHI", page, 8)
        if endian != ENDIAN_TAG:
            raise ChannelError(Code.VERSION, "the channel was written with another byte order than this program's")
        if major != ABI_MAJOR:
            raise ChannelError(Code.VERSION, f"the channel has layout {major}, this client knows {ABI_MAJOR}")

    def done_seq(self) -> int:
        """The request that was answered last, from the page."""
        page = self._page()
        return int.from_bytes(page[DONE_SEQ_AT : DONE_SEQ_AT + 8], "little")

    def _is_over(self) -> bool:
        """Nobody is left who answers: no writer holds `rep`, or the agent has closed the channel."""
        poll = select.poll()
        poll.register(self.fd("rep"), 0)
        state = int.from_bytes(self._page()[STATE_AT : STATE_AT + 4], "little")
        return any(events & select.POLLHUP for _fd, events in poll.poll(0)) or state in STATES_OVER

    def _page(self) -> bytes:
        try:
            fd = os.open(f"{self.path}/ctl", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise self._why("ctl", error) from None
        try:
            return os.pread(fd, PAGE_BYTES, 0)
        finally:
            os.close(fd)

    def map(self, name: str, nbytes: int) -> mmap.mmap:
        """The whole file as memory: `param` to read, the others to write."""
        fd = self.fd(name)
        size = os.fstat(fd).st_size
        if size < nbytes:
            raise ChannelError(Code.SIZE, f"{self.path}/{name} has {size} bytes, {nbytes} are declared")
        access = mmap.PROT_READ | (mmap.PROT_WRITE if name != "param" else 0)
        return mmap.mmap(fd, nbytes, mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0), access)

    def write(self, name: str, data: Any) -> None:
        """All bytes, from the start of the file, not truncated."""
        view, done = memoryview(data).cast("B"), 0
        fd = self.fd(name)
        try:
            while done < len(view):
                done += os.pwrite(fd, view[done:], done)
        except OSError as error:
            raise self._why(name, error) from None

    def rewrite(self, name: str, data: bytes) -> None:
        """The file holds these bytes and nothing behind them."""
        try:
            with open(os.open(f"{self.path}/{name}", os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW), "wb") as file:
                file.write(data)
        except OSError as error:
            raise self._why(name, error) from None

    def read_into(self, name: str, buffer: Any) -> None:
        """Fill the buffer from the start of the file."""
        view, done = memoryview(buffer).cast("B"), 0
        fd = self.fd(name)
        while done < len(view):
            part = os.preadv(fd, [view[done:]], done)
            if part == 0:
                raise ChannelError(Code.SIZE, f"{self.path}/{name} has {done} bytes, {len(view)} are declared")
            done += part

    def ask(self, line: bytes) -> None:
        """Commit the request and ring.  The bytes behind its newline, from a longer line before, are ignored."""
        self.write("cmd", line)
        try:
            os.write(self.fd("req"), b"\n")
        except BlockingIOError:
            pass  # a bell that is full of rings will be heard

    def wait(self, seq: int) -> Reply:
        """Sleep until the reply to `seq` comes; repeats of earlier replies are thrown away."""
        while True:
            record = self._record() if self.semaphore is None else self._posted(self.semaphore, seq)
            if _answers(record, seq) and (reply := parse_reply(record)) is not None:
                return reply

    def _posted(self, semaphore: Semaphore, seq: int) -> bytes:
        """What lies in `reply` once it was posted.  Posts for earlier replies leave another seq there."""
        while True:
            if not semaphore.wait() and not self._is_over():
                continue
            record = self._settled_reply()
            if not _answers(record, seq) and self._is_over():
                record = self._settled_reply()  # it may have come between the two looks
                if not _answers(record, seq):
                    raise ChannelError(Code.GONE, _GONE_TEXT)
            if _answers(record, seq):
                return record

    def _settled_reply(self) -> bytes:
        first, second = bytearray(RECORD_BYTES), bytearray(RECORD_BYTES)
        while True:
            self.read_into("reply", first)
            self.read_into("reply", second)
            if first == second:
                return bytes(first)

    def _record(self) -> bytes:
        record = b""
        while len(record) < RECORD_BYTES:
            part = os.read(self.fd("rep"), RECORD_BYTES - len(record))
            if not part:
                raise ChannelError(Code.GONE, _GONE_TEXT)
            record += part
        return record

    def discard_replies(self) -> None:
        """Throw away what an earlier user of the channel has left unread."""
        fd = self.fd("rep")
        os.set_blocking(fd, False)
        try:
            while os.read(fd, 64 * RECORD_BYTES):
                pass
        except BlockingIOError:
            pass
        finally:
            os.set_blocking(fd, True)
        if self.semaphore is not None:
            self.semaphore.drain()

    def close(self) -> None:
        """Let go of what is still ours."""
        if self.semaphore is not None:
            self.semaphore.close()
            self.semaphore = None
        for fd, device, inode in self._held.values():
            try:
                found = os.fstat(fd)
            except OSError:
                continue
            if (found.st_dev, found.st_ino) == (device, inode):
                os.close(fd)
        self._held.clear()


def parse_reply(record: bytes) -> Reply | None:
    """A record as values; None for one that cannot be read.  Unknown keys are passed over."""
    words = record.decode("ascii", errors="replace").split()
    if len(words) < 3 or words[0] not in ("ok", "err"):
        return None
    values = dict(word.partition("=")[::2] for word in words[3:])
    try:
        return Reply(
            words[0] == "ok", int(words[1]), int(words[2]), Code[values.get("code", "OK")], int(values.get("done", 0)),
            int(values.get("v", 0)), int(values["lag"]) if "lag" in values else None, values.get("stop") == "1",
        )  # fmt: skip
    except (ValueError, KeyError):
        return None


def _answers(record: bytes, seq: int) -> bool:
    reply = parse_reply(record)
    return reply is not None and (reply.seq == seq or reply.code is Code.GONE)


def pause(seconds: float) -> float:
    """Wait before the same line is rung again after AGAIN; returns the next, longer pause."""
    seconds = seconds or _AGAIN_S
    time.sleep(seconds)
    return min(2 * seconds, _AGAIN_S_MAX)
