"""Every message comes back as it was sent, and nothing else is taken for one."""

from __future__ import annotations

import struct
from typing import Any, get_args
from zlib import crc32

import msgpack
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plugml.core.errors import PeerError
from plugml.core.limits import Limits
from plugml.wire import messages as m
from plugml.wire.codec import SHAPES, decode, decode_at, encode
from tests.fuzz.messages import ALL, ANY_MESSAGE, messages

HEAD_BYTES = 72


def received(frames: list[Any]) -> list[bytes]:
    return [bytes(frame) for frame in frames]


def signed(head: bytes) -> bytes:
    """The head with the checksum that belongs to it."""
    blank = head[:68] + bytes(4) + head[72:]
    return head[:68] + struct.pack("<I", crc32(blank)) + head[72:]


def with_body(message: m.Message, items: object) -> bytes:
    """The message's head frame with another body, correctly counted and signed."""
    head = bytes(encode(message)[0])
    body_bytes = struct.unpack_from("<I", head, 64)[0]
    packed = items if isinstance(items, bytes) else msgpack.packb(items)
    start = head[: len(head) - body_bytes]
    return signed(start[:64] + struct.pack("<I", len(packed)) + start[68:] + packed)


# -- there and back


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_message_comes_back_as_it_was_sent(cls: type[Any], data: st.DataObject) -> None:
    message = data.draw(messages(cls))
    back = decode(received(encode(message)))
    assert type(back) is cls
    assert back == message


def test_every_message_has_a_number_of_its_own() -> None:
    assert {shape.cls for shape in SHAPES} == set(get_args(m.Message))
    assert len({shape.number for shape in SHAPES}) == len(SHAPES)


def test_a_payload_travels_without_a_copy() -> None:
    numbers = np.arange(4, dtype="<f4")
    push = m.Push(1, 2, 3, 4, 5, (m.Component(0, 1, 1, 0, 0, 1.0),), (m.Segment(0, 0, 4, 1),), (numbers,))
    head, frame = encode(push)
    assert frame is numbers
    back = decode([head, frame])
    assert isinstance(back, m.Push)
    assert np.shares_memory(np.frombuffer(back.payload[0], "<f4"), numbers)


def test_the_layout_of_a_push_is_the_one_that_the_page_draws() -> None:
    """Golden bytes: a change here is a change of the protocol."""
    numbers = np.array([1.5, -2.0], dtype="<f8")
    push = m.Push(1, 2, 3, 4, 5, (m.Component(6, 7, 8, 9, 10, 11.0),), (m.Segment(12, 13, 2, 2),), (numbers,))
    head, _ = encode(push)
    zeros = "00" * 4
    assert bytes(head).hex() == (
        "504c474d" "01" "01" "0000" "01000000" "02000000" "03000000" + zeros + zeros + "0400000000000000" + "00" * 8
        + "0500000000000000" + "00" * 8 + "0100" "0100" + zeros + struct.pack("<I", crc32(bytes(head[:68]) + bytes(4) + bytes(head[72:]))).hex()
        + "06000000" "07000000" "0800000000000000" "0900000000000000" "0a00000000000000" "0000000000002640"
        + "0c00" "02" "00" "00" "000000" "0d00000000000000" "0200000000000000"
    )  # fmt: skip


# -- log entries

PUSH = m.Push(1, 2, 3, 4, 5, (m.Component(0, 1, 1, 0, 0, 1.0),), (m.Segment(0, 0, 4, 1),), (bytes(16),))
ENTRY = m.Replicate(1, 2, 3, 4, 9, 8, 2, "a0.1", (7, 6), PUSH)


def test_a_log_entry_carries_the_push_by_reference() -> None:
    numbers = np.arange(4, dtype="<f4")
    head, inner, frame = encode(ENTRY._replace(entry=PUSH._replace(payload=(numbers,))))
    assert frame is numbers and bytes(inner) == bytes(encode(PUSH)[0])
    back = decode([head, inner, frame])
    assert isinstance(back, m.Replicate) and back._replace(entry=None) == ENTRY._replace(entry=None)
    assert np.shares_memory(np.frombuffer(back.entry.payload[0], "<f4"), numbers)


@pytest.mark.parametrize("cls", [shape.cls for shape in SHAPES if shape.cls not in m.ENTRIES], ids=lambda cls: cls.__name__)
@settings(max_examples=3, deadline=None)
@given(data=st.data())
def test_what_no_log_holds_is_refused_as_an_entry(cls: type[Any], data: st.DataObject) -> None:
    with pytest.raises(PeerError):
        decode(received(encode(ENTRY._replace(entry=data.draw(messages(cls))))))


def test_an_entry_is_there_exactly_where_there_is_a_version() -> None:
    with pytest.raises(PeerError, match="frames"):
        decode(received(encode(ENTRY._replace(entry=None))))
    with pytest.raises(PeerError, match="too many"):
        decode(received(encode(ENTRY._replace(version=0))))


