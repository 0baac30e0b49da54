"""A table in one word of a story: NAME=COUNT:DTYPE:OPTIMIZER[:KEY=VALUE...], or ROWSxWIDTH in the place of COUNT."""

from __future__ import annotations

from typing import Any

from plugml.core.table import TableSpec

from .sparse import sparse_table


def table_of(name: str, words: str, block: int = 4096) -> TableSpec:
    """Cut into blocks of so many bytes, 0 = as the master chooses."""
    count, dtype, optimizer, *rest = words.split(":")
    options = dict(word.split("=", 1) for word in rest)
    if "x" in count:
        rows, width = map(int, count.split("x"))
        return sparse_table(name, rows, width, dtype, optimizer, int(options.pop("buckets", "1")), **_typed(options))
    settings = {"lr": float(options.pop("lr"))} if "lr" in options else {}
    block_bytes = int(options.pop("block", str(block)))
    return TableSpec(name, (int(count),), dtype=dtype, optimizer=optimizer, settings=settings, block_bytes=block_bytes, **options)


def _typed(options: dict[str, str]) -> dict[str, Any]:
    return {key: float(word) if key == "lr" else word for key, word in options.items()}
