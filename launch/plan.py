"""job.toml and flags -> RunPlan: everything that a run will do, checked before anything is started.

Owns names, counts, defaults and the replacement of `{worker}` and its kin.  Knows no file, process or clock.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..core.errors import UsageError
from ..core.job import JobSpec
from ..core.limits import SECOND, Limits
from ..core.table import check_name
from ..shm_protocol.info import Info
from .jobfile import Description, describe, table_of

RESULT_DIR = "plugml-runs/{job}"
GRACE_S = 30.0
#: Programs that are told what to run by their first argument: that gives the job its name.
_INTERPRETERS = re.compile(
    r"(python|pypy|perl|ruby|lua|node|php|tclsh|julia|octave(-cli)?|R|Rscript|java|sh|bash|dash|zsh|ksh|awk|mawk|gawk|env|nice|time|timeout|nohup|taskset|numactl|stdbuf|valgrind)[\d.]*\Z"
)
_SCRIPT = re.compile(r"[^;|&<>()$=-][^;|&<>()$=]*(\.[A-Za-z]{1,4}|/[^;|&<>()$=\s]+)\Z")
_BRACES = re.compile(r"\{(worker|workers|seed|out)\}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
NAMES_MAX = 9_999  # suffixes tried for a default name
NAME_BYTES_MAX = 40  # of a default name, so that a suffix and a worker's number still fit


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
    notes: tuple[str, ...] = field(default=())  # said once at the start

    @property
    def workers(self) -> int:
        return self.spec.workers

    @property
    def result(self) -> str:
        """Directory of the result, absolute."""
        path = self.result_dir.replace("{job}", self.spec.name)
        return path if path.startswith("/") else f"{self.directory}/{path}"

    def out(self, worker: int) -> str:
        """Directory for what the worker's program itself writes, `{out}` and PLUGML_OUT."""
        return f"{self.result}/w{worker}"

    def seed(self, worker: int) -> int:
        """Seed of one worker, the same as in its channel's `info`."""
        return self.info(worker).seed

    def info(self, worker: int) -> Info:
        """The worker's channel as far as it is known before it exists: sizes, seed."""
        return Info.of(self.spec, worker, 1, "0" * 32, 0)

    def fill(self, text: str, worker: int) -> str:
        """Replace `{worker} {workers} {seed} {out}`; every other brace stays as it is."""
        values = {"worker": str(worker), "workers": str(self.workers), "seed": str(self.seed(worker)), "out": self.out(worker)}
        return _BRACES.sub(lambda match: values[match.group(1)], text)

    def arguments(self, worker: int) -> list[str]:
        return [self.fill(word, worker) for word in self.commands[worker]]

    def stdin_of(self, worker: int) -> str:
        """File for the program's standard input, "" = /dev/null."""
        return self.fill(self.stdin, worker)

    def renamed(self, name: str) -> RunPlan:
        return replace(self, spec=replace(self.spec, name=name))

    def with_settings(self, **settings: Any) -> RunPlan:
        """The job carries what only launchers read back; a random `run` among it keeps equal jobs apart."""
        return replace(self, spec=replace(self.spec, settings={**self.spec.settings, **settings}))


def make_plan(file: Mapping[str, Any], file_name: str, flags: Mapping[str, Any], directory: str) -> RunPlan:
    """Check everything that can be checked without looking at the host.  Raises `UsageError`.

    `flags` holds what was given on the command line, see `jobfile.describe`; `directory` is the launch directory.
    """
    said = describe(file, file_name, flags)
    job = said.job
    commands = _commands_of(said)
    servers = job.get("servers")
    if servers is not None and job.get("cluster"):
        raise UsageError(f"--servers {servers} is for a private cluster; cluster {job['cluster']!r} has its servers already")
    if servers is not None and not 1 <= servers <= Limits().nodes_max:
        raise UsageError(f"servers = {servers}; from 1 to {Limits().nodes_max}")
    torch, variables = _environment(job.get("env", ()))
    name = job.get("name") or default_name(commands[0])
    spec = _spec(said, name, len(commands), directory)
    notes = []
    if any("{data}" in word for command in commands for word in command):
        notes.append("{data} in the command stays as it is: this job declares no data files")
    return RunPlan(
        spec, commands, bool(job.get("name")), directory, job.get("cluster", ""), servers or 1, said.result_dir or RESULT_DIR,
        _ok_exit(job.get("ok_exit", ())), _grace_us(job.get("grace", GRACE_S)), job.get("stdin", ""), torch, variables, tuple(notes),
    )  # fmt: skip


def _commands_of(said: Description) -> tuple[tuple[str, ...], ...]:
    """One command for each worker, in order of their numbers."""
    workers = said.job.get("workers")
    if workers is not None and not 1 <= workers <= Limits().workers_max:
        raise UsageError(f"workers = {workers}; from 1 to {Limits().workers_max}")
    if said.groups:
        commands = tuple(tuple(command) for command, count in said.groups for _ in range(count))
        if workers is not None and workers != len(commands):
            raise UsageError(f"workers = {workers}, but {len(commands)} are described one by one; keep one of the two")
        return commands
    if not said.command:
        raise UsageError("nothing to run: put the command after `--`, e.g. plugml run -n 4 --table w=10,64 -- ./trainer data.csv")
    return (tuple(said.command),) * (workers or 1)


def _spec(said: Description, name: str, workers: int, directory: str) -> JobSpec:
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
    same = {key: job[key] for key in ("seed", "consistency", "combine", "max_restarts", "on_worker_loss") if key in job}
    spec = JobSpec(name=name, workers=workers, tables=tables, **same)
    size, limit = len(json.dumps(spec.to_document())), Limits().control_bytes_max
    if size > limit * 3 // 4:  # the rest is for what the launcher adds, and for the envelope
        raise UsageError(f"the job's description has {size} bytes, at most {limit * 3 // 4}: use fewer tables or shorter names")
    return spec


def _ok_exit(codes: Sequence[object]) -> frozenset[int]:
    for code in codes:
        if not isinstance(code, int) or isinstance(code, bool) or not 0 <= code <= 255:
            raise UsageError(f"ok_exit: {code!r} is no exit code; from 0 to 255")
    return frozenset({0, *(code for code in codes if isinstance(code, int))})


def _grace_us(seconds: float) -> int:
    if not 0 <= seconds <= 86_400:
        raise UsageError(f"grace = {seconds}; seconds from 0 to 86400")
    return int(seconds * SECOND)


def _environment(words: Sequence[object]) -> tuple[bool, tuple[tuple[str, str], ...]]:
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
