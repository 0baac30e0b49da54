"""job.toml and flags, read as one description: sections, keys, types, tables.  A wrong key names the nearest right one.

Owns what may be written and how it is merged: a flag wins over the same key of the file, and two descriptions of
one thing on the same level are an error.  Knows no file: it is handed the parsed mapping.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..core.errors import UsageError
from ..core.limits import Limits
from ..core.table import unknown_key
from .tables import NUMBER, TABLE_KEYS, Entry, parse_table

#: Keys of [job] and the types that each may have.
JOB_KEYS: dict[str, tuple[type, ...]] = {
    "name": (str,), "seed": (int,), "workers": (int,), "command": (str, list), "consistency": (str,), "combine": (str,),
    "max_restarts": (int,), "on_worker_loss": (str,), "optimizer": (str,), "lr": NUMBER, "lr_scale": (str,), "lr_warmup": (int,),
    "memory": (str, int), "bell": (str,), "cluster": (str,), "servers": (int,), "copies": (int,), "min_insync": (int,), "on_lost": (str,), "ok_exit": (list,), "grace": NUMBER, "stdin": (str,),
    "env": (list,), "private_dir": (bool,),
}  # fmt: skip
WORKER_KEYS: dict[str, tuple[type, ...]] = {"command": (str, list), "count": (int,)}
DATA_KEYS: dict[str, tuple[type, ...]] = {"files": (str, list), "shard": (str,), "pieces": (str, list)}
EVALUATE_KEYS: dict[str, tuple[type, ...]] = {"command": (str, list), "every": (int,), "metric": (str,)}
STOP_KEYS: dict[str, tuple[type, ...]] = {
    "clocks": (int,), "passes": (int,), "seconds": NUMBER, "metric": (str,), "mode": (str,), "patience": (int,), "min_delta": NUMBER,
}  # fmt: skip
RESULT_KEYS: dict[str, tuple[type, ...]] = {"dir": (str,), "export": (str, list), "keep_best": (bool,)}
CHECKPOINT_KEYS: dict[str, tuple[type, ...]] = {"dir": (str,), "every": (int,), "keep": (int,), "resume": (str,)}
MODEL_KEYS: dict[str, tuple[type, ...]] = {
    "file": (str, list), "rounds": (int,), "outer": (str,), "outer_lr": NUMBER, "outer_momentum": NUMBER, "weight": (str,), "side": (str, list),
}  # fmt: skip
#: Sections of one mapping each.
PLAIN: dict[str, dict[str, tuple[type, ...]]] = {
    "job": JOB_KEYS, "data": DATA_KEYS, "evaluate": EVALUATE_KEYS, "stop": STOP_KEYS, "result": RESULT_KEYS,
    "checkpoint": CHECKPOINT_KEYS, "model": MODEL_KEYS,
}  # fmt: skip
SECTIONS = ("job", "worker", "table", "data", "evaluate", "stop", "result", "checkpoint", "model")
#: What the command line calls a key of a section; the keys of [job] and all others have their own names there.
FLAGS: dict[tuple[str, str], str] = {
    ("data", "files"): "data", ("evaluate", "command"): "evaluate", ("evaluate", "every"): "evaluate_every", ("result", "dir"): "result",
    ("checkpoint", "dir"): "checkpoint_dir", ("checkpoint", "every"): "checkpoint_every", ("checkpoint", "keep"): "checkpoint_keep",
    ("model", "file"): "model",
}  # fmt: skip
_KINDS = {"str": "a text", "int": "a whole number", "float": "a number", "list": "a list", "bool": "true or false"}


class Description(NamedTuple):
    """Both sources merged: `job` and its kin hold keys of their sections, `groups` the commands with their counts."""

    job: dict[str, Any]
    groups: list[tuple[list[str], int]]  # from [[worker]] or --worker
    command: list[str]  # from `-- CMD` or [job] command
    tables: list[Entry]
    data: dict[str, Any]
    evaluate: dict[str, Any]
    stop: dict[str, Any]
    result: dict[str, Any]
    checkpoint: dict[str, Any]
    model: dict[str, Any]


def describe(file: Mapping[str, Any], file_name: str, flags: Mapping[str, Any]) -> Description:
    """Merge the parsed job.toml (may be empty) and the flags that were given.

    `flags` uses the names of JOB_KEYS and those of FLAGS, and `tables` (texts), `worker` (texts), `argv` (after `--`).
    """
    for section in file:
        if section in JOB_KEYS and section not in SECTIONS and not isinstance(file[section], dict):
            raise UsageError(f"{file_name}: {section} stands outside of every section; put it under [job]")
        if section not in SECTIONS:
            raise unknown_key(section, SECTIONS, f"{file_name}, section")
    written = {name: _section(file, name, keys, file_name) for name, keys in PLAIN.items()}
    command, groups = _commands(file, file_name, written["job"], flags)
    merged = {name: _merged(name, values, flags) for name, values in written.items()}

    tables = [Entry(_checked(item, TABLE_KEYS, f"{file_name}, [[table]]"), file_name) for item in _list(file, "table", file_name)]
    tables += [Entry(parse_table(text), "--table") for text in flags.get("tables") or ()]
    return Description(merged["job"], groups, command, tables, merged["data"], merged["evaluate"], merged["stop"], merged["result"], merged["checkpoint"], merged["model"])


def _merged(section: str, written: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """A flag wins over the same key of the file; one that says where the data are, over all that the file says of it."""
    given = {key: flags.get(FLAGS.get((section, key), key)) for key in PLAIN[section] if key != "command" or section != "job"}
    given = {key: value for key, value in given.items() if value is not None}
    return given if section == "data" and given else {**written, **given}


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
        if not 1 <= count <= Limits().workers_max:
            raise UsageError(f"{file_name}, [[worker]]: count = {count}; from 1 to {Limits().workers_max}")
        groups.append((split_command(entry["command"], f"{file_name}, [[worker]] command"), count))
    command = split_command(written["command"], f"{file_name}, [job] command") if "command" in written else []
    if groups and command:
        raise UsageError(f"{file_name}: both [job] command and [[worker]] say what to run; keep one")

    if flags.get("argv") and not flags["argv"][0]:
        raise UsageError("the command after `--` is empty: its first word names the program, e.g. -- ./trainer data.csv")
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
        if not isinstance(value, keys[key]) or (isinstance(value, bool) and bool not in keys[key]):
            kinds = " or ".join(_KINDS[kind.__name__] for kind in keys[key])
            raise UsageError(f"{where}: {key} = {value!r} is not {kinds}")
    return dict(values)
