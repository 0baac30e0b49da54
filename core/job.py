"""A training run as its user wrote it: workers, consistency, tables.  Checked once, here, for every part."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from .clock import Consistency
from .errors import UsageError, shown
from .kinds import OPTIMIZERS
from .limits import KIB, Limits
from .table import COMBINES, Layout, TableSpec, check_name, choose_block_bytes, choose_buckets, unknown_key

ON_WORKER_LOSS = ("wait", "shrink", "stop")
LR_SCALES = ("none", "linear", "sqrt")
BELLS = ("fifo", "sem")
ON_LOST = ("stop", "restore")
COPIES_MAX = 3
PATH_MAX = 2_048
#: The number behind the last piece says on the wire that there is none (messages.NO_PIECE).
PIECES_MAX = (1 << 32) - 1
#: Whole numbers of a job beside `workers`, each from 0 to 2^62; 0 = none.
_NUMBERS = (
    "lr_warmup", "memory_bytes", "snapshot_every", "stop_clock", "pieces", "passes", "checkpoint_every", "checkpoint_keep", "checkpoint_first",
)  # fmt: skip
#: A job's document travels inside a job's map, whose message has at most 64 KiB.
DOCUMENT_BYTES_MAX = 48 * KIB
DEPTH_MAX = 16


@dataclass(slots=True, frozen=True)
class JobSpec:
    """What the master needs to know of a job.  `workers` is the number of members of clock 0."""

    name: str
    workers: int
    tables: tuple[TableSpec, ...]
    seed: int = 0
    consistency: str = "bsp"
    combine: str = "mean"
    max_restarts: int = 3
    on_worker_loss: str = "wait"
    settings: dict[str, Any] = field(default_factory=dict)  # what only launchers and agents read back (command, pieces_file)
    lr_scale: str = "none"  # lr grows with the number of workers: none, linear, sqrt
    lr_warmup: int = 0  # clocks over which it grows to that
    bell: str = "fifo"  # what wakes a program: fifo or sem
    memory_bytes: int = 0  # of values and optimizer state on all servers together; 0 = what they have
    snapshot_every: int = 0  # clocks (BSP): ranges keep the values of each closed clock that is a multiple of it
    stop_clock: int = 0  # all workers end when they have finished so many clocks
    pieces: int = 0  # of input, handed out by `next`
    passes: int = 0  # over the pieces; 0 = 1
    copies: int = 0  # of every range, on servers of their own; 0 = 2 where there are two servers, else 1
    min_insync: int = 1  # copies that have to hold a push before it is acked; with fewer the range waits
    on_lost: str = "stop"  # when every copy of a range is lost: stop, or restore from the last checkpoint
    checkpoint_dir: str = ""  # where checkpoints go, under the same path on every server's host; "" = none can be made
    checkpoint_every: int = 0  # clocks from one to the next; 0 = only when asked
    checkpoint_keep: int = 2  # the newest ones that stay
    checkpoint_first: int = 1  # number of the first one: above all that the directory has
    resume: str = ""  # directory of the checkpoint from which the job goes on

    def __post_init__(self) -> None:
        check_name(self.name, "job name")
        limits = Limits()
        if not isinstance(self.workers, int) or isinstance(self.workers, bool) or not 1 <= self.workers <= limits.workers_max:
            raise UsageError(f"job {self.name!r}: workers = {shown(self.workers)}; from 1 to {limits.workers_max}")
        if not isinstance(self.tables, tuple) or not self.tables:
            raise UsageError(f"job {self.name!r} has no table: give one, e.g. --table w=10,64 (or [[table]] in job.toml)")
        if len(self.tables) > limits.tables_max:
            raise UsageError(f"job {self.name!r}: {len(self.tables)} tables, at most {limits.tables_max}")
        names: set[str] = set()
        for table in self.tables:
            if table.name in names:
                raise UsageError(f"job {self.name!r}: two tables are called {table.name!r}")
            names.add(table.name)
        if not isinstance(self.seed, int) or isinstance(self.seed, bool) or not 0 <= self.seed < 1 << 63:
            raise UsageError(f"job {self.name!r}: seed = {shown(self.seed)}; a whole number from 0 to 2^63 - 1")
        if self.combine not in COMBINES:
            raise UsageError(f"job {self.name!r}: combine {shown(self.combine)} is neither mean nor sum")
        if not isinstance(self.max_restarts, int) or isinstance(self.max_restarts, bool) or not 0 <= self.max_restarts < 1 << 31:
            raise UsageError(f"job {self.name!r}: max_restarts = {shown(self.max_restarts)}; a whole number from 0 to 2^31 - 1")
        if self.on_worker_loss not in ON_WORKER_LOSS:
            raise unknown_key(self.on_worker_loss, ON_WORKER_LOSS, f"job {self.name!r}, on_worker_loss", "value")
        self._check_copies()
        Consistency.parse(self.consistency)
        for table in self.tables:
            self.consistency_of(table)
        if self.lr_scale not in LR_SCALES:
            raise unknown_key(self.lr_scale, LR_SCALES, f"job {self.name!r}, lr_scale", "value")
        for table in self.tables:
            lr = table.setting("lr") if "lr" in OPTIMIZERS[table.optimizer] else 0.0
            if problem := table.numpy_dtype.kind == "f" and table.too_large(lr * self.lr_full):
                becomes = f"lr = {lr} becomes {lr * self.lr_full:g} (lr_scale = {self.lr_scale}, {self.workers} workers)"
                raise UsageError(f"table {table.name!r}: {becomes}, which {problem}")
        if self.bell not in BELLS:
            raise unknown_key(self.bell, BELLS, f"job {self.name!r}, bell", "value")
        for key in _NUMBERS:
            value = getattr(self, key)
            most = PIECES_MAX if key == "pieces" else 1 << 62
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
                raise UsageError(f"job {self.name!r}: {key} = {shown(value)}; a whole number from 0 to {most}")
        if not isinstance(self.settings, dict):
            raise UsageError(f"job {self.name!r}: settings is no mapping")
        self._check_checkpoints()
        nbytes = packed_bytes(self.to_document())
        if nbytes > DOCUMENT_BYTES_MAX:
            remedy = "use fewer tables, shorter names or fewer settings"
            raise UsageError(f"job {self.name!r}: its description has {nbytes} bytes, at most {DOCUMENT_BYTES_MAX}; {remedy}")

    def _check_copies(self) -> None:
        for key, low in (("copies", 0), ("min_insync", 1)):
            value = getattr(self, key)
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= COPIES_MAX:
                raise UsageError(f"job {self.name!r}: {key} = {shown(value)}; a whole number from {low} to {COPIES_MAX}")
        if self.copies and self.min_insync > self.copies:
            raise UsageError(f"job {self.name!r}: min_insync = {self.min_insync} of {self.copies} copies: there are never so many")
        if self.on_lost not in ON_LOST:
            raise unknown_key(self.on_lost, ON_LOST, f"job {self.name!r}, on_lost", "value")

    def _check_checkpoints(self) -> None:
        for key in ("checkpoint_dir", "resume"):
            value = getattr(self, key)
            if not isinstance(value, str) or (value and not value.startswith("/")) or "\0" in value or len(value) > PATH_MAX:
                raise UsageError(f"job {self.name!r}: {key} = {shown(value)}; an absolute path of at most {PATH_MAX} characters")
        if self.checkpoint_every and not self.checkpoint_dir:
            raise UsageError(f"job {self.name!r}: checkpoint_every = {self.checkpoint_every}, and checkpoint_dir says no place for them")
        for key in ("checkpoint_keep", "checkpoint_first"):
            if getattr(self, key) < 1:
                raise UsageError(f"job {self.name!r}: {key} = {getattr(self, key)}; at least 1")

    @property
    def layout(self) -> Layout:
        """Where the dense tables lie in the channel's files."""
        return Layout.of(self.tables)

    @property
    def stored_layout(self) -> Layout:
        """The same for the servers' kinds of numbers."""
        return Layout.of(self.tables, stored=True)

    @property
    def dense_bytes(self) -> int:
        """Of the dense tables' values and optimizer state on all servers together."""
        return sum(table.held_bytes for table in self.tables if table.kind == "dense")

    @property
    def lr_full(self) -> float:
        """What `lr_scale` multiplies each lr with once the warm-up is over."""
        return {"none": 1.0, "linear": float(self.workers), "sqrt": math.sqrt(self.workers)}[self.lr_scale]

    def lr_factor(self, clock: int) -> float:
        """What `lr_scale` multiplies each lr with in a clock: grows from 1 over the clocks of the warm-up.

        Goyal et al. 2017 (arXiv 1706.02677), "gradual warmup".
        """
        full = self.lr_full
        if clock >= self.lr_warmup:
            return full
        return 1.0 + (full - 1.0) * (clock / self.lr_warmup)

    def consistency_of(self, table: TableSpec) -> Consistency:
        return Consistency.parse(table.consistency or self.consistency)

    def combine_of(self, table: TableSpec) -> str:
        """`mean` or `sum`: the table's word, else sum for counts, else the job's."""
        if table.combine:
            return table.combine
        return "sum" if table.dtype == "i64" else self.combine

    def table_number(self, name: str) -> int:
        """Position of a table, its number on the wire; raises KeyError."""
        for number, table in enumerate(self.tables):
            if table.name == name:
                return number
        raise KeyError(name)

    def with_blocks(self, servers: int, limits: Limits) -> JobSpec:
        """The same job with `block_bytes` of each dense and `buckets` of each sparse table chosen for so many servers."""
        low, high = limits.block_bytes_min, limits.block_bytes_max
        tables = []
        for table in self.tables:
            if table.kind == "sparse":
                tables.append(table if table.buckets else table.with_buckets(choose_buckets(servers)))
            else:
                block_bytes = table.block_bytes or choose_block_bytes(table.stored_bytes, servers, low, high)
                tables.append(table.with_block_bytes(block_bytes))
        return replace(self, tables=tuple(tables))

    def with_copies(self, servers: int, wanted: int = 0) -> JobSpec:
        """The same job with the number of copies chosen for so many servers, and as the cluster `wanted` (0 = it has not said)."""
        return self if self.copies else replace(self, copies=max(self.min_insync, wanted or min(2, servers)))

    def to_document(self) -> dict[str, Any]:
        return {
            "name": self.name, "workers": self.workers, "tables": [table.to_document() for table in self.tables],
            "seed": self.seed, "consistency": self.consistency, "combine": self.combine,
            "max_restarts": self.max_restarts, "on_worker_loss": self.on_worker_loss, "settings": dict(self.settings),
            "lr_scale": self.lr_scale, "bell": self.bell, "copies": self.copies, "min_insync": self.min_insync,
            "on_lost": self.on_lost, "checkpoint_dir": self.checkpoint_dir, "resume": self.resume, **{key: getattr(self, key) for key in _NUMBERS},
        }  # fmt: skip

    @classmethod
    def from_document(cls, document: object) -> JobSpec:
        """Raises `UsageError` for anything that is not a job."""
        if not isinstance(document, dict):
            raise UsageError(f"a job is a mapping, not {type(document).__name__}")
        known = tuple(cls.__slots__)
        for key in document:
            if key not in known:
                raise unknown_key(key, known, "job")
        for key in ("name", "workers", "tables"):
            if key not in document:
                raise UsageError(f"a job needs {key!r}")
        if not isinstance(document["tables"], (list, tuple)):
            raise UsageError("a job's tables are a list")
        if len(document["tables"]) > Limits().tables_max:
            raise UsageError(f"a job with {len(document['tables'])} tables; at most {Limits().tables_max}")
        tables = tuple(TableSpec.from_document(item) for item in document["tables"])
        rest = {key: value for key, value in document.items() if key != "tables"}
        return cls(tables=tables, **rest)


