"""`plugml channel`: a channel by hand, for an R console, a debugger or a first try in a shell."""

from __future__ import annotations

import os
from typing import Any

import click

EXAMPLES = """\b
Examples:
  plugml up -d
  eval "$(plugml channel try --table w=10,64:f64 --lr 0.1)"
  R                                   # now plugged: its client finds PLUGML_DIR
  plugml channel --close try --result out       # keep the values: out/tables.npz and the like
  plugml channel --close digits.3     # unplug worker 3 of a running job: the others go on without it
"""


@click.command(
    "channel", epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120}
)
@click.argument("name", required=False)
@click.option("--close", "closed", metavar="NAME", help="End the channel of job NAME, or of one worker: JOB.WORKER.")
@click.option("--result", metavar="DIR", help="With --close: save the tables there, as `plugml run` does; files that no run has made are not overwritten.")
@click.option("-f", "--file", type=click.Path(dir_okay=False), metavar="FILE", help="job.toml with the tables.")
@click.option("--table", "tables", multiple=True, metavar="SPEC", help="NAME=SHAPE[:dtype][,key=value...], as for `plugml run`. Repeatable.")
@click.option("--optimizer", metavar="NAME", help="For tables that name none: sgd, momentum, nesterov, adagrad, rmsprop, adam, adamw, add or assign.")
@click.option("--lr", type=float, metavar="X", help="For tables that name none.")
@click.option("--consistency", metavar="MODEL", help="bsp (default), ssp:N or asp.")
@click.option("--seed", type=int, metavar="N", help="Seed of the job (default 0).")
@click.option("--cluster", metavar="NAME", help="Which cluster, where several run.")
def channel(name: str | None, closed: str | None, result: str | None, file: str | None, cluster: str | None, **given: Any) -> int:
    """Make a channel for one program that you start yourself, and print its environment for `eval`.

    It registers a job NAME with one worker on a standing cluster.  A small process stays behind and keeps the channel
    until `plugml channel --close NAME`.
    """
    from ..launch import discovery, keeper
    from ..launch.plan import make_plan
    from .run import read_toml

    if (name is None) == (closed is None):
        raise click.UsageError("give a NAME to open a channel, or --close NAME to end one")
    if result is not None and closed is None:
        raise click.UsageError("--result belongs to --close: the tables are saved when the channel ends")
    found = discovery.find(cluster or "", os.environ)
    if closed is not None:
        click.echo(keeper.close_channel(closed, found.root, result or ""), err=True)
        return 0

    flags = {key: value for key, value in given.items() if value is not None and value != ()}
    flags |= {"name": name, "workers": 1, "argv": ["by-hand"]}
    plan = make_plan(read_toml(file) if file else {}, file or "job.toml", flags, os.getcwd())
    click.echo(keeper.export_lines(keeper.open_channel(plan, found.root)))
    return 0
