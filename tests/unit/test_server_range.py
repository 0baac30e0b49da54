"""One range: each push once, in order, whatever the network does; closes; pulls that wait; first values; refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugml.core.errors import Code
from plugml.core.job import JobSpec
from plugml.core.limits import Limits
from plugml.server.memory import Memory
from plugml.wire import messages as m
from tests.scenario.kit import Box, job, seen, table

COUNT = table("n", 3, "f64", "add", combine="sum")


def box(spec: JobSpec, **rest: Any) -> Box:
    """With the first Roster out of the way."""
    made = Box(spec, **rest)
    made.take()
    return made


def code_of(refusals: list[Any]) -> list[str]:
    return [Code(refusal.code).name for refusal in refusals]


# -- exactly once


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_any_mess_of_the_network_counts_each_push_once(data: st.DataObject) -> None:
    """Streams push n = 1, 2, 3 ... as (1, n, n^2); messages are doubled, lost, reordered and replayed; streams restart.

    The values are the sums over exactly the pushes that the range says it has taken, and acked is taken.
    """
    model = data.draw(st.sampled_from(("asp", "ssp:2")))
    there = box(job(COUNT, workers=2, consistency=model))
    sent: list[tuple[int, int, int]] = []  # everything that was ever sent and may come (again): (worker, gen, seq)
    gens = [1, 1]
    newest: dict[tuple[int, int], int] = {}
    taken: dict[tuple[int, int], int] = {}

    def deliver(worker: int, gen: int, seq: int) -> None:
        there.push({"n": [1, seq, seq * seq]}, worker, gen, seq)
        for answer in there.take():
            if isinstance(answer, m.PushAck):
                assert answer.gen == gen and answer.seq >= seq
                assert answer.seq <= newest[worker, gen]
                taken[worker, gen] = max(taken.get((worker, gen), 0), answer.seq)
            else:
                assert code_of([answer]) == ["FENCED"] and gen < gens[worker]

    for _ in range(data.draw(st.integers(5, 60))):
        worker = data.draw(st.integers(0, 1))
        what = data.draw(st.sampled_from(("new", "new", "send", "send", "again", "restart", "resend")))
        stream = (worker, gens[worker])
        if what == "new":
            newest[stream] = newest.get(stream, 0) + 1
            sent.append((*stream, newest[stream]))
        elif what == "restart" and newest.get(stream):
            gens[worker] += 1
        elif what == "resend":
            for item in [item for item in sent if item[:2] == stream]:
                deliver(*item)
        elif sent:
            deliver(*data.draw(st.sampled_from(sent)))

        held = there.servers["s0.1"].jobs[1].ranges[0]
        for (row_worker, gen), seq in taken.items():
            row_gen, last = held.rows[row_worker]
            assert gen < row_gen or (gen == row_gen and last == seq)
    want = np.zeros(3)
    for seq in taken.values():
        n = np.arange(1, seq + 1)
        want += (seq, n.sum(), (n * n).sum())
    np.testing.assert_array_equal(there.values("n"), want)


def test_a_repeat_is_acked_with_the_last_one_taken() -> None:
    there = box(job(COUNT, consistency="asp"))
    for seq in (1, 2, 3):
        there.push({"n": [1, 1, 1]}, seq=seq)
    there.take()
    there.push({"n": [1, 1, 1]}, seq=1, prev=0)
    assert [ack.seq for ack in there.take(m.PushAck)] == [3]
    assert there.values("n")[0] == 3


def test_prev_names_the_push_before_it_to_this_range() -> None:
    """A sparse stream leaves numbers out: only prev decides."""
    there = box(job(COUNT, consistency="asp"))
    there.push({"n": [1, 1, 1]}, seq=5, prev=0)
    there.push({"n": [1, 1, 1]}, seq=9, prev=8)
    assert [ack.seq for ack in there.take(m.PushAck)] == [5]
    there.push({"n": [1, 1, 1]}, seq=9, prev=5)
    assert [ack.seq for ack in there.take(m.PushAck)] == [9]
    there.last()
    assert [told.seq for told in there.take(m.LastTold)] == [9]


def test_who_is_wrong_about_the_push_before_is_told_which_was_the_last() -> None:
    there = box(job(COUNT, consistency="asp"))
    there.push({"n": [1, 1, 1]}, seq=1)
    there.push({"n": [1, 1, 1]}, seq=2)
    there.take()
    there.push({"n": [1, 1, 1]}, seq=3, prev=1)
    assert [(type(told), told.seq) for told in there.take()] == [(m.LastTold, 2)]
    assert there.values("n")[0] == 2


def test_a_worker_that_cannot_be_gets_no_row() -> None:
    there = box(job(COUNT, consistency="asp"))
    there.push({"n": [1, 1, 1]}, worker=Limits().workers_max)
    assert code_of(there.take(m.Refuse)) == ["RANGE"]
    assert not there.servers["s0.1"].jobs[1].ranges[0].rows


def test_a_refused_push_does_not_change_what_others_weigh() -> None:
    found = []
    for bad in (False, True):
        there = box(job(table("w", 3, "f64", "add"), workers=2, consistency="asp"))
        there.push({"w": [1, 1, 1]}, worker=0)
        there.push({"w": [1, 1, 1]}, worker=1)
        if bad:
            there.push({"w": [np.inf, 1, 1]}, worker=0, seq=2, weight=1000.0)
            assert code_of(there.take(m.Refuse)) == ["NONFINITE"]
        there.push({"w": [1, 1, 1]}, worker=1, seq=2)
        found.append(there.values("w"))
    np.testing.assert_array_equal(found[0], found[1])


def test_a_new_incarnation_takes_the_row_with_its_first_push() -> None:
    there = box(job(COUNT, consistency="asp"))
    there.push({"n": [1, 1, 1]}, gen=1, seq=1)
    there.last(gen=2)
    assert [told.seq for told in there.take(m.LastTold)] == [0]
    there.push({"n": [1, 1, 1]}, gen=1, seq=2)
    there.push({"n": [1, 1, 1]}, gen=2, seq=1, prev=0)
    there.take()
    there.push({"n": [1, 1, 1]}, gen=1, seq=3)
    there.last(gen=1)
    there.pull(gen=1)
    assert code_of(there.take(m.Refuse)) == ["FENCED"] * 3
    assert there.values("n")[0] == 3


def test_the_roster_fences_before_the_successor_pushes() -> None:
    there = box(job(COUNT, consistency="asp"))
    there.push({"n": [1, 1, 1]}, gen=1, seq=1)
    there.clock(m.Join, gen=2)
    there.take()
    there.push({"n": [1, 1, 1]}, gen=1, seq=2)
    assert code_of(there.take(m.Refuse)) == ["FENCED"]


# -- what is refused leaves no trace


@pytest.mark.parametrize("bad", ({"weight": 1e17}, {"weight": float("nan")}, {"weight": -1.0}, {"clock": -1}))
def test_a_push_that_cannot_be_is_refused_and_may_be_sent_better(bad: dict[str, Any]) -> None:
    there = box(job(COUNT, consistency="asp"))
    held = there.servers["s0.1"].jobs[1].ranges[0]
    component = m.Component(0, 1, 1, 0, 0, 1.0)._replace(**bad)
    effects = held.consider("a0.1", m.Push(1, 0, 1, 1, 0, (component,), (m.Segment(0, 0, 3, 2),), (np.ones(3),)))
    assert code_of([effect.message for effect in effects]) == ["RANGE"]
    assert not there.values("n").any()
    there.push({"n": [1, 1, 1]})
    assert [ack.seq for ack in there.take(m.PushAck)] == [1]


def test_segments_must_be_those_of_the_range() -> None:
    there = box(job(table("w", 4, "f32")))
    good = m.Segment(0, 0, 4, 1)
    cases = [
        ((good._replace(table=1),), 1, "RANGE"),
        ((good._replace(block=7),), 1, "RANGE"),
        ((good._replace(elements=2),), 1, "SIZE"),
        ((good._replace(dtype=2, elements=2),), 1, "SIZE"),
        ((good, good), 2, "RANGE"),
    ]
    for segments, count, code in cases:
        payload = tuple(bytes(segments[0].elements * (8 if segments[0].dtype == 2 else 4)) for _ in range(count))
        there.feed("s0.1", "a0.1", m.Push(1, 0, 1, 1, 0, (m.Component(0, 1, 1, 0, 0, 1.0),), segments, payload))
        assert code_of(there.take()) == [code], segments


def test_a_push_of_several_components_drops_its_sender() -> None:
    there = box(job(COUNT))
    component = m.Component(0, 1, 1, 0, 0, 1.0)
    there.feed("s0.1", "a0.1", m.Push(1, 0, 1, 1, 0, (component, component), (), ()))
    assert there.take() == []
    assert there.logs[-1][1].event == "peer_dropped"


def test_an_overflow_is_refused_whole() -> None:
    """Two tables in one push: the first fits, the second does not, neither is changed."""
    tables = (table("a", 2, "f64", "add", combine="sum"), table("b", 2, "f32", "add", combine="sum"))
    there = box(job(*tables, consistency="asp"))
    there.push({"a": [1, 1], "b": [3e38, 0]})
    there.push({"a": [1, 1], "b": [3e38, 0]}, seq=2)
    assert code_of(there.take(m.Refuse)) == ["NONFINITE"]
    np.testing.assert_array_equal(there.values("a"), [1, 1])
    assert sum(len(pile) for pile in there.servers["s0.1"]._memory._free.values()) == 2  # what was made came back
    there.push({"a": [1, 1], "b": [-3e38, 0]}, seq=3, prev=1)  # not taken: the stream goes on behind the last one taken
    assert there.take(m.PushAck)[-1].seq == 3
    np.testing.assert_array_equal(there.values("b"), [0, 0])


# -- BSP


def close_all(there: Box, clock: int, workers: int, weights: list[float] | None = None) -> None:
    for worker in range(workers):
        there.tick(clock, worker, weight=weights[worker] if weights else 1.0)


def mean(gradients: list[Any], weights: list[float]) -> Any:
    if len(gradients) == 1:
        return gradients[0]
    return sum(w * g.astype(np.float64) for w, g in zip(weights, gradients)) / sum(weights)


@pytest.mark.parametrize("dtype", ("f32", "f64"))
@pytest.mark.parametrize("combine", ("mean", "sum"))
@pytest.mark.parametrize("weights", ([1.0], [5.0], [1.0, 1.0], [449.0, 450.0, 899.0, 0.0]))
def test_bsp_is_serial_full_batch(dtype: str, combine: str, weights: list[float]) -> None:
    """Steps of workers that push out of order equal one program's, for equal and unequal shards."""
    workers = len(weights)
    spec = table("w", 1000, dtype, lr=0.5, block_bytes=1024)
    there = box(job(spec, workers=workers, combine=combine), ring=4, servers=("s0.1", "s1.1"))
    rng = np.random.default_rng(1)
    serial = np.zeros(1000, spec.numpy_dtype)
    for clock in range(5):
        gradients = [rng.standard_normal(1000).astype(spec.numpy_dtype) for _ in weights]
        for worker in reversed(range(workers)):
            there.push({"w": gradients[worker]}, worker, seq=clock + 1, clock=clock, weight=weights[worker])
        close_all(there, clock, workers, weights)
        total = sum(gradients) if combine == "sum" else mean(gradients, weights)
        serial = serial - spec.numpy_dtype.type(0.5) * total.astype(spec.numpy_dtype)
    if workers == 1:
        np.testing.assert_array_equal(there.values(), serial)  # bit for bit
    np.testing.assert_allclose(there.values(), serial, rtol=1e-5 if dtype == "f32" else 1e-12, atol=1e-6 if dtype == "f32" else 1e-13)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_bsp_counts_exactly_the_pushes_of_incarnations_that_ticked(data: st.DataObject) -> None:
    """Pushes of a clock come doubled and out of order until all are acked, workers die in mid-clock and do it again."""
    workers = data.draw(st.integers(1, 3))
    there = box(job(COUNT, workers=workers), servers=("s0.1", "s1.1"), ring=4)
    gens, seqs = [1] * workers, [0] * workers
    want = np.zeros(3)
    replays: list[dict[str, Any]] = []
    for clock in range(data.draw(st.integers(1, 4))):
        plans = [[data.draw(st.integers(1, 9)) for _ in range(data.draw(st.integers(1, 3)))] for _ in range(workers)]
        todo = {worker: 0 for worker in range(workers)}  # pushes of this clock that are acked
        while todo:
            worker = data.draw(st.sampled_from(sorted(todo)))
            what = data.draw(st.sampled_from(("push", "push", "push", "ahead", "replay", "die")))
            if what == "replay" and replays:
                again = data.draw(st.sampled_from(replays))
                there.take()
                there.push(**again)
                late = again["worker"]
                if again["gen"] == gens[late] and there.take(m.PushAck)[-1:] and again["seq"] > seqs[late]:
                    seqs[late], todo[late] = seqs[late] + 1, todo[late] + 1  # it had overtaken, and now it is its turn
            elif what == "die":
                gens[worker], seqs[worker], todo[worker] = gens[worker] + 1, 0, 0
            elif todo[worker] == len(plans[worker]):
                there.tick(clock, worker, gens[worker])
                there.tick(clock, worker, gens[worker])
                del todo[worker]
                want += sum(plans[worker])
            else:
                skip = what == "ahead" and todo[worker] + 1 < len(plans[worker])  # the later one overtakes
                seq = seqs[worker] + 1 + skip
                push = {
                    "values": {"n": np.full(3, plans[worker][todo[worker] + skip])}, "worker": worker, "gen": gens[worker],
                    "seq": seq, "clock": clock,
                }  # fmt: skip
                there.take()
                there.push(**push)
                replays.append(push)
                acked = [ack.seq for ack in there.take(m.PushAck)]
                assert acked == ([] if skip else [seq])
                if not skip:
                    seqs[worker], todo[worker] = seq, todo[worker] + 1
        np.testing.assert_array_equal(there.values("n"), want)


