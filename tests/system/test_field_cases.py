"""What people who do this job ran into elsewhere, replayed with tiny programs: none of it may happen here.

Cases that other files replay already: numbers that are none, sizes and formats (test_errors), kinds of failure and
programs that never speak (test_run_death), floods, stdin and terminals (test_run_output), arguments and threads
(test_run_life).
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.system.counting import (
    agent_pid,
    await_channel,
    await_clock,
    clock_of,
    commands,
    job_file,
    kill,
    kill_agent,
    node_pid,
    root_of,
    worker_pid,
)
from tests.system.run_kit import Place, Running, children, place, wait_for  # noqa: F401


@pytest.fixture
def standing(place: Place) -> Iterator[str]:  # noqa: F811
    """A standing cluster, so that many short runs need not start one each."""
    place.environ["PLUGML_ROOT"] = str(place.root / "c")
    place.run("up", "-d", "--name", "standing")
    yield "standing"
    place.run("down", "standing", "--purge")


def table(place: Place, name: str) -> list[float]:  # noqa: F811
    return [float(number) for number in np.fromfile(place.directory / "plugml-runs" / name / "w.bin", "<f4")]


# -- what a step means ------------------------------------------------------------------------------------------------


def test_a_mean_does_not_grow_with_the_workers_and_a_sum_does(place: Place, standing: str) -> None:  # noqa: F811
    """All push ones, ten steps: -1.0 for every number of workers and every model; the sum is that times the workers."""
    for consistency in ("bsp", "ssp:1", "asp"):
        runs: list[tuple[Running, str, str, int]] = []
        for workers in (1, 2, 4):
            for combine in ("mean", "sum"):
                name = f"{combine}{workers}-{consistency.replace(':', '')}"
                words = ["--cluster", standing, "--name", name, "-n", str(workers), "--consistency", consistency, "--combine", combine]
                runs.append((place.start("run", *words, "--table", "w=4,lr=0.1", "--", *place.trainer(10)), name, combine, workers))
        for running, name, combine, workers in runs:
            said = running.ended().stderr
            factor = workers if combine == "sum" else 1
            np.testing.assert_allclose(table(place, name), [-1.0 * factor] * 4, rtol=1e-5, err_msg=name)
            word = "averages" if combine == "mean" else "sums"
            word = word if consistency != "asp" else f"1/{workers} of itself" if combine == "mean" else "as it is"
            assert word in said.splitlines()[0], said


ORDER = """
import os, random, time
import numpy as np
from plugml.client import attach
plug = attach()
worker = int(os.environ["PLUGML_WORKER"])
w = np.zeros(1000, "<f4")
for clock in plug.clocks(40):
    time.sleep(random.uniform(0, 0.05))
    plug.step(np.full(1000, (1e8, 1.0, -1e8)[worker] + 1e-3 * clock, "<f4"), w)
"""


def test_the_order_of_arrival_changes_no_bit(place: Place, standing: str) -> None:  # noqa: F811
    """1e8, 1 and -1e8 from workers of random speed; in the third run an agent is killed, in the fourth a worker."""
    place.write("order.py", ORDER)
    runs = [
        place.start("run", "--cluster", standing, "--name", f"order{number}", "-n", "3", "--combine", "sum", "--table", "w=1000,lr=0.1", "--", sys.executable, "order.py")
        for number in range(4)
    ]  # fmt: skip
    root = place.root / "c"
    await_clock(runs[2], root, 0, 10, "order2")
    kill_agent(root)
    await_clock(runs[3], root, 1, 15, "order3")
    kill(worker_pid(runs[3], 1, 1))
    for running in runs:
        running.ended()
    results = {(place.directory / "plugml-runs" / f"order{number}" / "w.bin").read_bytes() for number in range(4)}
    assert len(results) == 1


# -- first values -----------------------------------------------------------------------------------------------------

FIRST = """
import json, os, random, time
import numpy as np
from plugml.client import attach
plug = attach()
worker, gen = int(os.environ["PLUGML_WORKER"]), int(os.environ["PLUGML_GEN"])
w = np.full(COUNT, worker + 10 * gen, "<f4")
time.sleep(random.uniform(0, 0.3))
plug.init(w)
print(json.dumps(["first", gen, sorted(set(w.tolist()))]), flush=True)
for clock in plug.clocks(20):
    plug.step(np.ones(COUNT, "<f4"), w)
    time.sleep(0.02)
