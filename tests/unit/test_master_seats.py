"""The master with copies: what primaries ask, what people order, and when it blames nobody."""

from __future__ import annotations

import pytest

from plugml.core.errors import Code
from plugml.core.jobmap import LOST, RUNNING, Assignment, JobMap
from plugml.master.membership import RETURN_FACTOR
from plugml.wire import messages as m
from tests.fuzz.master_world import LIMITS, SECOND, MasterWorld, spec

S = [f"s{number}.0000000{number + 1}" for number in range(4)]
A0 = "a0.0000000f"


@pytest.fixture
def world() -> MasterWorld:
    """Three servers on hosts of their own, an agent and a job with two copies."""
    made = MasterWorld()
    for number in range(3):
        made.register(S[number], host=f"h{number}")
    made.register(A0)
    made.job(A0, spec(copies=2))
    made.sent.clear()
    return made


def the_map(message: m.MapTold) -> JobMap:
    return JobMap.from_document(message.document)


def seats(world: MasterWorld, job: int = 1) -> dict[int, Assignment]:
    state = world.state
    return state.jobs[job].map(state.token, state.ring_ranges).ranges


def learning(world: MasterWorld) -> list[int]:
    return [number for number, seat in seats(world).items() if seat.learner]


def ask(world: MasterWorld, number: int, verb: str, node: str, sender: str = "", reason: str = "") -> m.Done:
    seat = seats(world)[number]
    world.feed(sender or seat.primary, m.SeatAsk(world.number(), 1, number, seat.epoch, verb, node, reason))
    told: m.Done = world.one(sender or seat.primary, m.Done)
    return told


def settle(world: MasterWorld) -> int:
    """Every learner gets in sync."""
    count = 0
    while learning(world):
        for number in learning(world):
            assert ask(world, number, "add", seats(world)[number].learner).code == Code.OK
            count += 1
    return count


# -- seats


def test_a_dead_server_costs_copies_and_no_job_and_they_are_made_anew(world: MasterWorld) -> None:
    before = seats(world)
    world.feed("x.1", m.NodeExit(1, S[0], -9))
    lost = [number for number, seat in before.items() if S[0] in seat.replicas]
    told = the_map(world.take(S[1], m.MapTold)[-1])
    assert told.state == RUNNING and told.ranges == seats(world)
    assert len(learning(world)) == min(len(lost), 2 * LIMITS.learners_max)
    for number in learning(world):
        seat = seats(world)[number]
        assert seat.learner in (S[1], S[2]) and seat.born == seat.epoch > before[number].epoch
    # the death and what follows from it are one change
    assert told.token == world.state.token
    assert settle(world) == len(lost)
    assert all(set(seat.replicas) == {S[1], S[2]} for seat in seats(world).values())


def test_everybody_is_told_of_a_new_seat_before_its_primary_is_answered(world: MasterWorld) -> None:
    world.feed("x.1", m.NodeExit(1, S[0], -9))
    world.sent.clear()
    number = learning(world)[0]
    seat = seats(world)[number]
    world.feed(seat.primary, m.SeatAsk(9, 1, number, seat.epoch, "add", seat.learner, ""))
    kinds = [type(message) for to, message in world.sent if to == seat.primary]
    assert kinds == [m.MapTold, m.Done]
    assert {to for to, message in world.sent if isinstance(message, m.MapTold)} == {S[1], S[2], A0}


def test_no_seat_changes_before_the_store_has_it(world: MasterWorld) -> None:
    world.feed("x.1", m.NodeExit(1, S[0], -9))
    world.sent.clear()
    number = learning(world)[0]
    seat = seats(world)[number]
    world.hold = True
    for request in (9, 9, 10):
        world.feed(seat.primary, m.SeatAsk(request, 1, number, seat.epoch, "add", seat.learner, ""))
    assert world.sent == []
    world.hold = False
    world.release()
    answers = world.take(seat.primary, m.Done)
    assert {told.request for told in answers} == {9, 10} and {told.code for told in answers} == {Code.OK}
    assert seats(world)[number].epoch == seat.epoch + 1


