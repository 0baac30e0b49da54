"""The master as a process: over a real socket, with a real file, killed and started again."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from plugml.core.errors import Code
from plugml.core.jobmap import RUNNING, JobMap
from plugml.wire import messages as m
from plugml.wire.codec import decode_at, encode
from tests.fuzz.master_world import spec

HANG_MS = 30_000
PROGRAM = """
import sys
from pathlib import Path
from plugml.core.errors import WorldError
from plugml.master.main import run_master
endpoint, state = sys.argv[1:]
try:
    sys.exit(run_master("m0", cluster="test", endpoint=endpoint, state=Path(state)))
except WorldError as error:
    sys.exit(str(error))
"""

Master = subprocess.Popen[str]


def messages(frames: list[bytes]) -> Iterator[Any]:
    """Several may have travelled as one."""
    at = 0
    while at < len(frames):
        message, at = decode_at(frames, at)
        yield message


class Caller:
    """A node by its socket alone."""

    def __init__(self, context: zmq.Context[Any], name: str, endpoint: str) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.IDENTITY, name.encode())
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RECONNECT_IVL, 10)
        self.socket.connect(endpoint)

    def ask(self, message: Any, kind: type[Any]) -> Any:
        """Ask until an answer of this kind comes; others (maps, acks) are passed over."""
        for _ in range(HANG_MS // 250):
            self.socket.send_multipart(encode(message))
            while self.socket.poll(250):
                found = [answer for answer in messages(self.socket.recv_multipart()) if type(answer) is kind]
                if found:
                    return found[0]
        pytest.fail(f"no {kind.__name__} came")


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/m0"


@pytest.fixture
def start(tmp_path: Path, endpoint: str) -> Iterator[Callable[[], Master]]:
    started: list[Master] = []

    def one() -> Master:
        command = [sys.executable, "-c", PROGRAM, endpoint, str(tmp_path / "state")]
        started.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield one
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def call(endpoint: str) -> Iterator[Callable[[str], Caller]]:
    context: zmq.Context[Any] = zmq.Context()
    callers: list[Caller] = []

    def one(name: str) -> Caller:
        callers.append(Caller(context, name, endpoint))
        return callers[-1]

    yield one
    for caller in callers:
        caller.socket.close()
    context.destroy(linger=0)


def register(caller: Caller, role: str) -> m.Registered:
    address = "ipc:///somewhere" if role == "server" else ""
    told: m.Registered = caller.ask(m.Register(role, "h0", address, 7, "build"), m.Registered)
    return told


def test_a_killed_master_comes_back_with_everything_that_it_said(start: Any, call: Any) -> None:
    master = start()
    server, agent = call("s0.00000001"), call("a0.00000001")
    assert register(server, "server").known and register(agent, "agent").known
    told = agent.ask(m.JobAsk(1, spec().to_document()), m.JobTold)
    assert told.code == Code.OK
    assert agent.ask(m.AttachAsk(2, told.job, 0, 0), m.AttachTold).gen == 1
    before = JobMap.from_document(agent.ask(m.MapAsk(told.job, 0), m.MapTold).document)

    master.kill()
    master.wait()
    start()
    ack = server.ask(m.Beat(before.token, {}), m.BeatAck)
    assert ack == m.BeatAck(2, before.token, True)
    after = JobMap.from_document(agent.ask(m.MapAsk(told.job, 0), m.MapTold).document)
    assert after == before and after.state == RUNNING
    assert agent.ask(m.AttachAsk(2, told.job, 0, 0), m.AttachTold).gen == 1
    assert agent.ask(m.JobAsk(1, spec().to_document()), m.JobTold).job == told.job


def test_a_master_ends_in_order_when_it_is_told_to(start: Any, call: Any) -> None:
    master = start()
    register(call("s0.00000001"), "server")
    master.send_signal(signal.SIGTERM)
    _, log = master.communicate(timeout=HANG_MS / 1000)
    assert master.returncode == 0
    assert "event=state_opened term=1" in log and "event=ready" in log and "event=registered node=s0.00000001" in log


def test_a_second_master_ends_with_a_sentence_that_names_the_first(start: Any, call: Any, tmp_path: Path) -> None:
    first = start()
    register(call("s0.00000001"), "server")
    command = [sys.executable, "-c", PROGRAM, f"ipc://{tmp_path}/m1", str(tmp_path / "state")]
    second = subprocess.run(command, capture_output=True, text=True, timeout=HANG_MS / 1000, check=False)
    assert second.returncode == 1
    assert f"belongs to the master that runs as process {first.pid}" in second.stderr
    assert "Traceback" not in second.stderr


def test_a_damaged_store_ends_the_master_with_a_sentence(start: Any, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "master.sqlite").write_bytes(b"garbage " * 1000)
    master = start()
    _, log = master.communicate(timeout=HANG_MS / 1000)
    assert master.returncode == 1 and "is damaged" in log and "Traceback" not in log


def test_garbage_on_its_socket_costs_a_master_nothing(start: Any, call: Any) -> None:
    start()
    stranger = call("x0.0000000f")
    for frames in ([b"garbage"], [b"\0" * 72], [b""] * 5, [bytes(encode(m.Beat(1, {}))[0])[:-1]], [b"x"] * 4095):
        stranger.socket.send_multipart(frames)
    assert register(call("s0.00000001"), "server").known
