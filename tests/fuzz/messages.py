"""Strategies that build any message of the wire from its type hints, and documents as peers may send them."""

from __future__ import annotations

from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
from hypothesis import strategies as st

from plugml.core.errors import Code
from plugml.wire import messages as m
from plugml.wire.codec import ITEMSIZE, SHAPES
from plugml.wire.fields import LOWEST

U32 = st.integers(0, (1 << 32) - 1)
U64 = st.integers(0, (1 << 64) - 1)
WEIGHTS = st.floats(0, allow_nan=False, allow_infinity=False)
WORDS = {
    "job": U32, "range": U32, "epoch": U32, "worker": U32, "gen": U32, "token": U64, "request": U64,
    "code": st.sampled_from([int(code) for code in Code]),
}  # fmt: skip

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4).map(tuple) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
DOCUMENTS = st.dictionaries(st.text(max_size=8), PLAIN, max_size=5)

COMPONENTS = st.builds(m.Component, U32, U32, U64, U64, st.integers(0, (1 << 63) - 1), WEIGHTS)


@st.composite
def segments_with_payload(draw: st.DrawFn, by_value: bool) -> tuple[tuple[m.Segment, ...], tuple[memoryview, ...]]:
    """Segments of every kind, and the numbers of those that travel by value."""
    segments, payload = [], []
    for _ in range(draw(st.integers(0, 4))):
        dtype = draw(st.sampled_from(sorted(ITEMSIZE)))
        carry = draw(st.sampled_from((m.BY_VALUE, m.ABSENT, m.BY_REFERENCE)))
        carried = by_value and carry == m.BY_VALUE
        elements = draw(st.integers(0, 20) if carried else U64)
        kind = draw(st.sampled_from((m.BLOCK, m.ROWS, m.IDS, m.KEYS, m.RAW)))
        segments.append(m.Segment(draw(st.integers(0, 65535)), draw(U64), elements, dtype, kind, carry))
        if carried:
            nbytes = elements * ITEMSIZE[dtype]
            numbers = np.frombuffer(draw(st.binary(min_size=nbytes, max_size=nbytes)), np.uint8)
            payload.append(memoryview(numbers))
    return tuple(segments), tuple(payload)


def values_of(message: str, field: str, hint: Any, in_head: bool) -> st.SearchStrategy[Any]:
    """Any value that the field may have."""
    if field in WORDS:
        return WORDS[field]
    if in_head:
        return U64
    low = LOWEST.get((message, field), 0)
    if hint is int:
        return st.integers(low, (1 << 63) - 1)
    if hint is float:
        return WEIGHTS
    if hint is bool:
        return st.booleans()
    if hint is str:
        return st.text(max_size=30)
    arguments = get_args(hint)
    if get_origin(hint) is dict:
        counters = st.dictionaries(st.text(max_size=8), st.integers(-(1 << 63), (1 << 64) - 1), max_size=5)
        return counters if arguments == (str, int) else DOCUMENTS
    if arguments[-1] is Ellipsis:
        return st.lists(values_of(message, field, arguments[0], False), max_size=5).map(tuple)
    return st.tuples(*(values_of(message, field, argument, False) for argument in arguments))


@st.composite
def messages(draw: st.DrawFn, cls: type[Any]) -> Any:
    """A message of this type that `encode` must take."""
    shape = next(shape for shape in SHAPES if shape.cls is cls)
    hints = get_type_hints(cls)
    body = [field for field, _ in shape.body]
    values: dict[str, Any] = {}
    for field in cls._fields:
        if field == "components":
            values[field] = tuple(draw(st.lists(COMPONENTS, max_size=3)))
        elif field == "segments":
            segments, payload = draw(segments_with_payload("payload" in cls._fields))
            values[field] = segments
            if "payload" in cls._fields:
                values["payload"] = payload
        elif field == "entry":  # there iff the message has a version
            values[field] = draw(st.sampled_from(ENTRIES).flatmap(messages)) if values["version"] else None
        elif field != "payload":
            values[field] = draw(values_of(cls.__name__, field, hints[field], field not in body))
    return cls(**values)


ENTRIES = sorted(m.ENTRIES, key=lambda cls: cls.__name__)
ALL = [shape.cls for shape in SHAPES]
ANY_MESSAGE = st.sampled_from(ALL).flatmap(messages)
