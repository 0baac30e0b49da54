"""Tables as their user writes them, on the command line and in job.toml, and the specification that comes of it.

    --table w=10,64:f64,lr=0.1        --table emb=sparse:f32,width=16,rows=1000000,index=u32

Owns the keys of a table.  What its values may be is core's business; how files and flags are merged, jobfile's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..core.errors import UsageError
from ..core.kinds import INIT_SETTINGS, OPTIMIZERS
from ..core.table import TableSpec, unknown_key

NUMBER = (int, float)
SPARSE = "sparse"
SETTINGS = tuple(sorted({key for known in OPTIMIZERS.values() for key in known}))
_ALL_INIT = tuple(dict.fromkeys(key for known in INIT_SETTINGS.values() for key in known))
TABLE_KEYS: dict[str, tuple[type, ...]] = {
    "name": (str,), "shape": (int, list), "width": (int,), "rows": (int,), "index": (str,), "batch": (int,),
    "dtype": (str,), "storage": (str,), "order": (str,), "optimizer": (str,), "init": (str,), "combine": (str,),
    "consistency": (str,), **{key: NUMBER for key in SETTINGS},
    **{key: (str,) if key == "path" else NUMBER for key in _ALL_INIT},
}  # fmt: skip
_HOW = "write NAME=SHAPE[:dtype][,key=value...], e.g. w=10,64:f32,lr=0.1, or NAME=sparse[:dtype],width=16[,key=value...]"


class Entry(NamedTuple):
    """A table as somebody wrote it, and where: "job.toml" or "--table"."""

    values: dict[str, Any]
    where: str


def parse_table(text: str) -> dict[str, Any]:
    """Read `NAME=SHAPE[:dtype][,key=value...]`, a shape being whole numbers with commas between them, or `sparse`.

    >>> parse_table("w=10,64:f64,lr=0.5,init=program")
    {'name': 'w', 'shape': [10, 64], 'dtype': 'f64', 'lr': 0.5, 'init': 'program'}
    >>> parse_table("emb=sparse:f32,width=16,rows=1000000")
    {'name': 'emb', 'dtype': 'f32', 'width': 16, 'rows': 1000000}
    """
    name, equals, rest = text.partition("=")
    parts = rest.split(",")
    dims = []
    while parts and "=" not in parts[0]:
        dims.append(parts.pop(0))
    if not equals or not dims:
        raise UsageError(f"--table {text!r}: {_HOW}")
    dims[-1], colon, dtype = dims[-1].partition(":")
    sparse = dims == [SPARSE]
    values: dict[str, Any] = {"name": name}
    if not sparse:
        values["shape"] = [_whole(dim, f"--table {text!r}: {dim!r} in the shape") for dim in dims]
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
        values[key] = _value(value, TABLE_KEYS[key], f"--table {name}: {key}")
    if sparse and "width" not in values:
        raise UsageError(f"--table {text!r}: a sparse table needs width=, the numbers of a row")
    return values


def table_of(entry: Entry, job: Mapping[str, Any], directory: str) -> TableSpec:
    """The table's specification; `job` gives optimizer and lr where the table has none, `directory` where paths start."""
    values = dict(entry.values)
    if "name" not in values:
        raise UsageError(f"{entry.where}: a table needs a name")
    where = f"{entry.where}, table {values['name']!r}"
    shape = _shape(values, where)
    optimizer = values.pop("optimizer", job.get("optimizer", "sgd"))
    if optimizer not in OPTIMIZERS:
        raise unknown_key(optimizer, list(OPTIMIZERS), f"{where}, optimizer", "value")
    settings = {key: values.pop(key) for key in SETTINGS if key in values}
    for key in OPTIMIZERS[optimizer]:
        if key in job:
            if entry.where != "--table" and key in settings and settings[key] != job[key]:
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
    return TableSpec(shape=shape, optimizer=optimizer, settings=settings, init_settings=init_settings, **values)


def _shape(values: dict[str, Any], where: str) -> tuple[int, ...]:
    """Take the shape, or rows and width, out of `values`, which then says of which kind the table is."""
    if "width" not in values and "rows" not in values:
        if "shape" not in values:
            raise UsageError(f"{where}: a table needs a shape, or (sparse) a width")
        shape = values.pop("shape")
        return (shape,) if isinstance(shape, int) else tuple(shape)
    if "shape" in values:
        raise UsageError(f"{where}: both shape and {'width' if 'width' in values else 'rows'} are there: a dense table has a shape, a sparse one rows and width")
    if "width" not in values:
        raise UsageError(f"{where}: a sparse table needs a width, the numbers of a row")
    if values.get("rows", 1) < 1:
        raise UsageError(f"{where}: rows = {values['rows']}; from 1 on, or leave it out: then every number names a row")
    if values.get("batch", 1) < 1:
        raise UsageError(f"{where}: batch = {values['batch']}; rows of one request, from 1 on")
    values["kind"] = SPARSE
    return values.pop("rows", 0), values.pop("width")


def _value(text: str, kinds: tuple[type, ...], where: str) -> Any:
    if kinds == NUMBER:
        return _number(text, where)
    return _whole(text, f"{where} = {text!r}") if kinds == (int,) else text


def _whole(text: str, where: str) -> int:
    if not (text.isascii() and text.strip().isdecimal()) or len(text) > 40:
        raise UsageError(f"{where} is no whole number (write 10,64 for 10 rows of 64)" if "shape" in where else f"{where} is no whole number")
    return int(text)


def _number(text: str, where: str) -> int | float:
    try:
        value = float(text)
    except ValueError as error:
        raise UsageError(f"{where} = {text!r} is no number") from error
    if not math.isfinite(value):
        raise UsageError(f"{where} = {text!r} is not finite")
    return int(text) if text.strip().lstrip("+-").isdecimal() else value
