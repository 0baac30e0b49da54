"""Twins: ten equal checksums in a row, then at doublings; workers apart; many workers; against a model that sees all."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from plugml.server.twins import KEPT, STREAK, Pair, Twins


class Watch:
    """Twins, and everything that they said."""

    def __init__(self, workers: int = 2) -> None:
        self.twins = Twins()
        self.said: list[Pair] = []
        self.finished = dict.fromkeys(range(workers), 0)

    def tick(self, worker: int, crc: int) -> Pair | None:
        clock = self.finished[worker]
        self.finished[worker] = clock + 1
        pair = self.twins.note(worker, clock, crc, min(self.finished.values()))
        self.twins.check()
        if pair is not None:
            self.said.append(pair)
        return pair


def test_ten_equal_clocks_make_twins_and_then_doublings() -> None:
    watch = Watch()
    for clock in range(100):
        watch.tick(0, clock + 1)
        watch.tick(1, clock + 1)
    assert watch.said == [(1, 0, 10), (1, 0, 20), (1, 0, 40), (1, 0, 80)]


def test_a_clock_that_differs_begins_anew() -> None:
    watch = Watch()
    for clock in range(60):
        watch.tick(0, clock + 1)
        watch.tick(1, 7_000 if clock in (9, 25) else clock + 1)
    assert watch.said == [(1, 0, 10), (1, 0, 10), (1, 0, 20)]


def test_nothing_pushed_is_nothing_equal() -> None:
    watch = Watch()
    for clock in range(60):
        for worker in (0, 1):
            watch.tick(worker, 0 if clock % 10 == 9 else 5)
    assert watch.said == []


def test_a_clock_without_a_push_ends_the_streak_of_twins_too() -> None:
    watch = Watch()
    for clock in range(25):
        for worker in (0, 1):
            watch.tick(worker, 0 if clock == 12 else 5)
    assert watch.said == [(1, 0, 10), (1, 0, 10)]


def test_workers_that_are_apart_are_compared() -> None:
    """Worker 1 goes 20 clocks ahead, falls back, and is met again."""
    watch = Watch()
    for clock in range(20):
        watch.tick(1, clock + 1)
    assert watch.said == []
    for clock in range(10):
        watch.tick(0, clock + 1)
    assert watch.said == [(0, 1, 10)]
    for clock in range(10, 25):
        watch.tick(0, clock + 1)
    for clock in range(20, 45):
        watch.tick(1, clock + 1)
    watch.tick(0, 26)
    assert [pair.clocks for pair in watch.said] == [10, 20]


def test_workers_too_far_apart_are_not_and_nothing_is_kept_of_them() -> None:
    watch = Watch()
    for clock in range(500):
        watch.tick(1, clock + 1)
    for clock in range(400):
        watch.tick(0, clock + 1)
        assert sum(len(row.crcs) for row in watch.twins._rows.values()) <= 2 * KEPT and len(watch.twins._first) <= KEPT
    assert watch.said == []


def test_of_many_equal_workers_each_is_named_once() -> None:
    watch = Watch(50)
    for clock in range(STREAK):
        for worker in range(50):
            watch.tick(worker, clock + 1)
    assert len(watch.said) == 49 and {pair.worker for pair in watch.said} == set(range(1, 50)) and {pair.other for pair in watch.said} == {0}


def test_the_order_of_ticks_does_not_name_a_pair_twice() -> None:
    watch = Watch(3)
    for clock in range(60):
        order = (0, 1, 2) if clock % 2 else (2, 1, 0)
        for worker in order:
            watch.tick(worker, clock + 1)
    assert sorted(pair.clocks for pair in watch.said) == [10, 10, 20, 20, 40, 40]
    assert len({frozenset(pair[:2]) for pair in watch.said}) == 2


def test_4096_workers_with_4096_gradients_take_little() -> None:
    watch = Watch()
    for clock in range(12):
        for worker in range(4096):
            watch.twins.note(worker, clock, clock * 4096 + worker + 1, clock)
    watch.twins.check()
    assert len(watch.twins._first) <= 2 and all(row.other < 0 for row in watch.twins._rows.values())


def test_who_has_left_is_forgotten() -> None:
    watch = Watch()
    for clock in range(12):
        watch.tick(0, clock + 1)
        watch.tick(1, clock + 1)
    watch.twins.forget(0)
    watch.twins.check()
    for clock in range(12, 40):
        watch.tick(1, clock + 1)
    assert watch.said == [(1, 0, 10)]


def test_a_worker_that_begins_later_is_compared_from_there_on() -> None:
    twins, said = Twins(), []
    for clock in range(40):
        for worker in (0, 1) if clock >= 15 else (0,):
            said.append(twins.note(worker, clock, clock + 1, clock))
    assert [pair for pair in said if pair] == [(1, 0, 10), (1, 0, 20)]


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_two_workers_in_step_against_a_model(data: st.DataObject) -> None:
    """Named exactly when the streak of equal, non-zero checksums is 10, 20, 40 ... long."""
    pushes = data.draw(st.lists(st.sampled_from(["same"] * 15 + ["other", "zero", "half"]), min_size=1, max_size=90))
    watch = Watch()
    streak, due, want = 0, STREAK, []
    for clock, kind in enumerate(pushes):
        crcs = {"same": (clock + 1, clock + 1), "other": (clock + 1, clock + 2), "zero": (0, 0), "half": (0, 9)}[kind]
        order = data.draw(st.sampled_from(((0, 1), (1, 0))))
        for worker in order:
            watch.tick(worker, crcs[worker])
        streak = streak + 1 if kind == "same" else 0
        due = STREAK if not streak else due
        if streak == due:
            want.append(streak)
            due *= 2
    last = [pair.clocks for pair in watch.said]
    # Who is watched may tick before the other one: then a length is seen a clock later.
    assert len(last) in (len(want), len(want) - 1) and all(found in (length, length + 1) for found, length in zip(last, want))


@given(st.integers(0, 1 << 30), st.integers(10, 300))
@settings(max_examples=150, deadline=None)
def test_nobody_is_named_who_was_not_equal(seed: int, ticks: int) -> None:
    """Random orders and speeds; four workers, few different pushes."""
    draw = random.Random(seed)
    watch = Watch(4)
    history: dict[int, list[int]] = {worker: [] for worker in range(4)}
    for _ in range(ticks):
        worker = draw.choice([0, 0, 1, 1, 1, 2, 3])
        crc = draw.choice([7] * 40 + [0, 8])
        history[worker].append(crc)
        pair = watch.tick(worker, crc)
        if pair is not None:
            mine, others = history[pair.worker], history[pair.other]
            both = min(len(mine), len(others))
            streaks = [end for end in range(pair.clocks, both + 1) if all(mine[c] == others[c] != 0 for c in range(end - pair.clocks, end))]
            assert streaks and pair.clocks >= STREAK
