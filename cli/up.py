"""`plugml up` and `plugml down`: a standing cluster on this host."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .daemons import reach_options, wish_of
from .options import json_option

if TYPE_CHECKING:
    from ..launch.discovery import ClusterFile
    from ..launch.reach import Wish

GUESTS = 4  # servers and agents of other hosts for which there are keys from the start
DOWN_S_MAX = 60.0  # the keeper kills what does not end within its own grace; then something is very wrong
WAIT_SAID_S = 10.0


@click.command(epilog="""\b
Examples:
  plugml up                      in the foreground; Ctrl-C takes it down
  plugml up -d --servers 4       in the background, once it is ready
  plugml up -d --servers 4 --masters 3 --copies 2     any master, and any server, may die
  plugml up -d --name lab && plugml run --cluster lab -n 4 -- ./trainer
  plugml up -d --interface eth0 --port 7000           others join over TCP; it says how
""")
@click.option("-d", "--detach", is_flag=True, help="Return when it is ready; it runs on in the background.")
@click.option("--name", default="", metavar="NAME", help="The cluster's name (default user-host-6hex).")
@click.option("--servers", default=2, show_default=True, metavar="N", type=click.IntRange(1, 1000), help="How many servers.")
@click.option("--masters", default=1, show_default=True, metavar="N", type=int, help="1, or 3 or 5 that take over from each other; they need the program etcd.")
@click.option("--copies", default=0, metavar="N", type=click.IntRange(0, 3), help="Copies of every part of a model, of jobs that do not say (default: 2 where there are two servers).")
@click.option("--root", type=click.Path(), default=None, metavar="DIR", help="Directory in memory for channels and sockets.")
@click.option("--state", type=click.Path(), default=None, metavar="DIR", help="Directory for what the master must not forget, and logs.")
@click.option("--allow-disk", is_flag=True, help="Accept a root that is not in memory (slow).")
@click.option("-v", "--verbose", is_flag=True, help="Say more, and log more.")
@click.option("--detached", is_flag=True, hidden=True)
@reach_options
@json_option
def up(
    detach: bool, name: str, servers: int, masters: int, copies: int, root: str | None, state: str | None, allow_disk: bool,
    verbose: bool, detached: bool, as_json: bool, **where: Any,
) -> int:  # fmt: skip
    """Start a cluster on this host: masters, servers and an agent, watched and started again when they die.

    It is found by name, by PLUGML_CLUSTER, or because it is the only one. With --interface, servers and agents of other hosts
    may join; keys for them are made.
    """
    from ..launch import discovery

    if where["keys"]:
        where["keys"] = str(Path(where["keys"]).absolute())  # in the background we are elsewhere
    told = [word for key, value in where.items() for word in _flag(key, value)]
    wish = wish_of(where)

    name = name or os.environ.get("PLUGML_CLUSTER", "") or discovery.new_name()
    file, note = discovery.places(name, Path(root) if root else None, Path(state) if state else None, os.environ)
    if note:
        _say(note)
    file = _with_masters(file, masters, copies, servers)
    discovery.clear_dead_runs(os.environ)
    if wish.is_tcp and not discovery.keeper_of(file):  # one that runs is refused by its lock, not by its ports
        file = _for_others(file, servers, wish)
    if detach:
        return _in_background(file, servers, copies, [*["--allow-disk"] * allow_disk, *["-v"] * verbose, *told], as_json)
    return _keep(file, servers, copies, allow_disk, verbose, detached, as_json)


def _flag(key: str, value: Any) -> list[str]:
    """The words by which an option of `reach_options` is given again."""
    name = {"insecure": "--insecure-trusted-network", "data_security": "--data-security"}.get(key, f"--{key}")
    return [name] * value if isinstance(value, bool) else [name, value] if value else []


def _for_others(file: ClusterFile, servers: int, wish: Wish) -> ClusterFile:
    """The file with the masters' addresses, and keys for the nodes here and some of other hosts."""
    from ..launch import reach

    file = reach.masters_at(file, wish, os.environ)
    if file.security == "insecure":
        return file
    ids = [*file.masters, *(f"s{number}" for number in range(servers + GUESTS)), *(f"a{number}" for number in range(1 + GUESTS))]
    reach.make_cluster_keys(file, ids)
    return reach.with_public_keys(file)


