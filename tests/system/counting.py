"""A job whose sums tell whether a push was ever lost, doubled or torn: C, R and shell workers that push whole numbers.

In clock c worker k pushes (c + 1) (k + 1) + i to element i, so that of N pushes in all element i + 1 holds N more than
element i, wherever one looks.  Also who of a cluster is which process, and how far its channels have come.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.conftest import require
from tests.system.run_kit import ROOT, Place, Running, children, wait_for

ELEMENTS = 100
BIG = 300_000  # elements that lie on several servers
HELLO = ROOT / "examples" / "hello"
LANGUAGES = ("c", "r", "sh")


def commands(place: Place, steps: int, pause_ms: int = 0, languages: Sequence[str] = LANGUAGES) -> list[list[str]]:
    """One command per worker; the C one is compiled here.  Skips the test where a language is missing."""
    place.environ |= {"PLUGML_R": str(ROOT / "clients/r/plugml.R"), "PLUGML_SH": str(ROOT / "clients/sh/plugml.sh")}
    place.environ["TMPDIR"] = str(place.directory)  # where a killed shell leaves its scratch
    made: dict[str, list[str]] = {}
    if "c" in languages:
        require("cc")
        program = place.directory / "count"
        source = [str(HELLO / "count.c"), str(ROOT / "clients/c/plugml.c")]
        subprocess.run(["cc", "-O2", "-I", str(ROOT / "clients/c"), *source, "-o", str(program)], check=True)
        made["c"] = [str(program), str(steps), str(pause_ms)]
    if "r" in languages:
        require("Rscript")
        made["r"] = ["Rscript", str(HELLO / "count.R"), str(steps), str(pause_ms)]
    if "sh" in languages:
        made["sh"] = ["sh", str(HELLO / "count.sh"), str(steps), str(pause_ms / 1000)]
    return [made[language] for language in languages]


def job_file(place: Place, each: Sequence[Sequence[str]], **job: object) -> Path:
    """job.toml for these workers; `job` goes into its section [job]."""
    lines = ["[job]", *(f"{key} = {json.dumps(value)}" for key, value in {"name": "count", **job}.items())]
    lines += ["[[table]]", 'name = "w"', f"shape = {ELEMENTS}", 'dtype = "i64"', 'optimizer = "add"']
    for command in each:
        lines += ["[[worker]]", f"command = {json.dumps(list(command))}"]
    return place.write("job.toml", "\n".join(lines) + "\n")


def sums(place: Place, name: str = "count") -> list[int]:
    """The table's final values; fails when a push was torn."""
    values = np.fromfile(place.directory / "plugml-runs" / name / "w.bin", "<i8")
    assert len(set(np.diff(values).tolist())) == 1, f"torn: {values}"
    return [int(value) for value in values]


def counted(clocks: Sequence[int], elements: int = ELEMENTS) -> list[int]:
    """What the table holds when worker k has pushed so many clocks, each once."""
    first = sum((worker + 1) * number * (number + 1) // 2 for worker, number in enumerate(clocks))
    return [first + sum(clocks) * i for i in range(elements)]


# -- who is who -------------------------------------------------------------------------------------------------------


def root_of(place: Place) -> Path:
    """The root of the only cluster that the test runs."""
    roots = [path for path in place.root.iterdir() if path.is_dir()]
    assert len(roots) == 1, roots
    return roots[0]


def agent_pid(root: Path) -> int:
    """The live agent says who it is in the file that it holds locked; 0 while there is none yet."""
    try:
        return int((root / "agent.lock").read_text())
    except (OSError, ValueError):
        return 0


def node_pid(run: Running, word: str) -> int:
    """Wait for the process under the run with this word in its command line; 0 if the run has ended."""
    found: list[int] = []

    def is_there() -> bool:
        found.extend(pid for pid, line in children(run.pid).items() if any(part.endswith(word) for part in line))
        return bool(found) or not is_on(run)

    wait_for(is_there, f"a process {word}")
    return found[0] if found else 0


def counter(root: Path, name: str) -> int:
    """One of the agent's counters, as it wrote them last; -1 before it has."""
    try:
        lines = dict(line.split("=") for line in (root / "agent.stat").read_text().splitlines())
    except OSError:
        return -1
    return int(lines[name])


def has_rung(channel: Path) -> bool:
    """The program has written a request that is not answered yet."""
    line = (channel / "cmd").read_bytes().partition(b"\n")[0].split()
    done = int.from_bytes((channel / "ctl").read_bytes()[0x80:0x88], "little")
    return len(line) > 1 and int(line[1]) == done + 1


def kill(pid: int, whole_group: bool = False) -> None:
    """kill -9 of one process, or of everything that it has started as well."""
    assert pid > 1, "0 and below are the test's own group, and everybody"
    (os.killpg if whole_group else os.kill)(pid, signal.SIGKILL)


def kill_agent(root: Path) -> int:
    """Gives the pid that is no more."""
    pid = agent_pid(root)
    kill(pid)
    return pid


def clock_of(root: Path, worker: int, job: str = "count") -> int:
    """Clocks that the newest generation of a worker has finished; -1 while it has no channel."""
    newest = max(root.glob(f"{job}.{worker}.*/ctl"), key=lambda path: int(path.parent.name.rpartition(".")[2]), default=None)
    try:
        return -1 if newest is None else int.from_bytes(newest.read_bytes()[0x90:0x98], "little", signed=True)
    except OSError:
        return -1


def await_channel(run: Running, top: Path, name: str) -> None:
    """Until the channel is there: it and those of lower workers are made in order, and not one in use is missing."""
    wait_for(lambda: any(top.glob(f"*/{name}")) or not is_on(run), f"channel {name}")
    assert is_on(run), f"the run has ended:\n{run.stderr}"


def await_clock(run: Running, root: Path, worker: int, clock: int, job: str = "count") -> None:
    """Until a worker has finished that many clocks, or the run has ended."""
    wait_for(lambda: clock_of(root, worker, job) >= clock or not is_on(run), f"clock {clock} of worker {worker}")


def is_on(run: Running) -> bool:
    return run.process.poll() is None


def worker_pid(run: Running, worker: int, gen: int) -> int:
    """Wait for the program of a generation to be there; its pid is its process group."""
    marks = {f"PLUGML_WORKER={worker}".encode(), f"PLUGML_GEN={gen}".encode()}
    found: list[int] = []

    def is_there() -> bool:
        for pid in children(run.pid):
            try:
                variables = set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
                leads = os.getpgid(pid) == pid
            except OSError:
                continue
            if leads and marks <= variables:
                found.append(pid)
        return bool(found) or not is_on(run)

    wait_for(is_there, f"worker {worker}, generation {gen}")
    assert found, f"the run has ended:\n{run.stderr}"
    return found[0]


def channels(root: Path, job: str = "count") -> list[str]:
    return sorted(path.name for path in root.glob("*.*.*") if path.is_dir() and path.name.startswith(job) or path.name.startswith("."))
