"""`plugml status` and `plugml jobs`: what the master knows, as tables or JSON."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from .options import ago, cluster_option, columns, json_option, print_json, size

if TYPE_CHECKING:
    from ..launch.discovery import ClusterFile
    from .ask import Asker

EVERY_S = 1.0
#: What a cluster's file says of its TCP, in words.
SECURITY = {
    "": "TCP, keys unknown here",
    "keys": "TCP, encrypted, each node known by its key",
    "plain-data": "TCP, masters known by their keys; PUSHES AND VALUES PLAIN: whoever is on the network can read and forge them",
    "insecure": "TCP WITHOUT KEYS: whoever reaches a port can read and change everything",
}


@click.command(epilog="""\b
Examples:
  plugml status
  plugml status -w               again every second, until Ctrl-C
  plugml status digits           one job to the last range
  plugml status --json | jq '.nodes[] | select(.state != "alive")'
""")
@click.argument("job", default="")
@cluster_option
@click.option("-w", "--watch", is_flag=True, help="Show it again every second.")
@json_option
def status(job: str, cluster: str, watch: bool, as_json: bool) -> None:
    """Who is alive, which jobs there are, where their tables lie and why; with JOB, one job to the last range."""
    _show("job" if job else "status", {"job": job} if job else {}, cluster, watch, as_json)


@click.command(epilog="\b\nExamples:\n  plugml jobs\n  plugml jobs --json")
@cluster_option
@click.option("-w", "--watch", is_flag=True, help="Show it again every second.")
@json_option
def jobs(cluster: str, watch: bool, as_json: bool) -> None:
    """List the jobs of a cluster, also those that have ended."""
    _show("jobs", {}, cluster, watch, as_json)


def _show(verb: str, arguments: dict[str, Any], cluster: str, watch: bool, as_json: bool) -> None:
    from ..launch import discovery
    from .ask import Asker

    file = discovery.find(cluster, os.environ)
    with Asker(file) as asker:
        if not watch:
            _print(asker, verb, arguments, file, as_json)
            return
        clear = "\x1b[H\x1b[2J" if sys.stdout.isatty() and not as_json else ""
        while True:
            sys.stdout.write(clear)
            _print(asker, verb, arguments, file, as_json)
            sys.stdout.flush()
            time.sleep(EVERY_S)


def _print(asker: Asker, verb: str, arguments: dict[str, Any], file: ClusterFile, as_json: bool) -> None:
    document = asker.ask_all(verb, **arguments)
    if as_json:
        if verb == "status":
            document |= {"root": str(file.root), "state": str(file.state), "keeper": file.keeper, "pid": file.pid}
            document |= {"security": file.security} if file.is_spread else {}
        print_json(document)
    elif verb == "status":
        click.echo(status_text(document, file))
    elif verb == "jobs":
        click.echo(jobs_text(document))
    else:
        click.echo(job_text(document))


def status_text(document: dict[str, Any], file: ClusterFile) -> str:
    """The whole picture for people."""
    lines = [
        f"cluster {document['cluster']}  master {document['master']} up {ago(document['up_us'])}  "
        f"map version {document['token']}  store {document['store']}",
        f"root {file.root}  state {file.state}",
        *([f"between hosts: {SECURITY[file.security]}"] if file.is_spread else []),
        "",
    ]
    if document.get("alarms"):
        lines += [*(f"! {alarm}" for alarm in document["alarms"]), ""]
    rows = [("NODE", "ROLE", "STATE", "HOST", "PID", "SEEN", "LEADS", "BACKS", "WHY")]
    for node in document.get("nodes", ()):
        counts = [str(node.get(key, 0)) if node["role"] == "server" else "" for key in ("leads", "backs")]
        seen = f"{ago(node['age_us'])} ago"
        rows.append((node["node"], node["role"], node["state"], node["host"], str(node["pid"]), seen, *counts, remark(node)))
    lines.append(columns(rows) if len(rows) > 1 else "no server and no agent is registered")
    here = {node["node"].partition(".")[0] for node in document.get("nodes", ()) if node["state"] != "dead"}
    away = [key for key in document.get("drained", ()) if key not in here]
    if away:
        lines.append(f"drained, and not here: {', '.join(away)}")
    lines += ["", jobs_text(document)]
    return "\n".join(lines)


def remark(node: dict[str, Any]) -> str:
    """What there is to say of a node beside its state."""
    words = [node["why"], "drained: it gets nothing" if node.get("drained") else ""]
    words += [f"is being filled with {node['learns']}" if node.get("learns") else "", noise(node["counters"])]
    return "; ".join(filter(None, words))


def noise(counters: dict[str, int]) -> str:
    """What a node was sent that nobody of ours sends, "" for nothing.

    >>> noise({"net_refused": 2, "garbage": 1, "pushes": 9})
    '1 connection and 2 messages were nonsense'
    """
    counts = {"connection": counters.get("garbage", 0), "message": counters.get("net_refused", 0) + counters.get("net_strangers", 0)}
    words = [f"{count:,} {thing}{'s' * (count != 1)}" for thing, count in counts.items() if count]
    return " and ".join(words) + (" was nonsense" if list(counts.values()) in ([1, 0], [0, 1]) else " were nonsense") if words else ""


def jobs_text(document: dict[str, Any]) -> str:
    from ..launch.words import copies_line

    found = document.get("jobs", ())
    if not found:
        return "no jobs"
    rows = [("JOB", "STATE", "WORKERS", "MODEL", "SIZE", "RANGES", "COPIES", "SERVERS", "REASON")]
    for job in found:
        workers = f"{job['attached']}/{job['workers']}"
        model = f"{job['consistency']} {job['combine']}"
        where = (str(job["ranges"]), str(job["copies"]), str(len(job["servers"])))
        rows.append((job["name"], job["state"], workers, model, size(job["bytes"]), *where, job["reason"]))
    lines = [columns(rows)]
    for job in found:
        if job["state"] == "running":
            lines += [f"  {job['name']}: {line}" for line in job["placement"]]
            lines += [] if job["missing"] else [f"  {job['name']}: {copies_line(job['copies'], job['min_insync'])}"]
            if job["checkpoint"]["number"]:
                lines.append(f"  {job['name']}: last checkpoint at clock {job['checkpoint']['clock']:,}, in {job['checkpoint']['dir']}")
            if job["missing"] or job["moves"]:
                lines.append(f"  {job['name']}: copies missing of {job['missing']} ranges; {job['learners']} ranges are being copied, {job['moves']} copies are to move")
    return "\n".join(lines)


def job_text(document: dict[str, Any]) -> str:
    """One job, its tables, its workers and every range of it."""
    lines = [jobs_text({"jobs": [{**document["job"], "placement": document.get("tables", ())}]}), ""]
    rows = [("RANGE", "EPOCH", "LEADS", "BACKS", "FILLED", "SIZE", "WHY")]
    for row in document.get("ranges", ()):
        leads, *backs = row["replicas"] or ["nobody"]
        rows.append((str(row["range"]), str(row["epoch"]), leads, ", ".join(backs), row["learner"], size(row["bytes"]), row["why"]))
    lines.append(columns(rows))
    workers = document.get("workers", ())
    if workers:
        lines += ["", columns([("WORKER", "GEN", "AGENT"), *((str(w["worker"]), str(w["gen"]), w["agent"]) for w in workers)])]
    return "\n".join(lines)
