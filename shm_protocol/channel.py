"""The agent's side of one channel: what it reads from the program's files and what it stores in its own.

Each method is one effect of the agent's machine.  The order of stores for one request is the machine's:

    set_current -> read_data -> keep? -> (servers) -> write_param ... -> write_error? -> write_result -> set_done -> reply

and a process may die between any two.  Refuses to know what a request means, and never waits.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import Code, RequestError
from . import kept, numbers
from . import page as ctl
from .files import DiskFiles, Files, open_directory
from .info import INFO_BYTES_MAX, Info, parse_info
from .places import Places
from .reading import Data, KeptFiles, Reader, parts_of
from .request import ACCEPTED, Reply, Request, format_reply, format_request, parse_request, seq_of
from .root import boot_id, is_kept
from .sums import Sums

TORN_READS_MAX = 16  # a program that keeps rewriting cmd has not rung yet
ERR_TEXT_MAX = ctl.PAGE_BYTES - 1

COPIED_BYTES = 1 << 20  # of a kept push at a time
LINE_GUESS_BYTES = 256  # nearly every line is shorter, and a page read twice costs more than the rest of a bell

_TAKEN = (Code.OK, Code.TIMEOUT)  # the push of such a request counts
_COUNTER = {name: number for number, (name, _about) in enumerate(ctl.COUNTER_NAMES)}
_CURRENT_AT = ctl.OFFSET["cur_seq"]
_WORDS_AT = ctl.OFFSET["clock"]
_CURRENT = struct.Struct("<QqQiI")  # cur_seq and, unchanged, the words up to the state: one store
_WORDS = struct.Struct("<qQiIQQII")  # clock to done_flags
_COUNTERS = struct.Struct(f"<{len(ctl.COUNTER_NAMES)}Q")


class AgentChannel:
    """One adopted channel.  `result` is what done_seq stands for."""

    def __init__(self, files: Files, info: Info, page: bytes, agent_id: int, clock_ns: Callable[[], int]) -> None:
        moving = ctl.read_moving(page)
        self.files = files
        self.info = info
        self.result = ctl.read_result(page, moving.done_seq)
        self.cur_seq = moving.cur_seq
        self.state = ctl.READY
        self.closed = False
        self._clock_ns = clock_ns
        self._agent_id = agent_id
        self._beat_ns = moving.agent_beat
        self._rep_word = moving.rep_word
        self._log = ctl.read_log(page)
        self._counters = list(ctl.read_counters(page).values())
        self._next = self.result
        self._pushed = self._pulled = 0  # bytes of the request under way
        self._rows_pushed = self._rows_pulled = 0
        self._param_looked_at = False
        self.reader = Reader(Places(info))
        self.sums = Sums(files, info)
        self._count("adoptions")
        self._store_counters()
        self._store_words(self.result)

    @property
    def done_seq(self) -> int:
        return self.result.seq

    # -- what the program wrote

    def drain_bell(self) -> bool:
        """Take the bell's bytes, which carry nothing.  False: nobody holds the other end, the channel is over."""
        self._count("bells")
        return self.files.drain()

    def read_cmd(self) -> bytes | None:
        """The request line without its newline; None while there is no whole line.  Raises `RequestError` PERM."""
        self.files.size("cmd")
        text = self._read_twice(LINE_GUESS_BYTES)
        if text is not None and b"\n" not in text and len(text) == LINE_GUESS_BYTES:
            text = self._read_twice(ctl.PAGE_BYTES)
        if text is None:
            return None
        line, newline, _rest = text.partition(b"\n")
        if not newline and (len(line) <= ctl.REQUEST_BYTES_MAX or b"\0" in line):
            self._count("empty_bells")
            return None
        return line

    def _read_twice(self, nbytes: int) -> bytes | None:
        """The start of `cmd` as two reads agree on it; None if it keeps changing, for then the bell is still to come."""
        before = self.files.read("cmd", nbytes)
        for _ in range(TORN_READS_MAX):
            again = self.files.read("cmd", nbytes)
            if again == before:
                return again
            self._count("torn_reads")
            before = again
        return None

    def read_data(self, request: Request, into: NDArray[np.uint8] | None = None) -> Data:
        """Read what a push brings and which rows are wanted, and check all of it.  Raises `RequestError`.

        `into` (aligned, `reader.stored_bytes`) takes the dense part, which comes out in the servers' kinds of numbers.
        """
        try:
            data = self.reader.read(request, self.files, into)
        except RequestError as error:
            if error.code is Code.NONFINITE:
                self._count("nonfinite")
            raise
        self._pushed = data.nbytes
        self._rows_pushed = sum(rows.size for rows in data.rows)
        self._rows_pulled = sum(rows.size for rows in data.wants)
        return data

    # -- pushes that are accepted before they are carried out

    def keep(self, slot: int, request: Request) -> None:
        """Copy the files that the request names into a free slot, the head last.  Raises `RequestError` SIZE, NOSPC, PERM, FORMAT."""
        self.info.check(request)
        places, name = self.reader.places, kept.SLOTS[slot]
        parts = parts_of(request, places)
        sizes = dict.fromkeys(kept.PARTS, 0)
        for part in parts:
            sizes[part.name.removesuffix(".txt")] = part.bytes_of(self.files.size(part.name), request)
        made = kept.Kept(format_request(request)[:-1], tuple(sizes.values()))
        self.files.size(name)
        self.files.write(name, 0, kept.FREE)
        offsets = dict(zip(kept.PARTS, made.offsets))
        try:
            for part in parts:
                bare = part.name.removesuffix(".txt")
                self._copy(part.name, sizes[bare], name, offsets[bare])
        except RequestError:
            with contextlib.suppress(RequestError):
                self.files.truncate(name, kept.HEAD_BYTES)  # half a copy must not keep a full file system full
            raise
        self.files.write(name, 0, made.pack())
        self._count("kept")

    def _copy(self, part: str, nbytes: int, slot: str, at: int) -> None:
        buffer = numbers.aligned(min(nbytes, COPIED_BYTES))
        for start in range(0, nbytes, COPIED_BYTES):
            some = buffer[: nbytes - start]
            if self.files.read_into(part, some, start) < len(some):
                raise RequestError(Code.SIZE, f"{part} shrank while it was read: leave it alone until the reply")
            self.files.write(slot, at + start, some)

    def read_kept(self, slot: int, request: Request, into: NDArray[np.uint8] | None = None) -> Data:
        """As `read_data`, out of the slot.  Raises `RequestError`."""
        found = self._kept(slot)
        if found is None:
            raise RequestError(Code.INTERNAL, f"{kept.SLOTS[slot]} holds no push")
        return self.reader.read(request, KeptFiles(self.files, kept.SLOTS[slot], found), into)

    def kept_pushes(self) -> tuple[tuple[int, bytes], ...]:
        """Slot and request line of each push that was kept and not dropped, in the order of their seq.  Raises `RequestError`."""
        found = [(slot, made.line) for slot in range(len(kept.SLOTS)) if (made := self._kept(slot)) is not None and _is_accepted(made.line)]
        return tuple(sorted(found, key=lambda item: seq_of(item[1]) or 0))

    def _kept(self, slot: int) -> kept.Kept | None:
        name = kept.SLOTS[slot]
        nbytes = self.files.size(name)
        return kept.read_kept(self.files.read(name, kept.HEAD_BYTES), nbytes)

    def drop(self, slot: int) -> None:
        """The slot is free again.  Raises `RequestError`."""
        self.files.size(kept.SLOTS[slot])
        self.files.write(kept.SLOTS[slot], 0, kept.FREE)

    # -- what the agent stores

    def set_current(self, seq: int) -> None:
        """The request has been taken up."""
        self._pushed = self._pulled = self._rows_pushed = self._rows_pulled = 0
        self._param_looked_at = False
        self.cur_seq, self.state = seq, ctl.BUSY
        done = self.result
        self.files.write("ctl", _CURRENT_AT, _CURRENT.pack(seq, done.clock, done.version, done.status, ctl.BUSY))

    def set_state(self, state: int) -> None:
        if state != self.state:
            self.state = state
            self.files.write("ctl", ctl.OFFSET["state"], ctl.HALF.pack(state))

    def write_param(self, offset: int, buffer: Any) -> None:
        """Store values in place.  Raises `RequestError` NOSPC or PERM."""
        if not self._param_looked_at:
            self.files.size("param")  # the program may have put another file there
            self._param_looked_at = True
        self.files.write("param", offset, buffer)
        self._pulled += memoryview(buffer).nbytes

    def write_text(self, buffer: Any | None, rows: Sequence[NDArray[Any]] = ()) -> None:
        """Store as text the dense values (laid out like `param`, None = they take no part), then rows.  Raises `RequestError` NOSPC or PERM."""
        dense = [] if buffer is None else [numbers.view(buffer, table) for table in self.info.dense]
        data = numbers.format_text([*dense, *rows])
        self._replace_text("param.txt", data)
        self._pulled += len(data)

    def write_data(self, data: bytes) -> int:
        """The answer of `next`: a line, or nothing.  Gives its bytes.  Raises `RequestError` NOSPC or PERM."""
        self._replace_text("data", data)
        self._count("pieces", bool(data))
        return len(data)

    def _replace_text(self, name: str, data: bytes) -> None:
        """In place, for a program may hold it open; and not longer than what is new."""
        self.files.size(name)
        self.files.write(name, 0, data)
        self.files.truncate(name, len(data))

    def write_result(
        self, seq: int, clock: int, version: int, status: int, weight: float = 0.0, pushes: int = 0, flags: int = 0,
        sums: Sequence[tuple[str, float]] = (), *, stop: bool = False,
    ) -> None:  # fmt: skip
        """What the coming `set_done(seq)` will stand for; until then the result before it stays whole."""
        self.sums.write(seq, sums)
        flags |= ctl.FLAG_STOP if stop else 0
        self._next = ctl.Result(seq, clock, version, status, flags, weight, pushes)
        self._rep_word = (self._rep_word + 1) & 0xFFFFFFFF
        self.state = ctl.READY
        self.files.write("ctl", ctl.result_offset(seq), self._next.pack())
        self._store_words(self._next)

    def _store_words(self, result: ctl.Result) -> None:
        """The words of a result where every reader looks for them."""
        words = _WORDS.pack(
            result.clock, result.version, result.status, self.state, self._beat_ns, self._agent_id, self._rep_word, result.flags
        )
        self.files.write("ctl", _WORDS_AT, words)

    def write_error(self, text: str) -> None:
        """The whole text into `err`, and a note in the page's log of distinct errors.  A full file system loses only text."""
        data = text.encode(errors="replace").replace(b"\n", b" ")[: ERR_TEXT_MAX - 1] + b"\n"
        try:
            self.files.size("err")
            self.files.write("err", 0, data)
            self.files.truncate("err", len(data))
        except RequestError as error:
            if error.code is not Code.NOSPC:
                raise
        self._note(text)

    def _note(self, text: str) -> None:
        now_ns = self._clock_ns()
        short = text.encode()[:ctl.LOG_TEXT_MAX].decode(errors="ignore")
        for number, (at, entry) in enumerate(self._log):
            if entry.text == short:
                entry = entry._replace(times=entry.times + 1, last_ns=now_ns)
                self._log[number] = (at, entry)
                self.files.write("ctl", at, ctl.pack_logged(entry))
                return
        entry = ctl.Logged(1, now_ns, now_ns, short)
        at, record = ctl.log_end(self._log), ctl.pack_logged(entry)
        if at + len(record) > ctl.LOG_END:
            return  # the log is full of other errors, and the first ones tell the most
        self._log.append((at, entry))
        self.files.write("ctl", at + 4, record[4:])
        self.files.write("ctl", at, record[:4])  # the length comes last: a reader finds whole records

    def set_done(self, seq: int) -> None:
        """The commit word: from here on the request is answered."""
        assert seq == self._next.seq, "write_result comes before set_done"
        self._count("requests")
        if self._next.status:
            self._count("errors")
        if self._pushed and self._next.status in _TAKEN:
            self._count("pushes")
            self._count("bytes_pushed", self._pushed)
            self._count("rows_pushed", self._rows_pushed)
        if self._pulled and not self._next.status:
            self._count("pulls")
            self._count("bytes_pulled", self._pulled)
            self._count("rows_pulled", self._rows_pulled)
        self._store_counters()
        self.result = self._next
        self.files.write("ctl", ctl.OFFSET["done_seq"], ctl.WORD.pack(seq))

    def reply(self, record: bytes) -> bool:
        """Ring the program with 64 bytes.  False: it does not read its replies, and the channel is ctl.BROKEN now."""
        if self.files.send(record):
            return True
        self.set_state(ctl.BROKEN)
        return False

    def repeat(self) -> bytes:
        """The record for done_seq once more, from the page alone."""
        self._count("repeats")
        result = self.result
        code = Code(result.status)
        stop = bool(result.flags & ctl.FLAG_STOP)
        return format_reply(Reply(code is Code.OK, result.seq, result.clock, result.version, code=code, stop=stop))

    def beat(self, now_ns: int) -> None:
        """Show that the agent lives (CLOCK_MONOTONIC).  Raises `RequestError` PERM if somebody replaced a bell."""
        self._beat_ns = now_ns
        self._store_counters()
        self.files.write("ctl", ctl.OFFSET["agent_beat"], ctl.WORD.pack(now_ns))
        self.files.check_bells()

    def close(self, state: int = ctl.CLOSED) -> None:
        """Note the state and let go of the files.  May be repeated."""
        if self.closed:
            return
        self.closed = True
        try:
            self._store_counters()
            self.set_state(state)
            self.files.wake()
        finally:
            self.files.close()

    def abandon(self) -> None:
        """Let go of the files and store nothing, as a process does that is killed."""
        self.closed = True
        self.files.close()

    def counters(self) -> dict[str, int]:
        return dict(zip(_COUNTER, self._counters))

    def count(self, name: str) -> None:
        """Count what only the machine sees (`refused_sequences`, `repeats`)."""
        self._count(name)

    def _count(self, name: str, by: int = 1) -> None:
        self._counters[_COUNTER[name]] += by

    def _store_counters(self) -> None:
        self.files.write("ctl", ctl.OFFSET["counters"], _COUNTERS.pack(*self._counters))


