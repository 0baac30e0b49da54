"""Two jobs of one user on one host at once: on one standing cluster, and each on a private one.  Nobody notices the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.system.digits_kit import ACCURACY_MIN, CLOCKS, HANG_S, TABLE, Digits, prepared
from tests.system.owner import Owner

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory, require: Callable[[str], None]) -> Digits:
    for tool in (os.environ.get("CC", "cc"), "module:sklearn"):
        require(tool)
    return prepared(tmp_path_factory.mktemp("digits"))


class Desk(Owner):
    def job(self, digits: Digits, name: str, *more: str) -> subprocess.Popen[str]:
        out = self.directory / f"out-{name}"
        out.mkdir()
        return self.start("run", "--name", name, "--table", TABLE, *digits.words(out), *more)

    def result(self, name: str) -> Path:
        return self.directory / "plugml-runs" / name


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path, "two-jobs", HANG_S)
    yield made
    made.end()
    if (made.directory / "state" / "plugml" / made.cluster).exists():
        made.ok("down", made.cluster)


def check(desk: Desk, digits: Digits, name: str) -> bytes:
    """The job ended well with the demo's accuracy; gives its model."""
    document = json.loads((desk.result(name) / "result.json").read_text())
    assert document["state"] == "finished" and [worker["pushes"] for worker in document["workers"]] == [CLOCKS] * 4
    assert digits.accuracy(desk.result(name)) >= ACCURACY_MIN
    return (desk.result(name) / "w.bin").read_bytes()


def test_two_jobs_on_one_standing_cluster_while_a_third_is_stopped(desk: Desk, digits: Digits) -> None:
    desk.ok("up", "-d", "--name", desk.cluster, "--servers", "2")
    idle = desk.start("run", "--cluster", desk.cluster, "--name", "idle", "--table", TABLE, "--", sys.executable, "-c",
                      "from plugml.client import attach; import sys; p = attach(); print('plugged', flush=True); sys.stdin.read(1); p.bye(); open('/dev/zero').read()")  # fmt: skip
    assert idle.stdout is not None
    line = next(text for text in idle.stdout if "plugged" in text)
    assert "w0" in line
    first, second = (desk.job(digits, name, "--cluster", desk.cluster) for name in ("first", "second"))
    told = desk.ok("stop", "--cluster", desk.cluster, "idle")
    assert "job idle is stopped" in told
    desk.ended(idle, code=143)
    for process in (first, second):
        desk.ended(process)
    assert check(desk, digits, "first") == check(desk, digits, "second")
    states = {job["name"]: job["state"] for job in json.loads(desk.ok("jobs", "--json", "--cluster", desk.cluster))["jobs"]}
    assert states == {"first": "finished", "second": "finished", "idle": "stopped"}


def test_two_private_clusters_and_one_name(desk: Desk, digits: Digits) -> None:
    """The same default name, too: the second one gets a suffix."""
    words = ["--table", TABLE, *digits.words(desk.directory)]
    first, second = (desk.start("run", *words) for _ in range(2))
    for process in (first, second):
        desk.ended(process)
    names = sorted(path.name for path in (desk.directory / "plugml-runs").iterdir())
    assert names == ["trainer", "trainer-2"]
    assert check(desk, digits, "trainer") == check(desk, digits, "trainer-2")


def test_a_running_jobs_name_is_taken_and_that_job_goes_on(desk: Desk, digits: Digits) -> None:
    desk.ok("up", "-d", "--name", desk.cluster)
    process = desk.job(digits, "one", "--cluster", desk.cluster)
    assert process.stdout is not None
    line = next(text for text in process.stdout if "[w0]" in text)
    assert line
    other = desk.start("run", "--cluster", desk.cluster, "--name", "one", "--result", "elsewhere", "--table", TABLE, "--", "true")
    told = desk.ended(other, code=2)
    assert "a job 'one' is running with workers = 4, here 1" in told and "--name" in told
    desk.ended(process)
    check(desk, digits, "one")
