"""A learner's way to a copy, and the clock of a job on several servers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from plugml.core.errors import Code
from plugml.core.limits import MS, SECOND, Limits
from plugml.wire import messages as m
from tests.scenario.kit import table

from .replica_trio import LIMITS, A, B, C, Trio, counts

LARGE = table("n", 3_000, "f64", "add", combine="sum", block_bytes=8_000)


# -- learners


def asked(there: Trio) -> list[int]:
    """Notes the cursors that are asked for, from now on."""
    cursors: list[int] = []
    before = there.lost

    def lost(sender: str, to: str, message: Any) -> bool:
        if isinstance(message, m.CopyAsk):
            cursors.append(message.cursor)
        return before(sender, to, message)

    there.lost = lost
    return cursors


def test_a_learner_is_added_when_it_holds_what_is_committed() -> None:
    there = Trio()
    there.map(A)
    there.push(1)
    there.lost = lambda sender, to, message: isinstance(message, m.CopyTold)
    there.map(A, learner=B)
    there.push(2)
    assert there.acked() == [1, 2], "a learner holds nobody up"
    assert there.asks() == []
    there.lost = lambda sender, to, message: isinstance(message, m.Replicate)
    there.time(LIMITS.resend_us)
    assert there.replica(B).log.last == 1 and there.asks() == [], "it has the copy, and not what followed"
    there.cut()
    there.time(LIMITS.replicate_us)
    assert there.replica(B).log.last == 2 and there.asks() == [(A, "add", B)]
    there.map(A, B)
    there.push(3)
    there.time(LIMITS.replicate_us)
    there.same(A, B)


def test_entries_behind_the_copy_follow_before_a_learner_is_added() -> None:
    limits = Limits(copy_part_bytes=64, copy_parts=1)
    there = Trio(limits=limits)
    there.map(A)
    there.push(1)
    there.lost = lambda sender, to, message: isinstance(message, m.CopyTold) and message.cursor > 0
    there.map(A, learner=B)
    for seq in range(2, 7):
        there.push(seq)
    assert there.replica(A).log.entries[0].version == 2, "kept for the learner"
    there.cut()
    for _ in range(40):
        there.time(limits.resend_us)
    assert there.replica(B).log.last == 6 and (A, "add", B) in there.asks()
    assert not there.replica(A).log.entries
    there.time(LIMITS.replicate_us)
    there.same(A, B)


def test_from_the_moment_of_asking_a_learner_counts() -> None:
    there = Trio()
    there.map(A)
    there.push(1)
    there.map(A, learner=B)
    assert there.asks() == [(A, "add", B)]
    there.take()
    there.cut((A, B))
    there.push(2)
    assert there.acked() == [], "a map may name it at any moment"
    there.cut()
    there.time(LIMITS.replicate_us)
    assert there.acked() == [2]


def test_a_learner_asks_again_for_what_was_lost_and_no_faster_than_it_may() -> None:
    limits = Limits(copy_part_bytes=1_000, copy_parts=3, copy_bytes_a_second=10_000)
    there = Trio(counts(LARGE), limits)
    there.map(A)
    there.push(1)
    lose = {"parts": True}
    there.lost = lambda sender, to, message: isinstance(message, m.CopyTold) and lose["parts"]
    cursors = asked(there)
    there.map(A, learner=B)
    assert cursors == [0], "nobody knows yet where the next one begins"
    there.time(limits.resend_us)
    assert cursors == [0, 0]
    lose["parts"] = False
    start_us = there.now_us
    while not there.replica(B).part.whole:
        before = len(cursors)
        there.time(50 * MS)
        assert len(cursors) - before <= limits.copy_parts
    took_us = there.now_us - start_us
    assert took_us > 2 * SECOND, "24,000 bytes at 10,000 a second"
    there.map(A, B)
    there.time(LIMITS.replicate_us)
    there.same(A, B)


def test_a_learner_begins_anew_in_another_epoch() -> None:
    there = Trio(counts(copies=3))
    there.map(A, C)
    there.push(1)
    there.lost = lambda sender, to, message: isinstance(message, m.CopyTold)
    there.map(A, C, learner=B)
    first = there.replica(B)
    there.map(A, learner=B, born=2)
    assert there.replica(B) is not first and first.gone
    there.cut()
    there.time(LIMITS.resend_us)
    assert there.asks()[-1] == (A, "add", B)


def test_a_copy_of_an_earlier_question_is_no_copy() -> None:
    there = Trio()
    there.map(A)
    there.push(1)
    late: list[Any] = []

    def lost(sender: str, to: str, message: Any) -> bool:
        if isinstance(message, m.CopyTold):
            late.append(message)
            return True
        return False

    there.lost = lost
    there.map(A, learner=B)
    there.map(A)
    there.map(A, learner=B)
    for told in late[:1]:
        there.feed(A, B, told._replace(epoch=there.epoch))
    assert not there.replica(B).part.whole, "it was born in another epoch"


def test_a_learner_without_room_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    there = Trio()
    there.map(A)
    there.push(1)

    def none(*wanted: Any) -> Any:
        raise MemoryError("none")

    monkeypatch.setattr("plugml.server.dump.blank", none)
    there.map(A, learner=B)
    assert there.asks() == [(B, "drop", B)] and "cannot take a copy" in there.replica(B).stuck
    there.push(2)
    assert there.acked() == [1, 2]


def test_a_learner_that_falls_too_far_behind_is_given_up_at_once() -> None:
    limits = Limits(behind_bytes_max=100, copy_part_bytes=64, copy_parts=1)
    there = Trio(limits=limits)
    there.map(A)
    there.push(1)
    there.lost = lambda sender, to, message: isinstance(message, m.CopyTold) and message.cursor > 0
    there.map(A, learner=B)
    for seq in range(2, 202):
        there.push(seq)
    assert len(there.replica(A).log.entries) == 200
    there.time(limits.behind_us_max)
    assert there.asks() == [(A, "drop", B)]
    assert not there.replica(A).log.entries and there.replica(A).alone, "nothing is kept for it any more"
    there.push(202)
    assert there.acked()[-1] == 202


def test_a_learner_that_was_asked_to_be_added_and_is_slow_is_dropped() -> None:
    there = Trio()
    there.map(A)
    there.push(1)
    there.map(A, learner=B)
    there.take()
    there.cut((A, B))
    there.push(2)
    for _ in range(20):
        there.time(LIMITS.resend_us_max // 4)
    assert (A, "drop", B) in there.asks() and there.acked() == [], "it may have been added meanwhile"
    there.map(A)
    assert there.acked() == [2]


def test_who_had_no_memory_for_an_entry_gives_up_the_learner_and_not_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """The only copy refuses the push; what the learner would make of it is another thing."""
    there = Trio()
    there.map(A)
    there.push(1)
    there.lost = lambda sender, to, message: isinstance(message, m.CopyTold)
    there.map(A, learner=B)
    there.take()

    def none(*wanted: Any) -> Any:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(there.machines[A]._memory, "take", none)
        there.push(2)
    found = there.take()
    assert [Code(refusal.code).name for refusal in found if isinstance(refusal, m.Refuse)] == ["NOSPC"]
    assert [(ask.verb, ask.node) for ask in found if isinstance(ask, m.SeatAsk)] == [("drop", B)]
    there.push(2)
    assert there.acked() == [2]


# -- closes


def bsp(**rest: Any) -> Trio:
    there = Trio(counts(consistency="bsp", workers=rest.pop("workers", 1), **rest))
    there.map(A, B)
    return there


def step(there: Trio, clock: int, worker: int = 0) -> None:
    there.push(clock + 1, clock=clock, worker=worker)
    there.tick(clock, worker)


def test_a_close_is_an_entry_like_any_other() -> None:
    there = bsp()
    there.pull(closed=1)
    step(there, 0)
    (answer,) = there.take(m.Values)
    assert np.frombuffer(answer.payload[0]).tolist() == [1, 1, 1] and answer.closed == 1
    there.time(LIMITS.replicate_us)
    there.same(A, B)
    assert there.replica(B).range.closed == 1 and there.values(B) == [1, 1, 1]


def test_whoever_leads_next_closes_what_was_ticked() -> None:
    there = bsp(workers=2)
    step(there, 0, 0)
    there.push(1, worker=1)
    there.take()
    there.map(B)
    assert {message.worker for message in there.take(m.Standing)} >= {m.NOBODY}, "agents hear from the new keeper unasked"
    there.tick(0, 1)
    assert there.replica(B).range.closed == 1 and there.values(B) == [2, 2, 2]
    there.pull(closed=1)
    assert len(there.take(m.Values)) == 1


def test_a_tick_that_was_counted_counts_once_whoever_hears_it_again() -> None:
    there = bsp()
    step(there, 0)
    there.map(B)
    there.take()
    there.tick(0)
    assert [message.finished for message in there.take(m.Standing) if message.worker == 0] == [1]
    assert there.replica(B).range.closed == 1


def failures(there: Trio) -> list[str]:
    """Who has told agents that the job cannot go on, since a clock cannot be closed."""
    told = [(sender, message) for sender, _, message in there.said if isinstance(message, m.Refuse) and message.worker == m.NOBODY]
    there.said.clear()
    assert all("cannot be closed" in message.text for _, message in told)
    return [sender for sender, _ in told]


def test_a_close_that_is_not_finite_fails_on_every_copy_and_is_told_by_whoever_leads() -> None:
    there = Trio(counts(table("n", 1, "f32", "add", combine="sum"), consistency="bsp", workers=2))
    there.map(A, B)
    for worker in (0, 1):
        there.push(1, 3e38, worker=worker)
    there.said.clear()
    for worker in (0, 1):
        there.tick(0, worker)
    assert failures(there) == [A]
    there.time(LIMITS.replicate_us)
    assert there.replica(B).range.failure is not None
    there.same(A, B)
    there.take()
    there.map(B)
    assert set(failures(there)) == {B}
    there.push(2, 1.0)
    assert [Code(refusal.code).name for refusal in there.take(m.Refuse)] == ["NONFINITE"]


def test_backups_of_the_clock_forget_closes_that_all_ranges_have() -> None:
    limits = Limits(closes_max=8)
    there = Trio(counts(consistency="bsp"), limits)
    there.map(A, B)
    for clock in range(40):
        step(there, clock)
    there.time(limits.replicate_us)
    clock = there.replica(B).clock
    assert clock is not None and clock.closed == 40 and 40 - clock.outbox.floor <= limits.closes_max // 4
    there.same(A, B)
    there.map(B)
    there.time(limits.resend_us)
    assert clock.outbox.floor == 40 and clock.deadline_us() is None


def test_pushes_of_the_next_clock_may_come_while_a_close_is_under_way() -> None:
    there = bsp()
    there.push(1)
    there.tick(0)
    there.cut((B, A))
    there.push(2, clock=1)
    there.tick(1)
    there.push(3, clock=2)
    there.push(4, clock=3)  # two clocks ahead of what is closed, or about to be
    there.cut()
    there.time(LIMITS.replicate_us)
    assert there.acked()[-1] == 3 and there.replica(A).range.closed == 2
    there.tick(2)
    there.push(4, clock=3)
    there.tick(3)
    assert there.values(A) == [4, 4, 4]
    there.time(LIMITS.replicate_us)
    there.same(A, B)


def test_first_values_and_a_late_claim_are_the_same_on_every_copy() -> None:
    program = table("n", 3, "f64", "add", combine="sum", init="program")
    there = Trio(counts(program, consistency="asp"))
    there.map(A, B)
    segments = (m.Segment(0, 0, 3, 2),)

    def init(claim: int, *values: float) -> None:
        there.feed("a0.1", there.item.primary, m.Init(*there.head(), claim, segments, (np.array(values, float).tobytes(),)))

    init(1, 1, 2, 3)
    assert [ack.claim for ack in there.take(m.InitAck)] == [1]
    there.cut((B, A))
    init(2, 4, 5, 6)
    init(2, 4, 5, 6)
    init(1, 1, 2, 3)
    assert [Code(refusal.code).name for refusal in there.take()] == ["FENCED"]
    there.cut()
    there.time(LIMITS.replicate_us)
    assert [ack.claim for ack in there.take(m.InitAck)] == [2]
    there.map(B)
    there.take()
    init(2, 4, 5, 6)
    init(1, 1, 2, 3)
    found = there.take()
    assert [type(message).__name__ for message in found] == ["InitAck", "Refuse"] and there.values(B) == [4, 5, 6]
