"""kill -9 of everybody in turn while programs in C, R and shell push whole numbers: sums stay exact, nobody hangs."""

from __future__ import annotations

import os
import random
import time

from tests.system.counting import agent_pid, await_clock, commands, expected, is_on, job_file, kill_agent, root_of, sums
from tests.system.run_kit import Place, place, wait_for  # noqa: F401

LONG = os.environ.get("PLUGML_LONG", "") not in ("", "0")
AGENT_KILLS = 300 if LONG else 60


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
    assert sums(place) == expected(steps, 3)
    result = place.result("count")
    assert [worker["status"] for worker in result["workers"]] == [0, 0, 0]
    assert [worker["clocks"] for worker in result["workers"]] == [steps] * 3
    assert [worker["pushes"] for worker in result["workers"]] == [steps] * 3
    assert done.stderr.count("agent a0 ended (killed by signal 9") == AGENT_KILLS
