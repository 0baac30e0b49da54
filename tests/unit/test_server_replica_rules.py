"""The rules of copies, one by one: what is committed, what is visible, what survives whoever dies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from plugml.core.effects import Connect, Disconnect
from plugml.core.errors import Code
from plugml.core.limits import MIB, Limits
from plugml.server.log import HEAD_BYTES
from plugml.wire import messages as m
from tests.scenario.kit import table

from .replica_trio import LIMITS, A, B, C, Trio, counts


def codes(found: list[Any]) -> list[str]:
    return [Code(refusal.code).name for refusal in found]


# -- committed and visible


def test_a_push_is_acked_when_every_copy_in_sync_holds_it() -> None:
    there = Trio(counts(copies=3))
    there.map(A, B, C)
    there.cut((C, A))
    there.push(1)
    assert there.acked() == [] and there.replica(B).log.last == there.replica(C).log.last == 1
    there.cut()
    there.time(LIMITS.replicate_us)
    assert there.acked() == [1]
    there.time(LIMITS.replicate_us)
    assert there.values(B) == there.values(C) == [1, 1, 1]
    there.same(A, B, C)


def test_nothing_is_visible_before_it_is_committed() -> None:
    there = Trio()
    there.map(A, B)
    there.cut((B, A))
    there.push(1)
    there.pull()
    (answer,) = there.take(m.Values)
    assert not np.frombuffer(answer.payload[0]).any() and answer.version == 0
    there.pull(after=1)
    assert there.take(m.Values) == []
    there.cut()
    there.time(LIMITS.replicate_us)
    (answer,) = there.take(m.Values)
    assert np.frombuffer(answer.payload[0]).tolist() == [1, 1, 1] and answer.version == 1


def test_with_fewer_copies_than_min_insync_nothing_is_committed() -> None:
    there = Trio(counts(copies=2, min_insync=2))
    there.map(A)
    there.push(1)
    there.push(2)
    assert there.acked() == []
    there.map(A, learner=B)
    assert (A, "add", B) in there.asks()
    there.map(A, B)
    assert sorted(there.acked()) == [1, 2]
    there.same(A)


def test_one_copy_commits_at_once_and_keeps_no_log() -> None:
    there = Trio(counts(copies=1))
    there.map(A)
    there.push(1)
    assert there.acked() == [1] and not there.replica(A).log.entries and there.replica(A).range.mark == 0


# -- the clock, under way


def test_what_is_asked_again_while_nobody_acks_is_one_entry() -> None:
    there = Trio(counts(table("n", 3, "f64", "add", combine="sum", init="program")))
    there.map(A, B)
    there.cut((B, A))
    for _ in range(50):
        there.clock(m.Join)
        there.clock(m.ClaimAsk)
    assert there.replica(A).log.last == 2
    there.clock(m.Join, worker=1)
    there.clock(m.ClaimAsk, worker=1)
    assert there.replica(A).log.last == 4
    there.cut()
    there.time(LIMITS.replicate_us)
    told = there.take(m.ClaimTold)
    assert sorted((answer.worker, answer.claim) for answer in told) == [(0, 1), (1, 0)]
    last = there.replica(A).log.last
    for _ in range(50):
        there.clock(m.ClaimAsk)
        there.clock(m.ClaimAsk, worker=1)
    assert there.replica(A).log.last == last, "who has a claim, or gets none, is told so without an entry"
    told = there.take(m.ClaimTold)
    assert {(answer.worker, answer.claim) for answer in told} == {(0, 1), (1, 0)} and len(told) == 100


# -- streams, under way


def test_pushes_that_follow_each_other_are_all_under_way_at_once() -> None:
    there = Trio()
    there.map(A, B)
    there.cut((B, A))
    for seq in (1, 2, 3):
        there.push(seq)
    there.push(2)  # a repeat of one that is under way: it is answered when that is applied
    there.push(5)  # a gap
    assert there.take() == [] and there.replica(A).log.last == 3
    there.cut()
    there.time(LIMITS.replicate_us)
    assert there.acked() == [1, 2, 3]
    there.push(2)
    assert there.acked() == [3]
    assert there.values(A) == [3, 3, 3]


def test_of_two_pushes_under_way_the_second_has_no_turn_when_the_first_comes_to_nothing() -> None:
    """The step of the first leaves the range of f32 when its turn comes; the other names it, and is a gap from there on."""
    there = Trio(counts(table("n", 1, "f32", "add", combine="sum")))
    there.map(A, B)
    there.cut((B, A))
    there.push(1, 3e38)
    there.push(1, 3e38, worker=1)
    there.push(2, 1.0, worker=1)
    there.cut()
    there.time(LIMITS.replicate_us)
    found = there.take()
    assert [(ack.worker, ack.seq) for ack in found if isinstance(ack, m.PushAck)] == [(0, 1)]
    assert [(refusal.worker, refusal.seq) for refusal in found if isinstance(refusal, m.Refuse)] == [(1, 1)]
    there.push(2, 1.0, worker=1, prev=0)
    assert there.acked() == [2]
    there.time(LIMITS.replicate_us)
    there.same(A, B)


def test_what_came_to_nothing_is_refused_again_whoever_leads() -> None:
    there = Trio(counts(table("n", 1, "f32", "add", combine="sum")))
    there.map(A, B)
    there.push(1, 3e38)
    there.push(2, 3e38)
    (refusal,) = there.take(m.Refuse)
    there.push(2, 1.0)  # the same push; that its numbers are others now is nothing that a range looks at
    assert [(again.code, again.text, again.seq) for again in there.take()] == [(refusal.code, refusal.text, 2)]
    there.time(LIMITS.replicate_us)
    there.map(B)
    there.push(2, 1.0)
    assert [(again.code, again.text, again.seq) for again in there.take(m.Refuse)] == [(refusal.code, refusal.text, 2)]
    there.push(3, -1e38, prev=1)
    assert there.acked() == [3] and there.values(B)[0] < 3e38


def test_the_streams_table_survives_a_promotion() -> None:
    there = Trio()
    there.map(A, B)
    there.push(1)
    there.push(2)
    there.map(B)
    there.take()
    there.push(2)
    there.push(1)
    assert there.acked() == [2, 2] and there.values(B) == [2, 2, 2]
    there.push(3)
    assert there.acked() == [3]


def test_the_streams_table_is_in_the_copy_that_a_learner_gets() -> None:
    there = Trio()
    there.map(A)
    there.push(1)
    there.push(2)
    there.map(A, learner=C)
    there.map(A, C)
    there.map(C)
    there.take()
    there.push(2)
    assert there.acked() == [2] and there.values(C) == [2, 2, 2]


def test_a_new_incarnation_under_way_keeps_the_old_one_waiting() -> None:
    there = Trio()
    there.map(A, B)
    there.push(1)
    there.take()
    there.cut((B, A))
    there.push(1, gen=2)
    there.push(2)  # of the dead one, behind what is applied
    assert there.take() == []
    there.cut()
    there.time(LIMITS.replicate_us)
    assert there.acked() == [1]
    there.push(2)
    assert codes(there.take(m.Refuse)) == ["FENCED"]
    assert there.values(A) == [2, 2, 2]


# -- epochs


def test_a_backup_hears_nobody_of_an_earlier_epoch() -> None:
    there = Trio()
    there.map(A, B)
    there.push(1)
    there.map(B, C, to=(B, C))  # A is deposed, and does not know
    entry = m.Push(1, there.home, 1, 1, 0, (m.Component(0, 1, 2, 1, 0, 1.0),), (m.Segment(0, 0, 3, 2),), (bytes(24),))
    for message in (m.Replicate(1, there.home, 1, 1, 2, 2, 1, "a0.1", (0, 0), entry), m.Sync(1, there.home, 1, 1, 9, 9, ())):
        before = there.replica(B).log.last
        there.feed(A, B, message)
        assert there.replica(B).log.last == before
    there.take()
    there.epoch = there.token = 1
    there.push(2, to=A)
    assert there.take() == [], "one that was deposed cannot commit"


def test_who_was_deposed_answers_nobody_that_has_seen_a_newer_map() -> None:
    there = Trio()
    there.map(A, B)
    there.map(B, to=(B,))
    there.pull(to=A)
    assert [type(message).__name__ for message in there.take()] == ["MapAsk", "Nack"]


def test_a_word_of_a_newer_epoch_makes_a_server_look_for_the_map() -> None:
    there = Trio()
    there.map(A, B)
    there.take()
    there.map(B, A, to=(B,))
    assert [message.token for message in there.take(m.MapAsk)] == [2], "A was sent a Sync"


def test_a_late_double_of_sync_cuts_nothing_off() -> None:
    there = Trio()
    there.map(A, B)
    sync = m.Sync(1, there.home, 1, 1, 0, 0, ())
    there.cut((B, A))
    there.push(1)
    there.push(2)
    there.feed(A, B, sync)
    assert there.replica(B).log.last == 2
    there.map(A, B)
    there.cut()
    there.feed(A, B, sync)  # of the epoch before
    there.time(LIMITS.replicate_us)
    assert sorted(there.acked()) == [1, 2]


def test_what_a_copy_held_in_an_earlier_epoch_does_not_count() -> None:
    there = Trio()
    there.map(A, B)
    there.lost = lambda sender, to, message: isinstance(message, m.Sync)
    there.map(A, B)
    there.feed(B, A, m.Held(1, there.home, 1, 1, 1))
    there.push(1)
    there.feed(B, A, m.Held(1, there.home, 1, 1, 1))
    assert there.acked() == []
    there.lost = lambda sender, to, message: False
    there.time(LIMITS.replicate_us)
    assert there.acked() == [1]


def test_a_backup_forgets_what_the_new_primary_does_not_have() -> None:
    """A and C have an entry that B never got; B leads, gives its place to another one, and that is what C holds then."""
    there = Trio(counts(copies=3))
    there.map(A, B, C)
    there.cut((A, B))
    there.push(1, 5.0)
    assert there.acked() == [] and there.replica(C).log.last == 1 and there.replica(B).log.last == 0
    there.deaf.add(A)
    there.cut()
    there.map(B, C)
    assert there.replica(C).log.last == 0
    there.push(1, 7.0, worker=1)
    assert there.acked() == [1] and there.values(B) == [7, 7, 7]
    there.time(LIMITS.replicate_us)
    there.same(B, C)


def test_a_backup_forgets_an_entry_that_was_made_in_another_epoch() -> None:
    """C holds an entry of A in the place in which B holds one of its own, not committed either."""
    there = Trio(counts(copies=3))
    there.map(A, B, C)
    there.cut((A, B))
    there.push(1, 5.0)  # to C alone
    there.deaf.add(A)
    there.cut((B, C))
    there.map(B, C)
    there.push(1, 7.0, worker=1)  # B alone
    assert there.acked() == [] and there.replica(B).log.last == there.replica(C).log.last == 1
    there.map(B, C)
    there.cut()
    there.time(LIMITS.replicate_us)
    assert there.acked() == [1] and there.values(B) == [7, 7, 7]
    there.time(LIMITS.replicate_us)
    there.same(B, C)


def test_what_may_be_committed_is_not_forgotten_by_a_backup_that_may_lead_next() -> None:
    """A has acked; B, which has not heard of it, tells C of its log and dies before it sends more."""
    there = Trio(counts(copies=3))
    there.map(A, B, C)
    there.push(1)
    assert there.acked() == [1] and there.replica(B).log.committed == 0
    there.deaf.add(A)
    there.lost = lambda sender, to, message: isinstance(message, m.Replicate)
    there.map(B, C)
    assert there.replica(C).log.last == 1
    there.deaf.add(B)
    there.map(C)
    there.push(1)
    assert there.acked()[-1] == 1 and there.values(C) == [1, 1, 1]


def test_a_promoted_copy_is_silent_until_all_that_it_held_is_committed() -> None:
    there = Trio(counts(copies=3))
    there.map(A, B, C)
    there.push(1)
    there.deaf.add(A)
    there.take()
    there.cut((C, B))
    there.map(B, C)
    there.pull()
    there.push(2)
    assert there.take() == [] and not there.replica(B).serves
    there.cut()
    there.time(LIMITS.replicate_us)
    there.time(LIMITS.replicate_us)
    said = there.take()
    assert there.replica(B).serves
    acked = [message.seq for message in said if isinstance(message, m.PushAck)]
    assert acked == [1, 2], "whoever sent it is answered by the one that commits it, and what came too early is done then"
    (values,) = [message for message in said if isinstance(message, m.Values)]
    assert np.frombuffer(values.payload[0]).tolist() == [1, 1, 1], "in the order in which it came"


def test_what_came_too_early_for_a_copy_that_leads_no_more_is_sent_back() -> None:
    there = Trio(counts(copies=3))
    there.map(A, B, C)
    there.push(1)
    there.deaf.add(A)
    there.cut((C, B))
    there.map(B, C)
    there.push(2)
    there.take()
    there.map(C, B)
    (nack,) = [message for sender, _, message in there.said if isinstance(message, m.Nack) and sender == B]
    assert nack.epoch == there.epoch
    assert not there.machines[B]._early


def test_who_steps_down_forgets_whoever_waited() -> None:
    there = Trio()
    there.map(A, B)
    there.pull(after=1)
    there.map(B, A)
    there.push(1)
    assert not there.take(m.Values)
    assert not list(there.replica(A).range._parking)


def test_a_server_that_is_nothing_of_a_range_any_more_forgets_it() -> None:
    there = Trio()
    there.map(A, B)
    there.push(1)
    there.map(A, C)
    assert not there.machines[B].jobs[1].replicas and not there.machines[B].jobs[1].ranges
    there.machines[B].check()


# -- sending again


def test_a_map_that_comes_late_brings_nothing_that_is_elsewhere_now() -> None:
    there = Trio()
    there.map(A, B, to=(A,))
    old = there.told
    there.map(A, C)
    assert 1 not in there.machines[B].jobs, "the newest map has nothing for it"
    there.feed("m0", B, old)
    assert 1 not in there.machines[B].jobs
    there.map(A, C, B)
    assert there.replica(B).seat.epoch == there.epoch


def test_what_is_not_acked_is_sent_again_by_a_timer_one_batch_at_a_time() -> None:
    limits = Limits(replicate_bytes=2 * (24 + HEAD_BYTES))
    there = Trio(limits=limits)
    there.map(A, B)
    sent: list[int] = []

    def lost(sender: str, to: str, message: Any) -> bool:
        if isinstance(message, m.Replicate) and message.version:
            sent.append(message.version)
            return True
        return False

    there.lost = lost
    for seq in range(1, 6):
        there.push(seq)
    assert sent == [1, 2, 3, 4, 5]
    sent.clear()
    for seq in range(1, 6):
        there.push(seq)  # whatever comes meanwhile: nothing is sent again for it
    assert sent == []
    there.time(limits.replicate_us)
    assert sent == [1, 2], "24 bytes of numbers each"
    there.time(limits.replicate_us)
    assert sent == [1, 2], "it waits longer each time"
    there.time(limits.replicate_us)
    assert sent == [1, 2, 1, 2]
    there.cut()
    there.time(8 * limits.replicate_us)
    assert there.acked() == [1, 2, 3, 4, 5], "what is acked brings the next batch"


def test_that_something_is_committed_travels_with_the_next_entry_or_alone() -> None:
    there = Trio()
    there.map(A, B)
    there.push(1)
    assert there.replica(B).log.committed == 0
    there.push(2)
    assert there.replica(B).log.committed == 1 and there.replica(B).log.applied == 1
    there.time(LIMITS.replicate_us)
    assert there.replica(B).log.applied == 2
    there.same(A, B)


# -- who is dropped


def test_a_backup_that_acks_nothing_for_too_long_is_dropped() -> None:
    there = Trio()
    there.map(A, B)
    there.cut((A, B))
    there.time(10 * LIMITS.behind_us_max)
    assert there.asks() == [], "it owes nothing"
    there.push(1)
    there.time(LIMITS.replicate_us)
    assert there.asks() == []
    for _ in range(20):
        there.time(LIMITS.resend_us_max // 4)
    assert set(there.asks()) == {(A, "drop", B)}
    assert there.acked() == [], "nothing is committed without it before the map says so"
    there.map(A)
    assert there.acked() == [1]


def test_a_backup_that_lacks_too_many_bytes_is_dropped() -> None:
    limits = Limits(behind_bytes_max=4 * (24 + HEAD_BYTES) + 4)
    there = Trio(limits=limits)
    there.map(A, B)
    there.cut((A, B))
    for seq in range(1, 6):
        there.push(seq)
    there.time(limits.replicate_us)
    assert there.asks() == [(A, "drop", B)]


def test_nobody_is_dropped_below_min_insync() -> None:
    there = Trio(counts(copies=2, min_insync=2))
    there.map(A, B)
    there.cut((A, B))
    there.push(1)
    for _ in range(20):
        there.time(LIMITS.resend_us_max)
    assert there.asks() == []


def test_a_log_that_nobody_acks_takes_no_more_pushes() -> None:
    limits = Limits(behind_bytes_max=4 * (24 + HEAD_BYTES) + 4)
    there = Trio(counts(copies=2, min_insync=2), limits)
    there.map(A, B)
    there.cut((A, B))
    for seq in range(1, 50):
        there.push(seq)
    assert there.replica(A).log.last == 9, "more than twice as many bytes as a backup may lack"
    there.cut()
    for _ in range(9):
        there.time(limits.resend_us_max)
    assert there.acked()[-1] == 9
    there.push(10)
    assert there.acked() == [10]


def test_a_copy_that_differs_asks_to_be_dropped_and_takes_no_more() -> None:
    there = Trio()
    there.map(A, B)
    there.push(1)
    there.time(LIMITS.replicate_us)
    place = next(iter(there.replica(B).range.blocks.places.values()))
    assert place.values is not None
    place.values[1] = 9.0
    there.push(2)
    there.time(LIMITS.marks_us)
    there.time(LIMITS.replicate_us)
    assert there.asks() == [(B, "drop", B)] and "differs" in there.replica(B).stuck
    assert [log.event for name, log in there.logs if name == B and log.event == "copy_broken"] == ["copy_broken"]
    there.push(3)
    assert 3 not in there.acked()
    there.map(A)
    assert there.acked() == [3]


def test_a_broken_copy_never_leads() -> None:
    there = Trio()
    there.map(A, B)
    there.push(1)
    there.replica(B)._stick("for the test")
    there.map(B)
    there.pull()
    assert there.asks() == [(B, "drop", B)] and not there.replica(B).leads


def test_a_backup_without_memory_asks_to_be_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    there = Trio()
    there.map(A, B)

    def none(*wanted: Any) -> Any:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(there.machines[B]._memory, "take", none)
        there.push(1)
        there.time(LIMITS.replicate_us)
    assert there.asks() == [(B, "drop", B)] and there.acked() == [1] and "no memory" in there.replica(B).stuck
    there.push(2)
    assert there.acked() == []
    there.map(A)
    assert there.acked() == [2] and there.values(A) == [2, 2, 2]


def test_a_primary_without_memory_lets_another_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    there = Trio()
    there.map(A, B)

    def none(*wanted: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(there.machines[A]._memory, "take", none)
    there.push(1)
    assert there.asks() == [(A, "drop", A)] and there.acked() == []
    there.pull()
    assert there.take(m.Values) == []
    there.map(B)
    assert there.acked() == [1] and there.values(B) == [1, 1, 1]


# -- rooms, turns, connections


def test_room_for_new_rows_is_promised_while_a_push_is_under_way() -> None:
    """Two pushes at once that the job's memory holds one of: the second is refused before it is an entry."""
    from tests.scenario.sparse import by_range, joined, sparse_table  # numba is imported here

    spec = counts(sparse_table(width=2, dtype="f64", optimizer="add"), copies=2, memory_bytes=64)
    there = Trio(spec)
    there.map(A, B)

    def push(worker: int, rows: list[int]) -> None:
        ((_, groups),) = by_range(spec, 1, {"e": {row: np.ones(2) for row in rows}}).items()
        segments, payload = joined(groups)
        component = m.Component(worker, 1, 1, 0, 0, 1.0)
        there.feed("a0.1", A, m.Push(*there.head(), 0, (component,), segments, tuple(bytes(memoryview(part)) for part in payload)))

    there.cut((B, A))
    push(0, [1, 2, 3])
    push(1, [4, 5, 6])
    assert codes(there.take(m.Refuse)) == ["NOSPC"] and there.replica(A).log.last == 1
    pool = there.machines[A].jobs[1].pool
    assert (pool.used, pool.promised) == (0, 48)
    there.cut()
    there.time(LIMITS.replicate_us)
    assert (pool.used, pool.promised) == (48, 0) and there.acked() == [1]
    there.cut((B, A))
    push(1, [4])
    assert pool.promised == 16
    there.map(B, A)  # whoever steps down promises nothing any more
    assert pool.promised == 0