def test_the_order_of_arrival_changes_no_bit() -> None:
    rng = np.random.default_rng(2)
    gradients = [rng.standard_normal(500).astype(np.float32) for _ in range(8)]
    results = []
    for order in (range(4), (3, 1, 0, 2), (2, 3, 1, 0)):
        there = box(job(table("w", 500, "f32"), workers=4, combine="sum"))
        for turn in (0, 1):
            for worker in order:
                there.push({"w": gradients[2 * worker + turn]}, worker, seq=turn + 1)
        close_all(there, 0, 4)
        results.append(there.values().tobytes())
    total = gradients[0]
    for gradient in gradients[1:]:  # by worker, then by seq
        total = total + gradient
    assert set(results) == {(np.zeros(500, np.float32) - np.float32(0.01) * total).tobytes()}


def test_several_pushes_of_a_clock_are_all_summed() -> None:
    there = box(job(COUNT))
    for seq in (1, 2, 3):
        there.push({"n": [1, seq, 0]}, seq=seq)
    there.tick(0)
    np.testing.assert_array_equal(there.values("n"), [3, 6, 0])


def test_nothing_is_visible_before_the_close() -> None:
    there = box(job(COUNT, workers=2))
    there.push({"n": [1, 1, 1]}, 0)
    there.push({"n": [1, 1, 1]}, 1)
    there.tick(0, 0)
    assert not there.values("n").any()
    there.tick(0, 1)
    assert there.values("n")[0] == 2


