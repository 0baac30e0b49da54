"""`python -m bench [--quick]`: one table with ratios, each pair measured alternately in one run; writes bench/last.json.

Rows: (a) a channel round trip against a bare FIFO ping-pong; (b) dense steps (push, optimizer on the server, pull) by
size against a raw TCP echo and a zmq ping-pong of the same bytes; (c) sparse steps by rows and width, with keys that
the server has never seen and with those of the step before, against a raw TCP echo of the same bytes; (g) what the
deaths of servers, agents and masters cost, and a second copy (bench/failover.py), a drain and the loss of a host
(bench/moves.py; not with --quick); (i) start-up times of the command, of a run and of each daemon against a bare
Python's; (j) the server's memory per parameter against that of the numbers alone; (k) copies of a range: cut,
carried, loaded, written and read, against the same bytes copied, written and read plainly.  Figures are medians;
machines are noisy, so read the ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from . import failover, moves
from .baselines import TcpEcho, ZmqEcho
from .dumps import dump_figures
from .place import place
from .stepper import Stepper

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


def channel_rows(work: Path, count: int) -> Iterator[Row]:
    fifo = work / "fifo"
    stepper = Stepper(work, "stepper", "w=256:f32,lr=0.1", "asp")
    ours, bare = [], []
    for _ in range(3):
        ours += stepper.rounds(f"ping {count}")
        done = subprocess.run([fifo, work, str(count)], capture_output=True, text=True, check=True)
        bare += [float(line) for line in done.stdout.split()]
    stepper.close()
    yield row("channel round trip / bare FIFO", 64, "us", ours, bare)


def dense_rows(work: Path, elements: int, count: int) -> Iterator[Row]:
    tcp, echo = TcpEcho(), ZmqEcho(work)
    steppers = {kind: Stepper(work / kind, "stepper", f"w={elements}:f32,lr=0.1", kind) for kind in ("asp", "bsp")}
    times: dict[str, list[float]] = {"tcp": [], "zmq": [], "asp step": [], "asp mapped": [], "bsp step": [], "bsp mapped": []}
    for turn in range(3):
        for name, bucket in times.items():
            if name in ("tcp", "zmq"):
                measured = (tcp if name == "tcp" else echo).rounds(elements * 4, count)
            else:
                kind, verb = name.split()
                measured = steppers[kind].rounds(f"{verb} {count}")
            bucket += measured if turn else measured[len(measured) // 2 :]  # the first half of the first turn warms up
    tcp.close()
    echo.close()
    for stepper in steppers.values():
        stepper.close()
    for name, bucket in times.items():
        if name not in ("tcp", "zmq"):
            yield row(f"dense {name} / raw TCP echo", elements, "us", bucket, times["tcp"])
            yield row(f"dense {name} / zmq ping-pong", elements, "us", bucket, times["zmq"])


def sparse_rows(work: Path, rows: int, width: int, count: int) -> Iterator[Row]:
    """There go 8 bytes of key and the row, back comes the row: the echo carries the mean of the two both ways."""
    tcp = TcpEcho()
    stepper = Stepper(work, "rows", f"e=sparse:f32,width={width},index=u64,batch={rows},lr=0.1", "asp")
    stepper.rounds("new 2 1")
    times: dict[str, list[float]] = {"tcp": [], "new": [], "same": []}
    for turn in range(3):
        for name, bucket in times.items():
            measured = tcp.rounds(rows * (4 + 4 * width), count) if name == "tcp" else stepper.rounds(f"{name} {count} {rows}")
            bucket += measured if turn or len(measured) < 4 else measured[len(measured) // 2 :]
    tcp.close()
    stepper.close()
    for name in ("new", "same"):
        yield row(f"sparse asp {name} keys, width {width} / raw TCP echo", rows, "us", times[name], times["tcp"])


def memory_rows(work: Path, millions: int) -> Iterator[Row]:
    """Bytes of the server for each parameter, beyond what it holds before the first one is touched."""
    for optimizer, slots in (("sgd", 0), ("adam", 2)):
        numbers = millions << 20
        stepper = Stepper(work, "stepper", f"w={numbers}:f32,optimizer={optimizer},lr=0.001", "bsp")
        stepper.rounds("ping 1")
        before = stepper.server_bytes()
        stepper.rounds("step 3")
        grown = (stepper.server_bytes() - before) / numbers
        stepper.close()
        yield row(f"memory of a dense {optimizer} parameter / its numbers", numbers, "B", [grown], [4 * (1 + slots)])
        for width in (1, 16):
            rows = (millions << 19) // width
            stepper = Stepper(work, "rows", f"e=sparse:f32,width={width},index=u64,batch={rows},optimizer={optimizer},lr=0.001", "asp")
            stepper.rounds("new 2 1")
            before = stepper.server_bytes()
            stepper.rounds(f"new 2 {rows}")
            grown = (stepper.server_bytes() - before) / (2 * rows * width)
            stepper.close()
            yield row(f"memory of a sparse {optimizer} parameter, width {width} / its numbers", 2 * rows * width, "B", [grown], [4 * (1 + slots)])


def dump_rows(work: Path, rows: int) -> Iterator[Row]:
    for name, nbytes, ours, bare in dump_figures(work, rows):
        yield row(name, nbytes, "MB/s", ours, bare)


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


def built(work: Path, parser: argparse.ArgumentParser) -> None:
    """Compile the measured programs into the directory."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        parser.exit(1, "bench: no C compiler found, and the measured programs are in C: install gcc, or set CC\n")
    for source, target in (("fifo.c", "fifo"), ("stepper.c", "stepper"), ("rows.c", "rows")):
        files = [HERE / source] + ([ROOT / "clients/c/plugml.c"] if target != "fifo" else [])
        subprocess.run([*shlex.split(compiler), "-O2", "-o", work / target, *files], check=True)


