"""`plugml drain` and `plugml scale`: copies move between the servers that are there, while training goes on."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import click

from ..core.errors import WorldError
from .options import cluster_option, json_option, print_json

if TYPE_CHECKING:
    from .ask import Asker

EVERY_S = 0.5
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
  plugml scale --cancel          what has not moved stays where it is
""")
@cluster_option
@click.option("--cancel", is_flag=True, help="Forget the moves that have not been done.")
@click.option("--no-wait", is_flag=True, help="Give the order and do not wait for its end.")
@json_option
def scale(cluster: str, cancel: bool, no_wait: bool, as_json: bool) -> None:
    """Spread what there is over the servers that are there, while training goes on: those that have joined get their share."""
    with _asker(cluster) as asker:
        document = asker.ask("scale", cancel=cancel)
        _end(document if cancel or no_wait else _watch(asker, document, as_json, "scale"), as_json)


def _asker(cluster: str) -> Asker:
    from ..launch import discovery
    from .ask import Asker

    return Asker(discovery.find(cluster, os.environ))


def _watch(asker: Asker, document: dict[str, Any], quiet: bool, verb: str, **arguments: Any) -> dict[str, Any]:
    """Until nothing is left to move; says now and then how far it is.  Ctrl-C ends the watching only."""
    said, said_s = "", 0.0
    hint = " (Ctrl-C stops watching, not the order)"
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