def packed_bytes(value: object, depth: int = DEPTH_MAX) -> int:
    """Bytes that a document takes as msgpack, never counted too small.  Raises `UsageError` for what no document may hold.

    >>> packed_bytes({"a": [1, "bc", None]})
    9
    """
    if isinstance(value, str):
        length = len(value) if value.isascii() else _utf8_bytes(value)
        return length + (1 if length < 32 else 2 if length < 256 else 3 if length < 1 << 16 else 5)
    if value is None or isinstance(value, bool):
        return 1
    if isinstance(value, int):
        if 0 <= value < 128:
            return 1
        if not -(1 << 63) <= value < 1 << 64:
            raise UsageError(f"{shown(value)} does not fit into 64 bits")
        return 5 if -(1 << 31) <= value < 1 << 32 else 9
    if isinstance(value, float):
        return 9
    if not isinstance(value, (list, tuple, dict)):
        raise UsageError(f"{shown(value)} is no plain value")
    if depth == 0:
        raise UsageError(f"a description is nested more than {DEPTH_MAX} deep")
    nbytes = 1 if len(value) < 16 else 3 if len(value) < 1 << 16 else 5
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise UsageError("a description has a key that is no text")
            nbytes += packed_bytes(key, depth) + packed_bytes(item, depth - 1)
        return nbytes
    for item in value:
        nbytes += packed_bytes(item, depth - 1)
    return nbytes


def _utf8_bytes(text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise UsageError(f"{shown(text)} is no text that UTF-8 can hold") from None
