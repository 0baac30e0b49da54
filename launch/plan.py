"""job.toml and flags -> RunPlan: everything that a run will do, checked before anything is started.

Owns names, counts, defaults and the replacement of `{worker}` and its kin.  Knows no file, process or clock.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ..core.clock import BSP
from ..core.errors import UsageError
from ..core.job import COPIES_MAX, JobSpec
from ..core.kinds import OPTIMIZERS
from ..core.limits import SECOND, Limits
from ..core.table import check_name
from ..shm_protocol.info import Info
from .amounts import parse_bytes
from .data import DATA, Data, check_commands, fill_word, parse_data
from .export import DEFAULT, check_names, parse_formats
from .jobfile import Description, describe
from .modelfile import Measure, ModelFile, Round, model_of
from .rules import Rules, parse_rules
from .saves import Saves, parse_saves
from .tables import table_of

RESULT_DIR = "plugml-runs/{job}"
GRACE_S = 30.0
#: Programs that are told what to run by their first argument: that gives the job its name.
_INTERPRETERS = re.compile(
    r"(python|pypy|perl|ruby|lua|node|php|tclsh|julia|octave(-cli)?|R|Rscript|java|sh|bash|dash|zsh|ksh|awk|mawk|gawk|env|nice|time|timeout|nohup|taskset|numactl|stdbuf|valgrind)[\d.]*\Z"
)
_SCRIPT = re.compile(r"[^;|&<>()$=-][^;|&<>()$=]*(\.[A-Za-z]{1,4}|/[^;|&<>()$=\s]+)\Z")
_BRACES = re.compile(r"\{(worker|workers|seed|out)\}")
_EVALUATION = re.compile(r"\{(model|clock|workers|seed)\}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
#: Keys of [job] that are those of a JobSpec.
_SAME = (
    "seed", "consistency", "combine", "max_restarts", "on_worker_loss", "lr_scale", "lr_warmup", "bell", "copies", "min_insync", "on_lost",
)  # fmt: skip
NAMES_MAX = 9_999  # suffixes tried for a default name
NAME_BYTES_MAX = 40  # of a default name, so that a suffix and a worker's number still fit


class Joins(NamedTuple):
    """What a launcher adds to a running job: `workers`, from number `first` on.  `launcher` is drawn, so that the master knows the question again."""

    job: int
    workers: int
    first: int
    launcher: str


@dataclass(slots=True, frozen=True)
class RunPlan:
    """A checked run.  `spec.name` may still get a suffix when `name_given` is false and the name is taken."""

    spec: JobSpec
    commands: tuple[tuple[str, ...], ...]  # of worker 0, 1, ...; braces not yet replaced
    name_given: bool
    directory: str  # where the programs start
    cluster: str = ""  # empty = a private one
    servers: int = 1
    result_dir: str = RESULT_DIR
    ok_exit: frozenset[int] = frozenset({0})
    grace_us: int = int(GRACE_S) * SECOND
    stdin: str = ""  # empty = /dev/null
    torch: bool = False
    variables: tuple[tuple[str, str], ...] = ()
    private_dir: bool = False  # each program starts in a directory of its own
    data: Data = field(default=Data())
    rules: Rules = field(default=Rules())
    formats: tuple[str, ...] = DEFAULT  # of the result
    notes: tuple[str, ...] = field(default=())  # said once at the start
    saves: Saves = field(default=Saves())
    finished_before: bool = False  # an earlier run has left its finished result in the place
    joins: Joins | None = None  # the running job that its workers join; None = it begins one
    model: ModelFile | None = None  # what unchanged programs share

    @property
    def workers(self) -> int:
        """How many are this launcher's own."""
        return self.spec.workers if self.joins is None else self.joins.workers

    @property
    def first(self) -> int:
        """Number of the first of them."""
        return 0 if self.joins is None else self.joins.first

    @property
    def numbers(self) -> range:
        return range(self.first, self.first + self.workers)

    @property
    def in_all(self) -> int:
        """Workers of the job when these have come, `{workers}`."""
        return self.first + self.workers

    @property
    def result(self) -> str:
        """Directory of the result, absolute."""
        path = self.result_dir.replace("{job}", self.spec.name)
        return path if path.startswith("/") else f"{self.directory}/{path}"

    def out(self, worker: int) -> str:
        """Directory for what the worker's program itself writes, `{out}` and PLUGML_OUT."""
        return f"{self.result}/w{worker}"

    def start_of(self, worker: int) -> str:
        """Directory where the worker's program starts."""
        return f"{self.out(worker)}/dir" if self.private_dir else self.directory

    def seed(self, worker: int) -> int:
        """Seed of one worker, the same as in its channel's `info`."""
        return self.info(worker).seed

    def info(self, worker: int) -> Info:
        """The worker's channel as far as it is known before it exists: sizes, seed."""
        return Info.of(self.spec, worker, 1, "0" * 32, 0)

    def fill(self, text: str, worker: int) -> str:
        """Replace `{worker} {workers} {seed} {out}`; every other brace stays as it is."""
        values = {"worker": str(worker), "workers": str(self.in_all), "seed": str(self.seed(worker)), "out": self.out(worker)}
        return _BRACES.sub(lambda match: values[match.group(1)], text)

    def data_of(self, worker: int) -> tuple[str, ...]:
        """What `{data}` stands for."""
        return self.data.of(worker - self.first, self.workers, self.result)

    def arguments(self, worker: int) -> list[str]:
        filled = [self.fill(word, worker) for word in self.commands[worker - self.first]]
        names = self.data_of(worker)
        return [part for word in filled for part in fill_word(word, names)] if names else filled

    def round_of(self, worker: int) -> Round | None:
        """What the process between an unchanged program and its channel is told; None where the program has its own client."""
        return Round(self.model, self.directory, self.data_of(worker), tuple(sorted(self.ok_exit))) if self.model else None

    def stdin_of(self, worker: int) -> str:
        """File for the program's standard input, "" = /dev/null.  Raises `UsageError` for several."""
        names = self.data_of(worker)
        if DATA in self.stdin and len(names) > 1:
            raise UsageError(f"--stdin {self.stdin}: worker {worker} has {len(names)} files, and standard input is one; use as many workers as files, or --shard")
        return fill_word(self.fill(self.stdin, worker), names)[0] if names and DATA in self.stdin else self.fill(self.stdin, worker)

    def evaluation(self, model: str, clock: int) -> list[str]:
        """The evaluation's command for the model in a directory."""
        values = {"model": model, "clock": str(clock), "workers": str(self.workers), "seed": str(self.spec.seed)}
        return [_EVALUATION.sub(lambda match: values[match.group(1)], word) for word in self.rules.command]

    @property
    def at_clocks(self) -> bool:
        """The values of one closed clock can be had: every table is BSP."""
        return all(self.spec.consistency_of(table).model == BSP for table in self.spec.tables)

    def with_data(self, data: Data) -> RunPlan:
        """The same with what the globs have met."""
        return replace(self, data=data, spec=replace(self.spec, pieces=len(data.pieces("")), passes=data.passes))

    def renamed(self, name: str) -> RunPlan:
        return replace(self, spec=replace(self.spec, name=name))

    @property
    def checkpoints(self) -> str:
        """Directory of the checkpoints, absolute."""
        return self.saves.root(self.result, self.directory)

    def with_checkpoints(self, first: int) -> RunPlan:
        """The job knows where its checkpoints go; `first` is the number of the first one."""
        saves = self.saves
        spec = replace(self.spec, checkpoint_dir=self.checkpoints, checkpoint_every=saves.every, checkpoint_keep=saves.keep, checkpoint_first=first)
        return replace(self, spec=spec)

    def with_settings(self, **settings: Any) -> RunPlan:
        """The job carries what only launchers read back; a random `run` among it keeps equal jobs apart."""
        return replace(self, spec=replace(self.spec, settings={**self.spec.settings, **settings}))


