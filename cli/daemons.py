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

F = TypeVar("F", bound=Callable[..., Any])

FOOT = """\b
It runs in the foreground, writes `event key=value` lines to standard error (or --log), says `event=ready` and, with
NOTIFY_SOCKET, READY=1.  SIGTERM or Ctrl-C ends it with 0.  Nodes may start in any order.
"""


def _options(role: str, id_: str) -> Callable[[F], F]:
    options = [
        click.option("--id", "id_", default=id_, show_default=True, metavar="ID", help=f"The {role}'s id: a letter and a number."),
        click.option("--cluster", default="", metavar="NAME|FILE", help="Which cluster; default PLUGML_CLUSTER, else the only one here."),
        click.option("--root", type=click.Path(), default=None, metavar="DIR", help="Directory in memory for channels and sockets."),
        click.option("--state", type=click.Path(), default=None, metavar="DIR", help="Directory for what must outlive the process."),
        click.option("--log", default="", metavar="FILE", help="Append to FILE instead of standard error."),
        click.option("-v", "--verbose", is_flag=True, help="Say more."),
        click.option("--supervised", is_flag=True, hidden=True),
    ]

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


@click.command(epilog="\b\nExamples:\n  plugml master --cluster lab --servers 2\n\n" + FOOT)
@_options("master", "m0")
@click.option("--servers", default=1, show_default=True, metavar="N", type=click.IntRange(0), help="The first job waits a while for N servers.")
def master(id_: str, supervised: bool, log: str, verbose: bool, servers: int, **where: Any) -> int:
    """Run a master: it decides who owns what, and is never in the way of data."""
    from ..launch import discovery
    from ..master.main import run_master
    from ..runtime.log import LogFile

    cluster = _places(supervised, new=True, **where)
    with _node(cluster, id_, "m", allow_disk=True):  # the agent judges: only the channels need memory
        hold = None if supervised else discovery.Hold(cluster._replace(pid=os.getpid(), keeper="master"))
        try:
            if hold is not None:
                hold.publish()
            lines = LogFile(id_, log, verbose)
            endpoint = cluster.endpoint(id_)
            return run_master(id_, cluster=cluster.name, endpoint=endpoint, state=cluster.state, servers=servers, log=lines)
        finally:
            if hold is not None:
                hold.withdraw()


@click.command(epilog="\b\nExamples:\n  plugml server --cluster lab --id s1\n\n" + FOOT)
@_options("server", "s0")
def server(id_: str, supervised: bool, log: str, verbose: bool, **where: Any) -> int:
    """Run a server: it keeps key ranges of the tables."""
    from ..runtime.log import LogFile
    from ..server.main import run_server

    cluster = _places(supervised, new=False, **where)
    with _node(cluster, id_, "s", allow_disk=True):
        lines = LogFile(id_, log, verbose)
        endpoint = cluster.endpoint(id_)
        return run_server(id_, endpoint=endpoint, masters=cluster.masters, log=lines)


@click.command(epilog="\b\nExamples:\n  plugml agent --cluster lab\n\n" + FOOT)
@_options("agent", "a0")
@click.option("--allow-disk", is_flag=True, help="Accept a root that is not in memory (slow).")
def agent(id_: str, supervised: bool, log: str, verbose: bool, allow_disk: bool, **where: Any) -> int:
    """Run the agent of this host: it stands between the programs and the servers."""
    from ..agent.main import run_agent

    cluster = _places(supervised, new=False, **where)
    with _node(cluster, id_, "a", allow_disk):
        return run_agent(id_, cluster.name, cluster.root, cluster.masters, log=log, allow_disk=allow_disk, verbose=verbose)


def _places(supervised: bool, new: bool, cluster: str, root: str | None, state: str | None) -> ClusterFile:
    """Where the node lives: as told, as the running cluster's file says, or by the rules for that name."""
    from ..launch import discovery

    given_root, given_state = (Path(path) if path else None for path in (root, state))
    wanted = cluster or os.environ.get("PLUGML_CLUSTER", "")
    if not supervised:
        found = discovery.named(wanted, os.environ) if wanted else None
        if found is None and not wanted and not new:
            found = discovery.find("", os.environ)
        if found is not None and root is None and state is None:
            return found
    file, note = discovery.places(wanted or discovery.new_name(), given_root, given_state, os.environ)
    if note:
        click.echo(f"plugml: {note}", err=True)
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