print(json.dumps(["last", gen, sorted(set(w.tolist()))]), flush=True)
"""


@pytest.mark.parametrize("repeat", [0, 1, *(pytest.param(number, marks=pytest.mark.slow) for number in range(2, 10))])
def test_everybody_starts_from_the_same_values_whoever_was_last(place: Place, repeat: int) -> None:  # noqa: F811
    """A table of many blocks on three servers.  Worker 2 dies at clock 10 and offers again: that changes nothing."""
    count = 1_000_000
    place.write("first.py", FIRST.replace("COUNT", str(count)))
    words = ["--servers", "3", "--name", "count", "--combine", "sum", "--table", f"w={count},init=program,optimizer=add"]
    running = place.start("run", "-n", "3", *words, "--", sys.executable, "first.py")
    await_channel(running, place.root, "count.2.1")
    await_clock(running, root_of(place), 2, 10)
    kill(worker_pid(running, 2, 1))
    done = running.ended()
    said = [json.loads(line.split("] ", 1)[1]) for line in done.stdout.splitlines()]
    assert all(len(values) == 1 for _, _, values in said), "nothing half of one and half of another"
    starts = {tuple(values) for word, gen, values in said if word == "first" and gen == 1}
    assert len(starts) == 1
    ((start,),) = starts
    assert start in (10, 11, 12), "the offer of one of the first generation"
    ((late,),) = [values for word, gen, values in said if word == "first" and gen == 2]
    assert late >= start + 3 * 10, "the late offer is answered with what was trained by then"
    assert [values for word, _, values in said if word == "last"] == [[start + 60.0]] * 3


# -- who is awaited, who has left -------------------------------------------------------------------------------------


def test_training_does_not_begin_without_a_worker_that_is_late(place: Place) -> None:  # noqa: F811
    place.write("late.sh", f"if [ $PLUGML_WORKER = 1 ]; then sleep 12; fi; exec {sys.executable} t.py 5 0 1")
    running = place.start("run", "-n", "2", "--name", "count", "--table", "w=4,optimizer=add", "--", "sh", "late.sh")
    await_channel(running, place.root, "count.1.1")
    root = root_of(place)
    assert "clock 0: waiting for worker 1" in running.heard("waiting for worker 1")
    assert clock_of(root, 0) == 0 and clock_of(root, 1) == 0, "clock 0 is not closed without it"
    running.ended()
    assert table(place, "count") == [5.0] * 4


@pytest.mark.parametrize("consistency", ["bsp", "ssp:1", "asp"])
def test_who_has_fewer_batches_does_not_hold_the_others(place: Place, consistency: str) -> None:  # noqa: F811
    """5, 9 and 9 steps, then 0, 9 and 9, without a bye: exit 0, and the clocks of each are told."""
    for few in (5, 0):
        place.write("uneven.sh", f"if [ $PLUGML_WORKER = 0 ]; then exec {sys.executable} t.py {few} 0 1; fi; exec {sys.executable} t.py 9 0 1")
        if few == 0:
            place.write("uneven.sh", f"if [ $PLUGML_WORKER = 0 ]; then exit 0; fi; exec {sys.executable} t.py 9 0 1")
        words = ["--consistency", consistency, "--name", f"u{few}", "--table", "w=4,optimizer=add"]
        done = place.run("run", "-n", "3", "--json", *words, "--combine", "sum", "--", "sh", "uneven.sh")
        summary = json.loads(done.stdout)
        assert [worker["clocks"] for worker in summary["workers"]] == [few, 9, 9]
        assert f"worker 0: {few} clocks, others 9" in done.stderr
        assert table(place, f"u{few}") == [float(few + 18)] * 4
    # The mean of what the members push: clocks without worker 0 average over two.
    if consistency == "bsp":
        words = ["--table", "w=4,optimizer=add", "--name", "m"]
        each = [f"{sys.executable} t.py {clocks} 0 {gradient}" for clocks, gradient in ((5, 1), (9, 2), (9, 6))]
        place.run("run", *words, *(word for text in each for word in ("--worker", text)))
        assert table(place, "m") == [5 * 3.0 + 4 * 4.0] * 4


# -- who is who after a restart ---------------------------------------------------------------------------------------

WHO = """
import os, sys, time
import numpy as np
from plugml.client import attach
worker, gen, clock = (int(os.environ["PLUGML_" + name]) for name in ("WORKER", "GEN", "CLOCK"))
shard = open(sys.argv[1]).readline().strip()
with open(os.path.join(os.environ["PLUGML_OUT"], f"mine-{worker}-{gen}"), "x") as file:
    file.write(f"{shard} {clock}\\n")