def test_who_asks_in_an_old_epoch_is_told_the_newest_map(world: MasterWorld) -> None:
    number, seat = next(iter(seats(world).items()))
    world.feed(seat.primary, m.SeatAsk(7, 1, number, seat.epoch + 5, "drop", seat.replicas[1], "slow"))
    assert world.one(seat.primary, m.Done).code == Code.AGAIN
    assert the_map(world.one(seat.primary, m.MapTold)).ranges[number] == seat


def test_a_dead_primary_has_no_say(world: MasterWorld) -> None:
    number, seat = next(iter(seats(world).items()))
    world.feed("x.1", m.NodeExit(1, seat.primary, -9))
    world.sent.clear()
    world.feed(seat.primary, m.SeatAsk(7, 1, number, seat.epoch, "drop", seat.replicas[1], "slow"))
    assert world.sent == []


def test_a_dropped_copy_comes_back_later_and_each_time_later(world: MasterWorld) -> None:
    number, seat = next(iter(seats(world).items()))
    world.feed("x.1", m.NodeExit(1, next(name for name in S[:3] if name not in seat.replicas), -9))
    settle(world)
    primary, backup = seats(world)[number].replicas
    waits = []
    for _ in range(3):
        assert ask(world, number, "drop", backup, reason="behind by 64 MiB").code == Code.OK
        assert seats(world)[number].replicas == (primary,) and not seats(world)[number].learner
        start_us = world.now_us
        while not seats(world)[number].learner:
            world.beats_for(LIMITS.beat_us, primary, backup, A0)
        waits.append(world.now_us - start_us)
        assert ask(world, number, "add", backup).code == Code.OK
    assert waits[0] >= LIMITS.refill_us and waits[1] >= 2 * LIMITS.refill_us and waits[2] >= 4 * LIMITS.refill_us
    assert [fields["reason"] for fields in world.events("seat") if fields["verb"] == "drop"] == ["behind by 64 MiB"] * 3


def test_a_restarted_master_goes_on_filling_when_it_has_heard_the_servers(world: MasterWorld) -> None:
    world.feed("x.1", m.NodeExit(1, S[0], -9))
    before = seats(world)
    world.start()
    assert seats(world) == before
    world.beat(S[1], S[2], A0)
    number = learning(world)[0]
    assert ask(world, number, "add", before[number].learner).code == Code.OK
    settle(world)
    assert all(set(seat.replicas) == {S[1], S[2]} for seat in seats(world).values())


def test_a_master_that_has_just_started_names_no_learner_where_a_server_may_still_be_alive(world: MasterWorld) -> None:
    world.hold = True
    world.feed("x.1", m.NodeExit(1, S[0], -9))  # stored, and the master dies
    world.hold = False
    world.start()
    world.register(S[3], host="h3")
    assert S[3] not in {seat.learner for seat in seats(world).values()}
    world.beats_for(LIMITS.suspect_us + LIMITS.beat_us, S[1], S[2], S[3], A0)
    settle(world)
    assert all(len(seat.replicas) == 2 for seat in seats(world).values())


# -- a server is about to end


def test_a_server_that_is_to_end_leaves_what_others_have_at_once(world: MasterWorld) -> None:
    world.beats_for(LIMITS.beat_us, *S[:3], A0)
    assert any(S[0] in seat.replicas for seat in seats(world).values())
    world.feed(S[0], m.Retire(7))
    assert world.one(S[0], m.Done) == m.Done(7, Code.OK, "")
    assert S[0] not in world.state.jobs[1].endpoints and S[0] in world.state.drained
    world.feed(S[0], m.Retire(8))
    assert world.one(S[0], m.Done) == m.Done(8, Code.OK, "")
    world.feed("x.1", m.NodeExit(1, S[0], 0))
    assert world.state.drained == ()
    again = "s0.0000000a"
    world.register(again)
    world.job(A0, spec("next", copies=3))
    assert again in world.state.jobs[2].endpoints, "its successor takes part"


