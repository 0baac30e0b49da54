"""What every test may use: a toolchain or a reason to skip, a check that nothing is left behind, and an honest count.

A test that needs a tool calls `require("Rscript")`.  At a desk it skips and the reason is printed at the end; with
PLUGML_REQUIRE_ALL=1 (continuous integration) a missing tool, and any other skip, is a failure.  A test that can
never run in a place says `does_not_apply(reason)`; only that is forgiven there.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
from collections.abc import Callable, Generator
from typing import Any, NoReturn

import pytest

from tests.leaks import no_leaks, test_mark

__all__ = ["no_leaks", "test_mark"]

REQUIRE_ALL = os.environ.get("PLUGML_REQUIRE_ALL", "") not in ("", "0")
MOST = 6  # more processors have nothing to do while the longest tests run
FAILURE_CHARS = 4000  # of a failure's text that are printed when it happens; the whole comes at the end
FORGIVEN = "does not apply here: "


# -- the session -----------------------------------------------------------------------------------------------------


def pytest_xdist_auto_num_workers() -> int:
    """Half of what tests do is waiting: two processes more than there are processors."""
    return min(len(os.sched_getaffinity(0)), MOST) + 2


def pytest_configure(config: pytest.Config) -> None:
    """What the session starts is not to suffer from where the session was started.

    In the background of a script SIGINT is ignored.  Where Python is told to keep no bytecode, each of thousands of short
    processes would compile plugml anew, a third of its work; so it is kept where it is in nobody's way.
    """
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
        os.environ["PYTHONPYCACHEPREFIX"] = str(config.rootpath / ".pytest_cache" / "bytecode")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A failure is told when it happens: a session that is cut short has told it."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        print(f"\nFAILED {report.nodeid} ({report.when})\n{report.longreprtext[-FAILURE_CHARS:]}", flush=True)


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
