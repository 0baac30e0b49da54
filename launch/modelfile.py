"""Programs that are not changed at all: what [model] says, the table that comes of it, and what a worker's rounds need to know.  Pure.

The program's own model file is what is shared.  A clock of the job is a round: one run of the program from its start to its end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from ..core.errors import UsageError
from ..core.table import unknown_key
from ..layouts import split_file
from .jobfile import Description
from .rules import check_expression
from .tables import Entry

TABLE = "model"  # the one table of such a job
ASSIGN, ADD, DESCEND = "assign", "add", "descend"  # what is pushed: the new numbers, new - given, given - new
OUTER = ("mean", "sum", "nesterov")
LINES = "lines"
#: Of DiLoCo (Douillard and others 2023, arXiv 2311.08105).
OUTER_LR, OUTER_MOMENTUM = 0.7, 0.9
#: How many numbers are in a file: (absolute path, layout as it is written) -> count.  Raises `UsageError`.
Measure = Callable[[str, str], int]


@dataclass(slots=True, frozen=True)
class ModelFile:
    """`files` are relative to the launch directory, each with its layout as its user writes it ("" = by its looks)."""

    files: tuple[tuple[str, str], ...]
    rounds: int
    outer: str
    push: str
    elements: int
    weight: str = ""  # LINES, or a regular expression with one group
    metric: str = ""
    side: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """For sentences."""
        return ", ".join(path for path, _layout in self.files)


class Round(NamedTuple):
    """What one worker's rounds know: the rest of it is in the channel."""

    model: ModelFile
    directory: str  # the launch directory
    data: tuple[str, ...]  # what {data} is
    ok_exit: tuple[int, ...]

    def to_text(self) -> str:
        return json.dumps({**self._asdict(), "model": asdict(self.model)})

    @classmethod
    def of(cls, text: str) -> Round:
        said = json.loads(text)
        model = ModelFile(**{**said["model"], "side": tuple(said["model"]["side"]), "files": tuple((path, layout) for path, layout in said["model"]["files"])})
        return cls(model, said["directory"], tuple(said["data"]), tuple(said["ok_exit"]))


def model_of(said: Description, workers: int, directory: str, measure: Measure) -> tuple[ModelFile | None, Description]:
    """[model], and the description of the job that it makes.  Raises `UsageError`."""
    keys = said.model
    if not keys:
        return None, said
    if "file" not in keys:
        raise UsageError(f"[model] says {next(iter(keys))}, and not which file: --model FILE (model file of the program)")
    if "rounds" not in keys:
        raise UsageError("--model needs --rounds R: how often the program is run from its start to its end")
    if not 1 <= keys["rounds"] < 1 << 31:
        raise UsageError(f"rounds = {keys['rounds']}; a whole number from 1 on")
    files = _files(keys["file"])
    _refuse_others(said)
    outer = keys.get("outer", "mean")
    if outer not in OUTER:
        raise unknown_key(outer, OUTER, "outer", "value")
    elements = sum(measure(f"{directory}/{path}", layout) for path, layout in files)
    push, table = _table(keys, outer, workers, elements)
    metric, evaluate, stop = _metric(said)
    model = ModelFile(files, keys["rounds"], outer, push, elements, _weight(keys, said), metric, _sides(keys))
    job = {**said.job, "combine": "sum" if outer == "sum" else "mean", "private_dir": True}
    return model, said._replace(job=job, tables=[Entry(table, "--model")], evaluate=evaluate, stop=stop)


def _files(given: str | list[Any]) -> tuple[tuple[str, str], ...]:
    """Each FILE[:LAYOUT] apart."""
    files: list[tuple[str, str]] = []
    for text in [given] if isinstance(given, str) else given:
        if not isinstance(text, str):
            raise UsageError(f"[model] file = {text!r} is no text")
        path, layout = split_file(text)
        if not path or path.startswith("/") or ".." in path.split("/"):
            raise UsageError(f"--model {path}: name it as the program does, from this directory down; each worker gets a copy of it in a directory of its own")
        if path in (known for known, _ in files):
            raise UsageError(f"--model {path} is named twice")
        files.append((path, str(layout)))
    if not files:
        raise UsageError("[model] file names none")
    return tuple(files)


