"""What SPEC.md says of an agent, said to two of them: the scripted one and a real cluster's, by a program of bare files."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import select
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from plugml.core.job import JobSpec
from plugml.core.table import TableSpec
from plugml.shm_protocol import generate, page
from plugml.shm_protocol.create import Channel, create_channel
from plugml.shm_protocol.info import parse_info
from plugml.shm_protocol.request import Reply, parse_reply
from tests.leaks import own_root

from .fake_agent import FakeAgent

TOP = Path(__file__).resolve().parents[2]
HANG_S = 60.0
LR = 0.5


class Program:
    """A program of bare files: it writes what it is told, rings, and reads 64 bytes."""

    def __init__(self, directory: Path, environ: dict[str, str]) -> None:
        self.directory = directory
        self.environ = environ
        self.req = os.open(directory / "req", os.O_RDWR)
        self.rep = os.open(directory / "rep", os.O_RDWR)

    def write(self, line: str | bytes) -> None:
        (self.directory / "cmd").write_bytes(line.encode() if isinstance(line, str) else line)

    def ring(self) -> None:
        os.write(self.req, b"\n")

    def reply(self) -> Reply:
        ready, _, _ = select.select([self.rep], [], [], HANG_S)
        assert ready, "no reply came"
        return parse_reply(os.read(self.rep, 64))

    def ask(self, line: str) -> Reply:
        """The reply to the line.  A hello may be answered twice, at adoption and at its bell, so others pass over those."""
        hello = line.startswith("hello")
        while hello and select.select([self.rep], [], [], 0)[0]:
            os.read(self.rep, 64)
        self.write(line + "\n")
        self.ring()
        reply = self.reply()
        while not hello and reply.seq == 0:
            reply = self.reply()
        return reply

    def push(self, values: list[float]) -> None:
        (self.directory / "grad").write_bytes(np.array(values, "<f4").tobytes())

    def param(self) -> list[float]:
        return np.frombuffer((self.directory / "param").read_bytes(), "<f4").tolist()

    def err(self) -> str:
        return (self.directory / "err").read_text().strip()

    def done_seq(self) -> int:
        return page.read_moving((self.directory / "ctl").read_bytes()).done_seq

    def close(self) -> None:
        os.close(self.req)
        os.close(self.rep)


class Cluster(NamedTuple):
    """A real cluster of this host; we are the launcher, by its agent's socket."""

    root: Path
    environ: dict[str, str]
    cwd: Path

    def plugml(self, *words: str) -> None:
        command = [sys.executable, "-m", "plugml", *words]
        done = subprocess.run(command, env=self.environ, cwd=self.cwd, capture_output=True, text=True, timeout=HANG_S, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, done.stdout + done.stderr

    @contextlib.contextmanager
    def channel(self, job: JobSpec) -> Iterator[Channel]:
        """A channel of the job's only worker, from registration to the end."""
        with contextlib.closing(Agent(self.root / "agent.sock")) as agent:
            agent.ask("hello", version=1)
            agent.ask("register", spec=job.to_document())
            attached = agent.ask("attach", job=job.name, worker=0)
            with create_channel(self.root, parse_info(attached["info"])) as channel:
                named = {"job": job.name, "worker": 0, "gen": attached["gen"]}
                agent.ask("opened", **named, dir=str(channel.directory))
                yield channel
                agent.ask("exited", **named, how="finished")
            agent.ask("end", job=job.name, state="finished", reason="the test has ended")


class Agent:
    """The agent's socket, one question after the other."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(HANG_S)
        self._socket.connect(str(path))
        self._lines = self._socket.makefile("rb")
        self._number = 0

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        self._number += 1
        self._socket.sendall(json.dumps({"op": op, "id": self._number, **fields}).encode() + b"\n")
        for line in self._lines:
            told: dict[str, Any] = json.loads(line)
            if told.get("id") == self._number:
                assert told["ok"], told
                return told
        raise AssertionError("the agent has hung up")

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    place = tmp_path_factory.mktemp("cluster")
    name = f"rules-{secrets.token_hex(3)}"
    root = own_root("rules")
    environ = {key: value for key, value in os.environ.items() if not key.startswith("PLUGML_")}
    environ |= {"PYTHONPATH": str(TOP), "PLUGML_ROOT": str(root), "XDG_STATE_HOME": str(place), "PLUGML_CLUSTER": name}
    made = Cluster(root, environ, place)
    made.plugml("up", "-d", "--name", name, "--servers", "2")
    yield made
    made.plugml("down", name)
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(params=["scripted", "real"])
def program(request: pytest.FixtureRequest) -> Iterator[Program]:
    """A program in a fresh channel of a job with one table of four float32 numbers, plain SGD, one worker."""
    job = JobSpec(f"rules-{secrets.token_hex(4)}", 1, (TableSpec("w", (4,), settings={"lr": LR}),))
    with contextlib.ExitStack() as stack:
        if request.param == "scripted":
            agent = stack.enter_context(FakeAgent(job))
            directory, environ = agent.kept[0].directory, agent.environment()
        else:
            channel = stack.enter_context(request.getfixturevalue("cluster").channel(job))
            directory, environ = channel.directory, {**os.environ, "PLUGML_DIR": str(channel.directory)}
        yield stack.enter_context(contextlib.closing(Program(directory, environ)))


ONES = [1.0, 1.0, 1.0, 1.0]


# -- bells and lines


def test_bells_without_a_request_do_nothing(program: Program) -> None:  # SPEC 5.1 7.2 4.2
    for line in ("", "ping 1 0", "pi"):
        program.write(line)
        program.ring()
    assert program.ask("ping 1 0") == Reply(True, 1, 0, 0)


def test_a_line_is_asked_once_however_often_the_bell_rings(program: Program) -> None:  # SPEC 5.1 7.3
    program.push(ONES)
    assert program.ask("step 1 0").seq == 1
    for _ in range(20):
        program.ring()
    assert program.ask("ping 2 1").seq == 2
    assert program.param() == [-LR] * 4


def test_hello_is_answered_however_often_it_comes(program: Program) -> None:  # SPEC 6.3 7.4 4.5
    for _ in range(3):
        assert program.ask("hello 0 0") == Reply(True, 0, 0, 0, done=0)
    program.push(ONES)
    program.ask("step 1 0")
    first = program.ask("hello 0 0")
    assert (first.seq, first.clock, first.done) == (0, 1, 1)
    assert program.ask("hello 0 7")[:3] == first[:3]
    assert program.done_seq() == 1


def test_what_follows_the_newline_is_ignored(program: Program) -> None:  # SPEC 4.3
    with open(program.directory / "cmd", "r+b") as cmd:
        cmd.write(b"ping 1 0\nstep 9 9 and more\n")
    program.ring()
    assert program.reply()[:3] == (True, 1, 0)


def test_a_line_that_does_not_end_is_refused(program: Program) -> None:  # SPEC 7.2 6.1
    program.write(b"x" * 6000)
    program.ring()
    reply = program.reply()
    assert (reply.ok, reply.seq, reply.code.name) == (False, 1, "FORMAT")


# -- counting


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("stepp 1 0", "FORMAT"), ("step 1 0 m=1", "FORMAT"), ("step 1 0 n", "FORMAT"), ("nonsense", "FORMAT"), ("step 1 0 n=4 n=4", "FORMAT"),
        ("step 1 0 w=-1", "FORMAT"), ("step 1 0 w=1e17", "RANGE"), ("step 1 0 n=99999999999999999999", "RANGE"), ("step 1 0 n=5", "SIZE"),
        ("ping 1 0 t=5", "FORMAT"), ("step 1 0 async=1", "FORMAT"), ("step 1 0 table=w k=1", "FORMAT"), ("step 1 0 table=x k=1", "RANGE"), ("next 1 0", "FORMAT"), ("step 1 3", "SEQ"), ("pull 1 3", "SEQ"),
        ("clock 1 1", "SEQ"), ("push 1 1", "SEQ"), ("pushpull 1 1", "SEQ"),
    ],
)  # fmt: skip
def test_a_refused_line_counts_and_applies_nothing(program: Program, line: str, code: str) -> None:  # SPEC 4.4 4.5 4.6 4.7 4.8 4.11 6.1 6.5 6.9 7.5 8.1
    program.push(ONES)
    reply = program.ask(line)
    assert (reply.ok, reply.seq, reply.clock, reply.code.name) == (False, 1, 0, code)
    assert program.done_seq() == 1
    assert program.err().startswith(f"{code} seq=1: ")
    assert program.ask("pull 2 0").ok and program.param() == [0.0] * 4
    assert program.ask("step 3 0").ok and program.param() == [-LR] * 4


@pytest.mark.parametrize("seq", [3, 77, 9223372036854775807])
def test_another_seq_is_refused_and_does_not_count(program: Program, seq: int) -> None:  # SPEC 7.7 6.9 4.5
    program.ask("ping 1 0")
    reply = program.ask(f"ping {seq} 0")
    assert (reply.ok, reply.seq, reply.code.name) == (False, seq, "SEQ")
    assert program.done_seq() == 1 and program.ask("ping 2 0").ok


def test_an_old_seq_with_another_line_is_refused(program: Program) -> None:  # SPEC 7.7
    program.ask("ping 1 0")
    program.ask("ping 2 0")
    assert program.ask("ping 1 0").code.name == "SEQ"
    assert program.ask("ping 3 0").ok


def test_a_program_goes_on_after_every_refusal_with_the_next_seq(program: Program) -> None:  # SPEC 6.9 4.11 6.2
    seq = clock = 0
    for values, ok in ((ONES, True), ([1, 2, 3], False), (ONES, True), ([1, float("nan"), 3, 4], False), (ONES, True)):
        seq += 1
        program.push(values)
        reply = program.ask(f"step {seq} {clock}")
        clock += ok
        assert (reply.ok, reply.seq, reply.clock) == (ok, seq, clock)
    assert program.param() == [-3 * LR] * 4


# -- data


def test_the_size_of_a_push(program: Program) -> None:  # SPEC 3.3 3.4 12.2 12.5
    for seq, (nbytes, said, ok) in enumerate(
        [(16, "", True), (15, "", False), (17, "", False), (32, " n=4", True), (15, " n=4", False), (0, "", False), (24, "", False)], 1
    ):
        (program.directory / "grad").write_bytes(bytes(nbytes))
        reply = program.ask(f"push {seq} 0{said}")
        assert reply.ok == ok and reply.code.name == ("OK" if ok else "SIZE"), (nbytes, said)
    assert "access='stream'" in program.err()


def test_a_push_must_be_finite(program: Program) -> None:  # SPEC 3.5
    for seq, bad in enumerate([np.nan, np.inf, -np.inf], 1):
        program.push([1.0, 2.0, bad, 4.0])
        assert program.ask(f"step {seq} 0").code.name == "NONFINITE"
        assert f"element 2 of table w is {bad}" in program.err()
    program.push([1e-45, -1e-45, 1e-40, 0.0])
    assert program.ask("step 4 0").ok
    assert program.param() == (-np.float32(LR) * np.array([1e-45, -1e-45, 1e-40, 0.0], "<f4")).tolist()


def test_a_replaced_file_is_found_by_its_name(program: Program) -> None:  # SPEC 1.7
    for seq in (1, 2):
        for name, data in (("grad", np.array(ONES, "<f4").tobytes()), ("cmd", b"step %d %d\n" % (seq, seq - 1))):
            (program.directory / "new").write_bytes(data)
            (program.directory / "new").rename(program.directory / name)
        program.ring()
        assert program.reply().ok
    assert program.param() == [-2 * LR] * 4


def test_a_link_is_refused(program: Program, tmp_path: Path) -> None:  # SPEC 7.9
    (tmp_path / "secret").write_bytes(bytes(16))
    (program.directory / "grad").unlink()
    (program.directory / "grad").symlink_to(tmp_path / "secret")
    assert program.ask("step 1 0").code.name == "PERM"
    (program.directory / "grad").unlink()
    program.push(ONES)
    assert program.ask("step 2 0").ok


def test_text(program: Program) -> None:  # SPEC 3.6 3.7 3.8 3.9 3.10 12.3
    text = program.directory / "grad.txt"
    text.write_text("1\n-2.5\r\n .5 \n3e-3")
    assert program.ask("step 1 0 fmt=text").ok
    written = [float(line) for line in (program.directory / "param.txt").read_text().splitlines()]
    wanted = -np.float32(LR) * np.array([1, -2.5, 0.5, 3e-3], "<f4")
    assert np.array(written, "<f4").tolist() == wanted.tolist()
    for seq, (content, code, words) in enumerate(
        [
            ("1\n2\n3\n", "SIZE", "3 lines, 4 are declared"), ("1\n2\n3\n4\n5\n", "SIZE", "5 lines"), ("1\n2,5\n3\n4\n", "FORMAT", "LC_NUMERIC=C"),
            ("1\nx\n3\n4\n", "FORMAT", "line 2 of grad.txt"), ("1\nnan\n3\n4\n", "NONFINITE", "element 1"), ("1\n2\n3\n1e39\n", "RANGE", "line 4"),
        ], 2,
    ):  # fmt: skip
        text.write_text(content)
        assert program.ask(f"step {seq} 1 fmt=text").code.name == code
        assert words in program.err()
    program.push([1.0, 1.0, 1.0, 1.0])
    assert program.ask("step 8 1").ok and program.param() == (wanted - np.float32(LR)).tolist()


# -- verbs


def test_several_pushes_in_a_clock_and_their_weights(program: Program) -> None:  # SPEC 4.10 4.9 6.4
    program.push([4.0, 0.0, 0.0, 0.0])
    assert program.ask("push 1 0 w=1").clock == 0
    program.push([0.0, 4.0, 0.0, 0.0])
    assert program.ask("push 2 0 n=4 w=3").clock == 0
    assert program.ask("pull 3 0").ok and program.param() == [0.0] * 4  # the clock is still open
    assert program.ask("clock 4 0").clock == 1
    reply = program.ask("pull 5 1")
    assert reply.ok and reply.n == 4 and reply.version is not None and reply.version > 0
    assert program.param() == [-LR * 1.0, -LR * 3.0, 0.0, 0.0]
    assert program.ask("ping 6 1").ok
    assert program.ask("pushpull 7 1").clock == 1


def test_after_bye_everything_is_gone(program: Program) -> None:
    program.push(ONES)
    program.ask("step 1 0")
    assert program.ask("bye 2 1").ok
    assert program.ask("ping 3 1").code.name == "GONE"


def test_the_page_tells_what_was_answered(program: Program) -> None:  # SPEC 7.10 7.11 7.12 7.13 7.14 1.10
    program.push(ONES)
    assert program.ask("push 1 0 w=2").ok and program.ask("step 2 0 w=3").ok
    program.push([1.0])
    assert program.ask("step 3 1").code.name == "SIZE"
    whole = (program.directory / "ctl").read_bytes()
    assert page.read_constant(whole).cap_grad == 16
    moving, result, counters = page.read_moving(whole), page.read_result(whole, 3), page.read_counters(whole)
    assert (moving.done_seq, moving.clock, moving.state, result.clock) == (3, 1, page.READY, 1)
    assert page.Result(*result).status == moving.status == 4
    wanted = {"requests": 3, "pushes": 2, "pulls": 1, "errors": 1, "bytes_pushed": 32, "bytes_pulled": 16, "adoptions": 1}
    assert {name: counters[name] for name in wanted} == wanted
    log = [entry.text for _at, entry in page.read_log(whole)]
    assert len(log) == 1 and log[0].startswith("SIZE seq=3: grad has 4 bytes")


# -- the client of section 11


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_the_client_in_the_specification_works_as_printed(program: Program, shell: str, require: Callable[[str], None]) -> None:  # SPEC 5.2 5.3 5.4 5.6 2.9
    require(shell)
    found = re.search(r"## 11\. A whole client\n\n```sh\n(.*?)```", generate.SPEC.read_text(), re.DOTALL)
    assert found
    script = found[1] + (
        "c=0\nwhile [ $c -lt 6 ]; do\n"
        '  [ -z "${PLUGML_DIR-}" ] || printf "1\\n2\\n3\\n4\\n" >"$PLUGML_DIR/grad.txt"\n'
        "  step $c && plugged=1 || plugged=0\n  c=$((c+1))\ndone\n"
        'echo $plugged; [ $plugged = 0 ] || cat "$PLUGML_DIR/param.txt"\n'
    )
    ran = subprocess.run([shell, "-c", script], env=program.environ, check=True, capture_output=True, text=True, timeout=HANG_S)
    assert ran.stdout.split() == ["1", "-3", "-6", "-9", "-12"]
    alone = {key: value for key, value in program.environ.items() if key != "PLUGML_DIR"}
    ran = subprocess.run([shell, "-c", script], env=alone, check=True, capture_output=True, text=True, timeout=HANG_S)
    assert ran.stdout.split() == ["0"]
