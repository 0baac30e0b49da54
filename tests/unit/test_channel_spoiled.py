"""Whatever a program does to the files of its channel, the agent gets a definite refusal or nothing, and never falls."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugml.core.errors import Code, RequestError
from plugml.core.job import JobSpec
from plugml.core.table import TableSpec
from plugml.shm_protocol import numbers, page
from plugml.shm_protocol.channel import AgentChannel, adopt
from plugml.shm_protocol.create import create_channel
from plugml.shm_protocol.info import Info
from plugml.shm_protocol.request import Reply, format_reply, parse_request
from plugml.shm_protocol.root import boot_id, prepare_root
from plugml.shm_protocol.twin import MemoryFiles, adopt_twin
from tests.leaks import own_root

SPEC = JobSpec(
    "job", 1,
    (TableSpec("w", (3,), storage="f16"), TableSpec("e", (9, 2), "sparse", batch=2), TableSpec("f", (0, 1), "sparse", index="str", batch=3)), bell="sem",
)  # fmt: skip
LINES = ("step 1 0 n=3 table=e k=2 want=2 table=f k=1 want=1", "step 1 0 fmt=text table=e k=1 want=1 table=f k=1", "push 1 0 n=3", "pull 1 0 table=f want=2")


def everything(agent: AgentChannel) -> list[Code]:
    """All that an agent may do with a channel; gives the codes of what was refused.  Any other exception fails the test."""
    refused: list[Code] = []

    def attempt(action: Callable[[], object]) -> bool:
        try:
            action()
        except RequestError as error:
            assert error.text
            refused.append(error.code)
            return False
        return True

    attempt(agent.read_cmd)
    for line in LINES:
        request = parse_request(line.encode())
        attempt(lambda: agent.set_current(1))
        attempt(lambda request=request: agent.read_data(request, numbers.aligned(agent.reader.stored_bytes)))
        attempt(lambda request=request: agent.keep(0, request))
        attempt(agent.kept_pushes)
        attempt(lambda request=request: agent.read_kept(0, request, numbers.aligned(agent.reader.stored_bytes)))
        attempt(lambda: agent.drop(0))
        attempt(lambda: agent.sums.read(agent.done_seq))
    attempt(lambda: agent.write_param(0, np.zeros(3, "<f4")))
    attempt(lambda: agent.write_text(np.zeros(3, "<f4")))
    attempt(lambda: agent.write_data(b"0 0 x\n"))
    attempt(lambda: agent.write_error("SIZE seq=1: x"))
    if attempt(lambda: agent.write_result(1, 1, 1, 0, 1.0, 1, 0, [("e", 1.0)])):
        attempt(lambda: agent.set_done(1))
    attempt(lambda: agent.reply(format_reply(Reply(True, 1, 1))))
    attempt(lambda: agent.beat(1))
    return refused


NAMES = ("cmd", "grad", "param", "grad.txt", "param.txt", "gidx", "want", "gidx.txt", "want.txt", "gkey", "wkey", "data", "pend.0", "pend.1", "reply", "ctl", "err", "sums", "info", "req", "rep")  # fmt: skip


@pytest.mark.usefixtures("no_leaks")
@pytest.mark.parametrize("when", ["before", "after"])
def test_files_that_were_cut_removed_or_exchanged(when: str) -> None:  # SPEC 1.9 7.9
    root = own_root()
    prepare_root(root)
    root_fd = os.open(root, os.O_RDONLY)

    def cut(path: Path) -> None:
        os.truncate(path, 0) if path.is_file() else path.unlink()

    def shorten(path: Path) -> None:
        os.truncate(path, 5) if path.is_file() else path.unlink()

    def lengthen(path: Path) -> None:
        os.truncate(path, 1 << 40) if path.is_file() and path.name not in ("err",) else None

    def linked(path: Path) -> None:
        path.unlink()
        path.symlink_to("/dev/zero")

    def directory(path: Path) -> None:
        path.unlink()
        path.mkdir()

    def fifo(path: Path) -> None:
        path.unlink()
        os.mkfifo(path)

    try:
        for gen, (name, spoil) in enumerate([(name, spoil) for name in NAMES for spoil in (cut, shorten, lengthen, Path.unlink, linked, directory, fifo)], 1):
            with create_channel(root, Info.of(SPEC, 0, gen, boot_id(), 0)) as kept:
                agent = None
                if when == "after":
                    agent = adopt(root_fd, kept.name, 1)
                    everything(agent)
                (kept.directory / "info").chmod(0o600)
                spoil(kept.directory / name)
                try:
                    agent = agent or adopt(root_fd, kept.name, 1)
                except RequestError as error:
                    assert error.text
                    continue
                everything(agent)
                agent.abandon()
    finally:
        os.close(root_fd)
        shutil.rmtree(root)


INFO = Info.of(SPEC, 0, 1, "0" * 32, 0)
SMALL = st.binary(max_size=40) | st.sampled_from([b"", b"a\nb\n", b"1\n2\n", np.zeros(4, "<u4").tobytes(), np.array([1, 9], "<u4").tobytes(), b"\xff" * 64])


@given(st.fixed_dictionaries({name: SMALL for name in ("grad", "grad.txt", "gidx", "gidx.txt", "gkey", "want", "want.txt", "wkey", "sums")}), st.binary(max_size=60))
def test_any_bytes_in_the_programs_files_are_data_or_a_request_error(contents: dict[str, bytes], line: bytes) -> None:
    files = MemoryFiles(INFO)
    for name, data in contents.items():
        files.contents[name][:] = data
    files.contents["cmd"][:] = line
    files.contents["pend.1"][: len(line)] = line
    agent = adopt_twin(files, INFO, 1)
    refused = everything(agent)
    assert set(refused) <= {Code.SIZE, Code.FORMAT, Code.RANGE, Code.NONFINITE, Code.COLLIDE, Code.INTERNAL, Code.PERM}


@given(st.lists(st.tuples(st.sampled_from(["k", "want"]), st.integers(0, 4)), max_size=4), st.booleans(), st.integers(0, 200))
def test_a_request_of_the_right_form_reads_exactly_what_it_says(words: list[tuple[str, int]], dense: bool, nbytes: int) -> None:
    """Whatever the file's size: exactly the bytes that take part, or SIZE."""
    counts = dict(words)
    k, want = min(2, counts.get("k", 0)), min(2, counts.get("want", 0))
    files = MemoryFiles(INFO)
    files.contents["grad"][:] = bytes(nbytes)
    agent = adopt_twin(files, INFO, 1)
    request = parse_request(f"step 1 0{' n=3' if dense else ''} table=e k={k} want={want}".encode())
    needed = (64 + 8 * k if k else 12) if dense else 8 * k
    fits = nbytes >= needed if dense else nbytes in (needed, INFO.cap_grad) or not needed
    try:
        data = agent.read_data(request, numbers.aligned(agent.reader.stored_bytes))
    except RequestError as error:
        assert error.code is Code.SIZE and not fits
    else:
        assert fits and data.nbytes == needed and (data.rows[0].size if k else 0) == k and (data.wants[0].size if want else 0) == want
    assert page.read_moving(bytes(files.contents["ctl"])).done_seq == 0
