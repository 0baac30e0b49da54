"""The `info` file: what a channel is, in lines that never change; and the environment that a program is given.

    version=1
    job=digits
    ...
    table=w kind=dense dtype=f32 order=C offset=0 count=640 shape=10,64

Refuses to know where the directory lies and who made it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..core.errors import Code, RequestError
from ..core.job import JobSpec
from ..core.keys import MASK, mix
from ..core.limits import CACHE_LINE_BYTES, Limits
from ..core.table import DTYPE_CODES, DTYPES
from .page import Constant
from .request import Request

VERSION = 1
INFO_BYTES_MAX = 1 << 18  # 1,024 tables with long names fit
_NUMBER_MAX = 1 << 62
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}\Z")
_BOOT_ID = re.compile(r"[0-9a-f]{32}\Z")
_HEAD = (
    "version", "job", "number", "worker", "workers", "gen", "boot_id", "endian", "clock", "seed", "count", "cap_grad", "cap_idx",
    "cap_param", "bell",
)  # fmt: skip
_TABLE = ("table", "kind", "dtype", "order", "offset", "count", "shape", "width", "index")


class InfoTable(NamedTuple):
    """One table as the program sees it.  Dense: `offset` (bytes, 64-aligned) and `elements` in grad and param."""

    name: str
    kind: str
    dtype: str
    order: str
    offset: int
    elements: int
    shape: tuple[int, ...]
    width: int = 0
    index_type: str = ""

    @property
    def nbytes(self) -> int:
        return self.elements * DTYPES[self.dtype].itemsize

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        return DTYPES[self.dtype]


class Info(NamedTuple):
    """What never changes in a channel.

    `number` is the job's number in its cluster, `elements` counts those of all dense tables, `cap_*` the bytes of the files, `clock` the one to go on with,
    `seed` 31 bits that differ per worker.
    """

    job: str
    worker: int
    workers: int
    gen: int
    boot_id: str
    clock: int
    seed: int
    elements: int
    cap_grad: int
    cap_idx: int
    cap_param: int
    tables: tuple[InfoTable, ...]
    number: int = 0
    bell: str = "fifo"

    @classmethod
    def of(cls, spec: JobSpec, worker: int, gen: int, boot_id: str, clock: int, number: int = 0) -> Info:
        """The channel of `worker` in a job; `boot_id` as 32 hex digits (`root.boot_id()`)."""
        layout = spec.layout
        tables = tuple(
            InfoTable(item.name, "dense", item.dtype, item.order, offset, item.count, item.shape) for item, offset in layout.places
        )
        elements = sum(table.elements for table in tables)
        seed = mix((mix(spec.seed) + worker) & MASK) >> 33
        return cls(
            spec.name, worker, spec.workers, gen, boot_id, clock, seed, elements, layout.nbytes, 0, layout.nbytes, tables, number
        )  # fmt: skip

    @property
    def dense(self) -> tuple[InfoTable, ...]:
        return tuple(table for table in self.tables if table.kind == "dense")

    @property
    def dtype(self) -> str:
        """The dtype that all dense tables share, or `mixed`."""
        names = {table.dtype for table in self.dense}
        return names.pop() if len(names) == 1 else "mixed"

    def check(self, request: Request) -> None:
        """Refuse what this channel cannot serve, before any file is touched.  Raises `RequestError`."""
        if request.verb == "next":
            raise RequestError(Code.FORMAT, "next: this job has no list of pieces to hand out")
        if request.timeout_ms is not None or request.unwaited:
            raise RequestError(Code.FORMAT, "t= and async= are not served by this agent; leave them out and wait for the reply")
        for section in request.sections:
            if section.table not in {table.name for table in self.tables}:
                known = ", ".join(table.name for table in self.tables)
                raise RequestError(Code.RANGE, f"table {section.table!r} is none of this job's; it has {known}")
            raise RequestError(Code.FORMAT, f"table={section.table}: only sparse tables are named; a dense one always travels whole")
        if request.n is not None and request.n != self.elements:
            raise RequestError(Code.SIZE, f"n={request.n}, but the job's dense tables have {self.elements} elements; see info")

    @property
    def directory_name(self) -> str:
        """`<job>.<worker>.<gen>`: the channel's name in its root."""
        return f"{self.job}.{self.worker}.{self.gen}"

    def constant(self, created_ns: int) -> Constant:
        """The ctl page's constant part."""
        dtype = DTYPE_CODES.get(self.dtype, 0)
        index_bytes = 0 if self.cap_idx == 0 else 4 if all(t.index_type != "u64" for t in self.tables) else 8
        return Constant(
            self.gen, self.elements, self.cap_grad, self.cap_param, self.cap_idx, dtype, index_bytes, self.worker, created_ns,
            bytes.fromhex(self.boot_id),
        )  # fmt: skip

    def format(self) -> str:
        """The text of the file; `parse_info` reads it back."""
        lines = [
            f"version={VERSION}", f"job={self.job}", f"number={self.number}", f"worker={self.worker}", f"workers={self.workers}", f"gen={self.gen}",
            f"boot_id={self.boot_id}", "endian=little", f"clock={self.clock}", f"seed={self.seed}", f"count={self.elements}",
            f"cap_grad={self.cap_grad}", f"cap_idx={self.cap_idx}", f"cap_param={self.cap_param}", f"bell={self.bell}",
        ]  # fmt: skip
        for table in self.tables:
            shape = ",".join(str(n) for n in table.shape)
            line = (
                f"table={table.name} kind={table.kind} dtype={table.dtype} order={table.order} offset={table.offset} "
                f"count={table.elements} shape={shape}"
            )
            lines.append(line if table.kind == "dense" else f"{line} width={table.width} index={table.index_type}")
        return "\n".join(lines) + "\n"


