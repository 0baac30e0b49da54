"""How a node of this host is reached by others, and by which keys: what was asked for, the cluster's file, and the keys beside it.

Owns the choice.  Refuses to listen and to read a key itself (`runtime`).

    within one host     ipc sockets in the root, which only its user can enter: no keys
    between hosts       TCP, encrypted and proven by keys; without them only if the user has said so
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from ..core.addresses import is_tcp, parse_tcp
from ..core.errors import KeysError, UsageError
from ..runtime.hosts import free_endpoint, listening
from ..runtime.keys import NO_TCP, ROSTER, Keys, Trust, make_keys, read_pair, read_roster
from ..wire.roles import ADMIN
from .clusterfile import ELSEWHERE, ClusterFile

NO_KEYS = "none"  # PLUGML_KEYS of a command that is to speak without any
KEYS = "keys"  # directory in the cluster's state where `up` and `run` keep those that they make


class Wish(NamedTuple):
    """What was asked for on the command line; "" and False are nothing."""

    interface: str = ""
    ports: tuple[int, int] = (0, 0)
    keys: str = ""
    insecure: bool = False
    plain_data: bool = False

    @property
    def is_tcp(self) -> bool:
        """Whether this node is to listen for other hosts."""
        return bool(self.interface) or self.ports != (0, 0)


def listen_at(cluster: ClusterFile, id_: str, wish: Wish) -> str:
    """Where node `id_` listens: over TCP if that was asked for or the masters do, else within the host."""
    known = cluster.masters.get(id_, "")
    if is_tcp(known) and not wish.is_tcp:
        return known  # a master whose supervisor has told its address already
    if not wish.is_tcp and not cluster.is_spread:
        return cluster.endpoint(id_)
    others = [endpoint for master, endpoint in cluster.masters.items() if is_tcp(endpoint) and master != id_]
    return listening(wish.interface, wish.ports, others[0] if others else "")


def master_at(cluster: ClusterFile, id_: str, wish: Wish, environ: Mapping[str, str]) -> ClusterFile:
    """The cluster's file with the address at which master `id_` will listen, and how what goes between hosts is secured."""
    endpoint = listen_at(cluster, id_, wish)
    if is_tcp(endpoint):
        endpoint = free_endpoint(endpoint)
    return secured(cluster._replace(masters={**cluster.masters, id_: endpoint}), wish, environ)


def masters_at(cluster: ClusterFile, wish: Wish, environ: Mapping[str, str]) -> ClusterFile:
    """The cluster's file with an address for each of its masters, all on this host: from the port that was asked for on."""
    first, last = wish.ports
    last = max(last, first + len(cluster.masters) - 1) if first else last
    for id_ in cluster.masters:
        taken = set(cluster.masters.values())
        while True:
            cluster = master_at(cluster, id_, wish._replace(ports=(first, last)), environ)
            if cluster.masters[id_] not in taken:
                break
        if first:
            first = parse_tcp(cluster.masters[id_].removeprefix("tcp://")).first + 1
    return cluster


def secured(cluster: ClusterFile, wish: Wish, environ: Mapping[str, str]) -> ClusterFile:
    """The file with what was asked for of keys; what it says already is not undone by a node that joins."""
    if not (cluster.is_spread or wish.is_tcp):
        return cluster
    if wish.insecure and (wish.keys or wish.plain_data):
        raise UsageError("--insecure-trusted-network means no keys at all: leave --keys and --data-security away, or it")
    if wish.insecure and cluster.security not in ("", "insecure"):
        if cluster.pid or cluster.public:
            raise UsageError(f"cluster {cluster.name} uses keys: a node without them is let in nowhere; leave --insecure-trusted-network away")
    if wish.insecure or cluster.security == "insecure":
        return cluster._replace(security="insecure", keys="", public={})
    security = "plain-data" if wish.plain_data else cluster.security or "keys"
    directory = wish.keys or environ.get("PLUGML_KEYS", "") or cluster.keys or str(cluster.state / KEYS)
    return cluster._replace(security=security, keys=str(Path(directory).absolute()))


def with_public_keys(cluster: ClusterFile) -> ClusterFile:
    """The file with its masters' public keys, for those who read it elsewhere."""
    if cluster.security in ("", "insecure") or not cluster.is_spread:
        return cluster
    roster = read_roster(Path(cluster.keys))
    return cluster._replace(public={master: roster[master] for master in cluster.masters if master in roster})


def trust_of(cluster: ClusterFile, id_: str, endpoint: str = "") -> Trust:
    """What node `id_`, which listens at `endpoint`, may do over TCP.  Raises `KeysError` where its keys are not in order."""
    if not is_tcp(endpoint) and not cluster.is_spread:
        return NO_TCP
    if cluster.security == "insecure":
        return Trust(insecure=True)
    keys = Keys(Path(cluster.keys), id_)
    for master, public in cluster.public.items():
        if keys.public_of(master) != public:
            raise KeysError(f"the keys in {cluster.keys} are not those of cluster {cluster.name}: its master {master} has another one")
    return Trust(keys, plain_data=cluster.security == "plain-data")


def admin_trust(cluster: ClusterFile, environ: Mapping[str, str]) -> Trust:
    """The same for a command, which has an admin's key.  One that has only an address is told by PLUGML_KEYS=none that there are no keys."""
    if cluster.is_spread and cluster.security != "insecure":
        given = environ.get("PLUGML_KEYS", "")
        if given == NO_KEYS and not cluster.public:
            return Trust(insecure=True)
        cluster = cluster._replace(keys=given or cluster.keys or str(cluster.state / KEYS))
        try:
            return trust_of(cluster, _admin_in(Path(cluster.keys)))
        except KeysError as error:
            if given or cluster.keeper != ELSEWHERE or Path(cluster.keys).is_dir():
                raise
            raise KeysError(f"{error}; or say PLUGML_KEYS={NO_KEYS} if that cluster has none") from error
    return trust_of(cluster, ADMIN)


def _admin_in(directory: Path) -> str:
    """Id of the admin's key that lies there: `admin`, or the only one of those with a name."""
    if (directory / f"{ADMIN}.key").exists():
        return ADMIN
    named = sorted(path.stem for path in directory.glob(f"{ADMIN}-*.key"))
    if len(named) > 1:
        raise KeysError(f"{directory} holds several admins' keys ({', '.join(named)}): give the directory of one by PLUGML_KEYS")
    return named[0] if named else ADMIN


# -- for launchers ----------------------------------------------------------------------------------------------------


def make_cluster_keys(cluster: ClusterFile, ids: Iterable[str]) -> Path:
    """Make the keys of these nodes and an admin's, what is missing of them, in the cluster's state; gives their directory.

    For who binds TCP: a cluster of one host needs none.
    """
    directory = Path(cluster.keys) if cluster.keys else cluster.state / KEYS
    make_keys(directory, [*ids, ADMIN])
    return directory


def files_for(directory: Path, ids: Iterable[str]) -> dict[str, bytes]:
    """What a host with these nodes needs: name -> contents, to be written with mode 0600 and sent by nobody's command line."""
    files = {ROSTER: (directory / ROSTER).read_bytes()}
    for id_ in ids:
        read_pair(directory, id_)  # whole, private, and its own
        files[f"{id_}.key"] = (directory / f"{id_}.key").read_bytes()
    return files
