"""One supervised process of a cluster: its command, its environment, and how long to be patient with it.

Starts nothing: `cluster` does.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import site
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..core.errors import UsageError
from ..runtime.process import Child
from . import etcd
from .discovery import ClusterFile

SECOND = 1_000_000
FIRST_WAIT_US, LONGEST_WAIT_US = 100_000, 5 * SECOND
RARELY_US = 60 * SECOND  # from one start to the next of a daemon that does not get well, where others of its kind run
HEALTHY_US = 10 * SECOND  # who lived so long has not died of its start
FAILURES_MAX = 5  # in a row, of a process that never got ready
IDLE_FAILURES_MAX = 20  # in a row, of one that got ready and then served nobody
#: By these somebody ends a process that may be as sound as can be.
FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
#: The variables of ours, and of etcd, that a daemon may see; those of a channel would make it a worker.
OURS = ("PLUGML_CHECK", "ETCD_UNSUPPORTED_ARCH")
ETCD = "etcd"  # the role of a member


class Patience:
    """When to start a process again: at once, then ever later; never, if it dies again and again without progress.

    Who has served somebody, or lived long, has made progress, however often it is killed.

    >>> patience = Patience()
    >>> [patience.wait_us(True, True, SECOND) for _ in range(100)] == [0] * 100
    True
    >>> [patience.wait_us(False, False, 0) for _ in range(5)]
    [100000, 200000, 400000, 800000, None]
    >>> patience = Patience()
    >>> [patience.wait_us(True, False, SECOND) for _ in range(3)]
    [0, 200000, 400000]
    >>> patience = Patience()
    >>> [patience.wait_us(False, False, 0, signal.SIGKILL) for _ in range(20)][-2:]
    [5000000, None]
    """

    def __init__(self) -> None:
        self._failures = 0

    def wait_us(self, was_ready: bool, has_served: bool, lived_us: int, signum: int = 0) -> int | None:
        """Microseconds from its end (by `signum`, if by a signal) to its next start; None = give up."""
        if was_ready and (has_served or lived_us >= HEALTHY_US):
            self._failures = 0
            return 0
        self._failures += 1
        if self._failures >= (IDLE_FAILURES_MAX if was_ready or signum in FROM_OUTSIDE else FAILURES_MAX):
            return None
        if self._failures == 1 and was_ready:
            return 0
        return min(LONGEST_WAIT_US, FIRST_WAIT_US << min(self._failures - 1, 10))


@dataclass(slots=True)
class Daemon:
    """Master, server, agent or a member of the masters' etcd, whatever incarnation of it runs."""

    role: str
    id: str
    child: Child | None = None
    node: str = ""  # the incarnation's name, when it has told it
    started_us: int = 0
    ready: bool = False
    served: bool = False  # it has done something for somebody
    lost: bool = False  # ended, and not ready again since
    leaving: bool = False  # told to end for good
    farewell: Callable[..., None] = lambda: None  # says of its last end what is not said yet
    timer: asyncio.TimerHandle | None = None
    patience: Patience = field(default_factory=Patience)

    @property
    def ending(self) -> int:
        """The signal by which its supervisor ends it: at once, for a server would wait for others to take over at SIGTERM."""
        return signal.SIGINT if self.role == "server" else signal.SIGTERM

    @property
    def title(self) -> str:
        return f"{self.role} {self.id}"


def command(
    daemon: Daemon, file: ClusterFile, log: Path, servers: int, allow_disk: bool, verbose: bool, copies: int = 0
) -> list[str]:
    """-P: no module of the working directory takes the place of one of ours."""
    if daemon.role == ETCD:
        return etcd.command(etcd_program(os.environ), daemon.id, file, log)
    words = [sys.executable, "-P", "-m", "plugml", daemon.role, "--id", daemon.id, "--cluster", file.name]
    words += ["--root", str(file.root), "--state", str(file.state), "--log", str(log), "--supervised"]
    if daemon.role == "master":
        words += ["--servers", str(servers)] + ["--copies", str(copies)] * bool(copies)
        store = etcd.store_of(file)
        words += ["--store", store] * bool(store)
    if daemon.role == "agent" and allow_disk:
        words += ["--allow-disk"]
    return words + ["-v"] * verbose


def etcd_program(environ: Mapping[str, str]) -> str:
    """Raises `UsageError` where there is none."""
    found = shutil.which(etcd.PROGRAM, path=environ.get("PATH"))
    if found is None:
        raise UsageError(etcd.MISSING)
    return found


def masters_before(file: ClusterFile) -> int:
    """How many masters have left their state in the cluster's, 0 = none has."""
    found = len(list((file.state / etcd.DIRECTORY).glob("e*")))
    return found or int((file.state / "master.sqlite").exists())


def environment(environ: Mapping[str, str], notify: Path) -> dict[str, str]:
    """What a daemon sees: the user's variables without those that would make it a worker, or another etcd, and the supervisor's address."""
    result = {key: value for key, value in environ.items() if not key.startswith(("PLUGML_", "ETCD_")) or key in OURS}
    result["NOTIFY_SOCKET"] = str(notify)
    # Daemons compute in threads of their own; a pool of BLAS threads in each would only be memory.
    for key in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        result[key] = "1"
    return {**result, **python_path(environ)}


def python_path(environ: Mapping[str, str]) -> dict[str, str]:
    """PYTHONPATH by which a child finds this very package, where it is not installed."""
    home = str(Path(__file__).absolute().parents[2])  # not resolved: a checkout links its folders into the package
    if home in (*site.getsitepackages(), site.getusersitepackages()):
        return {}
    return {"PYTHONPATH": os.pathsep.join(word for word in (home, environ.get("PYTHONPATH", "")) if word)}
