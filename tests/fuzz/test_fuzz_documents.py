"""Any document gives a job, a map, or the one error that says why not."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from plugml.core.errors import PeerError, UsageError
from plugml.core.job import JobSpec
from plugml.core.jobmap import RUNNING, Assignment, JobMap, ranges_used
from plugml.core.table import TableSpec
from tests.fuzz.messages import DOCUMENTS, PLAIN

SPEC = JobSpec("job", 2, (TableSpec("w", (10, 64), block_bytes=256),), settings={"a": [1, {"b": None}]})
MAP = JobMap(1, 1, SPEC, RUNNING, "", 16, {n: Assignment(1, ("s0.a",)) for n in ranges_used(SPEC, 16)}, {"s0.a": "x"}, {0: 1})
HUGE = st.sampled_from([10**5000, -(10**5000), float("nan"), float("inf"), "9" * 5000, [[[]]], {"a": {"b": {}}}, True, b"x"])
ANYTHING = PLAIN | HUGE | DOCUMENTS


@st.composite
def damaged(draw: st.DrawFn, value: Any) -> Any:
    """The value with something in it replaced, removed or added."""
    if isinstance(value, dict) and value and draw(st.integers(0, 3)):
        key = draw(st.sampled_from(sorted(value)))
        change = draw(st.integers(0, 4))
        if change == 0:
            return {k: v for k, v in value.items() if k != key}
        if change == 1:
            return {**value, draw(st.text(max_size=8) | st.integers()): draw(ANYTHING)}
        return {**value, key: draw(damaged(value[key]))}
    if isinstance(value, (list, tuple)) and value and draw(st.integers(0, 3)):
        at = draw(st.integers(0, len(value) - 1))
        return [*value[:at], draw(damaged(value[at])), *value[at + 1 :]]
    return draw(ANYTHING)


@settings(max_examples=400, deadline=None)
@given(document=damaged(SPEC.to_document()) | ANYTHING)
def test_a_document_is_a_job_or_a_usage_error(document: Any) -> None:
    try:
        spec = JobSpec.from_document(document)
    except UsageError as error:
        assert str(error)
        return
    assert JobSpec.from_document(spec.to_document()) == spec


@settings(max_examples=400, deadline=None)
@given(document=damaged(MAP.to_document()) | ANYTHING)
def test_a_document_is_a_map_or_a_peer_error(document: Any) -> None:
    try:
        found = JobMap.from_document(document)
    except PeerError as error:
        assert str(error)
        return
    assert JobMap.from_document(found.to_document()) == found
