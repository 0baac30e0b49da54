"""The check for things left behind is one itself: each kind of leak fails its own session's test, and nobody else's."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import posix_ipc
import pytest

from tests import leaks

TOP = Path(__file__).resolve().parents[2]
HANG_S = 120.0
#: Each test leaves one thing, and `left` says where, for the test that looks at this session to clear away.
LEAKY = """
import os, subprocess, sys
from pathlib import Path
import posix_ipc, pytest
from plugml.core.job import JobSpec
from plugml.core.table import TableSpec
from plugml.shm_protocol import create, semaphore
from plugml.shm_protocol.info import Info
from plugml.shm_protocol.root import boot_id, prepare_root
from tests import leaks
from tests.leaks import no_leaks, test_mark, unswept

leaks.END_LIMIT_S = 0.2
pytestmark = pytest.mark.usefixtures("no_leaks")
KEPT = []


def left(what):
    with open("left", "a") as file:
        print(what, file=file)


def test_clean():
    root = leaks.own_root()
    prepare_root(root)
    create.create_channel(root, Info.of(JobSpec("j", 1, (TableSpec("w", (3,)),), bell="sem"), 0, 1, boot_id(), 0)).close()
    root.rmdir()


def test_process():
    words = [sys.executable, "-c", "import subprocess, sys; print(subprocess.Popen(['sleep', '600'], start_new_session=True, stdout=2).pid)"]
    left(subprocess.run(words, stdout=subprocess.PIPE, text=True).stdout.strip())


def test_descriptor():
    KEPT.append(os.open("/dev/null", os.O_RDONLY))


def test_root():
    leaks.own_root().mkdir()
    left(next(Path("/dev/shm").glob(f"plugml-test-{os.getpid()}-*")))


def test_entry_of_a_root_that_was_there(kept_root):
    (kept_root / "job.0.1").mkdir()
    left(kept_root)


@pytest.fixture(scope="module")
def kept_root():
    root = leaks.own_root()
    root.mkdir()
    return root


def test_root_of_a_cluster_without_a_root_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(leaks, "ROOTS", (Path("roots").resolve(),))
    for name, state in (("mine", tmp_path), ("foreign", Path("/var/somewhere"))):
        root = leaks.ROOTS[0] / name
        root.mkdir(parents=True)
        (root / "cluster.json").write_text('{"state": "%s"}' % state)


def test_semaphore():
    name = unswept(semaphore.new_name())
    posix_ipc.Semaphore(name, posix_ipc.O_CREX).close()
    left("/dev/shm/sem." + name[1:])


def test_semaphore_of_a_killed_child():
    script = '''
import os, runpy, signal, sys
import posix_ipc
from plugml.cli import main
from plugml.shm_protocol import create
from tests.leaks import unswept
def run():
    name = unswept(create.new_name())
    posix_ipc.Semaphore(name, posix_ipc.O_CREX)
    print("/dev/shm/sem." + name[1:], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
main.main = run
runpy.run_module("tests.marked", run_name="__main__")
'''
    left(subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True).stdout.strip())
"""


class Session:
    """Another test session on this host; what it has left goes with the test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "test_leaky.py").write_text(LEAKY)

    def run(self) -> str:
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("PLUGML_", "PYTEST_"))}
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp", str(self.directory / "base"), "-c", os.devnull]
        done = subprocess.run(
            [*words, "--rootdir", str(self.directory), "test_leaky.py"],
            cwd=self.directory, env=environ | {"PYTHONPATH": str(TOP)}, stdout=subprocess.PIPE, text=True, timeout=HANG_S,
        )  # fmt: skip
        assert done.returncode == 1, done.stdout
        return done.stdout

    def close(self) -> None:
        for line in (self.directory / "left").read_text().splitlines():
            if line.isdigit():
                assert not _is_there(int(line)), "the check ends what it finds"
            else:
                (shutil.rmtree if Path(line).is_dir() else os.unlink)(line)


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return b"Z" != Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    made = Session(tmp_path)
    yield made
    made.close()


def test_each_kind_of_leak_fails_its_own_session_and_no_other(session: Session, no_leaks: None) -> None:
    """`no_leaks` of this very test runs while all that the other session has left is still there."""
    told = session.run()
    left = (session.directory / "left").read_text().split()
    assert "8 passed, 7 errors" in told, told
    for words in (
        f"process {left[0]} is still there: sleep 600", "1 more descriptor(s) on /dev/null", f"{left[1]} was left", f"{left[2]}/job.0.1 was left",
        f"{session.directory}/roots/mine was left", f"{left[3]} was left", f"{left[4]} was left",
    ):  # fmt: skip
        assert words in told, told
    assert "foreign" not in told.replace("'foreign'", "").replace('"foreign"', "")
    assert "test_clean" not in told


def test_what_this_test_leaves_is_seen_wherever_it_is(test_mark: str, tmp_path: Path) -> None:
    name = leaks.unswept(leaks.own_semaphore(test_mark))
    posix_ipc.Semaphore(name, posix_ipc.O_CREX).close()
    root = leaks.own_root()
    root.mkdir()
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        assert leaks._marked(test_mark) == {process.pid: "sleep 600"} and not leaks._marked(test_mark[::-1])
        process.send_signal(signal.SIGKILL)
    assert leaks._semaphores(test_mark) == [f"/dev/shm/sem.{name[1:]}"] and not leaks._semaphores(test_mark[::-1])
    assert str(root) in leaks._roots(tmp_path)
    posix_ipc.unlink_semaphore(name)
    root.rmdir()
