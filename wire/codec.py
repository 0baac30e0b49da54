"""Messages to frames and back.  Refuses whatever is not exactly a message; allocates nothing before it has checked.

One head frame, then a frame per segment that travels by value:

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

import struct
from typing import Any, Iterable, NamedTuple, Sequence, get_type_hints
from zlib import crc32

import msgpack

from ..core.errors import PeerError
from ..core.limits import Limits
from ..core.table import DTYPE_NAMES, DTYPES

from . import messages as m

MAGIC = b"PLGM"
VERSION = 1
NO_RANGE = 0xFFFFFFFF

_HEAD = struct.Struct("<4sBBHIIIIIQQQQHHII")
_COMPONENT = struct.Struct("<IIQQqd")
_SEGMENT = struct.Struct("<HBBB3xQQ")
_CRC_AT = _HEAD.size - 4
_ITEMSIZE = {code: DTYPES[name].itemsize for code, name in DTYPE_NAMES.items()}
_PLAIN = ("job", "range", "epoch", "worker", "gen", "token", "request")


class Shape(NamedTuple):
    """How one message type uses the head: which field is word `a`, which `b`; the rest goes into the body."""

    number: int
    cls: type[Any]
    a: str
    b: str
    body: tuple[str, ...]
    has_components: bool
    has_segments: bool
    by_value: bool  # payload frames are required
    tuples: tuple[tuple[str, type[Any]], ...]  # body fields and their types, to check and restore


def _shape(number: int, cls: type[Any], a: str = "", b: str = "", by_value: bool = False) -> Shape:
    names = cls._fields
    taken = {*_PLAIN, a, b, "components", "segments", "payload"}
    body = tuple(name for name in names if name not in taken)
    hints = get_type_hints(cls)
    kinds = tuple((name, getattr(hints[name], "__origin__", hints[name])) for name in body)
    return Shape(number, cls, a, b, body, "components" in names, "segments" in names, by_value, kinds)


#: The numbers are the protocol: never reuse one.
SHAPES: tuple[Shape, ...] = (
    _shape(1, m.Push, a="base", by_value=True),
    _shape(2, m.PushAck, a="seq"),
    _shape(3, m.LastAsk),
    _shape(4, m.LastTold, a="seq"),
    _shape(5, m.Init, a="claim", by_value=True),
    _shape(6, m.InitAck, a="claim"),
    _shape(7, m.Pull, a="after", b="closed"),
    _shape(8, m.Values, a="version", b="closed", by_value=True),
    _shape(9, m.Nack),
    _shape(10, m.Refuse, a="seq", b="code"),
    _shape(20, m.Join),
    _shape(21, m.Tick, a="clock"),
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
    _shape(40, m.Register),
    _shape(41, m.Registered),
    _shape(42, m.Beat),
    _shape(43, m.BeatAck),
    _shape(44, m.JobAsk),
    _shape(45, m.JobTold, a="code"),
    _shape(46, m.AttachAsk),
    _shape(47, m.AttachTold, a="code"),
    _shape(48, m.MapAsk),
    _shape(49, m.MapTold),
    _shape(50, m.JobEnd),
    _shape(51, m.NodeExit),
    _shape(52, m.Done, a="code"),
    _shape(53, m.Admin),
    _shape(54, m.AdminTold, a="code"),
)
_BY_CLASS = {shape.cls: shape for shape in SHAPES}
_BY_TYPE = {shape.number: shape for shape in SHAPES}


def encode(message: m.Message) -> list[m.Buffer]:
    """Frames of a message; payload frames are passed on by reference.

    >>> decode(encode(m.PushAck(1, 2, 3, 4, 5, 6, 7)))
    PushAck(job=1, range=2, epoch=3, token=4, worker=5, gen=6, seq=7)
    """
    shape = _BY_CLASS[type(message)]
    value = message._asdict()
    components: Sequence[m.Component] = value.get("components", ())
    segments: Sequence[m.Segment] = value.get("segments", ())
    body = msgpack.packb([value[name] for name in shape.body]) if shape.body else b""
    head = bytearray(_HEAD.size + len(components) * _COMPONENT.size + len(segments) * _SEGMENT.size + len(body))
    _HEAD.pack_into(
        head, 0, MAGIC, VERSION, shape.number, 0, value.get("job", 0), value.get("range", NO_RANGE), value.get("epoch", 0),
        value.get("worker", 0), value.get("gen", 0), value.get("token", 0), value.get("request", 0),
        value[shape.a] if shape.a else 0, value[shape.b] if shape.b else 0, len(components), len(segments), len(body), 0,
    )  # fmt: skip
    at = _HEAD.size
    for component in components:
        _COMPONENT.pack_into(head, at, *component)
        at += _COMPONENT.size
    for segment in segments:
        table, block, elements, dtype, kind, carry = segment
        _SEGMENT.pack_into(head, at, table, dtype, kind, carry, block, elements)
        at += _SEGMENT.size
    head[at:] = body
    struct.pack_into("<I", head, _CRC_AT, crc32(head))
    return [head, *value.get("payload", ())]


def decode(frames: Sequence[m.Buffer], limits: Limits = Limits()) -> m.Message:
    """The message in these frames; payload views share their memory.  Raises `PeerError` and nothing else."""
    if not 1 <= len(frames) <= limits.frames_max:
        raise PeerError(f"{len(frames)} frames; from 1 to {limits.frames_max}")
    head = bytes(frames[0])
    if len(head) < _HEAD.size:
        raise PeerError(f"head of {len(head)} bytes; at least {_HEAD.size}")
    (magic, version, number, flags, job, range_, epoch, worker, gen, token, request, a, b, component_count, segment_count,
     body_bytes, crc) = _HEAD.unpack_from(head)  # fmt: skip
    if magic != MAGIC or version != VERSION or flags:
        raise PeerError(f"magic {magic!r} version {version} flags {flags}; not plugml wire {VERSION}")
    if crc != crc32(head[_CRC_AT + 4 :], crc32(b"\0\0\0\0", crc32(head[:_CRC_AT]))):
        raise PeerError("head checksum is wrong")
    shape = _BY_TYPE.get(number)
    if shape is None:
        raise PeerError(f"unknown message type {number}")
    if bool(component_count) > shape.has_components or bool(segment_count) > shape.has_segments:
        raise PeerError(f"{shape.cls.__name__} with records that it has not")
    if component_count > limits.components_max or segment_count > limits.segments_max:
        raise PeerError(f"{component_count} components and {segment_count} segments are too many")
    if body_bytes > limits.control_bytes_max:
        raise PeerError(f"body of {body_bytes} bytes; at most {limits.control_bytes_max}")
    body_at = _HEAD.size + component_count * _COMPONENT.size + segment_count * _SEGMENT.size
    if len(head) != body_at + body_bytes:
        raise PeerError(f"head of {len(head)} bytes does not hold what it counts")

    values: dict[str, Any] = dict(zip(_PLAIN, (job, range_, epoch, worker, gen, token, request)))
    if shape.a:
        values[shape.a] = a
    if shape.b:
        values[shape.b] = b
    if shape.has_components:
        end = _HEAD.size + component_count * _COMPONENT.size
        values["components"] = tuple(m.Component(*record) for record in _COMPONENT.iter_unpack(head[_HEAD.size : end]))
    if shape.has_segments:
        start = _HEAD.size + component_count * _COMPONENT.size
        values["segments"] = _segments(head[start:body_at])
    payload = frames[1:]
    if shape.by_value:
        values["payload"] = _payload(values["segments"], payload)
    elif payload:
        raise PeerError(f"{shape.cls.__name__} takes no payload")
    if shape.body:
        values.update(_body(shape, head[body_at:]))
    elif body_bytes:
        raise PeerError(f"{shape.cls.__name__} takes no body")
    return shape.cls(*(values[name] for name in shape.cls._fields))  # type: ignore[no-any-return]


def _segments(records: bytes) -> tuple[m.Segment, ...]:
    result = []
    for table, dtype, kind, carry, block, elements in _SEGMENT.iter_unpack(records):
        if dtype not in _ITEMSIZE or kind not in (m.BLOCK, m.ROWS) or carry not in (m.BY_VALUE, m.ABSENT, m.BY_REFERENCE):
            raise PeerError(f"segment of dtype {dtype}, kind {kind}, carry {carry}")
        result.append(m.Segment(table, block, elements, dtype, kind, carry))
    return tuple(result)


def _payload(segments: Iterable[m.Segment], frames: Sequence[m.Buffer]) -> tuple[memoryview, ...]:
    """The frames as byte views, one for each segment by value, each of exactly the promised size."""
    carried = [segment for segment in segments if segment.carry == m.BY_VALUE]
    if len(carried) != len(frames):
        raise PeerError(f"{len(frames)} payload frames for {len(carried)} segments")
    views = []
    for segment, frame in zip(carried, frames):
        view = memoryview(frame).cast("B")
        if view.nbytes != segment.elements * _ITEMSIZE[segment.dtype]:
            raise PeerError(f"payload of {view.nbytes} bytes for {segment.elements} elements of dtype {segment.dtype}")
        views.append(view)
    return tuple(views)


def _body(shape: Shape, packed: bytes) -> dict[str, Any]:
    try:
        items = msgpack.unpackb(packed, use_list=False, max_ext_len=0)
    except (ValueError, msgpack.exceptions.UnpackException) as error:  # ValueError is the root of what it raises on bytes
        raise PeerError(f"body of {shape.cls.__name__} is no msgpack: {error}") from error
    if not isinstance(items, tuple) or len(items) != len(shape.body):
        raise PeerError(f"body of {shape.cls.__name__} has not its {len(shape.body)} fields")
    for (name, kind), item in zip(shape.tuples, items):
        if not isinstance(item, kind) or (kind is int and isinstance(item, bool)):
            raise PeerError(f"{shape.cls.__name__}.{name} is {type(item).__name__}, not {kind.__name__}")
    return dict(zip(shape.body, items))
