"""Rows, accepted pushes, semaphores and pieces by a program of bare files, against a real cluster of two servers."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import posix_ipc
import pytest

from plugml.core.job import JobSpec
from plugml.core.table import TableSpec
from plugml.shm_protocol import kept, page
from plugml.shm_protocol.create import Channel, create_channel
from plugml.shm_protocol.info import parse_info
from plugml.shm_protocol.request import Reply, parse_reply

from .test_rules import HANG_S, Agent, Cluster, Program, cluster  # noqa: F401

LR = 0.5
W = TableSpec("w", (4,), settings={"lr": LR})
E = TableSpec("e", (100, 3), "sparse", settings={"lr": LR}, batch=8)
F = TableSpec("f", (0, 2), "sparse", dtype="f64", index="str", settings={"lr": LR}, batch=8, storage="f32")


class Sleeper(Program):
    """A program that sleeps in the semaphore."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, {})
        self.bell = posix_ipc.Semaphore(parse_info((directory / "info").read_text()).sem)

    def reply(self) -> Reply:
        while True:
            self.bell.acquire(HANG_S)
            one, two = ((self.directory / "reply").read_bytes() for _ in range(2))
            if one == two:
                return parse_reply(one)

    def close(self) -> None:
        self.bell.close()
        super().close()


def spec(*tables: TableSpec, bell: str = "fifo", **words: object) -> JobSpec:
    return JobSpec(f"rows-{secrets.token_hex(4)}", 1, tables, bell=bell, combine="sum", **words)  # type: ignore[arg-type]


@contextlib.contextmanager
def channel_of(cluster: Cluster, job: JobSpec) -> Iterator[Channel]:  # noqa: F811
    """A channel of the job's only worker; the agent that it ends with need not be the one that it began with."""

    def ask(op: str, **fields: Any) -> dict[str, Any]:
        with contextlib.closing(Agent(cluster.root / "agent.sock")) as agent:
            agent.ask("hello", version=1)
            return agent.ask(op, **fields)

    ask("register", spec=job.to_document())
    attached = ask("attach", job=job.name, worker=0)
    with create_channel(cluster.root, parse_info(attached["info"])) as channel:
        named = {"job": job.name, "worker": 0, "gen": attached["gen"]}
        ask("opened", **named, dir=str(channel.directory))
        yield channel
        ask("exited", **named, how="finished")
    ask("end", job=job.name, state="finished", reason="the test has ended")


