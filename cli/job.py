"""`plugml stop`, `plugml rm`, `plugml checkpoint`: the end of a job, and of its memory; what it is gone on from."""

from __future__ import annotations

import os
from typing import Any

import click

from .options import cluster_option, json_option, print_json

CHECKPOINT_S = 3600.0  # a large model on a slow disk, behind a clock that takes its time


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


@click.command(epilog="\b\nExamples:\n  plugml checkpoint digits\n  plugml checkpoint digits && plugml drain s1")
@click.argument("job")
@cluster_option
@json_option
def checkpoint(job: str, cluster: str, as_json: bool) -> None:
    """Make a checkpoint of a running job as soon as it can be, and wait for it; training goes on (docs/checkpoints.md).

    Here, where the job was started: its agent asks for it.
    """
    import asyncio

    from ..core.errors import WorldError
    from ..launch import discovery
    from ..launch.agentlink import SOCKET, ask_once
    from .ask import Asker

    found = discovery.find(cluster, os.environ)
    with Asker(found) as asker:
        running = [item["name"] for item in asker.ask("status")["jobs"] if item["state"] == "running"]
        if job not in running:
            raise WorldError(f"there is no running job {job!r}; those that run: {', '.join(running) or 'none'}")
        answer = asyncio.run(ask_once(found.root / SOCKET, "checkpoint", {"job": job}, CHECKPOINT_S))
        if "is not known to this agent" in answer.text:
            raise WorldError(f"job {job} was started on another host: give the command there, or SIGUSR1 to its `plugml run`")
        if answer.code:
            raise WorldError(answer.text)
        told: dict[str, Any] = next((item["checkpoint"] for item in asker.ask("status")["jobs"] if item["name"] == job), {})
    document = {"job": job, "number": answer.fields["number"], "clock": answer.fields["clock"], "dir": told.get("dir", "")}
    if as_json:
        print_json(document)
    else:
        click.echo(f"checkpoint {document['number']} of job {job} is that of clock {document['clock']:,}, in {document['dir']}")


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
