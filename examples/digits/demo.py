"""The main job, end to end: four serial programs in four languages train one model, and it is the serial one's.

    python examples/digits/demo.py [DIRECTORY]

Real images (scikit-learn's digits) are cut into four unequal shards.  A C, a Python, an R and a shell program, each a
plain serial trainer with a few lines more, train on them by `plugml run`.  Then the same C program, alone, trains on all
shards at once, and on the largest shard only.  Everything is compared, and nothing may be left behind.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import NamedTuple

import numpy as np

HERE = Path(__file__).resolve().parent
TOP = HERE.parents[1]
CLIENTS = TOP / "clients"
sys.path.insert(0, str(HERE))

from evaluate import accuracy, read_weights  # noqa: E402
from prepare import prepare  # noqa: E402

CLOCKS = 200
ACCURACY_MIN = 0.95
DIFFERENCE_MAX = 1e-5
MARK = "PLUGML_DEMO_MARK"  # in the environment of everything that we start
END_LIMIT_S = 30.0
_ADDED = re.compile(r"(?:/\*|#)\s*plugml\s*(?::|\*/|$)")


class DemoFailedError(Exception):
    """Something is not as the demo promises; the text says what."""


class Worker(NamedTuple):
    """A serial trainer: what it is written in, how it starts, and its source."""

    language: str
    command: list[str]
    source: Path
    remark: str = ""


def main() -> int:
    work = Path(sys.argv[1] if len(sys.argv) > 1 else TOP / "plugml-runs" / "demo").resolve()
    os.environ[MARK] = uuid.uuid4().hex
    try:
        demo(work)
    except DemoFailedError as failure:
        print(f"demo failed: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo interrupted", file=sys.stderr)
        return 130
    return 0


def demo(work: Path) -> None:
    started = time.monotonic()
    shutil.rmtree(work, ignore_errors=True)
    shards = prepare_data(work / "data")
    workers = choose_workers(work)
    say(f"{len(workers)} serial trainers on shards of {', '.join(str(rows(shard)) for shard in shards)} images, {CLOCKS} clocks each:")
    for worker, shard in zip(workers, shards):
        say(f"  {worker.language:7} {relative(worker.source)}, {lines_added(worker.source)} lines added or changed, on {shard.name}")
        if worker.remark:
            say(f"          {worker.remark}")

    result = train_together(work, workers, shards)
    serial, alone = train_serially(work, workers, shards)

    plugged = read_weights(work / "result" / "w.bin")
    check_result(work, result, plugged, read_weights(serial), len(workers))
    check_nothing_left(result["cluster"])
    test = work / "data" / "test.txt"
    report(
        work, workers, accuracy(test, plugged), accuracy(test, read_weights(serial)), accuracy(test, read_weights(alone)),
        float(np.max(np.abs(plugged - read_weights(serial)))), time.monotonic() - started, rows(shards[0]),
    )  # fmt: skip


# -- the steps


def prepare_data(directory: Path) -> tuple[Path, ...]:
    try:
        return prepare(directory)
    except ModuleNotFoundError as error:
        raise DemoFailedError(f"{error.name} is not installed; it comes with: pip install 'plugml[demo]'") from error


def choose_workers(work: Path) -> list[Worker]:
    """One trainer per language; a language that is not installed is replaced by C (or Python without a C compiler)."""
    python = Worker("python", [sys.executable, str(HERE / "trainer.py")], HERE / "trainer.py")
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    c = compile_c(compiler, work) if compiler else None
    stand_in = c or python
    missing = "is not installed: the {} trainer takes its shard".format("C" if c else "Python")
    found = [c or stand_in._replace(remark=f"a C compiler {missing}"), python]

    r_source, sh_source = HERE / "trainer.R", HERE / "trainer.sh"
    has_r, has_awk = shutil.which("Rscript"), shutil.which("awk")
    os.environ["PLUGML_R"] = str(CLIENTS / "r" / "plugml.R")
    os.environ["PLUGML_SH"] = str(CLIENTS / "sh" / "plugml.sh")
    found.append(Worker("r", ["Rscript", "--vanilla", str(r_source)], r_source) if has_r else stand_in._replace(remark=f"R {missing}"))
    found.append(Worker("sh", ["sh", str(sh_source)], sh_source) if has_awk else stand_in._replace(remark=f"awk {missing}"))
    return found


def compile_c(compiler: str, work: Path) -> Worker:
    """The C trainer, by the one line that its user would type."""
    source, program = HERE / "trainer.c", work / "trainer"
    command = [*shlex.split(compiler), "-O2", "-ffp-contract=off", f"-I{CLIENTS / 'c'}", str(source), str(CLIENTS / "c" / "plugml.c"), "-lm"]
    done = subprocess.run([*command, "-o", str(program)], capture_output=True, text=True)
    if done.returncode:
        raise DemoFailedError(f"{shlex.join(command)} failed:\n{done.stderr}")
    return Worker("c", [str(program)], source)


def train_together(work: Path, workers: list[Worker], shards: tuple[Path, ...]) -> dict:
    """`plugml run` with one command per worker; returns what it wrote down about the run."""
    command = [sys.executable, "-m", "plugml", "run", "--name", "digits", "--consistency", "bsp", "--table", "w=10,65:f64,lr=1.0"]
    for number, (worker, shard) in enumerate(zip(workers, shards)):
        command += ["--worker", shlex.join([*worker.command, str(shard), str(CLOCKS), str(work / f"w{number}.txt")])]
    command += ["--result", str(work / "result")]
    say(f"$ plugml run --name digits --table w=10,65:f64,lr=1.0 {' '.join('--worker ...' for _ in workers)}")
    environ = {key: value for key, value in os.environ.items() if not key.startswith("PLUGML_CLUSTER")}
    environ["PYTHONPATH"] = os.pathsep.join(part for part in (str(TOP), os.environ.get("PYTHONPATH")) if part)
    code = run_to_its_end(command, environ)
    if code:
        raise DemoFailedError(f"plugml run ended with {code}; its lines are above, the programs' in {work / 'result' / 'logs'}")
    return json.loads((work / "result" / "result.json").read_text())


def run_to_its_end(command: list[str], environ: dict[str, str]) -> int:
    """Run a command that cleans up behind itself: Ctrl-C and SIGTERM are passed on, and its end is waited for."""
    interrupts: list[int] = []
    process = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, process_group=0)

    def pass_on(number: int, _frame: object) -> None:
        interrupts.append(number)
        process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if interrupts:
        raise KeyboardInterrupt
    return code


def train_serially(work: Path, workers: list[Worker], shards: tuple[Path, ...]) -> tuple[Path, Path]:
    """The first trainer alone, unplugged: on all shards at once, and on the largest shard only."""
    say("the same program alone, on all shards at once and on the largest one:")
    outs = work / "serial.txt", work / "alone.txt"
    for data, out in zip((work / "data" / "train.txt", shards[0]), outs):
        subprocess.run([*workers[0].command, str(data), str(CLOCKS), str(out)], check=True, stdout=subprocess.DEVNULL)
    return outs


# -- the promises


def check_result(work: Path, result: dict, plugged: np.ndarray, serial: np.ndarray, workers: int) -> None:
    for told in result["workers"]:
        if not told["pushes"] == told["clocks"] == CLOCKS:
            raise DemoFailedError(f"worker {told['worker']} has {told['pushes']} pushes in {told['clocks']} clocks, both must be {CLOCKS}")
    if len(result["workers"]) != workers:
        raise DemoFailedError(f"{len(result['workers'])} workers took part, {workers} were started")
    for number in range(workers):
        if not np.array_equal(read_weights(work / f"w{number}.txt"), plugged):
            raise DemoFailedError(f"worker {number} ended with another model than the servers, see {work / f'w{number}.txt'}")
    difference = float(np.max(np.abs(plugged - serial)))
    if not difference <= DIFFERENCE_MAX:
        raise DemoFailedError(f"the model differs from the serial program's by {difference:.3g}, at most {DIFFERENCE_MAX:g} is right")


def check_nothing_left(cluster: str) -> None:
    """No process of ours is running, and nothing lies in a channel root."""
    limit = time.monotonic() + END_LIMIT_S
    while (left := marked_processes()) and time.monotonic() < limit:
        wait_for_end(next(iter(left)), limit)
    if left:
        lines = "\n".join(f"  {pid} {command}" for pid, command in sorted(left.items()))
        raise DemoFailedError(f"these processes are still running:\n{lines}")
    roots = [Path(f"/dev/shm/plugml-{os.getuid()}"), Path(f"/run/plugml/{os.getuid()}"), Path(os.environ.get("PLUGML_ROOT", "/nonexistent"))]
    for root in roots:
        if (root / cluster).exists():
            raise DemoFailedError(f"{root / cluster} was left in the channel root: {sorted(path.name for path in (root / cluster).iterdir())}")


def marked_processes() -> dict[int, str]:
    """Processes with our mark in their environment, other than this one."""
    needle = f"{MARK}={os.environ[MARK]}".encode()
    found = {}
    for entry in Path("/proc").iterdir() if Path("/proc").is_dir() else ():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if needle in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # ended meanwhile, or somebody else's
    return found


def wait_for_end(pid: int, limit: float) -> None:
    """Sleep until the process has ended, or until `limit`."""
    import select

    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        select.select([descriptor], [], [], max(0.0, limit - time.monotonic()))
    finally:
        os.close(descriptor)


# -- words


def report(
    work: Path, workers: list[Worker], plugged: float, serial: float, alone: float, difference: float, seconds: float, largest: int
) -> None:
    say("")
    say("                                     held-out images right")
    say(f"  plugged, {len(workers)} workers together         {plugged:.3f}")
    say(f"  serial, one program on all images    {serial:.3f}")
    say(f"  alone, the largest shard ({largest} images) {alone:.3f}")
    say("")
    say(f"  the plugged model is the serial one to {difference:.1e}; each worker pushed once in each of its {CLOCKS} clocks;")
    say("  nothing is left running, nothing lies in the channel root")
    added = ", ".join(f"{worker.language} {lines_added(worker.source)}" for worker in workers)
    say(f"  lines added or changed to plug in: {added} (marked `plugml` in the source)")
    say("")
    say("where to look next:")
    say(f"  the model, the programs' output     {relative(work / 'result')}")
    say(f"  the trainers                        {relative(HERE)}/trainer.*")
    say(f"  your own language                   {relative(CLIENTS)}/*/README.md, shm_protocol/SPEC.md")
    say(f"  {seconds:.0f} s in all")
    if plugged < ACCURACY_MIN:
        raise DemoFailedError(f"accuracy {plugged:.3f} is below {ACCURACY_MIN}")
    say(f"demo ok accuracy={plugged:.3f} serial={serial:.3f} alone={alone:.3f} workers={','.join(worker.language for worker in workers)}")


def lines_added(source: Path) -> int:
    return sum(1 for line in source.read_text().splitlines() if _ADDED.search(line))


def rows(shard: Path) -> int:
    return len(shard.read_text().splitlines())


def relative(path: Path) -> str:
    """As short as the reader can still find it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
