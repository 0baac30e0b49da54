"""Sums of several workers' pushes, how far behind a push was, and sparse streams over restarts: each push counts once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugml.core.errors import Code
from plugml.server import streams
from plugml.wire import messages as m
from tests.scenario.kit import Box, job, table
from tests.scenario.sparse import by_range, joined, sparse_table

NUMBER = table("n", 1, "f64", "add")


def box(*tables: Any, **rest: Any) -> Box:
    made = Box(job(*tables, **rest))
    made.take()
    return made


def part(worker: int, seq: int = 1, gen: int = 1, prev: int | None = None, clock: int = 0, weight: float = 1.0) -> m.Component:
    return m.Component(worker, gen, seq, seq - 1 if prev is None else prev, clock, weight)


# -- taken as one


@pytest.mark.parametrize("model", ["bsp", "asp"])
@pytest.mark.parametrize("combine", ["sum", "mean"])
def test_a_sum_counts_as_its_parts_would(model: str, combine: str) -> None:
    found = []
    for together in (True, False):
        there = box(NUMBER, sparse_table(width=1, dtype="f64", optimizer="add"), workers=3, consistency=model, combine=combine)
        if together:
            there.push_sum({"n": [9.0]}, [part(0, weight=2.0), part(2, weight=2.0)], rows={"e": {4: [5.0]}})
        else:
            there.push({"n": [4.0]}, 0, weight=2.0, rows={"e": {4: [2.0]}})
            there.push({"n": [5.0]}, 2, weight=2.0, rows={"e": {4: [3.0]}})
        there.push({"n": [3.0]}, 1, weight=2.0, rows={"e": {4: [1.0]}})
        for worker in range(3):
            there.tick(0, worker, weight=2.0)
        held = there.servers["s0.1"].jobs[1].ranges[0]
        found.append((there.values("n")[0], there.row(4)[0], dict(held.rows)))
    assert found[0] == found[1]
    assert found[0][0] == {"sum": 12.0, "mean": 4.0}[combine]


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "nesterov", "adagrad", "rmsprop", "adam", "adamw", "add", "assign"])
@pytest.mark.parametrize("model", ["asp", "bsp"])
def test_a_sum_is_taken_where_it_does_what_its_parts_do_alone(optimizer: str, model: str) -> None:
    """Steps at once by an optimizer with a memory, or by `assign`, are not what one step with the sum is."""
    found = []
    for together in (True, False):
        there = box(table("n", 1, "f64", optimizer), sparse_table(width=1, dtype="f64", optimizer=optimizer), workers=2, consistency=model)
        before = there.servers["s0.1"].digest()
        if together:
            there.push_sum({"n": [6.0]}, [part(0), part(1)], rows={"e": {4: [6.0]}})
        else:
            there.push({"n": [4.0]}, 0, rows={"e": {4: [4.0]}})
            there.push({"n": [2.0]}, 1, rows={"e": {4: [2.0]}})
        refusals = there.take(m.Refuse)
        if refusals:
            assert together and model == "asp" and optimizer not in ("sgd", "add")
            assert [(refusal.worker, Code(refusal.code)) for refusal in refusals] == [(0, Code.RANGE), (1, Code.RANGE)]
            assert f"a step of {optimizer} with each push" in refusals[0].text
            assert there.servers["s0.1"].digest() == before
            return
        for worker in range(2):
            there.tick(0, worker)
        found.append((there.values("n")[0], there.row(4)[0]))
    assert found[0] == pytest.approx(found[1], rel=1e-12)


def test_a_sum_of_unequal_parts_or_clocks_is_refused_for_each() -> None:
    there = box(NUMBER, workers=3)
    for parts in ([part(0), part(1, weight=2.0)], [part(0), part(1, clock=1)], [part(0), part(4097)]):
        there.push_sum({"n": [1.0]}, parts)
        refusals = there.take(m.Refuse)
        assert [(refusal.worker, Code(refusal.code)) for refusal in refusals] == [(one.worker, Code.RANGE) for one in parts]
    assert there.servers["s0.1"].jobs[1].ranges[0].rows == {}


def test_a_worker_that_stands_twice_in_a_sum_and_a_sum_of_none_break_the_protocol() -> None:
    there = box(NUMBER)
    for parts in ([part(0), part(0, seq=2)], []):
        there.push_sum({"n": [1.0]}, parts)
        assert there.logs[-1][1].event == "peer_dropped"
    assert not there.take()


def test_a_part_that_no_member_weighs_comes_on_top_of_the_total() -> None:
    """Worker 2 did not live to tick: its push cannot be taken out of the sum, so it is averaged in."""
    there = box(NUMBER, sparse_table(width=1, dtype="f64", optimizer="add"), workers=3)
    there.push_sum({"n": [30.0]}, [part(0), part(1), part(2)], rows={"e": {4: [30.0]}})
    there.clock(m.Leave, 0, "lost", worker=2)
    there.tick(0, 0)
    there.tick(0, 1)
    assert there.values("n")[0] == there.row(4)[0] == 10.0


def test_a_sum_of_which_one_worker_alone_pushed_to_a_table_weighs_what_its_tick_says() -> None:
    there = box(NUMBER, sparse_table(width=1, dtype="f64", optimizer="add"), workers=2)
    there.push_sum({"n": [6.0]}, [part(0), part(1)], rows={"e": {4: [6.0]}})
    there.clock(m.Tick, 0, ((0, 1.0),), worker=0)
    there.clock(m.Tick, 0, ((1, 1.0),), worker=1)
    assert there.values("n")[0] == there.row(4)[0] == 6.0


def test_a_sum_of_strangers_alone_is_dropped() -> None:
    there = box(NUMBER, sparse_table(width=1, dtype="f64", optimizer="add"), workers=3)
    there.push_sum({"n": [30.0]}, [part(1), part(2)], rows={"e": {4: [30.0]}})
    there.clock(m.Leave, 0, "lost", worker=1)
    there.clock(m.Leave, 0, "lost", worker=2)
    there.tick(0, 0)
    assert there.values("n")[0] == there.row(4)[0] == 0.0


def test_a_pull_behind_the_own_part_of_a_sum_is_answered() -> None:
    there = box(NUMBER, workers=2, consistency="asp", combine="sum")
    for worker in (0, 1):
        there.pull(worker=worker, after=1, request=worker + 1)
    assert not there.take(m.Values)
    there.push_sum({"n": [3.0]}, [part(0), part(1)])
    assert [values.request for values in there.take(m.Values)] == [1, 2]


def test_a_new_incarnation_within_a_sum_fences_its_waiting_pulls() -> None:
    there = box(NUMBER, workers=2, consistency="asp")
    there.pull(worker=1, after=9)
    there.push_sum({"n": [3.0]}, [part(0), part(1, gen=2)])
    assert [Code(refusal.code) for refusal in there.take(m.Refuse)] == [Code.FENCED]


def test_parts_of_a_sum_count_against_what_one_worker_may_push_in_a_clock() -> None:
    there = box(NUMBER, workers=2)
    held = there.servers["s0.1"].jobs[1].ranges[0]
    object.__setattr__(held, "_limits", held._limits.__class__(staged_max=2))
    there.push_sum({"n": [1.0]}, [part(0), part(1)])
    there.push({"n": [1.0]}, 1, seq=2)
    there.take()
    there.push_sum({"n": [1.0]}, [part(0, 2), part(1, 3)])
    refusals = there.take(m.Refuse)
    assert len(refusals) == 2 and all("worker 1 pushed more than 2 times in clock 0" in refusal.text for refusal in refusals)


# -- behind


def test_a_push_is_told_how_many_steps_of_others_came_between() -> None:
    there = box(NUMBER, workers=3, consistency="asp")
    there.push({"n": [1.0]}, 0)
    there.pull(worker=2)
    (values,) = there.take(m.Values)
    for seq, worker in enumerate((0, 1, 1, 2, 0), 2):
        there.push({"n": [1.0]}, worker, seq=seq, prev=there.servers["s0.1"].jobs[1].ranges[0].streams.last(worker, 1))
    there.take()
    there.push({"n": [1.0]}, 2, seq=9, prev=5, base=values.version)
    there.push({"n": [1.0]}, 2, seq=9, prev=5, base=values.version)
    assert [ack.behind for ack in there.take(m.PushAck)] == [4, 4], "a repeat is told the same"
    there.push({"n": [1.0]}, 2, seq=10, prev=9)
    assert [ack.behind for ack in there.take(m.PushAck)] == [0], "base 0: computed on nothing that was pulled"


def test_nobody_is_behind_under_bsp() -> None:
    there = box(NUMBER, workers=2)
    there.pull()
    (values,) = there.take(m.Values)
    there.push({"n": [1.0]}, 1)
    there.push({"n": [1.0]}, 0, base=values.version)
    assert [ack.behind for ack in there.take(m.PushAck)] == [0, 0]


def test_what_is_remembered_is_bounded() -> None:
    known = streams.Streams()
    for version in range(2, 3 * streams.HISTORY):
        known.stepped((part(1),), version)
    known.measure((part(0),), 1, at_once=True)
    assert known.behind(0) == streams.HISTORY


# -- sparse streams over restarts


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_pushes_that_touch_few_ranges_count_once_over_restarts(data: st.DataObject) -> None:
    """An agent as far as a stream is concerned: it sends each push to the ranges of its rows, any of which may be lost, or
    its ack; it may be killed at any moment, and its successor asks LAST of the ranges that the pending push touches."""
    spec = job(sparse_table(width=1, dtype="i64", optimizer="add", buckets=8), consistency="asp")
    there = Box(spec, ("s0.1", "s1.1"), 16)
    want: dict[int, int] = {}
    prev: dict[int, int] = {}
    for seq in range(1, data.draw(st.integers(2, 12)) + 1):
        rows = data.draw(st.dictionaries(st.integers(0, 30), st.integers(1, 5), min_size=1, max_size=4))
        for row, number in rows.items():
            want[row] = want.get(row, 0) + number
        made = {number: joined(groups) for number, groups in by_range(spec, 16, {"e": {row: [n] for row, n in rows.items()}}).items()}
        owing = set(made)
        for _ in range(40):
            fate = data.draw(st.sampled_from(("well", "well", "lost", "ack lost", "killed")))
            if fate == "killed":
                prev = {}
                owing = set(made)
                continue
            number = data.draw(st.sampled_from(sorted(owing)))
            item = there.map.ranges[number]
            if number not in prev:
                there.feed(item.primary, "a0.1", m.LastAsk(1, number, item.epoch, 1, 0, 1))
                (told,) = there.take(m.LastTold)
                prev[number] = told.seq
                if told.seq >= seq:
                    owing.discard(number)
            elif fate != "lost":
                there.send_push(number, (part(0, seq, prev=prev[number]),), *made[number])
                (answer,) = there.take()
                assert isinstance(answer, m.PushAck) and answer.seq == seq
                if fate == "well":
                    prev[number] = seq
                    owing.discard(number)
            if not owing:
                break
        for number in sorted(owing):  # it has been unlucky for long enough
            item = there.map.ranges[number]
            there.feed(item.primary, "a0.1", m.LastAsk(1, number, item.epoch, 1, 0, 1))
            prev[number] = there.take(m.LastTold)[0].seq
            if prev[number] < seq:
                there.send_push(number, (part(0, seq, prev=prev[number]),), *made[number])
                assert [ack.seq for ack in there.take(m.PushAck)] == [seq]
            prev[number] = seq
    for row, number in want.items():
        assert there.row(row).tolist() == [number]
    np.testing.assert_array_equal(there.row(31), [0])