def test_an_incarnation_that_did_not_tick_counts_nothing() -> None:
    """Gen 1 pushed and died; gen 2 pushed the same clock again and ticked: one push counts."""
    there = box(job(COUNT))
    there.push({"n": [100, 100, 100]}, gen=1)
    there.clock(m.Join, gen=2)
    there.push({"n": [1, 1, 1]}, gen=2)
    there.tick(0, gen=2)
    assert there.values("n")[0] == 1


def test_a_push_that_died_after_its_tick_counts_although_a_successor_joined() -> None:
    there = box(job(COUNT, workers=2))
    there.push({"n": [1, 1, 1]}, 0, gen=1)
    there.tick(0, 0, gen=1)
    there.clock(m.Join, worker=0, gen=2)
    there.push({"n": [10, 10, 10]}, 1)
    there.tick(0, 1)
    assert there.values("n")[0] == 11


def test_a_worker_that_leaves_in_mid_clock_counts_nothing_of_it() -> None:
    there = box(job(COUNT, workers=2))
    there.push({"n": [1, 1, 1]}, 0)
    there.push({"n": [100, 100, 100]}, 1)
    there.tick(0, 0)
    there.clock(m.Leave, 0, "killed", worker=1)
    assert there.values("n")[0] == 1


def test_a_push_of_a_closed_clock_is_refused() -> None:
    there = box(job(COUNT, workers=2))
    there.clock(m.Leave, 0, "killed", worker=1)
    there.tick(0, 0)
    there.take()
    there.push({"n": [1, 1, 1]}, 1, clock=0)
    assert code_of(there.take()) == ["SEQ"]


