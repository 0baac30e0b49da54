"""A program's side of requests with rows, written from SPEC.md alone; and the tables that the tests of rows share."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from plugml.core.job import JobSpec
from plugml.core.table import TableSpec
from plugml.shm_protocol.request import Reply

from .test_agent_harness import Program

ONES = np.ones(40, "<f4")
E = TableSpec("e", (1000, 3), kind="sparse", optimizer="add", combine="sum", index="u32", batch=64)
G = TableSpec("g", (0, 1), kind="sparse", dtype="i64", optimizer="add", index="u64", batch=64)
F = TableSpec("f", (0, 2), kind="sparse", dtype="f64", optimizer="add", combine="sum", index="str", batch=64)
W = TableSpec("w", (40,), optimizer="add", combine="sum")
INDEX = {"u32": "<u4", "u64": "<u8"}


def spec(*tables: TableSpec, **fields: Any) -> JobSpec:
    return JobSpec("rows", fields.pop("workers", 1), tables or (W, E, G, F), **fields)


class Rows(NamedTuple):
    """One section: rows or keys pushed, with their values, and those wanted."""

    table: TableSpec
    ids: list[Any] = []
    values: Any = ()
    want: list[Any] = []


def up(at: int, to: int) -> int:
    return -(-at // to) * to


def pack(parts: list[bytes], start: int, to: int) -> bytes:
    """Each part at the next multiple of `to`; empty ones take no room."""
    out = bytearray(start)
    for part in parts:
        if part:
            out += bytes(up(len(out), to) - len(out)) + part
    return bytes(out)


def write(program: Program, sections: list[Rows], dense: Any = None) -> None:
    """grad, gidx, want, gkey, wkey as SPEC.md 3.12 to 3.17 say."""
    contents = program.files.contents
    values = [np.asarray(rows.values, rows.table.numpy_dtype).tobytes() for rows in sections if len(rows.ids)]
    grad = np.asarray(dense).tobytes() if dense is not None else b""
    start = up(len(grad), 64) if any(values) else len(grad)
    contents["grad"][:] = pack(values, 0, 8) if dense is None else grad + bytes(start - len(grad)) + pack(values, 0, 8)
    numbered = [rows for rows in sections if rows.table.index_name != "str"]
    for name, field in (("gidx", "ids"), ("want", "want")):
        if name in contents:
            contents[name][:] = pack([np.asarray(getattr(r, field), INDEX[r.table.index_name]).tobytes() for r in numbered], 0, 8)
    for name, field in (("gkey", "ids"), ("wkey", "want")):
        if name in contents:
            keys = [key for rows in sections if rows.table.index_name == "str" for key in getattr(rows, field)]
            contents[name][:] = "".join(f"{key}\n" for key in keys).encode()


def words(sections: list[Rows], dense: Any = None, more: str = "") -> str:
    found = [more] if more else []
    if dense is not None:
        found.append(f"n={len(np.asarray(dense).reshape(-1))}")
    for rows in sections:
        found.append(f"table={rows.table.name}")
        if len(rows.ids):
            found.append(f"k={len(rows.ids)}")
        if len(rows.want):
            found.append(f"want={len(rows.want)}")
    return " ".join(found)


def begin(program: Program, verb: str, *sections: Rows, dense: Any = None, more: str = "") -> None:
    write(program, list(sections), dense if verb in ("push", "pushpull", "step") else None)
    program.begin(verb, None, words(list(sections), dense, more))


def do(program: Program, verb: str, *sections: Rows, dense: Any = None, more: str = "") -> Reply:
    begin(program, verb, *sections, dense=dense, more=more)
    return program.answer()


def read(program: Program, *sections: Rows, dense: TableSpec | None = None) -> list[Any]:
    """The wanted rows out of `param`, those of each section."""
    param = bytes(program.files.contents["param"])
    at = up(dense.nbytes, 64) if dense is not None else 0
    found = []
    for rows in sections:
        if not len(rows.want):
            continue
        at = up(at, 8)
        count = len(rows.want) * rows.table.width
        found.append(np.frombuffer(param, rows.table.numpy_dtype, count, at).reshape(-1, rows.table.width))
        at += count * rows.table.numpy_dtype.itemsize
    return found


def pull(program: Program, table: TableSpec, ids: list[Any]) -> Any:
    reply = do(program, "pull", Rows(table, want=ids))
    assert reply.ok and reply.rows == len(ids), program.err()
    return read(program, Rows(table, want=ids))[0]
