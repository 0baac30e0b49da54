"""The channel in memory is the channel on disk, store for store; and an agent may die before any store of a request."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from plugml.core.errors import Code, RequestError
from plugml.core.job import JobSpec
from plugml.core.table import TableSpec
from plugml.shm_protocol import numbers, page
from plugml.shm_protocol.channel import AgentChannel, adopt
from plugml.shm_protocol.create import create_channel
from plugml.shm_protocol.info import Info
from plugml.shm_protocol.request import Reply, format_reply, parse_reply, parse_request
from plugml.shm_protocol.root import boot_id, prepare_root
from plugml.shm_protocol.twin import PIPE_RECORDS, MemoryFiles, adopt_twin
from tests.leaks import own_root

SPEC = JobSpec("job", 1, (TableSpec("w", (3,)), TableSpec("n", (2,), dtype="i64", optimizer="add")))
GRAD = numbers.aligned(80)
GRAD[:12] = np.array([1, 2, 3], "<f4").view(np.uint8)
GRAD[64:] = np.array([-1, 5], "<i8").view(np.uint8)


class Killed(BaseException):
    pass


class Program:
    """The program's side in memory: writes, rings, reads replies."""

    def __init__(self, files: MemoryFiles) -> None:
        self.files = files

    def ask(self, line: bytes) -> None:
        self.files.contents["cmd"][:] = line
        self.files.rung += 1


def serve(agent: AgentChannel, values: np.ndarray) -> None:
    """A small agent without servers: pushes are added to `values` once, told apart by their seq."""
    line = agent.read_cmd()
    if line is None:
        return
    request = parse_request(line)
    if request.seq == agent.done_seq:
        agent.reply(agent.repeat())
        return
    assert request.seq == agent.done_seq + 1
    agent.set_current(request.seq)
    into = numbers.aligned(agent.info.cap_grad)
    code, pushes = Code.OK, agent.result.pushes
    try:
        agent.read_data(request, into)
        for table in agent.info.dense:
            numbers.view(values, table)[:] = numbers.view(into, table) * request.seq
        if request.text:
            agent.write_text(values)
        else:
            agent.write_param(0, values[:64])
            agent.write_param(64, values[64:])
        pushes += 1
    except RequestError as error:
        code = error.code
        agent.write_error(str(error))
    agent.write_result(request.seq, request.clock + 1, 5 * request.seq, int(code), 0.0, pushes)
    agent.set_done(request.seq)
    agent.reply(format_reply(Reply(code is Code.OK, request.seq, request.clock + 1, 5 * request.seq, code=code)))


@pytest.fixture
def root() -> Iterator[Path]:
    path = own_root()
    prepare_root(path)
    yield path
    path.rmdir()


LINES = [b"step 1 0 n=5\n", b"step 2 1\n", b"step 3 2 fmt=text\n", b"step 4 3 n=5 w=2\n"]


@pytest.mark.usefixtures("no_leaks")
def test_memory_and_disk_hold_the_same_bytes_after_the_same_stores(root: Path) -> None:
    info = Info.of(SPEC, 0, 1, boot_id(), 0)
    files = MemoryFiles(info)
    program = Program(files)
    twin = adopt_twin(files, info, 9, lambda: 3)
    root_fd = os.open(root, os.O_RDONLY)
    with create_channel(root, info) as kept:
        agent = adopt(root_fd, kept.name, 9, lambda: 3)
        rep = os.open(kept.directory / "rep", os.O_RDONLY | os.O_NONBLOCK)
        for line in LINES:
            for name, data in (("grad", GRAD.tobytes()), ("grad.txt", b"1\n2\nx\n-1\n5\n"), ("cmd", line)):
                (kept.directory / name).write_bytes(data)
                files.contents[name][:] = data
            program.files.rung += 1
            values = [numbers.aligned(info.cap_param) for _ in range(2)]
            serve(twin, values[0])
            serve(agent, values[1])
            assert files.replies.popleft() == os.read(rep, 64)
            for name, content in files.contents.items():
                disk = (kept.directory / name).read_bytes()
                if name == "ctl":  # but for the time of creation and the checksum over it
                    disk, content = disk[page.CONSTANT_BYTES :], content[page.CONSTANT_BYTES :]
                    assert disk[:256] == bytes(content[:256])
                assert disk == bytes(content), name
        os.close(rep)
        agent.close()
    os.close(root_fd)


