"""`plugml run`: the flags, and nothing else.  What they mean is launch/plan.py, what happens is launch/main.py."""

from __future__ import annotations

import os
import stat
from typing import Any

import click

TOML_BYTES_MAX = 1 << 20

EXAMPLES = """\b
Examples:
  plugml run -n 4 --table w=10,64 --lr 0.1 -- ./trainer data.csv
  plugml run -n 4 -f job.toml -- python train.py shard-{worker}.csv
  plugml run --table w=650:f64,init=program --worker './c_trainer a' --worker 'Rscript fit.R b'
  plugml run -n 8 --consistency asp --on-worker-loss shrink -f job.toml
  plugml run -n 4 --table w=650 --data 'parts/*.csv' -- ./trainer {data}
  plugml run -n 4 --table w=650 --evaluate './test {model}' --evaluate-every 100 --metric accuracy --patience 5 --keep-best -- ./trainer
  plugml run --join digits -n 2 -- ./trainer                # two more workers for the job `digits`, as long as they run
  plugml run --model net.txt --rounds 10 -n 4 --shard data.csv -- ./trainer {data} net.txt      # a program that is not changed at all
  plugml run -f job.toml --check
\b
In the command's arguments {worker} {workers} {seed} {out} {data} are replaced; every other brace stays as it is.
\b
Exit codes: 0 all well; else the first failing worker's own, 128+n if a signal killed it;
  1 server lost or result not saved; 2 usage; 69 no cluster; 73 channel root full;
  75 stopped by SIGTERM behind a checkpoint (run again with --resume), or agent gone;
  126/127 program not executable/not found; 130/143 stopped by SIGINT/SIGTERM.
"""


