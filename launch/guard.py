"""A small process that ends what a run has started when the launcher dies without a word (kill -9, out of memory).

    launcher --- pipe: "+ pid\\n"  "- pid\\n"  "dir path\\n" ---> guard
    launcher dies, or closes the pipe  ->  SIGKILL to every process group still named, then the directories are removed,
                                           and first the semaphores that channels in them name: they lie elsewhere

A worker's own process dies with its parent (PR_SET_PDEATHSIG); the guard is for what *it* has started, and for the
memory that a private cluster leaves in its root.  If it is killed too, the next run removes them (discovery.py).
This file is also the guard's program: it imports nothing of ours.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import sys

LINE = b"\n"
REMOVE_TRIES, REMOVE_PAUSE_S = 100, 0.05
INFO_BYTES_MAX = 1 << 16
SEMAPHORE = re.compile(rb"^sem=/(plugml-[0-9a-f]{32})$", re.MULTILINE)
SEMAPHORE_FILES = "/dev/shm/sem.{}", "/dev/shm/{}"  # where C libraries of Linux keep the one that is called /NAME
END_LIMIT_S = 10.0  # for processes to be gone before their directory is removed, and for the guard itself


class Guard:
    """The launcher's end of the pipe."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        self._process = process
        self._pipe = process.stdin

    @classmethod
    def start(cls) -> Guard:
        """In a session of its own, holding none of our descriptors: a pipe to `head` must not stay open because of it."""
        words = [sys.executable, "-I", "-S", os.path.abspath(__file__)]
        nothing = subprocess.DEVNULL
        return cls(
            subprocess.Popen(words, stdin=subprocess.PIPE, stdout=nothing, stderr=nothing, start_new_session=True, cwd="/", bufsize=0)
        )

    def watch(self, pid: int) -> None:
        """End the process group `pid` if we die."""
        self._say(b"+ %d" % pid)

    def forget(self, pid: int) -> None:
        self._say(b"- %d" % pid)

    def remove(self, directory: str) -> None:
        """Remove the directory, whole, if we die."""
        self._say(b"dir " + os.fsencode(directory))

    def close(self) -> None:
        """The end of the run: what is still named is ended, and the guard ends."""
        self._pipe.close()
        try:
            self._process.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:  # somebody has stopped it
            self._process.kill()
            self._process.wait()

    def _say(self, words: bytes) -> None:
        try:
            self._pipe.write(words + LINE)
        except BrokenPipeError:  # somebody has killed it: the run goes on without
            return


def main() -> None:
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(signum, signal.SIG_IGN)
    groups, directories = _listen(0)
    _end(groups)
    for directory in directories:
        _unlink_semaphores(directory)
        _remove(directory)


def _listen(fd: int) -> tuple[dict[int, int], list[str]]:
    """Until the launcher's end is closed: the groups still alive (with a pidfd of their leader, or -1), and the directories."""
    groups: dict[int, int] = {}
    directories: list[str] = []
    rest = b""
    while data := os.read(fd, 4096):
        *lines, rest = (rest + data).split(LINE)
        for line in lines:
            verb, _, what = line.partition(b" ")
            if verb == b"+":
                groups[int(what)] = _pidfd(int(what))
            elif verb == b"-":
                pidfd = groups.pop(int(what), -1)
                if pidfd >= 0:
                    os.close(pidfd)
            elif verb == b"dir":
                directories.append(os.fsdecode(what))
    return groups, directories


def _pidfd(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except OSError:  # ended meanwhile
        return -1


def _end(groups: dict[int, int]) -> None:
    """Kill every group and wait for the leaders' end."""
    for pid in groups:
        try:
            os.killpg(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):  # all of it is gone
            continue
    for pidfd in groups.values():
        if pidfd >= 0:
            select.select([pidfd], [], [], END_LIMIT_S)


def _unlink_semaphores(directory: str) -> None:
    """Their maker is dead.  Who is named in a channel's info is ours: the directory is, and the name has 128 random bits."""
    try:
        channels = os.listdir(directory)
    except OSError:  # the agent's, or nobody's, any more
        return
    for channel in channels:
        try:
            info = os.open(os.path.join(directory, channel, "info"), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:  # no channel
            continue
        with os.fdopen(info, "rb") as file:
            for name in SEMAPHORE.findall(file.read(INFO_BYTES_MAX)):
                for path in SEMAPHORE_FILES:
                    _unlink(path.format(name.decode()))


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:  # it is called otherwise, or the agent has been quicker
        return


def _remove(directory: str) -> None:
    """Whoever still writes there is being killed at this moment, by its parent's death; so try until it is gone."""
    for _ in range(REMOVE_TRIES):
        shutil.rmtree(directory, ignore_errors=True)
        if not os.path.lexists(directory):
            return
        select.select([], [], [], REMOVE_PAUSE_S)


if __name__ == "__main__":
    main()
