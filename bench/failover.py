"""`python -m bench.failover [--kills N]`: what deaths cost while a program steps: row (g) of `make bench`.

Stalls are those of a whole step (push, optimizer, pull) of 256 Ki floats on three servers with two copies: the longest
step of a batch in whose midst a process gets kill -9, told as the median and the maximum over all kills, beside the usual
step.  Takeover is from the kill of the leading master of three until another one has read the state, by its log.  The
last rows compare a dense step with two copies to one with a single copy, on two servers.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .place import place
from .stepper import Stepper, daemon

TABLE = f"w={256 << 10}:f32,lr=0.1"
BATCH_S = 3.0
STEPS_MAX = 5_000  # of a batch: their figures wait in a FIFO
HANG_S = 60.0
NAME = "bench-masters"

#: Name, size, unit, ours, and the usual to compare it with.
Figure = tuple[str, int, str, list[float], list[float]]


def server_figures(work: Path, kills: int) -> Iterator[Figure]:
    stepper = Stepper(work, "stepper", TABLE, "asp", "--servers", "3", "--copies", "2")
    usual, count = usual_steps(stepper)
    for what, victims in (("server", [f"s{number % 3}" for number in range(kills)]), ("agent", ["a0"] * max(2, kills // 4))):
        stalls = [_stall(stepper, stepper.process.pid, what, id_, count)[0] for id_ in victims]
        yield f"longest step when the {what} dies, median of {len(stalls)} / usual step", 0, "ms", stalls, usual
        yield f"longest step when the {what} dies, worst of {len(stalls)} / usual step", 0, "ms", [max(stalls)], usual
    stepper.close()


def master_figures(work: Path, kills: int) -> Iterator[Figure]:
    if shutil.which("etcd") is None:
        print("(no etcd here: the takeover of masters is not measured)")
        return
    plugml = [sys.executable, "-m", "plugml"]
    state = work / "masters"
    words = ["--name", NAME, "--servers", "2", "--masters", "3", "--state", str(state)]
    subprocess.run([*plugml, "up", "-d", *words], check=True, stdout=subprocess.DEVNULL)
    try:
        stepper = Stepper(work, "stepper", TABLE, "asp", "--cluster", str(state))
        usual, count = usual_steps(stepper)
        keeper = int((state / "cluster.lock").read_text())
        takeovers, stalls = [], []
        for _ in range(kills):
            stall, killed = _stall(stepper, keeper, "master", _leader(state)[0], count)
            _until(lambda killed=killed: _leader(state)[1] > killed)  # type: ignore[misc]
            takeovers.append((_leader(state)[1] - killed) * 1e3)
            stalls.append(stall)
        stepper.close()
        yield f"takeover by another master, median of {kills} / usual step", 0, "ms", takeovers, usual
        yield f"takeover by another master, worst of {kills} / usual step", 0, "ms", [max(takeovers)], usual
        yield f"longest step when the leading master dies, worst of {kills} / usual step", 0, "ms", [max(stalls)], usual
    finally:
        subprocess.run([*plugml, "down", str(state), "--purge"], check=True, stdout=subprocess.DEVNULL)


def copy_figures(work: Path, elements: int, count: int) -> Iterator[Figure]:
    """Two copies against one, in turn."""
    for kind in ("asp", "bsp"):
        steppers = {}
        for copies in ("1", "2"):
            place = work / f"copies{copies}"
            place.mkdir(exist_ok=True)
            shutil.copy(work / "stepper", place / "stepper")
            steppers[copies] = Stepper(place, "stepper", f"w={elements}:f32,lr=0.1", kind, "--servers", "2", "--copies", copies)
        times: dict[str, list[float]] = {copies: [] for copies in steppers}
        for turn in range(4):
            for copies, stepper in steppers.items():
                measured = stepper.rounds(f"step {count}")
                times[copies] += measured if turn else []  # the first turn warms up
        for stepper in steppers.values():
            stepper.close()
        yield f"dense {kind} step with 2 copies / with 1", elements, "us", times["2"], times["1"]


def figures(work: Path, kills: int, count: int) -> Iterator[Figure]:
    """Needs the program `stepper` in the directory."""
    yield from server_figures(work, kills)
    yield from master_figures(work, max(2, kills // 4))
    yield from copy_figures(work, 4 << 20, count)


def usual_steps(stepper: Stepper) -> tuple[list[float], int]:
    """Milliseconds of steps without a fault, and how many fill a batch."""
    usual = [us / 1e3 for us in stepper.rounds("step 300")[100:]]
    return usual, max(50, min(STEPS_MAX, int(BATCH_S * 1e3 / statistics.median(usual))))


def _stall(stepper: Stepper, keeper: int, role: str, id_: str, count: int) -> tuple[float, float]:
    """Kill a daemon at some moment of a batch and wait until all is well; gives the longest step, and when it was killed."""
    pid = daemon(keeper, role, id_)
    killed: list[float] = []

    def kill() -> None:
        time.sleep(random.uniform(0.2, 0.6))
        os.kill(pid, signal.SIGKILL)
        killed.append(time.time())

    longest = max(stepper.rounds(f"step {count}", kill))
    _until(lambda: _is_whole() and daemon(keeper, role, id_) != pid)
    return longest / 1e3, killed[0]


def _until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + HANG_S
    while not holds():
        if time.monotonic() > end:
            sys.exit("bench: the cluster does not recover")
        time.sleep(0.1)


def _is_whole() -> bool:
    """Of the only cluster here: all copies are there again."""
    done = subprocess.run([sys.executable, "-m", "plugml", "status", "--json"], capture_output=True, text=True, check=False)
    jobs: list[dict[str, Any]] = json.loads(done.stdout)["jobs"] if done.returncode == 0 else [{"missing": 1}]
    return all(not job["missing"] for job in jobs)


def _leader(state: Path) -> tuple[str, float]:
    """Who has read the state last, and when."""
    found = max((_last_opened(log), log.stem) for log in (state / "logs").glob("m*.log"))
    return found[1], found[0]


def _last_opened(log: Path) -> float:
    times = [line.split()[0] for line in log.read_text().splitlines() if " event=state_opened " in line]
    return max((datetime.strptime(word, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC).timestamp() for word in times), default=0.0)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.failover", description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    arguments = parser.parse_args()
    from .__main__ import built, row, show

    with place() as work:
        built(work, parser)
        for figure in figures(work, arguments.kills, 20):
            show(row(*figure))


if __name__ == "__main__":
    main()
