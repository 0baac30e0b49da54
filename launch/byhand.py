"""Masters that people start by hand: which ones a cluster has, where they keep its state, and who of them keeps the cluster.

    the first one takes the cluster's lock and writes cluster.json; the others of the same host find it there and join
    the cluster runs as long as one of them does, each of which holds its own ipc/<id>.lock

Refuses to start anything.
"""

from __future__ import annotations

import os

from ..core.addresses import is_tcp
from ..core.errors import UsageError, WorldError
from .clusterfile import ELSEWHERE, ClusterFile
from .discovery import Hold, keeper_of, masters_beside

SQLITE = "sqlite"


def with_masters(cluster: ClusterFile, id_: str, count: int, store: str) -> ClusterFile:
    """The file with all masters of the cluster and its store, as asked for (0 and "" are nothing) or as it runs already.

    Raises `PlugmlError` where both cannot be, and for what would make two masters that know nothing of each other.
    """
    runs = keeper_of(cluster) not in (0, os.getpid()) or bool(masters_beside(cluster, id_))
    spread = cluster.keeper == ELSEWHERE or any(is_tcp(endpoint) for endpoint in cluster.masters.values())
    masters = cluster.masters
    if count:
        if spread and count != len(masters):
            raise UsageError("--masters N is for one host; name those of several as --cluster HOST:PORT,HOST:PORT,HOST:PORT (m0, m1, m2)")
        masters = masters if spread else {f"m{number}": cluster.endpoint(f"m{number}") for number in range(count)}
    elif id_ not in masters and not runs and not spread:
        masters = {id_: cluster.endpoint(id_)}
    if id_ not in masters and runs:
        raise WorldError(
            f"cluster {cluster.name} runs already (process {keeper_of(cluster)}) with masters {', '.join(masters)}, and {id_} is none of them: "
            "use it, or end it and start all of them with --masters N"
        )
    if id_ not in masters:
        raise UsageError(f"cluster {cluster.name} has masters {', '.join(masters)}, and {id_} is none of them: start all of them with --masters N")
    if runs and masters != cluster.masters:
        raise UsageError(f"cluster {cluster.name} runs with masters {', '.join(cluster.masters)}: leave --masters away, or end it first")

    if runs and store and store != (cluster.store or SQLITE):
        raise UsageError(f"cluster {cluster.name} keeps its state in {cluster.store or SQLITE}: leave --store away, or end it first")
    store = store or cluster.store or SQLITE
    if len(masters) > 1 and store == SQLITE:
        raise UsageError(f"{len(masters)} masters need a state that they share: give --store etcd://HOST:PORT,HOST:PORT,HOST:PORT, the same to each")
    return cluster._replace(masters=masters, store="" if store == SQLITE else store)


def hold(cluster: ClusterFile, id_: str) -> Hold | None:
    """The cluster's lock for this process; None where it runs already and this is one more of its masters."""
    try:
        return Hold(cluster)
    except WorldError:
        if len(cluster.masters) > 1 and keeper_of(cluster) not in (0, os.getpid()):
            return None
        raise


def let_go(held: Hold | None, id_: str) -> None:
    """This master ends.  What it keeps stays as long as another one runs."""
    if held is None:
        return
    if masters_beside(held.cluster, id_):
        held.close()
    else:
        held.withdraw()
