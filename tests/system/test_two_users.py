"""Two users on one host, one of them made for the test: each trains, and neither can read, join or disturb the other's.

The test's own user is root here, who may read everything anyway: so the stranger is the other one.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.leaks import own_root
from tests.system.other_user import ROOT, OtherUser, made_user

HANG_S = 600.0
PRYING = Path(__file__).with_name("prying.py")


@pytest.fixture(scope="module")
def stranger(require: Callable[[str], None], require_that: Callable[[bool, str], None], does_not_apply: Callable[[str], None]) -> Iterator[OtherUser]:
    if os.getuid() != 0:
        does_not_apply("only root can make a user")
    for tool in ("useradd", "userdel"):
        require(tool)
    with made_user() as user:
        user.can_run(require_that)
        shutil.copy(PRYING, user.place / "prying.py")
        yield user


class Mine:
    """The test's own user, with a state directory and a root of its own below /dev/shm, where everybody can look for it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.name = f"two-users-{os.getpid()}-{secrets.token_hex(4)}"
        self.root = own_root()
        self.state = directory / "state"
        self.plugml = "plugml"
        self.environ = {name: value for name, value in os.environ.items() if not name.startswith("PLUGML_") or name == "PLUGML_TEST_MARK"}
        self.environ |= {"XDG_STATE_HOME": str(self.state), "PYTHONPATH": str(ROOT)}

    def start(self, *words: str, **more: Any) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", self.plugml, *words]
        return subprocess.Popen(argv, cwd=self.directory, env=self.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)

    def run(self, *words: str, **more: Any) -> tuple[int, str, str]:
        process = self.start(*words, **more)
        out, err = process.communicate(timeout=HANG_S)
        return process.returncode, out, err

    def ok(self, *words: str, **more: Any) -> str:
        code, out, err = self.run(*words, **more)
        assert code == 0, f"plugml {' '.join(words)}: exit code {code}\n{out}\n{err}"
        return out


@pytest.fixture
def mine(no_leaks: None) -> Iterator[Mine]:
    """In a directory that everybody may enter, as /home often is."""
    directory = Path("/tmp") / f"plugml-mine-{secrets.token_hex(4)}"
    directory.mkdir(mode=0o755)
    yield Mine(directory)
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def cluster(mine: Mine) -> Iterator[Mine]:
    """A standing cluster with a channel by hand, to whose program nobody has rung yet."""
    mine.ok("up", "-d", "--name", mine.name, "--root", str(mine.root))
    mine.ok("channel", "held", "--cluster", mine.name, "--table", "w=4")
    yield mine
    mine.ok("channel", "--close", "held", "--cluster", mine.name)
    mine.ok("down", mine.name)


def state_of(mine: Mine) -> Path:
    return mine.state / "plugml" / mine.name


def pried(stranger: OtherUser, mine: Mine, semaphore: str = "") -> dict[str, str]:
    """What the stranger gets out of its tries."""
    channel = next(mine.root.glob("held.0.*"))
    words = [str(mine.root), str(state_of(mine)), str(channel), semaphore]
    code, out, err = stranger.run(*stranger.python, str(stranger.place / "prying.py"), *words)
    assert code == 0, err
    found: dict[str, str] = json.loads(out)
    return found


# -- both train -------------------------------------------------------------------------------------------------------


