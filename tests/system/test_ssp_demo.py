"""SSP with real processes: eight workers that sleep at random, a thousand clocks, and no read outside the slack."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.conftest import require
from tests.system.run_kit import ROOT, Place, place  # noqa: F401

WORKERS = 8
CLOCKS = 1_000
NO_BOUND = (1 << 31) - 1


@pytest.fixture
def program(place: Place) -> str:  # noqa: F811
    require("cc")
    made = place.directory / "ssp_demo"
    client = ROOT / "clients" / "c"
    source = [str(ROOT / "tests/system/ssp_demo.c"), str(client / "plugml.c")]
    subprocess.run(["cc", "-O2", "-D_DEFAULT_SOURCE", "-I", str(client), *source, "-o", str(made)], check=True)
    return str(made)


def said(place: Place) -> list[dict[str, int]]:  # noqa: F811
    """What each worker has printed."""
    found = []
    for worker in range(WORKERS):
        words = (place.directory / f"plugml-runs/ssp/logs/w{worker}.log").read_text().split()
        found.append({name: int(number) for name, number in zip(words[::2], words[1::2])})
    return found


def run(place: Place, program: str, slack: int, ends: dict[int, int]) -> list[dict[str, int]]:  # noqa: F811
    bound = -1 if slack == NO_BOUND else slack
    lines = ["[job]", 'name = "ssp"', f'consistency = "ssp:{slack}"', 'combine = "sum"']
    lines += ["[[table]]", 'name = "clocks"', f"shape = {WORKERS}", 'dtype = "i64"', 'optimizer = "add"']
    for worker in range(WORKERS):
        command = [program, str(CLOCKS), str(bound), "7", str(ends.get(worker, CLOCKS))]
        lines += ["[[worker]]", f"command = {json.dumps(command)}"]
    place.environ["ENDS"] = " ".join(f"{worker}:{end}" for worker, end in ends.items())
    place.write("job.toml", "\n".join(lines) + "\n")
    place.run("run", "-f", "job.toml")
    expected = [ends.get(worker, CLOCKS) for worker in range(WORKERS)]
    assert [worker["clocks"] for worker in place.result("ssp")["workers"]] == expected
    return said(place)


@pytest.mark.parametrize("slack", [0, 1, 3, NO_BOUND])
def test_nobody_reads_outside_the_slack(place: Place, program: str, slack: int) -> None:  # noqa: F811
    workers = run(place, program, slack, {})
    assert [worker["violations"] for worker in workers] == [0] * WORKERS
    ahead = max(worker["ahead"] for worker in workers)
    if slack == NO_BOUND:
        assert ahead > 4, "the straggler held nobody back, so that the bounds of the other runs were tried"
    else:
        assert ahead <= slack + 1


def test_without_slack_nobody_waits_for_one_that_said_bye(place: Place, program: str) -> None:  # noqa: F811
    workers = run(place, program, 0, {0: 100, 5: 20})
    assert [worker["violations"] for worker in workers] == [0] * WORKERS
