"""`plugml logs`: what nodes and workers have said, from the files that they write."""

from __future__ import annotations

import heapq
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from .options import cluster_option

if TYPE_CHECKING:
    from ..launch.discovery import ClusterFile

LOOK_S = 0.25
CHUNK_BYTES = 1 << 16


@click.command(epilog="""\b
Examples:
  plugml logs                    every node of the only cluster, in the order of time
  plugml logs -f s0              one server, and what it says from now on
  plugml logs digits             what the workers of job digits printed
""")
@click.argument("what", default="", metavar="[NODE|JOB]")
@cluster_option
@click.option("-f", "--follow", is_flag=True, help="Go on with what is said from now on.")
def logs(what: str, cluster: str, follow: bool) -> None:
    """Show the logs of the nodes of a cluster on this host, or of the workers of a job."""
    from ..core.errors import NoClusterError, UsageError
    from ..launch import discovery

    directory = Path("plugml-runs") / what / "logs"
    try:
        file = discovery.find(cluster, os.environ)
    except NoClusterError:
        if not what or not directory.is_dir():
            raise
        files = {}  # a job outlives its private cluster
    else:
        files = {path.stem: path for path in sorted(file.logs.glob("*.log"))}
        if what and what.partition(".")[0] not in files and not directory.is_dir():
            directory = _directory_of(file, what)

    id_ = what.partition(".")[0]
    if not what:
        chosen = files
    elif id_ in files:
        chosen = {id_: files[id_]}
    elif directory.is_dir():
        chosen = {path.stem: path for path in sorted(directory.glob("*.log"))}
    else:
        known = ", ".join(files) or "none"
        raise UsageError(f"{what!r} is neither a node (there are {known}) nor a job whose logs are on this host")
    with _opened(chosen) as opened:
        _print(opened)
        if follow:
            _follow(opened)


def _directory_of(file: ClusterFile, job: str) -> Path:
    """Where the launcher of a job keeps what its workers print, as it told the master."""
    from ..core.errors import UsageError
    from .ask import Asker

    with Asker(file) as asker:
        for row in asker.ask_all("jobs").get("jobs", ()):
            if row["name"] == job:
                if not row.get("logs"):
                    raise UsageError(f"job {job} has a channel by hand: its output goes to the terminal that its program was started from")
                return Path(str(row.get("logs") or "/nowhere"))
    return Path("/nowhere")


def _print(opened: dict[str, BinaryIO]) -> None:
    """Lines of ours begin with the time, so that several logs can be put in order; others come one after the other."""
    out = sys.stdout.buffer
    if len(opened) == 1 or all(name[0] != "w" for name in opened):
        out.writelines(heapq.merge(*opened.values()) if len(opened) > 1 else next(iter(opened.values()), ()))
    else:
        for name, lines in opened.items():
            prefix = f"[{name}] ".encode()
            out.writelines(prefix + line.removesuffix(b"\n") + b"\n" for line in lines)
    out.flush()


class _opened:
    """The files, open, by name; those that are not there any more are left out."""

    def __init__(self, files: dict[str, Path]) -> None:
        self._paths = files
        self._files: dict[str, BinaryIO] = {}

    def __enter__(self) -> dict[str, BinaryIO]:
        for name, path in self._paths.items():
            try:
                self._files[name] = path.open("rb")
            except FileNotFoundError:
                continue
        return self._files

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()


def _follow(opened: dict[str, BinaryIO]) -> None:
    """What is appended after the place to which each file was read, until Ctrl-C or the reader has gone."""
    rest = dict.fromkeys(opened, b"")
    prefixes = {name: f"[{name}] ".encode() if len(opened) > 1 and name[0] == "w" else b"" for name in opened}
    while True:
        for name, file in opened.items():
            for line in _new_lines(file, rest, name):
                sys.stdout.buffer.write(prefixes[name] + line + b"\n")
        sys.stdout.buffer.flush()
        time.sleep(LOOK_S)


def _new_lines(file: BinaryIO, rest: dict[str, bytes], name: str) -> Iterator[bytes]:
    while chunk := file.read(CHUNK_BYTES):
        *lines, rest[name] = (rest[name] + chunk).split(b"\n")
        yield from lines