def _with_masters(file: ClusterFile, masters: int, copies: int, servers: int) -> ClusterFile:
    """The file with all masters.  Raises `UsageError` for what cannot be, and where the state that is there is of other masters."""
    from ..core.errors import UsageError
    from ..launch import daemon, etcd

    if copies > servers:
        raise UsageError(f"--copies {copies}, but --servers {servers}: each copy of a range lies on a server of its own")
    etcd.check_masters(masters)
    if masters > 1:
        daemon.etcd_program(os.environ)
    there = daemon.masters_before(file)
    if there not in (0, masters):
        raise UsageError(
            f"the state of cluster {file.name} in {file.state} is that of {there} master{'s' * (there != 1)}: say --masters {there}, take another "
            f"--name, or forget it by `plugml down {file.name} --purge`"
        )
    return file._replace(masters={f"m{number}": file.endpoint(f"m{number}") for number in range(masters)})


def _keep(file: ClusterFile, servers: int, copies: int, allow_disk: bool, verbose: bool, detached: bool, as_json: bool) -> int:
    """Run the cluster until we are told to end, or it cannot go on."""
    import uvloop

    from ..launch.cluster import LocalCluster
    from ..runtime.descriptors import raise_limit
    from ..runtime.node import on_signals

    raise_limit()
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    speaker = Speaker()
    cluster = LocalCluster(
        loop, file, os.environ, servers=servers, copies=copies, allow_disk=allow_disk, verbose=verbose, say=lambda text: speaker.say(text)
    )
    end: asyncio.Future[int] = loop.create_future()

    def ended(code: int) -> None:
        if not end.done():
            end.set_result(code)

    def news(text: str, fatal: bool) -> None:
        speaker.say(text)
        if fatal:
            ended(1)

    async def life() -> int:
        """All of it in one run of the loop: no signal falls between two."""
        try:
            cluster.start()
            ready = asyncio.ensure_future(cluster.wait_ready())
            first: list[asyncio.Future[Any]] = [ready, end]
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if not end.done():
                _is_up(cluster.file, servers, detached, as_json, speaker)
                await end
            ready.cancel()
            await asyncio.gather(ready, return_exceptions=True)
            speaker.say(f"cluster {file.name} goes down")
            return await end
        finally:
            await cluster.stop()

    on_signals(loop, lambda number: ended(0))
    cluster.on_news = news
    try:
        return loop.run_until_complete(life())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


class Speaker:
    """Says to the user what the supervisor has to say; once detached, to the log."""

    def __init__(self) -> None:
        self.say: Callable[[str], None] = _say

    def detach(self, path: Path) -> None:
        from ..runtime.log import LogFile

        log = LogFile("up", str(path))
        self.say = lambda text: log("news", text=text)


def _is_up(file: ClusterFile, servers: int, detached: bool, as_json: bool, speaker: Speaker) -> None:
    if detached:
        speaker.detach(file.logs / "up.log")
        os.write(1, b"ready\n")
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        os.dup2(nothing, 1)  # whoever started us waits for the end of this pipe
        os.dup2(nothing, 2)
        os.close(nothing)
        return
    _announce(file, servers, as_json)
    if not as_json:
        click.echo("Ctrl-C takes it down")


def _announce(file: ClusterFile, servers: int, as_json: bool) -> None:
    if as_json:
        click.echo(file.to_text(), nl=False)
    else:
        one = len(file.masters) == 1
        masters = "master m0" if one else f"masters {', '.join(file.masters)} with an etcd of {len(file.masters)} members"
        click.echo(f"cluster {file.name} is up: {masters}, {servers} server{'s' * (servers != 1)}, agent a0 (plugml status)")
        for line in _invitation(file, servers) if file.is_spread else ():
            click.echo(line)


def _invitation(file: ClusterFile, servers: int) -> list[str]:
    """What somebody does who wants another host to take part."""
    where = ",".join(endpoint.removeprefix("tcp://") for endpoint in file.masters.values())
    node = f"--cluster {where}"
    if file.security == "insecure":
        lines, words = ["another host joins by (WITHOUT KEYS: whoever reaches these ports can do everything)"], "--insecure-trusted-network"
    else:
        lines = ["another host joins with a key for each of its nodes (docs/hosts.md):"]
        lines += [f"  scp -p {file.keys}/{{roster.json,s{servers}.key,a1.key,admin.key}} HOST:plugml-keys/      # a directory of mode 0700"]
        words = "--keys plugml-keys"
    lines += [f"  plugml server {node} {words} --id s{servers}", f"  plugml agent  {node} {words} --id a1"]
    keys = "none" if file.security == "insecure" else "plugml-keys"
    return [*lines, f"  PLUGML_KEYS={keys} plugml run {node} -n 4 -- ./trainer     # plugml status alike"]