def test_a_backup_says_what_it_holds_before_it_applies() -> None:
    there = Trio()
    there.map(A, B)
    there.turns = False
    there.push(1)
    there.push(2)
    assert there.acked() == [1, 2] and there.replica(B).log.last == 2
    assert there.replica(B).log.committed == 1 and there.replica(B).log.applied == 0
    there.turns = True
    there.machines[B]._turns.turning = False
    there.push(3)
    assert there.replica(B).log.applied == 2


def test_servers_that_share_a_range_are_connected_and_others_are_not() -> None:
    there = Trio(counts(copies=2))
    there.map(A, B, learner=C)
    again = there.machines[A].on_message("m0", there.told, 0)
    assert not any(isinstance(effect, (Connect, Disconnect)) for effect in again)
    assert there.machines[A]._linked == {B: f"ipc://{B}", C: f"ipc://{C}"}
    assert there.machines[C]._linked == {A: f"ipc://{A}", B: f"ipc://{B}"}
    there.map(A)
    assert there.machines[A]._linked == there.machines[B]._linked == {}


def test_a_job_that_has_ended_is_forgotten_by_every_copy() -> None:
    there = Trio()
    there.map(A, B, learner=C)
    there.push(1)
    there.map(A, B, C, state="finished")
    assert not any(machine.jobs for machine in there.machines.values())
    there.time(10 * MIB)
    for name in (A, B, C):
        there.machines[name].check()
