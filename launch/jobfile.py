"""job.toml and flags, read as one description: sections, keys, types, tables.  A wrong key names the nearest right one.

Owns what may be written and how it is merged: a flag wins over the same key of the file, and two descriptions of
one thing on the same level are an error.  Knows no file: it is handed the parsed mapping.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..core.errors import UsageError
from ..core.table import OPTIMIZERS, TableSpec, unknown_key

_NUMBER = (int, float)
#: Keys of [job] and the types that each may have.
JOB_KEYS: dict[str, tuple[type, ...]] = {
    "name": (str,), "seed": (int,), "workers": (int,), "command": (str, list), "consistency": (str,), "combine": (str,),
    "max_restarts": (int,), "on_worker_loss": (str,), "optimizer": (str,), "lr": _NUMBER, "cluster": (str,),
    "servers": (int,), "ok_exit": (list,), "grace": _NUMBER, "stdin": (str,), "env": (list,),
}  # fmt: skip
WORKER_KEYS: dict[str, tuple[type, ...]] = {"command": (str, list), "count": (int,)}
RESULT_KEYS: dict[str, tuple[type, ...]] = {"dir": (str,)}
SECTIONS = ("job", "worker", "table", "result")

SETTINGS = tuple(sorted({key for known in OPTIMIZERS.values() for key in known}))
#: What each kind of first value takes.
INIT_SETTINGS: dict[str, tuple[str, ...]] = {
    "zeros": (), "normal": ("scale",), "uniform": ("low", "high"), "file": ("path",), "program": (),
}  # fmt: skip
_ALL_INIT = ("scale", "low", "high", "path")
TABLE_KEYS: dict[str, tuple[type, ...]] = {
    "name": (str,), "shape": (int, list), "dtype": (str,), "order": (str,), "optimizer": (str,), "init": (str,),
    "combine": (str,), "consistency": (str,),
    **{key: _NUMBER for key in SETTINGS}, "scale": _NUMBER, "low": _NUMBER, "high": _NUMBER, "path": (str,),
}  # fmt: skip


class Entry(NamedTuple):
    """A table as somebody wrote it, and where: "job.toml" or "--table"."""

    values: dict[str, Any]
    where: str


class Description(NamedTuple):
    """Both sources merged: `job` holds keys of JOB_KEYS, `groups` the commands with their counts."""

    job: dict[str, Any]
    groups: list[tuple[list[str], int]]  # from [[worker]] or --worker
    command: list[str]  # from `-- CMD` or [job] command
    tables: list[Entry]
    result_dir: str


def describe(file: Mapping[str, Any], file_name: str, flags: Mapping[str, Any]) -> Description:
    """Merge the parsed job.toml (may be empty) and the flags that were given.

    `flags` uses the names of JOB_KEYS, and `tables` (texts), `worker` (texts), `argv` (after `--`), `result`.
    """
    for section in file:
        if section in JOB_KEYS and section not in SECTIONS and not isinstance(file[section], dict):
            raise UsageError(f"{file_name}: {section} stands outside of every section; put it under [job]")
        if section not in SECTIONS:
            raise unknown_key(section, SECTIONS, f"{file_name}, section")
    written = _section(file, "job", JOB_KEYS, file_name)
    result = _section(file, "result", RESULT_KEYS, file_name)
    job = {**written, **{key: value for key, value in flags.items() if key in JOB_KEYS and value is not None}}

    command, groups = _commands(file, file_name, written, flags)
    tables = [Entry(_checked(item, TABLE_KEYS, f"{file_name}, [[table]]"), file_name) for item in _list(file, "table", file_name)]
    tables += [Entry(parse_table(text), "--table") for text in flags.get("tables") or ()]
    return Description(job, groups, command, tables, flags.get("result") or result.get("dir", ""))


def _commands(
    file: Mapping[str, Any], file_name: str, written: Mapping[str, Any], flags: Mapping[str, Any]
) -> tuple[list[str], list[tuple[list[str], int]]]:
    """The one command for all, or the groups; the command line as a whole wins over the file."""
    groups = []
    for item in _list(file, "worker", file_name):
        entry = _checked(item, WORKER_KEYS, f"{file_name}, [[worker]]")
        if "command" not in entry:
            raise UsageError(f"{file_name}, [[worker]]: a worker needs a command")
        count = entry.get("count", 1)
        if count < 1:
            raise UsageError(f"{file_name}, [[worker]]: count = {count}; from 1 on")
        groups.append((split_command(entry["command"], f"{file_name}, [[worker]] command"), count))
    command = split_command(written["command"], f"{file_name}, [job] command") if "command" in written else []
    if groups and command:
        raise UsageError(f"{file_name}: both [job] command and [[worker]] say what to run; keep one")

    argv, each = list(flags.get("argv") or ()), list(flags.get("worker") or ())
    if argv and each:
        raise UsageError("the command is given twice: by --worker and after `--`; keep one")
    if each:
        return [], [(split_command(text, "--worker"), 1) for text in each]
    return (argv, []) if argv else (command, groups)


def split_command(command: object, where: str) -> list[str]:
    """A command as a list of arguments: a text is split as a shell splits words (and nothing else a shell does).

    >>> split_command("./t 'a b' $HOME", "--worker")
    ['./t', 'a b', '$HOME']
    """
    if isinstance(command, str):
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise UsageError(f"{where}: {command!r} cannot be split into words: {error}") from error
    elif isinstance(command, list) and all(isinstance(word, str) for word in command):
        words = list(command)
    else:
        raise UsageError(f"{where}: {command!r} is neither a text nor a list of texts")
    if not words or not words[0]:
        raise UsageError(f"{where}: the command is empty")
    return words


def parse_table(text: str) -> dict[str, Any]:
    """Read `NAME=SHAPE[:dtype][,key=value...]`, a shape being whole numbers with commas between them.

    >>> parse_table("w=10,64:f64,lr=0.5,init=program")
    {'name': 'w', 'shape': [10, 64], 'dtype': 'f64', 'lr': 0.5, 'init': 'program'}
    """
    name, equals, rest = text.partition("=")
    parts = rest.split(",")
    dims = []
    while parts and "=" not in parts[0]:
        dims.append(parts.pop(0))
    if not equals or not dims:
        raise UsageError(f"--table {text!r}: write NAME=SHAPE[:dtype][,key=value...], e.g. w=10,64:f32,lr=0.1")
    dims[-1], colon, dtype = dims[-1].partition(":")
    shape = []
    for dim in dims:
        if not (dim.isascii() and dim.strip().isdecimal()):
            raise UsageError(f"--table {text!r}: {dim!r} in the shape is no whole number (write 10,64 for 10 rows of 64)")
        shape.append(int(dim))
    values: dict[str, Any] = {"name": name, "shape": shape}
    if colon:
        values["dtype"] = dtype
    for part in parts:
        key, equals, value = part.partition("=")
        if not equals:
            raise UsageError(f"--table {text!r}: {part!r} is no key=value")
        if key in ("name", "shape") or key not in TABLE_KEYS:
            raise unknown_key(key, [known for known in TABLE_KEYS if known not in ("name", "shape")], f"--table {name}")
        if key in values:
            raise UsageError(f"--table {text!r}: {key} is given twice")
        values[key] = _number(value, f"--table {name}: {key}") if TABLE_KEYS[key] == _NUMBER else value
    return values


def table_of(entry: Entry, job: Mapping[str, Any], directory: str) -> TableSpec:
    """The table's specification; `job` gives optimizer and lr where the table has none, `directory` where paths start."""
    values = dict(entry.values)
    if "name" not in values or "shape" not in values:
        raise UsageError(f"{entry.where}: a table needs a name and a shape")
    where = f"{entry.where}, table {values['name']!r}"
    optimizer = values.pop("optimizer", job.get("optimizer", "sgd"))
    if optimizer not in OPTIMIZERS:
        raise unknown_key(optimizer, list(OPTIMIZERS), f"{where}, optimizer")
    settings = {key: values.pop(key) for key in SETTINGS if key in values}
    for key in OPTIMIZERS[optimizer]:
        if key in job:
            if entry.where != "--table" and settings.get(key, job[key]) != job[key]:
                raise UsageError(f"{where} says {key} = {settings[key]} and the job says {job[key]}: remove one of them")
            settings.setdefault(key, job[key])

    init = values.get("init", "zeros")
    init_settings = {key: values.pop(key) for key in _ALL_INIT if key in values}
    for key in init_settings:
        if key not in INIT_SETTINGS.get(init, _ALL_INIT):
            raise UsageError(f"{where}: init={init} does not use {key}")
    if init == "file":
        if not init_settings.get("path"):
            raise UsageError(f"{where}: init=file needs path=, a raw file of the table's numbers")
        path = init_settings["path"]
        init_settings["path"] = path if path.startswith("/") else f"{directory}/{path}"
    shape = values.pop("shape")
    return TableSpec(
        shape=(shape,) if isinstance(shape, int) else tuple(shape),
        optimizer=optimizer, settings=settings, init_settings=init_settings, **values,
    )  # fmt: skip


