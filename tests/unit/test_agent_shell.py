"""The agent as a process: its root, lock, socket, channels on tmpfs, death and adoption.  No master is needed for these."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plugml.agent import effects as e
from plugml.agent.disk import Disk
from plugml.agent.exportdisk import ExportFiles
from plugml.core.errors import Code, RootError
from plugml.core.job import JobSpec
from plugml.core.table import TableSpec
from plugml.shm_protocol.create import Channel, create_channel
from plugml.shm_protocol.info import Info
from plugml.shm_protocol.request import Reply, parse_reply
from plugml.shm_protocol.root import boot_id, lock_agent
from tests.leaks import own_root

HANG_S = 30.0

START = """
import sys
from pathlib import Path
from plugml.agent.main import run_agent
from plugml.core.errors import PlugmlError
root = Path(sys.argv[1])
try:
    sys.exit(run_agent("a0", "test", root, {"m0": f"ipc://{root}/nobody"}))
except PlugmlError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
"""


@pytest.fixture
def root() -> Iterator[Path]:
    path = own_root()
    path.mkdir(mode=0o700)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def start(root: Path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Starts agents, waits until each listens, ends what is left of them."""
    running: list[subprocess.Popen[str]] = []

    def go() -> subprocess.Popen[str]:
        (root / "agent.sock").unlink(missing_ok=True)
        process = subprocess.Popen([sys.executable, "-c", START, str(root)], stderr=subprocess.PIPE, text=True)
        running.append(process)
        until(lambda: listens(root) or process.poll() is not None)
        return process

    yield go
    for process in running:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def until(done: Callable[[], bool]) -> None:
    """Hang limit only."""
    end = time.monotonic() + HANG_S
    while not done():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.005)


def listens(root: Path) -> bool:
    """The file is there a moment before anybody listens."""
    with socket.socket(socket.AF_UNIX) as one:
        return one.connect_ex(str(root / "agent.sock")) == 0