def test_what_nobody_else_has_is_copied_before_a_server_may_end() -> None:
    world = MasterWorld()
    for name in (*S[:2], A0):
        world.register(name)
    world.job(A0, spec(copies=1))
    held = [number for number, seat in seats(world).items() if seat.replicas == (S[0],)]
    world.feed(S[0], m.Retire(1))
    told = world.one(S[0], m.Done)
    assert told.code == Code.AGAIN and told.text == f"{len(held)} ranges left"
    assert {seat.replicas for number, seat in seats(world).items() if number in held} == {(S[0],)}
    for request in range(2, 2 + LIMITS.ranges):
        world.beats_for(LIMITS.beat_us, *S[:2], A0)
        for number, seat in seats(world).items():
            if seat.learner:
                world.feed(seat.replicas[0], m.SeatAsk(1_000 * request + number, 1, number, seat.epoch, "add", seat.learner, ""))
        world.take(S[0], m.Done)
        world.feed(S[0], m.Retire(request))
        told = world.take(S[0], m.Done)[-1]
        if told.code == Code.OK:
            break
    assert told.code == Code.OK and all(seat.replicas == (S[1],) for seat in seats(world).values())


def test_who_is_not_registered_is_not_told_that_it_may_end(world: MasterWorld) -> None:
    world.feed("s7.00000007", m.Retire(1))
    assert world.take("s7.00000007", m.Done) == []


def test_a_job_that_is_stored_together_with_a_drain_knows_of_it(world: MasterWorld) -> None:
    world.hold = True
    world.beats_for(LIMITS.beat_us, *S[:3], A0)
    world.feed("c1.1", m.Admin(1, "drain", {"server": "s0"}))
    world.feed(S[1], m.Retire(2))
    world.ask_job(A0, spec("next", copies=1))
    world.hold = False
    world.release()
    assert world.state.jobs[2].servers() == [S[2]]


# -- blame


def test_most_servers_silent_at_once_is_no_death(world: MasterWorld) -> None:
    world.beats_for(2 * LIMITS.dead_us, *S[:3], A0)
    before = seats(world)
    world.beats_for(3 * LIMITS.dead_us, S[0], A0)
    assert world.events("dead") == [] and seats(world) == before
    assert "2 of 3 servers are silent (s1 and s2)" in world.events("stranded")[0]["text"]
    assert any("nobody is declared dead" in text for text in world.admin("status").document["alarms"])
    world.beats_for(LIMITS.beat_us, S[0], S[1], A0)  # one is heard: the other one is dead
    world.beats_for(LIMITS.beat_us, S[0], S[1], A0)
    assert [fields["node"] for fields in world.events("dead")] == [S[2]]
    assert world.events("not_stranded") and world.state.jobs[1].state == RUNNING
    assert not any("nobody is declared dead" in text for text in world.admin("status").document["alarms"])


def test_no_copies_are_ordered_while_most_servers_are_silent(world: MasterWorld) -> None:
    world.beats_for(2 * LIMITS.dead_us, *S[:3], A0)
    world.beats_for(2 * LIMITS.dead_us, S[0], A0)
    world.register(S[3], host="h3")
    world.beats_for(LIMITS.beat_us, S[0], S[3], A0)  # now two of four
    world.beats_for(2 * LIMITS.beat_us, S[0], S[3], A0)
    assert {fields["node"] for fields in world.events("offline")} == {S[1], S[2]}  # some ranges lie on these two alone
    assert world.events("dead") == [] and world.state.jobs[1].state == RUNNING
    assert S[3] in {seat.learner for seat in seats(world).values()}
    alone = [seat.replicas for seat in seats(world).values() if S[0] not in seat.replicas]
    assert alone and all(set(replicas) == {S[1], S[2]} for replicas in alone)
    world.beats_for(2 * LIMITS.dead_us, S[0], S[1], S[3], A0)
    assert [fields["node"] for fields in world.events("dead")] == [S[2]] and world.state.jobs[1].state == RUNNING


