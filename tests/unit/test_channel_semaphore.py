"""bell=sem: the program waits for a semaphore, reads `reply`, and is never left asleep; nothing stays in /dev/shm."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import posix_ipc
import pytest

from plugml.core.errors import Code, RequestError, RootError
from plugml.core.job import JobSpec
from plugml.core.table import TableSpec
from plugml.shm_protocol import create, page, semaphore
from plugml.shm_protocol import info as info_module
from plugml.shm_protocol import root as root_module
from plugml.shm_protocol.channel import AgentChannel, adopt
from plugml.shm_protocol.create import Channel, create_channel
from plugml.shm_protocol.info import SEMAPHORE, Info, parse_info
from plugml.shm_protocol.request import Reply, format_reply, parse_reply
from plugml.shm_protocol.root import boot_id, prepare_root, remove_channel, sweep
from plugml.shm_protocol.twin import MemoryFiles, adopt_twin
from tests import leaks
from tests.leaks import own_root

pytestmark = pytest.mark.usefixtures("no_leaks")
SPEC = JobSpec("job", 1, (TableSpec("w", (3,)),), bell="sem")
HANG_S = 60.0


def named() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith("sem.")}


@pytest.fixture
def unswept(test_mark: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Semaphores that agents of others on this host do not sweep while nobody holds them; gives the beginning of their names."""
    monkeypatch.setattr(semaphore, "SEMAPHORE", re.compile(leaks.UNSWEPT + r"[0-9a-f]{32}\Z"))
    monkeypatch.setattr(info_module, "SEMAPHORE", semaphore.SEMAPHORE)
    monkeypatch.setattr(root_module, "_SEM_LINE", re.compile(rb"^sem=(%b[0-9a-f]{32})$" % leaks.UNSWEPT.encode(), re.MULTILINE))
    for module in (create, semaphore):
        monkeypatch.setattr(module, "new_name", lambda: leaks.unswept(leaks.own_semaphore(test_mark)))
    return leaks.UNSWEPT + test_mark[:16]


@pytest.fixture
def root() -> Iterator[Path]:
    path = own_root()
    prepare_root(path)
    yield path
    path.rmdir()


def made(root: Path, gen: int = 1) -> Channel:
    return create_channel(root, Info.of(SPEC, 0, gen, boot_id(), 0))


def adopted(kept: Channel) -> AgentChannel:
    root_fd = os.open(kept.root, os.O_RDONLY)
    try:
        return adopt(root_fd, kept.name, 1)
    finally:
        os.close(root_fd)


def waited(waiter: posix_ipc.Semaphore) -> None:
    waiter.acquire(HANG_S)


def test_the_name_stands_in_info_and_the_semaphore_is_ours_alone(root: Path) -> None:  # SPEC 2.3 5.14
    with made(root) as kept:
        info = parse_info((kept.directory / "info").read_text())
        assert info == kept.info and SEMAPHORE.match(info.sem)
        assert f"\nbell=sem\nsem={info.sem}\n" in (kept.directory / "info").read_text()
        found = os.stat(f"/dev/shm/sem.{info.sem[1:]}")
        assert (found.st_mode & 0o777, found.st_uid) == (0o600, os.getuid())
        waiter = posix_ipc.Semaphore(info.sem)
        assert waiter.value == 0
        waiter.close()
        assert ((kept.directory / "reply").stat().st_mode & 0o777, (kept.directory / "reply").read_bytes()) == (0o644, bytes(64))


def test_a_reply_is_in_its_file_before_the_program_wakes(root: Path) -> None:  # SPEC 5.11 5.12 1.8
    with made(root) as kept:
        agent = adopted(kept)
        waiter = posix_ipc.Semaphore(kept.info.sem)
        rep = os.open(kept.directory / "rep", os.O_RDONLY | os.O_NONBLOCK)
        reply = os.open(kept.directory / "reply", os.O_RDONLY)
        for seq in range(1, 4):
            assert agent.reply(format_reply(Reply(True, seq, seq)))
            waited(waiter)
            assert parse_reply(os.pread(reply, 64, 0)).seq == seq
        with pytest.raises(BlockingIOError):
            os.read(rep, 64)
        for _ in range(3):  # nobody waits: no harm
            assert agent.reply(agent.repeat())
        assert waiter.value == 3
        os.close(rep)
        os.close(reply)
        waiter.close()
        agent.close()