class Peer:
    """One connection to agent.sock."""

    def __init__(self, root: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(HANG_S)
        self.socket.connect(str(root / "agent.sock"))
        self.lines = self.socket.makefile("rb")
        self.number = 0

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        self.number += 1
        self.socket.sendall(json.dumps({"op": op, "id": self.number, **fields}).encode() + b"\n")
        while True:
            document: dict[str, Any] = json.loads(self.lines.readline())
            if document.get("id") == self.number:
                return document

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.lines.close()
        self.socket.close()


def make(root: Path, gen: int = 1, job: str = "digits") -> Channel:
    spec = JobSpec(job, 1, (TableSpec("w", (10,), block_bytes=64),))
    return create_channel(root, Info.of(spec, 0, gen, boot_id(), 0, 7))


def ring(channel: Channel, line: str) -> None:
    (channel.directory / "cmd").write_text(line + "\n")
    os.write(channel.req_fd, b"\n")


def reply(channel: Channel, seq: int) -> Reply:
    """Read replies until one has this seq."""
    fd = os.open(channel.directory / "rep", os.O_RDONLY | os.O_NONBLOCK)
    try:
        end = time.monotonic() + HANG_S
        while time.monotonic() < end:
            try:
                record = os.read(fd, 64)
            except BlockingIOError:
                time.sleep(0.002)
                continue
            found = parse_reply(record)
            if found.seq == seq:
                return found
        raise AssertionError(f"no reply to {seq}")
    finally:
        os.close(fd)


def test_a_channel_is_opened_served_and_adopted_after_a_kill(root: Path, start: Callable[[], subprocess.Popen[str]]) -> None:
    agent = start()
    with make(root) as channel:
        with Peer(root) as peer:
            assert peer.ask("opened", job="digits", worker=0, gen=1, dir=str(channel.directory))["ok"]
            assert peer.ask("opened", job="digits", worker=0, gen=1, dir=str(channel.directory))["ok"]
        ring(channel, "hello 0 0")
        assert reply(channel, 0).done == 0
        for seq in range(1, 20):
            if seq % 5 == 0:  # the request is there, the bell rings while nobody listens
                agent.send_signal(signal.SIGKILL)
                agent.wait()
            ring(channel, f"ping {seq} 0")
            if seq % 5 == 0:
                agent = start()
            assert reply(channel, seq).ok
        ring(channel, "stepp 20 0")
        assert reply(channel, 20).code is Code.FORMAT
        assert (channel.directory / "err").read_text().startswith("FORMAT seq=20: unknown verb")
    until(lambda: not channel.directory.exists())


def test_a_channel_whose_launcher_is_gone_is_swept(root: Path, start: Callable[[], subprocess.Popen[str]]) -> None:
    start()
    channel = make(root)
    with Peer(root) as peer:
        assert peer.ask("opened", job="digits", worker=0, gen=1, dir=str(channel.directory))["ok"]
        directory = channel.directory
        channel.close(remove=False)
        until(lambda: not directory.exists())
        assert peer.ask("stat")["counters"]["channels"] == 0


def test_launcher_and_agent_gone_together_leave_nothing_that_acts(root: Path, start: Callable[[], subprocess.Popen[str]]) -> None:
    agent = start()
    channel = make(root)
    with Peer(root) as peer:
        peer.ask("opened", job="digits", worker=0, gen=1, dir=str(channel.directory))
    agent.send_signal(signal.SIGKILL)
    agent.wait()
    ring(channel, "step 1 0")
    channel.close(remove=False)
    (root / ".tmp-half.0.1-00").mkdir()
    start()
    until(lambda: not channel.directory.exists() and not (root / ".tmp-half.0.1-00").exists())


def test_opened_is_refused_with_the_reason(root: Path, start: Callable[[], subprocess.Popen[str]]) -> None:
    start()
    with Peer(root) as peer, make(root) as channel:
        answer = peer.ask("opened", job="digits", worker=0, gen=9, dir=str(root / "digits.0.9"))
        assert answer["code"] == "PERM" and "digits.0.9" in answer["text"]
        (channel.directory / "ctl").write_bytes(bytes(4096))
        assert peer.ask("opened", job="digits", worker=0, gen=1, dir=str(channel.directory))["code"] == "VERSION"


def test_a_bell_that_was_replaced_breaks_its_channel_alone(root: Path, start: Callable[[], subprocess.Popen[str]]) -> None:
    start()
    with Peer(root) as peer, make(root) as bad, make(root, job="other") as good:
        for name, channel in (("digits", bad), ("other", good)):
            assert peer.ask("opened", job=name, worker=0, gen=1, dir=str(channel.directory))["ok"]
        (bad.directory / "req").unlink()
        (bad.directory / "req").write_text("\n")
        until(lambda: "req has been replaced" in (bad.directory / "err").read_text())
        ring(good, "ping 1 0")
        assert reply(good, 1).ok


def test_garbage_at_the_socket_is_put_out_and_counted(root: Path, start: Callable[[], subprocess.Popen[str]]) -> None:
    agent = start()
    for garbage in (b"hello\n", b"[1]\n", b"\xff\xfe\n", b"{" * 70_000, b"[" * 60_000 + b"\n", b"nul\0\n"):
        with Peer(root) as peer:
            peer.socket.sendall(garbage)
            assert peer.lines.readline() == b""
    with Peer(root) as peer:
        peer.socket.sendall(b'{"op": "stat", "id": 1}\n{"op"')
        assert json.loads(peer.lines.readline())["ok"]
        peer.socket.sendall(b': "hello", "id": 2, "version": 1}\n')
        assert json.loads(peer.lines.readline())["cluster"] == "test"
    until(lambda: "garbage=6" in (root / "agent.stat").read_text() if (root / "agent.stat").exists() else False)
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(HANG_S) == 0


def test_one_agent_per_root(root: Path, start: Callable[[], subprocess.Popen[str]]) -> None:
    first = start()
    second = start()
    assert second.wait(HANG_S) == RootError.exit_code
    assert second.stderr is not None and f"another agent (process {first.pid})" in second.stderr.read()


@pytest.mark.parametrize(("prepare", "words"), [
    (lambda path: path.chmod(0o755), "chmod 700"),
    (lambda path: (path.rmdir(), path.write_text("")), "is no directory"),
    (lambda path: (path.rmdir(), path.symlink_to("/dev/shm")), "is no directory"),
])  # fmt: skip
def test_an_unfit_root_is_refused_with_73_and_a_sentence(prepare: Callable[[Path], object], words: str) -> None:
    path = own_root()
    path.mkdir(mode=0o700)
    try:
        prepare(path)
        done = subprocess.run([sys.executable, "-c", START, str(path)], capture_output=True, text=True, timeout=HANG_S)
        assert done.returncode == 73 and words in done.stderr
    finally:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def test_the_lock_says_who_holds_it(root: Path) -> None:
    fd = lock_agent(root)
    with pytest.raises(RootError, match=f"process {os.getpid()}"):
        lock_agent(root)
    os.close(fd)


class Loop:
    """As much of a loop as Disk needs."""

    def add_reader(self, *_arguments: object) -> None:
        pass

    def remove_reader(self, *_arguments: object) -> None:
        pass


@pytest.fixture
def disk(root: Path) -> Iterator[tuple[Disk, list[Any]]]:
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    events: list[Any] = []
    hands = Disk(Loop(), fd, 1, events.append, lambda array: bool(lent))  # type: ignore[arg-type]
    yield hands, events
    hands.abandon()
    os.close(fd)
    lent.clear()


lent: list[int] = []


def perform(disk: Disk, effect: Any) -> None:
    disk.performers()[type(effect)](effect)


def test_after_a_failed_store_nothing_stands_for_success(root: Path, disk: tuple[Disk, list[Any]]) -> None:
    hands, events = disk
    with make(root) as channel:
        perform(hands, e.OpenChannel("digits.0.1"))
        perform(hands, e.SetCurrent("digits.0.1", 1))
        (channel.directory / "param").unlink()
        (channel.directory / "param").symlink_to("/dev/null")
        for effect in (
            e.WriteParam("digits.0.1", 0, bytes(40)), e.WriteParam("digits.0.1", 0, bytes(40)),
            e.WriteResult("digits.0.1", 1, 1, 5, 0, 0.0, 1), e.SetDone("digits.0.1", 1), e.Reply("digits.0.1", b" " * 63 + b"\n"),
        ):  # fmt: skip
            perform(hands, effect)
        assert [type(event).__name__ for event in events] == ["ChannelOpened", "ParamFailed"]
        assert events[1].code is Code.PERM and hands.channels["digits.0.1"].done_seq == 0
        for effect in (
            e.WriteError("digits.0.1", "PERM seq=1: x"), e.WriteResult("digits.0.1", 1, 1, 5, int(Code.PERM), 0.0, 1),
            e.SetDone("digits.0.1", 1),
        ):  # fmt: skip
            perform(hands, effect)
        assert hands.channels["digits.0.1"].done_seq == 1


def test_first_values_come_from_files_of_the_right_size(root: Path, disk: tuple[Disk, list[Any]], tmp_path: Path) -> None:
    hands, events = disk
    np.arange(10, dtype="<f4").tofile(tmp_path / "w.bin")
    perform(hands, e.ReadFiles("c", 128, ((str(tmp_path / "w.bin"), 64, 40),)))
    assert np.frombuffer(events[-1].buffer[64:104], "<f4").tolist() == list(range(10))
    for path, nbytes, words in (("w.bin", 44, "it has 40 bytes, its table 44"), ("none", 40, "No such file")):
        perform(hands, e.ReadFiles("c", 128, ((str(tmp_path / path), 0, nbytes),)))
        assert events[-1].buffer is None and words in events[-1].text


def test_an_export_has_all_its_names_or_none(tmp_path: Path) -> None:
    files = ExportFiles(tmp_path)
    files.make("a.bin", 8)
    files.make("b.bin", 4)
    files.write("a.bin", 4, np.ones(1, "<f4"))
    files.write("b.bin", 0, memoryview(b"abcd"))
    assert not (tmp_path / "a.bin").exists()
    assert files.publish() == 12
    assert sorted(os.listdir(tmp_path)) == ["a.bin", "b.bin"]
    assert (tmp_path / "a.bin").read_bytes() == bytes(4) + np.ones(1, "<f4").tobytes()
    files.make("c.bin", 4)
    files.remove()
    assert sorted(os.listdir(tmp_path)) == ["a.bin", "b.bin"]


def test_an_export_to_a_place_that_is_none_is_refused(disk: tuple[Disk, list[Any]], tmp_path: Path) -> None:
    hands, events = disk
    perform(hands, e.MakeExport(5, str(tmp_path / "missing"), "w.bin", 40))
    perform(hands, e.WriteExport(5, "w.bin", 0, bytes(40)))
    perform(hands, e.EndExport(5, True))
    assert [type(event).__name__ for event in events] == ["ExportFailed"]
    assert events[0].code is Code.FORMAT and "make it before the export" in events[0].text


def test_a_full_disk_is_said_before_anything_is_read(disk: tuple[Disk, list[Any]], root: Path) -> None:
    hands, events = disk
    perform(hands, e.MakeExport(5, str(root), "w.bin", 1 << 50))
    assert events[0].code is Code.NOSPC and "full" in events[0].text
    assert os.listdir(root) == []
