"""What a table is: shape, numbers, optimizer, first value; and where its elements lie in files and blocks.

A dense table is one array, cut into blocks.  A sparse table is a set of rows of one width, named by whole numbers or by
strings; a row that nobody has pushed to reads as its first value and takes no room.  Its rows lie in buckets by a hash.
Knows neither jobs nor servers.  The file layout of a job's dense tables (`Layout`) is the one that `info` promises.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from .clock import Consistency
from .errors import UsageError, shown
from .kinds import COMBINES as COMBINES
from .kinds import DTYPE_CODES as DTYPE_CODES
from .kinds import DTYPE_NAMES as DTYPE_NAMES
from .kinds import DTYPES as DTYPES
from .kinds import INDEXES as INDEXES
from .kinds import INIT_SETTINGS as INIT_SETTINGS
from .kinds import INITS as INITS
from .kinds import OPTIMIZERS as OPTIMIZERS
from .kinds import STATE_ARRAYS as STATE_ARRAYS
from .kinds import STORAGES as STORAGES
from .kinds import WHOLE_OPTIMIZERS as WHOLE_OPTIMIZERS
from .limits import CACHE_LINE_BYTES, MIB

#: A block travels in one frame; so does a row.
BLOCK_BYTES_TOP = 4 * MIB
DIMENSIONS_MAX = 32
BUCKETS_MAX = 4096
ROWS_TOP = (1 << 64) - 1
#: Rows that one request may push or want unless the table says `batch`, and the bytes that they may have then.
BATCH_ROWS = 1 << 16
BATCH_BYTES = 16 * MIB
BATCH_ROWS_MAX = 1 << 26

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}\Z")


def check_name(name: object, what: str) -> str:
    """A name that may stand in a path, a log line and a shell: letters, digits, `_`, `-`, `.`; at most 63 characters."""
    if not isinstance(name, str) or not _NAME.match(name):
        raise UsageError(f"{what} {shown(name)}: use 1 to 63 letters, digits, '_', '-' or '.', and no '.' or '-' in front")
    return name


def unknown_key(key: object, known: Sequence[str], where: str, what: str = "key") -> UsageError:
    """The error for a key (or what else it is) that nobody knows, with the nearest one that exists."""
    near = difflib.get_close_matches(key[:80], list(known), n=1) if isinstance(key, str) else []
    hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}" if known else "; there are none"
    return UsageError(f"{where}: unknown {what} {shown(key)}{hint}")


def is_finite_number(value: object) -> bool:
    """An int or float (no bool) that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


class Block(NamedTuple):
    """A piece of a dense table: elements `start` to `stop` (in file order)."""

    number: int
    start: int
    stop: int


