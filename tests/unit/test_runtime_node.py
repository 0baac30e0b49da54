"""A node as a process: how it starts, says that it is ready, and ends, each way with its own code and words."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from plugml.core.errors import WorldError
from plugml.runtime.log import LogFile, line_of

HANG_S = 60.0

PROGRAM = """
import sys
from plugml.core.effects import Log, Stop
from plugml.core.errors import WorldError
from plugml.runtime.descriptors import fill_standard
from plugml.runtime.log import LogFile
from plugml.runtime.node import node_name, now_us, run_node

fill_standard()
what, endpoint, log = sys.argv[1:4]

class Machine:
    def __init__(self):
        self.due_us = now_us() + 20_000
        self.turns = 0
    def on_message(self, sender, message, now_us):
        if what == "crash" and message == "boom":
            raise ZeroDivisionError("planted")
        return []
    def on_time(self, now_us):
        self.turns += 1
        self.due_us = now_us + 20_000
        if what == "stop": return [Log("ready", {}), Stop(75, "stopped with a checkpoint")]
        if what == "crash" and self.turns == 3: node.loop.call_soon(node.feed, "s0.00000001", "boom")
        if what == "world" and self.turns == 2: raise WorldError("the disk is full: free some space")
        return [Log("ready", {}), Log("tick", {"n": self.turns})]
    def deadline_us(self): return self.due_us
    def check(self): pass
    def digest(self): return 0

def make(given):
    global node
    node = given
    if what == "refuse": raise WorldError("no such state: start the master first")
    node.at_end(lambda: node.log("closed", what="store"))
    return Machine()

sys.exit(run_node(make, node_name("s0"), endpoint, log=LogFile("s0", log), ready_on="ready"))
"""


class Notify:
    """The supervisor's address, and what it was told."""

    def __init__(self, directory: Path) -> None:
        self.path = str(directory / "notify")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.socket.settimeout(HANG_S)

    def next(self) -> dict[str, str]:
        text = self.socket.recv(4096).decode()
        return dict(line.partition("=")[::2] for line in text.splitlines())


@pytest.fixture
def notify(tmp_path: Path) -> Iterator[Notify]:
    notify = Notify(tmp_path)
    yield notify
    notify.socket.close()


def start(tmp_path: Path, what: str, notify: Notify, log: str = "", **options: object) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-c", PROGRAM, what, f"ipc://{tmp_path}/s0", log]
    env = {**os.environ, "NOTIFY_SOCKET": notify.path}
    return subprocess.Popen(argv, env=env, stderr=subprocess.PIPE, **options)  # type: ignore[call-overload,no-any-return]


def test_ready_is_said_once_and_sigterm_ends_in_order(tmp_path: Path, notify: Notify, no_leaks: None) -> None:
    process = start(tmp_path, "run", notify)
    first, second = notify.next(), notify.next()
    assert first["MAINPID"] == second["MAINPID"] == str(process.pid)
    assert "READY" not in first and second["READY"] == "1"
    assert first["X_PLUGML_NODE"] == second["X_PLUGML_NODE"] and first["X_PLUGML_NODE"].startswith("s0.")
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=HANG_S)
    assert process.returncode == 0
    lines = [line.split(b" ", 2)[2] for line in errors.splitlines()]
    assert lines.count(b'event=stop code=0 text="got SIGTERM"') == 1 and sum(line.startswith(b"event=ready") for line in lines) == 1
    assert lines[-2:] == [b"event=closed what=store", b"event=end code=0"]


@pytest.mark.parametrize(("what", "code", "sentence"), [
    ("stop", 75, b"plugml: stopped with a checkpoint"),
    ("world", 1, b"plugml: the disk is full: free some space"),
])  # fmt: skip
def test_a_definite_end_has_its_code_and_sentence(
    tmp_path: Path, notify: Notify, what: str, code: int, sentence: bytes, no_leaks: None
) -> None:
    process = start(tmp_path, what, notify)
    _, errors = process.communicate(timeout=HANG_S)
    assert process.returncode == code and sentence in errors.splitlines() and b"Traceback" not in errors
    assert errors.rstrip().endswith(b"event=end code=%d" % code)