def _refuse_others(said: Description) -> None:
    """What has no meaning where the model file is the only table."""
    if said.tables:
        raise UsageError("both --model and tables are there: the numbers of the model file are the job's only table")
    for key in ("optimizer", "lr", "combine", "lr_scale", "lr_warmup"):
        if key in said.job:
            raise UsageError(f"{key} is for programs that push gradients; with --model the program takes its own steps, and --outer says how they are brought together")
    if said.job.get("consistency", "bsp") != "bsp":
        raise UsageError(f"consistency = {said.job['consistency']}: with --model all workers go from round to round together (bsp)")
    if "pieces" in said.data:
        raise UsageError("--pieces are asked for through the channel, of which an unchanged program knows nothing: use --shard or --data")


def _table(keys: Mapping[str, Any], outer: str, workers: int, elements: int) -> tuple[str, dict[str, Any]]:
    """What is pushed, and the table that steps by it.  A lone worker's numbers are taken as they are, to the last bit."""
    table = {"name": TABLE, "shape": [elements], "dtype": "f64", "init": "program"}
    if outer == "nesterov":
        return DESCEND, {**table, "optimizer": "nesterov", "lr": keys.get("outer_lr", OUTER_LR), "beta": keys.get("outer_momentum", OUTER_MOMENTUM)}
    for key in ("outer_lr", "outer_momentum"):
        if key in keys:
            raise UsageError(f"{key} = {keys[key]} is for outer = nesterov; {outer} takes the workers' steps as they are")
    return (ASSIGN, {**table, "optimizer": "assign"}) if workers == 1 else (ADD, {**table, "optimizer": "add"})


def _weight(keys: Mapping[str, Any], said: Description) -> str:
    weight: str = keys.get("weight", "")
    if weight == LINES and not said.data:
        raise UsageError("--weight lines counts the lines of {data}, and this job declares none: --shard or --data")
    if weight and weight != LINES:
        if "(" not in weight:
            raise UsageError(f"--weight {weight!r}: write lines, or an expression whose group holds the number in the program's output, as in 'read ([0-9]+) examples'")
        check_expression(weight, "--weight")
    if weight and keys.get("outer") == "sum":
        raise UsageError("--weight says what each worker's step counts in a mean, and --outer sum has none")
    return weight


def _metric(said: Description) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """A metric without an evaluation is that of the program's own output."""
    if "command" in said.evaluate:
        return "", said.evaluate, said.stop
    metric = said.evaluate.get("metric", "") or said.stop.get("metric", "")
    if "(" in metric:
        check_expression(metric, "--metric")
    rest = [{key: value for key, value in part.items() if key != "metric"} for part in (said.evaluate, said.stop)]
    return metric, rest[0], rest[1]


def _sides(keys: Mapping[str, Any]) -> tuple[str, ...]:
    side = keys.get("side", [])
    sides = (side,) if isinstance(side, str) else tuple(side)
    for pattern in sides:
        if not isinstance(pattern, str) or not pattern or pattern.startswith("/") or ".." in pattern.split("/"):
            raise UsageError(f"--side {pattern!r}: name files from this directory down, e.g. 'state*.bin'")
    return sides


def lines_of(model: ModelFile, workers: int) -> list[str]:
    """For `--check` and the first lines."""
    how = {"mean": "the mean of the workers' steps is taken", "sum": "the workers' steps are added up", "nesterov": "the mean of the workers' steps goes through Nesterov momentum"}[model.outer]
    if model.push == ASSIGN:
        how = "one worker: its numbers are taken as they are"
    weigh = {"": "", LINES: ", weighed by the lines of {data}"}.get(model.weight, f", weighed by {model.weight!r} in the output")
    listed = ", ".join(path + f" as {layout}" * bool(layout) for path, layout in model.files)
    shown = f", shows {model.metric!r} of the output" if model.metric else ""
    return [f"{listed} ({model.elements:,} numbers) {'is' if len(model.files) == 1 else 'are'} shared over {model.rounds:,} rounds; {how}{weigh if workers > 1 else ''}{shown}"]