def test_behind_a_log_entry_another_message_may_follow() -> None:
    frames = received([*encode(ENTRY), *encode(BEAT)])
    entry, end = decode_at(frames, 0)
    assert entry == ENTRY and decode_at(frames, end) == (BEAT, len(frames))


# -- damage


@settings(max_examples=150, deadline=None)
@given(message=ANY_MESSAGE, data=st.data())
def test_a_flipped_bit_in_the_head_is_noticed(message: m.Message, data: st.DataObject) -> None:
    head, *payload = received(encode(message))
    bit = data.draw(st.integers(0, len(head) * 8 - 1))
    damaged = bytearray(head)
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(PeerError):
        decode([damaged, *payload])


@settings(max_examples=150, deadline=None)
@given(message=ANY_MESSAGE, data=st.data())
def test_a_head_that_was_cut_or_grew_is_noticed(message: m.Message, data: st.DataObject) -> None:
    head, *payload = received(encode(message))
    cut = data.draw(st.integers(0, len(head) - 1))
    more = data.draw(st.binary(min_size=1, max_size=40))
    for damaged in (head[:cut], signed(head[:cut]) if cut >= HEAD_BYTES else b"", head + more, signed(head + more)):
        with pytest.raises(PeerError):
            decode([damaged, *payload])


@settings(max_examples=150, deadline=None)
@given(message=ANY_MESSAGE, data=st.data())
def test_a_payload_of_another_size_or_number_is_noticed(message: m.Message, data: st.DataObject) -> None:
    head, *payload = received(encode(message))
    with pytest.raises(PeerError):
        decode([head, *payload, b"\0" * data.draw(st.integers(0, 9))])
    if payload:
        with pytest.raises(PeerError):
            decode([head, *payload[:-1]])
        with pytest.raises(PeerError):
            decode([head, *payload[:-1], payload[-1] + b"\0"])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(message=ANY_MESSAGE, at=st.integers(4, 67), value=st.binary(min_size=1, max_size=8))
def test_a_correctly_signed_lie_in_the_head_gives_a_message_or_a_peer_error(message: m.Message, at: int, value: bytes) -> None:
    head, *payload = received(encode(message))
    lie = bytearray(head)
    lie[at : at + len(value)] = value
    try:
        back = decode([signed(bytes(lie[: len(head)])), *payload])
    except PeerError:
        return
    encode(back)  # what was taken can be said again


# -- bodies

TICK = m.Tick(1, 2, 3, 4, 5, 6, ((0, 1.0),))
STANDING = m.Standing(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, -1, (1, 2))
BEAT = m.Beat(1, {"a": 1})
ADMIN = m.Admin(1, "status", {})
DEEP: Any = ()
for _ in range(100):
    DEEP = (DEEP,)

BAD_BODIES = [
    (TICK, b""), (TICK, b"\xc1"), (TICK, []), (TICK, [1, 2]), (TICK, {"weights": []}), (TICK, [[1]]), (TICK, ["ab"]),
    (TICK, [[[0]]]), (TICK, [[[0, 1.0, 2]]]), (TICK, [[[0, float("nan")]]]), (TICK, [[[0, float("inf")]]]),
    (TICK, [[[0, -1.0]]]), (TICK, [[[-1, 1.0]]]), (TICK, [[[0, True]]]), (TICK, [[[True, 1.0]]]), (TICK, [[["0", 1.0]]]),
    (TICK, [[[0, 1 << 63], [0, None]]]), (TICK, [[[0, 1.0]]] * 2), (TICK, [{0: 1.0}]),
    (STANDING, [8, 9, 10, -2, []]), (STANDING, [-1, 9, 10, 0, []]), (STANDING, [8, 9, 1 << 63, 0, []]),
    (STANDING, [8, 9, 10, 0, [-1]]), (STANDING, [8, 9, 10, 0, [[1]]]), (STANDING, [8.0, 9, 10, 0, []]),
    (m.Close(1, 2, 3, 4, (), ()), [[[0, 1, 2]], []]), (m.Close(1, 2, 3, 4, (), ()), [[], [[0, "x"]]]),
    (m.Roster(1, 2, 3, 4, ()), [[[0, 1, 2]]]), (m.Roster(1, 2, 3, 4, ()), [[[0, 1, 2, -2]]]),
    (m.CloseAck(1, 2, 3, 4, ()), [[0.5]]), (m.Leave(1, 2, 3, 4, 5, 6, ""), [b"x"]),
    (BEAT, [{"a": 1.5}]), (BEAT, [{"a": True}]), (BEAT, [{1: 1}]), (BEAT, [{b"a": 1}]), (BEAT, [[]]),
    (ADMIN, ["status", {b"a": 1}]), (ADMIN, ["status", {"a": {1: 1}}]), (ADMIN, ["status", {"a": DEEP}]),
    (ADMIN, ["status", {"a": msgpack.ExtType(5, b"")}]), (ADMIN, ["status", msgpack.Timestamp(1)]), (ADMIN, [1, {}]),
    (m.BeatAck(1, 2, True), [1, 1]), (ENTRY._replace(version=0, entry=None), ["a0.1", [1]]), (m.NotLeader(1, "m0"), [1]),
    (m.CopyTold(1, 2, 3, 4, 5, 6, 7, 8, 9, (), ()), [5, -1, 9]), (m.NodeExit(1, "s0", 0), ["s0", -(1 << 40)]),
]  # fmt: skip