def test_an_unexpected_exception_is_told_with_the_story(tmp_path: Path, notify: Notify, no_leaks: None) -> None:
    log = tmp_path / "s0.log"
    process = start(tmp_path, "crash", notify, str(log))
    _, errors = process.communicate(timeout=HANG_S)
    told = log.read_text()
    assert process.returncode == 70
    assert b"failed: ZeroDivisionError('planted')" in errors
    assert "ZeroDivisionError: planted" in told and "event=before_crash" in told and "s0.00000001 str" in told


def test_what_cannot_be_made_is_refused_with_nothing_left_open(tmp_path: Path, notify: Notify, no_leaks: None) -> None:
    process = start(tmp_path, "refuse", notify)
    _, errors = process.communicate(timeout=HANG_S)
    assert process.returncode == 1 and b"no such state: start the master first" in errors


def test_nothing_of_ours_lands_on_closed_standard_descriptors(tmp_path: Path, notify: Notify, no_leaks: None) -> None:
    log = tmp_path / "s0.log"
    shell = 'exec "$0" "$@" <&- >&- 2>&-'
    argv = ["sh", "-c", shell, sys.executable, "-c", PROGRAM, "run", f"ipc://{tmp_path}/s0", str(log)]
    process = subprocess.Popen(argv, env={**os.environ, "NOTIFY_SOCKET": notify.path})
    assert notify.next()["MAINPID"] == str(process.pid)
    while notify.next().get("READY") != "1":
        continue
    assert [os.readlink(f"/proc/{process.pid}/fd/{number}") for number in (0, 1, 2)] == ["/dev/null"] * 3
    process.terminate()
    assert process.wait(HANG_S) == 0


def test_a_log_that_cannot_be_written_costs_lines_not_the_process(tmp_path: Path) -> None:
    log = LogFile("s0", "/dev/full")
    log("first")
    log("second", n=1)
    assert log.lost == 2
    log.close()
    with pytest.raises(WorldError, match="cannot write the log"):
        LogFile("s0", str(tmp_path / "no" / "such.log"))


def test_a_full_pipe_holds_nobody_up_and_the_lost_lines_are_counted() -> None:
    read_end, write_end = os.pipe()
    saved = os.dup(2)
    os.dup2(write_end, 2)
    try:
        log = LogFile("s0")
        for number in range(1000):
            log("told", number=number, text="x" * 5000)
        assert log.lost > 900
        os.read(read_end, 1 << 20)
        log("told", number=1000)
        assert log.lost == 0
        assert b"number=1000 lines_lost=9" in os.read(read_end, 1 << 20)
    finally:
        os.dup2(saved, 2)
        for descriptor in (saved, read_end, write_end):
            os.close(descriptor)


def test_a_line_stays_one_line() -> None:
    line = line_of("told", {"text": 'two\nlines "and" a \\ and \x1b', "rate": 0.123456789, "empty": ""})
    assert line == 'event=told text="two\\nlines \\"and\\" a \\\\ and \\x1b" rate=0.123457 empty=""'


def test_a_long_log_is_put_aside_once(tmp_path: Path) -> None:
    path = tmp_path / "s0.log"
    path.write_bytes(b"x" * (17 << 20))
    log = LogFile("s0", str(path))
    log("begin")
    log.close()
    assert path.read_text().endswith("node=s0 event=begin\n") and (tmp_path / "s0.log.1").stat().st_size == 17 << 20


def test_a_pipe_that_nobody_reads_does_not_end_the_node(tmp_path: Path, notify: Notify, no_leaks: None) -> None:
    process = start(tmp_path, "run", notify)
    assert process.stderr is not None
    assert select.select([process.stderr], [], [], HANG_S)[0]
    process.stderr.close()
    while notify.next().get("READY") != "1":
        continue
    process.terminate()
    assert process.wait(HANG_S) == 0
