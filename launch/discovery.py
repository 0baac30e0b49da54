"""Which clusters there are on this host, where each has its places, and which one the user means.

    <state>/cluster.lock    flock held as long as the cluster runs, by `up`, `run` or a master started by hand; holds the pid
    <state>/cluster.json    name, root, masters, state, pid: written by the holder; a copy lies in the root
    <state>/logs/           one log per node

A cluster runs iff its lock is held: a pid alone says nothing (it may be a zombie's, or another program's by now).
"""

from __future__ import annotations

import fcntl
import getpass
import os
import re
import secrets
import shutil
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..core.addresses import parse_tcp
from ..core.errors import NoClusterError, RootError, UsageError, WorldError
from ..core.table import check_name
from ..shm_protocol.root import CLUSTER_NAME_MAX, boot_id, default_root, file_system, lock_agent, sweep
from .clusterfile import ELSEWHERE
from .clusterfile import ClusterFile as ClusterFile

FILE, LOCK, LOGS = "cluster.json", "cluster.lock", "logs"
#: File systems of several hosts: databases and locks are not safe there.
SHARED = ("nfs", "nfs4", "lustre", "gpfs", "cifs", "smb3", "afs", "ceph", "beegfs", "glusterfs", "pvfs2", "wekafs", "sshfs")
FILE_BYTES_MAX = 64 << 10


# -- places -----------------------------------------------------------------------------------------------------------


def new_name() -> str:
    """`user-host-6hex`; the uid where there is no passwd entry."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    host = socket.gethostname().partition(".")[0]
    words = [re.sub(r"[^A-Za-z0-9_]", "_", word)[:16] for word in (user or str(os.getuid()), host or "host")]
    return f"{words[0]}-{words[1]}-{secrets.token_hex(3)}"


def check_cluster_name(name: str) -> str:
    check_name(name, "cluster name")
    if len(name) > CLUSTER_NAME_MAX:
        raise UsageError(f"cluster name {name!r} has {len(name)} characters; at most {CLUSTER_NAME_MAX}")
    return name


def state_home(environ: Mapping[str, str]) -> tuple[Path, str]:
    """Directory that holds the clusters' states, and a sentence when it is not the usual one."""
    home = environ.get("XDG_STATE_HOME") or os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".local", "state")
    usual = Path(home).absolute() / "plugml"
    kind = file_system(_existing(usual))
    if kind.removeprefix("fuse.") not in SHARED:
        return usual, ""
    local = Path(environ.get("TMPDIR") or "/tmp").absolute() / f"plugml-state-{os.getuid()}"
    return local, f"{usual} lies on {kind}, where databases break: the cluster's state goes to {local}"


def places(name: str, root: Path | None, state: Path | None, environ: Mapping[str, str]) -> tuple[ClusterFile, str]:
    """Where the cluster `name` has its root and state by the rules, and a sentence to be said aloud ("" mostly)."""
    check_cluster_name(name)
    note = ""
    if state is None:
        home, note = state_home(environ)
        state = home / name
    root = (root or default_root(name, environ)).absolute()
    return ClusterFile(name, root, state.absolute(), {"m0": f"ipc://{root}/ipc/m0"}, 0, host=socket.gethostname()), note


def elsewhere(cluster: ClusterFile, environ: Mapping[str, str]) -> ClusterFile:
    """The same cluster as seen from this host, which is another than its master's: our places are our own."""
    ours, _ = places(cluster.name, None, None, environ)
    return cluster._replace(root=ours.root, state=ours.state, pid=0, keeper=ELSEWHERE, keys="")


def at_addresses(wanted: str, environ: Mapping[str, str]) -> ClusterFile:
    """The cluster whose masters m0, m1 ... are at HOST:PORT[,HOST:PORT ...].  Here it is called after the first of them."""
    addresses = [parse_tcp(word) for word in wanted.split(",")]
    if any(address.first != address.last or not address.first for address in addresses):
        raise UsageError(f"{wanted!r}: give the one port of each master")
    name = re.sub(r"[^A-Za-z0-9_]", "-", f"{addresses[0].host}-{addresses[0].first}").strip("-")[-CLUSTER_NAME_MAX:].strip("-")
    masters = {f"m{number}": address.endpoint for number, address in enumerate(addresses)}
    ours, _ = places(name, None, None, environ)
    return ours._replace(masters=masters, keeper=ELSEWHERE, host="", security="keys")


def make_private(directory: Path) -> None:
    """Make a directory (0700) and its parents; refuse somebody else's."""
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(mode=0o700, exist_ok=True)
        owner = directory.stat().st_uid
    except OSError as error:
        raise _no_state(directory, error.strerror) from error
    if owner != os.getuid():
        raise RootError(f"{directory} belongs to another user (uid {owner}); give --state or --root elsewhere")


def check_private(directory: Path) -> None:
    """Refuse what `make_private` would refuse, as far as that is seen without making anything."""
    try:
        os.lstat(directory)
    except FileNotFoundError:
        pass  # it will be made
    except OSError as error:  # a name that is too long, a file on the way
        raise _no_state(directory, error.strerror) from error
    there = _existing(directory)
    if not there.is_dir():
        raise _no_state(directory, f"{there} is no directory")
    if not os.access(there, os.W_OK | os.X_OK):
        raise _no_state(directory, f"{there} may not be written")