def test_a_silent_server_is_buried_when_somebody_says_that_it_is_gone(world: MasterWorld) -> None:
    world.beats_for(2 * LIMITS.dead_us, *S[:3], A0)
    world.beats_for(2 * LIMITS.dead_us, S[0], A0)
    told = world.admin("gone", server="s0")
    assert told.code == Code.AGAIN and "server s0 is alive" in told.text
    told = world.admin("gone", server="s1")
    assert told.code == Code.OK and told.document == {"node": S[1], "state": "dead"}
    assert world.events("dead")[0]["why"] == "said to be gone by `plugml drain --gone`"
    assert all(S[1] not in seat.replicas for seat in seats(world).values())
    told = world.admin("gone", server="s1")
    assert told.code == Code.RANGE and "there is no server 's1'" in told.text


def test_a_lone_server_that_is_silent_for_long_is_dead() -> None:
    world = MasterWorld()
    for name in (S[0], A0):
        world.register(name)
    world.job(A0, spec())
    world.beats_for((RETURN_FACTOR - 1) * LIMITS.dead_us, A0)
    assert world.state.jobs[1].state == RUNNING
    world.beats_for(2 * LIMITS.dead_us, A0)
    assert world.state.jobs[1].state == LOST


# -- orders


def test_a_drain_is_asked_for_followed_and_finished(world: MasterWorld) -> None:
    held = sum(S[1] in seat.replicas for seat in seats(world).values())
    told = world.admin("drain", server="s1")
    assert told.code == Code.OK and told.document["state"] == "draining"
    told = world.admin("drain", server=S[1])
    assert (told.document["ranges"], told.document["copying"]) == (held, len(learning(world)))
    assert told.text == f"server s1 is being drained: {held} ranges left, {len(learning(world))} on the way"
    assert told.text in world.admin("status").document["alarms"]
    assert settle(world) == held
    told = world.admin("drain", server="s1")
    assert (told.document["state"], told.document["ranges"]) == ("drained", 0) and "may be ended" in told.text
    assert the_map(world.take(S[1], m.MapTold)[-1]).ranges == seats(world)  # it is told that it holds nothing
    assert world.state.drained == ("s1",)
    world.job(A0, spec("next", copies=2))
    assert world.state.jobs[2].servers() == [S[0], S[2]]
    told = world.admin("drain", server="s1", cancel=True)
    assert told.document["state"] == "in use" and list(world.state.drained) == []


def test_the_drain_of_a_server_that_has_ended_can_be_cancelled(world: MasterWorld) -> None:
    world.admin("drain", server="s1")
    settle(world)
    world.feed("x.1", m.NodeExit(1, S[1], 0))
    told = world.admin("drain", server="s1", cancel=True)
    assert told.code == Code.OK and told.text == "server s1 is not drained" and list(world.state.drained) == []
    assert world.admin("drain", server="s1", cancel=True).code == Code.RANGE, "nobody knows it any more"


def test_a_drain_outlives_the_master(world: MasterWorld) -> None:
    world.admin("drain", server="s1")
    world.start()
    world.beats_for(LIMITS.suspect_us + LIMITS.beat_us, *S[:3], A0)
    settle(world)
    assert all(S[1] not in seat.replicas for seat in seats(world).values())


def test_a_drain_that_cannot_end_says_why(world: MasterWorld) -> None:
    world.feed("x.1", m.NodeExit(1, S[2], -9))
    settle(world)
    world.admin("drain", server="s1")
    text = world.admin("drain", server="s1").text
    assert text.endswith("job job keeps 2 copies, and 1 server can take them: start another server")
    told = world.admin("drain", server="s0")
    assert told.code == Code.NOSERVER and "no other server could take what s0 holds" in told.text


