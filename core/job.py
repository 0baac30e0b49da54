"""A training run as its user wrote it: workers, consistency, tables.  Checked once, here, for every part."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from .clock import Consistency
from .errors import UsageError
from .limits import Limits
from .table import COMBINES, Layout, TableSpec, check_name, choose_block_bytes, unknown_key

ON_WORKER_LOSS = ("wait", "shrink", "stop")


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
    settings: dict[str, Any] = field(default_factory=dict)  # what only the launcher reads back (command, limits)

    def __post_init__(self) -> None:
        check_name(self.name, "job name")
        limits = Limits()
        if not isinstance(self.workers, int) or isinstance(self.workers, bool) or not 1 <= self.workers <= limits.workers_max:
            raise UsageError(f"job {self.name!r}: workers = {self.workers!r}; from 1 to {limits.workers_max}")
        if not self.tables:
            raise UsageError(f"job {self.name!r} has no table: give one, e.g. --table w=10,64 (or [[table]] in job.toml)")
        if len(self.tables) > limits.tables_max:
            raise UsageError(f"job {self.name!r}: {len(self.tables)} tables, at most {limits.tables_max}")
        names = [table.name for table in self.tables]
        for name in names:
            if names.count(name) > 1:
                raise UsageError(f"job {self.name!r}: two tables are called {name!r}")
        if not isinstance(self.seed, int) or isinstance(self.seed, bool) or not 0 <= self.seed < 1 << 63:
            raise UsageError(f"job {self.name!r}: seed = {self.seed!r}; a whole number from 0 to 2^63 - 1")
        if self.combine not in COMBINES:
            raise UsageError(f"job {self.name!r}: combine {self.combine!r} is neither mean nor sum")
        if not isinstance(self.max_restarts, int) or isinstance(self.max_restarts, bool) or self.max_restarts < 0:
            raise UsageError(f"job {self.name!r}: max_restarts = {self.max_restarts!r}; a whole number from 0")
        if self.on_worker_loss not in ON_WORKER_LOSS:
            raise unknown_key(self.on_worker_loss, ON_WORKER_LOSS, f"job {self.name!r}, on_worker_loss")
        Consistency.parse(self.consistency)
        for table in self.tables:
            self.consistency_of(table)

    @property
    def layout(self) -> Layout:
        """Where the dense tables lie in the channel's files."""
        return Layout.of(self.tables)

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
        """The same job with each dense table's `block_bytes` chosen for so many servers."""
        low, high = limits.block_bytes_min, limits.block_bytes_max
        tables = tuple(
            table if table.block_bytes else table.with_block_bytes(choose_block_bytes(table.nbytes, servers, low, high))
            for table in self.tables
        )
        return replace(self, tables=tables)

    def to_document(self) -> dict[str, Any]:
        return {
            "name": self.name, "workers": self.workers, "tables": [table.to_document() for table in self.tables],
            "seed": self.seed, "consistency": self.consistency, "combine": self.combine,
            "max_restarts": self.max_restarts, "on_worker_loss": self.on_worker_loss, "settings": dict(self.settings),
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
        tables = tuple(TableSpec.from_document(item) for item in document["tables"])
        rest = {key: value for key, value in document.items() if key != "tables"}
        return cls(tables=tables, **rest)
