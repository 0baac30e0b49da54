"""`plugml run --join JOB`: more workers for a job that another launcher has begun and that runs now.

Owns what may be said of them here, and what must agree with the job.  The job's tables, rules, checkpoints and result are the affair of
the launcher that began it.  Two questions to the agent: how the job stands, before anything is looked at, and the workers' numbers, when
all is found to be well.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..core.errors import UsageError, WorldError, shown
from ..core.job import JobSpec
from ..core.limits import Limits
from . import discovery, words
from .agentlink import SOCKET, ask_once
from .data import FILES, SHARD, check_commands, parse_data
from .jobfile import Description, describe
from .plan import GRACE_S, Joins, RunPlan, commands_of, environment_of, grace_of, ok_exit_of
from .tables import table_of

#: Flags that are of these workers, not of the job.
FLAGS = ("workers", "argv", "worker", "data", "shard", "ok_exit", "grace", "stdin", "env", "private_dir", "cluster", "result", "tables")
#: Keys of [job] in a file that must be the job's own.
_SAME = ("seed", "consistency", "combine", "lr_scale", "lr_warmup", "bell")
#: What a table must be like for these programs to take part.
_TABLE = ("kind", "shape", "dtype", "index")
_RESULT = "plugml-runs/{job}-w"


def join_plan(file: Mapping[str, Any], file_name: str, flags: Mapping[str, Any], name: str, directory: str, environ: Mapping[str, str]) -> RunPlan:
    """The plan of workers that join the running job `name`, as it stands.  Raises `PlugmlError`."""
    strange = next((key for key in flags if key not in FLAGS), "")
    if strange:
        raise UsageError(f"--{strange.replace('_', '-')} belongs to the job, which runs already: with --join it cannot be said any more")
    said = describe(file, file_name, flags)
    job = said.job
    if said.model:
        raise UsageError("[model]: workers that join have a client of their own; unchanged programs begin the job together")
    commands = commands_of(said)
    cluster = discovery.find(job.get("cluster", ""), environ)
    data = parse_data({key: value for key, value in said.data.items() if key in flags}, None)
    check_commands(data, commands, job.get("stdin", ""))
    torch, variables = environment_of(job.get("env", ()))
    if torch:
        raise UsageError("env torch: a torch process group has a fixed size, and no worker can join it")

    stands = _ask(cluster.root, name, 0, "")
    spec = JobSpec.from_document(stands["spec"])
    _check_same(spec, said, directory)
    dealt = spec.settings.get("data")
    if dealt in (FILES, SHARD) and not data.kind:
        raise UsageError(
            f"job {name!r} has dealt out its input among {words.count(spec.workers, 'worker')} ({dealt}), and nothing is left for others: give these "
            "input of their own with --data or --shard, or begin the job with --pieces, which go to whoever asks"
        )
    first = int(stands["first"])
    if first + len(commands) > Limits().workers_max:
        raise UsageError(f"job {name!r} has had {words.count(first, 'worker')}, and at most {Limits().workers_max} may ever have a part in one")
    return RunPlan(
        spec, commands, True, directory, job.get("cluster", "") or cluster.name, 1, said.result.get("dir") or f"{_RESULT}{first}",
        ok_exit_of(job.get("ok_exit", ())), grace_of(job.get("grace", GRACE_S)), job.get("stdin", ""), False, variables,
        bool(job.get("private_dir")), data, joins=Joins(int(stands["job"]), len(commands), first, secrets.token_hex(8)),
    )  # fmt: skip


def claim_numbers(plan: RunPlan, environ: Mapping[str, str]) -> RunPlan:
    """The plan with the numbers that are now its workers'.  They stay unused where the start fails."""
    joins = plan.joins
    assert joins is not None
    told = _ask(discovery.find(plan.cluster, environ).root, plan.spec.name, joins.workers, joins.launcher)
    if int(told["job"]) != joins.job:
        raise UsageError(f"job {plan.spec.name!r} has ended, and another run of its name has begun: look at that one, and join again")
    first = int(told["first"])
    place = f"{_RESULT}{first}" if plan.result_dir == f"{_RESULT}{joins.first}" else plan.result_dir
    return replace(plan, joins=joins._replace(first=first), result_dir=place)


def notes(plan: RunPlan) -> list[str]:
    """What is said at the start."""
    joins, name = plan.joins, plan.spec.name
    assert joins is not None
    told = [f"{words.names(list(plan.numbers))} join{'s' * (joins.workers == 1)} job {name}; it goes on without them when this launcher ends"]
    if not plan.data.kind and not plan.spec.pieces:
        told.append("programs that take part k of n of the input by themselves: those that were there before keep the parts that they have, by the n that they were told")
    return told


def _ask(root: Any, name: str, workers: int, launcher: str) -> dict[str, Any]:
    answer = asyncio.run(ask_once(root / SOCKET, "join", {"job": name, "workers": workers, "launcher": launcher}))
    if answer.code in ("RANGE", "STOP", "FORMAT"):
        raise UsageError(f"--join {name}: {answer.text}")
    if answer.code:
        raise WorldError(f"--join {name}: {answer.text}")
    return dict(answer.fields)


def _check_same(spec: JobSpec, said: Description, directory: str) -> None:
    """What is said of the job here must be so there.  Raises `UsageError`."""
    for key in _SAME:
        if key in said.job and said.job[key] != getattr(spec, key):
            raise UsageError(f"job {spec.name!r} runs with {key} = {shown(getattr(spec, key))}, here {shown(said.job[key])}")
    if not said.tables:
        return
    mine = [table_of(entry, said.job, directory) for entry in said.tables]
    theirs = {table.name: table for table in spec.tables}
    if [table.name for table in mine] != list(theirs):
        raise UsageError(f"job {spec.name!r} has the tables {words.joined(list(theirs))}, here {words.joined([table.name for table in mine])}")
    for table in mine:
        old, new = theirs[table.name].to_document(), table.to_document()
        key = next((key for key in _TABLE if old.get(key) != new.get(key)), "")
        if key:
            raise UsageError(f"job {spec.name!r}: table {table.name!r} has {key} = {shown(old.get(key))}, here {shown(new.get(key))}")
