"""Scans of rows that are named by long keys: each answer fits into a frame, and none is left out or comes twice."""

from __future__ import annotations

import pytest

from plugml.core.limits import Limits
from plugml.wire import messages as m
from tests.scenario.kit import Box, job
from tests.scenario.sparse import read_scanned, sparse_table


@pytest.mark.parametrize("model", ["asp", "bsp"])
def test_long_keys_of_narrow_rows_are_scanned_in_answers_that_fit(model: str) -> None:
    there = Box(job(sparse_table(width=1, dtype="f32", index="str", optimizer="add"), consistency=model, snapshot_every=1))
    keys = [f"{number:0250d}" for number in range(20_000)]
    for seq, first in enumerate((0, 10_000), 1):
        there.push({}, seq=seq, rows={"e": {key: [1.0] for key in keys[first : first + 10_000]}})
    there.tick(0)
    there.take()
    for at in (0, 1) if model == "bsp" else (0,):
        found: list[object] = []
        cursor = 0
        while True:
            there.scan(cursor=cursor, at=at)
            (scanned,) = there.take(m.Scanned)
            assert sum(memoryview(frame).nbytes for frame in scanned.payload) <= 1 << 20 < Limits().frame_bytes_max
            found += read_scanned(there.spec, scanned)
            cursor = scanned.next
            if not cursor:
                break
        assert len(found) == len(set(found)) == 20_000 and set(found) == set(keys)


def test_a_key_longer_than_an_answer_should_be_comes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plugml.server.buckets.SCAN_BYTES", 60)
    there = Box(job(sparse_table(width=1, dtype="f32", index="str", optimizer="add"), consistency="asp"))
    there.push({}, rows={"e": {letter * 200: [1.0] for letter in "abc"}})
    there.take()
    cursor, found = 0, []
    for _ in range(3):
        there.scan(cursor=cursor)
        (scanned,) = there.take(m.Scanned)
        found += read_scanned(there.spec, scanned)
        cursor = scanned.next
    assert cursor == 0 and sorted(found) == [letter * 200 for letter in "abc"]
