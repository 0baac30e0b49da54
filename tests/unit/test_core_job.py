"""What a job may be: one place that checks, with a sentence for each mistake."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given

from plugml.core.errors import UsageError
from plugml.core.job import DOCUMENT_BYTES_MAX, JobSpec, packed_bytes
from plugml.core.limits import Limits
from plugml.core.table import TableSpec
from plugml.wire.messages import NO_PIECE
from tests.fuzz.messages import DOCUMENTS

W = TableSpec("w", (10, 64))
N = TableSpec("n", (5,), dtype="i64", optimizer="add")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"name": "a b"}, "job name"),
        ({"workers": 0}, "workers"),
        ({"workers": True}, "workers"),
        ({"workers": 4097}, "workers"),
        ({"workers": 10**5000}, "workers"),
        ({"tables": ()}, "no table"),
        ({"tables": (W, W)}, "two tables"),
        ({"seed": -1}, "seed"),
        ({"seed": 0.5}, "seed"),
        ({"combine": "avg"}, "combine"),
        ({"combine": []}, "combine"),
        ({"consistency": "bsp:1"}, "consistency"),
        ({"consistency": "ssp:" + "9" * 5000}, "consistency"),
        ({"consistency": 10**5000}, "consistency"),
        ({"max_restarts": -1}, "max_restarts"),
        ({"max_restarts": 1 << 40}, "max_restarts"),
        ({"on_worker_loss": "wiat"}, "did you mean 'wait'"),
        ({"tables": (TableSpec("a", (1,), settings={"lr": 3e37}),), "lr_scale": "linear"}, r"table 'a': lr = 3e\+37 becomes 6e\+37 .* too large for f32"),
        ({"settings": []}, "settings"),
        ({"settings": {"a": {1: 2}}}, "key"),
        ({"settings": {"a": object()}}, "plain"),
        ({"settings": {"a": 1 << 64}}, "64 bits"),
        ({"settings": {"a": "\ud800"}}, "UTF-8"),
        ({"settings": {"a": "x" * DOCUMENT_BYTES_MAX}}, "fewer"),
        ({"tables": tuple(TableSpec(f"table-number-{n}", (1,)) for n in range(1000))}, "fewer"),
    ],
)
def test_what_is_no_job_is_refused_with_the_word_that_is_wrong(change: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        JobSpec(**{"name": "job", "workers": 2, "tables": (W, N), **change})


def test_settings_that_are_nested_too_deep_are_refused() -> None:
    deep: Any = {}
    for _ in range(5000):
        deep = {"a": deep}
    with pytest.raises(UsageError, match="deep"):
        JobSpec("job", 1, (W,), settings=deep)


@pytest.mark.parametrize(
    ("document", "text"),
    [
        (None, "mapping"), ([], "mapping"), ({}, "needs"), ({"name": "a", "workers": 1}, "needs"),
        ({"name": "a", "workers": 1, "tables": {}}, "list"), ({"name": "a", "workers": 1, "tables": [7]}, "mapping"),
        ({"name": "a", "workers": 1, "tables": [W.to_document()], "worker": 1}, "did you mean 'workers'"),
        ({"name": "a", "workers": 1, "tables": [W.to_document()], 7: 1}, "unknown key"),
        ({"name": "a", "workers": 1, "tables": [None] * 5000}, "at most"),
    ],
)  # fmt: skip
def test_a_document_that_is_no_job_is_refused(document: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        JobSpec.from_document(document)


def test_a_job_comes_back_from_its_document_through_msgpack() -> None:
    spec = JobSpec("job", 3, (W, N), seed=7, consistency="asp", combine="sum", settings={"command": ["./a", "b"], "x": None})
    packed = msgpack.packb(spec.to_document())
    assert JobSpec.from_document(msgpack.unpackb(packed)) == spec


def test_each_table_has_its_own_word_or_the_jobs() -> None:
    spec = JobSpec("job", 1, (W, N, TableSpec("s", (1,), combine="sum", consistency="asp")))
    assert [spec.combine_of(table) for table in spec.tables] == ["mean", "sum", "sum"]
    assert [str(spec.consistency_of(table)) for table in spec.tables] == ["bsp", "bsp", "asp"]
    assert [spec.table_number(name) for name in "wns"] == [0, 1, 2]
    with pytest.raises(KeyError):
        spec.table_number("x")


def test_blocks_are_chosen_for_the_servers_where_the_user_has_not() -> None:
    big = TableSpec("big", (16 << 20,), block_bytes=4096)
    spec = JobSpec("job", 1, (W, big)).with_blocks(4, Limits())
    assert [table.block_bytes for table in spec.tables] == [Limits().block_bytes_min, 4096]


@given(document=DOCUMENTS)
def test_packed_bytes_is_what_msgpack_needs_or_more(document: dict[str, Any]) -> None:
    real = len(msgpack.packb(document))
    assert real <= packed_bytes(document, depth=100) <= 5 * real


def test_the_number_of_the_last_piece_is_never_the_one_that_says_there_is_none() -> None:
    assert JobSpec("j", 1, (W,), pieces=NO_PIECE, passes=1 << 62).pieces - 1 < NO_PIECE
    with pytest.raises(UsageError, match=r"pieces = 4294967296; a whole number from 0 to 4294967295"):
        JobSpec("j", 1, (W,), pieces=NO_PIECE + 1)
    with pytest.raises(UsageError, match=r"passes = -1; a whole number from 0 to 4611686018427387904"):
        JobSpec("j", 1, (W,), passes=-1)