def test_a_push_far_ahead_waits_at_the_agent() -> None:
    there = box(job(COUNT, workers=2))
    there.push({"n": [1, 1, 1]}, 0, clock=0)
    there.push({"n": [1, 1, 1]}, 0, seq=2, clock=1)
    there.push({"n": [1, 1, 1]}, 0, seq=3, clock=2)
    assert [ack.seq for ack in there.take(m.PushAck)] == [1, 2]


def test_too_many_pushes_in_one_clock_are_refused() -> None:
    there = box(job(COUNT), limits=Limits(staged_max=3))
    for seq in range(1, 6):
        there.push({"n": [1, 1, 1]}, seq=seq, prev=min(seq - 1, 3))
    assert code_of(there.take(m.Refuse)) == ["RANGE"] * 2


def test_what_an_incarnation_pushed_before_it_died_does_not_count_against_the_next_one() -> None:
    there = box(job(COUNT), limits=Limits(staged_max=3))
    for gen in (1, 2, 3):
        there.clock(m.Join, gen=gen)
        for seq in range(1, 4):
            there.push({"n": [1, 1, 1]}, gen=gen, seq=seq)
    assert not there.take(m.Refuse)
    there.push({"n": [1, 1, 1]}, gen=3, seq=4)
    assert code_of(there.take(m.Refuse)) == ["RANGE"]
    there.tick(0, gen=3)
    assert there.values("n").tolist() == [3, 3, 3]


