"""`python -m bench [--quick]`: one table with ratios, each pair measured alternately in one run; writes bench/last.json.

Rows: (a) a channel round trip against a bare FIFO ping-pong; (b) dense steps (push, optimizer on the server, pull) by
size against a raw TCP echo and a zmq ping-pong of the same bytes; (i) start-up times of the command, of a run and of
each daemon against a bare Python's.  Figures are medians; machines are noisy, so read the ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import select
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from .baselines import TcpEcho, ZmqEcho

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent


class Row(NamedTuple):
    """One figure: `value` of ours and `baseline` of the bare mechanism, in `unit`; `ratio` = value / baseline."""

    name: str
    size: int
    unit: str
    value: float
    baseline: float
    ratio: float


def row(name: str, size: int, unit: str, ours: list[float], bare: list[float]) -> Row:
    value, baseline = statistics.median(ours), statistics.median(bare)
    return Row(name, size, unit, round(value, 1), round(baseline, 1), round(value / baseline, 2))


class Stepper:
    """A C program plugged into a private cluster; `rounds(verb, count)` gives the time of each of its requests."""

    def __init__(self, work: Path, elements: int, consistency: str) -> None:
        self.commands, self.results = work / "commands", work / "results"
        for path in (self.commands, self.results):
            path.unlink(missing_ok=True)
            os.mkfifo(path, 0o600)
        command = [
            sys.executable, "-m", "plugml", "run", "-n", "1", "--quiet", "--name", f"bench-{elements}-{consistency}",
            "--consistency", consistency, "--table", f"w={elements}:f32,lr=0.1", "--result", str(work / "result"),
            "--", str(work / "stepper"), str(self.commands), str(self.results),
        ]  # fmt: skip
        self.log = (work / "run.log").open("w+")
        self.process = subprocess.Popen(command, cwd=work, stdout=self.log, stderr=subprocess.STDOUT)
        self.to = os.open(self.commands, os.O_RDWR)  # opening both ways never blocks: the program comes when it comes
        self.answers = os.open(self.results, os.O_RDWR)
        self.pending = b""

    def rounds(self, verb: str, count: int) -> list[float]:
        os.write(self.to, f"{verb} {count}\n".encode())
        times = []
        while line := self._line():
            times.append(float(line))
        return times

    def _line(self) -> bytes:
        """The next line of the program; a run that has ended meanwhile is told instead of waited for."""
        while b"\n" not in self.pending:
            if select.select([self.answers], [], [], 1.0)[0]:
                self.pending += os.read(self.answers, 65536)
            elif self.process.poll() is not None:
                self.log.seek(0)
                sys.exit(f"bench: the run ended early:\n{self.log.read()}")
        line, _, self.pending = self.pending.partition(b"\n")
        return line

    def close(self) -> None:
        os.write(self.to, b"end 0\n")
        self.process.wait(60)
        os.close(self.to)
        os.close(self.answers)
        self.log.close()


def channel_rows(work: Path, count: int) -> Iterator[Row]:
    fifo = work / "fifo"
    stepper = Stepper(work, 256, "asp")
    ours, bare = [], []
    for _ in range(3):
        ours += stepper.rounds("ping", count)
        done = subprocess.run([fifo, work, str(count)], capture_output=True, text=True, check=True)
        bare += [float(line) for line in done.stdout.split()]
    stepper.close()
    yield row("channel round trip / bare FIFO", 64, "us", ours, bare)


def dense_rows(work: Path, elements: int, count: int) -> Iterator[Row]:
    tcp, echo = TcpEcho(), ZmqEcho(work)
    steppers = {kind: Stepper(work / kind, elements, kind) for kind in ("asp", "bsp")}
    times: dict[str, list[float]] = {"tcp": [], "zmq": [], "asp step": [], "asp mapped": [], "bsp step": [], "bsp mapped": []}
    for turn in range(3):
        for name, bucket in times.items():
            if name in ("tcp", "zmq"):
                measured = (tcp if name == "tcp" else echo).rounds(elements * 4, count)
            else:
                kind, verb = name.split()
                measured = steppers[kind].rounds(verb, count)
            bucket += measured if turn else measured[len(measured) // 2 :]  # the first half of the first turn warms up
    tcp.close()
    echo.close()
    for stepper in steppers.values():
        stepper.close()
    for name, bucket in times.items():
        if name not in ("tcp", "zmq"):
            yield row(f"dense {name} / raw TCP echo", elements, "us", bucket, times["tcp"])
            yield row(f"dense {name} / zmq ping-pong", elements, "us", bucket, times["zmq"])


def _timed_ms(command: list[str], **more: Any) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, **more)
    return (time.perf_counter() - start) * 1e3


def startup_rows(work: Path) -> Iterator[Row]:
    python = sys.executable
    names = {
        "plugml --help": [python, "-m", "plugml", "--help"],
        "plugml run of one `true` (cluster up and down)": [
            python, "-m", "plugml", "run", "-n", "1", "--quiet", "--table", "w=4:f32", "--result", str(work / "nothing"), "--", "true",
        ],
    }  # fmt: skip
    for name, command in names.items():
        ours, bare = [], []
        for _ in range(3):
            ours.append(_timed_ms(command, cwd=work, stderr=subprocess.DEVNULL))
            bare.append(_timed_ms([python, "-c", "pass"]))
        yield row(f"{name} / python -c pass", 0, "ms", ours, bare)


def daemon_rows(work: Path) -> Iterator[Row]:
    """From the start of a daemon by hand until it says ready; the server and the agent find their master there."""
    python = sys.executable
    root = Path(tempfile.mkdtemp(prefix="plugml-bench-", dir="/dev/shm"))
    daemons = []
    try:
        for kind, id_ in (("master", "m0"), ("server", "s0"), ("agent", "a0")):
            places = ["--cluster", "bench", "--root", str(root / "c"), "--state", str(work / "state")]
            start = time.perf_counter()
            daemon = subprocess.Popen(
                [python, "-m", "plugml", kind, "--id", id_, *places], cwd=work, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
            )
            daemons.append(daemon)
            assert daemon.stderr is not None
            said = []
            for line in daemon.stderr:
                said.append(line)
                if "event=ready" in line:
                    break
            else:
                sys.exit(f"bench: the {kind} ended early:\n{''.join(said)}")
            ours = (time.perf_counter() - start) * 1e3
            yield row(f"plugml {kind} until ready / python -c pass", 0, "ms", [ours], [_timed_ms([python, "-c", "pass"])])
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait(20)
            assert daemon.stderr is not None
            daemon.stderr.close()
        shutil.rmtree(root, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="about a minute")
    quick = parser.parse_args().quick
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        parser.exit(1, "bench: no C compiler found, and the measured programs are in C: install gcc, or set CC\n")
    sizes = {256: 300, 16 << 10: 200, 256 << 10: 60, 4 << 20: 10}
    if not quick:
        sizes |= {16 << 20: 10, 64 << 20: 3}
    work = Path(tempfile.mkdtemp(prefix="plugml-bench-"))
    rows: list[Row] = []
    try:
        for kind in ("asp", "bsp"):
            (work / kind).mkdir()
        for source, target in (("fifo.c", "fifo"), ("stepper.c", "stepper")):
            files = [HERE / source] + ([ROOT / "clients/c/plugml.c"] if target == "stepper" else [])
            subprocess.run([*shlex.split(compiler), "-O2", "-o", work / target, *files], check=True)
        for kind in ("asp", "bsp"):
            shutil.copy(work / "stepper", work / kind / "stepper")
        print(f"plugml on {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}", flush=True)
        print(f"{'what':58s} {'size':>9s} {'ours':>11s} {'bare':>11s} {'ratio':>7s}", flush=True)
        parts = [channel_rows(work, 1000)]
        parts += [dense_rows(work, elements, count * (1 if quick else 3)) for elements, count in sizes.items()]
        parts += [startup_rows(work), daemon_rows(work)]
        for part in parts:
            for item in part:
                rows.append(item)
                print(
                    f"{item.name:58s} {item.size:9d} {item.value:8.1f} {item.unit} {item.baseline:8.1f} {item.unit} {item.ratio:7.2f}",
                    flush=True,
                )
        (HERE / "last.json").write_text(json.dumps([item._asdict() for item in rows], indent=1) + "\n")
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
