"""The map of a job: what lies where, and what is no map."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from plugml.core.errors import PeerError
from plugml.core.job import JobSpec
from plugml.core.jobmap import RUNNING, Assignment, JobMap, pieces, ranges_used
from plugml.core.keys import block_key, clock_key, range_of, table_hash
from plugml.core.table import TableSpec

SPEC = JobSpec("job", 2, (TableSpec("w", (10, 64), block_bytes=256), TableSpec("b", (10,), dtype="f64", block_bytes=64)))
MAP = JobMap(
    3, 7, SPEC, RUNNING, "", 16,
    {number: Assignment(2, ("s0.aa",)) for number in ranges_used(SPEC, 16)}, {"s0.aa": "ipc:///x"}, {0: 4, 1: 1},
)  # fmt: skip


def test_the_pieces_cover_the_files_in_order() -> None:
    found = pieces(SPEC, 16)
    end = 0
    for piece in found:
        assert end <= piece.offset < end + 64
        end = piece.offset + piece.nbytes
    assert end == SPEC.layout.nbytes
    assert sum(piece.nbytes for piece in found) == sum(table.nbytes for table in SPEC.tables)
    first = found[0]
    assert first.range == range_of(block_key(table_hash("job", "w"), 0), 16)


def test_the_clock_has_a_range_too() -> None:
    assert range_of(clock_key("job"), 16) in ranges_used(SPEC, 16)
    assert MAP.clock_range == range_of(clock_key("job"), 16)
    assert MAP.primary(MAP.clock_range) == "s0.aa" and MAP.epoch(MAP.clock_range) == 2
    assert MAP.primary(99) == "" and MAP.epoch(99) == 0


def test_a_map_comes_back_from_its_document_through_msgpack() -> None:
    for use_list in (True, False):
        assert JobMap.from_document(msgpack.unpackb(msgpack.packb(MAP.to_document()), use_list=use_list)) == MAP


def test_a_lost_range_has_no_primary() -> None:
    assert Assignment(3, ()).primary == ""


BAD = [
    ("number", -1), ("number", "3"), ("number", None), ("token", 1.5), ("token", 1 << 64), ("spec", {}), ("spec", None),
    ("state", "sleeping"), ("state", []), ("reason", 5), ("ring_ranges", 0), ("ring_ranges", 12), ("ring_ranges", 1 << 20),
    ("ranges", {}), ("ranges", [1]), ("ranges", [[1, 2]]), ("ranges", [[16, 1, []]]), ("ranges", [[1, -1, []]]),
    ("ranges", [[1, 1, "s0"]]), ("ranges", [[1, 1, [5]]]), ("ranges", [[[], 1, []]]), ("endpoints", []), ("endpoints", {"a": 1}),
    ("endpoints", {1: "a"}), ("gens", [[1]]), ("gens", [[1, float("inf")]]), ("gens", [[True, 1]]), ("gens", 7),
    ("spec", JobSpec("job", 1, (TableSpec("w", (1,)),)).to_document()),
    ("spec", JobSpec("job", 1, (TableSpec("w", (1 << 50,), block_bytes=4),)).to_document()),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), BAD, ids=lambda value: str(value)[:30])
def test_what_is_no_map_is_refused(key: str, value: Any) -> None:
    with pytest.raises(PeerError, match="no job map"):
        JobMap.from_document({**MAP.to_document(), key: value})
    document = MAP.to_document()
    del document[key]
    with pytest.raises(PeerError, match="no job map"):
        JobMap.from_document(document)


@pytest.mark.parametrize("document", [None, [], "map", 7])
def test_what_is_no_document_is_no_map(document: Any) -> None:
    with pytest.raises(PeerError, match="no job map"):
        JobMap.from_document(document)