def test_while_all_servers_are_drained_a_job_waits() -> None:
    world = MasterWorld()
    for name in (S[0], S[1], A0):
        world.register(name)
    world.admin("drain", server="s0")
    world.feed("x.1", m.NodeExit(1, S[1], 0))
    world.ask_job(A0, spec())
    assert world.take(A0, m.JobTold) == [] and "every server is drained" in world.events("job_waits")[0]["text"]
    world.admin("drain", server="s0", cancel=True)
    world.run_for(LIMITS.beat_us)
    assert world.one(A0, m.JobTold).code == Code.OK


def test_scale_moves_to_a_new_server_and_says_what_it_does(world: MasterWorld) -> None:
    world.register(S[3], host="h3")
    assert learning(world) == []
    told = world.admin("scale")
    count = told.document["moves"]
    assert count and told.text == f"{count} copies of 1 job are to move"
    assert world.admin("jobs").document["jobs"][0]["moves"] == count
    assert settle(world) == count
    told = world.admin("scale")
    assert told.document["moves"] == 0 and told.text == "nothing is to move: every server has its share"
    assert S[3] in world.state.jobs[1].servers()


def test_a_job_that_wants_more_copies_in_sync_than_there_are_servers_is_refused(world: MasterWorld) -> None:
    told = world.job(A0, spec("wide", copies=0, min_insync=3))
    assert told.code == Code.OK and world.state.jobs[2].spec.copies == 3
    world.feed("x.1", m.NodeExit(1, S[2], -9))
    told = world.job(A0, spec("wider", copies=3, min_insync=3))
    assert told.code == Code.NOSERVER and "min_insync = 3 copies need as many servers, and 2 servers can take some" in told.text


def test_the_same_document_with_copies_left_open_is_the_same_job(world: MasterWorld) -> None:
    world.job(A0, spec("open", copies=0))
    assert world.job(A0, spec("open", copies=0)).job == 2
    told = world.job(A0, spec("open", copies=3))
    assert told.code == Code.COLLIDE and "copies = 2, here 3" in told.text


def test_the_last_copy_of_a_range_takes_the_job_with_it_and_the_reason_names_how_many(world: MasterWorld) -> None:
    before = seats(world)
    both = sum({S[0], S[1]} == set(seat.replicas) for seat in before.values())
    world.hold = True
    world.feed("x.1", m.NodeExit(1, S[0], -9))
    world.feed("x.1", m.NodeExit(2, S[1], -9))
    world.hold = False
    world.release()
    job = world.state.jobs[1]
    assert job.state == LOST and job.reason == f"server s1 held the last copy of {both} ranges (signal 9)"
    world.run_for(SECOND)
    assert all(not seat.learner for seat in seats(world).values() if not seat.replicas)


def test_a_drain_of_a_server_that_goes_while_the_store_is_slow_is_refused_by_name(world: MasterWorld) -> None:
    world.hold = True
    world.feed(A0, m.NodeExit(world.number(), S[1], -9))
    number = world.number()
    world.feed(A0, m.Admin(number, "drain", {"server": "s1", "cancel": False}))
    world.hold = False
    world.release()
    told = world.one(A0, m.AdminTold)
    assert told.request == number and told.code == Code.RANGE and "no server 's1'" in told.text


def test_a_learner_that_nobody_needs_any_more_is_let_go_when_its_primary_asks_to_add_it(world: MasterWorld) -> None:
    world.admin("drain", server="s1")
    number = learning(world)[0]
    seat = seats(world)[number]
    world.hold = True
    world.feed(seat.primary, m.NodeExit(world.number(), A0, -9))  # the store is busy: what follows is decided together
    world.feed("cli.1", m.Admin(world.number(), "drain", {"server": "s1", "cancel": True}))
    world.feed(seat.primary, m.SeatAsk(world.number(), 1, number, seat.epoch, "add", seat.learner, ""))
    world.hold = False
    world.release()
    assert seats(world)[number].replicas == seat.replicas and not seats(world)[number].learner