def _no_state(directory: Path, why: str | None) -> UsageError:
    return UsageError(f"cannot make {directory}: {why}; set XDG_STATE_HOME or give --state")


# -- the locks and the file -------------------------------------------------------------------------------------------


class Hold:
    """The cluster is ours: its lock, in the state and (once the root is made) in the root, and so its file.

    Raises `WorldError` when it runs already.  A process that dies lets go of everything.
    """

    def __init__(self, cluster: ClusterFile) -> None:
        self.cluster = cluster
        self._has_root = False
        make_private(cluster.state)
        make_private(cluster.logs)
        advice = f"use it, end it by `plugml down {cluster.name}`, or take another --name"
        try:
            self._locks = [_lock(cluster.state / LOCK, f"cluster {cluster.name} runs already (process %s): {advice}")]
        except OSError as error:
            raise _no_state(cluster.state, error.strerror) from error

    def publish(self) -> None:
        """Take the root too, and write `cluster.json` into both: whoever looks sees a whole file or none."""
        root = self.cluster.root
        if root != self.cluster.state:
            self._locks.append(_lock(root / LOCK, f"the root {root} is in use by another cluster (process %s): give another --root"))
        self._has_root = True
        for directory in (self.cluster.state, root):
            scratch = directory / f".{FILE}.{os.getpid()}"
            descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(self.cluster.to_text())
                file.flush()
                os.fsync(file.fileno())
            os.replace(scratch, directory / FILE)

    def withdraw(self, purge: bool = False) -> None:
        """The cluster is down: remove its root and its file, and with `purge` its state; let go.

        Where somebody's channel is still kept the root stays, and the file with it: who looks for clusters later finds
        it and removes it then.
        """
        root, state = self.cluster.root, self.cluster.state
        if not self._has_root or _remove_root(root):
            (state / FILE).unlink(missing_ok=True)
        if purge:
            shutil.rmtree(state, ignore_errors=True)
        self.close()

    def close(self) -> None:
        while self._locks:
            os.close(self._locks.pop())