def _is_accepted(line: bytes) -> bool:
    """May a kept push have this line?  What somebody else has written into a slot is none."""
    try:
        return parse_request(line).verb in ACCEPTED
    except RequestError:
        return False


def adopt(root_fd: int, name: str, agent_id: int, clock_ns: Callable[[], int] = time.time_ns) -> AgentChannel:
    """Take over the channel `name` of a root: a new one and one that a dead agent left, by the same way.

    Raises `RequestError`: PERM (owner, type, mode, nobody keeps it), VERSION, FORMAT.
    """
    if not is_kept(root_fd, name):
        raise RequestError(Code.PERM, f"the channel {name} is kept by nobody: its launcher is gone")
    files = DiskFiles(open_directory(root_fd, name))
    try:
        info, page = _read_start(files, name)
        if info.bell == "sem":
            files.use_semaphore(info.sem)
        return AgentChannel(files, info, page, agent_id, clock_ns)
    except BaseException:
        files.close()
        raise


def _read_start(files: DiskFiles, name: str) -> tuple[Info, bytes]:
    size = files.size("info")
    if size > INFO_BYTES_MAX:
        raise RequestError(Code.FORMAT, f"info has {size} bytes, {INFO_BYTES_MAX} is the most")
    info = parse_info(files.read("info", size).decode("ascii", errors="replace"))
    files.size("ctl")
    page = files.read("ctl", ctl.PAGE_BYTES)
    constant = ctl.read_constant(page)
    if info.boot_id != boot_id():
        raise RequestError(Code.GONE, f"the channel {name} is of another boot of this host")
    if constant._replace(created_ns=0) != info.constant(0) or info.directory_name != name:
        raise RequestError(Code.VERSION, f"ctl, info and the name of the channel {name} do not belong together")
    return info, page


def agent_number() -> int:
    """A random number for `agent_id`."""
    return int.from_bytes(os.urandom(8), "little") >> 1
