"""How many servers a cluster's supervisor keeps: asked and told by whoever may enter its root, over the notify socket.

    plugml scale 4  --- X_PLUGML_SERVERS=4 --->  `plugml up` (or run): starts s3
                    <-- {"servers": [...]} ---

An order without a number changes nothing.  A datagram each way; the kernel says who speaks.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Iterable

from ..core.errors import UsageError, WorldError
from .discovery import ClusterFile, keeper_of
from .host import host_name

FIELD, TAKEN = "X_PLUGML_SERVERS", "X_PLUGML_TAKEN"
WAIT_S = 30.0
BYTES_MAX = 1 << 16
SERVERS_MAX = 256


def ask(cluster: ClusterFile, servers: int = 0, taken: Iterable[str] = ()) -> list[str]:
    """The ids of the servers that the supervisor keeps, when it has been told how many they shall be (0 = as they are).

    `taken` are ids that servers of other hosts have.

    Raises `UsageError` where nobody supervises servers here, `WorldError` where the supervisor does not answer or refuses.
    """
    if cluster.keeper not in ("up", "run") or cluster.host not in ("", host_name()) or not keeper_of(cluster):
        raise UsageError(f"the servers of cluster {cluster.name} are not kept by a `plugml up` of this host: start one by `plugml server`, or `plugml drain` and end one")
    path = cluster.root / "ipc" / f"ask-{secrets.token_hex(4)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        try:
            channel.bind(os.fspath(path))
            channel.settimeout(WAIT_S)
            channel.sendto(f"{FIELD}={servers}\n{TAKEN}={','.join(taken)}".encode(), os.fspath(cluster.root / "ipc" / "notify"))
            answer = json.loads(channel.recv(BYTES_MAX))
        except OSError as error:
            raise WorldError(f"the process that keeps cluster {cluster.name} (pid {cluster.pid}) does not answer: {error}") from error
        finally:
            path.unlink(missing_ok=True)
    if answer["error"]:
        raise WorldError(answer["error"])
    found: list[str] = answer["servers"]
    return found


def wanted(text: str) -> int | None:
    """The number in an order's text; None when it is no order.

    >>> wanted("4"), wanted("0"), wanted("-1"), wanted("four")
    (4, 0, None, None)
    """
    return int(text) if text.isdecimal() and int(text) <= SERVERS_MAX else None


def answer(servers: list[str], error: str = "") -> bytes:
    return json.dumps({"servers": servers, "error": error}).encode()


def parse(word: str) -> int:
    """The number of `4` or `servers=4`.  Raises `UsageError`.

    >>> parse("servers=4"), parse("2")
    (4, 2)
    """
    number = wanted(word.removeprefix("servers="))
    if not number:
        raise UsageError(f"{word!r} is no number of servers from 1 to {SERVERS_MAX}: plugml scale 4")
    return number
