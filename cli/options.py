"""Options that several verbs have, and tables for people.  Imports nothing heavy."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

COLOURS = {"alive": "32", "running": "32", "finished": "34", "suspect": "33", "offline": "33", "stopped": "33", "dead": "31", "lost": "31", "failed": "31"}


def cluster_option(function: F) -> F:
    text = "Which cluster: its name, its cluster.json, or HOST:PORT of its masters; default PLUGML_CLUSTER, else the only one here."
    return click.option("--cluster", default="", metavar="WHICH", help=text)(function)


def json_option(function: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="As JSON on standard output.")(function)


def print_json(document: Any) -> None:
    json.dump(document, sys.stdout, indent=1)
    sys.stdout.write("\n")


def has_colour() -> bool:
    """Colours go to a terminal whose user has not said NO_COLOR."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def columns(rows: Sequence[Sequence[str]], indent: str = "") -> str:
    """Rows as lines, each column as wide as its widest word; known states coloured on a terminal.

    >>> print(columns([("NODE", "STATE"), ("s0.9f3a01c2", "alive")]))
    NODE         STATE
    s0.9f3a01c2  alive
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))] if rows else []
    colour = has_colour()
    lines = []
    for row in rows:
        words = [word.ljust(width) for word, width in zip(row, widths)]
        if colour:
            words = [f"\x1b[{COLOURS[word]}m{padded}\x1b[0m" if word in COLOURS else padded for word, padded in zip(row, words)]
        lines.append((indent + "  ".join(words)).rstrip())
    return "\n".join(lines)


def ago(age_us: int) -> str:
    """A time span for people.

    >>> ago(400_000), ago(12_300_000), ago(7_260_000_000)
    ('0.4 s', '12 s', '2 h 1 min')
    """
    seconds = age_us / 1e6
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = int(seconds) // 60
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


def size(nbytes: int) -> str:
    """A number of bytes for people.

    >>> size(512), size(2560), size(64 << 20)
    ('512 B', '2.5 KiB', '64 MiB')
    """
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            return f"{value:.0f} {unit}" if value == int(value) or value >= 100 else f"{value:.1f} {unit}"
        value /= 1024
    return f"{nbytes} B"
