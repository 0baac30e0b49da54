"""Three masters on an etcd of three members, with real processes: leaders and members die, and training does not notice."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import require
from tests.system.counting import await_clock, clock_of, commands, counted, is_on, job_file, kill, sums
from tests.system.run_kit import Place, Running, children, place, wait_for  # noqa: F401

STEPS = 1_000_000


class Cluster:
    """A standing cluster `three`, and who of it is which process."""

    def __init__(self, place: Place) -> None:  # noqa: F811
        self.place = place
        self.root = place.root / "c"
        self.state = place.state / "plugml" / "three"
        place.environ["PLUGML_ROOT"] = str(self.root)

    @property
    def keeper(self) -> int:
        return int((self.state / "cluster.lock").read_text())

    def pid(self, id_: str) -> int:
        """Wait for the daemon's process."""
        found: list[int] = []

        def is_there() -> bool:
            for pid, line in children(self.keeper).items():
                if f"--name={id_}" in line or ("--id" in line and line[line.index("--id") + 1] == id_):
                    found.append(pid)
            return bool(found)

        wait_for(is_there, f"a process {id_}")
        return found[0]

    def status(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.place.run("status", "--json", "--cluster", "three").stdout)
        return document

    def train(self, name: str, clocks: int = STEPS) -> Running:
        """A job of one worker in C, which has begun."""
        job = job_file(self.place, commands(self.place, clocks, 2, ["c"]), cluster="three", name=name)
        return self.place.start("run", "-f", str(job))

    def began(self, run: Running, name: str) -> None:
        await_clock(run, self.root, 0, 3, name)
        assert is_on(run), run.stderr

    def goes_on(self, run: Running, name: str, clocks: int = 20) -> None:
        """Training does not wait for what was done to the masters."""
        await_clock(run, self.root, 0, clock_of(self.root, 0, name) + clocks, name)
        assert is_on(run), run.stderr

    def end(self, run: Running, name: str) -> None:
        """Ctrl-C; the sum is what the worker has pushed, each push once."""
        run.send(signal.SIGINT)
        run.ended(130)
        result = self.place.result(name)
        assert sums(self.place, name) == counted([result["closed"]])
        assert [worker["last_error"] for worker in result["workers"]] == [""]


@pytest.fixture
def cluster(place: Place) -> Iterator[Cluster]:  # noqa: F811
    require("etcd")
    made = Cluster(place)
    place.run("up", "-d", "--name", "three", "--servers", "3", "--masters", "3", "--copies", "2")
    yield made
    place.run("down", "three", "--purge")
    assert not made.state.exists() and not made.root.exists()


def test_the_leading_master_and_an_etcd_member_die_and_new_workers_come_all_the_same(cluster: Cluster) -> None:
    run = cluster.train("long")
    cluster.began(run, "long")
    before = cluster.status()
    assert [job["copies"] for job in before["jobs"]] == [2]
    kill(cluster.pid(before["master"]))
    cluster.goes_on(run, "long")
    wait_for(lambda: cluster.status()["term"] > before["term"], "another one leads")
    after = cluster.status()
    assert [(job["name"], job["state"]) for job in after["jobs"]] == [("long", "running")]
    cluster.train("second", 20).ended()
    assert sums(cluster.place, "second") == counted([20])

    kill(cluster.pid("e1"))
    cluster.goes_on(run, "long")
    cluster.train("third", 20).ended()
    assert sums(cluster.place, "third") == counted([20])
    wait_for(lambda: {job["name"] for job in cluster.status()["jobs"]} == {"long", "second", "third"}, "no job is forgotten")
    cluster.end(run, "long")


def test_with_most_of_the_etcd_away_training_goes_on_and_status_says_that_nothing_can_be_decided(cluster: Cluster) -> None:
    run = cluster.train("long")
    cluster.began(run, "long")
    away = [cluster.pid(id_) for id_ in ("e0", "e2")]
    for pid in away:
        os.kill(pid, signal.SIGSTOP)  # one that is killed is started again before anybody can look
    try:
        said: list[str] = []

        def is_told() -> bool:
            done = cluster.place.run("status", "--cluster", "three", code=None)
            said.append(done.stderr)
            return done.code == 1

        wait_for(is_told, "status says it")
        assert "the masters of cluster three cannot decide: none of m0, m1, m2 leads" in said[-1] and "Training goes on" in said[-1]
        cluster.goes_on(run, "long")
    finally:
        for pid in away:
            os.kill(pid, signal.SIGCONT)
    wait_for(lambda: cluster.place.run("status", "--cluster", "three", code=None).code == 0, "it recovers alone")
    for id_ in ("e0", "e2"):
        kill(cluster.pid(id_))
    cluster.train("second", 20).ended()
    assert sums(cluster.place, "second") == counted([20])
    cluster.goes_on(run, "long")
    cluster.end(run, "long")


def test_a_cluster_that_was_down_knows_its_jobs_again_and_keeps_its_number_of_masters(cluster: Cluster) -> None:
    cluster.train("first", 5).ended()
    term = cluster.status()["term"]
    cluster.place.run("down", "three")
    refused = cluster.place.run("up", "-d", "--name", "three", code=2).stderr
    assert "is that of 3 masters: say --masters 3" in refused
    cluster.place.run("up", "-d", "--name", "three", "--masters", "3")
    again = cluster.status()
    assert again["term"] > term and [(job["name"], job["state"]) for job in again["jobs"]] == [("first", "finished")]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--masters", "3"], "there is no program `etcd` on the PATH: install version 3.4 or later"),
        (["--masters", "2"], "--masters 2: take 1, 3 or 5"),
        (["--copies", "3", "--servers", "2"], "--copies 3, but --servers 2"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(place: Place, words: list[str], says: str) -> None:  # noqa: F811
    empty = Path(place.directory / "bin")
    empty.mkdir()
    place.environ["PATH"] = str(empty)
    assert says in place.run("up", "-d", "--name", "three", *words, code=2).stderr
    assert place.is_clean()