def test_looking_at_first_values_is_no_change() -> None:
    """Copies at one log position have one digest, whoever has pulled from which."""
    there = box(job(table("w", 4, init="normal")))
    machine = there.servers["s0.1"]
    before = machine.digest()
    there.pull()
    assert len(there.take(m.Values)) == 1 and machine.digest() == before
    there.push({"w": [0, 0, 0, 0]})
    there.tick(0)
    assert machine.jobs[1].ranges[0].contents.digest() != 0
    after = machine.digest()
    there.pull()
    assert machine.digest() == after != before


def test_a_close_without_memory_ends_the_job_with_that_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    there = box(job(COUNT))

    def take(*wanted: object) -> Any:
        raise MemoryError

    there.push({"n": [1, 1, 1]})
    there.pull(closed=1)
    with monkeypatch.context() as patch:
        patch.setattr(Memory, "take", take)
        there.tick(0)
    (reason,) = [item.message.text for item in there.heard if isinstance(item.message, m.Refuse) and item.message.worker == m.NOBODY]
    assert "clock 0 cannot be closed: the server has no memory left" in reason
    there.push({"n": [1, 1, 1]}, seq=2, clock=1)
    there.pull(request=2)
    assert [(Code(refusal.code).name, refusal.text) for refusal in there.take(m.Refuse)] == [("NOSPC", reason)] * 4