@pytest.mark.parametrize("line", [b"step 1 0 n=5\n", b"step 1 0 fmt=text\n"])
@pytest.mark.parametrize("bad", [False, True])
def test_an_agent_dies_before_each_store_in_turn_and_the_program_sees_one_request(line: bytes, bad: bool) -> None:  # SPEC 7.8 7.6
    info = Info.of(SPEC, 0, 1, "0" * 32, 0)
    kill_at = 0
    while True:
        kill_at += 1
        left = [kill_at]

        def on_store(left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise Killed

        files = MemoryFiles(info)
        files.contents["grad"][:] = GRAD.tobytes()[: 79 if bad else None]
        files.contents["grad.txt"][:] = b"1\n2\nx\n-1\n5\n" if bad else b"1\n2\n3\n-1\n5\n"
        Program(files).ask(line)
        values = numbers.aligned(info.cap_param)
        agent = adopt_twin(files, info, 1)
        files.on_store = on_store
        killed = False
        try:
            serve(agent, values)
        except Killed:
            killed = True
            files.on_store = lambda: None
            done_before = page.read_moving(bytes(files.contents["ctl"])).done_seq
            param_before = bytes(files.contents["param"])
            later = adopt_twin(files, info, 2)
            assert later.done_seq == done_before
            serve(later, values)
            if done_before:
                assert bytes(files.contents["param"]) == param_before, "param was touched after done_seq"
        replies = [parse_reply(record) for record in files.replies]
        assert len(replies) == 1 and (replies[0].seq, replies[0].ok) == (1, not bad)
        result = page.read_result(bytes(files.contents["ctl"]), 1)
        assert (result.clock, result.pushes, result.status == 0) == (1, int(not bad), not bad)
        if not killed:
            break
    assert kill_at > 6


def test_every_word_of_the_done_request_survives_a_death_during_the_next_one() -> None:  # SPEC 7.13 7.15
    info = Info.of(SPEC, 0, 1, "0" * 32, 0)
    files = MemoryFiles(info)
    agent = adopt_twin(files, info, 1)
    for seq in range(1, 6):
        agent.set_current(seq)
        agent.write_result(seq, seq, seq * 10, 0, seq / 2, seq)
        assert adopt_twin(files, info, 2).result.seq == seq - 1  # it adopts, and both may go on in this test
        agent.set_done(seq)
        assert adopt_twin(files, info, 2).result == page.Result(seq, seq, seq * 10, 0, 0, seq / 2, seq)


def test_the_twin_refuses_like_the_disk() -> None:
    info = Info.of(SPEC, 0, 1, "0" * 32, 0)
    files = MemoryFiles(info)
    agent = adopt_twin(files, info, 1)
    assert agent.read_cmd() is None and agent.drain_bell()
    given = 0
    while agent.reply(agent.repeat()):
        given += 1
    assert given == PIPE_RECORDS == 1024
    assert page.read_moving(bytes(files.contents["ctl"])).state == page.BROKEN
    agent.beat(5)
    files.kept = False
    assert not agent.drain_bell()
    agent.close()
    with pytest.raises(RequestError, match="kept by nobody"):
        adopt_twin(files, info, 1)


def test_no_store_is_forgotten_by_the_hook() -> None:
    info = Info.of(SPEC, 0, 1, "0" * 32, 0)
    files = MemoryFiles(info)
    stores: list[int] = []
    files.on_store = lambda: stores.append(1)
    agent = adopt_twin(files, info, 1)
    actions: list[Callable[[], object]] = [
        lambda: agent.set_current(1), lambda: agent.write_param(0, GRAD), lambda: agent.write_text(GRAD), lambda: agent.write_error("x"),
        lambda: agent.write_result(1, 1, 1, 0), lambda: agent.set_done(1), lambda: agent.set_state(page.PARKED),
        lambda: agent.reply(agent.repeat()), lambda: agent.beat(1), lambda: agent.close(),
    ]  # fmt: skip
    for action in actions:
        before = {name: bytes(content) for name, content in files.contents.items()}, len(files.replies)
        count = len(stores)
        action()
        changed = before != ({name: bytes(content) for name, content in files.contents.items()}, len(files.replies))
        assert changed and len(stores) > count, action


ROWS = JobSpec(
    "job", 1,
    (
        TableSpec("w", (3,), storage="f16"), TableSpec("e", (99, 2), "sparse", batch=4), TableSpec("f", (0, 1), "sparse", dtype="f64", index="str", batch=2),
    ),
    bell="sem",
)  # fmt: skip
STEPS = [
    "step 1 0 n=3 table=e k=2 want=1 table=f k=1 want=2", "push 2 1 n=3 async=1 table=e k=2", "step 3 1 fmt=text t=9 table=f k=1 want=1",
    "step 4 2 table=e k=4", "step 5 2 table=f k=1 want=2",
]  # fmt: skip


def serve_rows(agent: AgentChannel, line: str) -> tuple[Code, bool]:
    """Every store that an agent may make for such a request."""
    request = parse_request(line.encode())
    agent.set_current(request.seq)
    code = Code.OK
    try:
        data = agent.read_data(request, numbers.aligned(agent.reader.stored_bytes))
        slot = request.seq % 2
        agent.keep(slot, request)
        again = agent.read_kept(slot, request, numbers.aligned(agent.reader.stored_bytes))
        assert (again.crc, again.nbytes) == (data.crc, data.nbytes)
        agent.write_text(None, [np.arange(rows.size, dtype="<f4") for rows in data.wants])
        agent.write_param(0, np.arange(2, dtype="<f4"))
        agent.write_data(b"0 7 part\n" if request.seq % 2 else b"")
        if request.seq != 2:
            agent.drop(slot)
    except RequestError as error:
        code = error.code
        agent.write_error(str(error))
    agent.write_result(request.seq, request.seq, request.seq, int(code), 0.0, 1, page.FLAG_STOP)
    agent.set_done(request.seq)
    return code, agent.reply(agent.repeat())


@pytest.mark.usefixtures("no_leaks")
def test_rows_keys_and_kept_pushes_leave_the_same_bytes_in_memory_and_on_disk(root: Path) -> None:
    info = Info.of(ROWS, 0, 1, boot_id(), 0)
    root_fd = os.open(root, os.O_RDONLY)
    with create_channel(root, info) as kept:
        files = MemoryFiles(kept.info)
        twin, agent = adopt_twin(files, kept.info, 9, lambda: 3), adopt(root_fd, kept.name, 9, lambda: 3)
        grad = np.zeros(22, "<f4")
        grad[:3], grad[16:20] = (1, 2, 3), (4, 5, 6, 7)
        grad[20:] = np.array([0.5], "<f8").view("<f4")
        contents = {
            "grad": grad.tobytes(), "gidx": np.array([7, 98], "<u4").tobytes(), "want": np.array([5], "<u4").tobytes(), "gkey": b"a\n", "wkey": b"b\nc\n",
            "grad.txt": b".25\n",
        }  # fmt: skip
        codes = []
        for line in STEPS:
            if line.startswith("push 2"):
                contents["grad"] = grad[:20].tobytes()
            if line.startswith("step 3"):
                contents["wkey"] = b"b\n"
            if line.startswith("step 5"):
                contents |= {"grad": bytes(8), "wkey": b"8yn0iYCKYHlIj4-BwPqk\nGReLUrM4wMqfg9yzV3KQ\n"}
            for name, data in contents.items():
                (kept.directory / name).write_bytes(data)
                files.contents[name][:] = data
            codes.append(serve_rows(agent, line))
            assert serve_rows(twin, line) == codes[-1]
            assert agent.kept_pushes() == twin.kept_pushes()
            for name, content in files.contents.items():
                disk = (kept.directory / name).read_bytes()
                if name == "ctl":
                    disk, content = disk[page.CONSTANT_BYTES :], content[page.CONSTANT_BYTES :]
                assert disk == bytes(content), (line, name)
        assert [code.name for code, _read in codes] == ["OK", "OK", "OK", "SIZE", "COLLIDE"]
        assert files.posts == 5 and [slot for slot, _line in agent.kept_pushes()] == [0]
        assert agent.counters() == twin.counters()
        agent.close()
    os.close(root_fd)


def test_the_sums_of_done_seq_stay_whole_while_the_next_ones_are_written() -> None:  # SPEC 7.19
    info = Info.of(ROWS, 0, 1, "0" * 32, 0)
    files = MemoryFiles(info)
    assert len(files.contents["sums"]) == 32
    agent = adopt_twin(files, info, 1)
    assert agent.sums.read(0) == ()
    for seq in range(1, 6):
        agent.write_result(seq, seq, 1, 0, 1.0, seq, 0, (("f", seq / 2),) if seq % 2 else (("f", seq / 4), ("e", 3.0)))
        before = adopt_twin(files, info, 2)  # a death before done_seq
        assert before.sums.read(before.done_seq) == sums_of(seq - 1)
        agent.set_done(seq)
        assert adopt_twin(files, info, 2).sums.read(seq) == sums_of(seq)
    assert np.frombuffer(files.contents["sums"], "<f8").reshape(2, 2).tolist() == [[3.0, 1.0], [0.0, 2.5]]
    files.contents["sums"][:] = bytes(20)
    with pytest.raises(RequestError, match="made shorter"):
        agent.sums.read(5)


def sums_of(seq: int) -> tuple[tuple[str, float], ...]:
    if not seq:
        return ()
    return (("f", seq / 2),) if seq % 2 else (("e", 3.0), ("f", seq / 4))
