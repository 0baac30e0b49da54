"""What is done to the cluster, drawn from a seed.

A fault begins, lasts and ends.  `what` names the copies that it may cost: two faults at once never both cost some, for
with two copies of everything one server may be away at a time.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from .lab import AGENTS, MASTERS, SERVERS, Lab

MEMBERS = ("e0", "e1", "e2")
SERVER, MASTER, AGENT, DISK, ALL = "a server", "a master", "an agent", "a disk", "all"


class Fault(NamedTuple):
    """Under way: `words` say what it is, `end` undoes it."""

    kind: str
    words: str
    lasts_s: float
    end: Callable[[], object]


class Kind(NamedTuple):
    name: str
    costs: str  # of these things one may be away at a time
    begin: Callable[[Lab, random.Random], Fault]


def _nothing() -> None:
    """A supervisor starts it again."""


def _kill(kind: str, ids: tuple[str, ...]) -> Callable[[Lab, random.Random], Fault]:
    def begin(lab: Lab, draw: random.Random) -> Fault:
        victim = draw.choice(ids)
        lab.kill(victim)
        return Fault(kind, f"kill -9 of {victim}", 2.0, _nothing)

    return begin


def _retire(lab: Lab, draw: random.Random) -> Fault:
    victim = draw.choice(SERVERS)
    lab.retire(victim)
    return Fault("server told to end", f"SIGTERM to {victim}", 2.0, _nothing)


def _stop(kind: str, ids: tuple[str, ...], most_s: float) -> Callable[[Lab, random.Random], Fault]:
    def begin(lab: Lab, draw: random.Random) -> Fault:
        victim, lasts = draw.choice(ids), draw.uniform(0.3, most_s)
        lab.stop(victim)
        return Fault(kind, f"SIGSTOP of {victim} for {lasts:.1f} s", lasts, lab.go_on)

    return begin


def _cut_off(kind: str, ids: tuple[str, ...], most_s: float) -> Callable[[Lab, random.Random], Fault]:
    """A host that hears of nobody and of whom nobody hears."""

    def begin(lab: Lab, draw: random.Random) -> Fault:
        victim, lasts = draw.choice(ids), draw.uniform(0.3, most_s)
        others = [host for host in lab.net.hosts if host != victim]
        lab.net.cut(victim, *others)
        for other in others:
            lab.net.cut(other, victim)
        return Fault(kind, f"{victim} cut off from all for {lasts:.1f} s", lasts, lab.net.heal)

    return begin


def _one_way(lab: Lab, draw: random.Random) -> Fault:
    """What one host sends does not reach another."""
    deaf, lasts = draw.choice(SERVERS), draw.uniform(0.3, 6.0)
    others = [host for host in lab.net.hosts if host != deaf]
    unheard = draw.sample(others, draw.randint(1, 3))
    if draw.random() < 0.5:
        lab.net.cut(deaf, *unheard)
        return Fault("one way cut", f"{deaf} does not hear {', '.join(unheard)} for {lasts:.1f} s", lasts, lab.net.heal)
    for host in unheard:
        lab.net.cut(host, deaf)
    return Fault("one way cut", f"{', '.join(unheard)} do not hear {deaf} for {lasts:.1f} s", lasts, lab.net.heal)


def _between(lab: Lab, draw: random.Random) -> Fault:
    """Two servers, which hold copies of each other, and everybody else hears both."""
    one, other = draw.sample(SERVERS, 2)
    lasts = draw.uniform(0.3, 6.0)
    lab.net.cut(one, other)
    lab.net.cut(other, one)
    return Fault("two way cut", f"{one} and {other} cut off from each other for {lasts:.1f} s", lasts, lab.net.heal)


def _slow(lab: Lab, draw: random.Random) -> Fault:
    host, kib_s, lasts = draw.choice([*SERVERS, *AGENTS]), draw.choice([100, 300, 1000]), draw.uniform(2.0, 8.0)
    lab.net.slow(host, kib_s)
    return Fault("slow link", f"{kib_s} KiB/s to {host} for {lasts:.1f} s", lasts, lab.net.heal)


def _drain(lab: Lab, draw: random.Random) -> Fault:
    victim = draw.choice(SERVERS)
    done = lab.plugml("drain", victim)
    lab.plugml("drain", victim, "--cancel")
    lab.plugml("scale")
    return Fault("drain", f"drain of {victim} and back ({done.returncode})", 0.5, _nothing)


def _full_disk(disk: Path) -> Callable[[Lab, random.Random], Fault]:
    def begin(lab: Lab, draw: random.Random) -> Fault:
        lasts, ballast = draw.uniform(3.0, 8.0), disk / "ballast"
        with ballast.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(1 << 16)):
                    pass
            except OSError:
                pass  # full
        return Fault("full disk", f"no room for checkpoints for {lasts:.1f} s", lasts, lambda: ballast.unlink(missing_ok=True))

    return begin


def _freeze(lab: Lab, draw: random.Random) -> Fault:
    """The whole cluster stands still, as when the machine below sleeps."""
    lasts = draw.uniform(0.3, 5.0)
    for id_ in [*lab.running, *lab.etcd.running]:
        lab.stop(id_)
    return Fault("all stand still", f"SIGSTOP of everybody for {lasts:.1f} s", lasts, lab.go_on)


def _majority(lab: Lab, draw: random.Random) -> Fault:
    lasts = draw.uniform(1.0, 6.0)
    away = draw.sample(MEMBERS, 2)
    for id_ in away:
        lab.stop(id_)
    return Fault("no majority", f"SIGSTOP of {' and '.join(away)} for {lasts:.1f} s: nothing can be decided", lasts, lab.go_on)


def kinds(disk: Path | None) -> list[Kind]:
    found = [
        Kind("server killed", SERVER, _kill("server killed", SERVERS)),
        Kind("server killed", SERVER, _kill("server killed", SERVERS)),
        Kind("server told to end", SERVER, _retire),
        Kind("server stopped", SERVER, _stop("server stopped", SERVERS, 6.0)),
        Kind("server cut off", SERVER, _cut_off("server cut off", SERVERS, 6.0)),
        Kind("one way cut", SERVER, _one_way),
        Kind("two way cut", SERVER, _between),
        Kind("slow link", SERVER, _slow),
        Kind("drain", SERVER, _drain),
        Kind("master killed", MASTER, _kill("master killed", MASTERS)),
        Kind("master stopped", MASTER, _stop("master stopped", MASTERS, 6.0)),
        Kind("master cut off", MASTER, _cut_off("master cut off", MASTERS, 6.0)),
        Kind("etcd member killed", MASTER, _kill("etcd member killed", MEMBERS)),
        Kind("no majority", MASTER, _majority),
        Kind("agent killed", AGENT, _kill("agent killed", AGENTS)),
        Kind("agent stopped", AGENT, _stop("agent stopped", AGENTS, 5.0)),
        Kind("agent cut off", AGENT, _cut_off("agent cut off", AGENTS, 5.0)),
        Kind("all stand still", ALL, _freeze),
    ]
    return found if disk is None else [*found, Kind("full disk", DISK, _full_disk(disk))]


def draw_kinds(all_: list[Kind], draw: random.Random) -> list[Kind]:
    """One, or two that cost different things."""
    first = draw.choice(all_)
    if first.costs == ALL or draw.random() < 0.6:
        return [first]
    return [first, draw.choice([kind for kind in all_ if kind.costs not in (first.costs, ALL)])]