def test_late_and_doubled_closes_change_nothing() -> None:
    there = box(job(COUNT))
    held = there.servers["s0.1"].jobs[1].ranges[0]
    there.push({"n": [1, 1, 1]})
    there.tick(0)
    close = m.Close(1, 1, 1, 0, ((0, 1),), ((0, 1.0),))
    before = held.digest()
    assert held.consider("s0.1", close) == []
    assert held.consider("s0.1", close._replace(clock=5)) == []
    assert held.digest() == before and held.closed == 1


def test_an_overflow_in_a_close_ends_the_job_loudly() -> None:
    there = box(job(table("w", 2, "f32", "add", combine="sum"), workers=2))
    for worker in (0, 1):
        there.push({"w": [3e38, 0]}, worker)
    there.pull(worker=0, closed=1, request=9)
    there.take()
    close_all(there, 0, 2)
    heard = there.take()
    refusals = [message for message in heard if isinstance(message, m.Refuse)]
    assert [(Code(r.code).name, r.request, r.worker) for r in refusals] == [("NONFINITE", 9, 0), ("NONFINITE", 0, m.NOBODY)]
    assert len({r.text for r in refusals}) == 1 and "leaves the range of f32" in refusals[0].text
    assert not there.values().any()
    there.push({"w": [1, 1]}, 0, seq=2, clock=1)
    there.pull(worker=0)
    assert code_of(there.take(m.Refuse)) == ["NONFINITE"] * 2
    assert not there.take(m.JobEnd), "whoever runs the job ends it, when its values are saved"


def test_of_a_job_that_cannot_close_the_values_before_are_read_and_nothing_else_is_done() -> None:
    """One server makes the step, another cannot; it is said to every agent, and to each that asks, though it is lost once."""
    names = "tuvw"
    there = box(job(*(table(name, 2, "f32", "add", combine="sum") for name in names), workers=2), servers=("s0.1", "s1.1"), ring=2)
    keeper = there.map.primary(there.map.clock_range)
    home = {name: there.map.primary(next(iter(there.parts([name])))) for name in names}
    far, near = (next(name for name in names if (home[name] == keeper) == is_near) for is_near in (False, True))
    for clock in (0, 1):
        for worker in (0, 1):
            there.push({far: [1e38, 1], near: [1, 1]}, worker, seq=clock + 1, clock=clock)
        there.hold = clock == 1
        close_all(there, clock, 2)
    assert not there.take(m.Refuse)
    (close,) = there.transit
    there.transit = []
    there.feed(close.to, close.sender, close.message)
    assert isinstance(there.transit[0].message, m.Refuse)
    there.transit = []  # lost
    there.hold = False
    there.time(2_000_000)
    told = [refusal for refusal in there.take(m.Refuse) if refusal.worker == m.NOBODY]
    assert [(Code(refusal.code).name, refusal.seq, refusal.request) for refusal in told] == [("NONFINITE", 0, 0)]
    assert f"clock 1 cannot be closed: the step of block 0 of table '{far}'" in told[0].text
    assert there.values(far).tolist() == pytest.approx([2e38, 2]) and there.values(near).tolist() == [4, 4]
    there.clock(m.StandingAsk)
    assert [type(message) for message in there.take()] == [m.Refuse, m.Standing]
    for worker in (0, 1):
        there.push({near: [1, 1]}, worker, seq=3, clock=2)
    close_all(there, 2, 2)
    assert there.values(near).tolist() == [4, 4], "nothing is closed any more"


# -- ASP


