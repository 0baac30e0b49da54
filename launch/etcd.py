"""The etcd members that keep the state of several masters on one host: where each listens and lies, and its command line.

Owns these names.  Pure: `daemon` and `cluster` start the members.  There is one beside each master, e0 beside m0.

They listen at unix sockets in the root, which only its user can enter: a port of this host would let in everybody.  An
etcd takes such a socket only by a name with a port in it, below its working directory: so they start in `<root>/ipc`.
"""

from __future__ import annotations

from pathlib import Path

from ..core.errors import UsageError
from .clusterfile import ClusterFile

PROGRAM = "etcd"
DIRECTORY = "etcd"  # in the cluster's state, with a directory for each member
MISSING = (
    "several masters keep their state in etcd, and there is no program `etcd` on the PATH: install version 3.4 or later "
    "(on Debian and Ubuntu: apt-get install etcd-server), or leave --masters away: one master needs none"
)
MASTERS = (1, 3, 5)
REQUEST_BYTES_MAX = 2 << 20  # the masters write a document of at most 1 MiB
REVISIONS_KEPT = 100  # nobody asks for old ones, and the leader writes a beat each half second


def check_masters(count: int) -> int:
    """Raises `UsageError` for a number of masters that makes no sense."""
    if count not in MASTERS:
        raise UsageError(f"--masters {count}: take 1, 3 or 5; of 3 any one may die, of 5 any two, and an even number stands no more than the odd one below it")
    return count


def members(masters: int) -> list[str]:
    """Ids of the members beside so many masters; a lone master needs none."""
    return [f"e{number}" for number in range(masters)] if masters > 1 else []


def home(file: ClusterFile) -> Path:
    """Where members start."""
    return file.root / "ipc"


def sockets(file: ClusterFile, id_: str) -> list[Path]:
    """What a member that was killed leaves lying, and the next one does not take away itself."""
    return [home(file) / name for name in (_client(id_), _peer(id_))]


def store_of(file: ClusterFile) -> str:
    """What masters are told as their --store; "" where the lone one has a file of its own.

    >>> store_of(ClusterFile("c", Path("/r"), Path("/s"), {"m0": "", "m1": "", "m2": ""}, 0))
    'etcd:///r/ipc/e0:1,/r/ipc/e1:1,/r/ipc/e2:1'
    """
    found = [f"{home(file)}/{_client(id_)}" for id_ in members(len(file.masters))]
    return f"etcd://{','.join(found)}" if found else ""


def command(program: str, id_: str, file: ClusterFile, log: Path) -> list[str]:
    """The command line of one member, to be started in `home`.  A member that has a data directory goes on from there."""
    client, peer = f"unix://{_client(id_)}", f"unix://{_peer(id_)}"
    settings = {
        "name": id_,
        "data-dir": str(file.state / DIRECTORY / id_),
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": ",".join(f"{other}=unix://{_peer(other)}" for other in members(len(file.masters))),
        "initial-cluster-state": "new",
        "initial-cluster-token": file.name,
        "max-request-bytes": str(REQUEST_BYTES_MAX),
        "auto-compaction-mode": "revision",
        "auto-compaction-retention": str(REVISIONS_KEPT),
        "logger": "zap",
        "log-level": "warn",
        "log-outputs": str(log),
    }
    return [program, *(f"--{key}={value}" for key, value in settings.items())]


def _client(id_: str) -> str:
    return f"{id_}:1"


def _peer(id_: str) -> str:
    return f"{id_}:2"