plug = attach()
w = np.zeros(4, "<f4")
for clock in plug.clocks(60):
    plug.step(np.ones(4, "<f4"), w)
    time.sleep(0.01)
print("main" if plug.main() else "other", worker, gen, os.environ["PLUGML_SEED"], flush=True)
"""


def test_a_restarted_worker_is_who_it_was(place: Place) -> None:  # noqa: F811
    """Worker 0 is killed, then 2 and 0 together: same numbers, seeds and shards, higher generations, one main."""
    place.write("who.py", WHO)
    for worker in range(3):
        place.write(f"shard-{worker}.csv", f"shard{worker}\n")
    words = ["--name", "count", "--combine", "sum", "--table", "w=4,optimizer=add"]
    running = place.start("run", "-n", "3", *words, "--", sys.executable, "who.py", "shard-{worker}.csv")
    await_channel(running, place.root, "count.2.1")
    root = root_of(place)
    await_clock(running, root, 0, 10)
    kill(worker_pid(running, 0, 1))
    worker_pid(running, 0, 2)
    await_clock(running, root, 0, 25)
    for worker, gen in ((2, 1), (0, 2)):
        kill(worker_pid(running, worker, gen))
    done = running.ended()
    out = place.directory / "plugml-runs" / "count"
    found = {path.name: path.read_text().split() for path in out.glob("w?/mine-*")}
    assert sorted(found) == ["mine-0-1", "mine-0-2", "mine-0-3", "mine-1-1", "mine-2-1", "mine-2-2"]
    assert all(words[0] == f"shard{name[5]}" for name, words in found.items())
    assert found["mine-0-1"][1] == "0" and int(found["mine-0-2"][1]) >= 10 and int(found["mine-0-3"][1]) >= 25 <= int(found["mine-2-2"][1])
    assert table(place, "count") == [180.0] * 4, "each clock of each worker once"
    lines = sorted(line.split("] ")[1].rsplit(" ", 1) for line in done.stdout.splitlines())
    assert [line[0] for line in lines] == ["main 0 3", "other 1 1", "other 2 2"] and len({line[1] for line in lines}) == 3
    again = json.loads(place.run("run", "-n", "3", "--check", "--json", *words, "--", sys.executable, "who.py", "{seed}").stdout)
    assert again["job"]["name"] == "count"


# -- places and limits ------------------------------------------------------------------------------------------------


def test_a_directory_with_an_odd_name_carries_a_whole_life(place: Place) -> None:  # noqa: F811
    """Kills, a job file, a result elsewhere: blanks, quotes and dollars stay what they are."""
    odd = place.directory / "my data ä'$x;"
    odd.mkdir()
    place.directory = odd
    place.write("t.py", (odd.parent / "t.py").read_text())
    place.write("a job.toml", f'[job]\nname = "count"\ncommand = ["{sys.executable}", "t.py", "60", "0.01", "1"]\n[[table]]\nname = "w"\nshape = 4\noptimizer = "add"\n[result]\ndir = "the $result/{{job}}"\n')
    running = place.start("run", "-n", "2", "-f", "a job.toml")
    await_channel(running, place.root, "count.1.1")
    root = root_of(place)
    await_clock(running, root, 0, 5)
    kill_agent(root)
    await_clock(running, root, 0, 15)
    kill(worker_pid(running, 1, 1))
    done = running.ended()
    where = odd / "the $result" / "count"
    assert f"result in {where}: w.bin" in done.stderr
    assert np.fromfile(where / "w.bin", "<f4").tolist() == [60.0] * 4


def test_many_workers_under_a_low_limit_of_open_files(place: Place) -> None:  # noqa: F811
    """Soft 256 is lifted; a hard 64 is refused before the first worker starts, with both numbers."""

    def limit(soft: int, hard: int) -> Any:
        return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    words = commands(place, 10, 0, ["c"])[0]
    table_words = ["--table", "w=100:i64,optimizer=add"]
    place.run("run", "-n", "48", "--servers", "3", "--name", "count", *table_words, "--", *words, preexec_fn=limit(256, 4096))
    assert np.fromfile(place.directory / "plugml-runs/count/w.bin", "<i8")[0] == 55 * 48 * 49 // 2
    done = place.run("run", "-n", "16", *table_words, "--", *words, code=2, preexec_fn=limit(64, 64))
    assert re.search(r"16 workers need \d+ open files, 64 are allowed: raise `ulimit -n`, or use fewer workers", done.stderr)
    assert place.is_clean()


def test_descriptors_and_memory_stay_flat(place: Place) -> None:  # noqa: F811
    """Over a thousand clocks and over 20 restarts of workers."""
    restarts = 20
    job = job_file(place, commands(place, 1_000_000, 0, ["c", "c"]), max_restarts=restarts)
    running = place.start("run", "-f", str(job))
    await_channel(running, place.root, "count.1.1")
    root = root_of(place)
    pids = {"run": running.pid, "agent": agent_pid(root), "server": node_pid(running, "server"), "master": node_pid(running, "master")}
    await_clock(running, root, 0, 500)  # everything that is made at first need is there
    before = {name: descriptors(pid) for name, pid in pids.items()}
    await_clock(running, root, 0, 1_500)
    assert {name: descriptors(pid) for name, pid in pids.items()} == before
    memory = {name: resident(pid) for name, pid in pids.items()}
    for number in range(restarts):
        kill(worker_pid(running, number % 2, number // 2 + 1))
    for worker in range(2):
        worker_pid(running, worker, restarts // 2 + 1)
    await_clock(running, root, 0, clock_of(root, 0) + 100)
    after = {name: descriptors(pid) for name, pid in pids.items()}
    assert after == before, "nothing of a dead generation is kept open"
    assert all(resident(pid) < memory[name] + (16 << 20) for name, pid in pids.items())
    running.send(signal.SIGINT)
    running.ended(130)


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_run_in_half_a_cpu_still_gives_every_worker_a_thread(place: Place, does_not_apply: Any) -> None:  # noqa: F811
    """A control group whose quota is less than one CPU: never 0 and never empty."""
    top = Path("/sys/fs/cgroup")
    top, quota, words = (top, "cpu.max", "50000 100000") if (top / "cgroup.controllers").exists() else (top / "cpu", "cpu.cfs_quota_us", "50000")
    group = top / place.root.name
    try:
        group.mkdir()
        if not (group / quota).exists():
            raise OSError(0, f"no {quota} there")
        (group / quota).write_text(words)
    except OSError as error:
        if group.exists():
            group.rmdir()
        does_not_apply(f"no control group can be made: {error.strerror}")
    try:
        enter = lambda: (group / "cgroup.procs").write_text("0")  # noqa: E731
        done = place.run("run", "--table", "w=4", "--", "sh", "-c", "echo $OMP_NUM_THREADS", preexec_fn=enter)
        assert done.stdout == "[w0] 1\n" and "0.5 CPUs for 1 worker" in done.stderr
    finally:
        wait_for(lambda: not (group / "cgroup.procs").read_text(), "the group is empty")
        group.rmdir()