def test_a_mean_scales_each_step_by_its_share() -> None:
    """The weights of workers that have not pushed are taken to be the mean of the others'."""
    there = box(job(table("w", 1, "f64", lr=1.0), workers=3, consistency="asp"))
    there.push({"w": [-1.0]}, 0, weight=2.0)
    assert there.values()[0] == pytest.approx(2 / 6)
    there.push({"w": [-1.0]}, 1, weight=4.0)
    assert there.values()[0] == pytest.approx(2 / 6 + 4 / 9)
    there.push({"w": [-1.0]}, 2, weight=6.0)
    assert there.values()[0] == pytest.approx(2 / 6 + 4 / 9 + 6 / 12)
    there.push({"w": [-1.0]}, 0, seq=2, clock=1, weight=2.0)
    assert there.values()[0] == pytest.approx(2 / 6 + 4 / 9 + 6 / 12 + 2 / 12)


def test_one_worker_alone_steps_bit_for_bit() -> None:
    there = box(job(table("w", 100, "f32", lr=0.1), consistency="asp"))
    g = np.random.default_rng(1).standard_normal(100).astype(np.float32)
    there.push({"w": g}, weight=437.0)
    np.testing.assert_array_equal(there.values(), np.zeros(100, np.float32) - np.float32(0.1) * g)


def test_who_left_no_longer_counts_in_the_share() -> None:
    there = box(job(table("w", 1, "f64", lr=1.0), workers=2, consistency="asp"))
    there.clock(m.Leave, 0, "bye", worker=1)
    there.push({"w": [-1.0]}, 0, weight=3.0)
    assert there.values()[0] == 1.0


def test_who_leaves_in_mid_clock_no_longer_counts_in_the_share() -> None:
    there = box(job(table("w", 1, "f64", lr=1.0), workers=2, consistency="asp"))
    there.push({"w": [-1.0]}, 0)
    there.clock(m.Leave, 0, "bye", worker=1)
    there.push({"w": [-1.0]}, 0, seq=2)
    assert there.values()[0] == 0.5 + 1.0


def test_models_of_tables_may_differ_in_one_push() -> None:
    tables = (table("b", 1, "f64", "add", combine="sum"), table("a", 1, "f64", "add", combine="sum", consistency="asp"))
    there = box(job(*tables))
    there.push({"b": [1.0], "a": [1.0]})
    assert (there.values("b")[0], there.values("a")[0]) == (0.0, 1.0)
    there.tick(0)
    assert (there.values("b")[0], there.values("a")[0]) == (1.0, 1.0)


# -- pulls


def test_a_pull_waits_for_the_close_and_for_the_own_push() -> None:
    there = box(job(COUNT))
    there.pull(after=1, closed=1, request=7)
    assert there.take() == []
    there.push({"n": [1, 2, 3]})
    assert there.take(m.Values) == []
    there.tick(0)
    answers = there.take(m.Values)
    assert [(answer.request, answer.closed) for answer in answers] == [(7, 1)]
    np.testing.assert_array_equal(seen(answers, there.spec, "n"), [1, 2, 3])


def test_a_pull_after_a_push_is_released_by_it() -> None:
    there = box(job(COUNT, consistency="asp"))
    there.pull(after=2, request=3)
    there.push({"n": [1, 1, 1]}, seq=1)
    assert there.take(m.Values) == []
    there.push({"n": [1, 1, 1]}, seq=2)
    assert [answer.request for answer in there.take(m.Values)] == [3]


def test_a_pull_asked_again_is_answered_once() -> None:
    there = box(job(COUNT))
    for _ in range(3):
        there.pull(closed=1, request=4)
    there.push({"n": [1, 1, 1]})
    there.tick(0)
    assert [answer.request for answer in there.take(m.Values)] == [4]


def test_waiting_pulls_have_a_bound_and_the_oldest_goes() -> None:
    there = box(job(COUNT), limits=Limits(parked_max=3))
    for request in range(1, 6):
        there.pull(closed=1, request=request, after=request % 2)
    there.push({"n": [1, 1, 1]})
    there.tick(0)
    assert len(there.take(m.Values)) == 3
    for worker in range(5):
        there.pull(worker=worker, after=9, request=1)
    assert there.servers["s0.1"].jobs[1].ranges[0]._parking.count == 3


