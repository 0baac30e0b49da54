"""The parts of `plugml conform`: what the eye sees, which sentence a refusal is about, what a plain server computes."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from plugml.cli.main import main
from plugml.core.errors import Code, RequestError, UsageError
from plugml.core.job import JobSpec
from plugml.core.table import TableSpec
from plugml.shm_protocol.conform import fakeroot, guess, play
from plugml.shm_protocol.conform.drill import read_line
from plugml.shm_protocol.conform.eye import CAME_BY, MADE, OPENED, REMOVED, WROTE, Eye
from plugml.shm_protocol.conform.faults import Fault, Killed, Script
from plugml.shm_protocol.conform.group import Group
from plugml.shm_protocol.conform.muffled import MuffledAgent
from plugml.shm_protocol.conform.refusals import rule_of_line, rule_of_request
from plugml.shm_protocol.conform.server import PlainServer
from plugml.shm_protocol.conform.tables import Pushed
from plugml.shm_protocol.conform.watch import Watch
from plugml.shm_protocol.info import Info
from plugml.shm_protocol.reading import Data
from plugml.shm_protocol.request import Request, parse_request
from plugml.shm_protocol.root import boot_id
from plugml.shm_protocol.rows import Rows

from .fake_agent import FakeAgent
from .test_rules import Program

TABLES = (
    TableSpec("w", (4,), optimizer="add"), TableSpec("e", (10, 2), "sparse", index="u32", batch=3, optimizer="add"),
    TableSpec("s", (0, 1), "sparse", index="str", batch=3, optimizer="add"), TableSpec("h", (10, 1), "sparse", storage="f16", batch=3, optimizer="add"),
)  # fmt: skip


# -- the muffled bell


def test_a_bell_that_comes_late_takes_no_room_from_what_muffles() -> None:
    read, write = os.pipe2(os.O_NONBLOCK)
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    late = [b"\n", b"", b"\n", b""]

    def drain_bell() -> None:
        """Room comes about, and who sleeps in its bell takes it."""
        with contextlib.suppress(BlockingIOError):
            os.read(read, 1 << 16)
        os.write(write, late.pop(0))

    agent = MuffledAgent.__new__(MuffledAgent)
    agent.kept = [SimpleNamespace(req_fd=write)]  # type: ignore[list-item]
    channel: Any = SimpleNamespace(drain_bell=drain_bell)

    for left in (2, 0):
        agent._muffle_again(channel)
        assert len(late) == left
        with pytest.raises(BlockingIOError):
            os.write(write, b"\n")
    os.close(read)
    os.close(write)


# -- refusals


@pytest.fixture(scope="module")
def refusing() -> Iterator[tuple[FakeAgent, Program]]:
    """An agent with tables of every kind, and a program of bare files."""
    agent = FakeAgent(JobSpec("refusals", 1, TABLES))
    with agent:
        program = Program(agent.kept[0].directory, agent.environment())
        yield agent, program
        program.close()


@pytest.mark.parametrize(
    ("line", "files", "rule"),
    [
        ("sstep {} 0", {}, "4.4"), ("step {}", {}, "4.1"), ("step {} 0 n=4 \xff", {}, "4.1"), ("step {} x", {}, "4.8"), ("step {} 3", {}, "4.6"),
        ("step {} 0 m=4", {}, "4.7"), ("step {} 0 n", {}, "4.7"), ("step {} 0 n=4 n=4", {}, "4.7"), ("ping {} 0 t=4", {}, "4.7"), ("step {} 0 n=x", {}, "4.8"),
        ("step {} 0 w=0,5", {}, "4.8"), ("step {} 0 w=1e17", {}, "4.8"), ("pull {} 0 n=5", {}, "3.4"), ("pull {} 0 table=x want=1", {}, "4.12"),
        ("pull {} 0 table=w want=1", {}, "4.12"), ("pull {} 0 table=e want=4", {}, "4.13"), ("next {} 0", {}, "4.14"),
        ("push {} 0", {"grad": bytes(15)}, "3.3"), ("push {} 0 n=4", {"grad": bytes(15)}, "3.4"), ("push {} 0", {"grad": np.full(4, np.nan, "<f4").tobytes()}, "3.5"),
        ("push {} 0 fmt=text", {"grad.txt": b"1\n2\n"}, "3.7"), ("push {} 0 fmt=text", {"grad.txt": b"1\n2\n0,5\n4\n"}, "3.8"),
        ("push {} 0 fmt=text", {"grad.txt": b"1\n2\nNA\n4\n"}, "3.9"), ("push {} 0 fmt=text", {"grad.txt": b"1\n2\n1e99\n4\n"}, "3.9"),
        ("pull {} 0 table=e want=1", {"want": b"\x0a\0\0\0"}, "3.16"), ("pull {} 0 table=e want=1", {"want": b"\0"}, "3.14"),
        ("pull {} 0 table=e want=1 fmt=text", {"want.txt": b"1\n2\n"}, "3.20"), ("pull {} 0 table=e want=1 fmt=text", {"want.txt": b"x\n"}, "3.20"),
        ("pull {} 0 table=s want=1", {"wkey": b"a\nb\n"}, "3.17"), ("pull {} 0 table=s want=1", {"wkey": b"\n"}, "3.18"),
        ("pull {} 0 table=s want=2", {"wkey": b"8yn0iYCKYHlIj4-BwPqk\nGReLUrM4wMqfg9yzV3KQ\n"}, "3.19"),
        ("push {} 0 table=h k=1", {"gidx": b"\1\0\0\0", "grad": np.full(1, 1e6, "<f4").tobytes()}, "3.21"),
    ],
)  # fmt: skip
def test_a_refusal_is_about_one_sentence(line: str, files: dict[str, bytes], rule: str, refusing: tuple[FakeAgent, Program]) -> None:
    agent, program = refusing
    for name, data in files.items():
        (program.directory / name).write_bytes(data)
    seq = program.done_seq() + 1
    told = line.format(seq).encode("latin-1")
    program.write(told + b"\n")
    program.ring()
    reply = program.reply()
    code, _seq, text = program.err().split(" ", 2)
    error = RequestError(Code[code], text)

    assert not reply.ok and reply.code is error.code
    try:
        found = rule_of_request(parse_request(told), error)
    except RequestError:
        found = rule_of_line(told, error)
    assert found == rule, program.err()


def test_a_sequence_that_has_a_gap_is_about_counting() -> None:
    error = RequestError(Code.SEQ, "seq 9 came, 3 is the next one")
    assert rule_of_line(b"step 9 0", error) == "4.5"
    assert rule_of_line(b"hello 3 0", RequestError(Code.FORMAT, "hello has seq 0, not 3")) == "4.5"
    assert rule_of_line(b"step 0 0", RequestError(Code.FORMAT, "seq 0 belongs to hello")) == "4.5"
    assert rule_of_request(parse_request(b"ping 9 0"), RequestError(Code.GONE, "ping after bye")) == "9.9"


# -- the eye


def test_the_eye_sees_each_write_to_cmd_and_what_was_opened_made_and_removed(tmp_path: Path) -> None:
    (tmp_path / "cmd").write_bytes(bytes(64))
    (tmp_path / "grad").write_bytes(bytes(8))
    eye = Eye(tmp_path)
    fd = os.open(tmp_path / "cmd", os.O_WRONLY)
    for piece in (b"step ", b"1 ", b"0\n"):
        os.write(fd, piece)
    os.close(fd)
    seen = eye.look()
    assert [event.name for event in seen if event.kind & WROTE] == ["cmd"] * 3
    assert [event.name for event in seen if event.kind & OPENED] == ["cmd"]
    assert eye.look() == []

    (tmp_path / "new").write_bytes(b"pull 2 0\n")
    (tmp_path / "new").rename(tmp_path / "cmd")
    (tmp_path / "grad").unlink()
    seen = eye.look()
    assert [(event.kind, event.name) for event in seen if event.name in ("cmd", "grad")] == [(CAME_BY, "cmd"), (REMOVED, "grad")]
    assert any(event.kind & MADE and event.name == "new" for event in seen)
    with open(tmp_path / "cmd", "r+b", buffering=0) as cmd:
        cmd.write(b"a")
        cmd.write(b"b")
    assert [event.name for event in eye.look() if event.kind & WROTE] == ["cmd"] * 2  # the new file is watched, too
    eye.close()


# -- guesses


def dense(numbers: np.ndarray) -> tuple[Data, Info]:
    dtype = {"<f4": "f32", "<f8": "f64", "<i8": "i64"}[numbers.dtype.str]
    optimizer = "add"
    spec = JobSpec("guess", 1, (TableSpec("w", (len(numbers),), dtype=dtype, optimizer=optimizer),))
    return Data(numbers.view(np.uint8), (), (), 0, numbers.nbytes), Info.of(spec, 0, 1, boot_id(), 0)


@pytest.mark.parametrize("dtype", ["<f4", "<f8", "<i8"])
@pytest.mark.parametrize("seed", range(20))
def test_numbers_of_training_are_not_taken_for_foreign_and_swapped_ones_are(dtype: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    numbers = (random.normal(0, 10.0 ** random.integers(-4, 4), 50) if dtype != "<i8" else random.integers(-1000, 1000, 50)).astype(dtype)
    swapped = numbers.byteswap()

    assert guess.foreign_numbers(*dense(numbers)) == ""
    if dtype != "<f4":  # a float of 32 bits has too few of exponent to be absurd each time
        assert "big-endian" in guess.foreign_numbers(*dense(swapped))


@pytest.mark.parametrize("numbers", [np.zeros(8), np.array([1e300, 1e-300]), np.array([5e-324] * 8), np.array([np.nan, 1.0])])
def test_nothing_is_said_of_numbers_that_are_merely_odd(numbers: np.ndarray) -> None:
    assert guess.foreign_numbers(*dense(numbers)) == ""


# -- the server


def pushed(worker: int, seq: int, weight: float, rows: dict[int, list[float]] | None, w: float | None = None) -> Pushed:
    found = {}
    if rows:
        found[1] = Rows(1, np.array(list(rows), np.uint64), np.array(list(rows.values()), np.float32))
    values = {} if w is None else {0: np.full(4, w, np.float32)}
    return Pushed(worker, seq, weight, values, found, frozenset() if rows is None else frozenset({1}))


def server(workers: int, **more: object) -> PlainServer:
    spec = JobSpec("plain", workers, TABLES[:2], **more)  # type: ignore[arg-type]
    return PlainServer(spec, Info.of(spec, 0, 1, boot_id(), 0))


def test_a_close_divides_rows_by_the_weights_of_all_pushes_that_name_the_table() -> None:
    plain = server(3)
    plain.push(0, pushed(0, 1, 1.0, {2: [4, 8], 3: [4, 4]}, 4.0))
    plain.push(0, pushed(1, 1, 3.0, {2: [8, 0]}, 8.0))
    plain.push(0, pushed(2, 1, 4.0, {}))
    for worker in range(3):
        plain.tick(worker, 2, 0)

    assert {row: values.tolist() for row, values in plain.tables[1].rows.items()} == {2: [3.5, 1.0], 3: [0.5, 0.5]}
    assert plain.values.view(np.float32)[:4].tolist() == [7.0] * 4  # the third pushed no dense table


def test_a_push_is_taken_once_and_a_worker_that_left_is_not_waited_for() -> None:
    plain = server(2)
    for _ in range(2):
        plain.push(0, pushed(0, 1, 1.0, {2: [1, 1]}))
    plain.tick(0, 2, 0)
    assert not plain.ready(1) and plain.lag(0) == 1
    plain.leave(1)

    assert plain.ready(1) and plain.lag(0) == 0 and plain.pushes == [1, 0]
    assert plain.tables[1].rows[2].tolist() == [1, 1]


def test_models_of_consistency() -> None:
    for consistency, ready in (("bsp", [True, False, False]), ("ssp:1", [True, True, False]), ("asp", [True, True, True])):
        plain = server(2, consistency=consistency)
        assert [plain.ready(clock) for clock in range(3)] == ready


def test_pieces_are_handed_out_in_turns_and_the_same_request_gets_the_same() -> None:
    plain = server(1, pieces=2, passes=2)
    assert [plain.next_piece(0, seq) for seq in (1, 1, 2, 3, 4, 5, 6)] == [(0, 0), (0, 0), (0, 1), (1, 0), (1, 1), None, None]


@pytest.mark.usefixtures("no_leaks")
def test_what_the_plain_server_does_not_know_is_refused() -> None:
    for more in ({"optimizer": "adam"}, {"init": "normal"}):
        with pytest.raises(UsageError, match="scripted agent knows"):
            FakeAgent(JobSpec("other", 1, (TableSpec("w", (4,), **more),)))  # type: ignore[arg-type]


# -- the script


def test_a_fault_comes_once_and_a_death_before_each_store_in_turn() -> None:
    script = Script(["err@2:SIZE", "restart@*:*"])
    assert script.fault("err", 0, 1) is None
    assert script.fault("err", 0, 2) == Fault("err", 2, "SIZE") and script.fault("err", 0, 2) is None
    stores: list[int] = []
    for life in range(3):
        with pytest.raises(Killed):
            for number in range(3):
                script.store(0, 1, lambda number=number: stores.append(number))  # type: ignore[misc]
        assert len(stores) == sum(range(life + 1))


@pytest.mark.parametrize("text", ["err", "bang@3", "err@x", "err@3:OOPS", "fail@3:OOPS", ""])
def test_a_fault_that_nobody_knows_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="fault"):
        Fault.parse(text)


# -- programs


@pytest.mark.usefixtures("no_leaks")
def test_a_program_is_ended_with_those_that_left_its_session(tmp_path: Path, require: Callable[[str], None]) -> None:
    require("setsid")
    with open(os.devnull, "r+b") as nothing:
        group = Group(["sh", "-c", "setsid sleep 1000 & echo $! > \"$1\"; exec sleep 1000", "-", str(tmp_path / "pid")], dict(os.environ), nothing, nothing)
        while not (tmp_path / "pid").exists() or len(group.strays()) < 2:
            assert group.code is None
        assert group.asleep() or group.code is None
        group.close()
    assert group.program.returncode < 0 and not group.strays()


def test_a_driver_line_is_read_and_anything_else_is_passed_over() -> None:
    line = read_line("step:1:2 1 OK clock=3 done=0 w=1,2.5")
    assert line is not None and (line.op, line.clock, line.done, line.values) == ("step:1:2", 3, False, (1.0, 2.5))
    for text in ("", "hello world", "step 1 OK clock=x done=0 w=1", "step 1 OK clock=1 done=0 w=a", "step 1 OK clock=1 done=0"):
        assert read_line(text) is None


@pytest.mark.usefixtures("no_leaks")
def test_one_script_can_be_played_by_hand(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = 'cd "$PLUGML_DIR"; exec 3<>req 4<>rep; printf "1\\n2\\n" > grad.txt; echo "step 1 0 fmt=text" > cmd; echo >&3; read -r a b c <&4; cat param.txt; test $a = ok'
    code = play.main(["--table", "w=2:f64", "--lr", "0.5", "--fault", "restart@1:2", "--report", str(tmp_path / "report"), "--worker", script])
    told = json.loads((tmp_path / "report").read_text())

    assert code == 0 and capfd.readouterr().out.split() == ["-0.5", "-1.0"]
    assert told["param"] == {"w": [-0.5, -1.0]} and told["deaths"] == 1 and told["codes"] == [0] and told["lines"] == [["step 1 0 fmt=text"]]
    for words in (["--worker", "exit 3"], ["--worker", "kill -9 $$"]):
        assert play.main(words) == (3 if "exit" in words[1] else 137)
    with pytest.raises(SystemExit):
        play.main(["--fault", "bang@1", "--worker", "true"])
    done = subprocess.run([sys.executable, "-m", "plugml.shm_protocol.conform.play", "-h"], capture_output=True, text=True, check=True)
    assert "restart@S:K" in done.stdout


class Onlooker(Watch):
    def __init__(self) -> None:
        self.read_it = threading.Event()

    def waiting(self, seq: int) -> None:
        self.read_it.set()


def test_a_request_that_was_touched_is_remarked() -> None:
    agent, onlooker = FakeAgent(JobSpec("touch", 1, TABLES[:1]), ["slow@1:0.4"]), Onlooker()
    agent.attend(onlooker)
    with agent:
        program = Program(agent.kept[0].directory, agent.environment())
        program.push([1.0, 2.0, 3.0, 4.0])
        program.write("step 1 0\n")
        program.ring()
        assert onlooker.read_it.wait(60)
        program.push([0.0] * 4)
        assert program.reply().ok
        program.close()
    assert agent.remarks == ["worker 0: grad was touched between the ring and the reply of request 1"]


def test_a_plain_request_needs_no_sections() -> None:
    assert guess.reached(Request("pull", 1, 0), Data(None, (), (), 0, 0), dense(np.zeros(2))[1]) == set()


# -- what a killed run leaves


def test_a_root_is_swept_when_its_maker_has_ended_and_nobody_holds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    monkeypatch.setattr(fakeroot, "MEMORY", tmp_path)
    names = [f"{gone.pid}-killed", f"{gone.pid}-elsewhere", f"{os.getpid()}-ours", "mine-x"]  # elsewhere: there, the maker has another pid
    killed, elsewhere, ours, other = (tmp_path / f"{fakeroot.PREFIX}{name}" for name in names)
    for root in (killed, elsewhere, ours, other):
        (root / "fake.0.1").mkdir(parents=True)
        (root / "fake.0.1" / "grad").touch()
    fd = os.open(elsewhere, os.O_RDONLY)
    try:
        fakeroot.hold(fd)
        assert fakeroot.sweep() == [killed]
        assert sorted(tmp_path.iterdir()) == sorted([elsewhere, ours, other])
        assert (elsewhere / "fake.0.1" / "grad").exists()
    finally:
        os.close(fd)


@pytest.mark.usefixtures("no_leaks")
def test_the_next_conform_removes_the_channels_of_a_killed_one(tmp_path: Path) -> None:
    started = tmp_path / "started"
    os.mkfifo(started)
    play_it = [sys.executable, "-m", "plugml.shm_protocol.conform.play", "--", "sh", "-c", "echo $PLUGML_DIR $$ > started; exec sleep 600"]
    with subprocess.Popen(play_it, cwd=tmp_path) as player:
        directory, program = started.read_text().split()
        root = Path(directory).parent
        assert root.name.startswith(f"plugml-fake-{player.pid}-")
        assert root not in fakeroot.sweep() and root.exists()
        player.kill()
        os.kill(int(program), signal.SIGKILL)
    main(["conform", "--", "true"])
    assert not root.exists()
