"""The `info` file: what a channel is, in lines that never change; and the environment that a program is given.

    version=1
    job=digits
    ...
    table=w kind=dense dtype=f32 order=C offset=0 count=640 shape=10,64
    table=e kind=sparse dtype=f32 order=C offset=0 count=0 shape=50000,8 width=8 index=u32 batch=512

Refuses to know where the directory lies and who made it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..core.errors import Code, RequestError
from ..core.job import JobSpec
from ..core.keys import MASK, mix
from ..core.limits import CACHE_LINE_BYTES, Limits
from ..core.table import DTYPE_CODES, DTYPES, INDEXES, ROWS_TOP, STORAGES, TableSpec
from .page import Constant
from .request import Request

VERSION = 1
INFO_BYTES_MAX = 1 << 18  # 1,024 tables with long names fit
_NUMBER_MAX = 1 << 62
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}\Z")
_BOOT_ID = re.compile(r"[0-9a-f]{32}\Z")
#: A semaphore's name; only such are made, opened and removed.
SEMAPHORE = re.compile(r"/plugml-[0-9a-f]{32}\Z")
ROW_ALIGN = 8  # where a section begins
_HEAD = (
    "version", "job", "number", "worker", "workers", "gen", "boot_id", "endian", "clock", "seed", "count", "cap_grad", "cap_idx",
    "cap_param", "bell",
)  # fmt: skip
_TABLE = ("table", "kind", "dtype", "order", "offset", "count", "shape")


class InfoTable(NamedTuple):
    """One table as the program sees it.

    Dense: `offset` (bytes, 64-aligned) and `elements` in grad and param.  Sparse: `width` elements a row, rows named by
    `index_type` (u32, u64, str), at most `batch` of them a request.  `storage` is empty where the servers keep `dtype`.
    """

    name: str
    kind: str
    dtype: str
    order: str
    offset: int
    elements: int
    shape: tuple[int, ...]
    width: int = 0
    index_type: str = ""
    batch: int = 0
    storage: str = ""

    @classmethod
    def of(cls, table: TableSpec, offset: int) -> InfoTable:
        storage = table.storage_name if table.storage_name != table.dtype else ""
        if table.kind == "dense":
            return cls(table.name, "dense", table.dtype, table.order, offset, table.count, table.shape, storage=storage)
        return cls(
            table.name, "sparse", table.dtype, "C", 0, 0, table.shape, table.width, table.index_name, table.batch_rows, storage
        )  # fmt: skip

    @property
    def nbytes(self) -> int:
        return self.elements * DTYPES[self.dtype].itemsize

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        return DTYPES[self.dtype]

    @property
    def storage_dtype(self) -> np.dtype[Any]:
        """Of the servers' numbers."""
        return STORAGES[self.storage or self.dtype]

    @property
    def rows(self) -> int:
        """Of a sparse table; 0 = every number that its index can hold."""
        return self.shape[0]

    @property
    def row_bytes(self) -> int:
        return self.width * DTYPES[self.dtype].itemsize

    @property
    def index_bytes(self) -> int:
        """Of a row number in gidx and want; 0 = rows are named by strings."""
        return INDEXES.get(self.index_type, 0)

    def format(self) -> str:
        """Its line."""
        shape = ",".join(str(n) for n in self.shape)
        line = f"table={self.name} kind={self.kind} dtype={self.dtype} order={self.order} offset={self.offset} count={self.elements} shape={shape}"
        if self.kind == "sparse":
            line += f" width={self.width} index={self.index_type} batch={self.batch}"
        return f"{line} storage={self.storage}" if self.storage else line


class Info(NamedTuple):
    """What never changes in a channel.

    `number` is the job's number in its cluster, `elements` counts those of all dense tables, `cap_*` the bytes of the files, `clock` the one to go on with,
    `seed` 31 bits that differ per worker.  `sem` is the semaphore's name; with bell=sem it is empty until the channel is made.
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
    sem: str = ""

    @classmethod
    def of(cls, spec: JobSpec, worker: int, gen: int, boot_id: str, clock: int, number: int = 0, workers: int = 0) -> Info:
        """The channel of `worker` in a job of so many `workers` (0 = as it began); `boot_id` as 32 hex digits (`root.boot_id()`)."""
        offsets = {placed.table.name: placed.offset for placed in spec.layout.places}
        tables = tuple(InfoTable.of(table, offsets.get(table.name, 0)) for table in spec.tables)
        elements = sum(table.elements for table in tables)
        seed = mix((mix(spec.seed) + worker) & MASK) >> 33
        cap, cap_idx = caps(tables)
        return cls(
            spec.name, worker, workers or spec.workers, gen, boot_id, clock, seed, elements, cap, cap_idx, cap, tables, number, spec.bell
        )  # fmt: skip

    @property
    def dense(self) -> tuple[InfoTable, ...]:
        return tuple(table for table in self.tables if table.kind == "dense")

    @property
    def dense_bytes(self) -> int:
        """Where the last dense table ends in grad and param."""
        return max((table.offset + table.nbytes for table in self.dense), default=0)

    @property
    def dtype(self) -> str:
        """The dtype that all tables share, or `mixed`."""
        names = {table.dtype for table in self.tables}
        return names.pop() if len(names) == 1 else "mixed"

    def check(self, request: Request) -> None:
        """Refuse what this channel cannot serve, before any file is touched.  Raises `RequestError`."""
        for section in request.sections:
            table = next((table for table in self.tables if table.name == section.table), None)
            if table is None:
                known = ", ".join(table.name for table in self.tables)
                raise RequestError(Code.RANGE, f"table {section.table!r} is none of this job's; it has {known}")
            if table.kind == "dense":
                text = f"table={section.table}: only sparse tables are named; the dense ones travel whole, in a request with sections if n= is said"
                raise RequestError(Code.FORMAT, text)
            for key, rows in (("k", section.rows), ("want", section.want)):
                if rows > table.batch:
                    text = f"{key}={rows} rows of table {table.name}, its batch is {table.batch}; send several requests, or give the table a larger batch"
                    raise RequestError(Code.RANGE, text)
        if request.n is not None and request.n != self.elements:
            raise RequestError(Code.SIZE, f"n={request.n}, but the job's dense tables have {self.elements} elements; see info")

    @property
    def directory_name(self) -> str:
        """`<job>.<worker>.<gen>`: the channel's name in its root."""
        return f"{self.job}.{self.worker}.{self.gen}"

    def constant(self, created_ns: int) -> Constant:
        """The ctl page's constant part."""
        dtype = DTYPE_CODES.get(self.dtype, 0)
        index_bytes = max(table.index_bytes for table in self.tables) if self.tables else 0
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
        if self.sem:
            lines.append(f"sem={self.sem}")
        lines += [table.format() for table in self.tables]
        return "\n".join(lines) + "\n"


