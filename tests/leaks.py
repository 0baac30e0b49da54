"""Nothing is left behind: what a test has started and made is gone when it ends.

Several test sessions may run on one host, and people's clusters too; a test answers for its own things only, and each of
them says whose it is: processes bear the test's mark in their environment, so that orphans are seen too; semaphores bear
it in their names; channel roots bear the number of the session's process, or belong to a cluster whose state lies in
the session's own directory.  What bears nothing of the kind is somebody else's.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import secrets
import select
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from plugml.shm_protocol import create, semaphore

MARK = "PLUGML_TEST_MARK"  # a process whose environment holds it was started by the test, however far down
END_LIMIT_S = 20.0  # a hang limit: processes that were told to end have this long
BEGINS_LOOKS = 20  # at a process without an environment, which may only just begin
UNSWEPT = "/plugml_unswept-"
MEMORY = Path("/dev/shm")
ROOTS = (MEMORY / f"plugml-{os.getuid()}", Path(f"/run/plugml/{os.getuid()}"))  # of clusters that were given none


def own_root(word: str = "test") -> Path:
    """A path for a channel root of this session, which nobody has; short, for sockets lie below it."""
    return MEMORY / f"plugml-{word}-{os.getpid()}-{secrets.token_hex(4)}"


def own_semaphore(mark: str) -> str:
    """A name for a semaphore, as `semaphore.new_name` gives it; its first half is the test's."""
    return f"/plugml-{mark[:16]}{secrets.token_hex(8)}"


def unswept(name: str) -> str:
    """A name with which it stays though nobody holds it: agents of others on this host sweep what is called as plugml calls it."""
    return name.replace("/plugml-", UNSWEPT)


class Left(NamedTuple):
    """What was there before."""

    descriptors: dict[str, int]
    roots: frozenset[str]


@pytest.fixture
def test_mark(monkeypatch: pytest.MonkeyPatch) -> str:
    """The test's mark, in the environment and in the names of the semaphores that are made here."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    for module in (create, semaphore):
        monkeypatch.setattr(module, "new_name", lambda: own_semaphore(mark))
    return mark


@pytest.fixture
def no_leaks(test_mark: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail a test that leaves a process, an open descriptor, a semaphore or an entry in a channel root behind.

    Processes that are found are ended by their pids.
    """
    states = tmp_path_factory.getbasetemp()
    gc.collect()
    gc.freeze()  # what lives now is not looked through again: the next collections take no time
    before = Left(_descriptors(), frozenset(_roots(states)))
    yield
    gc.collect()
    processes = _wait_for_end(test_mark)
    lines = [f"process {pid} is still there: {command}" for pid, command in sorted(processes.items())]
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):  # ended meanwhile
            os.kill(pid, signal.SIGKILL)
    for target, count in sorted(_descriptors().items()):
        more = count - before.descriptors.get(target, 0)
        if more > 0:
            lines.append(f"{more} more descriptor(s) on {target}")
    lines += [f"{path} was left in the memory file system" for path in _wait_for_sweep(before.roots, states, test_mark)]
    if lines:
        pytest.fail("left behind:\n  " + "\n  ".join(lines), pytrace=False)


# -- processes


def _wait_for_end(mark: str) -> dict[int, str]:
    """Marked processes that are still there when the limit is over; usually none, at once."""
    end = time.monotonic() + END_LIMIT_S
    while True:
        found = _marked(mark)
        if not found or time.monotonic() > end:
            return found
        for pid in found:
            _wait_for_exit(pid, min(1.0, max(0.0, end - time.monotonic())))


def _wait_for_exit(pid: int, limit_s: float) -> None:
    """Sleep until the process has ended or the limit is over (a pidfd becomes readable at the end)."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        select.select([descriptor], [], [], limit_s)
    finally:
        os.close(descriptor)


def _marked(mark: str) -> dict[int, str]:
    needle = f"{MARK}={mark}".encode()
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            if needle in _environ(name).split(b"\0"):
                command = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                found[int(name)] = command
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # ended meanwhile, or somebody else's
    return found


def _environ(name: str) -> bytes:
    """The environment of a process.  While the kernel replaces a program by another one it has none: look again."""
    for _ in range(BEGINS_LOOKS):
        text = Path(f"/proc/{name}/environ").read_bytes()
        if text:
            break
        try:
            os.readlink(f"/proc/{name}/exe")
        except OSError:
            break  # of the kernel, or it has ended
        time.sleep(0.005)
    return text


# -- descriptors


def _descriptors() -> dict[str, int]:
    """Open descriptors of this process by what they point to, numbers of pipes and sockets left out."""
    counts: dict[str, int] = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # the descriptor of this very listing
        if target.startswith("/proc/"):
            continue
        kind = target.split(":[")[0] if ":[" in target else target
        counts[kind] = counts.get(kind, 0) + 1
    return counts


# -- roots and semaphores


def _wait_for_sweep(before: frozenset[str], states: Path, mark: str) -> list[str]:
    """What came during the test and is still there when the limit is over; usually nothing, at once."""
    end = time.monotonic() + END_LIMIT_S
    while True:
        found = sorted({*_roots(states), *_semaphores(mark)} - before)
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.2)  # an agent may be about to sweep it, and nothing tells when


def _semaphores(mark: str) -> list[str]:
    """Their files in the memory file system; their names have the mark wherever they were made."""
    return [str(MEMORY / name) for name in os.listdir(MEMORY) if mark[:16] in name]


def _roots(states: Path) -> Iterator[str]:
    """This session's channel roots and what is in them."""
    ours = re.compile(rf"plugml-[a-z]+-{os.getpid()}-")
    for name in os.listdir(MEMORY):
        if ours.match(name):
            yield from _with_entries(MEMORY / name)
    for top in ROOTS:
        for root in _entries(top):
            if f"-{os.getpid()}-" in root.name or _state_of(root).is_relative_to(states):
                yield from _with_entries(root)


def _state_of(root: Path) -> Path:
    """Where the state of the cluster with that root lies; / = nobody knows."""
    try:
        return Path(json.loads((root / "cluster.json").read_text())["state"])
    except (OSError, ValueError, KeyError):  # it goes just now, or comes
        return Path("/")


def _with_entries(root: Path) -> Iterator[str]:
    yield str(root)
    yield from map(str, _entries(root))


def _entries(directory: Path) -> list[Path]:
    if not directory.is_dir() or directory.is_symlink():
        return []
    try:
        return list(directory.iterdir())
    except (FileNotFoundError, PermissionError):
        return []
