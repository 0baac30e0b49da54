"""Room for rows: a job's share and what the host has left; who does not fit is refused whole, and others go on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from plugml.core.errors import Code, RequestError
from plugml.core.limits import MIB
from plugml.server.pool import ASKED_BYTES, SPARE_BYTES, Pool
from plugml.server.rows import Rows
from plugml.wire import messages as m
from tests.scenario.kit import Box, job, table
from tests.scenario.sparse import sparse_table


def refused(there: Box) -> list[tuple[str, str]]:
    return [(Code(refusal.code).name, refusal.text) for refusal in there.take(m.Refuse)]


def rows_of(count: int, first: int = 0) -> dict[str, Any]:
    return {"e": {row: [1.0, 1.0] for row in range(first, first + count)}}


@pytest.mark.parametrize("model", ["asp", "bsp"])
def test_rows_beyond_the_jobs_share_are_refused_and_nothing_of_the_push_is_applied(model: str) -> None:
    """f64 x 2 with one state array: 32 bytes a row; the 24 of the dense table are taken off beforehand."""
    there = Box(job(sparse_table(dtype="f64", optimizer="momentum"), table("w", 3, "f64"), consistency=model, memory_bytes=24 + 4 * 32))
    there.push({}, seq=1, rows=rows_of(3))
    there.take()
    before = there.servers["s0.1"].digest()
    there.push({"w": [1, 1, 1]}, seq=2, rows=rows_of(3, first=2))
    ((code, text),) = refused(there)
    assert code == "NOSPC" and "table 'e': 64 bytes of new rows do not fit, 96 of this server's share of 128 are taken" in text
    assert there.servers["s0.1"].digest() == before
    there.push({"w": [1, 1, 1]}, seq=2, rows=rows_of(2, first=2))
    there.push({}, seq=3, rows=rows_of(4))
    assert len(there.take(m.PushAck)) == 2, "rows that are there take no more room"
    there.pull(rows={"e": [1, 99]})
    assert there.take(m.Values), "reading takes none"


def test_workers_that_push_the_same_new_rows_take_the_room_once() -> None:
    there = Box(job(sparse_table(dtype="f64"), workers=3, memory_bytes=4 * 16))
    there.take()
    for worker in range(3):
        there.push({}, worker, rows=rows_of(4))
    assert len(there.take(m.PushAck)) == 3
    assert there.servers["s0.1"].jobs[1].pool.used == 64
    for worker in range(3):
        there.tick(0, worker)
    assert there.row(3).tolist() == [-0.01, -0.01]
    there.take()
    there.push({}, seq=2, clock=1, rows=rows_of(1, first=4))
    assert [code for code, _ in refused(there)] == ["NOSPC"]


def test_each_server_has_its_share() -> None:
    """As many buckets of a hundred as it has; what the dense tables need is nobody's."""
    for count in (0, 30):
        dense = (table("w", count, "f64"),) if count else ()
        there = Box(job(sparse_table(dtype="f64", buckets=16), *dense, memory_bytes=100 + 8 * count), ("s0.1", "s1.1", "s2.1"), 16)
        jobs = [machine.jobs[1] for machine in there.servers.values()]
        held = [sum(len(held.contents.buckets.held) for held in hosted.ranges.values()) for hosted in jobs]
        assert [hosted.pool.share for hosted in jobs] == [100 * here // 16 for here in held] and sum(held) == 16
    assert Box(job(sparse_table())).servers["s0.1"].jobs[1].pool.share is None


def test_a_job_whose_dense_tables_leave_nothing_gets_no_row() -> None:
    there = Box(job(sparse_table(), table("w", 3, "f64"), memory_bytes=24))
    there.push({"w": [1, 1, 1]}, rows=rows_of(1))
    assert [code for code, _ in refused(there)] == ["NOSPC"]
    there.push({"w": [1, 1, 1]})
    assert there.take(m.PushAck)


@pytest.mark.parametrize("storage, need", [("f64", 3 * 24), ("f16", 3 * 10)])
def test_dense_tables_beyond_the_jobs_memory_are_refused_when_the_job_comes(storage: str, need: int) -> None:
    """Adam keeps two arrays of state, never in half precision.  A standing cluster is asked by any agent: no launcher has looked."""
    spec = job(table("w", 3, "f64", "adam", storage=storage), memory_bytes=need - 1)
    there = Box(spec, ("s0.1", "s1.1"), 16)
    (end,) = {item.message.reason for item in there.heard if isinstance(item.message, m.JobEnd)}
    assert f"may take {need - 1} bytes of the servers' memory, and its dense tables need {need} for" in end and "--memory" in end
    there.push({"w": [1, 1, 1]})
    assert refused(there) == [("NOSPC", end)]
    there = Box(job(table("w", 3, "f64", "adam", storage=storage), memory_bytes=need))
    there.push({"w": [1, 1, 1]})
    assert there.take(m.PushAck)


def test_a_host_without_room_refuses_rows_and_keeps_serving() -> None:
    left = [SPARE_BYTES + 10 * MIB]
    there = Box(job(sparse_table(width=1 << 18), consistency="asp"), room=lambda: left[0])
    there.take()
    wide = {"e": {row: np.ones(1 << 18) for row in range(20)}}
    there.push({}, rows=wide)
    ((code, text),) = refused(there)
    assert code == "NOSPC" and "new rows need" in text and "add servers" in text
    there.push({}, rows={"e": {row: np.ones(1 << 18) for row in range(9)}})
    assert there.take(m.PushAck)
    left[0] = 0
    there.push({}, seq=2, rows={"e": {3: np.ones(1 << 18)}})
    assert there.take(m.PushAck)
    there.push({}, seq=3, rows={"e": {9: np.ones(1 << 18), 3: np.ones(1 << 18)}})
    assert [code for code, _ in refused(there)] == ["NOSPC"]
    assert there.row(3)[0] == np.float32(0) - np.float32(0.01) - np.float32(0.01)


def test_the_host_is_not_asked_for_each_push() -> None:
    asked = []
    pool = Pool(lambda: asked.append(1) or (1 << 40))
    for _ in range(100):
        pool.admit(1000, 1000, "table 'e'")
        pool.take(1000, 1000)
    assert len(asked) == 1 and pool.used == pool.taken == 100_000
    pool.admit(1, ASKED_BYTES, "table 'e'")
    assert len(asked) == 2


def test_what_is_promised_to_dense_tables_is_not_given_to_rows() -> None:
    there = Box(job(sparse_table(width=1 << 18), table("w", 5 * MIB // 4), consistency="asp"), room=lambda: SPARE_BYTES + 10 * MIB)
    there.take()
    there.push({}, rows={"e": {row: np.ones(1 << 18) for row in range(6)}})
    assert [code for code, _ in refused(there)] == ["NOSPC"]
    there.push({}, rows={"e": {row: np.ones(1 << 18) for row in range(4)}})
    assert there.take(m.PushAck)


def test_the_system_refusing_memory_is_a_refusal_too(monkeypatch: pytest.MonkeyPatch) -> None:
    there = Box(job(sparse_table(), consistency="asp"))
    there.take()
    contents = there.servers["s0.1"].jobs[1].ranges[0].contents
    before = contents.digest()

    def reserve(self: Rows, new: int, key_bytes: int) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Rows, "reserve", reserve)
        there.push({}, rows=rows_of(2))
    assert [code for code, _ in refused(there)] == ["NOSPC"]
    with monkeypatch.context() as patch:
        patch.setattr(Rows, "read", lambda self, ids, slots: reserve(self, 0, 0))
        there.push({}, rows=rows_of(2))
        there.pull(rows={"e": [1]})
    assert [code for code, _ in refused(there)] == ["NOSPC", "NOSPC"]
    assert contents.digest() == before
    there.push({}, rows=rows_of(2))
    assert there.take(m.PushAck)


def test_beats_count_rows_and_their_bytes() -> None:
    there = Box(job(sparse_table(dtype="f64", index="str"), table("w", 4, "f64"), consistency="asp"))
    there.push({}, rows={"e": {"one": [1, 1], "three": [1, 1]}})
    counters = there.servers["s0.1"]._counters()
    assert counters["rows"] == 2
    pool = there.servers["s0.1"].jobs[1].pool
    assert pool.used == 32 and pool.taken > 32 + len("onethree") and counters["bytes"] == 32 + pool.taken


def test_no_room_is_said_with_the_numbers() -> None:
    pool = Pool(lambda: SPARE_BYTES + 5)
    with pytest.raises(RequestError, match="table 'e': new rows need 6 bytes of memory, the server has 5 left"):
        pool.admit(1, 6, "table 'e'")
    pool.admit(1, 5, "table 'e'")
