"""`plugml conform`: the flags, and nothing else.  The cases and their judgement are shm_protocol/conform/."""

from __future__ import annotations

import os
from typing import Any

import click

from .options import json_option, print_json

EXAMPLES = """\b
Examples:
  plugml conform -- ./trainer data.csv                 # 8 numbers of f64, as in the table `w`
  plugml conform --table w=10,64 --steps 6 -- python train.py shard.csv
  plugml conform --table emb=sparse,width=16,rows=1000,batch=64 -v -- ./trainer
  plugml conform --case order --case slow --json -- ./trainer
  plugml conform --driver -- julia drive.jl            # a client library: numbers are compared, too
\b
Exit codes: 0 no sentence is broken; 1 one is, or the program fails on the good day; 2 usage; 73 /dev/shm full; 130 Ctrl-C.
docs/conform.md has the cases, and the operations that a driver must know.
"""

#: Rows of one request where the table says none: channels are many here, and their files have room for each.
BATCH = 256


@click.command(
    "conform",
    epilog=EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"], "allow_interspersed_args": False, "max_content_width": 120},
)
@click.option("--table", "tables", multiple=True, metavar="SPEC", help="As for `plugml run`; optimizer sgd, add or assign, init zeros or program. Repeatable (default w=8:f64).")
@click.option("--steps", type=click.IntRange(0), default=0, metavar="N", help="Let the stop rule end every case after N clocks, for a trainer that would take many (default: it ends by itself).")
@click.option("--pieces", type=click.IntRange(0), default=0, metavar="N", help="Pieces of input that the job has, for a program that asks for them by `next`.")
@click.option("--timeout", type=click.FloatRange(0.5), default=10.0, metavar="S", help="A program that has done nothing for so long hangs (default 10; 2 if it sleeps in a read that nothing will end).")
@click.option("--case", "only", multiple=True, metavar="NAME", help="Only this case, after the good day. Repeatable.")
@click.option("--driver", is_flag=True, help="CMD is a driver: it does the operations in the file that PLUGML_OPS names, and tells of each.")
@click.option("-v", "--verbose", is_flag=True, help="Every sentence of SPEC.md, and every case.")
@json_option
@click.argument("command", nargs=-1, required=True, metavar="-- CMD [ARG...]")
def conform(command: tuple[str, ...], driver: bool, verbose: bool, as_json: bool, **said: Any) -> int:
    """Lead a program through the good and the bad days of a channel, and tell which sentence of SPEC.md it breaks.

    CMD is any program that has been plugged in and ends by itself after some steps. It is run some thirty times under a
    scripted agent: replies come twice, late, with unknown words; the agent dies before each of its stores; requests are
    refused. Each numbered sentence that binds a program is then `ok`, `BROKEN`, or `not reached`.
    """
    from ..shm_protocol.conform import prove, verdict

    run = prove.prove_driver if driver else prove.prove
    found = run(_command(command, said), _job(said, driver), said["only"])
    if as_json:
        print_json(verdict.document(found))
    else:
        click.echo(verdict.text(found, verbose))
    return 1 if found.broken or found.failure else 0


def _command(words: tuple[str, ...], said: dict[str, Any]) -> Any:
    import shutil

    from ..core.errors import UsageError
    from ..shm_protocol.conform.trial import Command

    if shutil.which(words[0]) is None:
        raise UsageError(f"{words[0]}: there is no such program, or it cannot be executed")
    return Command(words, {}, os.getcwd(), said["timeout"], said["steps"])


def _job(said: dict[str, Any], driver: bool) -> Any:
    from dataclasses import replace

    from ..core.errors import UsageError
    from ..core.job import JobSpec
    from ..launch.tables import Entry, parse_table, table_of

    tables = [table_of(Entry(parse_table(text), "--table"), {}, os.getcwd()) for text in said["tables"] or ("w=8:f64",)]
    tables = [replace(table, batch=min(table.batch_rows, BATCH)) if table.kind == "sparse" and not table.batch else table for table in tables]
    if driver:
        if len(tables) != 1 or tables[0].kind != "dense":
            raise UsageError("--driver: the operations are those of one dense table; give one --table, or none")
        tables = [replace(tables[0], optimizer="add", settings={}, init="zeros", init_settings={})]
    return JobSpec("conform", 1, tuple(tables), pieces=said["pieces"])
