"""What a table is: shape, numbers, optimizer, first value; and where its elements lie in files and blocks.

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
from .limits import CACHE_LINE_BYTES, MIB

DTYPES: dict[str, np.dtype[Any]] = {
    "f32": np.dtype("<f4"),
    "f64": np.dtype("<f8"),
    "i64": np.dtype("<i8"),
}
#: One byte on the wire and in the ctl page.
DTYPE_CODES: dict[str, int] = {"f32": 1, "f64": 2, "i64": 3}
DTYPE_NAMES: dict[int, str] = {code: name for name, code in DTYPE_CODES.items()}

INITS = ("zeros", "normal", "uniform", "file", "program")
#: Settings of each kind of first values, with their defaults (`path` is text, the others are numbers).
INIT_SETTINGS: dict[str, dict[str, float | str]] = {
    "zeros": {},
    "normal": {"scale": 0.01},
    "uniform": {"low": -0.01, "high": 0.01},
    "file": {"path": ""},
    "program": {},
}
COMBINES = ("mean", "sum")
#: Parameters that each optimizer takes, with their defaults (None = must be given).
OPTIMIZERS: dict[str, dict[str, float | None]] = {
    "sgd": {"lr": 0.01},
    "add": {},
    "assign": {},
}

#: A block travels in one frame.
BLOCK_BYTES_TOP = 4 * MIB
DIMENSIONS_MAX = 32

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}\Z")


def check_name(name: object, what: str) -> str:
    """A name that may stand in a path, a log line and a shell: letters, digits, `_`, `-`, `.`; at most 63 characters."""
    if not isinstance(name, str) or not _NAME.match(name):
        raise UsageError(f"{what} {shown(name)}: use 1 to 63 letters, digits, '_', '-' or '.', and no '.' or '-' in front")
    return name


def unknown_key(key: object, known: Sequence[str], where: str) -> UsageError:
    """The error for a key that nobody knows, with the nearest one that exists."""
    near = difflib.get_close_matches(key[:80], list(known), n=1) if isinstance(key, str) else []
    hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}"
    return UsageError(f"{where}: unknown key {shown(key)}{hint}")


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
            raise UsageError(f"{where}: kind {shown(self.kind)} is neither dense nor sparse")
        if not isinstance(self.dtype, str) or self.dtype not in DTYPES:
            raise UsageError(f"{where}: dtype {shown(self.dtype)}; known are {', '.join(DTYPES)}")
        if self.order not in ("C", "F"):
            raise UsageError(f"{where}: order {shown(self.order)} is neither C (rows) nor F (columns)")
        if not self.shape or any(not isinstance(n, int) or isinstance(n, bool) or n < 1 for n in self.shape):
            raise UsageError(f"{where}: shape {shown(list(self.shape))} must be one or more whole numbers from 1 on")
        if len(self.shape) > DIMENSIONS_MAX:
            raise UsageError(f"{where}: {len(self.shape)} dimensions, at most {DIMENSIONS_MAX}")
        if self.nbytes >= 1 << 62:
            raise UsageError(f"{where}: shape {shown(list(self.shape))} has more bytes than any machine")
        if not isinstance(self.optimizer, str) or self.optimizer not in OPTIMIZERS:
            raise unknown_key(self.optimizer, list(OPTIMIZERS), f"{where}, optimizer")
        known = OPTIMIZERS[self.optimizer]
        for key, value in self.settings.items():
            if key not in known:
                raise unknown_key(key, list(known), f"{where}, optimizer {self.optimizer}")
            if not is_finite_number(value):
                raise UsageError(f"{where}: {key} = {shown(value)} is not a finite number")
        if self.init not in INITS:
            raise unknown_key(self.init, INITS, f"{where}, init")
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
            farthest = float(np.finfo(self.numpy_dtype).max) / 8  # a normal value lies up to six scales out
            numbers = [value for key, value in self.init_settings.items() if key != "path"] + list(self.settings.values())
            for value in numbers:
                if abs(value) > farthest:
                    raise UsageError(f"{where}: {value} is too large for {self.dtype}")

    def _check_whole(self, where: str) -> None:
        """Whole numbers can be counted, not averaged: what would make fractions is refused."""
        if self.optimizer == "sgd":
            raise UsageError(f"{where}: sgd makes fractions of i64 numbers; use optimizer add (or assign), or dtype f64")
        if self.combine == "mean":
            raise UsageError(f"{where}: the mean of i64 numbers is a fraction; use combine sum, or dtype f64")
        if self.init in ("normal", "uniform"):
            raise UsageError(f"{where}: init {self.init} makes fractions of i64 numbers; use zeros, file or program")

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

    def init_setting(self, key: str) -> float:
        """A number that describes the first values: the user's, else the default."""
        return float(self.init_settings.get(key, INIT_SETTINGS[self.init][key]))

    @property
    def block_elements(self) -> int:
        """Elements of a block (the last one may have fewer)."""
        assert self.block_bytes > 0, "the master chooses block_bytes at registration"
        return max(1, self.block_bytes // self.numpy_dtype.itemsize)

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

    A lone server gets the largest blocks: there is nothing to balance, and each block costs a message.

    >>> choose_block_bytes(8 << 20, 4, 64 << 10, 1 << 20)
    524288
    """
    wish = max(1, nbytes // (4 * servers)) if servers > 1 else nbytes
    power = 1 << max(0, (wish - 1).bit_length())
    return max(low, min(high, power))
