"""kill -9 of everybody in turn while programs in C, R and shell push whole numbers: sums stay exact, nobody hangs."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from tests.system.counting import (
    agent_pid, await_clock, channels, clock_of, commands, counted, is_on, job_file, kill_agent, root_of, sums, worker_pid,
)  # fmt: skip
from tests.system.run_kit import Place, place, wait_for  # noqa: F401

LONG = os.environ.get("PLUGML_LONG", "") not in ("", "0")
AGENT_KILLS = 300 if LONG else 60
WORKER_KILLS = 90 if LONG else 30


def test_60_kills_of_the_agent_lose_nothing_and_double_nothing(place: Place) -> None:  # noqa: F811
    """Each a few clocks after the one before, at any moment of a request."""
    draw = random.Random(AGENT_KILLS)
    every = 7  # clocks from one kill to the next
    steps = every * (AGENT_KILLS + 2)
    process = place.start("run", "-f", str(job_file(place, commands(place, steps))), "--json")
    wait_for(lambda: any(place.root.glob("*/agent.lock")), "the agent is there")
    root = root_of(place)
    for number in range(AGENT_KILLS):
        # The shell is the slowest; clocks move again only when the new agent has taken up all three channels.
        await_clock(process, root, 2, every * (number + 1))
        time.sleep(draw.choice((0, draw.uniform(0, 0.03))))  # right after a reply, or at some moment of the next requests
        before = kill_agent(root)
        wait_for(lambda before=before: agent_pid(root) != before or not is_on(process), "a new agent has the lock")
    done = process.ended()
    assert sums(place) == counted([steps] * 3)
    result = place.result("count")
    assert [worker["status"] for worker in result["workers"]] == [0, 0, 0]
    assert [worker["clocks"] for worker in result["workers"]] == [steps] * 3
    assert [worker["pushes"] for worker in result["workers"]] == [steps] * 3
    assert done.stderr.count("agent a0 ended (killed by signal 9") == AGENT_KILLS


@pytest.mark.parametrize("consistency", ["bsp", "asp"])
def test_30_kills_of_workers_tear_nothing_and_lose_nothing(place: Place, consistency: str) -> None:  # noqa: F811
    """Of a program alone or with everything that it has started, from its first moment on: each clock counts once."""
    draw = random.Random(consistency)
    kills = [0, 0, 0]
    job = job_file(place, commands(place, 1_000_000), consistency=consistency, max_restarts=WORKER_KILLS)
    process = place.start("run", "-f", str(job))
    wait_for(lambda: any(place.root.glob("*/count.2.1")), "all workers have channels")
    root = root_of(place)
    for number in range(WORKER_KILLS):
        victim = number % 3
        pid = worker_pid(process, victim, kills[victim] + 1)
        await_clock(process, root, victim, clock_of(root, victim) + draw.choice((0, 1, 3)))
        time.sleep(draw.choice((0, draw.uniform(0, 0.03))))
        (os.killpg if draw.random() < 0.5 else os.kill)(pid, signal.SIGKILL)
        kills[victim] += 1
        worker_pid(process, victim, kills[victim] + 1)
        newest = [f"count.{worker}.{kills[worker] + 1}" for worker in range(3)]
        assert channels(root) == newest, "of a dead generation nothing is left"
    process.send(signal.SIGINT)  # ends them by SIGTERM, wherever they are
    done = process.ended(130)
    result = place.result("count")
    workers = result["workers"]
    clocks = [worker["clocks"] for worker in workers]
    assert [worker["pushes"] for worker in workers] == clocks and min(clocks) > WORKER_KILLS // 3
    # Every clock of every worker counts once, whatever was in the air; under bsp if it was everybody's.
    assert sums(place) == counted([result["closed"]] * 3 if consistency == "bsp" else clocks)
    assert consistency == "asp" or result["closed"] == min(clocks)
    assert [worker["restarts"] for worker in workers] == kills
    assert [worker["generation"] for worker in workers] == [number + 1 for number in kills]
    assert done.stderr.count("was killed by SIGKILL") == WORKER_KILLS
