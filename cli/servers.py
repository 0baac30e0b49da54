"""`plugml drain` and `plugml scale`: copies move between the servers that are there, while training goes on."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ..core.errors import RequestError, WorldError
from .options import cluster_option, json_option, print_json

if TYPE_CHECKING:
    from .ask import Asker

EVERY_S = 0.5
START_S = 60.0  # a server is ready by then
SAY_S = 5.0  # how often a line says how far it is


@click.command(epilog="""\b
Examples:
  plugml drain s2                then end it, or its host: nothing is lost
  plugml drain s2 --cancel       it takes part again
  plugml drain s2 --gone         its host will never come back
""")
@click.argument("server")
@cluster_option
@click.option("--cancel", is_flag=True, help="Let it take part again; what has moved stays where it is.")
@click.option("--gone", is_flag=True, help="It is not heard and never will be: count it as dead now.")
@click.option("--no-wait", is_flag=True, help="Give the order and do not wait for its end.")
@json_option
def drain(server: str, cluster: str, cancel: bool, gone: bool, no_wait: bool, as_json: bool) -> None:
    """Move everything that SERVER holds to the others, while training goes on. Afterwards it gets nothing until that is cancelled."""
    if cancel and gone:
        raise click.UsageError("--cancel and --gone do not go together")
    with _asker(cluster) as asker:
        if gone:
            document = asker.ask("gone", server=server)
            _end({**document, "text": f"server {document['node'] or server} counts as dead"}, as_json)
            return
        document = asker.ask("drain", server=server, cancel=cancel)
        watched = document if cancel or no_wait else _watch(asker, document, as_json, "drain", server=server)
        if not cancel and watched["state"] == "in use":
            raise WorldError(f"the drain of server {watched['server']} was cancelled")
    _end(watched, as_json)


@click.command(epilog="""\b
Examples:
  plugml scale                   after servers have joined
  plugml scale 4                 start or end servers until `plugml up` keeps four
  plugml scale --cancel          what has not moved stays where it is
""")
@click.argument("servers", required=False, default="", metavar="[N]")
@cluster_option
@click.option("--cancel", is_flag=True, help="Forget the moves that have not been done.")
@click.option("--no-wait", is_flag=True, help="Give the order and do not wait for its end.")
@json_option
def scale(servers: str, cluster: str, cancel: bool, no_wait: bool, as_json: bool) -> None:
    """Spread what there is over the servers that are there, while training goes on: those that have joined get their share.

    With N, servers are started, or emptied and ended, until there are N of them.
    """
    if servers and (cancel or no_wait):
        raise click.UsageError("a number of servers does not go together with --cancel or --no-wait")
    from ..core.ring import plural
    from ..launch import resize

    with _asker(cluster) as asker:
        count = resize.parse(servers) if servers else 0
        gone = _shrink(asker, count, as_json) if count else []
        if count:
            _grow(asker, count)
        document = asker.ask("scale", cancel=cancel)
        document = document if cancel or no_wait else _watch(asker, document, as_json, "scale")
        if count:
            kept = resize.ask(asker.cluster)
            said = f"{plural(len(kept), 'server')}: {', '.join(kept)}" + (f"; ended: {', '.join(gone)}" if gone else "")
            document = {**document, "servers": kept, "ended": gone, "text": f"{said}. {document['text']}"}
        _end(document, as_json)


def _shrink(asker: Asker, count: int, quiet: bool) -> list[str]:
    """Empty and end those that are too many, the highest numbers; gives their ids.  Ended before that, by Ctrl-C or an error, none is."""
    from ..launch import resize

    kept = resize.ask(asker.cluster)
    gone = kept[count:]
    if not gone:
        return []
    for job in asker.ask("status")["jobs"]:
        if job["state"] == "running" and job["copies"] > count:
            raise WorldError(f"job {job['name']} keeps {job['copies']} copies of each range, which needs {job['copies']} servers: end it first, or leave it as many")
    ordered = False
    try:
        orders = {server: asker.ask("drain", server=server, cancel=False) for server in gone}
        for server, document in orders.items():
            if _watch(asker, document, quiet, "drain", " (Ctrl-C: they stay after all)", server=server)["state"] == "in use":
                raise WorldError(f"the drain of server {server} was cancelled: it goes on")
        ordered = True
        resize.ask(asker.cluster, count)
    finally:
        if not ordered:
            for server in gone:
                asker.ask("drain", server=server, cancel=True)
    _until(lambda: not alive(asker) & set(gone), f"{', '.join(gone)} did not end")
    for server in gone:  # one of that name that comes later is not meant
        with contextlib.suppress(RequestError):  # asked twice, since the answer was late: then there is no such server any more
            asker.ask("drain", server=server, cancel=True)
    return gone


def _grow(asker: Asker, count: int) -> None:
    """Until so many are there and take part."""
    from ..launch import resize

    before = set(resize.ask(asker.cluster))
    kept = resize.ask(asker.cluster, count, alive(asker) - before)
    _until(lambda: alive(asker) >= set(kept), f"not all of {', '.join(kept)} get ready")
    for server in kept:
        if server not in before:  # one of that name may have been emptied
            asker.ask("drain", server=server, cancel=True)


def alive(asker: Asker) -> set[str]:
    """Ids of the nodes that the masters hear."""
    return {node["node"].partition(".")[0] for node in asker.ask("status")["nodes"] if node["state"] == "alive"}


def _until(holds: Callable[[], bool], complaint: str) -> None:
    end = time.monotonic() + START_S
    while not holds():
        if time.monotonic() > end:
            raise WorldError(f"{complaint}: see `plugml logs`")
        time.sleep(EVERY_S)


def _asker(cluster: str) -> Asker:
    from ..launch import discovery
    from .ask import Asker

    return Asker(discovery.find(cluster, os.environ))


def _watch(
    asker: Asker, document: dict[str, Any], quiet: bool, verb: str, hint: str = " (Ctrl-C stops watching, not the order)", **arguments: Any
) -> dict[str, Any]:
    """Until nothing is left to move; says now and then how far it is."""
    said, said_s = "", 0.0
    while document.get("state") == "draining" or document.get("moves"):
        if not quiet and document["text"] != said and time.monotonic() - said_s >= SAY_S:
            click.echo(document["text"] + hint, err=True)
            said, said_s, hint = document["text"], time.monotonic(), ""
        time.sleep(EVERY_S)
        document = asker.ask(verb, look=True, **arguments)
    return document


def _end(document: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(document)
    else:
        click.echo(document["text"])
