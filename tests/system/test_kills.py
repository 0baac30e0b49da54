"""kill -9 of everybody in turn while programs in C, R and shell push whole numbers: sums stay exact, nobody hangs."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from tests.system.counting import (
    BIG,
    agent_pid,
    await_channel,
    await_clock,
    channels,
    clock_of,
    commands,
    counted,
    counter,
    has_rung,
    is_on,
    job_file,
    kill,
    kill_agent,
    node_pid,
    root_of,
    sums,
    worker_pid,
)  # fmt: skip
from tests.system.run_kit import Place, children, find_child, is_alive, place, wait_for  # noqa: F401

LONG = os.environ.get("PLUGML_LONG", "") not in ("", "0")
AGENT_KILLS = 300 if LONG else 60
WORKER_KILLS = 90 if LONG else 30


def test_60_kills_of_the_agent_lose_nothing_and_double_nothing(place: Place) -> None:  # noqa: F811
    """Each a few clocks after the one before, at any moment of a request."""
    draw = random.Random(AGENT_KILLS)
    every = 7  # clocks from one kill to the next
    steps = every * (AGENT_KILLS + 2)
    process = place.start("run", "-f", str(job_file(place, commands(place, steps))), "--json")
    await_channel(process, place.root, "count.2.1")
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
    await_channel(process, place.root, "count.2.1")
    root = root_of(place)
    for number in range(WORKER_KILLS):
        victim = number % 3
        pid = worker_pid(process, victim, kills[victim] + 1)
        await_clock(process, root, victim, clock_of(root, victim) + draw.choice((0, 1, 3)))
        time.sleep(draw.choice((0, draw.uniform(0, 0.03))))
        kill(pid, whole_group=draw.random() < 0.5)
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


def test_a_worker_and_its_agent_killed_together_leave_a_whole_push_or_none(place: Place) -> None:  # noqa: F811
    """Under asp, with parts on three servers: what the old agent has sent of a push, the new one completes."""
    draw = random.Random(3)
    kills = 8
    words = ["--consistency", "asp", "--servers", "3", "--table", f"w={BIG}:i64,optimizer=add", "--max-restarts", str(kills)]
    process = place.start("run", "-n", "2", "--name", "count", *words, "--", *commands(place, 1_000_000, 0, ["c"])[0])
    await_channel(process, place.root, "count.1.1")
    root = root_of(place)
    gens = [1, 1]
    for number in range(kills):
        victim = number % 2
        pid, agent = worker_pid(process, victim, gens[victim]), agent_pid(root)
        await_clock(process, root, victim, clock_of(root, victim) + 1)
        time.sleep(draw.uniform(0, 0.03))
        for doomed in (pid, agent) if number % 4 < 2 else (agent, pid):
            kill(doomed)
        gens[victim] += 1
        worker_pid(process, victim, gens[victim])
    process.send(signal.SIGINT)
    process.ended(130)
    workers = place.result("count")["workers"]
    clocks = [worker["clocks"] for worker in workers]
    assert [worker["pushes"] for worker in workers] == clocks
    assert sums(place) == counted(clocks, BIG)


def test_a_storm_of_kills_over_master_agent_and_workers(place: Place) -> None:  # noqa: F811
    draw = random.Random(11)
    kills, restarts, steps = 6, 0, 130
    job = job_file(place, commands(place, steps), max_restarts=kills)
    process = place.start("run", "-f", str(job))
    await_channel(process, place.root, "count.2.1")
    root = root_of(place)
    for number in range(kills):
        await_clock(process, root, 0, 15 * (number + 1))
        master, agent = node_pid(process, "master"), agent_pid(root)
        worker = worker_pid(process, 2, restarts + 1)
        victims = [pid for pid in (master, agent, worker) if pid and draw.random() < 0.6]
        restarts += worker in victims
        for pid in draw.sample(victims, len(victims)):
            kill(pid)
    done = process.ended()
    assert sums(place) == counted([steps] * 3)
    result = place.result("count")
    assert [worker["pushes"] for worker in result["workers"]] == [steps] * 3
    assert result["workers"][2]["restarts"] == restarts > 0
    assert "master m0 ended" in done.stderr and "agent a0 ended" in done.stderr


# -- launcher and agent together --------------------------------------------------------------------------------------


def test_launcher_and_agent_of_a_private_cluster_killed_together(place: Place) -> None:  # noqa: F811
    process = place.start("run", "-f", str(job_file(place, commands(place, 1_000_000))))
    await_channel(process, place.root, "count.2.1")
    root = root_of(place)
    await_clock(process, root, 2, 3)
    everybody = list(children(process.pid))
    for pid in (agent_pid(root), process.pid):
        kill(pid)
    process.process.wait()
    wait_for(lambda: not any(is_alive(pid) for pid in everybody), "daemons, programs and their children have ended")
    wait_for(place.is_clean, "root and state are gone")


def test_nothing_acts_on_the_request_of_an_orphan(place: Place) -> None:  # noqa: F811
    """A standing cluster.  The agent is stopped, so that the programs have rung; then it dies together with their launcher."""
    place.environ["PLUGML_ROOT"] = str(place.root / "c")
    place.run("up", "-d", "--name", "standing")
    try:
        job = job_file(place, commands(place, 1_000_000), cluster="standing")
        process = place.start("run", "-f", str(job))
        root = place.root / "c"
        await_channel(process, place.root, "count.2.1")
        await_clock(process, root, 2, 3)
        agent = agent_pid(root)
        os.kill(agent, signal.SIGSTOP)
        wait_for(lambda: all(has_rung(root / f"count.{worker}.1") for worker in range(3)), "every program waits for an answer")
        programs = list(children(process.pid))
        for pid in (process.pid, agent):
            kill(pid)
        process.process.wait()
        wait_for(lambda: agent_pid(root) not in (0, agent), "a new agent has the lock")
        wait_for(lambda: not channels(root), "the channels are swept")
        wait_for(lambda: not any(is_alive(pid) for pid in programs), "the programs have ended")
        log = (place.state / "plugml" / "standing" / "logs" / "a0.log").read_text()
        for worker in range(3):
            assert f"channel=count.{worker}.1 reason=" in log and log.count(f"event=adopt channel=count.{worker}.1 ") == 1, log
        wait_for(lambda: counter(root, "pid") == agent_pid(root), "the new agent's counters")
        assert counter(root, "pushes") == counter(root, "requests") == counter(root, "channels") == 0
        # The cluster is as good as before; only the dead run's name is taken until somebody says that it is over.
        place.run("stop", "count", "--cluster", "standing")
        place.run("run", "--cluster", "standing", "--name", "count", "--table", "w=4", "--", *place.trainer(3))
    finally:
        place.run("down", "standing", "--purge")


# -- the master -------------------------------------------------------------------------------------------------------


def test_a_master_killed_again_and_again_is_not_noticed(place: Place) -> None:  # noqa: F811
    steps, kills = 200, 4
    process = place.start("run", "-f", str(job_file(place, commands(place, steps, 20))))
    await_channel(process, place.root, "count.2.1")
    root = root_of(place)
    for number in range(kills):
        await_clock(process, root, 2, 5 * (number + 1))
        kill(node_pid(process, "master"))
        wait_for(lambda number=number: process.stderr.count("master m0 is back") > number, "the master is back")
    done = process.ended()
    assert done.stderr.count("master m0 ended") == kills
    last = counted([steps] * 3)
    words = f"clock={steps} first={last[0]} last={last[-1]}"
    assert sorted(done.stdout.splitlines()) == [f"[w{worker}] count worker={worker} {words}" for worker in range(3)]
    assert sums(place) == last
    assert [worker["last_error"] for worker in place.result("count")["workers"]] == [""] * 3


def test_a_worker_that_dies_while_the_master_is_away_comes_back_with_it(place: Place) -> None:  # noqa: F811
    process = place.start("run", "-f", str(job_file(place, commands(place, 60, 5))))
    await_channel(process, place.root, "count.2.1")
    root = root_of(place)
    await_clock(process, root, 2, 5)
    for pid in (node_pid(process, "master"), worker_pid(process, 0, 1)):
        kill(pid)
    process.ended()
    assert sums(place) == counted([60] * 3)
    assert place.result("count")["workers"][0]["generation"] == 2


def test_a_master_that_hangs_longer_than_its_own_limits_blames_nobody(place: Place) -> None:  # noqa: F811
    process = place.start("run", "-f", str(job_file(place, commands(place, 300, 15))))
    await_channel(process, place.root, "count.2.1")
    root = root_of(place)
    await_clock(process, root, 2, 3)
    master = node_pid(process, "master")
    os.kill(master, signal.SIGSTOP)
    began = clock_of(root, 2)
    time.sleep(4)  # longer than the time after which a silent node counts as dead
    assert clock_of(root, 2) > began + 20, "training goes on without a master"
    os.kill(master, signal.SIGCONT)
    done = process.ended()
    assert sums(place) == counted([300] * 3) and "warning" not in done.stderr


# -- servers ----------------------------------------------------------------------------------------------------------


def test_a_killed_server_without_copies_is_a_named_error_and_nothing_stays(place: Place) -> None:  # noqa: F811
    words = ["--servers", "3", "--copies", "1", "--name", "count", "--table", f"w={BIG}:i64,optimizer=add"]
    process = place.start("run", "-n", "2", *words, "--", *commands(place, 1_000_000, 0, ["c"])[0])
    await_channel(process, place.root, "count.1.1")
    await_clock(process, root_of(place), 0, 3)
    kill(node_pid(process, "s1"))
    done = process.ended(1)
    assert "the job is lost: server s1 held the only copy of " in done.stderr and " ranges" in done.stderr
    assert not (place.directory / "plugml-runs" / "count" / "w.bin").exists()
    assert place.is_clean()


def test_a_stopped_server_without_copies_is_waited_for(place: Place) -> None:  # noqa: F811
    process = place.start("run", "-f", str(job_file(place, commands(place, 200, 5), copies=1, servers=2)))
    await_channel(process, place.root, "count.2.1")
    root = root_of(place)
    await_clock(process, root, 2, 3)
    server = node_pid(process, "s0")
    os.kill(server, signal.SIGSTOP)
    try:
        limit = time.monotonic() + 60
        while "offline" not in (said := place.run("status").stdout):  # it was silent for as long as makes others dead
            assert time.monotonic() < limit, said
        assert "nobody else has" in said and "which wait for it a while" in said
    finally:
        os.kill(server, signal.SIGCONT)
    done = process.ended()
    assert sums(place) == counted([200] * 3) and "lost" not in done.stderr


def test_a_standing_cluster_trains_the_next_job_after_all_its_servers_died(place: Place) -> None:  # noqa: F811
    place.environ["PLUGML_ROOT"] = str(place.root / "c")
    place.run("up", "-d", "--name", "standing", "--servers", "2")
    try:
        each = commands(place, 1_000_000, 0, ["c"])
        process = place.start("run", "-f", str(job_file(place, each, cluster="standing")))
        root = place.root / "c"
        await_channel(process, place.root, "count.0.1")
        await_clock(process, root, 0, 3)
        keeper = int((place.state / "plugml" / "standing" / "cluster.lock").read_text())
        for id_ in ("s0", "s1"):
            kill(find_child(keeper, [id_])[0])
        done = process.ended(1)
        assert "held the last copy of" in done.stderr
        place.run("run", "-f", str(job_file(place, commands(place, 20, 0, ["c"]), cluster="standing")))
        assert sums(place) == counted([20])
        assert "running" not in place.run("jobs", "--cluster", "standing").stdout
    finally:
        place.run("down", "standing", "--purge")


@pytest.mark.slow
def test_an_agent_that_hangs_is_what_is_waited_for_and_goes_on_when_it_wakes(place: Place) -> None:  # noqa: F811
    process = place.start("run", "-f", str(job_file(place, commands(place, 100, 5))))
    await_channel(process, place.root, "count.2.1")
    root = root_of(place)
    await_clock(process, root, 2, 10)
    agent = agent_pid(root)
    os.kill(agent, signal.SIGSTOP)
    process.heard("waiting for the agent, which is there but does not answer")
    os.kill(agent, signal.SIGCONT)
    process.ended()
    assert sums(place) == counted([100] * 3)
