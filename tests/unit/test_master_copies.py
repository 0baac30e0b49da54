"""Copies of ranges through deaths, joins, drains and moves: one primary an epoch, nothing twice, and no more moves than needed."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from plugml.core.errors import Code
from plugml.core.jobmap import FAILED, LOST, RUNNING
from plugml.master.catalog import DRAINED, LEVELLED, PLACED, PROMOTED
from plugml.master.words import after
from plugml.wire import messages as m
from tests.unit.master_copies import LIMITS, Copies


def cluster(servers: int, hosts: int = 0) -> Copies:
    made = Copies()
    for number in range(servers):
        made.join(f"s{number}", f"h{number % (hosts or servers)}")
    return made


# -- placement


def test_a_job_has_two_copies_where_there_are_two_servers_and_one_where_there_is_one() -> None:
    assert cluster(1).job("j", copies=0).spec.copies == 1
    assert cluster(2).job("j", copies=0).spec.copies == 2
    assert cluster(3).job("j", copies=0, min_insync=3).spec.copies == 3


def test_copies_lie_on_different_servers_and_hosts() -> None:
    world = cluster(6, hosts=3)
    job = world.job("j", copies=3)
    host = {record.name: record.host for record in world.servers.values()}
    assert len(job.seats) > 20
    assert all(len({host[name] for name in seat.replicas}) == 3 for seat in job.seats.values())


def test_too_few_hosts_are_said_loudly_and_too_few_servers_too() -> None:
    assert "COPIES SHARE A HOST: 1 host for 2 copies" in cluster(3, hosts=1).job("j").why
    assert "only 2 of 3 copies: start more servers" in cluster(2).job("j", copies=3).why


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_who_leads_and_who_holds_is_even(copies: int) -> None:
    world = cluster(4)
    world.job("j", copies=copies, mib=8)
    assert world.is_even(1)


def test_more_copies_than_servers_are_made_as_servers_come() -> None:
    world = cluster(1)
    world.job("j", copies=3)
    assert world.learners() == []
    world.join("s1")
    assert len(world.learners()) == LIMITS.learners_max
    world.settle()
    world.join("s2")
    world.settle()
    assert all(len(seat.replicas) == 3 for seat in world.state.jobs[1].seats.values())
    assert world.is_even(1)  # and the newcomers lead their share


# -- death


def test_the_next_copy_leads_and_the_missing_ones_are_made_elsewhere() -> None:
    world = cluster(4)
    before = world.job("j").seats
    dead = world.servers["s0"].name
    world.die("s0")
    job = world.state.jobs[1]
    assert job.state == RUNNING
    for number, seat in job.seats.items():
        if before[number].replicas[0] == dead:
            assert (seat.replicas, seat.cause) == (before[number].replicas[1:], PROMOTED)
        elif dead not in before[number].replicas:
            assert seat.replicas == before[number].replicas
    lost = sum(dead in seat.replicas for seat in before.values())
    assert world.settle() == lost == world.copied.total()
    assert all(len(seat.replicas) == 2 for seat in world.state.jobs[1].seats.values())
    assert world.is_even(1)


def test_who_reports_a_death_is_told_what_follows_from_it() -> None:
    world = cluster(3)
    job = world.job("j")
    dead = world.servers["s0"].name
    held = sum(dead in seat.replicas for seat in job.seats.values())
    assert after(world.state, dead) == f"its {held} ranges are served by other copies, and what is missing is copied again"
    assert after(world.state, "s0.other") == ""
    world.die("s1")
    left = sum(dead in seat.replicas and len(seat.replicas) > 1 for seat in world.state.jobs[1].seats.values())
    now = sum(dead in seat.replicas for seat in world.state.jobs[1].seats.values())
    assert 0 < left < now and after(world.state, dead).startswith(f"{left} of its {now} ranges are served")
    one = cluster(1)
    one.job("j")
    assert after(one.state, one.servers["s0"].name) == ""


def test_a_job_is_lost_only_with_the_last_copy_of_a_range() -> None:
    world = cluster(4)
    both = [{name.partition(".")[0] for name in seat.replicas} for seat in world.job("j").seats.values()]
    world.die("s0")
    world.die("s1")
    job = world.state.jobs[1]
    count = both.count({"s0", "s1"})
    assert count and job.state == LOST
    assert job.reason == f"server s1 held the last copy of {count} ranges (signal 9)"
    assert sum(not seat.replicas for seat in job.seats.values()) == count
    assert world.learners() == []  # nothing is done for a job that is lost


def test_a_restarted_server_is_filled_again_and_leads_again() -> None:
    world = cluster(4)
    world.job("j", mib=8)
    held = world.held()["s0"]
    world.join("s0")
    assert world.settle() == held
    assert 0.8 * held <= world.held()["s0"] <= 1.2 * held  # the ring names it again, not somebody else
    assert world.is_even(1)
    assert LEVELLED in {seat.cause for seat in world.state.jobs[1].seats.values()}


def test_a_learner_that_dies_is_replaced() -> None:
    world = cluster(3)
    world.job("j")
    world.die("s0")
    number, range_number = world.learners()[0]
    learner = world.state.jobs[number].seats[range_number].learner
    world.join("s3")
    world.die(learner.partition(".")[0])
    world.settle()
    if world.state.jobs[1].running:
        assert all(len(seat.replicas) == 2 for seat in world.state.jobs[1].seats.values())


def test_ranges_with_the_fewest_copies_come_first_and_servers_are_filled_with_few_at_a_time() -> None:
    world = cluster(5)
    world.job("two", copies=2)
    world.job("three", copies=3)
    world.hush(*world.servers)  # nothing can be done meanwhile
    world.die("s0")
    world.die("s1")
    assert world.learners() == []
    world.hush()
    jobs = world.state.jobs
    filled = [len(jobs[number].seats[n].replicas) for number, n in world.learners()]
    assert len(filled) == 3 * LIMITS.learners_max if jobs[1].running else filled
    short = [len(seat.replicas) for job in jobs.values() if job.running for seat in job.seats.values() if len(seat.replicas) < job.spec.copies]
    assert sorted(filled) == sorted(short)[: len(filled)]


# -- what primaries and copies ask for


def seat_of(world: Copies) -> tuple[int, m.SeatAsk]:
    """A range that has a learner, and the question that adds it."""
    _, number = world.learners()[0]
    seat = world.state.jobs[1].seats[number]
    return number, m.SeatAsk(1, 1, number, seat.epoch, "add", seat.learner, "")


def test_a_learner_is_added_once_however_often_its_primary_asks() -> None:
    world = cluster(3)
    world.job("j")
    world.die("s0")
    number, ask = seat_of(world)
    before = world.state.jobs[1].seats[number]
    for _ in range(3):
        assert world.ask(before.replicas[0], ask) == Code.OK
        seat = world.state.jobs[1].seats[number]
        assert (seat.replicas, seat.learner, seat.epoch) == ((*before.replicas, before.learner), "", before.epoch + 1)


def test_nobody_else_may_add_and_nothing_but_the_learner_of_this_epoch() -> None:
    world = cluster(4)
    world.job("j")
    world.die("s0")
    number, ask = seat_of(world)
    seat = world.state.jobs[1].seats[number]
    other = next(record.name for record in world.servers.values() if record.name not in seat.names())
    assert world.ask(seat.learner, ask) == Code.PERM
    assert world.ask(seat.replicas[0], ask._replace(node=other)) == Code.RANGE
    assert world.ask(seat.replicas[0], ask._replace(epoch=seat.epoch - 1)) == Code.AGAIN
    assert world.ask(seat.replicas[0], ask._replace(range=4_000)) == Code.RANGE
    assert world.ask(seat.replicas[0], ask._replace(verb="dance")) == Code.FORMAT
    assert world.ask(seat.replicas[0], ask._replace(job=9)) == Code.OK  # it has ended, whatever it was
    assert world.state.jobs[1].seats[number] == seat


def test_a_copy_is_dropped_by_its_primary_or_by_itself_and_made_anew_elsewhere() -> None:
    world = cluster(4)
    job = world.job("j")
    first, second = sorted(job.seats)[:2]
    seat = job.seats[first]
    world.avoided.add((1, first, seat.replicas[1]))
    assert world.drop(1, first, seat.replicas[1]) == Code.OK
    after = world.state.jobs[1].seats[first]
    assert after.replicas == seat.replicas[:1] and after.learner and after.learner not in seat.replicas
    assert world.drop(1, first, seat.replicas[1]) == Code.OK  # again: nothing happens
    assert world.state.jobs[1].seats[first] == after

    seat = job.seats[second]  # a primary that cannot go on
    world.avoided.add((1, second, seat.replicas[0]))
    assert world.drop(1, second, seat.replicas[0], sender=seat.replicas[0]) == Code.OK
    after = world.state.jobs[1].seats[second]
    assert after.replicas == seat.replicas[1:] and after.cause == PROMOTED
    other = next(record.name for record in world.servers.values() if record.name not in (*after.names(), after.replicas[0]))
    assert world.drop(1, second, after.replicas[0], sender=other) == Code.PERM


def test_a_learner_may_be_dropped_and_another_one_is_named() -> None:
    world = cluster(4)
    world.job("j")
    world.die("s0")
    number, _ = seat_of(world)
    seat = world.state.jobs[1].seats[number]
    world.avoided.add((1, number, seat.learner))
    assert world.drop(1, number, seat.learner, sender=seat.learner) == Code.OK
    after = world.state.jobs[1].seats[number]
    assert after.replicas == seat.replicas and after.epoch > seat.epoch and after.learner != seat.learner


def test_the_only_copy_is_never_dropped_the_job_fails_instead() -> None:
    world = cluster(1)
    job = world.job("j", copies=1)
    number = min(job.seats)
    assert world.drop(1, number, job.seats[number].replicas[0]) == Code.OK
    job = world.state.jobs[1]
    assert job.state == FAILED and job.seats[number].replicas
    assert job.reason == f"server s0 holds the only copy of range {number}, and it cannot go on: no memory"


# -- drain


@pytest.mark.parametrize("copies", [1, 2, 3])
@pytest.mark.parametrize("servers", [4, 6])
def test_a_drain_moves_what_the_server_held_and_nothing_else(copies: int, servers: int) -> None:
    world = cluster(servers)
    world.job("j", copies=copies, mib=16)
    held = world.held()["s1"]
    world.drain("s1")
    assert world.settle() == held
    assert world.held()["s1"] == 0
    assert world.copied_bytes <= 1.2 * copies * (16 << 20) / servers  # the share that a server has
    job = world.state.jobs[1]
    assert all(len(seat.replicas) == copies for seat in job.seats.values())
    assert world.is_even(1)
    assert {seat.cause for seat in job.seats.values()} >= {PLACED, DRAINED}


def test_a_primary_that_is_drained_hands_over_when_the_new_copy_is_in_sync_and_not_before() -> None:
    world = cluster(3)
    before = world.job("j").seats
    world.drain("s1")
    name = world.servers["s1"].name
    number = next(n for _, n in world.learners() if before[n].replicas[0] == name)
    seat = world.state.jobs[1].seats[number]
    assert seat.replicas == before[number].replicas
    world.add(1, number)
    assert world.state.jobs[1].seats[number].replicas == (*before[number].replicas[1:], seat.learner)


def test_a_cancelled_drain_leaves_what_has_not_moved() -> None:
    world = cluster(4)
    world.job("j")
    held = world.held()["s1"]
    world.drain("s1")
    for number, range_number in world.learners():
        world.add(number, range_number)
    moved = world.copied.total()
    assert moved and world.learners()
    world.drain("s1", cancel=True)
    assert world.learners() == [] and world.held()["s1"] == held - moved
    assert world.settle() == 0


def test_a_drained_server_gets_nothing_also_as_another_process() -> None:
    world = cluster(3)
    world.drain("s2")
    world.job("j")
    world.die("s2")
    world.join("s2")
    world.die("s0")
    assert world.learners() == []  # s1 alone is there for it
    world.drain("s2", cancel=True)
    world.settle()
    assert world.held()["s2"] == len(world.state.jobs[1].seats)


def test_a_drain_that_nobody_can_take_waits_for_a_server() -> None:
    world = cluster(2)
    ranges = len(world.job("j").seats)
    world.drain("s1")
    assert world.learners() == [] and world.held()["s1"] == ranges
    world.join("s2")
    assert world.settle() == ranges
    assert (world.held()["s1"], world.held()["s2"]) == (0, ranges)


# -- scale


@pytest.mark.parametrize("copies", [1, 2, 3])
@pytest.mark.parametrize("more", [1, 2])
def test_scale_moves_about_the_share_of_the_newcomers(copies: int, more: int) -> None:
    world = cluster(4)
    world.job("j", copies=copies, mib=16)
    for number in range(4, 4 + more):
        world.join(f"s{number}")
    assert world.learners() == []  # nothing moves by itself
    world.scale()
    assert world.learners()
    world.settle()
    ideal = copies * (16 << 20) * more / (4 + more)
    assert 0.8 * ideal <= world.copied_bytes <= 1.2 * ideal
    assert world.is_even(1)
    assert world.state.jobs[1].moves == {}
    before = world.state
    world.scale()
    assert world.state.jobs == before.jobs  # everybody has its share


def test_scale_parts_copies_that_share_a_host() -> None:
    world = cluster(4, hosts=2)
    world.job("j")
    for key in ("s1", "s3"):  # all of host 1
        world.die(key)
    world.settle()
    for key in ("s1", "s3"):
        world.join(key, "h1")
    world.scale()
    world.settle()
    host = {record.name: record.host for record in world.servers.values()}
    assert all(len({host[name] for name in seat.replicas}) == 2 for seat in world.state.jobs[1].seats.values())


def test_a_move_to_a_server_that_dies_is_forgotten_and_so_are_cancelled_ones() -> None:
    world = cluster(3)
    world.job("j")
    world.join("s3")
    world.scale()
    assert world.state.jobs[1].moves
    world.die("s3")
    assert world.state.jobs[1].moves == {} and world.learners() == []
    world.join("s3")
    world.scale()
    world.scale(cancel=True)
    assert world.state.jobs[1].moves == {} and world.learners() == []


# -- any story


@pytest.mark.parametrize("seed", range(24))
def test_any_story_keeps_what_must_hold_and_ends_whole(seed: int) -> None:
    """`Copies` looks at every seat after every step."""
    draw = random.Random(seed)
    world = Copies(replace(LIMITS, ranges=64, learners_max=draw.choice([1, 2, 5])))
    ids = [f"s{number}" for number in range(draw.randint(2, 8))]
    hosts = draw.randint(1, len(ids))
    for key in ids:
        world.join(key, f"h{int(key[1:]) % hosts}")
    old: list[tuple[str, m.SeatAsk]] = []
    for step in range(150):
        play(world, draw, ids, hosts, old, step)

    world.avoided = set()
    world.hush()
    for key in list(world.state.drained):
        world.drain(key, cancel=True)
    for key in ids:
        if key not in world.servers:
            world.join(key, f"h{int(key[1:]) % hosts}")
    world.settle()
    for job in world.state.jobs.values():
        if job.running:
            assert job.moves == {}
            assert all(len(seat.replicas) == min(job.spec.copies, len(ids)) for seat in job.seats.values())


def play(world: Copies, draw: random.Random, ids: list[str], hosts: int, old: list[tuple[str, m.SeatAsk]], step: int) -> None:
    """One step: mostly learners get in sync, else anything."""
    what = draw.choice(["add"] * 6 + ["die", "join", "join", "job", "drop", "late", "drain", "cancel", "scale", "silent", "heard"])
    running = [job for job in world.state.jobs.values() if job.running]
    if what == "add" and world.learners():
        number, range_number = draw.choice(world.learners())
        seat = world.state.jobs[number].seats[range_number]
        old.append((seat.replicas[0], m.SeatAsk(step, number, range_number, seat.epoch, "add", seat.learner, "")))
        assert world.ask(*old[-1]) == Code.OK
    elif what == "die" and len(world.servers) > 1:
        world.die(draw.choice(sorted(world.servers)))
    elif what == "join":
        key = draw.choice(ids)
        world.join(key, f"h{int(key[1:]) % hosts}")
    elif what == "job" and len(running) < 3 and set(world.servers) - set(world.state.drained):
        world.job(f"job{step}", copies=draw.randint(1, 3), mib=draw.randint(1, 3))
    elif what == "drop" and running:
        job = draw.choice(running)
        number = draw.choice(sorted(job.seats))
        seat = job.seats[number]
        if len(seat.replicas) > 1:
            node = draw.choice(seat.names())
            old.append((draw.choice([seat.replicas[0], node]), m.SeatAsk(step, job.number, number, seat.epoch, "drop", node, "slow")))
            assert world.ask(*old[-1]) == Code.OK
    elif what == "late" and old:
        before = world.state
        world.ask(*draw.choice(old))
        assert world.state is before  # each was carried out; what comes again comes too late
    elif what in ("drain", "cancel"):
        world.drain(draw.choice(ids), cancel=what == "cancel")
    elif what == "scale":
        world.scale(cancel=draw.random() < 0.2)
    elif what == "silent":
        world.hush(*draw.sample(sorted(world.servers), draw.randint(0, len(world.servers) - 1)))
    elif what == "heard":
        world.hush()
