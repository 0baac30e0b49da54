"""Another user of this host, made for a test and removed after it, with a plugml that it can read.

Its processes are started by `run` and `start`; whatever of them is left is ended by its pid.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HANG_S = 600.0
NEEDED = "import numpy, zmq, msgpack, uvloop, click, rich, sklearn, plugml.cli.main"


class OtherUser:
    """`place` is open to everybody and holds the user's home."""

    def __init__(self, name: str, place: Path) -> None:
        found = pwd.getpwnam(name)
        self.name, self.uid, self.gid = name, found.pw_uid, found.pw_gid
        self.place = place
        self.home = place / "home"
        self.top = ROOT  # of a source tree that it can read
        self.python = [sys.executable]
        keep = ("PATH", "LANG", "LC_ALL", "PLUGML_TEST_MARK")
        self.environ = {key: os.environ[key] for key in keep if key in os.environ}
        self.environ |= {"HOME": str(self.home), "USER": name, "LOGNAME": name, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}

    def start(self, *argv: str, **more: Any) -> subprocess.Popen[str]:
        options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, "text": True, **more}
        environ = {**self.environ, **options.pop("env", {})}
        return subprocess.Popen(argv, cwd=self.home, env=environ, user=self.uid, group=self.gid, extra_groups=[], **options)

    def run(self, *argv: str, **more: Any) -> tuple[int, str, str]:
        process = self.start(*argv, **more)
        out, err = process.communicate(timeout=HANG_S)
        return process.returncode, out, err

    def plugml(self, *words: str, **more: Any) -> tuple[int, str, str]:
        return self.run(*self.python, "-m", "plugml", *words, **more)

    def tidy(self) -> None:
        """Remove the directory of its roots, which plugml leaves: empty, or the test has found something."""
        for root in (Path(f"/dev/shm/plugml-{self.uid}"), Path(f"/run/plugml/{self.uid}")):
            if root.is_dir():
                root.rmdir()

    def can_run(self, require_that: Callable[[bool, str], None], built: bool = False) -> None:
        """Make sure that it can run plugml: as it is installed here, else (or if `built`) from copies that it can read."""
        if not built and not self._trouble():
            return
        self.top = self.place / "source"
        for name in ("plugml", "examples", "clients"):
            shutil.copytree(ROOT / name, self.top / name, ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
        site = self.place / "site"
        shutil.copytree(sysconfig.get_path("purelib"), site, copy_function=linked, ignore=shutil.ignore_patterns("__pycache__", "*.pth", "tests"))
        self.environ["PYTHONPATH"] = f"{self.top}:{site}"
        tried = []
        for python in (own_python(self.place), f"/usr/bin/python3.{sys.version_info.minor}", "/usr/bin/python3"):
            self.python = [python]
            trouble = self._trouble()
            if not trouble:
                return
            tried.append(f"{python}: {trouble}")
        require_that(False, f"no Python that another user can run: {'; '.join(tried)}")

    def _trouble(self) -> str:
        """Why its Python cannot run plugml, "" if it can."""
        try:
            code, _, err = self.run(*self.python, "-c", NEEDED)
        except OSError as error:
            return error.strerror or str(error)
        return (err.strip().splitlines() or [f"exit code {code}"])[-1] if code else ""


def linked(source: str, target: str) -> str:
    """A second name for a file; a copy where that cannot be."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target


def own_python(place: Path) -> str:
    """The interpreter of this test with its standard library, in a place that others can reach."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = Path(sysconfig.get_path("stdlib"))
    skip = shutil.ignore_patterns("__pycache__", "site-packages", "dist-packages", "test", "idlelib", "tkinter", "ensurepip", "config-*")
    shutil.copytree(library, place / "python" / "lib" / version, copy_function=linked, ignore=skip)
    (place / "python" / "bin").mkdir()
    program = place / "python" / "bin" / version
    linked(os.path.realpath(sys.executable), str(program))
    return str(program)


@contextmanager
def made_user() -> Iterator[OtherUser]:
    """Needs root."""
    name = f"plugmltest{secrets.token_hex(3)}"
    place = Path(tempfile.mkdtemp(prefix="plugml-two-users-"))
    place.chmod(0o755)
    subprocess.run(["useradd", "--no-create-home", "--home-dir", str(place / "home"), "--shell", "/bin/sh", name], check=True, capture_output=True)
    try:
        user = OtherUser(name, place)
        user.home.mkdir(mode=0o700)
        os.chown(user.home, user.uid, user.gid)
        try:
            yield user
        finally:
            for pid in processes_of(user.uid):
                os.kill(pid, signal.SIGKILL)
            user.tidy()
    finally:
        subprocess.run(["userdel", name], check=False, capture_output=True)
        shutil.rmtree(place, ignore_errors=True)


def processes_of(uid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and entry.stat().st_uid == uid:
                found.append(int(entry.name))
        except FileNotFoundError:
            continue
    return found