def test_many_unread_replies_are_no_reason_to_give_up(root: Path) -> None:
    with made(root) as kept:
        agent = adopted(kept)
        for _ in range(1100):
            assert agent.reply(agent.repeat())
        agent.close()


def test_a_blocking_program_in_another_process_gets_its_reply(root: Path) -> None:  # SPEC 5.11
    program = (
        "import os, sys, posix_ipc\n"
        "place, name = sys.argv[1:]\n"
        "semaphore = posix_ipc.Semaphore(name)\n"
        "open(place + '/cmd', 'wb').write(b'ping 1 0\\n')\n"
        "os.write(os.open(place + '/req', os.O_WRONLY), b'\\n')\n"
        "while True:\n"
        "    semaphore.acquire()\n"
        "    fd = os.open(place + '/reply', os.O_RDONLY)\n"
        "    one, two = os.pread(fd, 64, 0), os.pread(fd, 64, 0)\n"
        "    if one == two and one.split()[1:2] == [b'1']:\n"
        "        break\n"
        "print(one.decode().strip())\n"
    )
    with made(root) as kept:
        agent = adopted(kept)
        command = [sys.executable, "-c", program, str(kept.directory), kept.info.sem]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            while agent.read_cmd() is None:
                assert process.poll() is None
            agent.reply(format_reply(Reply(True, 0, 0, done=0)))  # of an earlier hello: passed over
            agent.reply(format_reply(Reply(True, 1, 0)))
            out, _ = process.communicate(timeout=HANG_S)
        assert out == "ok 1 0\n" and process.returncode == 0
        agent.close()


@pytest.mark.parametrize("end", ["closed", "broken", "gone", "swept"])
def test_whoever_ends_the_channel_wakes_the_program(root: Path, end: str) -> None:  # SPEC 5.13 5.14 5.15
    kept = made(root)
    waiter = posix_ipc.Semaphore(kept.info.sem)
    directory = kept.directory
    (directory / "cmd").write_bytes(b"step 1 0\n")
    reply = os.open(directory / "reply", os.O_RDONLY)
    if end == "gone":
        kept.retire()
        waited(waiter)
        assert not directory.exists()
        told = parse_reply(os.pread(reply, 64, 0))
        assert (told.ok, told.seq, told.code) == (False, 1, Code.GONE)
    elif end == "swept":
        kept.close(remove=False)
        assert [name for name, _why in sweep(root, boot_id()).removed] == ["job.0.1"]
        waited(waiter)
        assert not directory.exists() and f"sem.{kept.info.sem[1:]}" not in named()
    else:
        agent = adopted(kept)
        agent.close(page.CLOSED if end == "closed" else page.BROKEN)
        waited(waiter)
        assert page.read_moving((directory / "ctl").read_bytes()).state == (page.CLOSED if end == "closed" else page.BROKEN)
    os.close(reply)
    waiter.close()
    kept.close()


@pytest.mark.parametrize("why", ["no reply file", "a reply file that is none", "nothing asked", "answered before"])
def test_gone_is_posted_whatever_there_is_to_answer(root: Path, why: str) -> None:  # SPEC 5.14
    kept = made(root)
    waiter = posix_ipc.Semaphore(kept.info.sem)
    if why != "nothing asked":
        (kept.directory / "cmd").write_bytes(b"step 1 0\n")
    if why == "answered before":  # by an agent that died between done_seq and the reply
        agent = adopted(kept)
        agent.write_result(1, 1, 1, 0)
        agent.set_done(1)
        agent.abandon()
    elif why != "nothing asked":
        (kept.directory / "reply").unlink()
        if why != "no reply file":
            (kept.directory / "reply").mkdir()
    kept.retire()
    waited(waiter)
    assert kept.answer_gone() is False
    waiter.close()
    kept.close()


