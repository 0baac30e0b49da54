"""Messages to frames and back.  Refuses whatever is not exactly a message; allocates nothing before it has checked.

One head frame, then a frame per segment that travels by value.  Small messages to one node may follow each other in
one multipart, head and payload behind head and payload.  A log entry (Replicate) carries another message whole: behind
its own head come the frames of that one, passed on as they were received.

    head     0  "PLGM"                    28  token      u64   map version
             4  version u8 = 1            36  request    u64
             5  type    u8                44  a          u64   ) meaning by type,
             6  flags   u16 = 0           52  b          u64   ) see SHAPES
             8  job     u32               60  components u16   number of 40-byte records that follow
            12  range   u32               62  segments   u16   number of 24-byte records that follow
            16  epoch   u32               64  body       u32   bytes of msgpack that follow
            20  worker  u32               68  crc32      u32   of the whole head frame, this field zero
            24  gen     u32               72  components | segments | body
    component  worker u32, gen u32, seq u64, prev u64, clock i64, weight f64
    segment    table u16, dtype u8, kind u8, carry u8, 3 zero bytes, block u64, elements u64

Numbers are little-endian.  msgpack holds plain values only (no ext types), at most `control_bytes_max`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, NoReturn, get_type_hints
from zlib import crc32

import msgpack

from ..core.errors import Code, PeerError
from ..core.limits import Limits
from ..core.table import DTYPE_NAMES, STORAGES
from . import messages as m
from .fields import Check, check_of

MAGIC = b"PLGM"
VERSION = 1
NO_RANGE = 0xFFFFFFFF

_HEAD = struct.Struct("<4sBBHIIIIIQQQQHHII")
_COMPONENT = struct.Struct("<IIQQqd")
_SEGMENT = struct.Struct("<HBBB3xQQ")
_CRC = struct.Struct("<I")
_CRC_AT = _HEAD.size - _CRC.size
_NO_CRC = bytes(_CRC.size)
#: Kinds of number that only travel: row numbers, and bytes of keys.
U64, U8 = 16, 17
ITEMSIZE = {**{code: STORAGES[name].itemsize for code, name in DTYPE_NAMES.items()}, U64: 8, U8: 1}
_KINDS = (m.BLOCK, m.ROWS, m.IDS, m.KEYS, m.RAW)
_CARRIES = (m.BY_VALUE, m.ABSENT, m.BY_REFERENCE)
_CODES = frozenset(Code)
_VERSION_AT = 7  # of the head's nine numbers, word `a`: the position of a Replicate's entry, 0 = it has none
_PLAIN = ("job", "range", "epoch", "worker", "gen", "token", "request")
_LIMITS = Limits()
_HEAD_MAX = (
    _HEAD.size + _LIMITS.components_max * _COMPONENT.size + _LIMITS.segments_max * _SEGMENT.size + _LIMITS.control_bytes_max
)


class Shape(NamedTuple):
    """How one message type lies in frames: which field is word `a` of the head, which `b`; the rest is its body.

    `put` picks the head's nine numbers and `rest` the body from (*message, 0, NO_RANGE); `take` picks the message's
    fields from (the nine numbers, components, segments, payload, *body).
    """

    number: int
    cls: type[Any]
    put: Callable[[tuple[Any, ...]], tuple[Any, ...]]
    rest: Callable[[tuple[Any, ...]], list[Any]] | None
    take: Callable[[tuple[Any, ...]], tuple[Any, ...]]
    components_at: int  # position in the message, -1 = has none
    segments_at: int
    payload_at: int  # -1 = no payload frames; else they are required
    code_at: int  # position of a field `code` among the head's nine numbers
    entry_at: int  # position of a message that follows behind this one's head, -1 = has none
    body: tuple[tuple[str, Check], ...]


def _shape(number: int, cls: type[Any], a: str = "", b: str = "") -> Shape:
    names: tuple[str, ...] = cls._fields
    hints = get_type_hints(cls)
    words = (*_PLAIN, a, b)
    records = ("components", "segments", "payload", "entry")
    body = tuple(name for name in names if name not in words and name not in records)

    absent = {name: len(names) for name in words} | {"range": len(names) + 1}
    put = itemgetter(*(names.index(name) if name in names else absent[name] for name in words))
    rest = _picker(tuple(names.index(name) for name in body)) if body else None
    pool = (*words, *records, *body)
    take = _picker(tuple(pool.index(name) for name in names))
    at = [names.index(name) if name in names else -1 for name in records]
    code_at = words.index("code") if "code" in words else -1
    checks = tuple((name, check_of(cls.__name__, name, hints[name])) for name in body)
    return Shape(number, cls, put, rest, take, at[0], at[1], at[2], code_at, at[3], checks)


def _picker(positions: tuple[int, ...]) -> Callable[[tuple[Any, ...]], Any]:
    """An itemgetter that gives a tuple for one position too."""
    if len(positions) == 1:
        position = positions[0]
        return lambda values: (values[position],)
    return itemgetter(*positions)


#: The numbers are the protocol: never reuse one.
SHAPES: tuple[Shape, ...] = (
    _shape(1, m.Push, a="base"),
    _shape(2, m.PushAck, a="seq", b="behind"),
    _shape(3, m.LastAsk),
    _shape(4, m.LastTold, a="seq"),
    _shape(5, m.Init, a="claim"),
    _shape(6, m.InitAck, a="claim"),
    _shape(7, m.Pull, a="after", b="closed"),
    _shape(8, m.Values, a="version", b="closed"),
    _shape(9, m.Nack),
    _shape(10, m.Refuse, a="seq", b="code"),
    _shape(11, m.Partial),
    _shape(12, m.PullAt, a="at"),
    _shape(13, m.Scan, a="at", b="cursor"),
    _shape(14, m.Scanned, a="version", b="next"),
    _shape(15, m.Replicate, a="version", b="commit"),
    _shape(16, m.Held, a="last"),
    _shape(17, m.Sync, a="last", b="commit"),
    _shape(18, m.CopyAsk, a="version", b="cursor"),
    _shape(19, m.CopyTold, a="version", b="cursor"),
    _shape(20, m.Join),
    _shape(21, m.Tick, a="clock", b="seq"),
    _shape(22, m.Leave, a="clock"),
    _shape(23, m.StandingAsk),
    _shape(24, m.Standing, a="finished", b="slowest"),
    _shape(25, m.ClaimAsk),
    _shape(26, m.ClaimTold, a="claim"),
    _shape(27, m.InitDone, a="claim"),
    _shape(28, m.Close, a="clock"),
    _shape(29, m.CloseAck, a="closed"),
    _shape(30, m.Roster, a="number"),
    _shape(31, m.RosterAck, a="number"),
    _shape(32, m.StopAsk),
    _shape(33, m.NextAsk),
    _shape(34, m.NextTold, a="piece", b="turn"),
    _shape(35, m.Twins),
    _shape(36, m.SaveAsk, a="after"),
    _shape(37, m.WriteAsk, a="number", b="kept"),
    _shape(38, m.Wrote, a="number", b="nbytes"),
    _shape(40, m.Register),
    _shape(41, m.Registered),
    _shape(42, m.Beat),
    _shape(43, m.BeatAck),
    _shape(44, m.JobAsk, a="after"),
    _shape(45, m.JobTold, a="code"),
    _shape(46, m.AttachAsk, a="after"),
    _shape(47, m.AttachTold, a="code"),
    _shape(48, m.MapAsk),
    _shape(49, m.MapTold),
    _shape(50, m.JobEnd),
    _shape(51, m.NodeExit),
    _shape(52, m.Done, a="code"),
    _shape(53, m.Admin),
    _shape(54, m.AdminTold, a="code"),
    _shape(55, m.SeatAsk),
    _shape(56, m.NotLeader),
    _shape(57, m.SaveEnd, a="number", b="clock"),
    _shape(58, m.Retire),
    _shape(59, m.MoreAsk, a="workers"),
    _shape(60, m.MoreTold, a="code", b="first"),
)
_BY_CLASS = {shape.cls: shape for shape in SHAPES}
_BY_TYPE = {shape.number: shape for shape in SHAPES}
#: The first eight bytes of each type: magic, version, type, flags 0.
_OPENING = {number: struct.pack("<4sBBH", MAGIC, VERSION, number, 0) for number in _BY_TYPE}


def encode(message: m.Message) -> list[m.Buffer]:
    """Frames of a message; payload frames are passed on by reference.  What does not fit into a frame is a bug.

    >>> decode(encode(m.PushAck(1, 2, 3, 4, 5, 6, 7)))
    PushAck(job=1, range=2, epoch=3, token=4, worker=5, gen=6, seq=7, behind=0)
    """
    shape = _BY_CLASS[type(message)]
    fields: tuple[Any, ...] = message
    components = fields[shape.components_at] if shape.components_at >= 0 else ()
    segments = fields[shape.segments_at] if shape.segments_at >= 0 else ()
    pool = (*fields, 0, NO_RANGE)
    body = msgpack.packb(shape.rest(pool)) if shape.rest else b""
    body_at = _HEAD.size + len(components) * _COMPONENT.size + len(segments) * _SEGMENT.size
    head = bytearray(body_at + len(body))
    try:
        _HEAD.pack_into(head, 0, MAGIC, VERSION, shape.number, 0, *shape.put(pool), len(components), len(segments), len(body), 0)
        at = _HEAD.size
        for component in components:
            _COMPONENT.pack_into(head, at, *component)
            at += _COMPONENT.size
        for table, block, elements, dtype, kind, carry in segments:
            _SEGMENT.pack_into(head, at, table, dtype, kind, carry, block, elements)
            at += _SEGMENT.size
    except struct.error as error:
        raise AssertionError(f"{shape.cls.__name__} does not fit into its head: {error}") from error
    assert len(body) <= _LIMITS.control_bytes_max, f"body of {shape.cls.__name__} has {len(body)} bytes"
    head[body_at:] = body
    _CRC.pack_into(head, _CRC_AT, crc32(head))
    if shape.entry_at >= 0 and fields[shape.entry_at] is not None:
        return [head, *encode(fields[shape.entry_at])]
    if shape.payload_at < 0:
        return [head]
    return [head, *fields[shape.payload_at]]


def decode(frames: Sequence[m.Buffer], limits: Limits = _LIMITS) -> m.Message:
    """The message in these frames; payload views share their memory.  Raises `PeerError` and nothing else."""
    message, end = decode_at(frames, 0, limits)
    if end != len(frames):
        raise PeerError(f"{len(frames) - end} frames too many behind {type(message).__name__}")
    return message


def decode_at(frames: Sequence[m.Buffer], start: int, limits: Limits = _LIMITS) -> tuple[m.Message, int]:
    """The message that begins with frame `start`, and where the next one would: several may travel as one."""
    return _decode_at(frames, start, limits, nested=False)


def _decode_at(frames: Sequence[m.Buffer], start: int, limits: Limits, nested: bool) -> tuple[m.Message, int]:
    if not 0 <= start < len(frames) <= limits.frames_max:
        raise PeerError(f"{len(frames)} frames; from 1 to {limits.frames_max}")
    head = _checked_head(frames[start])
    (_, _, number, _, *words, component_count, segment_count, body_bytes, _) = _HEAD.unpack_from(head)
    shape = _BY_TYPE.get(number)
    if shape is None:
        raise PeerError(f"unknown message type {number}")
    if component_count > (limits.components_max if shape.components_at >= 0 else 0):
        raise PeerError(f"{shape.cls.__name__} with {component_count} components")
    if segment_count > (limits.segments_max if shape.segments_at >= 0 else 0):
        raise PeerError(f"{shape.cls.__name__} with {segment_count} segments")
    if body_bytes > limits.control_bytes_max:
        raise PeerError(f"body of {body_bytes} bytes; at most {limits.control_bytes_max}")
    segments_at = _HEAD.size + component_count * _COMPONENT.size
    body_at = segments_at + segment_count * _SEGMENT.size
    if len(head) != body_at + body_bytes:
        raise PeerError(f"head of {len(head)} bytes does not hold what it counts")
    if shape.code_at >= 0 and words[shape.code_at] not in _CODES:
        raise PeerError(f"{shape.cls.__name__} with the unknown code {words[shape.code_at]}")

    components = _components(head[_HEAD.size : segments_at]) if component_count else ()
    segments = _segments(head[segments_at:body_at]) if segment_count else ()
    if shape.payload_at >= 0:
        payload = _payload(segments, frames, start + 1)
    else:
        payload = ()
    body = _body(shape, head[body_at:])
    end, entry = start + 1 + len(payload), None
    if shape.entry_at >= 0 and words[_VERSION_AT]:
        if nested:
            raise PeerError(f"{shape.cls.__name__} as an entry of itself")
        entry, end = _decode_at(frames, end, limits, nested=True)
        if type(entry) not in m.ENTRIES:
            raise PeerError(f"{type(entry).__name__} is nothing that a log holds")
    return shape.cls._make(shape.take((*words, components, segments, payload, entry, *body))), end


def _checked_head(frame: m.Buffer) -> bytes:
    """A copy of the head frame, once its length, magic, version and checksum are right."""
    view = memoryview(frame)
    if not _HEAD.size <= view.nbytes <= _HEAD_MAX:
        raise PeerError(f"head of {view.nbytes} bytes; from {_HEAD.size} to {_HEAD_MAX}")
    head = bytes(view)
    if head[:8] != _OPENING.get(head[5]):
        raise PeerError(f"{head[:8]!r} does not open a message of plugml wire {VERSION}")
    if _CRC.unpack_from(head, _CRC_AT)[0] != crc32(head[_HEAD.size :], crc32(_NO_CRC, crc32(head[:_CRC_AT]))):
        raise PeerError("head checksum is wrong")
    return head


def _components(records: bytes) -> tuple[m.Component, ...]:
    components = []
    for record in _COMPONENT.iter_unpack(records):
        clock, weight = record[4:]
        if clock < 0 or not 0.0 <= weight < math.inf:  # false for NaN
            raise PeerError(f"component of clock {clock} and weight {weight}")
        components.append(m.Component._make(record))
    return tuple(components)


def _segments(records: bytes) -> tuple[m.Segment, ...]:
    segments = []
    for table, dtype, kind, carry, block, elements in _SEGMENT.iter_unpack(records):
        if dtype not in ITEMSIZE or kind not in _KINDS or carry not in _CARRIES:
            raise PeerError(f"segment of dtype {dtype}, kind {kind}, carry {carry}")
        segments.append(m.Segment._make((table, block, elements, dtype, kind, carry)))
    return tuple(segments)


def _payload(segments: Sequence[m.Segment], frames: Sequence[m.Buffer], start: int) -> tuple[memoryview, ...]:
    """The frames from `start` on as byte views, one for each segment by value, each of exactly the promised size."""
    carried = [segment for segment in segments if segment.carry == m.BY_VALUE]
    if len(carried) > len(frames) - start:
        raise PeerError(f"{len(frames) - start} payload frames for {len(carried)} segments")
    views = []
    for number, segment in enumerate(carried, start):
        view = memoryview(frames[number]).cast("B")
        if view.nbytes != segment.elements * ITEMSIZE[segment.dtype]:
            raise PeerError(f"payload of {view.nbytes} bytes for {segment.elements} elements of dtype {segment.dtype}")
        views.append(view)
    return tuple(views)


def _body(shape: Shape, packed: bytes) -> list[Any]:
    """The checked fields of the body."""
    name = shape.cls.__name__
    if not shape.body:
        if packed:
            raise PeerError(f"{name} takes no body")
        return []
    try:
        items = msgpack.unpackb(packed, use_list=False, max_ext_len=0, ext_hook=_no_ext)
    except (ValueError, msgpack.exceptions.UnpackException) as error:  # ValueError is the root of what it raises on bytes
        raise PeerError(f"body of {name} is no msgpack: {error}") from error
    if type(items) is not tuple or len(items) != len(shape.body):
        raise PeerError(f"body of {name} has not its {len(shape.body)} fields")
    values = []
    for (field, check), item in zip(shape.body, items):
        try:
            values.append(check(item))
        except ValueError as error:
            raise PeerError(f"{name}.{field} {error}") from error
    return values


def _no_ext(code: int, data: bytes) -> NoReturn:
    raise ValueError(f"ext type {code}")
