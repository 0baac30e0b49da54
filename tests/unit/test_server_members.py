"""Who takes part in a job that goes on from a checkpoint, with the same number of workers, another one, or without those that had joined."""

from __future__ import annotations

import pytest

from plugml.server.members import Members


def trained(workers: int = 2) -> Members:
    """Two workers have finished 5 clocks, 7 that joined at clock 3 and left at 4, 8 that joined at 4 and has finished 5 with the others."""
    members = Members(workers)
    for worker in range(workers):
        members.join(worker, 1, "a0", 0)
    for worker, first, clocks in ((7, 3, 1), (8, 4, 1)):
        while members.slowest < first:
            for row in list(members.rows.values()):
                if row.here and row.finished < first:
                    members.finish(row)
        members.join(worker, 1, "a1", first)
        for _ in range(clocks):
            members.finish(members.rows[worker])
        if worker == 7:
            members.leave(members.rows[7])
    while members.slowest < 5:
        for row in list(members.rows.values()):
            if row.here and row.finished < 5:
                members.finish(row)
    members.check()
    return members


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("cut", [4, 5, -1])
def test_all_of_the_job_and_nobody_else_stands_at_the_cut(workers: int, cut: int) -> None:
    members = trained()
    members.rewind(cut, workers)
    members.check()
    clock = cut if cut >= 0 else 5
    assert [(row.worker, row.finished, row.here, row.gen) for row in members.rows.values()] == [(worker, clock, True, 0) for worker in range(workers)]
    assert members.slowest == clock and members.count == workers


def test_new_ones_of_a_fuzzy_cut_begin_with_the_slowest() -> None:
    members = trained()
    members.finish(members.rows[0])
    members.rewind(-1, 3)
    members.check()
    assert [row.finished for row in members.rows.values()] == [6, 5, 5]


def test_who_had_left_before_the_cut_stays_away() -> None:
    members = trained(3)
    members.leave(members.rows[1])
    members.finish(members.rows[0])
    members.rewind(6, 3)
    members.check()
    assert [(row.worker, row.here) for row in members.rows.values()] == [(0, True), (1, False), (2, True)]