def test_the_semaphore_goes_with_the_channel(root: Path) -> None:  # SPEC 1.11 5.15
    with made(root) as kept:
        assert f"sem.{kept.info.sem[1:]}" in named()
    assert f"sem.{kept.info.sem[1:]}" not in named()
    kept = made(root, 2)
    for path in kept.directory.iterdir():  # somebody has cleaned up by hand
        path.unlink()
    kept.directory.rmdir()
    kept.close()
    assert f"sem.{kept.info.sem[1:]}" not in named()


def test_a_half_made_channel_is_swept_with_its_semaphore(root: Path, unswept: str) -> None:  # SPEC 5.15 9.5
    kept = made(root)
    os.rename(kept.directory, root / ".tmp-job.0.1-0000")
    kept.close(remove=False)
    name = kept.info.sem
    assert f"sem.{name[1:]}" in named()
    sweep(root, boot_id())
    assert f"sem.{name[1:]}" not in named() and os.listdir(root) == []


def test_whatever_fails_while_a_channel_is_made_nothing_is_left(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # SPEC 1.5
    """Each store, directory, FIFO, semaphore or rename in turn finds the file system full."""
    spec = JobSpec("job", 1, (TableSpec("e", (9, 2), "sparse"), TableSpec("f", (0, 1), "sparse", index="str")), bell="sem")
    left = [0]

    def failing(real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **words: object) -> object:
            left[0] -= 1
            if left[0] == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*arguments, **words)

        return call

    for at in range(1, 1000):
        left[0] = at
        kept = None
        with monkeypatch.context() as patch:
            for name in ("mkdir", "posix_fallocate", "pwrite", "mkfifo", "rename", "fchmod"):
                patch.setattr(os, name, failing(getattr(os, name)))
            patch.setattr(posix_ipc, "Semaphore", failing(posix_ipc.Semaphore))
            try:
                kept = create_channel(root, Info.of(spec, 0, 1, boot_id(), 0))
            except RootError as error:
                assert "full" in str(error) or "a semaphore cannot be made" in str(error)
        if kept is not None:
            break
        assert os.listdir(root) == []
    assert kept is not None and at > 30, "none of the stores failed"
    kept.close()


# -- names are judged before anything is done with them


@pytest.mark.parametrize(
    "name", ["/plugml-x", "/other", "plugml-" + "0" * 32, "/plugml-" + "0" * 31, "/plugml-" + "0" * 33, "/plugml-../" + "0" * 29, "/plugml-" + "G" * 32, "/plugml-" + "0" * 32 + "\n"]
)
def test_no_other_name_is_opened_or_removed(root: Path, name: str) -> None:
    with pytest.raises(RequestError, match="is not there, or not yours"):
        semaphore.Semaphore.open(name)
    semaphore.remove(name)
    kept = made(root)
    text = (kept.directory / "info").read_text()
    (kept.directory / "info").chmod(0o600)
    (kept.directory / "info").write_text(text.replace(f"sem={kept.info.sem}", f"sem={name}"))
    with pytest.raises(RequestError) as refused:
        adopted(kept)
    assert refused.value.code in (Code.FORMAT, Code.PERM)
    kept.close()


