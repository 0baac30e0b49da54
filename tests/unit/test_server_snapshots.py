"""Snapshots: what a closed clock held, whatever is stepped later; the newest two, and what costs memory is given back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from plugml.core.errors import Code
from plugml.core.limits import MIB
from plugml.server.pool import SPARE_BYTES
from plugml.server.rows import Rows
from plugml.wire import messages as m
from tests.scenario.kit import Box, job, seen, table
from tests.scenario.sparse import read_scanned, sparse_table


def box(**rest: Any) -> Box:
    tables = (table("w", 40, "f64", "momentum", block_bytes=80), sparse_table(width=1, dtype="f64", optimizer="add"))
    made = Box(job(*tables, snapshot_every=2, **rest), ring=4)
    made.take()
    return made


def step(there: Box, clock: int, rows: dict[int, Any]) -> None:
    there.push({"w": np.full(40, clock + 1.0)}, seq=clock + 1, clock=clock, rows={"e": rows})
    there.tick(clock)
    there.take()


def kept(there: Box, at: int) -> tuple[list[float], dict[Any, float]]:
    there.pull_at(at)
    answers = there.take(m.Values)
    assert all(answer.closed == at and answer.request == 1 for answer in answers)
    there.scan(at=at)
    (scanned,) = there.take(m.Scanned)
    assert scanned.closed == at
    return seen(answers, there.spec).tolist(), {row: float(value[0]) for row, value in read_scanned(there.spec, scanned).items()}


def codes(there: Box) -> set[str]:
    return {Code(refusal.code).name for refusal in there.take(m.Refuse)}


def test_a_snapshot_is_what_was_closed_then() -> None:
    there = box()
    shown: dict[int, Any] = {}
    for clock in range(9):
        step(there, clock, {clock % 3: [1.0], 10 + clock: [1.0]})
        closed = clock + 1
        if closed % 2 == 0:
            there.pull()
            shown[closed] = (seen(there.take(m.Values), there.spec).tolist(), {row: float(there.row(row)[0]) for row in (*range(3), *range(10, 11 + clock)) if there.row(row)[0]})
        for at in (closed // 2 * 2, closed // 2 * 2 - 2):
            if at > 0:
                assert kept(there, at) == shown[at]


def test_what_is_not_kept_is_refused_by_its_reason() -> None:
    there = box()
    for clock in range(7):
        step(there, clock, {1: [1.0]})
    for at, code in ((8, "AGAIN"), (9, "AGAIN"), (7, "RANGE"), (5, "RANGE"), (2, "RANGE")):
        there.pull_at(at)
        assert codes(there) == {code}, at
        there.scan(at=at)
        assert codes(there) == {code}, at
    there.pull_at(0)
    assert codes(there) == {"RANGE"}


def test_without_snapshots_none_is_kept() -> None:
    there = Box(job(table("w", 1)))
    there.push({"w": [1.0]})
    there.tick(0)
    there.take()
    there.pull_at(1)
    assert codes(there) == {"RANGE"}
    held = there.servers["s0.1"].jobs[1].ranges[0]
    assert not held.contents.kept


def test_arrays_of_a_snapshot_are_given_back_when_it_is_over() -> None:
    """No more than those of two snapshots and of two steps are ever in use; nothing is used while it is kept."""
    there = box()
    memory = there.servers["s0.1"]._memory
    for clock in range(30):
        step(there, clock, {1: [1.0]})
    blocks = 4 + 1
    assert sum(len(arrays) for arrays in memory._free.values()) <= 8 * blocks
    for held in there.servers["s0.1"].jobs[1].ranges.values():
        used = [array for snapshot in held.contents.kept.values() for array in snapshot.blocks.values()]
        for arrays in memory._free.values():
            assert not any(free is array for free in arrays for array in used)


def test_a_clock_in_which_a_block_was_not_stepped_shares_it() -> None:
    there = box()
    step(there, 0, {1: [1.0]})
    for clock in (1, 2, 3, 4, 5):
        there.push({}, seq=clock + 1, clock=clock, rows={"e": {1: [1.0]}})
        there.tick(clock)
    there.take()
    assert kept(there, 4)[0] == kept(there, 6)[0] == there.values("w").tolist()
    step(there, 6, {1: [1.0]})
    assert kept(there, 6)[0] != there.values("w").tolist()


def test_no_memory_for_a_snapshot_does_not_end_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    there = box()

    def keep(self: Rows) -> Any:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Rows, "keep", keep)
        for clock in (0, 1):
            step(there, clock, {1: [1.0]})
    held = there.servers["s0.1"].jobs[1].ranges
    assert sum(len(one.blocks._kept) for one in held.values() if one.contents.buckets.held) == 0
    there.scan(at=2)
    (refusal,) = there.take(m.Refuse)
    assert Code(refusal.code) is Code.NOSPC and "snapshot of clock 2" in refusal.text
    for clock in (2, 3):
        step(there, clock, {1: [1.0]})
    assert kept(there, 4)[1] == {1: 4.0}


def test_a_host_without_room_for_a_copy_keeps_none_and_training_goes_on() -> None:
    """Values of 8 MiB: a snapshot is theirs alone until they are stepped, and the host has no room for others then."""
    left = [SPARE_BYTES + 16 * MIB]
    made = job(table("w", MIB, "f64", "add", block_bytes=MIB), sparse_table(width=1, dtype="f64", optimizer="add"), snapshot_every=1)
    there = Box(made, room=lambda: left[0])
    ones, rows = np.ones(MIB), {"e": {1: [1.0]}}
    for clock in range(4):
        left[0] = SPARE_BYTES + (MIB if clock == 1 else 16 * MIB)
        there.push({"w": ones}, seq=clock + 1, clock=clock, rows=rows)
        there.tick(clock)
        assert len(there.take(m.PushAck)) == 1
        held = there.servers["s0.1"].jobs[1].ranges[0].contents
        there.scan(at=clock + 1)
        assert codes(there) == ({"NOSPC"} if clock == 1 else set())
    assert [clock for clock, snapshot in held.kept.items() if snapshot is not None] == [3, 4]
    left[0] = 0
    there.push({"w": ones}, seq=5, clock=4, rows=rows)
    there.tick(4)
    assert held.kept[5] is not None, "the snapshot that it follows has left as much room as it takes"
    assert there.values("w")[0] == there.row(1)[0] == 5.0


def test_a_pull_of_a_snapshot_asks_for_blocks_alone() -> None:
    there = box()
    for clock in (0, 1):
        step(there, clock, {1: [1.0]})
    number = next(iter(there.map.ranges))
    item = there.map.ranges[number]
    there.feed(item.primary, "a0.1", m.PullAt(1, number, item.epoch, 1, 3, 2, (m.Segment(1, 0, 1, 16, m.IDS, m.ABSENT),)))
    (refusal,) = there.take(m.Refuse)
    assert (Code(refusal.code), refusal.request) == (Code.SIZE, 3)