@pytest.mark.parametrize(("message", "body"), BAD_BODIES)
def test_a_body_of_other_values_is_refused(message: m.Message, body: object) -> None:
    with pytest.raises(PeerError, match=type(message).__name__):
        decode([with_body(message, body)])


def test_nesting_that_would_break_whoever_walks_over_it_is_refused() -> None:
    with pytest.raises(PeerError):
        decode([with_body(ADMIN, b"\x92\xa1s\x81\xa1a" + b"\x91" * 60_000 + b"\xc0")])


def test_a_whole_number_is_taken_as_a_weight() -> None:
    back = decode([with_body(TICK, [[[0, 3]], [], 0])])
    assert back == TICK._replace(weights=((0, 3.0),)) and isinstance(back, m.Tick) and type(back.weights[0][1]) is float


def test_a_body_longer_than_control_bytes_is_refused() -> None:
    with pytest.raises(PeerError, match="body"):
        decode([with_body(ADMIN, ["status", {"a": "x" * Limits().control_bytes_max}])])


# -- records


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0])
def test_a_weight_that_is_none_is_refused(bad: float) -> None:
    push = m.Push(1, 2, 3, 4, 5, (m.Component(0, 1, 1, 0, 0, bad),), (), ())
    with pytest.raises(PeerError, match="weight"):
        decode(encode(push))


def test_a_clock_below_zero_is_refused() -> None:
    with pytest.raises(PeerError, match="clock"):
        decode(encode(m.Push(1, 2, 3, 4, 5, (m.Component(0, 1, 1, 0, -1, 1.0),), (), ())))


@pytest.mark.parametrize("segment", [m.Segment(0, 0, 1, 9), m.Segment(0, 0, 1, 1, 7), m.Segment(0, 0, 1, 1, 0, 3)])
def test_an_unknown_kind_of_segment_is_refused(segment: m.Segment) -> None:
    with pytest.raises(PeerError, match="segment"):
        decode(encode(m.Pull(1, 2, 3, 4, 5, 6, 7, 8, 9, (segment,))))


def test_a_code_that_nobody_knows_is_refused() -> None:
    with pytest.raises(PeerError, match="code"):
        decode(encode(m.Done(1, 99, "?")))


def test_more_records_or_frames_than_the_limits_allow_are_refused() -> None:
    few = Limits(components_max=1, segments_max=1, frames_max=2)
    component, segment = m.Component(0, 1, 1, 0, 0, 1.0), m.Segment(0, 0, 1, 1)
    for push in (
        m.Push(1, 2, 3, 4, 5, (component,) * 2, (), ()),
        m.Push(1, 2, 3, 4, 5, (component,), (segment._replace(carry=m.ABSENT),) * 2, ()),
        m.Push(1, 2, 3, 4, 5, (component,), (segment,) * 2, (b"1234",) * 2),
    ):
        assert decode(encode(push)) == push
        with pytest.raises(PeerError):
            decode(encode(push), few)


def test_an_oversized_head_is_refused_before_it_is_copied() -> None:
    with pytest.raises(PeerError, match="head"):
        decode([memoryview(bytearray(1 << 22))])


# -- our own mistakes are bugs


@pytest.mark.parametrize(
    "message",
    [
        m.PushAck(-1, 0, 0, 0, 0, 0, 0),
        m.PushAck(1 << 32, 0, 0, 0, 0, 0, 0),
        m.PushAck(0, 0, 0, 1 << 64, 0, 0, 0),
        m.PushAck(0, 0, 0, 0, 0, 0, -1),
        m.Push(1, 2, 3, 4, 5, (m.Component(-1, 0, 0, 0, 0, 1.0),), (), ()),
        m.Pull(1, 2, 3, 4, 5, 6, 7, 8, 9, (m.Segment(1 << 16, 0, 1, 1),)),
        m.Admin(1, "status", {"a": "x" * (1 << 16)}),
    ],
)
def test_a_message_that_does_not_fit_is_a_bug_of_the_sender(message: m.Message) -> None:
    with pytest.raises(AssertionError):
        encode(message)
