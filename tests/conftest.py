"""What every test may use: a toolchain or a reason to skip, a check that nothing is left behind, and an honest count.

A test that needs a tool calls `require("Rscript")`.  At a desk it skips and the reason is printed at the end; with
PLUGML_REQUIRE_ALL=1 (continuous integration) a missing tool, and any other skip, is a failure.  A test that can
never run in a place says `does_not_apply(reason)`; only that is forgiven there.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import re
import select
import shutil
import signal
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest

REQUIRE_ALL = os.environ.get("PLUGML_REQUIRE_ALL", "") not in ("", "0")
FORGIVEN = "does not apply here: "
MARK = "PLUGML_TEST_MARK"  # a process whose environment holds it was started by the test, however far down
END_LIMIT_S = 20.0  # a hang limit: processes that were told to end have this long


# -- toolchains -------------------------------------------------------------------------------------------------------


def require(tool: str) -> None:
    """Go on if the program `tool` is on the path, or the module of `module:NAME` can be imported; else skip or fail."""
    kind, colon, name = tool.partition(":")
    if colon and kind == "module":
        require_that(importlib.util.find_spec(name) is not None, f"the Python module {name} is not installed")
    else:
        require_that(shutil.which(tool) is not None, f"{tool} is not installed")


def require_that(holds: bool, reason: str) -> None:
    """Go on if `holds`; else skip with the reason, or fail where everything is required."""
    if holds:
        return
    if REQUIRE_ALL:
        pytest.fail(f"{reason}, and PLUGML_REQUIRE_ALL=1 asks for everything", pytrace=False)
    pytest.skip(reason)


def does_not_apply(reason: str) -> NoReturn:
    """Skip a test that means nothing in this place (another kernel, another user); forgiven everywhere."""
    pytest.skip(FORGIVEN + reason)


@pytest.fixture(name="require", scope="session")
def require_fixture() -> Callable[[str], None]:
    return require


@pytest.fixture(name="require_that", scope="session")
def require_that_fixture() -> Callable[[bool, str], None]:
    return require_that


@pytest.fixture(name="does_not_apply", scope="session")
def does_not_apply_fixture() -> Callable[[str], NoReturn]:
    return does_not_apply


# -- nothing is left behind -------------------------------------------------------------------------------------------


class Left(NamedTuple):
    """What a test may leave behind, each thing as a line for the reader."""

    processes: dict[int, str]
    descriptors: dict[str, int]
    roots: frozenset[str]


@pytest.fixture
def no_leaks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test that leaves a process, an open descriptor or an entry in a channel root behind.

    Processes are found by a mark in their environment, so orphans are seen too; what is found is ended by its pid.
    """
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    gc.collect()
    before = Left({}, _descriptors(), _roots())
    yield
    gc.collect()
    processes = _wait_for_end(mark)
    lines = [f"process {pid} is still there: {command}" for pid, command in sorted(processes.items())]
    for pid in processes:
        os.kill(pid, signal.SIGKILL)
    for target, count in sorted(_descriptors().items()):
        more = count - before.descriptors.get(target, 0)
        if more > 0:
            lines.append(f"{more} more descriptor(s) on {target}")
    lines += [f"{path} was left in the memory file system" for path in _wait_for_sweep(before.roots, mark)]
    if lines:
        pytest.fail("left behind:\n  " + "\n  ".join(lines), pytrace=False)


def _wait_for_end(mark: str) -> dict[int, str]:
    """Marked processes that are still there when the limit is over; usually none, at once."""
    end = time.monotonic() + END_LIMIT_S
    while True:
        found = _marked(mark)
        if not found or time.monotonic() > end:
            return found
        for pid in found:
            _wait_for_exit(pid, min(1.0, max(0.0, end - time.monotonic())))


def _wait_for_sweep(before: frozenset[str], mark: str) -> list[str]:
    """Entries that came during the test and are still there when the limit is over; usually none, at once.

    Another cluster or another test run may be at work on this host: what a process without our mark speaks of on its
    command line, or has put its number into the name of, is not ours.
    """
    end = time.monotonic() + END_LIMIT_S
    while True:
        found = [path for path in sorted(_roots() - before) if not _others(path, mark)]
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.2)  # a foreign root may go at any time, and nothing tells when


def _others(path: str, mark: str) -> bool:
    """Whether a live process that this test did not start owns the root that holds `path`."""
    top = Path(path)
    named = re.search(r"/plugml-(?:test|fake|bsp)-(\d+)-", path)
    if named:
        pid = int(named.group(1))
        return pid != os.getpid() and Path(f"/proc/{pid}").exists() and pid not in _marked(mark)
    roots = [str(place) for place in (top, *top.parents) if "plugml" in str(place) and place.name != "plugml"]
    ours = {os.getpid(), *_marked(mark)}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in ours:
            continue
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # ended meanwhile
        if any(root in words for root in roots):
            return True
    return False


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
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if needle in (entry / "environ").read_bytes().split(b"\0"):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                found[int(entry.name)] = command
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # ended meanwhile, or somebody else's
    return found


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


def _roots() -> frozenset[str]:
    """Entries of every channel root on this host, two levels down, and named semaphores."""
    found: list[str] = []
    for top in (Path("/dev/shm"), Path("/run/plugml")):
        if top.is_dir():
            for entry in top.iterdir():
                if top.name != "shm" or "plugml" in entry.name:
                    found += [str(entry), *_below(entry)]
    return frozenset(found)


def _below(directory: Path) -> list[str]:
    if not directory.is_dir() or directory.is_symlink():
        return []
    try:
        return [str(path) for path in directory.iterdir()]
    except (FileNotFoundError, PermissionError):
        return []


# -- the honest count -------------------------------------------------------------------------------------------------


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, None]:
    """Where everything is required, a skip of any kind is a failure that keeps its reason."""
    outcome = yield
    report = outcome.get_result()
    if REQUIRE_ALL and report.skipped and not hasattr(report, "wasxfail"):
        reason = _reason(report)
        if not reason.startswith(FORGIVEN):
            report.outcome = "failed"
            report.longrepr = f"skipped although PLUGML_REQUIRE_ALL=1: {reason}"


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """One line at the end: how many ran, how many were skipped and why."""
    stats = terminalreporter.stats
    ran = sum(len(stats.get(key, ())) for key in ("passed", "failed", "xfailed", "xpassed"))
    skipped = stats.get("skipped", [])
    reasons: dict[str, int] = {}
    for report in skipped:
        reason = _reason(report)
        reasons[reason] = reasons.get(reason, 0) + 1
    why = "; ".join(f"{count} x {reason}" for reason, count in sorted(reasons.items()))
    terminalreporter.write_line(f"tests: {ran} ran, {len(skipped)} skipped" + (f" ({why})" if why else ""))
