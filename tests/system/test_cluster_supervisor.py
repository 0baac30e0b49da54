"""The supervisor with children that misbehave: who is restarted, when it gives up, and what it says meanwhile."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from plugml.core.errors import WorldError
from plugml.launch import cluster as supervisor
from plugml.launch.cluster import LocalCluster
from plugml.launch.daemon import FAILURES_MAX, Daemon
from plugml.launch.discovery import ClusterFile, places
from tests.leaks import own_root

HANG_S = 60.0

#: A child that says who it is and that it is ready.
READY = """
import os, signal, socket, sys, time
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
    text = f"READY=1\\nMAINPID={os.getpid()}\\nX_PLUGML_NODE=@.{os.getpid():08x}"
    channel.sendto(text.encode(), os.environ["NOTIFY_SOCKET"])
"""
SLEEP = "while True: time.sleep(3600)\n"


class Case:
    """A cluster whose daemons are scripts."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, servers: int = 1, **options: Any) -> None:
        self.loop = uvloop.new_event_loop()
        asyncio.set_event_loop(self.loop)
        self.scripts: dict[str, str] = {}
        self.starts: list[str] = []
        self.said: list[str] = []
        self.news: list[tuple[str, bool]] = []
        self.roots = own_root()
        self.roots.mkdir(mode=0o700)
        file, _ = places("case", self.roots / "r", directory / "state", {})
        monkeypatch.setattr(supervisor, "command", self._command)
        self.cluster = LocalCluster(self.loop, file, dict(os.environ), servers=servers, say=self.said.append, **options)
        self.cluster.on_news = lambda text, fatal: self.news.append((text, fatal))

    def _command(self, daemon: Daemon, file: ClusterFile, *rest: object) -> list[str]:
        self.starts.append(daemon.id)
        return [sys.executable, "-I", "-c", self.scripts.get(daemon.id, READY + SLEEP).replace("@", daemon.id)]

    def until(self, holds: Callable[[], object]) -> None:
        async def watch() -> None:
            while not holds():
                await asyncio.sleep(0.01)

        self.loop.run_until_complete(asyncio.wait_for(watch(), HANG_S))

    def ready(self) -> None:
        self.loop.run_until_complete(asyncio.wait_for(self.cluster.wait_ready(), HANG_S))

    def kill(self, id_: str) -> None:
        daemon = next(daemon for daemon in self.cluster.daemons if daemon.id == id_)
        assert daemon.child is not None
        daemon.child.signal(9)

    def close(self) -> None:
        self.loop.run_until_complete(self.cluster.stop())
        asyncio.set_event_loop(None)
        self.loop.close()
        assert not (self.roots / "r").exists()
        shutil.rmtree(self.roots)


@pytest.fixture(scope="module")
def warm() -> None:
    """The first loop of a process opens a pipe that stays."""
    uvloop.new_event_loop().close()


