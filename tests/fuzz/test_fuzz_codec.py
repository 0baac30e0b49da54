"""Any bytes on a socket give a message or a PeerError, never another error."""

from __future__ import annotations

import struct
from zlib import crc32

from hypothesis import example, given, settings
from hypothesis import strategies as st

from plugml.core.errors import PeerError
from plugml.wire.codec import MAGIC, SHAPES, VERSION, decode, encode

NUMBERS = [shape.number for shape in SHAPES]


@st.composite
def plausible_heads(draw: st.DrawFn) -> bytes:
    """Right magic, version, type, counts and checksum; everything else is garbage."""
    words = draw(st.binary(min_size=52, max_size=52))
    components, segments = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    records = draw(st.binary(min_size=components * 40 + segments * 24, max_size=components * 40 + segments * 24))
    body = draw(st.binary(max_size=60))
    opening = MAGIC + bytes((VERSION, draw(st.sampled_from(NUMBERS)), 0, 0))
    head = opening + words + struct.pack("<HHI", components, segments, len(body)) + bytes(4) + records + body
    return head[:68] + struct.pack("<I", crc32(head)) + head[72:]


def decoded_or_refused(frames: list[bytes]) -> None:
    try:
        message = decode(frames)
    except PeerError:
        return
    assert decode(encode(message)) == message or message != message  # a NaN in a document is unequal to itself


@settings(max_examples=300, deadline=None)
@given(frames=st.lists(st.binary(max_size=200), max_size=4))
@example(frames=[])
@example(frames=[b""])
@example(frames=[bytes(72)])
@example(frames=[MAGIC + bytes(68)])
def test_garbage_is_refused(frames: list[bytes]) -> None:
    decoded_or_refused(frames)


@settings(max_examples=500, deadline=None)
@given(head=plausible_heads(), payload=st.lists(st.binary(max_size=32), max_size=3))
def test_a_plausible_head_with_garbage_in_it_is_refused_or_read(head: bytes, payload: list[bytes]) -> None:
    decoded_or_refused([head, *payload])