def _number(text: str, where: str) -> int | float:
    try:
        value = float(text)
    except ValueError as error:
        raise UsageError(f"{where} = {text!r} is no number") from error
    if not math.isfinite(value):
        raise UsageError(f"{where} = {text!r} is not finite")
    return int(text) if text.strip().lstrip("+-").isdecimal() else value


def _section(file: Mapping[str, Any], name: str, keys: Mapping[str, tuple[type, ...]], file_name: str) -> dict[str, Any]:
    section = file.get(name, {})
    if not isinstance(section, dict):
        raise UsageError(f"{file_name}: write [{name}], one section of key = value lines")
    return _checked(section, keys, f"{file_name}, [{name}]")


def _list(file: Mapping[str, Any], name: str, file_name: str) -> Sequence[Any]:
    items = file.get(name, [])
    if not isinstance(items, list):
        raise UsageError(f"{file_name}: write [[{name}]] with two brackets, one for each {name}")
    return items


def _checked(values: object, keys: Mapping[str, tuple[type, ...]], where: str) -> dict[str, Any]:
    """The mapping itself when every key is known and has a fitting type."""
    if not isinstance(values, dict):
        raise UsageError(f"{where}: {values!r} is no section of key = value lines")
    for key, value in values.items():
        if key not in keys:
            raise unknown_key(key, list(keys), where)
        if not isinstance(value, keys[key]) or isinstance(value, bool):
            kinds = " or ".join({"str": "a text", "int": "a whole number", "float": "a number", "list": "a list"}[k.__name__] for k in keys[key])
            raise UsageError(f"{where}: {key} = {value!r} is not {kinds}")
    return dict(values)