@pytest.fixture
def case(warm: None, no_leaks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    case = Case(tmp_path, monkeypatch)
    yield case
    case.close()


def test_ready_is_when_every_child_says_so(case: Case) -> None:
    case.cluster.start()
    case.ready()
    assert sorted(case.starts) == ["a0", "m0", "s0"] and case.news == []
    assert len(case.starts) == 3
    assert {daemon.node.partition(".")[0] for daemon in case.cluster.daemons} == {"a0", "m0", "s0"}


def test_a_long_wait_says_for_whom(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "WAIT_SAID_S", 0.2)
    case.scripts["s0"] = "import time\n" + SLEEP
    case.cluster.start()
    waiting = case.loop.create_task(case.cluster.wait_ready())
    case.until(lambda: any(line.startswith("still waiting for s0 to be ready; the logs are in") for line in case.said))
    waiting.cancel()
    case.loop.run_until_complete(asyncio.gather(waiting, return_exceptions=True))


def test_a_child_that_ends_before_it_is_ready_ends_the_start_with_its_last_words(case: Case) -> None:
    case.scripts["s0"] = "import sys\nprint('plugml: the disk is full', file=sys.stderr)\nsys.exit(1)\n"
    case.cluster.start()
    with pytest.raises(WorldError, match=r"cannot go on: server s0 ended \(exit code 1\): the disk is full; its log is in"):
        case.ready()
    assert case.news[-1][1] is True


def test_a_killed_child_comes_back_as_another_node(case: Case) -> None:
    case.cluster.start()
    case.ready()
    before = [daemon.node for daemon in case.cluster.daemons]
    case.kill("s0")
    case.until(lambda: any("server s0 is back as s0." in text for text, _ in case.news))
    after = [daemon.node for daemon in case.cluster.daemons]
    assert [old == new for old, new in zip(before, after)] == [True, False, True]
    assert case.news[0] == ("server s0 ended (killed by signal 9 (SIGKILL)); it is started again", False)


def test_twenty_deaths_cost_no_descriptor(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plugml.launch.daemon.HEALTHY_US", 0)
    case.cluster.start()
    case.ready()
    before = len(os.listdir("/proc/self/fd"))
    for death in range(20):
        case.kill("s0")
        case.until(lambda death=death: len(case.news) == 2 * death + 2)
    assert len(os.listdir("/proc/self/fd")) == before


def test_one_that_never_gets_ready_again_is_given_up(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plugml.launch.daemon.FIRST_WAIT_US", 1_000)
    case.cluster.start()
    case.ready()
    case.scripts["a0"] = "import sys\nsys.exit('out of luck')\n"
    case.kill("a0")
    case.until(lambda: case.news and case.news[-1][1])
    assert "agent a0 ended (exit code 1): out of luck" in case.news[-1][0]
    assert case.starts.count("a0") == FAILURES_MAX


def test_one_of_several_that_never_gets_ready_again_ends_nothing_and_is_tried_rarely(
    warm: None, no_leaks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plugml.launch.daemon.FIRST_WAIT_US", 1_000)
    monkeypatch.setattr(supervisor, "RARELY_US", 1_000)
    case = Case(tmp_path, monkeypatch, servers=2)
    try:
        case.cluster.start()
        case.ready()
        case.scripts["s1"] = "import sys\nsys.exit('out of luck')\n"
        case.kill("s1")
        case.until(lambda: case.starts.count("s1") > FAILURES_MAX + 2)
        case.scripts.pop("s1")
        case.until(lambda: any("server s1 is back" in text for text, _ in case.news))
        assert not any(fatal for _, fatal in case.news)
        assert any("server s1 ended (exit code 1): out of luck; it is started again" in text for text, _ in case.news)
    finally:
        case.close()


def test_a_child_that_does_not_end_is_killed_after_the_grace(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "GRACE_S", 0.1)
    case.scripts["m0"] = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + READY + SLEEP
    case.cluster.start()
    case.ready()
    case.loop.run_until_complete(asyncio.wait_for(case.cluster.stop(), HANG_S))
    assert all(daemon.child is None for daemon in case.cluster.daemons)


def test_a_start_that_fails_half_way_leaves_nothing(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def command(daemon: Daemon, file: ClusterFile, *rest: object) -> list[str]:
        return ["/no/such/python"] if daemon.id == "a0" else case._command(daemon, file)

    monkeypatch.setattr(supervisor, "command", command)
    with pytest.raises(WorldError, match="cannot start cluster case: .*No such file"):
        case.cluster.start()
    assert all(daemon.child is None for daemon in case.cluster.daemons) and not case.cluster.root.exists()


@pytest.mark.parametrize("fails", [True, False])
def test_a_private_cluster_leaves_its_logs_only_when_a_process_failed(
    warm: None, no_leaks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    case = Case(tmp_path, monkeypatch, private=True, keep_logs=kept)
    case.cluster.start()
    case.ready()
    (case.cluster.file.logs / "s0.log").write_text("the story\n")
    case.scripts["s0"] = "raise SystemExit('a bug')" if fails else READY + SLEEP
    case.kill("s0")
    case.until(lambda: any("a bug" in text if fails else "is back" in text for text, _ in case.news))
    case.close()
    assert not (tmp_path / "state").exists()
    assert [path.read_text() for path in kept.iterdir()] == (["the story\n"] if fails else [])