def show(item: Row) -> None:
    print(f"{item.name:58s} {item.size:9d} {item.value:8.1f} {item.unit} {item.baseline:8.1f} {item.unit} {item.ratio:7.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="about a minute")
    quick = parser.parse_args().quick
    sizes = {256: 300, 16 << 10: 200, 256 << 10: 60, 4 << 20: 10}
    if not quick:
        sizes |= {16 << 20: 10, 64 << 20: 3}
    table: list[Row] = []
    with place() as work:
        for kind in ("asp", "bsp"):
            (work / kind).mkdir()
        built(work, parser)
        for kind in ("asp", "bsp"):
            shutil.copy(work / "stepper", work / kind / "stepper")
        print(f"plugml on {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}", flush=True)
        print(f"{'what':58s} {'size':>9s} {'ours':>11s} {'bare':>11s} {'ratio':>7s}", flush=True)
        parts = [channel_rows(work, 1000)]
        parts += [dense_rows(work, elements, count * (1 if quick else 3)) for elements, count in sizes.items()]
        sparse = {(1_000, 1): 100, (1_000, 16): 100, (100_000, 1): 10, (100_000, 16): 5, (1_000_000, 1): 3}
        if not quick:
            sparse |= {(1_000, 64): 100, (100_000, 64): 5, (1_000_000, 16): 2}
        parts += [sparse_rows(work, rows, width, times) for (rows, width), times in sparse.items()]
        parts += [] if quick else [(row(*figure) for figure in chain(failover.figures(work, 20, 20), moves.figures(work, 4)))]
        parts += [startup_rows(work), daemon_rows(work), memory_rows(work, 4 if quick else 16), dump_rows(work, 400_000 if quick else 1_000_000)]
        for part in parts:
            for item in part:
                table.append(item)
                show(item)
        (HERE / "last.json").write_text(json.dumps([item._asdict() for item in table], indent=1) + "\n")


if __name__ == "__main__":
    main()
