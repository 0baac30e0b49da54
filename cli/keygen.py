"""`plugml keygen`: the keys of a cluster whose nodes speak over TCP."""

from __future__ import annotations

from pathlib import Path

import click

FOOT = """\b
Each node gets a pair of its own, DIR/ID.key, that only you can read; DIR/roster.json holds the public keys of all.
A host needs the roster and the keys of the nodes that run there, nothing else:
  ssh HOST mkdir -m 700 plugml-keys
  scp -p plugml-keys/roster.json plugml-keys/s1.key plugml-keys/a1.key HOST:plugml-keys/
Made again it makes what is missing and leaves the rest; copy the new roster to every host: running nodes read it by themselves.
Programs and workers need no keys. docs/security.md says what keys protect, and how they are renewed.
"""


@click.command(epilog="\b\nExamples:\n  plugml keygen --servers 4 --agents 2\n  plugml keygen --renew s1\n  plugml keygen --revoke a1\n  plugml keygen --admin ann --out lab-keys\n\n" + FOOT)
@click.option("--out", type=click.Path(), default="plugml-keys", show_default=True, metavar="DIR", help="Directory of the keys.")
@click.option("--masters", default=1, show_default=True, metavar="N", type=click.IntRange(0, 10_000), help="Keys m0, m1 ...")
@click.option("--servers", default=4, show_default=True, metavar="N", type=click.IntRange(0, 10_000), help="Keys s0, s1 ...")
@click.option("--agents", default=4, show_default=True, metavar="N", type=click.IntRange(0, 10_000), help="Keys a0, a1 ..., one a host.")
@click.option("--admin", "admins", multiple=True, metavar="NAME", help="Another key for commands, admin-NAME.key (repeatable).")
@click.option("--renew", multiple=True, metavar="ID", help="Make this one anew; the old one is good for nothing then (repeatable).")
@click.option("--revoke", multiple=True, metavar="ID", help="Strike this one out: who holds it is let in nowhere (repeatable).")
def keygen(
    out: str, masters: int, servers: int, agents: int, admins: tuple[str, ...], renew: tuple[str, ...], revoke: tuple[str, ...]
) -> None:
    """Make the keys of a cluster: needed where its nodes speak over TCP, never within one host."""
    from ..runtime.keys import make_keys

    counts = {"m": masters, "s": servers, "a": agents}
    ids = [f"{letter}{number}" for letter, count in counts.items() for number in range(count)]
    ids += ["admin", *(f"admin-{name}" for name in admins)]
    directory = Path(out)
    made = make_keys(directory, () if renew or revoke else ids, renew, revoke)
    if revoke:
        click.echo(f"struck out of {directory / 'roster.json'}: {', '.join(revoke)}; copy it to every host, running nodes read it by themselves")
    elif not made:
        click.echo(f"{directory} has them all: nothing was made")
    if made:
        click.echo(f"made in {directory}: {_shown(made)}")
    if renew:
        click.echo(f"copy roster.json to every host, then {', '.join(f'{id_}.key' for id_ in renew)} to its own, and restart that node")


def _shown(ids: list[str]) -> str:
    """
    >>> _shown(["m0", "s0", "s1", "s2", "a0", "a2", "admin"])
    'm0, s0 to s2, a0, a2, admin'
    """
    groups: list[list[str]] = []
    for id_ in ids:
        last = groups[-1][-1] if groups else ""
        if last and id_[1:].isdecimal() and last == f"{id_[0]}{int(id_[1:]) - 1}":
            groups[-1].append(id_)
        else:
            groups.append([id_])
    return ", ".join(ids[0] if len(ids) == 1 else ", ".join(ids) if len(ids) == 2 else f"{ids[0]} to {ids[-1]}" for ids in groups)