def test_a_waiting_pull_of_a_dead_incarnation_is_refused() -> None:
    there = box(job(COUNT))
    there.pull(gen=1, closed=1, request=4)
    there.clock(m.Join, gen=2)
    refusals = there.take(m.Refuse)
    assert [(Code(r.code).name, r.request, r.gen) for r in refusals] == [("FENCED", 4, 1)]


def test_a_pull_of_a_block_elsewhere_is_refused() -> None:
    there = box(job(COUNT))
    there.feed("s0.1", "a0.1", m.Pull(1, 0, 1, 1, 5, 0, 1, 0, 0, (m.Segment(0, 3, 3, 2, m.BLOCK, m.ABSENT),)))
    assert [(Code(r.code).name, r.request) for r in there.take(m.Refuse)] == [("RANGE", 5)]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_values_in_flight_are_never_written(data: st.DataObject) -> None:
    """However long a message is under way, the array in it stays what it was when it was given out."""
    lent: list[np.ndarray[Any, Any]] = []
    copies: list[np.ndarray[Any, Any]] = []
    model = data.draw(st.sampled_from(("asp", "bsp")))
    there = box(job(table("n", 6, "f64", "add", combine="sum", block_bytes=16), consistency=model), is_lent=lambda a: any(a is b for b in lent))
    allocated = 0
    for clock in range(data.draw(st.integers(3, 25))):
        there.push({"n": np.full(6, clock + 1)}, seq=clock + 1, clock=clock)
        there.tick(clock)
        if data.draw(st.booleans()):
            there.pull()
            for answer in there.take(m.Values):
                for array in answer.payload:
                    lent.append(array)
                    copies.append(array.copy())
        for array, copy in zip(lent, copies):
            np.testing.assert_array_equal(array, copy)
        while lent and data.draw(st.booleans()):
            at = data.draw(st.integers(0, len(lent) - 1))
            del lent[at], copies[at]
        allocated = max(allocated, len(lent))
    free = there.servers["s0.1"]._memory
    kept = sum(len(pile) for piles in (free._free, free._lent) for pile in piles.values())
    assert kept <= allocated + 3 * 2  # memory is used again, not asked for anew


# -- first values


def program(name: str = "w", count: int = 3) -> Any:
    return table(name, count, "f64", "add", combine="sum", init="program")


def test_first_values_are_taken_once_for_a_claim() -> None:
    there = box(job(program()))
    there.init({"w": [1, 2, 3]}, claim=1)
    there.init({"w": [7, 7, 7]}, claim=1)
    assert [ack.claim for ack in there.take(m.InitAck)] == [1, 1]
    np.testing.assert_array_equal(there.values(), [1, 2, 3])
    there.init({"w": [4, 5, 6]}, claim=2)
    there.init({"w": [7, 7, 7]}, claim=1)
    heard = there.take()
    assert heard[0].claim == 2
    assert [(Code(r.code).name, r.worker, r.seq) for r in heard[1:]] == [("FENCED", m.NOBODY, 1)]
    np.testing.assert_array_equal(there.values(), [4, 5, 6])


def test_first_values_must_be_whole_and_finite() -> None:
    there = box(job(program("w"), program("v"), COUNT))
    there.init({"w": [1, 2, 3]}, claim=1)
    there.init({"w": [1, 2, 3], "v": [1, float("nan"), 3]}, claim=1)
    there.init({"w": [1, 2, 3], "v": [1, 2, 3], "n": [0, 0, 0]}, claim=1)
    assert code_of(there.take(m.Refuse)) == ["SIZE", "NONFINITE", "RANGE"]
    there.init({"w": [1, 2, 3], "v": [1, 2, 3]}, claim=1)
    assert [ack.claim for ack in there.take(m.InitAck)] == [1]