def caps(tables: Sequence[InfoTable]) -> tuple[int, int]:
    """Bytes of grad and of param, and bytes of gidx and of want."""
    end = max((table.offset + table.nbytes for table in tables if table.kind == "dense"), default=0)
    sparse = [table for table in tables if table.kind == "sparse"]
    if not sparse:
        return end, 0
    rows = sum(rounded(table.batch * table.row_bytes, ROW_ALIGN) for table in sparse)
    return rounded(end, CACHE_LINE_BYTES) + rows, sum(rounded(table.batch * table.index_bytes, ROW_ALIGN) for table in sparse)


def rounded(number: int, align: int) -> int:
    """Up to the next multiple."""
    return -(-number // align) * align


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
    sem = head.get("sem", "") if head["bell"] == "sem" else ""
    if sem and not SEMAPHORE.match(sem):
        raise _bad(f"info: sem={sem[:60]!r} is no semaphore of a channel")
    if len(tables) > Limits().tables_max:
        raise _bad(f"info has {len(tables)} tables, {Limits().tables_max} is the most")
    numbers = {key: _whole(head[key], key) for key in _HEAD if key not in ("version", "job", "boot_id", "endian", "bell")}
    numbers["elements"] = numbers.pop("count")
    info = Info(job=head["job"], boot_id=head["boot_id"], bell=head["bell"], sem=sem, tables=tuple(tables), **numbers)
    _check_places(info)
    return info


def _table(line: str, number: int) -> InfoTable:
    words = dict(word.partition("=")[::2] for word in line.split())
    for key in _TABLE:
        if key not in words:
            raise _bad(f"line {number} of info lacks {key}=")
    if not _NAME.match(words["table"]) or words["kind"] not in ("dense", "sparse") or words["order"] not in ("C", "F"):
        raise _bad(f"line {number} of info: table, kind or order is not well formed")
    storage = words.get("storage", "")
    if words["dtype"] not in DTYPES or storage not in ("", *STORAGES):
        raise RequestError(Code.VERSION, f"line {number} of info: unknown dtype {words['dtype'][:20]!r} or storage {storage[:20]!r}")
    sparse = words["kind"] == "sparse"
    shape = tuple(_whole(word, "shape", ROWS_TOP if sparse else _NUMBER_MAX) for word in words["shape"].split(",", 64))
    count = _whole(words["count"], "count")
    table = InfoTable(words["table"], words["kind"], words["dtype"], words["order"], _whole(words["offset"], "offset"), count, shape, storage=storage)
    if sparse:
        return _sparse(table, words, number)
    if math.prod(shape) != count:
        raise _bad(f"line {number} of info: count={count} is not the product of shape={words['shape'][:80]}")
    return table


def _sparse(table: InfoTable, words: Mapping[str, str], number: int) -> InfoTable:
    """The rest of a sparse table's line."""
    for key in ("width", "index", "batch"):
        if key not in words:
            raise _bad(f"line {number} of info lacks {key}=")
    if words["index"] not in INDEXES:
        raise RequestError(Code.VERSION, f"line {number} of info: unknown index {words['index'][:20]!r}")
    width, batch = _whole(words["width"], "width"), _whole(words["batch"], "batch")
    if len(table.shape) != 2 or table.shape[1] != width or width < 1 or batch < 1 or table.offset or table.elements:
        raise _bad(f"line {number} of info: a sparse table has shape=<rows>,<width>, width and batch from 1 on, offset=0 and count=0")
    return table._replace(width=width, index_type=words["index"], batch=batch)


def _check_places(info: Info) -> None:
    """The dense tables lie one after the other inside the files, and the rows of a whole batch fit behind them."""
    end = 0
    for table in info.dense:
        if table.offset % CACHE_LINE_BYTES or table.offset < end:
            raise _bad(f"info: table {table.name} at offset {table.offset} overlaps or is not aligned")
        end = table.offset + table.nbytes
    cap, cap_idx = caps(info.tables)
    if cap > info.cap_grad or cap > info.cap_param or cap_idx > info.cap_idx or sum(table.elements for table in info.dense) != info.elements:
        raise _bad(
            f"info: the tables need {cap} bytes, and {cap_idx} for row numbers; cap_grad={info.cap_grad} cap_param={info.cap_param} "
            f"cap_idx={info.cap_idx} count={info.elements}"
        )


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


def _whole(word: str, what: str, most: int = _NUMBER_MAX) -> int:
    if not word.isascii() or not word.isdigit() or len(word) > 20 or int(word) > most:
        raise _bad(f"info: {what}={word[:40]!r} is no whole number")
    return int(word)


def _bad(text: str) -> RequestError:
    return RequestError(Code.FORMAT, text)
