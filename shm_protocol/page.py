"""The `ctl` page: where each word of it lies, what it means, how it is written and checked.

One table, `FIELDS`, is the source: the C header (`generate.py`), the golden images and this module's own reading and
writing come from it.  Knows bytes only, no files.

    0x000 .. 0x07f   constant for the life of the channel, guarded by a checksum
    0x080 .. 0x0bf   the words that move; done_seq is the commit word and is written last
    0x100 .. 0x1ff   counters
    0x200 .. 0xf7f   distinct errors, oldest first
    0xf80 .. 0xfff   two results, used in turns: the one of done_seq stays whole while the next one is written
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

from ..core.errors import Code, RequestError

MAGIC = b"PLUGMLC1"
ABI_MAJOR = 1
ABI_MINOR = 0
ENDIAN_TAG = 0x01020304
PAGE_BYTES = 4096
CONSTANT_BYTES = 0x80
COUNTERS = 32
RECORD_BYTES = 64
REQUEST_BYTES_MAX = 4095
LOG_START = 0x200
LOG_END = 0xF80
LOG_HEAD_BYTES = 24
LOG_TEXT_MAX = 232  # so that at least a dozen different errors find room

READY, BUSY, PARKED, CLOSED, BROKEN = 1, 2, 3, 4, 5
STATES: tuple[tuple[int, str, str], ...] = (
    (READY, "READY", "the agent waits for the bell"),
    (BUSY, "BUSY", "the agent works on cur_seq"),
    (PARKED, "PARKED", "the agent waits for other workers or for a server on behalf of cur_seq"),
    (CLOSED, "CLOSED", "the channel has ended in order; no request is answered any more"),
    (BROKEN, "BROKEN", "the agent has given the channel up; `err` says why"),
)

#: Bits of done_flags.
FLAG_STOP = 1
#: The agent's own, for whoever adopts the channel: this refusal told the failure of pushes that were accepted before;
#: the weights are those of the clock before `clock`, whose end was accepted and is under way; and a piece of input was
#: handed out that could not be written into `data`.
FLAG_TOLD, FLAG_OWED, FLAG_PIECE = 2, 4, 8

COUNTER_NAMES: tuple[tuple[str, str], ...] = (
    ("requests", "requests answered for good (done_seq moved), refused ones among them"),
    ("pushes", "pushes taken and acknowledged"),
    ("pulls", "times that param was filled and handed over"),
    ("errors", "requests answered with err"),
    ("repeats", "replies given again"),
    ("bells", "times that the agent was woken by the bell"),
    ("empty_bells", "bells with no new request"),
    ("torn_reads", "reads of cmd that had to be done again because it was being written"),
    ("bytes_pushed", "bytes of pushes taken"),
    ("bytes_pulled", "bytes written to param"),
    ("adoptions", "times that an agent adopted the channel, the first one included"),
    ("refused_sequences", "lines refused with SEQ"),
    ("nonfinite", "pushes refused with NONFINITE"),
    ("kept", "pushes accepted before they were carried out (async=1, t=)"),
    ("pieces", "pieces of input handed out by next"),
    ("rows_pushed", "rows of sparse tables in pushes taken"),
    ("rows_pulled", "rows of sparse tables handed over"),
)


class Field(NamedTuple):
    """A word of the page: `code` is its letter in `struct`, `length` the number of elements (1 = a scalar)."""

    offset: int
    code: str
    length: int
    name: str
    about: str


FIELDS: tuple[Field, ...] = (
    Field(0x000, "c", 8, "magic", 'the letters "PLUGMLC1"'),
    Field(0x008, "H", 1, "abi_major", "1; refuse another one"),
    Field(0x00A, "H", 1, "abi_minor", "accept a greater one"),
    Field(0x00C, "I", 1, "endian", "0x01020304 as the writer stores it"),
    Field(0x010, "I", 1, "page_len", "4096"),
    Field(0x014, "I", 1, "crc32", "CRC-32 (zlib) of bytes 0x000-0x07f with this field zero"),
    Field(0x018, "Q", 1, "gen", "generation of this worker: its incarnation, from 1"),
    Field(0x020, "Q", 1, "n", "elements of all dense tables together"),
    Field(0x028, "Q", 1, "cap_grad", "bytes of grad"),
    Field(0x030, "Q", 1, "cap_param", "bytes of param"),
    Field(0x038, "Q", 1, "cap_idx", "bytes of gidx and of want; 0 = no table has row numbers"),
    Field(0x040, "B", 1, "dtype", "1 f32, 2 f64, 3 i64; 0 = tables differ, see info"),
    Field(0x041, "B", 1, "index_bytes", "bytes of a row number, of the widest if tables differ; 0 = no table has any"),
    Field(0x042, "H", 1, "flags", "0"),
    Field(0x044, "I", 1, "worker", "number of the worker in its job, from 0"),
    Field(0x048, "Q", 1, "created", "unix time of creation, nanoseconds"),
    Field(0x050, "B", 16, "boot_id", "the host's boot id"),
    Field(0x080, "Q", 1, "done_seq", "seq of the last answered request; the commit word, written last"),
    Field(0x088, "Q", 1, "cur_seq", "seq that the agent took up last; above done_seq = under way"),
    Field(0x090, "q", 1, "clock", "clocks that the worker has finished after done_seq"),
    Field(0x098, "Q", 1, "version", "version of the parameters in param"),
    Field(0x0A0, "i", 1, "status", "outcome of done_seq: 0 ok, else a code"),
    Field(0x0A4, "I", 1, "state", "1 READY, 2 BUSY, 3 PARKED, 4 CLOSED, 5 BROKEN"),
    Field(0x0A8, "Q", 1, "agent_beat", "CLOCK_MONOTONIC nanoseconds, renewed by a live agent each 500 ms"),
    Field(0x0B0, "Q", 1, "agent_id", "random number of the agent process"),
    Field(0x0B8, "I", 1, "rep_word", "one more per reply"),
    Field(0x0BC, "I", 1, "done_flags", "of done_seq: bit 0 = stop=1"),
    Field(0x100, "Q", COUNTERS, "counters", "names and order below; not used ones are 0"),
    Field(0xF80, "Q", 8, "result_even", "what an even done_seq stands for: seq, clock, version, status and flags, weight, pushes"),
    Field(0xFC0, "Q", 8, "result_odd", "the same for an odd one"),
)
OFFSET: dict[str, int] = {field.name: field.offset for field in FIELDS}

_CONSTANT = struct.Struct("<8sHHIIIQQQQQBBHIQ16s32x")
_MOVING = struct.Struct("<QQqQiIQQII")
_RESULT = struct.Struct("<QqQiIdQ16x")
WORD = struct.Struct("<Q")
HALF = struct.Struct("<I")
_LOG_HEAD = struct.Struct("<IIQQ")

assert _CONSTANT.size == CONSTANT_BYTES and _MOVING.size == 0x40 and _RESULT.size == 64


class Constant(NamedTuple):
    """The part of the page that never changes."""

    gen: int
    n: int
    cap_grad: int
    cap_param: int
    cap_idx: int
    dtype: int
    index_bytes: int
    worker: int
    created_ns: int
    boot_id: bytes
    flags: int = 0

    def pack(self) -> bytes:
        """The 128 bytes at the start of the page, checksum in place."""

        def with_crc(crc: int) -> bytes:
            return _CONSTANT.pack(
                MAGIC, ABI_MAJOR, ABI_MINOR, ENDIAN_TAG, PAGE_BYTES, crc, self.gen, self.n, self.cap_grad, self.cap_param,
                self.cap_idx, self.dtype, self.index_bytes, self.flags, self.worker, self.created_ns, self.boot_id,
            )  # fmt: skip

        return with_crc(zlib.crc32(with_crc(0)))


class Moving(NamedTuple):
    """The words that the agent moves."""

    done_seq: int = 0
    cur_seq: int = 0
    clock: int = 0
    version: int = 0
    status: int = 0
    state: int = READY
    agent_beat: int = 0
    agent_id: int = 0
    rep_word: int = 0
    done_flags: int = 0

    def pack(self) -> bytes:
        return _MOVING.pack(*self)


class Result(NamedTuple):
    """What one done_seq stands for: enough to give its reply again and to go on with the clock.

    `clock` counts the clocks that the worker has finished, `weight` sums the weights of its pushes in the clock under
    way, `pushes` counts those of the generation.
    """

    seq: int = 0
    clock: int = 0
    version: int = 0
    status: int = 0
    flags: int = 0
    weight: float = 0.0
    pushes: int = 0

    def pack(self) -> bytes:
        """64 bytes, to be stored at `result_offset(seq)`."""
        return _RESULT.pack(*self)


class Logged(NamedTuple):
    """One distinct error: how often, when first and last (unix nanoseconds)."""

    times: int
    first_ns: int
    last_ns: int
    text: str


def new_page(constant: Constant, moving: Moving = Moving()) -> bytes:
    """A whole page as the launcher creates it; `moving.clock` counts what earlier generations have finished."""
    page = bytearray(PAGE_BYTES)
    page[:CONSTANT_BYTES] = constant.pack()
    page[CONSTANT_BYTES : CONSTANT_BYTES + _MOVING.size] = moving.pack()
    at = result_offset(moving.done_seq)
    page[at : at + _RESULT.size] = Result(moving.done_seq, moving.clock).pack()
    return bytes(page)


def read_constant(page: bytes) -> Constant:
    """Check and read the constant part; raises `RequestError` VERSION for what is no page of this protocol."""
    if len(page) < PAGE_BYTES:
        raise RequestError(Code.VERSION, f"ctl has {len(page)} bytes, {PAGE_BYTES} are needed")
    magic, major, _minor, endian, length, crc, *rest = _CONSTANT.unpack_from(page)
    if magic != MAGIC:
        raise RequestError(Code.VERSION, f"ctl begins with {magic!r}, not {MAGIC!r}: this is no channel of plugml")
    if major != ABI_MAJOR:
        raise RequestError(Code.VERSION, f"ctl has layout {major}, this program knows {ABI_MAJOR}: install the client of the same plugml")
    if endian != ENDIAN_TAG or length != PAGE_BYTES:
        raise RequestError(Code.VERSION, f"ctl was written with another byte order or length (tag {endian:#010x}, {length} bytes)")
    zeroed = page[:0x14] + bytes(4) + page[0x18:CONSTANT_BYTES]
    if zlib.crc32(zeroed) != crc:
        raise RequestError(Code.VERSION, "ctl is damaged: its checksum does not fit")
    gen, n, cap_grad, cap_param, cap_idx, dtype, index_bytes, flags, worker, created_ns, boot_id = rest
    return Constant(gen, n, cap_grad, cap_param, cap_idx, dtype, index_bytes, worker, created_ns, boot_id, flags)


def read_moving(page: bytes) -> Moving:
    """The moving words of a page (or of its first 192 bytes)."""
    return Moving(*_MOVING.unpack_from(page, CONSTANT_BYTES))


def result_offset(seq: int) -> int:
    """Where the result of `seq` lies: even and odd ones take turns."""
    return OFFSET["result_odd"] if seq & 1 else OFFSET["result_even"]


def read_result(page: bytes, done_seq: int) -> Result:
    """The result of `done_seq`.  Raises `RequestError` INTERNAL if the page holds another one (a bug)."""
    found = Result(*_RESULT.unpack_from(page, result_offset(done_seq)))
    if found.seq != done_seq:
        raise RequestError(Code.INTERNAL, f"ctl holds the result of request {found.seq} where {done_seq} was expected")
    return found


def read_counters(page: bytes) -> dict[str, int]:
    """The counters by name."""
    values = struct.unpack_from(f"<{COUNTERS}Q", page, OFFSET["counters"])
    return {name: value for (name, _about), value in zip(COUNTER_NAMES, values)}


def pack_logged(entry: Logged) -> bytes:
    """One record of the error log, a multiple of 8 bytes long; its first word is its length."""
    text = entry.text.encode()[:LOG_TEXT_MAX]
    length = -(-(LOG_HEAD_BYTES + len(text)) // 8) * 8
    head = _LOG_HEAD.pack(length, entry.times, entry.first_ns, entry.last_ns)
    return head + text.ljust(length - LOG_HEAD_BYTES, b"\0")


def read_log(page: bytes) -> list[tuple[int, Logged]]:
    """The error log as (offset, record) pairs; a damaged rest is left out."""
    found = []
    at = LOG_START
    while at + LOG_HEAD_BYTES <= LOG_END:
        length, count, first_ns, last_ns = _LOG_HEAD.unpack_from(page, at)
        if length < LOG_HEAD_BYTES or length % 8 or at + length > LOG_END:
            break
        text = page[at + LOG_HEAD_BYTES : at + length].rstrip(b"\0").decode(errors="replace")
        found.append((at, Logged(count, first_ns, last_ns, text)))
        at += length
    return found


def log_end(entries: list[tuple[int, Logged]]) -> int:
    """Offset where the next record of the error log goes."""
    if not entries:
        return LOG_START
    at, last = entries[-1]
    return at + len(pack_logged(last))