def no_files(path: str, _layout: str) -> int:
    raise UsageError(f"--model {path}: nobody here looks into files")


def make_plan(file: Mapping[str, Any], file_name: str, flags: Mapping[str, Any], directory: str, measure: Measure = no_files) -> RunPlan:
    """Check everything that can be checked without looking at the host.  Raises `UsageError`.

    `measure` looks into a model file.

    `flags` holds what was given on the command line, see `jobfile.describe`; `directory` is the launch directory.
    """
    said = describe(file, file_name, flags)
    commands = commands_of(said)
    model, said = model_of(said, len(commands), directory, measure)
    job = said.job
    servers = _servers_of(job)
    torch, variables = environment_of(job.get("env", ()))
    name = job.get("name") or default_name(commands[0])
    rules = parse_rules(said.evaluate, said.stop, bool(said.result.get("keep_best")))
    data = parse_data(said.data, said.stop.get("passes"))
    check_commands(data, commands, job.get("stdin", ""))
    spec = _spec(said, name, len(commands), directory, rules)
    export = said.result.get("export")
    formats = DEFAULT if export is None else _formats(export)
    check_names(spec.tables, {*formats, *(DEFAULT if rules.command else ())})  # an evaluation reads the usual ones
    plan = RunPlan(
        spec, commands, bool(job.get("name")), directory, job.get("cluster", ""), servers, said.result.get("dir") or RESULT_DIR,
        ok_exit_of(job.get("ok_exit", ())), grace_of(job.get("grace", GRACE_S)), job.get("stdin", ""), torch, variables,
        bool(job.get("private_dir")), data, rules, formats, saves=parse_saves(said.checkpoint), model=model,
    )  # fmt: skip
    return replace(plan, notes=tuple(_notes(plan)))


