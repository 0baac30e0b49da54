"""Messages that fit the codec and nothing else: a range answers or refuses them, and what it refuses leaves no trace."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from plugml.wire import messages as m
from plugml.wire.codec import U8, U64
from tests.scenario.kit import Box, job, table
from tests.scenario.sparse import sparse_table

SIZES = {1: 4, 2: 8, 3: 8, 4: 2, U64: 8, U8: 1}
IDS = st.lists(st.integers(0, 9), max_size=4).map(lambda ids: np.array(ids, np.uint64).tobytes())
NUMBER = st.one_of(st.integers(0, 3), st.integers(0, (1 << 64) - 1))
Made = tuple[m.Segment, bytes]


@st.composite
def segments(draw: st.DrawFn) -> Made:
    dtype = draw(st.sampled_from(sorted(SIZES)))
    data = draw(st.one_of(st.binary(max_size=40), IDS))
    elements = len(data) // SIZES[dtype]
    kind, carry = draw(st.integers(0, 3)), draw(st.sampled_from((0, 0, 0, 1, 2)))
    return m.Segment(draw(st.integers(0, 3)), draw(st.integers(0, 2)), elements, dtype, kind, carry), data[: elements * SIZES[dtype]]


@st.composite
def groups(draw: st.DrawFn) -> list[Made]:
    """Nearly right: a group of rows of table 1 with perhaps one segment out of place."""
    ids = draw(st.lists(st.integers(0, 12), min_size=1, max_size=4))
    rows = np.array(draw(st.lists(st.integers(-9, 9), min_size=len(ids), max_size=len(ids))), "f4").tobytes()
    made = [
        (m.Segment(1, 0, len(ids), U64, m.IDS), np.array(ids, np.uint64).tobytes()),
        (m.Segment(1, 0, len(ids), 1, m.ROWS), rows),
    ]
    if draw(st.booleans()):
        made.insert(draw(st.integers(0, 2)), draw(segments()))
    return made


def message(verb: str, seq: int, made: list[Made], one: int, two: int) -> Any:
    named = tuple(segment for segment, _ in made)
    payload = tuple(data for segment, data in made if segment.carry == m.BY_VALUE)
    if verb == "push":
        return m.Push(1, 0, 1, 1, one, (m.Component(0, 1, seq, 0, 0, 1.0),), named, payload)
    if verb == "pull":
        return m.Pull(1, 0, 1, 1, seq, 0, 1, 0, 0, named, payload)
    if verb == "init":
        return m.Init(1, 0, 1, 1, one, named, payload)
    if verb == "at":
        return m.PullAt(1, 0, 1, 1, seq, one, named)
    return m.Scan(1, 0, 1, 1, seq, 0, one, two % 5, two % (1 << 31))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(("push", "push", "pull", "init", "at", "scan")), st.one_of(st.lists(segments(), max_size=4), groups()), NUMBER, NUMBER
        ),
        min_size=1,
        max_size=6,
    )
)
@settings(max_examples=300, deadline=None)
def test_whatever_comes_is_answered_or_refused_and_nothing_breaks(drawn: list[Any]) -> None:
    tables = (table("w", 3), sparse_table("e", 9, 1), sparse_table("k", width=2, index="str", dtype="f64"))
    there = Box(job(*tables, consistency="asp", snapshot_every=1))
    there.take()
    for seq, item in enumerate(drawn, 1):
        before = there.servers["s0.1"].digest()
        there.feed("s0.1", "a0.1", message(item[0], seq, *item[1:]))
        answers = there.take()
        kinds = {type(answer) for answer in answers}
        assert len(answers) == 1 and kinds <= {m.PushAck, m.LastTold, m.Values, m.InitAck, m.Scanned, m.Refuse}
        if kinds != {m.PushAck} and kinds != {m.InitAck}:
            assert there.servers["s0.1"].digest() == before
