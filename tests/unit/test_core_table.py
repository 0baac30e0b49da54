"""What a table may be, and where its elements lie."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugml.core.errors import UsageError
from plugml.core.table import (
    BLOCK_BYTES_TOP,
    DTYPES,
    OPTIMIZERS,
    Layout,
    TableSpec,
    check_name,
    choose_block_bytes,
    is_finite_number,
)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"name": ""}, "table name"),
        ({"name": "a/b"}, "table name"),
        ({"name": ".a"}, "table name"),
        ({"name": "a\n"}, "table name"),
        ({"name": "a" * 64}, "table name"),
        ({"name": 7}, "table name"),
        ({"kind": "round"}, "kind"),
        ({"dtype": "f16"}, "dtype"),
        ({"dtype": ["f32"]}, "dtype"),
        ({"order": "K"}, "order"),
        ({"shape": ()}, "shape"),
        ({"shape": (0,)}, "shape"),
        ({"shape": (True,)}, "shape"),
        ({"shape": (2.0,)}, "shape"),
        ({"shape": (-3, -3)}, "shape"),
        ({"shape": (10**5000,)}, "more bytes than any machine"),
        ({"shape": (1 << 60,)}, "more bytes than any machine"),
        ({"shape": (1,) * 33}, "dimensions"),
        ({"optimizer": "sdg"}, "did you mean 'sgd'"),
        ({"optimizer": {}}, "optimizer"),
        ({"settings": {"momentum": 1.0}}, "momentum"),
        ({"settings": {"lr": "0.1"}}, "lr"),
        ({"settings": {"lr": True}}, "lr"),
        ({"settings": {"lr": math.nan}}, "lr"),
        ({"settings": {"lr": 10**400}}, "lr"),
        ({"settings": {"lr": 3e38}}, r"lr = 3e\+38 is too large for f32: at most 4.254e\+37, an eighth of its largest number"),
        ({"dtype": "f64", "storage": "f16", "init": "uniform", "init_settings": {"low": -1e4}}, "low = -10000.0 is too large for f16: at most 8188"),
        ({"init": "ones"}, "init"),
        ({"init": "zeros", "init_settings": {"scale": 1.0}}, "scale"),
        ({"combine": "max"}, "combine"),
        ({"consistency": "ssp"}, "consistency"),
        ({"consistency": 0}, "consistency"),
        ({"block_bytes": -1}, "block_bytes"),
        ({"block_bytes": True}, "block_bytes"),
        ({"block_bytes": "64"}, "block_bytes"),
        ({"block_bytes": BLOCK_BYTES_TOP + 1}, "block_bytes"),
    ],
)
def test_what_is_no_table_is_refused_with_the_word_that_is_wrong(change: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        TableSpec(**{"name": "w", "shape": (2, 3), **change})


@pytest.mark.parametrize(
    "document",
    [None, [], {}, {"name": "w"}, {"shape": [1]}, {"name": "w", "shape": "12"}, {"name": "w", "shape": [1], "shap": 1},
     {"name": "w", "shape": [1], "settings": []}, {"name": "w", "shape": [1], "init_settings": 5}, {"name": "w", "shape": [1], 5: 5}],
)  # fmt: skip
def test_a_document_that_is_no_table_is_refused(document: Any) -> None:
    with pytest.raises(UsageError):
        TableSpec.from_document(document)


def test_a_table_comes_back_from_its_document() -> None:
    table = TableSpec("w", (3, 4), dtype="f64", order="F", settings={"lr": 0.5}, init="normal", init_settings={"scale": 2.0},
                      combine="sum", consistency="ssp:2", block_bytes=64)  # fmt: skip
    assert TableSpec.from_document(table.to_document()) == table


def test_a_setting_is_the_users_or_the_default() -> None:
    assert TableSpec("w", (1,)).setting("lr") == OPTIMIZERS["sgd"]["lr"]
    assert TableSpec("w", (1,), settings={"lr": 2}).setting("lr") == 2.0


@given(count=st.integers(1, 5000), block_bytes=st.integers(1, 4096), dtype=st.sampled_from(sorted(DTYPES)))
def test_blocks_cover_a_table_once_and_in_order(count: int, block_bytes: int, dtype: str) -> None:
    optimizer = "add" if dtype == "i64" else "sgd"
    table = TableSpec("w", (count,), dtype=dtype, optimizer=optimizer, block_bytes=block_bytes)
    blocks = table.blocks()
    assert [block.number for block in blocks] == list(range(table.block_count))
    assert blocks[0].start == 0 and blocks[-1].stop == count
    assert all(before.stop == after.start for before, after in zip(blocks, blocks[1:]))
    itemsize = table.numpy_dtype.itemsize
    assert all(0 < (block.stop - block.start) * itemsize <= max(block_bytes, itemsize) for block in blocks)


@given(nbytes=st.integers(1, 1 << 40), servers=st.integers(0, 100))
def test_block_bytes_are_a_power_of_two_within_their_bounds(nbytes: int, servers: int) -> None:
    low, high = 1 << 16, 1 << 20
    chosen = choose_block_bytes(nbytes, servers, low, high)
    assert low <= chosen <= high and chosen & (chosen - 1) == 0
    if low < chosen < high and servers > 1:
        assert 2 * servers <= nbytes / chosen <= 4 * servers
    if servers <= 1:
        assert chosen >= min(nbytes, high), "a lone server has nothing to balance"


@given(sizes=st.lists(st.integers(1, 300), min_size=1, max_size=8), kinds=st.data())
def test_tables_lie_on_cache_lines_one_after_the_other(sizes: list[int], kinds: st.DataObject) -> None:
    tables = [TableSpec(f"t{n}", (size,), dtype=kinds.draw(st.sampled_from(("f32", "f64")))) for n, size in enumerate(sizes)]
    layout = Layout.of(tables)
    end = 0
    for place, table in zip(layout.places, tables):
        assert place.table is table and place.offset % 64 == 0 and end <= place.offset < end + 64
        end = place.offset + table.nbytes
    assert layout.nbytes == end


def test_names_may_stand_in_paths_and_logs() -> None:
    for name in ("w", "layer1.weight", "A-b_c", "_x", "7"):
        assert check_name(name, "name") == name


@pytest.mark.parametrize(("value", "finite"), [(1, True), (1.5, True), (True, False), ("1", False), (math.inf, False), (10**400, False)])
def test_a_finite_number_is_one_that_a_float_can_hold(value: object, finite: bool) -> None:
    assert is_finite_number(value) is finite