@dataclass(slots=True, frozen=True)
class TableSpec:
    """A named parameter.

    `shape` counts elements; a dense table is cut into blocks of `block_bytes` (0 until the master has chosen).
    `order` is the order of elements in the program's files: nothing is ever transposed silently.  `dtype` is the kind of
    the program's numbers, `storage` that of the servers'.

    A sparse table has the shape (rows, width), rows 0 = every number that `index` can hold, and lies in `buckets` (0
    until the master has chosen).  `batch` is the most rows that one request pushes, and the most that it wants.
    """

    name: str
    shape: tuple[int, ...]
    kind: str = "dense"
    dtype: str = "f32"
    order: str = "C"
    optimizer: str = "sgd"
    settings: dict[str, float] = field(default_factory=dict)  # lr and the like, as written by the user
    init: str = "zeros"
    init_settings: dict[str, Any] = field(default_factory=dict)  # scale=, low=, high=, path=
    combine: str = ""  # mean or sum; empty = the job's, else mean for floats and sum for i64
    consistency: str = ""  # empty = the job's
    block_bytes: int = 0
    storage: str = ""  # empty = dtype
    index: str = ""  # sparse: u32, u64 or str; empty = the smallest that holds the rows
    batch: int = 0  # sparse: 0 = chosen from rows and width
    buckets: int = 0

    def __post_init__(self) -> None:
        check_name(self.name, "table name")
        where = f"table {self.name!r}"
        if self.kind not in ("dense", "sparse"):
            raise UsageError(f"{where}: kind {shown(self.kind)} is neither dense nor sparse")
        if not isinstance(self.dtype, str) or self.dtype not in DTYPES:
            raise UsageError(f"{where}: dtype {shown(self.dtype)}; known are {', '.join(DTYPES)}")
        if self.order not in ("C", "F"):
            raise UsageError(f"{where}: order {shown(self.order)} is neither C (rows) nor F (columns)")
        if self.storage != "" and (not isinstance(self.storage, str) or self.storage not in STORAGES):
            raise UsageError(f"{where}: storage {shown(self.storage)}; known are {', '.join(STORAGES)}")
        if (self.dtype == "i64") != (self.storage_name == "i64"):
            raise UsageError(f"{where}: {self.dtype} numbers cannot be kept as {self.storage_name}: whole numbers stay i64")
        if self.kind == "sparse":
            self._check_sparse(where)
        else:
            self._check_dense(where)
        if not isinstance(self.optimizer, str) or self.optimizer not in OPTIMIZERS:
            raise unknown_key(self.optimizer, list(OPTIMIZERS), f"{where}, optimizer", "value")
        known = OPTIMIZERS[self.optimizer]
        for key, value in self.settings.items():
            if key not in known:
                raise unknown_key(key, list(known), f"{where}, optimizer {self.optimizer}")
            if not is_finite_number(value):
                raise UsageError(f"{where}: {key} = {shown(value)} is not a finite number")
        if self.init not in INITS:
            raise unknown_key(self.init, INITS, f"{where}, init", "value")
        self._check_init(where)
        if self.combine not in ("", *COMBINES):
            raise UsageError(f"{where}: combine {shown(self.combine)} is neither mean nor sum")
        if self.consistency != "":
            Consistency.parse(self.consistency)
        block_bytes = self.block_bytes
        if not isinstance(block_bytes, int) or isinstance(block_bytes, bool) or not 0 <= block_bytes <= BLOCK_BYTES_TOP:
            raise UsageError(f"{where}: block_bytes = {shown(block_bytes)}; from 0 (= chosen) to {BLOCK_BYTES_TOP}")
        if self.dtype == "i64":
            self._check_whole(where)

        self._check_settings(where)

    def _check_dense(self, where: str) -> None:
        if not self.shape or any(not isinstance(n, int) or isinstance(n, bool) or n < 1 for n in self.shape):
            raise UsageError(f"{where}: shape {shown(list(self.shape))} must be one or more whole numbers from 1 on")
        if len(self.shape) > DIMENSIONS_MAX:
            raise UsageError(f"{where}: {len(self.shape)} dimensions, at most {DIMENSIONS_MAX}")
        if self.nbytes >= 1 << 62:
            raise UsageError(f"{where}: shape {shown(list(self.shape))} has more bytes than any machine")
        for key, value in (("index", self.index), ("batch", self.batch), ("buckets", self.buckets)):
            if value:
                raise UsageError(f"{where}: {key} belongs to sparse tables (rows and width)")

    def _check_sparse(self, where: str) -> None:
        if len(self.shape) != 2 or any(not isinstance(n, int) or isinstance(n, bool) for n in self.shape):
            raise UsageError(f"{where}: shape {shown(list(self.shape))}; a sparse table has two numbers, rows and width")
        rows, width = self.shape
        if not 0 <= rows <= ROWS_TOP:
            raise UsageError(f"{where}: rows = {shown(rows)}; from 1 to 2^64 - 1")
        if not 1 <= width or width * max(self.numpy_dtype.itemsize, self.storage_dtype.itemsize) > BLOCK_BYTES_TOP:
            raise UsageError(f"{where}: width = {shown(width)}; from 1 on, and a row has at most {BLOCK_BYTES_TOP} bytes")
        if self.index not in ("", *INDEXES):
            raise UsageError(f"{where}: index {shown(self.index)}; known are {', '.join(INDEXES)}")
        if self.index == "u32" and rows > 1 << 32:
            raise UsageError(f"{where}: index u32 cannot name {rows} rows; use u64")
        if self.index == "str" and rows:
            raise UsageError(f"{where}: rows named by strings cannot be counted beforehand; leave rows out")
        if not isinstance(self.batch, int) or isinstance(self.batch, bool) or not 0 <= self.batch <= BATCH_ROWS_MAX:
            raise UsageError(f"{where}: batch = {shown(self.batch)}; rows of one request, from 1 to {BATCH_ROWS_MAX}")
        buckets = self.buckets
        if not isinstance(buckets, int) or isinstance(buckets, bool) or not 0 <= buckets <= BUCKETS_MAX or buckets & (buckets - 1):
            raise UsageError(f"{where}: buckets = {shown(buckets)}; a power of two up to {BUCKETS_MAX}, or 0 (= chosen)")
        if self.init in ("program", "file"):
            raise UsageError(f"{where}: init={self.init} gives every number of a table; a sparse one takes zeros, normal or uniform")
        if self.order != "C":
            raise UsageError(f"{where}: order {self.order}; the rows of a sparse table lie one after the other (C)")
        if self.block_bytes:
            raise UsageError(f"{where}: block_bytes belongs to dense tables")

    def _check_settings(self, where: str) -> None:
        """Rates and decays inside the bounds that their optimizer needs."""
        for key in OPTIMIZERS[self.optimizer]:
            value = self.setting(key)
            if key.startswith("beta") and not 0.0 <= value < 1.0:
                raise UsageError(f"{where}: {key} = {value}; from 0 to below 1")
            if key == "eps" and not value > 0.0:
                raise UsageError(f"{where}: eps = {value}; above 0")
            if key == "eps" and self.storage_name != "f64" and np.float32(value) == 0:
                raise UsageError(f"{where}: eps = {value} is 0 in single precision; at least 1e-45, or use dtype f64")
            if key == "weight_decay" and value < 0.0:
                raise UsageError(f"{where}: weight_decay = {value}; from 0 on")

    def _check_init(self, where: str) -> None:
        known = INIT_SETTINGS[self.init]
        for key, value in self.init_settings.items():
            if key not in known:
                raise unknown_key(key, list(known) or ["none"], f"{where}, init {self.init}")
            if key == "path":
                if not isinstance(value, str):
                    raise UsageError(f"{where}: init path = {shown(value)} is no text")
            elif not is_finite_number(value):
                raise UsageError(f"{where}: init {key} = {shown(value)} is not a finite number")
        if self.init == "uniform" and not self.init_setting("low") <= self.init_setting("high"):
            raise UsageError(f"{where}: init uniform from {self.init_setting('low')} to {self.init_setting('high')} is empty")
        if self.numpy_dtype.kind == "f":
            for key, value in {**self.init_settings, **self.settings}.items():
                if key != "path" and (problem := self.too_large(value)):
                    raise UsageError(f"{where}: {key} = {value} {problem}")

    def too_large(self, value: float) -> str:
        """Why a table of floats cannot have this setting, "" where it can.  (A normal value lies up to six scales out.)"""
        kind = min(self.dtype, self.storage_name, key=lambda name: float(np.finfo(STORAGES[name]).max))
        largest = float(np.finfo(STORAGES[kind]).max)
        return f"is too large for {kind}: at most {largest / 8:.4g}, an eighth of its largest number" if abs(value) > largest / 8 else ""

    def _check_whole(self, where: str) -> None:
        """Whole numbers can be counted, not averaged: what would make fractions is refused."""
        if self.optimizer not in WHOLE_OPTIMIZERS:
            raise UsageError(f"{where}: {self.optimizer} makes fractions of i64 numbers; use optimizer add (or assign), or dtype f64")
        if self.combine == "mean":
            raise UsageError(f"{where}: the mean of i64 numbers is a fraction; use combine sum, or dtype f64")
        if self.init in ("normal", "uniform"):
            raise UsageError(f"{where}: init {self.init} makes fractions of i64 numbers; use zeros, file or program")

    @property
    def count(self) -> int:
        """Number of elements of a dense table."""
        return math.prod(self.shape)

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """Of the program's numbers."""
        return DTYPES[self.dtype]

    @property
    def storage_name(self) -> str:
        return self.storage or self.dtype

    @property
    def storage_dtype(self) -> np.dtype[Any]:
        """Of the servers' numbers, and of those on the wire."""
        return STORAGES[self.storage_name]

    @property
    def nbytes(self) -> int:
        """Of a dense table in the program's files."""
        return self.count * self.numpy_dtype.itemsize

    @property
    def stored_bytes(self) -> int:
        """Of a dense table's values on the servers."""
        return self.count * self.storage_dtype.itemsize

    @property
    def held_itemsize(self) -> int:
        """Bytes of one element on the servers, its optimizer's state (never in half precision) with it."""
        itemsize = self.storage_dtype.itemsize
        return itemsize + STATE_ARRAYS.get(self.optimizer, 0) * max(4, itemsize)

    @property
    def held_bytes(self) -> int:
        """Of a dense table on the servers, its optimizer's state with it."""
        return self.count * self.held_itemsize

    # -- sparse tables

    @property
    def rows(self) -> int:
        """Rows that may be named, 0 = every one that `index_name` can hold."""
        return self.shape[0]

    @property
    def width(self) -> int:
        """Elements of a row."""
        return self.shape[1]

    @property
    def index_name(self) -> str:
        """`u32`, `u64` or `str`."""
        return self.index or ("u32" if 0 < self.rows <= 1 << 32 else "u64")

    @property
    def row_bytes(self) -> int:
        """Of a row in the program's files."""
        return self.width * self.numpy_dtype.itemsize

    @property
    def batch_rows(self) -> int:
        """The most rows of one request: the table's word, else 65,536 or what 16 MiB hold."""
        most = self.batch or max(1, min(BATCH_ROWS, BATCH_BYTES // self.row_bytes))
        return min(most, self.rows) if self.rows else most

    def setting(self, key: str) -> float:
        """The value of an optimizer's parameter: the user's, else the default."""
        value = self.settings.get(key, OPTIMIZERS[self.optimizer][key])
        assert value is not None
        return float(value)

    def init_setting(self, key: str) -> float:
        """A number that describes the first values: the user's, else the default."""
        return float(self.init_settings.get(key, INIT_SETTINGS[self.init][key]))

    @property
    def block_elements(self) -> int:
        """Elements of a block (the last one may have fewer)."""
        assert self.block_bytes > 0, "the master chooses block_bytes at registration"
        return max(1, self.block_bytes // self.storage_dtype.itemsize)

    @property
    def block_count(self) -> int:
        return -(-self.count // self.block_elements)

    def blocks(self) -> list[Block]:
        """The pieces of a dense table, in file order.

        >>> TableSpec("w", (5,), block_bytes=8).blocks()
        [Block(number=0, start=0, stop=2), Block(number=1, start=2, stop=4), Block(number=2, start=4, stop=5)]
        """
        step = self.block_elements
        starts = range(0, self.count, step)
        return [Block(number, start, min(start + step, self.count)) for number, start in enumerate(starts)]

    def with_block_bytes(self, block_bytes: int) -> TableSpec:
        return replace(self, block_bytes=block_bytes)

    def with_buckets(self, buckets: int) -> TableSpec:
        return replace(self, buckets=buckets)

    def to_document(self) -> dict[str, Any]:
        """Plain values for msgpack and JSON; `from_document` takes them back."""
        return {
            "name": self.name, "shape": list(self.shape), "kind": self.kind, "dtype": self.dtype, "order": self.order,
            "optimizer": self.optimizer, "settings": dict(self.settings), "init": self.init,
            "init_settings": dict(self.init_settings), "combine": self.combine, "consistency": self.consistency,
            "block_bytes": self.block_bytes, "storage": self.storage, "index": self.index, "batch": self.batch,
            "buckets": self.buckets,
        }  # fmt: skip

    @classmethod
    def from_document(cls, document: object) -> TableSpec:
        """Raises `UsageError` for anything that is not a table."""
        if not isinstance(document, dict):
            raise UsageError(f"a table is a mapping, not {type(document).__name__}")
        known = tuple(cls.__slots__)
        for key in document:
            if key not in known:
                raise unknown_key(key, known, "table")
        shape = document.get("shape")
        if not isinstance(shape, (list, tuple)):
            raise UsageError(f"table {shown(document.get('name'))}: shape {shown(shape)} is no list of numbers")
        rest = {key: value for key, value in document.items() if key not in ("shape",)}
        if "name" not in rest:
            raise UsageError("a table needs a name")
        for key in ("settings", "init_settings"):
            if not isinstance(rest.get(key, {}), dict):
                raise UsageError(f"table {shown(rest['name'])}: {key} is no mapping")
        return cls(shape=tuple(shape), **rest)


class Placed(NamedTuple):
    """A dense table and the offset (bytes, 64-aligned) of its first element in `grad` and `param`."""

    table: TableSpec
    offset: int


class Layout(NamedTuple):
    """Where a job's dense tables lie in `grad` and `param`: one after the other, each on a cache line.

    With `stored` the same for the servers' kinds of numbers: the layout of a push that was converted.
    """

    places: tuple[Placed, ...]
    nbytes: int

    @classmethod
    def of(cls, tables: Sequence[TableSpec], stored: bool = False) -> Layout:
        places = []
        offset = end = 0
        for table in tables:
            if table.kind != "dense":
                continue
            places.append(Placed(table, offset))
            end = offset + (table.stored_bytes if stored else table.nbytes)
            offset = -(-end // CACHE_LINE_BYTES) * CACHE_LINE_BYTES
        return cls(tuple(places), end)


def choose_block_bytes(nbytes: int, servers: int, low: int, high: int) -> int:
    """Bytes of a block so that each server gets about four: a power of two from `low` to `high`.

    A lone server gets the largest blocks: there is nothing to balance, and each block costs a message.

    >>> choose_block_bytes(8 << 20, 4, 64 << 10, 1 << 20)
    524288
    """
    wish = max(1, nbytes // (4 * servers)) if servers > 1 else nbytes
    power = 1 << max(0, (wish - 1).bit_length())
    return max(low, min(high, power))


def choose_buckets(servers: int) -> int:
    """Buckets of a sparse table so that each server gets about four; a lone one gets one: each costs a message.

    >>> choose_buckets(1), choose_buckets(3)
    (1, 16)
    """
    return 1 if servers <= 1 else min(BUCKETS_MAX, 1 << (4 * servers - 1).bit_length())
