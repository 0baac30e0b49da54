"""Workers join a running job from a launcher of their own, and leave it: the sum is exact, and the others go on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.system.owner import Owner
from tests.system.run_kit import wait_for

pytestmark = pytest.mark.usefixtures("no_leaks")
HANG_S = 240
TABLE = "n=4:i64,optimizer=add"
#: Pushes 1 until the file `enough` is there, or STEPS times; notes every push that was answered, and what it was told.
PROGRAM = """
import os, sys, time
import numpy as np
from plugml.client import attach
p = attach()
steps = int(sys.argv[1])
n = np.zeros(4, np.int64)
p.pull(n)
done = 0
with open(f"pushed-{p.worker}", "w") as file:
    print(p.workers, p.clock, n[0], file=file, flush=True)
    while done < steps and not p.done and not os.path.exists(sys.argv[2]):
        p.step(np.ones(4, np.int64), n)
        done += 1
        print(done, file=file, flush=True)
        time.sleep(0.005)
p.bye()
"""


class Desk(Owner):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory, "join", HANG_S)
        (directory / "count.py").write_text(PROGRAM)

    def run(self, *more: str, steps: int = 1_000_000, until: str = "enough") -> subprocess.Popen[str]:
        return self.start("run", "--cluster", self.cluster, *more, "--", sys.executable, "count.py", str(steps), until)

    def first(self, *more: str) -> subprocess.Popen[str]:
        """The job with two workers, once both have pushed."""
        process = self.run("--name", "count", "-n", "2", "--table", TABLE, *more)
        wait_for(lambda: all(self.pushed(worker) > 3 for worker in (0, 1)), "the first two push")
        return process

    def lines(self, worker: int) -> list[str]:
        path = self.directory / f"pushed-{worker}"
        return path.read_text().splitlines() if path.exists() else []

    def pushed(self, worker: int) -> int:
        """Pushes that were answered."""
        return max(0, len(self.lines(worker)) - 1)

    def told(self, worker: int) -> list[int]:
        """How many workers its program was told, the clock that it began at, and the sum that it found."""
        return [int(word) for word in self.lines(worker)[0].split()]

    def enough(self) -> None:
        (self.directory / "enough").touch()

    def sum(self) -> int:
        values = np.fromfile(self.directory / "plugml-runs" / "count" / "n.bin", "<i8")
        assert len(set(values.tolist())) == 1, values
        return int(values[0])

    def standing(self) -> dict[str, object]:
        jobs = json.loads(self.ok("jobs", "--json", "--cluster", self.cluster))["jobs"]
        return next(job for job in jobs if job["name"] == "count")


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    made.ok("up", "-d", "--name", made.cluster, "--servers", "2")
    yield made
    made.end()
    made.ok("down", made.cluster)


def test_two_workers_join_for_a_while_and_every_push_counts_once(desk: Desk) -> None:
    first = desk.first()
    told = desk.ended(desk.run("--join", "count", "-n", "2", steps=20))
    assert "workers 2, 3 join job count" in told
    assert [desk.pushed(worker) for worker in (2, 3)] == [20, 20]
    for worker in (2, 3):
        workers, clock, found = desk.told(worker)
        assert workers == 4 and clock > 3 and found >= 2 * (clock - 1)  # it begins where the others are, with what they have made
    standing = desk.standing()
    assert (standing["state"], standing["workers"], standing["joined"], standing["attached"]) == ("running", 4, 2, 4)
    before = desk.pushed(0)
    wait_for(lambda: desk.pushed(0) > before + 3, "the others go on")
    desk.enough()
    desk.ended(first)
    assert desk.sum() == sum(desk.pushed(worker) for worker in range(4))
    assert desk.told(0)[0] == 2


def test_the_job_lives_as_long_as_somebody_who_has_joined(desk: Desk) -> None:
    first = desk.first()
    joined = desk.run("--join", "count", until="later")
    wait_for(lambda: desk.pushed(2) > 3, "a third one pushes")
    desk.enough()
    assert first.stderr is not None
    assert next(line for line in first.stderr if "1 worker that has joined the job still trains" in line)
    before = desk.pushed(2)
    wait_for(lambda: desk.pushed(2) > before + 3, "it goes on alone")
    (desk.directory / "later").touch()
    desk.ended(joined)
    desk.ended(first)
    assert desk.sum() == sum(desk.pushed(worker) for worker in range(3))


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_the_end_of_a_joined_launcher_is_nobody_elses(desk: Desk, signum: int) -> None:
    first = desk.first()
    joined = desk.run("--join", "count", "-n", "2")
    wait_for(lambda: all(desk.pushed(worker) > 3 for worker in (2, 3)), "two more push")
    joined.send_signal(signum)
    desk.ended(joined, 130 if signum == signal.SIGINT else -9)
    before = desk.pushed(0)
    wait_for(lambda: desk.pushed(0) > before + 3, "the others go on")
    desk.enough()
    desk.ended(first)
    noted = sum(desk.pushed(worker) for worker in range(4))
    assert noted <= desk.sum() <= noted + 2  # each of the two may have died before it noted its last push


def test_a_job_ends_with_the_launcher_that_began_it(desk: Desk) -> None:
    first = desk.first()
    joined = desk.run("--join", "count")
    wait_for(lambda: desk.pushed(2) > 3, "a third one pushes")
    first.send_signal(signal.SIGINT)
    desk.ended(first, 130)
    desk.ended(joined, 143)


def test_who_cannot_join_is_told_why(desk: Desk) -> None:
    def refused(*more: str) -> str:
        return desk.ended(desk.run("--join", "count", *more), 2)

    assert "no job 'count' runs here" in refused()
    (desk.directory / "input.csv").write_text("a\n" * 8)
    first = desk.run("--name", "count", "-n", "2", "--table", TABLE)
    wait_for(lambda: desk.pushed(0) > 3, "the job runs")
    assert "--seed belongs to the job" in refused("--seed", "3")
    assert "table 'n' has shape = [4], here [5]" in refused("--table", "n=5:i64,optimizer=add")
    assert "has the tables n, here m" in refused("--table", "m=4:i64,optimizer=add")
    desk.enough()
    desk.ended(first)
    assert "job 'count' is finished" in refused()


def test_input_that_was_dealt_out_has_no_part_left(desk: Desk) -> None:
    (desk.directory / "input.csv").write_text("a\n" * 8)
    words = ["--shard", "input.csv:lines"]
    first = desk.start("run", "--cluster", desk.cluster, "--name", "count", "--table", TABLE, *words, "--", sys.executable, "count.py", "1000000", "enough", "{data}")
    wait_for(lambda: desk.pushed(0) > 3, "the job runs")
    assert "has dealt out its input among 1 worker (shard)" in desk.ended(desk.run("--join", "count"), 2)
    desk.ok("run", "--cluster", desk.cluster, "--join", "count", *words, "--", sys.executable, "count.py", "3", "enough", "{data}")
    desk.enough()
    desk.ended(first)
    assert desk.sum() == desk.pushed(0) + 3
