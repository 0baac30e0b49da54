"""Making a channel: whole or not at all, every byte reserved, and a sentence when the file system is full."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plugml.core.errors import Code, RootError
from plugml.core.job import JobSpec
from plugml.core.table import TableSpec
from plugml.shm_protocol import create, page
from plugml.shm_protocol.channel import adopt
from plugml.shm_protocol.create import Channel, bytes_of, create_channel, files_of
from plugml.shm_protocol.info import Info, parse_info
from plugml.shm_protocol.request import parse_reply
from plugml.shm_protocol.root import boot_id, is_kept, prepare_root
from tests.leaks import own_root

pytestmark = pytest.mark.usefixtures("no_leaks")
SPEC = JobSpec("job", 2, (TableSpec("w", (1000,)), TableSpec("b", (10,), dtype="f64")))


@pytest.fixture
def root() -> Iterator[Path]:
    path = own_root()
    prepare_root(path)
    yield path
    assert os.listdir(path) == []
    path.rmdir()


@pytest.fixture
def channel(root: Path) -> Iterator[Channel]:
    with create_channel(root, Info.of(SPEC, 1, 3, boot_id(), 7)) as made:
        yield made


def allocated(path: Path) -> int:
    return path.stat().st_blocks * 512


def test_everything_is_there_at_its_size_and_mode(channel: Channel) -> None:  # SPEC 1.1 1.2 1.3 1.5 1.6
    directory = channel.directory
    assert directory.name == "job.1.3" and stat.S_IMODE(directory.stat().st_mode) == 0o700
    for name, mode, size in files_of(channel.info):
        path = directory / name
        assert stat.S_IMODE(path.stat().st_mode) == mode, name
        if name not in ("err", "info"):
            assert path.stat().st_size == size, name
        assert allocated(path) >= size, f"{name} is not reserved"
    for name in ("req", "rep"):
        assert stat.S_ISFIFO((directory / name).stat().st_mode)
        assert stat.S_IMODE((directory / name).stat().st_mode) == 0o600
    assert set(os.listdir(directory)) == {name for name, _mode, _size in files_of(channel.info)} | {"req", "rep"}
    assert parse_info((directory / "info").read_text()) == channel.info
    assert (directory / "err").read_bytes() == b"\n"
    assert not any((directory / "cmd").read_bytes()) and not any((directory / "grad").read_bytes())
    assert not any((directory / "param").read_bytes())
    constant = page.read_constant((directory / "ctl").read_bytes())
    assert constant == channel.info.constant(constant.created_ns)
    assert page.read_moving((directory / "ctl").read_bytes()) == page.Moving(clock=7)


def test_nobody_sees_half_a_channel(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # SPEC 1.4 9.1
    real, seen = create._fill, []

    def look(directory_fd: int, info: Info) -> None:
        seen.append(os.listdir(root))
        real(directory_fd, info)
        seen.append(os.listdir(root))

    monkeypatch.setattr(create, "_fill", look)
    with create_channel(root, Info.of(SPEC, 0, 1, boot_id(), 0)):
        assert all(name.startswith(".tmp-job.0.1-") for names in seen for name in names) and len(seen) == 2
        assert os.listdir(root) == ["job.0.1"]


def test_the_umask_does_not_matter(root: Path) -> None:  # SPEC 1.2
    before = os.umask(0o777)
    try:
        channel = create_channel(root, Info.of(SPEC, 0, 1, boot_id(), 0))
    finally:
        os.umask(before)
    with channel:
        assert stat.S_IMODE((channel.directory / "grad").stat().st_mode) == 0o600
        assert stat.S_IMODE((channel.directory / "req").stat().st_mode) == 0o600


def test_descriptors_are_not_inherited(channel: Channel) -> None:  # SPEC 9.1
    listing = subprocess.run(["ls", "-l", "/proc/self/fd"], capture_output=True, text=True, close_fds=False, check=True).stdout
    assert str(channel.directory) not in listing


def test_the_keeper_is_locked_until_the_end(root: Path) -> None:  # SPEC 9.1
    root_fd = os.open(root, os.O_RDONLY)
    with create_channel(root, Info.of(SPEC, 0, 1, boot_id(), 0)) as channel:
        assert is_kept(root_fd, channel.name)
        channel.close(remove=False)
        assert not is_kept(root_fd, channel.name)
        create.remove_channel(root_fd, channel.name)
        channel.close()
    os.close(root_fd)


def test_a_generation_is_made_once(channel: Channel) -> None:
    with pytest.raises(RootError, match="job.1.3 exists already; its generation must be a new one"):
        create_channel(channel.root, channel.info)
    assert os.listdir(channel.root) == ["job.1.3"]


def test_a_full_file_system_is_told_in_bytes_and_nothing_stays(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # SPEC 1.5 10.2
    calls: list[int] = []
    real = os.posix_fallocate

    def full(fd: int, offset: int, size: int) -> None:
        calls.append(size)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(fd, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", full)
    info = Info.of(SPEC, 0, 1, boot_id(), 0)
    with pytest.raises(RootError, match=rf"is full: {bytes_of(info)} bytes needed, \d+ available"):
        create_channel(root, info)
    assert os.listdir(root) == []


def test_a_small_tmpfs_is_really_full(tmp_path: Path, does_not_apply: Callable[[str], None]) -> None:  # SPEC 1.5
    small = tmp_path / "small"
    small.mkdir(mode=0o700)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "tmpfs", str(small)], capture_output=True, text=True)
    if mounted.returncode:
        does_not_apply(f"no file system can be mounted: {mounted.stderr.strip()}")
    try:
        prepare_root(small)
        big = JobSpec("job", 1, (TableSpec("w", (60_000,)),))
        for attempt in (Info.of(big, 0, 1, boot_id(), 0), Info.of(big, 0, 2, boot_id(), 0)):
            with pytest.raises(RootError, match=r"is full: \d+ bytes needed, \d+ available"):
                create_channel(small, attempt)
        create.need_space, saved = (lambda _root, _nbytes: None), create.need_space
        try:
            with pytest.raises(RootError, match=r"is full: \d+ bytes needed, \d+ available"):
                create_channel(small, Info.of(big, 0, 3, boot_id(), 0))
        finally:
            create.need_space = saved
        assert os.listdir(small) == []
        with create_channel(small, Info.of(JobSpec("job", 1, (TableSpec("w", (4,)),)), 0, 1, boot_id(), 0)) as channel:
            assert channel.directory.is_dir()
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_half_made_directory_that_was_swept_is_made_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # SPEC 1.4
    real, swept = create._fill, []

    def sweep_once(directory_fd: int, info: Info) -> None:
        if not swept:
            swept.append(True)
            for name in os.listdir(root):
                for entry in os.listdir(root / name):
                    (root / name / entry).unlink()
                (root / name).rmdir()
        real(directory_fd, info)

    monkeypatch.setattr(create, "_fill", sweep_once)
    with create_channel(root, Info.of(SPEC, 0, 1, boot_id(), 0)) as channel:
        assert swept and channel.directory.is_dir()


def test_a_root_that_cannot_be_written_is_refused(root: Path) -> None:
    root.rmdir()
    with pytest.raises(FileNotFoundError):
        create_channel(root, Info.of(SPEC, 0, 1, boot_id(), 0))
    root.mkdir(mode=0o700)


def ask(channel: Channel, line: bytes) -> None:
    (channel.directory / "cmd").write_bytes(line)
    with open(channel.directory / "req", "wb", buffering=0) as bell:
        bell.write(b"\n")


def test_a_retired_channel_answers_gone_and_no_late_agent_finds_it(channel: Channel) -> None:  # SPEC 9.6 8.2
    directory = channel.directory
    ask(channel, b"step 1 7\n")
    rep = os.open(directory / "rep", os.O_RDONLY | os.O_NONBLOCK)
    channel.retire()
    assert not directory.exists() and channel.directory.name.startswith(".dead-job.1.3-")
    reply = parse_reply(os.read(rep, 64))
    assert (reply.ok, reply.seq, reply.code) == (False, 1, Code.GONE)
    root_fd = os.open(channel.root, os.O_RDONLY)
    try:
        with pytest.raises(Exception, match="kept by nobody"):
            adopt(root_fd, "job.1.3", 1)
    finally:
        os.close(root_fd)
    # The program did not look and asks on: it is answered again.
    (channel.directory / "cmd").write_bytes(b"step 2 8\n")
    os.write(channel.req_fd, b"\n")
    assert channel.answer_gone()
    assert parse_reply(os.read(rep, 64)).seq == 2
    os.close(rep)


@pytest.mark.parametrize("line", [b"", b"step 1 7"])
def test_gone_answers_only_what_was_asked(channel: Channel, line: bytes) -> None:
    (channel.directory / "cmd").write_bytes(line)
    channel.retire()
    assert not channel.answer_gone()


def test_gone_answers_a_hello(channel: Channel) -> None:
    rep = os.open(channel.directory / "rep", os.O_RDONLY | os.O_NONBLOCK)
    ask(channel, b"hello 0 0\n")
    channel.retire()
    assert parse_reply(os.read(rep, 64)).seq == 0
    os.close(rep)


def test_a_request_that_was_answered_is_not_gone(root: Path) -> None:
    root_fd = os.open(root, os.O_RDONLY)
    with create_channel(root, Info.of(SPEC, 0, 1, boot_id(), 0)) as channel:
        agent = adopt(root_fd, channel.name, 1)
        ask(channel, b"ping 1 0\n")
        agent.set_current(1)
        agent.write_result(1, 0, 0, 0)
        agent.set_done(1)
        agent.close()
        channel.retire()
        assert not channel.answer_gone()
    os.close(root_fd)


def test_one_channel_may_be_closed_twice(root: Path) -> None:  # SPEC 1.11
    channel = create_channel(root, Info.of(SPEC, 0, 1, boot_id(), 0))
    channel.close()
    channel.close()
