"""`plugml master | server | agent`: one node in the foreground.  Finds its places and hands over to the node's shell."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from ..launch.discovery import ClusterFile
    from ..launch.reach import Wish

F = TypeVar("F", bound=Callable[..., Any])

FOOT = """\b
It runs in the foreground, writes `event key=value` lines to standard error (or --log), says `event=ready` and, with
NOTIFY_SOCKET, READY=1.  SIGTERM or Ctrl-C ends it with 0 (a server hands over what it holds before SIGTERM ends it,
within 30 s).  Nodes may start in any order.
"""


_LISTENING = (
    click.option("--interface", default="", metavar="NAME", help="Listen for other hosts at this interface or address; default: towards the master, if that is on TCP."),
    click.option("--port", "--port-range", "port", default="", metavar="N|A-B", help="Port, or range whose first free one is taken; default: any free one."),
)  # fmt: skip
_PROVING = (
    click.option("--keys", default="", metavar="DIR", help="Directory of keys (plugml keygen); default PLUGML_KEYS, else where cluster.json says."),
    click.option("--data-security", type=click.Choice(["keys", "plain"]), default="keys", help="plain: pushes and values travel unencrypted (docs/security.md)."),
    click.option("--insecure-trusted-network", "insecure", is_flag=True, help="Speak over TCP without keys: whoever reaches the port can do everything."),
)  # fmt: skip


def reach_options(function: F) -> F:
    """How a whole cluster is reached by other hosts."""
    for option in reversed((*_LISTENING, *_PROVING)):
        function = option(function)
    return function


def _options(role: str, id_: str) -> Callable[[F], F]:
    options = [
        click.option("--id", "id_", default=id_, show_default=True, metavar="ID", help=f"The {role}'s id: a letter and a number."),
        click.option("--cluster", default="", metavar="WHICH", help="Which cluster: its name, its cluster.json, or HOST:PORT of its master; default PLUGML_CLUSTER, else the only one here."),
        click.option("--root", type=click.Path(), default=None, metavar="DIR", help="Directory in memory for channels and sockets."),
        click.option("--state", type=click.Path(), default=None, metavar="DIR", help="Directory for what must outlive the process."),
        *_PROVING,
        *(_LISTENING if role != "agent" else ()),
        click.option("--log", default="", metavar="FILE", help="Append to FILE instead of standard error."),
        click.option("-v", "--verbose", is_flag=True, help="Say more."),
        click.option("--supervised", is_flag=True, hidden=True),
    ]

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


@click.command(epilog="\b\nExamples:\n  plugml master --cluster lab --servers 2\n  plugml master --cluster lab --id m1 --masters 3 --store etcd://127.0.0.1:2379\n\n" + FOOT)
@_options("master", "m0")
@click.option("--servers", default=1, show_default=True, metavar="N", type=click.IntRange(0), help="The first job waits a while for N servers.")
@click.option("--copies", default=0, metavar="N", type=click.IntRange(0, 3), help="Copies of each range of jobs that do not say (default: 2 where there are two servers).")
@click.option("--masters", default=0, metavar="N", type=click.IntRange(0, 9), help="The cluster has masters m0, m1 ... on this host (default: this one alone, or as it runs already).")
@click.option("--store", default="", metavar="WHERE", help="Where the state lies: sqlite (default), a file in --state; or etcd://HOST:PORT,HOST:PORT (or /PATH/OF/SOCKET), which several masters share.")
def master(id_: str, supervised: bool, log: str, verbose: bool, servers: int, copies: int, masters: int, store: str, **where: Any) -> int:
    """Run a master: it decides who owns what, and is never in the way of data.

    Several masters of a cluster share an etcd (--store); one of them leads, and the others take over when it ends.
    """
    from ..launch import byhand, reach
    from ..master.main import run_master
    from ..runtime.log import LogFile

    wish = wish_of(where)
    cluster = _places(supervised, new=True, **where)
    with _node(cluster, id_, "m", allow_disk=True):  # the agent judges: only the channels need memory
        if not supervised:
            cluster = byhand.with_masters(cluster, id_, masters, store)
        cluster = reach.master_at(cluster, id_, wish, os.environ)
        endpoint = cluster.masters[id_]
        trust = reach.trust_of(cluster, id_, endpoint)
        hold = None
        if not supervised:
            hold = byhand.hold(reach.with_public_keys(cluster)._replace(pid=os.getpid(), keeper="master"), id_)
        try:
            if hold is not None:
                hold.publish()
            lines = LogFile(id_, log, verbose)
            return run_master(
                id_, cluster=cluster.name, endpoint=endpoint, state=cluster.state, servers=servers, copies=copies,
                store=cluster.store or store or byhand.SQLITE, log=lines, trust=trust,
            )  # fmt: skip
        finally:
            byhand.let_go(hold, id_)


@click.command(epilog="\b\nExamples:\n  plugml server --cluster lab --id s1\n  plugml server --cluster node7:7000 --keys plugml-keys --id s1\n\n" + FOOT)
@_options("server", "s0")
def server(id_: str, supervised: bool, log: str, verbose: bool, **where: Any) -> int:
    """Run a server: it keeps key ranges of the tables."""
    from ..launch import reach
    from ..runtime.log import LogFile
    from ..server.main import run_server

    wish = wish_of(where)
    cluster = reach.secured(_places(supervised, new=False, **where), wish, os.environ)
    with _node(cluster, id_, "s", allow_disk=True):
        endpoint = reach.listen_at(cluster, id_, wish)
        trust = reach.trust_of(cluster, id_, endpoint)
        lines = LogFile(id_, log, verbose)
        return run_server(id_, endpoint=endpoint, masters=cluster.masters, log=lines, trust=trust)


@click.command(epilog="\b\nExamples:\n  plugml agent --cluster lab\n  plugml agent --cluster node7:7000 --keys plugml-keys --id a1\n\n" + FOOT)
@_options("agent", "a0")
@click.option("--allow-disk", is_flag=True, help="Accept a root that is not in memory (slow).")
def agent(id_: str, supervised: bool, log: str, verbose: bool, allow_disk: bool, **where: Any) -> int:
    """Run the agent of this host: it stands between the programs and the servers."""
    from ..agent.main import run_agent
    from ..launch import reach

    wish = wish_of(where)
    cluster = reach.secured(_places(supervised, new=False, **where), wish, os.environ)
    with _node(cluster, id_, "a", allow_disk):
        trust = reach.trust_of(cluster, id_)
        return run_agent(id_, cluster.name, cluster.root, cluster.masters, log=log, allow_disk=allow_disk, verbose=verbose, trust=trust)


def wish_of(where: dict[str, Any]) -> Wish:
    """Take what concerns TCP out of the options."""
    from ..core.addresses import parse_ports
    from ..launch.reach import Wish

    interface, port = where.pop("interface", ""), where.pop("port", "")
    plain_data = where.pop("data_security") == "plain"
    return Wish(interface, parse_ports(port) if port else (0, 0), where.pop("keys"), where.pop("insecure"), plain_data)


def _places(supervised: bool, new: bool, cluster: str, root: str | None, state: str | None) -> ClusterFile:
    """Where the node lives: as told, as the running cluster's file says, or by the rules for that name."""
    from ..launch import discovery

    given_root, given_state = (Path(path) if path else None for path in (root, state))
    wanted = cluster or os.environ.get("PLUGML_CLUSTER", "")
    if not supervised:
        found = discovery.named(wanted, os.environ) if wanted else None
        if found is None and not wanted and not new:
            found = discovery.find("", os.environ)
        if found is not None and (found.is_spread or (root is None and state is None)):
            return found._replace(root=given_root or found.root, state=given_state or found.state)
    file, note = discovery.places(wanted or discovery.new_name(), given_root, given_state, os.environ)
    if note:
        click.echo(f"plugml: {note}", err=True)
    if supervised:  # the supervisor has written down what it has chosen
        return discovery.named(str(file.state), os.environ) or file
    return file


@contextmanager
def _node(cluster: ClusterFile, id_: str, letter: str, allow_disk: bool = False) -> Iterator[None]:
    """The root is there, and no other process of this host is node `id_` of the cluster."""
    import fcntl

    from ..core.errors import UsageError, WorldError
    from ..launch.discovery import make_private
    from ..shm_protocol.root import prepare_root

    if not (id_.startswith(letter) and id_[1:].isascii() and id_[1:].isdecimal() and len(id_) <= 5):
        raise UsageError(f"--id {id_!r}: use {letter}0, {letter}1 ... {letter}9999")
    for warning in prepare_root(cluster.root, allow_disk=allow_disk):
        click.echo(f"plugml: {warning}", err=True)
    make_private(cluster.root / "ipc")
    path = cluster.root / "ipc" / f"{id_}.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise WorldError(
            f"another process ({holder}) is node {id_} of cluster {cluster.name} on this host: end that one, or take another --id"
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    try:
        yield
    finally:
        os.close(descriptor)
