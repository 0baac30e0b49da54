"""A launcher that dies without a word: its job does not keep the servers' memory for ever, nor its name."""

from __future__ import annotations

from typing import Any

import numpy as np

from plugml.agent import effects as e
from plugml.core.limits import Limits
from plugml.wire import messages as m

from .test_agent_harness import World, job

ONES = np.ones(40, "<f4")
GONE_S = Limits().gone_us / 1e6


def abandoned(workers: int = 2) -> World:
    """A job of which the launcher was killed, and with it its programs and its channels' keepers."""
    world = World()
    world.register(job(workers=workers, settings={"run": "first"}))
    programs = [world.plug("digits", worker) for worker in range(workers)]
    for program in programs:
        program.begin("step", ONES)
    world.run(1.0)
    for program in programs:
        world.feed("", e.KeeperGone(program.name))
    return world


def ends(world: World) -> list[Any]:
    world.run(1.2 * GONE_S)
    return [(end.job, end.state, end.reason) for end in world.master.ended]


def test_a_job_without_its_launcher_is_ended_after_a_while() -> None:
    world = abandoned()
    world.feed("", e.Hung(1))
    world.run(0.8 * GONE_S)
    assert world.master.ended == []
    assert ends(world) == [(1, "stopped", "its launcher is gone")]


def test_a_launcher_that_speaks_or_comes_back_keeps_its_job() -> None:
    world = abandoned()
    assert ends(world) == [], "its connection is there"
    world.feed("", e.Hung(1))
    world.run(0.5 * GONE_S)
    assert world.ask("standing", job="digits")["ok"]
    assert ends(world) == []


def test_a_channel_that_is_kept_keeps_its_job() -> None:
    world = World()
    world.register(job(workers=2))
    first, _other = world.plug("digits", 0), world.plug("digits", 1)
    world.feed("", e.KeeperGone(first.name))
    world.feed("", e.Hung(1))
    assert ends(world) == []


def test_its_name_is_free_at_once_for_another_run_and_not_for_the_same_told_again() -> None:
    world = abandoned()
    world.feed("", e.Hung(1))
    world.sent.clear()
    world.register(job(workers=2, settings={"run": "first"}))
    world.feed("", e.Hung(1))
    assert world.master.ended == []
    world.ask("register", spec=job(workers=2, settings={"run": "second"}).to_document())
    assert [(end.job, end.reason) for end in world.master.ended] == [(1, "its launcher is gone, and its name was used again")]
    asks = [message.after for _to, message in world.sent if isinstance(message, m.JobAsk)]
    assert asks[-1] == 1, "a run that follows the one that has ended"