def test_a_semaphore_of_another_user_is_left_alone(unswept: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = semaphore.new_name()
    mine = semaphore.Semaphore.make(name)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(os, "getuid", lambda: 12345)
        with pytest.raises(RequestError, match="not yours"):
            semaphore.Semaphore.open(name)
        mine.close()
        assert not semaphore.remove(name) and name not in semaphore.sweep()
        assert f"sem.{name[1:]}" in named()
    assert semaphore.remove(name) and not semaphore.remove(name)


def test_one_that_is_kept_is_never_removed_whoever_names_it(root: Path) -> None:  # SPEC 5.15
    """Copies of a directory, which nobody keeps, are swept without the semaphore that their info names."""
    with made(root) as kept:
        shutil.copytree(kept.directory, root / ".tmp-copy", ignore=shutil.ignore_patterns("req", "rep"))
        assert [name for name, _why in sweep(root, boot_id()).removed] == [".tmp-copy"]
        assert not semaphore.remove(kept.info.sem) and kept.info.sem not in semaphore.sweep()
        assert f"sem.{kept.info.sem[1:]}" in named()
        adopted(kept).abandon()


def test_what_killed_makers_left_without_a_directory_is_swept(root: Path, unswept: str) -> None:  # SPEC 5.15
    """The root was deleted by hand, so that nothing names the semaphore any more."""
    script = (
        "import os, pathlib, re, secrets, signal, sys\n"
        "from plugml.core.job import JobSpec\nfrom plugml.core.table import TableSpec\n"
        "from plugml.shm_protocol.create import create_channel\nfrom plugml.shm_protocol.info import Info\nfrom plugml.shm_protocol.root import boot_id\n"
        "from plugml.shm_protocol import create, info, semaphore\n"
        "create.new_name = lambda: sys.argv[2] + secrets.token_hex(8)\n"
        "info.SEMAPHORE = semaphore.SEMAPHORE = re.compile(sys.argv[2] + r'[0-9a-f]{16}\\Z')\n"
        "kept = create_channel(pathlib.Path(sys.argv[1]), Info.of(JobSpec('job', 1, (TableSpec('w', (3,)),), bell='sem'), 0, 1, boot_id(), 0))\n"
        "print(kept.info.sem, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(root), unswept], stdout=subprocess.PIPE, text=True, timeout=HANG_S)
    name = ended.stdout.strip()
    shutil.rmtree(root / "job.0.1")
    waiter = posix_ipc.Semaphore(name)
    assert f"sem.{name[1:]}" in named()
    assert name in semaphore.sweep()
    assert f"sem.{name[1:]}" not in named()
    waited(waiter)
    waiter.close()


def test_one_that_is_swept_while_it_is_made_is_made_again(unswept: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its making and its lock an agent may start and find that nobody keeps it."""
    real, swept = fcntl.flock, []

    def late(fd: int, operation: int) -> None:
        if operation == fcntl.LOCK_EX and not swept:
            swept.append(name)
            assert semaphore.remove(name)
        real(fd, operation)

    name = semaphore.new_name()
    monkeypatch.setattr(fcntl, "flock", late)
    kept = semaphore.Semaphore.make(name)
    assert swept and not semaphore.remove(name) and f"sem.{name[1:]}" in named()
    kept.close()
    assert semaphore.remove(name)


def test_a_sweep_that_is_killed_leaves_nothing_for_ever(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # SPEC 5.15
    """The name stands in info: it goes when the semaphore has gone, whatever store was the last one."""

    class Killed(BaseException):
        pass

    for at in range(1, 100):
        kept = made(root)
        kept.close(remove=False)
        left = [at]

        def dying(real: Callable[..., object], left: list[int] = left) -> Callable[..., object]:
            def call(*arguments: object, **words: object) -> object:
                left[0] -= 1
                if left[0] == 0:
                    raise Killed
                return real(*arguments, **words)

            return call

        died = False
        with monkeypatch.context() as patch:
            for module, word in ((os, "unlink"), (os, "rmdir"), (posix_ipc, "unlink_semaphore")):
                patch.setattr(module, word, dying(getattr(module, word)))
            try:
                sweep(root, boot_id())
            except Killed:
                died = True
        sweep(root, boot_id())
        assert os.listdir(root) == [] and f"sem.{kept.info.sem[1:]}" not in named(), f"killed before store {at}"
        if not died:
            break
    assert at > 15


def test_a_channel_whose_semaphore_is_missing_is_not_adopted(root: Path) -> None:
    kept = made(root)
    posix_ipc.unlink_semaphore(kept.info.sem)
    with pytest.raises(RequestError, match="is not there"):
        adopted(kept)
    kept.close()


def test_an_info_without_the_name_is_no_channel_yet(root: Path) -> None:  # SPEC 2.3
    info = Info.of(SPEC, 0, 1, boot_id(), 0)
    assert info.bell == "sem" and info.sem == "" and parse_info(info.format()) == info
    kept = made(root)
    text = (kept.directory / "info").read_text()
    (kept.directory / "info").chmod(0o600)
    (kept.directory / "info").write_text(text.replace(f"sem={kept.info.sem}\n", ""))
    with pytest.raises(RequestError):
        adopted(kept)
    kept.close()


def test_a_channel_with_fifos_never_loads_the_package() -> None:
    """A job that does not ask for semaphores runs where the package is broken."""
    script = (
        "import sys; sys.modules['posix_ipc'] = None\n"
        "import os, tempfile, pathlib\n"
        "from plugml.core.job import JobSpec\nfrom plugml.core.table import TableSpec\n"
        "from plugml.shm_protocol.create import create_channel\nfrom plugml.shm_protocol.channel import adopt\n"
        "from plugml.shm_protocol.info import Info\nfrom plugml.shm_protocol.root import boot_id, sweep\n"
        "with tempfile.TemporaryDirectory(dir='/dev/shm') as place:\n"
        "    fd = os.open(place, os.O_RDONLY)\n"
        "    with create_channel(pathlib.Path(place), Info.of(JobSpec('j', 1, (TableSpec('w', (2,)),)), 0, 1, boot_id(), 0)) as kept:\n"
        "        agent = adopt(fd, kept.name, 1); agent.reply(agent.repeat()); agent.close()\n"
        "    sweep(pathlib.Path(place), boot_id())\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=HANG_S)


# -- in memory


def test_the_twin_counts_posts_and_dies_between_reply_and_post() -> None:  # SPEC 5.11
    info = Info.of(SPEC, 0, 1, "0" * 32, 0)._replace(sem=semaphore.new_name())
    files = MemoryFiles(info)
    agent = adopt_twin(files, info, 1)
    record = format_reply(Reply(True, 1, 1))
    stores: list[int] = []
    files.on_store = lambda: stores.append(files.posts)
    assert agent.reply(record)
    assert (bytes(files.contents["reply"]), files.posts, len(files.replies), stores) == (record, 1, 0, [0, 0])
    agent.close()
    assert files.posts == 2


def test_a_removed_directory_needs_no_info(root: Path) -> None:
    root_fd = os.open(root, os.O_RDONLY)
    (root / "job.0.1").mkdir()
    (root / "job.0.1" / "info").mkdir()  # whatever lies there
    remove_channel(root_fd, "job.0.1")
    remove_channel(root_fd, "job.0.2")
    os.close(root_fd)
    assert os.listdir(root) == []


def test_values_of_every_layout_have_their_files(root: Path) -> None:  # SPEC 1.3 1.5 1.6
    spec = JobSpec(
        "job", 1, (TableSpec("w", (3,)), TableSpec("e", (9, 2), "sparse", batch=2), TableSpec("f", (0, 1), "sparse", index="str", batch=3)), bell="sem",
    )  # fmt: skip
    with create_channel(root, Info.of(spec, 0, 1, boot_id(), 0)) as kept:
        sizes = {path.name: (path.stat().st_size, path.stat().st_mode & 0o777) for path in kept.directory.iterdir() if path.is_file()}
        assert kept.info.cap_idx == 8 and kept.info.cap_grad == 64 + 16 + 16
        for name, wanted in {
            "gidx": (8, 0o600), "want": (8, 0o600), "gidx.txt": (0, 0o600), "want.txt": (0, 0o600), "gkey": (0, 0o600), "wkey": (0, 0o600),
            "data": (4096, 0o644), "reply": (64, 0o644), "pend.0": (8192, 0o600), "pend.1": (8192, 0o600),
        }.items():  # fmt: skip
            assert sizes[name] == wanted, name
            data = (kept.directory / name).read_bytes()
            assert data == bytes(len(data))
            assert (kept.directory / name).stat().st_blocks * 512 >= len(data)
    dense = create.files_of(Info.of(JobSpec("job", 1, (TableSpec("w", (3,)),)), 0, 1, boot_id(), 0))
    assert not {"gidx", "want", "gkey", "wkey", "reply", "gidx.txt", "want.txt"} & {name for name, _mode, _size in dense}