def _servers_of(job: Mapping[str, Any]) -> int:
    """Servers of the private cluster: as many as are said, else as many as the copies of a range need."""
    servers, copies = job.get("servers"), max(job.get("copies", 1), job.get("min_insync", 1))
    if servers is None:
        return copies if 1 < copies <= COPIES_MAX and not job.get("cluster") else 1
    if job.get("cluster"):
        raise UsageError(f"--servers {servers} is for a private cluster; cluster {job['cluster']!r} has its servers already")
    if not 1 <= servers <= Limits().nodes_max:
        raise UsageError(f"servers = {servers}; from 1 to {Limits().nodes_max}")
    if copies > servers:
        key = "copies" if copies == job.get("copies") else "min_insync"
        raise UsageError(f"{key} = {copies}, but servers = {servers}: each copy of a range lies on a server of its own")
    return int(servers)


def _formats(export: str | Sequence[str]) -> tuple[str, ...]:
    """`raw,csv`, or a list of such."""
    listed = [word.strip() for word in export.split(",")] if isinstance(export, str) else list(export)
    return parse_formats(listed, "[result] export")


def _notes(plan: RunPlan) -> list[str]:
    """What is said once at the start, since it may not be what somebody meant."""
    notes = []
    arguments = [word for command in plan.commands for word in command]
    if not plan.data.kind and any(DATA in word for word in arguments):
        notes.append("{data} in the command stays as it is: this job declares no data files")
    if plan.private_dir and (outside := next((word for word in arguments if word.startswith("../")), "")):
        notes.append(f"{outside!r} starts beside each worker's private directory, not beside this one: give an absolute path")
    if plan.rules.command and not plan.at_clocks:
        notes.append("evaluations see the values as they are at that moment, not those of one clock: only bsp has closed clocks")
    if plan.rules.command and not any("{model}" in word for word in plan.rules.command):
        notes.append("the evaluation's command has no {model}: it finds the directory of the tables in PLUGML_MODEL")
    return notes


def commands_of(said: Description) -> tuple[tuple[str, ...], ...]:
    """One command for each worker, in order of their numbers."""
    workers = said.job.get("workers")
    if workers is not None and not 1 <= workers <= Limits().workers_max:
        raise UsageError(f"workers = {workers}; from 1 to {Limits().workers_max}")
    if said.groups:
        commands = tuple(tuple(command) for command, count in said.groups for _ in range(count))
        if workers is not None and workers != len(commands):
            are = "is" if len(commands) == 1 else "are"
            raise UsageError(f"workers = {workers}, but {len(commands)} {are} described one by one; keep one of the two")
        return commands
    if not said.command:
        raise UsageError("nothing to run: put the command after `--`, e.g. plugml run -n 4 --table w=10,64 -- ./trainer data.csv")
    return (tuple(said.command),) * (workers or 1)


