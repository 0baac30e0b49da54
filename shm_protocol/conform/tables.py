"""The values behind the scripted agent, one table each, in plain numpy: what a close does to them.

A dense table is one array, a sparse one a dictionary of rows.  Clear and slow: the real one is `server/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...core.errors import Code, RequestError, UsageError
from ...core.table import TableSpec
from ..rows import Rows

OPTIMIZERS = ("sgd", "add", "assign")
INITS = ("zeros", "program")

Array = NDArray[Any]


class Pushed(NamedTuple):
    """What one push brings of all tables, in the storage's kinds of numbers; `named` are the sparse ones that take part, without rows too."""

    worker: int
    seq: int
    weight: float
    dense: dict[int, Array]
    rows: dict[int, Rows]
    named: frozenset[int]


class PlainTable:
    """Values of one table, and the optimizer's step over them."""

    def __init__(self, number: int, spec: TableSpec, combine: str) -> None:
        if spec.optimizer not in OPTIMIZERS or spec.init not in INITS:
            text = f"table {spec.name!r}: the scripted agent knows optimizer {', '.join(OPTIMIZERS)} and init {', '.join(INITS)}"
            raise UsageError(f"{text}, not {spec.optimizer} and {spec.init}")
        self.number = number
        self.spec = spec
        self.combine = combine
        self.dtype = spec.storage_dtype
        self.values: Array = np.zeros(spec.count if spec.kind == "dense" else 0, self.dtype)
        self.rows: dict[int, Array] = {}
        self.names: dict[int, bytes] = {}  # hash -> key

    def apply(self, pushes: Sequence[Pushed], factor: float) -> None:
        """Sum in order of worker and seq, divide by the weights (mean), one step of the optimizer."""
        if self.spec.kind == "dense":
            parts = [(push.weight, push.dense[self.number]) for push in pushes if self.number in push.dense]
            whole = sum(weight for weight, _part in parts)
            if parts and self._steps(whole):
                self.values = self._step(self.values, self._total(parts, whole), factor)
            return
        touching = [push for push in pushes if self.number in push.named]
        whole = sum(push.weight for push in touching)
        if not self._steps(whole):
            return
        by_row: dict[int, list[tuple[float, Array]]] = {}
        for push in touching:
            if self.number not in push.rows:
                continue
            for row, values in self.added_up(push.rows[self.number]).items():
                by_row.setdefault(row, []).append((push.weight, values))
        single = len(touching) == 1
        for row, parts in sorted(by_row.items()):
            total = parts[0][1] if single else self._total(parts, whole)
            self.rows[row] = self._step(self.row(row), total, factor)

    def added_up(self, rows: Rows) -> dict[int, Array]:
        """The rows of one push, twins added in the order of their coming."""
        assert rows.values is not None
        found: dict[int, Array] = {}
        for row, values in zip(rows.ids.tolist(), rows.values):
            found[row] = found[row] + values if row in found else values.astype(self.dtype)
        return found

    def row(self, row: int) -> Array:
        known = self.rows.get(row)
        return np.zeros(self.spec.width, self.dtype) if known is None else known

    def wanted(self, rows: Rows) -> Array:
        """The rows as they are asked for, in the program's kind of number."""
        values = [self.row(row) for row in rows.ids.tolist()]
        return np.array(values, self.dtype).reshape(rows.size, self.spec.width).astype(self.spec.numpy_dtype)

    def check_names(self, rows: Rows) -> None:
        """Two keys of one hash are refused.  Raises `RequestError` COLLIDE."""
        seen = dict(self.names)
        for row, key in zip(rows.ids.tolist(), keys_of(rows)):
            other = seen.setdefault(row, key)
            if other != key:
                text = f"keys {other.decode()!r} and {key.decode()!r} of table {self.spec.name} have one hash; rename one of them"
                raise RequestError(Code.COLLIDE, f"{text}; nothing was applied")

    def keep_names(self, rows: Rows) -> None:
        for row, key in zip(rows.ids.tolist(), keys_of(rows)):
            self.names[row] = key

    def _steps(self, weight: float) -> bool:
        """A mean of pushes that weigh nothing is no step."""
        return weight > 0 or self.combine == "sum"

    def _total(self, parts: Sequence[tuple[float, Array]], weight: float) -> Array:
        if self.combine == "sum":
            return self._sum([part for _weight, part in parts])
        if len(parts) == 1 and parts[0][0] == weight:
            return parts[0][1]
        kind = self.dtype.type
        return np.asarray(self._sum([kind(own) * part for own, part in parts]) / kind(weight))

    @staticmethod
    def _sum(parts: Sequence[Array]) -> Array:
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    def _step(self, values: Array, total: Array, factor: float) -> Array:
        if self.spec.optimizer == "sgd":
            return np.asarray(values - self.dtype.type(self.spec.setting("lr") * factor) * total, self.dtype)
        if self.spec.optimizer == "add":
            return np.asarray(values + total, self.dtype)
        return np.array(total, self.dtype)


def keys_of(rows: Rows) -> list[bytes]:
    """The string keys, none where rows are numbers."""
    if rows.keys is None or rows.ends is None:
        return []
    text = rows.keys.tobytes()
    ends = rows.ends.tolist()
    return [text[start:end] for start, end in zip([0, *ends], ends)]
