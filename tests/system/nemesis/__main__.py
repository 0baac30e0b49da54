"""`python -m tests.system.nemesis --minutes 10 [--seed N] [--svg FILE]`: faults against a real cluster, and whether it held.

Three masters on an etcd of three members, four servers with two copies of everything and two agents, each a process on a
host (a network namespace) of its own, over TCP with keys.  Three jobs train at once (bsp, ssp, asp; dense and sparse;
sums and Adam) while faults come that are drawn from the seed.  It held if no push was lost or counted twice, no read
was older than its model allows, everybody went on after each fault, and the bsp model was at every clock, bit for bit,
that of a run without faults.  Exit code 1 if not.  Needs root, Linux, `ip`, `nft` and `etcd`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from .chart import Mark, chart
from .faults import Fault, Kind, draw_kinds, kinds
from .jobs import Job, await_steps
from .lab import AGENTS, LOOK_S, MASTERS, SERVERS, Lab
from .net import Net, why_not

CALM_S = (0.5, 2.5)
HANG_S = 60.0  # after a fault everybody has gone on by then, and all copies are there again
GOES_ON = 20  # steps of every worker that show it
DISK_BYTES = 4 << 20


class Nemesis:
    def __init__(self, lab: Lab, jobs: list[Job], draw: random.Random, all_kinds: list[Kind]) -> None:
        self.lab, self.jobs, self.draw, self.kinds = lab, jobs, draw, all_kinds
        self.samples: list[tuple[float, list[int]]] = []
        self.marks: list[Mark] = []
        self.stalls: dict[str, list[float]] = {}
        self.wrong: list[str] = []
        self._began = time.monotonic()
        lab.meanwhile = self.look
        self._diary = (lab.directory / "diary.jsonl").open("w", buffering=1)

    @property
    def now(self) -> float:
        return time.monotonic() - self._began

    def run(self, seconds: float) -> None:
        self.look()
        while self.now < seconds and not self.wrong:
            self._pass(self.draw.uniform(*CALM_S))
            self._torment()

    def look(self) -> None:
        """Start who is due, and see how far everybody is."""
        for id_ in self.lab.poll():
            self._note(f"{id_} is started again")
        self.samples.append((self.now, [sum(job.steps()) for job in self.jobs]))
        for job in self.jobs:
            if job.has_ended() and not self.wrong:
                self.wrong.append(f"{job.name}: the run has ended:\n{job.said()}")
            self.wrong += job.bad_reads()

    def _torment(self) -> None:
        begun = self.now
        under_way = []
        for kind in draw_kinds(self.kinds, self.draw):
            fault = kind.begin(self.lab, self.draw)
            self._note(fault.words)
            under_way.append((kind, fault, self.now))
        for kind, fault, since in sorted(under_way, key=lambda item: item[1].lasts_s):
            self._pass(since + fault.lasts_s - self.now)
            fault.end()
            self.marks.append((since, self.now, kind.costs, fault.words))
        self._recover(begun, [fault for _, fault, _ in under_way])

    def _recover(self, begun: float, faults: Sequence[Fault]) -> None:
        """Until every worker has gone on and every copy is there."""
        before = [job.steps() for job in self.jobs]
        end = self.now + HANG_S
        while not self.wrong and not all(now >= then + GOES_ON for job, steps in zip(self.jobs, before) for now, then in zip(job.steps(), steps)):
            self._pass(LOOK_S)
            if self.now > end:
                self._hang(faults, f"steps were {before} and are {[job.steps() for job in self.jobs]}")
        stall = self._longest_stall(begun)
        for fault in faults:
            self.stalls.setdefault(fault.kind, []).append(stall)
        while not self.wrong and not self.lab.is_whole():
            self._pass(0.3)
            if self.now > end:
                self._hang(faults, self.lab.plugml("status").stdout)

    def _hang(self, faults: Sequence[Fault], how: str) -> None:
        self.wrong.append(f"{HANG_S:.0f} s after {' and '.join(fault.words for fault in faults)} not everything goes on: {how}")

    def _longest_stall(self, begun: float) -> float:
        """The longest time in which some job made no step, from the fault on."""
        longest = 0.0
        for number in range(len(self.jobs)):
            last = begun
            taken = [(at, steps[number]) for at, steps in self.samples if at >= begun]
            for (_, before), (at, after) in zip(taken, taken[1:]):
                if after > before:
                    longest, last = max(longest, at - last), at
        return longest

    def _pass(self, seconds: float) -> None:
        """Time goes by, and the lab is looked after."""
        end = self.now + max(0.0, seconds)
        self.look()
        while self.now < end:
            time.sleep(min(LOOK_S, max(0.0, end - self.now)))
            self.look()

    def _note(self, words: str) -> None:
        self._diary.write(json.dumps({"at": round(self.now, 3), "what": words}) + "\n")
        print(f"{self.now:7.1f} s  {words}", flush=True)

    def close(self) -> None:
        self._diary.close()


@contextlib.contextmanager
def small_disk(directory: Path) -> Iterator[Path | None]:
    """A disk that can be filled; None where there is none to be had."""
    directory.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=700", "tmpfs", str(directory)], check=False, capture_output=True)
    try:
        yield directory if done.returncode == 0 else None
    finally:
        if done.returncode == 0:
            subprocess.run(["umount", "-l", str(directory)], check=True)


def nemesis(seconds: float, seed: int, svg: Path | None) -> list[str]:
    """What was wrong, after so long."""
    draw = random.Random(seed)
    directory = Path(tempfile.mkdtemp(prefix="plugml-nemesis-"))
    memory = Path("/dev/shm") / directory.name
    memory.mkdir(mode=0o700)
    with Net([*MASTERS, *SERVERS, *AGENTS]) as net, small_disk(directory / "disk") as disk, contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, memory, ignore_errors=True)
        lab = Lab(directory, memory, net, draw)
        stack.callback(lab.end)
        lab.start()
        jobs = [Job(lab, "bsp", "bsp", "a0"), Job(lab, "ssp", "ssp:2", "a1"), Job(lab, "asp", "asp", "a0")]
        for job in jobs:
            stack.callback(job.kill)
            job.start(disk if job.name == "bsp" else None)
        await_steps(jobs, 5)
        work = Nemesis(lab, jobs, draw, kinds(disk))
        stack.callback(work.close)
        work.run(seconds)
        wrong = list(work.wrong)
        if not wrong:
            for job in jobs:
                wrong += job.end()
        if svg is not None:
            svg.write_text(chart([job.name for job in jobs], work.samples, work.marks))
        _tell(work, wrong, directory)
    if not wrong:
        shutil.rmtree(directory)
    return wrong


def _tell(work: Nemesis, wrong: Sequence[str], directory: Path) -> None:
    print(f"\n{'fault':20s} {'times':>6s} {'stall p50':>10s} {'longest':>8s}")
    for kind, stalls in sorted(work.stalls.items()):
        print(f"{kind:20s} {len(stalls):6d} {statistics.median(stalls):8.2f} s {max(stalls):6.2f} s")
    for job in work.jobs:
        print(f"{job.name}: {' + '.join(map(str, job.steps()))} steps")
    for line in wrong:
        print(f"WRONG: {line}")
    print("it held: nothing lost, nothing doubled, nothing too old, nobody hangs" if not wrong else f"it did not hold; see {directory}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.system.nemesis", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--svg", type=Path, help="throughput over time goes here")
    arguments = parser.parse_args()
    if why := why_not():
        parser.exit(2, f"nemesis: {why}\n")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a script; the runs must hear it all the same
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(bool(nemesis(arguments.minutes * 60, arguments.seed, arguments.svg)))


if __name__ == "__main__":
    main()