def _spec(said: Description, name: str, workers: int, directory: str, rules: Rules) -> JobSpec:
    job = said.job
    seen: dict[str, str] = {}
    for entry in said.tables:
        table = str(entry.values.get("name"))
        if table in seen and seen[table] != entry.where:
            raise UsageError(f"table {table!r} is described in {seen[table]} and by {entry.where}; keep one")
        seen[table] = entry.where
    tables = tuple(table_of(entry, job, directory) for entry in said.tables)
    if "lr" in job and tables and not any("lr" in table.settings for table in tables):
        words = ", ".join(sorted({table.optimizer for table in tables}))
        raise UsageError(f"lr = {job['lr']} is used by no table: their optimizer is {words}")
    if job.get("lr_scale", "none") != "none" and tables and not any("lr" in OPTIMIZERS[table.optimizer] for table in tables):
        raise UsageError(f"lr_scale = {job['lr_scale']} is used by no table: none has a lr")
    if "lr_warmup" in job and job.get("lr_scale", "none") == "none":
        raise UsageError(f"lr_warmup = {job['lr_warmup']} is the time in which lr_scale grows, and there is none: say lr_scale = linear or sqrt")
    same = {key: job[key] for key in _SAME if key in job}
    spec = JobSpec(
        name=name, workers=workers, tables=tables, **same, stop_clock=rules.clocks,
        memory_bytes=parse_bytes(job["memory"], "memory") if "memory" in job else 0,
    )  # fmt: skip
    if rules.command and all(spec.consistency_of(table).model == BSP for table in tables):
        spec = replace(spec, snapshot_every=rules.every)
    size, limit = len(json.dumps(spec.to_document())), Limits().control_bytes_max
    if size > limit * 3 // 4:  # the rest is for what the launcher adds, and for the envelope
        raise UsageError(f"the job's description has {size} bytes, at most {limit * 3 // 4}: use fewer tables or shorter names")
    return spec


def ok_exit_of(codes: Sequence[object]) -> frozenset[int]:
    for code in codes:
        if not isinstance(code, int) or isinstance(code, bool) or not 0 <= code <= 255:
            raise UsageError(f"ok_exit: {code!r} is no exit code; from 0 to 255")
    return frozenset({0, *(code for code in codes if isinstance(code, int))})


def grace_of(seconds: float) -> int:
    if not 0 <= seconds <= 86_400:
        raise UsageError(f"grace = {seconds}; seconds from 0 to 86400")
    return int(seconds * SECOND)


def environment_of(words: Sequence[object]) -> tuple[bool, tuple[tuple[str, str], ...]]:
    """`torch` and NAME=VALUE pairs."""
    torch, variables = False, []
    for word in words:
        name, equals, value = word.partition("=") if isinstance(word, str) else ("", "", "")
        if word == "torch":
            torch = True
        elif equals and _VARIABLE.match(name):
            variables.append((name, value))
        else:
            raise UsageError(f"env {word!r}: write NAME=VALUE, or torch for RANK, WORLD_SIZE and their kin")
    return torch, tuple(variables)


def default_name(command: Sequence[str]) -> str:
    """A job's name from what it runs.

    >>> default_name(["python3", "-u", "my train.py", "x"])
    'my_train'
    """
    words = [word for word in command if word]
    first = _base(words[0]) if words else ""
    if _INTERPRETERS.match(first):
        scripts = [word for word in words[1:] if _SCRIPT.match(word)]
        first = _base(scripts[0]) if scripts else first
    stem = re.sub(r"\.[A-Za-z]{1,4}\Z", "", first)
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", stem).lstrip(".-")[:NAME_BYTES_MAX]
    return check_name(name or "job", "job name")


def _base(path: str) -> str:
    return path.rstrip("/").rsplit("/", 1)[-1]