@click.command(
    "run",
    epilog=EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"], "allow_interspersed_args": False, "max_content_width": 120},
)
@click.option("-n", "--workers", type=int, metavar="N", help="How many workers (default 1).")
@click.option("-f", "--file", type=click.Path(dir_okay=False), metavar="FILE", help="job.toml: [job] with keys like these flags, [[worker]], [[table]], [data], [evaluate], [stop], [result], [checkpoint]; a flag wins.")
@click.option("--name", metavar="NAME", help="The job's name (default: from the command, with a suffix where it is taken).")
@click.option("--table", "tables", multiple=True, metavar="SPEC", help="NAME=SHAPE[:dtype][,key=value...], e.g. w=10,64:f32,lr=0.1, or NAME=sparse[:dtype],width=16[,rows=N,index=u32|u64|str]; more keys: docs/job.md. Repeatable.")
@click.option("--optimizer", metavar="NAME", help="For tables that name none: sgd, momentum, nesterov, adagrad, rmsprop, adam, adamw, add or assign.")
@click.option("--lr", type=float, metavar="X", help="For tables that name none; used as written.")
@click.option("--lr-scale", metavar="RULE", help="lr grows with the workers: none (default), linear or sqrt.")
@click.option("--lr-warmup", type=int, metavar="CLOCKS", help="In which it grows to that (default 0).")
@click.option("--consistency", metavar="MODEL", help="bsp (default), ssp:N or asp.")
@click.option("--combine", metavar="HOW", help="mean (default, but of i64 tables the sum) or sum of the workers' pushes.")
@click.option("--model", multiple=True, metavar="FILE[:LAYOUT]", help="For programs that are not changed at all: share the model file that they read and write. LAYOUT: text, lines, npy, npz, safetensors, torch, f32, f64 ... with offset=BYTES, count=N (default: by its looks; see `plugml inspect FILE`). Repeatable.")
@click.option("--rounds", type=int, metavar="R", help="With --model: run the program R times; after each the workers' files are brought together.")
@click.option("--outer", metavar="HOW", help="With --model: mean (default) or sum of the workers' steps, or nesterov (DiLoCo).")
@click.option("--outer-lr", type=float, metavar="X", help="Of --outer nesterov (default 0.7).")
@click.option("--outer-momentum", type=float, metavar="X", help="Of --outer nesterov (default 0.9).")
@click.option("--weight", metavar="lines|REGEX", help="With --model: each worker's step counts by the lines of its {data}, or by the number in the group of this expression in its output.")
@click.option("--side", multiple=True, metavar="GLOB", help="With --model: other files that each worker has for itself, beside FILE*. Repeatable.")
@click.option("--data", multiple=True, metavar="GLOB", help="Files: each worker gets its share of them as {data}. Repeatable.")
@click.option("--shard", metavar="FILE[:csv|lines|libsvm]", help="A file that is cut into a slice for each worker, as {data}.")
@click.option("--pieces", multiple=True, metavar="GLOB|FILE:lines:N", help="Files, or slices of one, that workers ask for one by one. Repeatable.")
@click.option("--passes", type=int, metavar="N", help="Passes over the pieces (default 1).")
@click.option("--evaluate", metavar="CMD", help="A command that looks at the model beside training: {model} {clock} are replaced.")
@click.option("--evaluate-every", type=int, metavar="CLOCKS", help="From one evaluation to the next.")
@click.option("--metric", metavar="NAME|REGEX", help="The number that it prints behind this name, or in the group of this expression (default: its last number). With --model and no evaluation: in the program's own output, round by round.")
@click.option("--clocks", type=int, metavar="N", help="All workers end when they have done so many clocks.")
@click.option("--seconds", type=float, metavar="S", help="All workers end at one clock after so long.")
@click.option("--patience", type=int, metavar="N", help="All workers end at one clock when the metric has not become better in N evaluations.")
@click.option("--mode", metavar="max|min", help="Is more better (default), or less?")
@click.option("--min-delta", type=float, metavar="X", help="What counts as better for --patience (default: anything).")
@click.option("--keep-best", is_flag=True, default=None, help="Keep the best model that an evaluation has seen, in best/.")
@click.option("--export", metavar="FORMATS", help="Of the result: raw,npz (default), safetensors, csv; with commas between them.")
@click.option("--seed", type=int, metavar="N", help="Seed of the job; each worker gets its own from it (default 0).")
@click.option("--worker", multiple=True, metavar="CMD", help="The command of one worker, where they differ. Repeatable.")
@click.option("--cluster", metavar="NAME", help="Join a standing cluster instead of starting a private one.")
@click.option("--join", metavar="JOB", help="Add these workers to the job of that name that runs on a standing cluster; they leave it when they end, and it goes on.")
@click.option("--servers", type=int, metavar="N", help="Servers of the private cluster (default: as many as --copies, else 1).")
@click.option("--copies", type=int, metavar="N", help="Copies of every part of the model, on servers of their own: 1 to 3 (default: what the cluster says, else 2 where there are two servers).")
@click.option("--min-insync", type=int, metavar="N", help="Copies that must hold a push before it counts; with fewer, training waits (default 1).")
@click.option("--on-lost", metavar="POLICY", help="When all copies of a part are lost: stop (default) or restore from the last checkpoint.")
@click.option("--checkpoint-every", type=int, metavar="CLOCKS", help="From one checkpoint to the next (default: only at SIGTERM and SIGUSR1).")
@click.option("--checkpoint-dir", metavar="DIR", help="Where they go, under the same path on every server's host (default checkpoints, in the result's place).")
@click.option("--checkpoint-keep", type=int, metavar="N", help="How many of them stay, the newest (default 2).")
@click.option("--resume", metavar="auto|never|DIR", help="Go on from the newest whole checkpoint of this run's place, or from that in DIR (default never).")
@click.option("--result", metavar="DIR", help="Where the result goes (default plugml-runs/{job}).")
@click.option("--max-restarts", type=int, metavar="N", help="Restarts of a worker that a signal killed (default 3).")
@click.option("--on-worker-loss", metavar="POLICY", help="After that: wait (default), shrink or stop.")
@click.option("--ok-exit", metavar="CODES", help="Exit codes of a program that count as finished, e.g. 0,1.")
@click.option("--grace", type=float, metavar="SECONDS", help="From SIGTERM to SIGKILL when the run ends early (default 30).")
@click.option("--stdin", metavar="FILE", help="Standard input of each program, a file or a FIFO of its own (default nothing); {worker} is replaced.")
@click.option("--env", multiple=True, metavar="NAME=VALUE", help="A variable for the programs; `torch` sets RANK, WORLD_SIZE and kin. Repeatable.")
@click.option("--private-dir", is_flag=True, default=None, help="Start each worker in a directory of its own, with links to what is here.")
@click.option("--memory", metavar="SIZE", help="What the job may take of the servers' memory, e.g. 2GiB (default: all there is).")
@click.option("--bell", metavar="fifo|sem", help="What wakes a program that waits: a FIFO (default), or a semaphore.")
@click.option("-q", "--quiet", is_flag=True, help="Of plugml itself only warnings and errors.")
@click.option("-v", "--verbose", is_flag=True, help="Say more.")
@click.option("--json", "as_json", is_flag=True, help="The summary as JSON on stdout; what the programs print goes to stderr.")
@click.option("--allow-disk", is_flag=True, help="Accept a channel root that is not in memory (slow).")
@click.option("--check", is_flag=True, help="Say what would happen, and start nothing.")
@click.argument("argv", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND [ARGS]...")
def run(file: str | None, join: str | None, quiet: bool, verbose: bool, as_json: bool, allow_disk: bool, check: bool, **given: Any) -> int:
    """Run a serial training program as N workers that train one model together.

    Without --cluster it starts a private cluster on this host and takes it down at the end.
    """
    from ..launch.join import join_plan
    from ..launch.main import Options
    from ..launch.plan import make_plan
    from ..launch.rounds import measure
    from ..launch.start import check_run, run_plan

    flags = {key: value for key, value in given.items() if value is not None and value != ()}
    if "ok_exit" in flags:
        flags["ok_exit"] = exit_codes(flags["ok_exit"])
    for key in ("env", "tables", "worker", "argv", "data", "pieces", "side", "model"):
        if key in flags:
            flags[key] = list(flags[key])
    if "cluster" not in flags and os.environ.get("PLUGML_CLUSTER"):
        flags.setdefault("cluster", os.environ["PLUGML_CLUSTER"])
    written, called = read_toml(file) if file else {}, file or "job.toml"
    plan = make_plan(written, called, flags, os.getcwd(), measure) if join is None else join_plan(written, called, flags, join, os.getcwd(), os.environ)
    options = Options(quiet, verbose, as_json, allow_disk)
    return check_run(plan, options, os.environ) if check else run_plan(plan, options, os.environ)


def exit_codes(text: str) -> list[int]:
    """Read `0,1`."""
    words = text.split(",")
    if not all(word.strip().isascii() and word.strip().isdecimal() for word in words):
        raise click.BadParameter(f"{text!r}: write whole numbers with commas, e.g. 0,1", param_hint="--ok-exit")
    return [int(word) for word in words]


def read_toml(path: str) -> dict[str, Any]:
    """The parsed file.  Raises `UsageError`."""
    import tomllib

    from ..core.errors import UsageError

    try:
        found = tomllib.loads(_bounded(path).decode())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is no valid TOML: {error}") from error
    except RecursionError:
        raise UsageError(f"{path} is no valid TOML: too many brackets in each other") from None
    if _has_zero_byte(found):
        raise UsageError(f"{path}: a text holds a zero byte (\\u0000), which no command, name or path can hold")
    return found


def _bounded(path: str) -> bytes:
    """The file's bytes.  A FIFO or a device may never end, and nobody writes so long a job.toml by hand."""
    from ..core.errors import UsageError

    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise UsageError(f"{path}: not a regular file; write the job into one")
        found = file.read(TOML_BYTES_MAX + 1)
    if len(found) > TOML_BYTES_MAX:
        raise UsageError(f"{path}: more than {TOML_BYTES_MAX:,} bytes; that is no job.toml")
    return found


def _has_zero_byte(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_zero_byte, value)) or any(map(_has_zero_byte, value.values()))
    if isinstance(value, list):
        return any(map(_has_zero_byte, value))
    return isinstance(value, str) and "\0" in value
