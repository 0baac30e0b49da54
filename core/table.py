"""What a table is: shape, numbers, optimizer, first value; and where its elements lie in files and blocks.

Knows neither jobs nor servers.  The file layout of a job's dense tables (`Layout`) is the one that `info` promises.
"""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Sequence

import numpy as np

from .errors import UsageError
from .limits import CACHE_LINE_BYTES

DTYPES: dict[str, np.dtype[Any]] = {
    "f32": np.dtype("<f4"),
    "f64": np.dtype("<f8"),
    "i64": np.dtype("<i8"),
}
#: One byte on the wire and in the ctl page.
DTYPE_CODES: dict[str, int] = {"f32": 1, "f64": 2, "i64": 3}
DTYPE_NAMES: dict[int, str] = {code: name for name, code in DTYPE_CODES.items()}

INITS = ("zeros", "normal", "uniform", "file", "program")
COMBINES = ("mean", "sum")
#: Parameters that each optimizer takes, with their defaults (None = must be given).
OPTIMIZERS: dict[str, dict[str, float | None]] = {
    "sgd": {"lr": 0.01},
    "add": {},
    "assign": {},
}

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}\Z")


def check_name(name: object, what: str) -> str:
    """A name that may stand in a path, a log line and a shell: letters, digits, `_`, `-`, `.`; at most 63 characters."""
    if not isinstance(name, str) or not _NAME.match(name):
        raise UsageError(f"{what} {name!r}: use 1 to 63 letters, digits, '_', '-' or '.', and no '.' or '-' in front")
    return name


def unknown_key(key: object, known: Sequence[str], where: str) -> UsageError:
    """The error for a key that nobody knows, with the nearest one that exists."""
    near = difflib.get_close_matches(str(key), list(known), n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}"
    return UsageError(f"{where}: unknown key {key!r}{hint}")


class Block(NamedTuple):
    """A piece of a dense table: elements `start` to `stop` (in file order)."""

    number: int
    start: int
    stop: int


@dataclass(slots=True, frozen=True)
class TableSpec:
    """A named parameter.

    `shape` counts elements; a dense table is cut into blocks of `block_bytes` (0 until the master has chosen).
    `order` is the order of elements in the program's files: nothing is ever transposed silently.
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

    def __post_init__(self) -> None:
        check_name(self.name, "table name")
        where = f"table {self.name!r}"
        if self.kind not in ("dense", "sparse"):
            raise UsageError(f"{where}: kind {self.kind!r} is neither dense nor sparse")
        if self.dtype not in DTYPES:
            raise UsageError(f"{where}: dtype {self.dtype!r}; known are {', '.join(DTYPES)}")
        if self.order not in ("C", "F"):
            raise UsageError(f"{where}: order {self.order!r} is neither C (rows) nor F (columns)")
        if not self.shape or any(not isinstance(n, int) or isinstance(n, bool) or n < 1 for n in self.shape):
            raise UsageError(f"{where}: shape {list(self.shape)} must be one or more whole numbers from 1 on")
        if self.nbytes >= 1 << 62:
            raise UsageError(f"{where}: {self.nbytes} bytes are more than any machine has")
        if self.optimizer not in OPTIMIZERS:
            raise unknown_key(self.optimizer, list(OPTIMIZERS), f"{where}, optimizer")
        known = OPTIMIZERS[self.optimizer]
        for key, value in self.settings.items():
            if key not in known:
                raise unknown_key(key, list(known), f"{where}, optimizer {self.optimizer}")
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                raise UsageError(f"{where}: {key} = {value!r} is not a finite number")
        if self.init not in INITS:
            raise unknown_key(self.init, INITS, f"{where}, init")
        if self.combine not in ("", *COMBINES):
            raise UsageError(f"{where}: combine {self.combine!r} is neither mean nor sum")

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        return DTYPES[self.dtype]

    @property
    def nbytes(self) -> int:
        return self.count * self.numpy_dtype.itemsize

    def setting(self, key: str) -> float:
        """The value of an optimizer's parameter: the user's, else the default."""
        value = self.settings.get(key, OPTIMIZERS[self.optimizer][key])
        assert value is not None
        return float(value)

    def blocks(self) -> list[Block]:
        """The pieces of a dense table, in file order.

        >>> TableSpec("w", (5,), block_bytes=8).blocks()
        [Block(number=0, start=0, stop=2), Block(number=1, start=2, stop=4), Block(number=2, start=4, stop=5)]
        """
        assert self.block_bytes > 0, "the master chooses block_bytes at registration"
        step = max(1, self.block_bytes // self.numpy_dtype.itemsize)
        starts = range(0, self.count, step)
        return [Block(number, start, min(start + step, self.count)) for number, start in enumerate(starts)]

    def with_block_bytes(self, block_bytes: int) -> TableSpec:
        return replace(self, block_bytes=block_bytes)

    def to_document(self) -> dict[str, Any]:
        """Plain values for msgpack and JSON; `from_document` takes them back."""
        return {
            "name": self.name, "shape": list(self.shape), "kind": self.kind, "dtype": self.dtype, "order": self.order,
            "optimizer": self.optimizer, "settings": dict(self.settings), "init": self.init,
            "init_settings": dict(self.init_settings), "combine": self.combine, "consistency": self.consistency,
            "block_bytes": self.block_bytes,
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
            raise UsageError(f"table {document.get('name')!r}: shape {shape!r} is no list of numbers")
        rest = {key: value for key, value in document.items() if key not in ("shape",)}
        if "name" not in rest:
            raise UsageError("a table needs a name")
        for key in ("settings", "init_settings"):
            if not isinstance(rest.get(key, {}), dict):
                raise UsageError(f"table {rest['name']!r}: {key} is no mapping")
        return cls(shape=tuple(shape), **rest)


class Placed(NamedTuple):
    """A dense table and the offset (bytes, 64-aligned) of its first element in `grad` and `param`."""

    table: TableSpec
    offset: int


class Layout(NamedTuple):
    """Where a job's dense tables lie in `grad` and `param`: one after the other, each on a cache line."""

    places: tuple[Placed, ...]
    nbytes: int

    @classmethod
    def of(cls, tables: Sequence[TableSpec]) -> Layout:
        places = []
        offset = end = 0
        for table in tables:
            if table.kind != "dense":
                continue
            places.append(Placed(table, offset))
            end = offset + table.nbytes
            offset = -(-end // CACHE_LINE_BYTES) * CACHE_LINE_BYTES
        return cls(tuple(places), end)


def choose_block_bytes(nbytes: int, servers: int, low: int, high: int) -> int:
    """Bytes of a block so that each server gets about four: a power of two from `low` to `high`.

    >>> choose_block_bytes(16 << 20, 4, 64 << 10, 1 << 20)
    1048576
    """
    wish = max(1, nbytes // (4 * max(1, servers)))
    power = 1 << max(0, (wish - 1).bit_length())
    return max(low, min(high, power))