def test_both_run_the_demo_at_once(stranger: OtherUser, mine: Mine, require: Callable[[str], None]) -> None:
    for tool in ("cc", "module:sklearn"):
        require(tool)
    command = ["examples/digits/demo.py"]
    theirs = stranger.start(*stranger.python, str(stranger.top / command[0]), str(stranger.home / "demo"))
    environ = {**mine.environ, "PYTHONPATH": str(ROOT)}
    ours = subprocess.Popen(
        [sys.executable, str(ROOT / command[0]), str(mine.directory / "demo")], cwd=mine.directory, env=environ,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    outputs = [process.communicate(timeout=HANG_S) for process in (theirs, ours)]
    stranger.tidy()
    for process, (out, err) in zip((theirs, ours), outputs):
        assert process.returncode == 0, err
        assert "demo ok accuracy=0.9" in out.splitlines()[-1]
    models = [path / "demo" / "result" / "w.bin" for path in (stranger.home, mine.directory)]
    assert np.allclose(np.fromfile(models[0]), np.fromfile(models[1]), atol=1e-9)  # their Pythons may differ, and so the last bits
    assert models[0].stat().st_uid == stranger.uid


# -- neither reads, joins or disturbs ---------------------------------------------------------------------------------


def test_nothing_of_a_cluster_can_be_read_written_or_reached(stranger: OtherUser, cluster: Mine) -> None:
    found = pried(stranger, cluster)
    assert set(found.values()) == {"Permission denied", "Operation not permitted"}, found
    assert found.pop("remove the root") == "Operation not permitted"  # /dev/shm is everybody's, and sticky
    assert set(found.values()) == {"Permission denied"}


def test_an_agent_talks_to_its_own_user_only(stranger: OtherUser, cluster: Mine) -> None:
    """Even where somebody has opened the doors: the kernel says who asks."""
    doors = {cluster.root: 0o711, cluster.root / "agent.sock": 0o666}
    for path, mode in doors.items():
        path.chmod(mode)
    try:
        found = pried(stranger, cluster)
    finally:
        for path in doors:
            path.chmod(0o700)
    assert found["agent.sock"] in ("done: 'closed'", "Connection reset by peer", "Broken pipe"), found  # it hangs up, unheard
    log = "".join(path.read_text() for path in (state_of(cluster) / "logs").glob("a0*"))
    assert f"uid={stranger.uid}" in log or str(stranger.uid) in log


def test_no_word_of_the_command_line_reaches_it(stranger: OtherUser, cluster: Mine) -> None:
    file = state_of(cluster) / "cluster.json"
    leaked = stranger.place / "leaked.json"
    shutil.copy(file, leaked)
    os.chown(leaked, stranger.uid, stranger.gid)
    held = str(next(cluster.root.glob("held.0.*")))
    root = {"PLUGML_ROOT": str(cluster.root)}
    tries: list[tuple[list[str], dict[str, str], tuple[int, ...], str]] = [
        (["status"], {}, (69,), "no cluster runs here"),
        (["status", "--cluster", cluster.name], {}, (69,), "no cluster"),
        (["status", "--cluster", str(file)], {}, (1, 2, 69), "Permission denied"),
        (["status", "--cluster", str(leaked)], {}, (69,), "no cluster"),
        (["stop", "--cluster", str(file), "held"], {}, (1, 2, 69), "Permission denied"),
        (["stop", "--cluster", str(leaked), "held"], {}, (69,), "no cluster"),
        (["rm", "--cluster", str(leaked), "held"], {}, (69,), "no cluster"),
        (["down", cluster.name], {}, (69,), "no cluster"),
        (["logs", "--cluster", str(leaked)], {}, (69,), "no cluster"),
        (["channel", "mine", "--cluster", str(leaked), "--table", "w=4"], {}, (69,), "no cluster"),
        (["channel", "--close", "held"], root, (69,), "no cluster"),
        (["run", "--cluster", str(leaked), "--table", "w=4", "--", "true"], {}, (69,), "no cluster"),
        (["run", "--table", "w=4", "--", "true"], root, (73,), "set PLUGML_ROOT to"),
        (["up", "--root", str(cluster.root)], {}, (2,), "is not readable"),
        (["up"], root, (73,), "set PLUGML_ROOT to"),
        (["agent", "--id", "a7", "--cluster", cluster.name, "--root", str(cluster.root), "--state", str(stranger.home / "s")], {}, (2,), "is not readable"),
        (["inspect", held], {}, (1, 2), "Permission denied"),
    ]  # fmt: skip
    for words, environ, codes, text in tries:
        code, out, err = stranger.plugml(*words, env=environ)
        assert code in codes and text in err and "Traceback" not in err, (words, code, out, err)
    leaked.unlink()
    document = json.loads(cluster.ok("status", "--json", "--cluster", cluster.name))
    assert [job["state"] for job in document["jobs"]] == ["running"] and {node["state"] for node in document["nodes"]} == {"alive"}


def test_a_place_that_somebody_else_holds_is_refused(stranger: OtherUser, mine: Mine) -> None:
    """Whoever owns the directory above a root could exchange it; and a root itself may have been made beforehand."""
    trap = own_root()
    trap.mkdir(mode=0o755)
    os.chown(trap, stranger.uid, stranger.gid)
    try:
        for root in (trap, trap / "below"):
            code, _, err = mine.run("up", "--name", mine.name, "--root", str(root))
            assert code == 73 and f"belongs to user {stranger.name}" in err, err
            mine.environ["PLUGML_ROOT"] = str(root)
            code, _, err = mine.run("run", "--table", "w=4", "--", "true")
            assert code == 73 and f"belongs to user {stranger.name}" in err, err
            del mine.environ["PLUGML_ROOT"]
        assert os.listdir(trap) == []
    finally:
        trap.rmdir()


def test_a_semaphore_is_its_users_own(stranger: OtherUser, mine: Mine) -> None:
    mine.plugml = "tests.marked"
    mine.ok("up", "-d", "--name", mine.name, "--root", str(mine.root))
    (mine.directory / "job.toml").write_text('[job]\nbell = "sem"\n[[table]]\nname = "w"\nshape = 4\n')
    mine.ok("channel", "held", "--cluster", mine.name, "-f", "job.toml")
    try:
        info = (next(mine.root.glob("held.0.*")) / "info").read_text()
        semaphore = next(line.partition("=")[2] for line in info.splitlines() if line.startswith("sem="))
        found = pried(stranger, mine, semaphore)
        told = {what: found[what] for what in ("read the semaphore", "post the semaphore", "remove the semaphore")}
        assert list(told.values()) == ["Permission denied", "Permission denied", "Operation not permitted"]
    finally:
        mine.ok("channel", "--close", "held", "--cluster", mine.name)
        mine.ok("down", mine.name)
    assert not [name for name in os.listdir("/dev/shm") if name == f"sem.{semaphore[1:]}"]


@pytest.mark.parametrize(("umask", "seen"), [(0o077, False), (0o027, False), (0o022, True)])
def test_a_result_is_as_open_as_its_users_umask(stranger: OtherUser, mine: Mine, umask: int, seen: bool) -> None:
    trainer = "from plugml.client import attach; import numpy as np; p = attach(); p.step(np.ones(4, 'f4'), np.zeros(4, 'f4'))"
    place = mine.directory / "result"
    mine.environ["PLUGML_ROOT"] = "/dev/shm/" + mine.root.name
    mine.ok("run", "--name", "open", "--result", str(place), "--export", "raw,csv", "--table", "w=4", "--", sys.executable, "-c", trainer, umask=umask)
    mine.root.rmdir()
    for path in (place, *place.rglob("*")):
        assert not path.stat().st_mode & umask, path
    code, out, err = stranger.plugml("inspect", str(place))
    if seen:
        assert code == 0 and "w.csv" in out and stranger.run("cat", str(place / "w.csv"))[0] == 0
        assert stranger.run("touch", str(place / "w.bin"))[0] != 0
    else:
        assert code in (1, 2) and "Permission denied" in err and stranger.run("cat", str(place / "w.csv"))[0] != 0
        assert stranger.run("ls", str(place))[0] != 0