@pytest.fixture(params=["fifo", "sem"])
def program(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[Program]:  # noqa: F811
    """Dense and sparse tables, plain SGD, one worker."""
    with contextlib.ExitStack() as stack:
        channel = stack.enter_context(channel_of(cluster, spec(W, E, F, bell=request.param)))
        made = Sleeper(channel.directory) if request.param == "sem" else Program(channel.directory, {})
        yield stack.enter_context(contextlib.closing(made))


def write(program: Program, **contents: bytes) -> None:
    for name, data in contents.items():
        (program.directory / name.replace("_", ".")).write_bytes(data)


def test_rows_by_number_and_by_key_beside_a_dense_table(program: Program) -> None:  # SPEC 3.12 3.13 3.15 5.11 6.4
    grad = bytearray(120)
    grad[:16] = np.ones(4, "<f4").tobytes()
    grad[64:100] = np.array([[1, 2, 3], [4, 5, 6], [1, 2, 3]], "<f4").tobytes()
    grad[104:] = np.array([0.5, -0.5], "<f8").tobytes()
    write(program, grad=bytes(grad), gidx=np.array([7, 99, 7], "<u4").tobytes(), gkey="größe\n".encode(), want=np.array([99, 7, 0, 7], "<u4").tobytes(), wkey="x\ngröße".encode())
    reply = program.ask("step 1 0 n=4 table=e k=3 want=4 table=f k=1 want=2")
    assert (reply.ok, reply.clock, reply.n, reply.rows) == (True, 1, 4, 6), program.err()
    param = (program.directory / "param").read_bytes()
    assert np.frombuffer(param, "<f4", 4).tolist() == [-LR] * 4
    assert np.frombuffer(param, "<f4", 12, 64).reshape(4, 3).tolist() == [[-2, -2.5, -3], [-1, -2, -3], [0, 0, 0], [-1, -2, -3]]
    assert np.frombuffer(param, "<f8", 4, 112).reshape(2, 2).tolist() == [[0, 0], [-0.25, 0.25]]
    reply = program.ask("pull 2 1 fmt=text table=f want=2")
    assert (reply.code.name, reply.n, reply.rows) == ("OK", None, 2), program.err()
    assert (program.directory / "param.txt").read_text().split() == ["0.0", "0.0", "-0.25", "0.25"]


def test_what_is_refused_leaves_every_row_as_it_was(program: Program) -> None:  # SPEC 3.16 3.19 4.11
    write(program, grad=np.ones(3, "<f4").tobytes(), gidx=np.array([100], "<u4").tobytes())
    assert program.ask("push 1 0 table=e k=1").code.name == "RANGE"
    write(program, grad=np.ones(4, "<f8").tobytes(), gkey=b"8yn0iYCKYHlIj4-BwPqk\nGReLUrM4wMqfg9yzV3KQ\n")
    assert program.ask("push 2 0 table=f k=2").code.name == "COLLIDE" and "8yn0iYCKYHlIj4-BwPqk" in program.err()
    write(program, grad=np.ones(2, "<f8").tobytes(), gkey=b"8yn0iYCKYHlIj4-BwPqk\n")
    assert program.ask("step 3 0 table=f k=1").ok
    write(program, gkey=b"GReLUrM4wMqfg9yzV3KQ\n", wkey=b"GReLUrM4wMqfg9yzV3KQ\n")
    for seq, line in ((4, "push 4 1 table=f k=1"), (5, "pull 5 1 table=f want=1")):
        assert program.ask(line).code.name == "COLLIDE", seq
        assert "8yn0iYCKYHlIj4-BwPqk" in program.err() and "GReLUrM4wMqfg9yzV3KQ" in program.err()
    write(program, wkey=b"8yn0iYCKYHlIj4-BwPqk\n")
    assert program.ask("pull 6 1 table=f want=1").ok
    assert np.frombuffer((program.directory / "param").read_bytes(), "<f8", 2).tolist() == [-LR, -LR]


def test_accepted_pushes_are_carried_out_before_the_next_step(program: Program) -> None:  # SPEC 4.15
    for seq in range(1, 6):
        write(program, grad=np.full(3, seq, "<f4").tobytes(), gidx=np.array([5], "<u4").tobytes())
        assert program.ask(f"push {seq} 0 async=1 table=e k=1").ok
        write(program, grad=b"", gidx=b"")  # the program's own again
    write(program, want=np.array([5], "<u4").tobytes())
    assert program.ask("step 6 0 table=e want=1").ok, program.err()
    assert np.frombuffer((program.directory / "param").read_bytes(), "<f4", 3).tolist() == [-LR * 15] * 3
    for slot in kept.SLOTS:
        assert (program.directory / slot).read_bytes()[:16] == kept.FREE


def test_an_accepted_push_survives_the_agent(program: Program, cluster: Cluster) -> None:  # noqa: F811  # SPEC 7.18 4.15
    write(program, want=np.array([5], "<u4").tobytes())
    for seq in range(1, 9):
        write(program, grad=np.full(3, seq, "<f4").tobytes(), gidx=np.array([5], "<u4").tobytes())
        assert program.ask(f"push {seq} 0 async=1 table=e k=1").ok
        if seq % 3 == 0:
            agent = (cluster.root / "agent.lock").read_text().split()[0]
            os.kill(int(agent), signal.SIGKILL)
    assert program.ask("step 9 0 table=e want=1").ok, program.err()
    assert np.frombuffer((program.directory / "param").read_bytes(), "<f4", 3).tolist() == [-LR * 36] * 3


def test_a_limit_that_is_long_enough_changes_nothing(program: Program) -> None:  # SPEC 4.17
    write(program, grad=np.ones(4, "<f4").tobytes())
    for seq, line in enumerate(["push 1 0 n=4 t=60000", "clock 2 0 t=60000", "pull 3 1 n=4 t=60000"], 1):
        assert program.ask(line).ok, (seq, program.err())
    assert program.param()[:4] == [-LR] * 4
    page_ = page.read_counters((program.directory / "ctl").read_bytes())
    assert page_["requests"] == 3


@pytest.mark.parametrize("bell", ["fifo", "sem"])
def test_pieces_and_the_stop_clock(cluster: Cluster, tmp_path: Path, bell: str) -> None:  # noqa: F811  # SPEC 4.14 4.18 6.7
    (tmp_path / "pieces").write_text("part-0\npart 1\n")
    job = spec(W, bell=bell, pieces=2, passes=2, stop_clock=2, settings={"pieces_file": str(tmp_path / "pieces")})
    with contextlib.ExitStack() as stack:
        channel = stack.enter_context(channel_of(cluster, job))
        program = stack.enter_context(contextlib.closing(Sleeper(channel.directory) if bell == "sem" else Program(channel.directory, {})))
        told = []
        for seq in range(1, 6):
            reply = program.ask(f"next {seq} 0")
            data = (program.directory / "data").read_text()
            assert reply.ok and reply.n == len(data), program.err()
            told.append(data)
        assert told == ["0 0 part-0\n", "0 1 part 1\n", "1 0 part-0\n", "1 1 part 1\n", ""]
        write(program, grad=np.ones(4, "<f4").tobytes())
        stops = [program.ask(f"step {6 + clock} {clock}").stop for clock in range(2)]
        assert stops == [False, True]
        for seq, (line, code) in enumerate([("step", "STOP"), ("push", "STOP"), ("clock", "STOP"), ("pull", "OK"), ("next", "OK"), ("ping", "OK"), ("bye", "OK")], 8):
            assert program.ask(f"{line} {seq} 2").code.name == code, (line, program.err())