def _in_background(file: ClusterFile, servers: int, copies: int, more: list[str], as_json: bool) -> int:
    """Start `up` in a session of its own and wait until it says that it is ready; its complaints come through till then."""
    from ..launch.daemon import python_path
    from ..launch.discovery import named

    words = [sys.executable, "-P", "-m", "plugml", "up", "--detached", "--name", file.name, "--servers", str(servers)]
    words += ["--masters", str(len(file.masters)), "--copies", str(copies), "--root", str(file.root), "--state", str(file.state), *more]
    environment = {**os.environ, **python_path(os.environ)}
    if "PLUGML_KEYS" in environment:
        environment["PLUGML_KEYS"] = str(Path(environment["PLUGML_KEYS"]).absolute())
    process = subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment, cwd="/", start_new_session=True
    )
    assert process.stdout is not None
    try:
        told = process.stdout.read()
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        raise
    finally:
        process.stdout.close()
    if told != b"ready\n":
        return process.wait() or 1
    process.returncode = 0  # it is on its own now: nobody waits for it
    _announce(named(str(file.state), os.environ) or file, servers, as_json)
    return 0


@click.command(epilog="""\b
Examples:
  plugml down                    the only cluster here
  plugml down lab --purge        and forget what its master knew
""")
@click.argument("name", default="", metavar="[NAME|FILE]")
@click.option("--purge", is_flag=True, help="List, then remove its state: the master's store and the logs.")
@click.option("--wait", "wait_s", default=DOWN_S_MAX, show_default=True, metavar="SECONDS", type=click.FloatRange(0), help="For runs in it to end their programs.")
def down(name: str, purge: bool, wait_s: float) -> int:
    """End a cluster that `plugml up` keeps: nothing of it stays, but the master's store and the logs.

    Runs in it end, too. What could not be removed is named, and the exit code is 1.
    """
    from ..core.errors import WorldError
    from ..launch import discovery
    from ..launch.takedown import clear

    wanted = name or os.environ.get("PLUGML_CLUSTER", "")
    known = discovery.named(wanted, os.environ) if wanted else None
    if known is None and wanted and purge and "/" not in wanted:
        known, _ = discovery.places(wanted, None, None, os.environ)
    if not (known is not None and purge and _has_left(known) and not discovery.keeper_of(known)):
        known = discovery.find(name, os.environ)
        _end(known)
        click.echo(f"cluster {known.name} is down")
        root_is_its = True
    else:
        root_is_its = discovery.has_root(known)
    if not purge and not known.root.exists():
        return 0
    if left := clear(known, root_is_its, purge, wait_s, _say, click.echo):
        raise WorldError(left)
    return 0


def _has_left(known: ClusterFile) -> bool:
    from ..launch.discovery import has_root

    return known.state.is_dir() or has_root(known)


def _end(cluster: ClusterFile) -> None:
    """Tell the keeper to end, and wait until it has."""
    from ..core.errors import WorldError
    from ..launch.discovery import keeper_of

    pid = keeper_of(cluster)
    if cluster.keeper == "run":
        raise WorldError(f"cluster {cluster.name} is private to a `plugml run` (process {pid}): end that one")
    if cluster.keeper == "master":
        raise WorldError(f"cluster {cluster.name} was started by hand: end its processes where you started them (master: {pid})")
    try:
        keeper = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if keeper_of(cluster) != pid:
            return  # it ended just now, and the number may be another's
        signal.pidfd_send_signal(keeper, signal.SIGTERM)
        start = time.monotonic()
        while not select.select([keeper], [], [], WAIT_SAID_S)[0]:
            if time.monotonic() - start > DOWN_S_MAX:
                raise WorldError(f"process {pid}, which keeps cluster {cluster.name}, does not end: see {cluster.logs / 'up.log'}")
            _say(f"still waiting for process {pid} to take cluster {cluster.name} down")
    finally:
        os.close(keeper)


def _say(text: str) -> None:
    try:
        os.write(2, f"plugml: {text}\n".encode())
    except OSError:
        return  # nobody reads it
