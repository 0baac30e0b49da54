"""The processes that a program has become: how they are, what they use, how they wait; and their end.

A program is started as a session of its own, so that its children are found and ended with it; those that have left the
session are known by a mark in their environment.  Refuses to know channels.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

MARK = "PLUGML_CONFORM"
_BLOCKED_ON_PIPE = ("pipe_read", "pipe_write")  # the kernel's functions, with a word before them in some versions


class Used(NamedTuple):
    """Sums over all threads of all processes."""

    cpu_ns: int
    switches: int  # voluntary: each wake-up is one
    at_ns: int

    def cpu_part(self, before: Used) -> float:
        """Of one processor, since then."""
        return (self.cpu_ns - before.cpu_ns) / max(1, self.at_ns - before.at_ns)


class Group:
    """A started program and everything that it has started in its session."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], output: IO[bytes], errors: IO[bytes], cwd: str | None = None) -> None:
        self._mark = f"{MARK}={secrets.token_hex(16)}"
        self.program = subprocess.Popen(
            list(command), env={**environ, MARK: self._mark.partition("=")[2]}, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, cwd=cwd, start_new_session=True
        )
        self.pidfd = os.pidfd_open(self.program.pid)

    @property
    def code(self) -> int | None:
        return self.program.poll()

    def members(self) -> list[int]:
        """Process numbers of the session, those that have ended left out."""
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                words = _stat(int(entry))
                if words and words[0] != "Z" and words[3] == str(self.program.pid):
                    found.append(int(entry))
        return found

    def strays(self) -> list[int]:
        """Process numbers of those that bear our mark and are in no session of ours."""
        mark = os.fsencode(self._mark)
        found = []
        for entry in os.listdir("/proc"):
            with contextlib.suppress(OSError):  # it has ended, or is somebody else's
                if entry.isdigit() and mark in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                    found.append(int(entry))
        return found

    def used(self) -> Used:
        cpu_ns = switches = 0
        for pid in self.members():
            for task in _tasks(pid):
                cpu_ns += int((_text(task / "schedstat").split() or ["0"])[0])
                switches += sum(int(line.split()[1]) for line in _text(task / "status").splitlines() if line.startswith("voluntary_ctxt"))
        return Used(cpu_ns, switches, time.monotonic_ns())

    def asleep(self) -> bool:
        """Whether nobody computes just now."""
        return all(words[0] in "SITt" for pid in self.members() for task in _tasks(pid) if (words := _stat_of(task)))

    def blocked_on_pipe(self, which: str) -> bool:
        """Whether a thread sleeps in a read from, or a write to (`which`), a pipe or FIFO."""
        wanted = next(name for name in _BLOCKED_ON_PIPE if name.endswith(which))
        return any(wanted in _text(task / "wchan") for pid in self.members() for task in _tasks(pid))

    def opened_both_ways(self, path: Path) -> bool:
        """Whether some process holds the FIFO open for reading and writing."""
        for pid in self.members():
            with contextlib.suppress(OSError):
                for number in os.listdir(f"/proc/{pid}/fd"):
                    if os.readlink(f"/proc/{pid}/fd/{number}") == str(path) and _flags(pid, number) & os.O_ACCMODE == os.O_RDWR:
                        return True
        return False

    def end(self) -> None:
        """Kill what is left of it, each by its number, and take its exit code."""
        while members := [*self.members(), *self.strays()]:
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.program.wait()
        self.program.wait()

    def close(self) -> None:
        self.end()
        os.close(self.pidfd)


def _tasks(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""  # it has ended meanwhile, or the host does not tell


def _stat(pid: int) -> list[str]:
    return _stat_of(Path(f"/proc/{pid}"))


def _stat_of(path: Path) -> list[str]:
    """State, parent, group, session ..."""
    return _text(path / "stat").rpartition(")")[2].split()


def _flags(pid: int, number: str) -> int:
    for line in _text(Path(f"/proc/{pid}/fdinfo/{number}")).splitlines():
        if line.startswith("flags:"):
            return int(line.split()[1], 8)
    return 0