def parse_info(text: str) -> Info:
    """Read an info file; unknown keys are passed over.  Raises `RequestError` VERSION or FORMAT."""
    if len(text) > INFO_BYTES_MAX:
        raise _bad(f"info is longer than {INFO_BYTES_MAX} characters")
    head: dict[str, str] = {}
    tables: list[InfoTable] = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith("table="):
            tables.append(_table(line, number))
        elif line:
            key, equals, value = line.partition("=")
            if not equals:
                raise _bad(f"line {number} of info is no key=value")
            head[key] = value
    if head.get("version") != str(VERSION):
        raise RequestError(Code.VERSION, f"info says version={head.get('version')}, this program knows {VERSION}")
    for key in _HEAD:
        if key not in head:
            raise _bad(f"info lacks {key}=")
    if not _NAME.match(head["job"]) or not _BOOT_ID.match(head["boot_id"]):
        raise _bad("info: job or boot_id is not well formed")
    if head["endian"] != "little" or head["bell"] not in ("fifo", "sem"):
        raise RequestError(Code.VERSION, f"info says endian={head['endian']} bell={head['bell']}, which this program does not speak")
    if len(tables) > Limits().tables_max:
        raise _bad(f"info has {len(tables)} tables, {Limits().tables_max} is the most")
    numbers = {key: _whole(head[key], key) for key in _HEAD if key not in ("version", "job", "boot_id", "endian", "bell")}
    numbers["elements"] = numbers.pop("count")
    info = Info(job=head["job"], boot_id=head["boot_id"], bell=head["bell"], tables=tuple(tables), **numbers)
    _check_places(info)
    return info


def _table(line: str, number: int) -> InfoTable:
    words = dict(word.partition("=")[::2] for word in line.split())
    for key in _TABLE[:7]:
        if key not in words:
            raise _bad(f"line {number} of info lacks {key}=")
    if not _NAME.match(words["table"]) or words["kind"] not in ("dense", "sparse") or words["order"] not in ("C", "F"):
        raise _bad(f"line {number} of info: table, kind or order is not well formed")
    if words["dtype"] not in DTYPES:
        raise RequestError(Code.VERSION, f"line {number} of info: unknown dtype {words['dtype'][:20]!r}")
    shape = tuple(_whole(word, "shape") for word in words["shape"].split(",", 64))
    count = _whole(words["count"], "count")
    if math.prod(shape) != count:
        raise _bad(f"line {number} of info: count={count} is not the product of shape={words['shape'][:80]}")
    return InfoTable(
        words["table"], words["kind"], words["dtype"], words["order"], _whole(words["offset"], "offset"), count, shape,
        _whole(words.get("width", "0"), "width"), words.get("index", ""),
    )  # fmt: skip


def _check_places(info: Info) -> None:
    """The dense tables lie one after the other inside the files."""
    end = 0
    for table in info.dense:
        if table.offset % CACHE_LINE_BYTES or table.offset < end:
            raise _bad(f"info: table {table.name} at offset {table.offset} overlaps or is not aligned")
        end = table.offset + table.nbytes
    if end > info.cap_grad or end > info.cap_param or sum(table.elements for table in info.dense) != info.elements:
        raise _bad(f"info: the dense tables need {end} bytes, cap_grad={info.cap_grad} cap_param={info.cap_param} count={info.elements}")


def environment(
    info: Info, directory: str, *, local_worker: int, local_workers: int, out: str, plugml_version: str
) -> dict[str, str]:
    """The `PLUGML_*` variables of one worker.

    `local_worker` counts the workers of this host from 0; `out` is where the program's own files may go.
    """
    return {
        "PLUGML_DIR": directory,
        "PLUGML_JOB": info.job,
        "PLUGML_WORKER": str(info.worker),
        "PLUGML_WORKERS": str(info.workers),
        "PLUGML_LOCAL_WORKER": str(local_worker),
        "PLUGML_LOCAL_WORKERS": str(local_workers),
        "PLUGML_GEN": str(info.gen),
        "PLUGML_ELEMENTS": str(info.elements),
        "PLUGML_DTYPE": info.dtype,
        "PLUGML_CLOCK": str(info.clock),
        "PLUGML_SEED": str(info.seed),
        "PLUGML_OUT": out,
        "PLUGML_VERSION": plugml_version,
    }


#: Names that `environment` sets; a launcher removes inherited ones first.
VARIABLES: tuple[str, ...] = (
    "PLUGML_DIR", "PLUGML_JOB", "PLUGML_WORKER", "PLUGML_WORKERS", "PLUGML_LOCAL_WORKER", "PLUGML_LOCAL_WORKERS", "PLUGML_GEN",
    "PLUGML_ELEMENTS", "PLUGML_DTYPE", "PLUGML_CLOCK", "PLUGML_SEED", "PLUGML_OUT", "PLUGML_VERSION",
)  # fmt: skip


def without(variables: Mapping[str, str]) -> dict[str, str]:
    """A copy of an environment without anybody else's channel in it.

    >>> without({"HOME": "/root", "PLUGML_DIR": "/old"})
    {'HOME': '/root'}
    """
    return {key: value for key, value in variables.items() if key not in VARIABLES}


def _whole(word: str, what: str) -> int:
    if not word.isascii() or not word.isdigit() or len(word) > 19 or int(word) > _NUMBER_MAX:
        raise _bad(f"info: {what}={word[:40]!r} is no whole number")
    return int(word)


def _bad(text: str) -> RequestError:
    return RequestError(Code.FORMAT, text)
