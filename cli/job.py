"""`plugml stop` and `plugml rm`: the end of a job, and of its memory."""

from __future__ import annotations

import os
from typing import Any

import click

from .options import cluster_option, json_option, print_json


@click.command(epilog="\b\nExamples:\n  plugml stop digits\n  plugml stop --cluster lab digits")
@click.argument("job")
@cluster_option
@json_option
def stop(job: str, cluster: str, as_json: bool) -> None:
    """End a running job: its workers are told, and the servers drop its memory."""
    _told(_order("stop", job, cluster), as_json)


@click.command(epilog="\b\nExamples:\n  plugml rm digits")
@click.argument("job")
@cluster_option
@json_option
def rm(job: str, cluster: str, as_json: bool) -> None:
    """Forget a job that has ended."""
    _told(_order("rm", job, cluster), as_json)


def _order(verb: str, job: str, cluster: str) -> dict[str, Any]:
    from ..launch import discovery
    from .ask import Asker

    with Asker(discovery.find(cluster, os.environ)) as asker:
        return asker.ask(verb, job=job)


def _told(document: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(document)
    else:
        click.echo(f"job {document['name']} is {document['state']}")
