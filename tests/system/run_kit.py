"""`plugml run` as a user has it, in a directory and channel roots of the test's own, and tiny programs to run.

    T n s g       n steps; before each, sleep s seconds; push the constant g; at the end print clock and first value
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.leaks import own_root

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 120.0  # a hang limit

TRAINER = """
import sys, time
import numpy as np
from plugml.client import attach
n, s, g = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
plug = attach()
w = np.zeros(4, dtype=np.float32)
plug.pull(w)
clock = plug.clock if hasattr(plug, "clock") else 0
for clock in plug.clocks(n):
    if s:
        time.sleep(s)
    plug.step(np.full(4, g, dtype=np.float32), w)
print("clock", clock + 1, "first", repr(float(w[0])))
"""


class Place:
    """A directory to run in, with its own state and channel root."""

    def __init__(self, directory: Path, root: Path) -> None:
        self.directory = directory
        self.root = root
        self.state = directory / ".state"
        self.number = 0
        self.plugml = [sys.executable, "-m", "plugml"]
        self.environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PLUGML_") or name == "PLUGML_TEST_MARK"},
            "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(self.state), "PLUGML_ROOT": str(root), "PLUGML_CHECK": "1",
        }  # fmt: skip
        self.write("t.py", TRAINER)

    def write(self, name: str, text: str) -> Path:
        path = self.directory / name
        path.write_text(text)
        return path

    def trainer(self, clocks: int, sleep: float = 0, gradient: float = 1) -> list[str]:
        return [sys.executable, "t.py", str(clocks), str(sleep), str(gradient)]

    def start(self, *words: str, **more: Any) -> Running:
        """Begin; stdout and stderr go to files, apart, unless the test takes them."""
        self.number += 1
        return Running(self, self.number, list(words), more)

    def run(self, *words: str, code: int | None = 0, **more: Any) -> Done:
        """Begin and wait for the end; `code` is the exit code that it must have."""
        return self.start(*words, **more).ended(code)

    def result(self, job: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.directory / "plugml-runs" / job / "result.json").read_text())
        return document

    def is_clean(self) -> bool:
        """No cluster has left anything."""
        states = self.state / "plugml"
        return not os.listdir(self.root) and not (states.exists() and os.listdir(states))


class Done(NamedTuple):
    """How a command ended."""

    code: int
    stdout: str
    stderr: str


class Running:
    """A command under way."""

    def __init__(self, place: Place, number: int, words: list[str], more: dict[str, Any]) -> None:
        self.files = [place.directory / f".out{number}", place.directory / f".err{number}"]
        out, err = (path.open("wb") for path in self.files)
        more = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err, **more}
        self.process = subprocess.Popen([*place.plugml, *words], cwd=place.directory, env=place.environ, **more)
        out.close()
        err.close()
        self.pid = self.process.pid

    @property
    def stdout(self) -> str:
        return self.files[0].read_text(errors="replace")

    @property
    def stderr(self) -> str:
        return self.files[1].read_text(errors="replace")

    def heard(self, words: str) -> str:
        """Wait until it has said the words, on either stream; gives the line."""

        def lines() -> list[str]:
            return [line for line in (self.stdout + self.stderr).splitlines() if words in line]

        wait_for(lambda: lines() or self.process.poll() is not None, words)
        assert lines(), f"it ended without saying {words!r}:\n{self.stdout}\n{self.stderr}"
        return lines()[0]

    def send(self, signum: int) -> None:
        self.process.send_signal(signum)

    def ended(self, code: int | None = 0) -> Done:
        """Wait for the end."""
        try:
            self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            pytest.fail(f"it hangs:\n{self.stdout}\n{self.stderr}")
        got = self.process.returncode
        assert code is None or got == code, f"exit code {got}, not {code}:\n{self.stdout}\n{self.stderr}"
        return Done(got, self.stdout, self.stderr)


def children(pid: int) -> dict[int, list[str]]:
    """Every process below `pid` with its command line.  Some end while we look, and then the kernel may pass others over."""
    numbers: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return {}
    for thread in threads:
        try:
            numbers += [int(word) for word in Path(f"/proc/{pid}/task/{thread}/children").read_text().split()]
        except OSError:
            continue
    found: dict[int, list[str]] = {}
    for number in numbers:
        try:
            found[number] = Path(f"/proc/{number}/cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        found |= children(number)
    return found


def find_child(pid: int, words: Sequence[str], count: int = 1) -> list[int]:
    """Wait until `count` processes below `pid` have all these arguments; gives their pids."""
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        found = [number for number, line in children(pid).items() if all(word in line for word in words)]
        if len(found) >= count:
            return found
        time.sleep(0.05)
    raise AssertionError(f"no process with {words} below {pid}: {children(pid)}")


def wait_for(condition: Any, what: str) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, f"it never came true: {what}"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def end_pid(pid: int, number: int = signal.SIGKILL) -> None:
    os.kill(pid, number)


@pytest.fixture
def place(tmp_path: Path, no_leaks: None) -> Iterator[Place]:
    """Fails the test that leaves a process, or anything in root or state, behind."""
    root = own_root()
    root.mkdir(mode=0o700)
    made = Place(tmp_path, root)
    yield made
    left = [str(path) for path in root.rglob("*")]
    shutil.rmtree(root, ignore_errors=True)
    assert not left, f"left in the channel root: {left}"
