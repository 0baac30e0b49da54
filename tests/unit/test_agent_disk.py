"""The agent's hands: buffers that nobody reads any more, pushes kept in slots, pieces of input, semaphores."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import posix_ipc
import pytest

from plugml.agent import effects as e
from plugml.agent.disk import BUFFERS_MAX, Disk
from plugml.agent.piecefile import LINE_BYTES_MAX, Pieces, read_piece
from plugml.core.errors import Code, RequestError
from plugml.core.job import JobSpec
from plugml.core.table import TableSpec
from plugml.shm_protocol import page
from plugml.shm_protocol.create import Channel, create_channel
from plugml.shm_protocol.info import Info
from plugml.shm_protocol.request import Request, Section, format_request
from plugml.shm_protocol.root import boot_id
from tests.leaks import own_root

pytestmark = pytest.mark.usefixtures("no_leaks")
NAME = "j.0.1"
SPEC = JobSpec("j", 1, (TableSpec("w", (10,)), TableSpec("e", (9, 2), "sparse", batch=4)))
PUSH = Request("push", 1, 0, n=10, sections=(Section("e", 2, 0),))


class Loop:
    """As much of a loop as Disk needs."""

    def add_reader(self, *_arguments: object) -> None:
        pass

    def remove_reader(self, *_arguments: object) -> None:
        pass


class Hands:
    """A disk with one channel; `lent` holds the buffers that a send still reads."""

    def __init__(self, root: Path, root_fd: int) -> None:
        self.root = root
        self.lent: list[int] = []
        self.events: list[Any] = []
        self.disk = Disk(Loop(), root_fd, 1, self.events.append, lambda array: array.ctypes.data in self.lent)  # type: ignore[arg-type]

    def do(self, effect: Any) -> Any:
        """Perform it; gives the event that it was answered by."""
        before = len(self.events)
        self.disk.performers()[type(effect)](effect)
        return self.events.pop() if len(self.events) > before else None


@pytest.fixture
def root() -> Iterator[Path]:
    path = own_root()
    path.mkdir(mode=0o700)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def hands(root: Path) -> Iterator[Hands]:
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    made = Hands(root, fd)
    yield made
    made.disk.abandon()
    os.close(fd)


def make(root: Path, spec: JobSpec = SPEC) -> Channel:
    return create_channel(root, Info.of(spec, 0, 1, boot_id(), 0, 7))


def fill(channel: Channel, number: float) -> None:
    grad = np.zeros(20, "<f4")
    grad[:10] = number
    grad[16:] = number
    grad.tofile(channel.directory / "grad")
    np.array([3, 8], "<u4").tofile(channel.directory / "gidx")


# -- pushes


def test_a_buffer_is_used_again_when_nobody_has_it(root: Path, hands: Hands) -> None:
    with make(root) as channel:
        hands.do(e.OpenChannel(NAME))
        seen = set()
        for number in range(6):
            fill(channel, number)
            read = hands.do(e.ReadData(NAME, PUSH))
            assert np.frombuffer(read.buffer, "<f4").tolist() == [float(number)] * 10
            seen.add(read.buffer.ctypes.data)
            del read
        assert len(seen) == 1


@pytest.mark.parametrize("holder", ["itself", "memoryview", "slice", "frombuffer", "lent"])
def test_a_buffer_that_somebody_has_is_never_written(root: Path, hands: Hands, holder: str) -> None:
    with make(root) as channel:
        hands.do(e.OpenChannel(NAME))
        held: list[Any] = []
        addresses = set()
        for number in range(BUFFERS_MAX + 3):
            fill(channel, number)
            buffer = hands.do(e.ReadData(NAME, PUSH)).buffer
            addresses.add(buffer.ctypes.data)
            if holder == "lent":
                hands.lent.append(buffer.ctypes.data)
                held.append(buffer.ctypes.data)
            else:
                held.append({"itself": buffer, "memoryview": memoryview(buffer)[4:40], "slice": buffer[4:40], "frombuffer": np.frombuffer(buffer[4:40].data, "<f4")}[holder])
            del buffer
        assert len(addresses) == BUFFERS_MAX + 3 or holder == "lent"
        if holder != "lent":
            assert [np.frombuffer(view, "<f4")[1] for view in held] == [float(number) for number in range(BUFFERS_MAX + 3)]
        else:
            assert len(set(held[:BUFFERS_MAX])) == BUFFERS_MAX


def test_rows_and_wants_come_with_the_push(root: Path, hands: Hands) -> None:
    with make(root) as channel:
        hands.do(e.OpenChannel(NAME))
        fill(channel, 2)
        np.array([5], "<u4").tofile(channel.directory / "want")
        read = hands.do(e.ReadData(NAME, Request("step", 1, 0, sections=(Section("e", 0, 1),))))
        assert (read.buffer, read.rows, [(rows.table, rows.ids.tolist()) for rows in read.wants]) == (None, (), [(1, [5])])
        read = hands.do(e.ReadData(NAME, PUSH))
        assert [(rows.ids.tolist(), rows.values.tolist()) for rows in read.rows] == [([3, 8], [[2, 2], [2, 2]])]
        assert read.crc and read.wants == () and not read.code
        (channel.directory / "gidx").write_bytes(b"1")
        read = hands.do(e.ReadData(NAME, PUSH))
        assert (read.buffer, read.rows, read.code) == (None, (), Code.SIZE) and "gidx has 1 bytes" in read.text


def test_kept_pushes_are_told_to_the_next_agent_and_read_from_their_slot(root: Path, hands: Hands) -> None:  # SPEC 4.15 7.18
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    with make(root) as channel:
        assert hands.do(e.OpenChannel(NAME)).kept == ()
        for slot in (1, 0):
            fill(channel, slot)
            assert hands.do(e.KeepPush(NAME, slot, PUSH._replace(seq=9 - slot))) == e.PushKept(NAME, slot)
        fill(channel, 77)
        hands.disk.abandon()
        later = Hands(root, fd)
        opened = later.do(e.OpenChannel(NAME))
        assert opened.kept == ((1, format_request(PUSH._replace(seq=8))[:-1]), (0, format_request(PUSH._replace(seq=9))[:-1]))
        for slot in (0, 1):
            read = later.do(e.ReadKept(NAME, slot, PUSH))
            assert np.frombuffer(read.buffer, "<f4").tolist() == [float(slot)] * 10 and read.rows[0].values.tolist() == [[slot] * 2] * 2
        later.do(e.DropPush(NAME, 1))
        read = later.do(e.ReadKept(NAME, 1, PUSH))
        assert (read.code, read.text) == (Code.INTERNAL, "pend.1 holds no push")
        (channel.directory / "grad").write_bytes(b"")
        assert later.do(e.KeepPush(NAME, 1, PUSH)).code is Code.SIZE
        later.disk.abandon()
    os.close(fd)


def test_a_slot_that_the_program_has_taken_away_is_told(root: Path, hands: Hands) -> None:
    with make(root) as channel:
        hands.do(e.OpenChannel(NAME))
        fill(channel, 1)
        (channel.directory / "pend.0").unlink()
        assert hands.do(e.KeepPush(NAME, 0, PUSH)).code is Code.PERM
        failed = hands.do(e.DropPush(NAME, 0))
        assert isinstance(failed, e.ChannelFailed) and failed.code is Code.PERM
        hands.do(e.CloseChannel(NAME, page.CLOSED, False))
        failed = hands.do(e.OpenChannel(NAME))
        assert isinstance(failed, e.ChannelFailed) and "pend.0 cannot be reached" in failed.text


def test_flags_of_a_result_are_told_at_adoption(root: Path, hands: Hands) -> None:  # SPEC 6.7
    with make(root):
        assert hands.do(e.OpenChannel(NAME)).stop is False
        hands.do(e.SetCurrent(NAME, 1))
        hands.do(e.WriteResult(NAME, 1, 1, 5, 0, 0.0, 1, page.FLAG_STOP))
        hands.do(e.SetDone(NAME, 1))
        hands.do(e.CloseChannel(NAME, page.CLOSED, False))
        opened = hands.do(e.OpenChannel(NAME))
        assert (opened.stop, opened.done_seq, opened.bell) == (True, 1, "fifo")


# -- pieces


def test_a_piece_is_a_line_with_its_turn_and_number(root: Path, hands: Hands, tmp_path: Path) -> None:  # SPEC 4.14
    (tmp_path / "pieces").write_bytes(b"part-0.csv\n\nx y z\r\nl\xc3\xa4st")
    with make(root) as channel:
        hands.do(e.OpenChannel(NAME))
        for piece, line in enumerate([b"2 0 part-0.csv\n", b"2 1 \n", b"2 2 x y z\n", b"2 3 l\xc3\xa4st\n"]):
            assert hands.do(e.WriteData(NAME, str(tmp_path / "pieces"), piece, 2)) == e.DataWritten(NAME, len(line))
            assert (channel.directory / "data").read_bytes() == line
        assert hands.do(e.WriteData(NAME, "", 0, 0)) == e.DataWritten(NAME, 0)
        assert (channel.directory / "data").read_bytes() == b""
        failed = hands.do(e.WriteData(NAME, str(tmp_path / "pieces"), 4, 0))
        assert (failed.code, "has 4 lines now, piece 4 is none of them" in failed.text) == (Code.RANGE, True)
        assert hands.do(e.WriteData(NAME, "", 0, 0)) is None, "held back until the machine has heard of the failure"
        hands.do(e.WriteError(NAME, "RANGE"))
        (channel.directory / "data").unlink()
        assert hands.do(e.WriteData(NAME, "", 0, 0)).code is Code.PERM


def test_a_list_that_changes_is_read_anew(tmp_path: Path) -> None:
    pieces, path = Pieces(), tmp_path / "pieces"
    for at in range(40):  # more lists than are remembered
        (tmp_path / f"list{at}").write_bytes(b"a\n" * at + b"the one\n")
        assert pieces.line(str(tmp_path / f"list{at}"), at) == b"the one"
    path.write_bytes(b"one\ntwo\n")
    assert pieces.line(str(path), 1) == b"two"
    path.write_bytes(b"uno\ndos\ntres\n")
    assert pieces.line(str(path), 2) == b"tres"
    path.unlink()
    for wrong, code in ((path, Code.PERM), (tmp_path, Code.PERM)):
        with pytest.raises(RequestError) as refused:
            pieces.line(str(wrong), 0)
        assert refused.value.code is code
    path.write_bytes(b"x" * (LINE_BYTES_MAX + 1))
    with pytest.raises(RequestError, match="is the most"):
        pieces.line(str(path), 0)
    path.write_bytes(b"")
    with pytest.raises(RequestError, match="has 0 lines now"):
        read_piece(pieces, str(path), 0, 0)


def test_a_long_list_is_found_by_number(tmp_path: Path) -> None:
    lines = [f"file-{number}-{'y' * (number % 90)}" for number in range(60_000)]
    (tmp_path / "pieces").write_text("\n".join(lines) + "\n")
    pieces = Pieces()
    for number in (0, 1, 29_999, 59_999):
        assert pieces.line(str(tmp_path / "pieces"), number).decode() == lines[number]


def test_a_store_that_fails_takes_those_after_it_with_it(root: Path, hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    """done_seq never moves without the result that it stands for."""
    with make(root) as channel:
        hands.do(e.OpenChannel(NAME))
        hands.do(e.SetCurrent(NAME, 1))
        os.truncate(channel.directory / "sums", 0)
        real = os.pwrite

        def full(fd: int, data: bytes, offset: int) -> int:
            if os.readlink(f"/proc/self/fd/{fd}").endswith("/sums"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(fd, data, offset)

        monkeypatch.setattr(os, "pwrite", full)
        failed = hands.do(e.WriteResult(NAME, 1, 1, 5, 0, 0.0, 1))
        assert isinstance(failed, e.ChannelFailed) and failed.code is Code.NOSPC
        for effect in (e.SetDone(NAME, 1), e.Reply(NAME, b"ok 1 1".ljust(63) + b"\n"), e.DropPush(NAME, 0)):
            assert hands.do(effect) is None
        assert hands.disk.channels[NAME].done_seq == 0
        hands.do(e.WriteError(NAME, "sums cannot be written"))
        hands.do(e.CloseChannel(NAME, page.BROKEN, False))
        assert (channel.directory / "err").read_text() == "sums cannot be written\n"
        assert page.read_moving((channel.directory / "ctl").read_bytes()).state == page.BROKEN


# -- bell=sem


def test_a_reply_whose_file_was_replaced_breaks_the_channel_and_not_the_agent(root: Path, hands: Hands) -> None:
    record = b"ok 1 0".ljust(63) + b"\n"
    with make(root, JobSpec("j", 1, (TableSpec("w", (2,)),), bell="sem")) as channel:
        assert hands.do(e.OpenChannel(NAME)).bell == "sem"
        assert hands.do(e.Reply(NAME, record)) is None
        assert (channel.directory / "reply").read_bytes() == record
        (channel.directory / "reply").unlink()
        (channel.directory / "reply").symlink_to("/dev/null")
        failed = hands.do(e.Reply(NAME, record))
        assert isinstance(failed, e.ChannelFailed) and failed.text == "reply is a symbolic link"


def test_a_channel_that_is_swept_leaves_its_semaphore_to_its_maker(root: Path, hands: Hands) -> None:  # SPEC 5.14 5.15
    channel = make(root, JobSpec("j", 1, (TableSpec("w", (2,)),), bell="sem"))
    waiter = posix_ipc.Semaphore(channel.info.sem)
    hands.do(e.OpenChannel(NAME))
    hands.do(e.CloseChannel(NAME, page.CLOSED, True))
    waiter.acquire(60.0)
    waiter.close()
    there = Path(f"/dev/shm/sem.{channel.info.sem[1:]}")
    assert not channel.directory.exists() and there.exists(), "its maker keeps it as long as it lives"
    channel.close()
    assert not there.exists()


# -- exports


def test_rows_whose_number_is_not_known_yet_are_exported(hands: Hands, tmp_path: Path) -> None:
    hands.do(e.MakeExport(5, str(tmp_path), "e.bin", 0))
    hands.do(e.WriteExport(5, "e.bin", 0, b"1234"))
    hands.do(e.WriteExport(5, "e.bin", 4, b"5678"))
    assert hands.events == [] and [path.read_bytes() for path in tmp_path.iterdir()] == [b"12345678"]
    hands.do(e.EndExport(5, False))
    assert list(tmp_path.iterdir()) == []