def _lock(path: Path, refusal: str) -> int:
    """A descriptor that holds the lock, with our pid in the file; else `WorldError(refusal % pid of the holder)`."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        keeper = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
        os.close(descriptor)
        raise WorldError(refusal % (keeper or "unknown")) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def _remove_root(root: Path) -> bool:
    """Sweep the root and remove it, unless an agent that somebody started by hand serves it, or channels are kept."""
    try:
        lock = lock_agent(root)
    except (RootError, OSError):
        return False
    try:
        if sweep(root, boot_id()).channels:
            return False
        shutil.rmtree(root, ignore_errors=True)
        return not root.exists()  # a channel may just be being made in it
    finally:
        os.close(lock)


def has_root(cluster: ClusterFile) -> bool:
    """Whether its root is there and surely its own: `PLUGML_ROOT` may name a directory with anything in it."""
    there = _read(cluster.root / FILE)
    return cluster.root.is_dir() and cluster.name == (cluster.root.name if there is None else there.name)


def keeper_of(cluster: ClusterFile) -> int:
    """Pid of the process that keeps the cluster, 0 = nobody: it does not run."""
    return _holder(cluster.state / LOCK, cluster.pid) or next(iter(masters_beside(cluster)), 0)


def masters_beside(cluster: ClusterFile, id_: str = "") -> list[int]:
    """Pids of the masters of this host, but for `id_`, where several were started by hand: any of them keeps the cluster."""
    if cluster.keeper != "master" or len(cluster.masters) < 2:
        return []
    found = [_holder(cluster.root / "ipc" / f"{other}.lock", cluster.pid) for other in cluster.masters if other != id_]
    return [pid for pid in found if pid]


def _holder(lock: Path, unknown: int) -> int:
    """Pid of the process that holds a lock, 0 = nobody; `unknown` if it has not said."""
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return 0
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.pread(descriptor, 32, 0).strip()
        return int(pid) if pid.isdigit() else unknown
    finally:
        os.close(descriptor)
    return 0


# -- finding ----------------------------------------------------------------------------------------------------------


def find(given: str, environ: Mapping[str, str]) -> ClusterFile:
    """The running cluster that the user means: `given` (a name, a file or HOST:PORT), PLUGML_CLUSTER, or the only one there is.

    The private clusters of `plugml run` count only where no other runs.
    """
    wanted = given or environ.get("PLUGML_CLUSTER", "")
    if wanted:
        cluster = named(wanted, environ)
        if cluster is None or not (cluster.keeper == ELSEWHERE or keeper_of(cluster)):
            raise NoClusterError(f"no cluster {wanted!r} runs here; {_listed(running(environ))}")
        return cluster

    found = running(environ)
    meant = [cluster for cluster in found if cluster.keeper != "run"] or found  # a run's own cluster is its own affair
    if len(meant) == 1:
        return meant[0]
    if not found:
        raise NoClusterError("no cluster runs here; start one by `plugml up -d`, or train at once by `plugml run`")
    names = ", ".join(cluster.name for cluster in found)
    raise NoClusterError(f"several clusters run here: {names}; say which by --cluster NAME or PLUGML_CLUSTER")


def named(wanted: str, environ: Mapping[str, str]) -> ClusterFile | None:
    """The cluster of that name, of that file, or at those addresses, whether it runs or not; None if nothing is known of it."""
    if "/" in wanted or wanted.endswith(".json"):
        path = Path(wanted)
        cluster = _read(path / FILE if path.is_dir() else path)
        if cluster is None:
            raise NoClusterError(f"{wanted} is no cluster.json that can be read")
        if cluster.is_spread and cluster.host not in ("", socket.gethostname()):
            return elsewhere(cluster, environ)
        return cluster
    if ":" in wanted:
        return at_addresses(wanted, environ)
    check_cluster_name(wanted)
    for directory in _directories(environ):
        if directory.name == wanted or directory == _given_root(environ):
            cluster = _read(directory / FILE)
            if cluster is not None and cluster.name == wanted:
                return cluster
    return None


def running(environ: Mapping[str, str]) -> list[ClusterFile]:
    """Every cluster of this user that runs here, by name.  What a killed one left behind is cleaned up on the way."""
    found: dict[tuple[str, Path], ClusterFile] = {}
    for cluster in _known(environ):
        if (cluster.name, cluster.state) in found:
            continue
        if keeper_of(cluster):
            found[cluster.name, cluster.state] = cluster
        else:
            _clean(cluster)
    return sorted(found.values())


def clear_dead_runs(environ: Mapping[str, str]) -> None:
    """Remove what is left of runs that were killed together with their guards: it holds memory, and nobody asks for it."""
    for cluster in _known(environ):
        if cluster.keeper == "run" and not keeper_of(cluster):
            _clean(cluster)


def _known(environ: Mapping[str, str]) -> Iterator[ClusterFile]:
    """Every cluster that has a file: one that runs mostly twice, from its state and from its root."""
    for directory in _directories(environ):
        try:
            cluster = _read(directory / FILE)
        except UsageError:
            continue  # of another version: not ours to judge
        if cluster is not None:
            yield cluster


def _clean(stale: ClusterFile) -> None:
    """Remove what a killed keeper left, under its locks: one that is just starting is left alone."""
    if stale.keeper == "run" and stale.name == stale.root.name == stale.state.name:
        _clean_private(stale)
        return
    if not stale.state.is_dir():
        stale = stale._replace(state=stale.root)  # its state is gone, only the root is left
    try:
        hold = Hold(stale)
    except (WorldError, UsageError, OSError):
        return
    try:
        if stale.root.is_dir():
            hold.publish()
        hold.withdraw()
    except (WorldError, UsageError, OSError):
        hold.close()  # the root is another cluster's by now, or not ours to write


def _clean_private(stale: ClusterFile) -> None:
    """Of a run's own cluster nothing is kept, its state neither.  The root goes first: if it must stay it is found again.

    Makes no directory: several may be at this, and whoever comes last must find nothing to leave behind.
    """
    locks: list[int] = []
    try:
        for directory in (stale.state, stale.root):
            if directory.is_dir():
                locks.append(_lock(directory / LOCK, "%s holds it"))
        if not has_root(stale) or _remove_root(stale.root):
            shutil.rmtree(stale.state, ignore_errors=True)
    except (WorldError, UsageError, OSError):
        return  # it is starting, or somebody else removes it just now
    finally:
        for lock in locks:
            os.close(lock)


def _listed(found: list[ClusterFile]) -> str:
    names = ", ".join(cluster.name for cluster in found) or "none"
    return f"start it by `plugml up -d --name NAME`, or take one of those that run: {names}"


def _directories(environ: Mapping[str, str]) -> Iterator[Path]:
    """Every directory in which a cluster.json of this user may lie."""
    uid = os.getuid()
    given = _given_root(environ)
    tops = [state_home(environ)[0]]
    if given is not None:
        yield given
        tops.append(given)  # each run has a root of its own in it
    else:
        tops += [Path(f"/run/plugml/{uid}"), Path(f"/dev/shm/plugml-{uid}")]
    for top in tops:
        try:
            names = sorted(os.listdir(top))
        except OSError:
            continue
        yield from (top / name for name in names)


def _given_root(environ: Mapping[str, str]) -> Path | None:
    return Path(environ["PLUGML_ROOT"]).absolute() if environ.get("PLUGML_ROOT") else None


def _read(path: Path) -> ClusterFile | None:
    """The file, if it is there and ours."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        if os.fstat(descriptor).st_uid != os.getuid():
            return None
        return ClusterFile.from_text(file.read(FILE_BYTES_MAX).decode(errors="replace"), path)


def _existing(path: Path) -> Path:
    """The nearest directory above that is there, and that we may see."""
    while not os.path.exists(path):
        path = path.parent
    return path
