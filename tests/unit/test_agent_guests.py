"""A launcher that brings workers to a running job: what it is told, and what becomes of them when it dies without a word."""

from __future__ import annotations

import numpy as np

from plugml.agent import effects as e
from plugml.core.limits import Limits
from plugml.shm_protocol.info import parse_info

from .test_agent_harness import World, job

ONES = np.ones(40, "<f4")
GONE_S = Limits().gone_us / 1e6
GUEST = 2  # connection


def joined(workers: int = 2) -> World:
    """A job of two workers, to which others have come over a connection of their own."""
    world = World()
    world.register(job(workers=2))
    told = world.ask("join", connection=GUEST, job="digits", workers=workers, launcher="x1")
    assert (told["ok"], told["first"], told["workers"]) == (True, 2, 2 + workers)
    assert world.ask("register", connection=GUEST, spec=told["spec"], job=told["job"], joined=1)["ok"]
    return world


def clock(world: World) -> tuple[int, int]:
    """Members and slowest, as the clock has told."""
    world.ask("standing", job="digits")
    world.run(2.0)
    told = world.ask("standing", job="digits")
    return told["members"], told["slowest"]


def test_a_joined_worker_is_a_member_and_is_told_the_truth() -> None:
    world = joined()
    info = parse_info(world.ask("attach", connection=GUEST, job="digits", worker=3)["info"])
    assert (info.worker, info.workers) == (3, 4)
    assert clock(world)[0] == 3


def test_a_dead_launchers_workers_leave_and_the_job_goes_on() -> None:
    world = joined()
    own = [world.plug("digits", worker) for worker in (0, 1)]
    guests = [world.plug("digits", worker, GUEST) for worker in (2, 3)]
    assert clock(world)[0] == 4
    for program in guests:
        world.feed("", e.KeeperGone(program.name))
    world.feed("", e.Hung(GUEST))
    for program in own:
        program.begin("step", ONES)
    world.run(1.2 * GONE_S)
    assert clock(world) == (2, 1) and world.master.ended == []


def test_one_that_died_before_it_had_a_channel_is_not_waited_for_for_ever() -> None:
    world = joined(1)
    assert world.ask("attach", connection=GUEST, job="digits", worker=2)["ok"]
    world.feed("", e.Hung(GUEST))
    world.run(0.8 * GONE_S)
    assert clock(world)[0] == 3
    world.run(0.4 * GONE_S)
    assert clock(world)[0] == 2


def test_a_joined_launcher_does_not_keep_a_job_whose_own_is_gone() -> None:
    world = joined(1)
    own = [world.plug("digits", worker) for worker in (0, 1)]
    world.plug("digits", 2, GUEST)
    for program in own:
        world.feed("", e.KeeperGone(program.name))
    world.feed("", e.Hung(1))
    world.ask("standing", connection=GUEST, job="digits")
    world.run(1.2 * GONE_S)
    assert [(end.job, end.state) for end in world.master.ended] == [(1, "stopped")]


def test_workers_of_a_lost_host_leave_by_the_word_of_another_agent() -> None:
    world = joined(2)
    for worker in (0, 1):
        world.plug("digits", worker)
    for worker in (2, 3):  # as if elsewhere: no channel of theirs is here
        assert world.ask("attach", connection=GUEST, job="digits", worker=worker)["ok"]
    assert clock(world)[0] == 4
    job = world.master.change(1, gone=((3, 1), (2, 0)))  # of worker 2 there is a newer generation
    world.feed("m0.00000001", world.master.map_told(job.number))
    world.run(1.0)
    assert clock(world)[0] == 3
