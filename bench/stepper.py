"""A C program plugged into a private cluster, told by a FIFO what to do, and its figures."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

START_S = 20.0


class Stepper:
    """`rounds("step 100")` gives the time of each of its requests, in microseconds."""

    def __init__(self, work: Path, program: str, table: str, consistency: str, *more: str, prefix: tuple[str, ...] = ()) -> None:
        """`more` are words for `plugml run`, `prefix` a command in front of it."""
        self.commands, self.results = work / "commands", work / "results"
        for path in (self.commands, self.results):
            path.unlink(missing_ok=True)
            os.mkfifo(path, 0o600)
        command = [
            *prefix, sys.executable, "-m", "plugml", "run", "-n", "1", "--quiet", "--name", f"bench-{program}",
            "--consistency", consistency, "--table", table, "--result", str(work / "result"), *more,
            "--", str(work / program), str(self.commands), str(self.results),
        ]  # fmt: skip
        self.log = (work / "run.log").open("w+")
        self.process = subprocess.Popen(command, cwd=work, stdout=self.log, stderr=subprocess.STDOUT)
        self.to = os.open(self.commands, os.O_RDWR)  # opening both ways never blocks: the program comes when it comes
        self.answers = os.open(self.results, os.O_RDWR)
        self.pending = b""

    def rounds(self, words: str, meanwhile: Callable[[], None] = lambda: None) -> list[float]:
        os.write(self.to, f"{words}\n".encode())
        meanwhile()
        times = []
        while line := self._line():
            times.append(float(line))
        return times

    def server_bytes(self) -> int:
        """Memory that the private cluster's server holds now."""
        status = Path(f"/proc/{daemon(self.process.pid, 'server')}/status").read_text()
        return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmRSS:"))

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
        os.write(self.to, b"end 0 0\n")
        self.process.wait(60)
        os.close(self.to)
        os.close(self.answers)
        self.log.close()


def daemon(keeper: int, *words: str) -> int:
    """The process below the keeper of a cluster with all these words in its command line; it may be just starting."""
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        for pid in _below(keeper):
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue  # it has just ended
            if set(words) <= set(line):
                return pid
        time.sleep(0.05)
    sys.exit(f"bench: no process with {' '.join(words)} below {keeper}")


def _below(pid: int) -> list[int]:
    """Every process below this one."""
    found = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            for child in Path(f"/proc/{pid}/task/{thread}/children").read_text().split():
                found += [int(child), *_below(int(child))]
    except OSError:
        pass  # it has just ended
    return found
