"""Exported files: they stand at one closed clock, and the last ones hold exactly what was acked (and perhaps what was begun)."""

from __future__ import annotations

import numpy as np

from plugml.core.clock import BSP
from plugml.core.table import TableSpec

from . import checkers
from .cells import Reader
from .checkers import Broken, Pull
from .ledger import Ledger
from .weather import GENS
from .workload import OWNED, SHARED_ROWS, STREAM_ROWS, WORKERS_TOP, Array, name_of, owner_of

NOBODY = (-1, 0)


def judge_export(ledger: Ledger, files: dict[str, bytes], clock: int, final: bool) -> None:
    reader = Reader(NOBODY, clock)
    if final and ledger.closes and clock < ledger.last_clock():
        raise Broken(f"the final export stands at clock {clock}, {ledger.last_clock()} were finished")
    for table in ledger.spec.tables:
        values = np.frombuffer(files[f"{table.name}.bin"], table.numpy_dtype)
        bsp = ledger.models[table.name].model == BSP
        if table.kind == "sparse":
            _judge_rows(ledger, reader, table, values.reshape(-1, table.width), names_of(table, files), final)
        elif table.name == "count":
            _judge_slots(ledger, reader, values.reshape(table.shape), bsp, final)
        elif bsp and table.name == "exact":
            ledger.judge_exact(reader, table, values)


def judge_rescued(ledger: Ledger, files: dict[str, bytes]) -> None:
    for table in ledger.spec.tables:
        values = np.frombuffer(files[f"{table.name}.bin"], table.numpy_dtype)
        if table.kind == "dense" and values.size != table.count:
            raise Broken(f"the values of a failed job lack some: table {table.name} has {values.size} of {table.count}")
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise Broken(f"the values of a failed job are not finite in table {table.name}")


def _judge_slots(ledger: Ledger, reader: Reader, slots: Array, bsp: bool, final: bool) -> None:
    if bsp:
        keys = {(worker, gen): ("count", worker, gen, 0) for (name, worker, gen, _) in ledger.cells if name == "count"}
        bounds = {stream: ledger.bounds(reader, "count", key, 0) for stream, key in keys.items()}
        known = {stream: least for stream, (least, _) in bounds.items()}
        most = {stream: bound for stream, (_, bound) in bounds.items()}
        checkers.check_counting([Pull(0, 0, NOBODY, reader.clock, 0, slots, known, most)], ledger.issued())
    elif final:
        checkers.check_final(slots, ledger.issued())
    else:
        checkers.counts(Pull(0, 0, NOBODY, reader.clock, 0, slots))


def names_of(table: TableSpec, files: dict[str, bytes]) -> list[int | bytes]:
    if table.index_name == "str":
        return list(files[f"{table.name}.keys"].splitlines())
    kind = "<u4" if table.index_name == "u32" else "<u8"
    return list(np.frombuffer(files[f"{table.name}.idx"], kind).tolist())


def _judge_rows(ledger: Ledger, reader: Reader, table: TableSpec, values: Array, names: list[int | bytes], final: bool) -> None:
    every = WORKERS_TOP * GENS * STREAM_ROWS if table.name in OWNED else SHARED_ROWS
    known = {name_of(table, row): row for row in range(every)}
    rows = [known.get(name, -1) for name in names]
    if len(rows) != len(values) or len(set(rows)) != len(rows) or -1 in rows:
        raise Broken(f"export at clock {reader.clock}: table {table.name} has {len(values)} rows, named {names[:20]}..")
    if table.name in OWNED:
        _judge_owned(ledger, reader, table, dict(zip(rows, values)), final)
    elif table.name == "summed":
        ledger.judge_exact_rows(reader, table, dict(zip(rows, values)))
    else:
        for row, numbers in zip(rows, values):
            checkers.check_whole(NOBODY, f"{table.name}, row {row}", numbers, ledger.assigned)
            if not numbers.any():
                raise Broken(f"export at clock {reader.clock}: row {row} of table {table.name} is there, and nobody has pushed to it")


def _judge_owned(ledger: Ledger, reader: Reader, table: TableSpec, found: dict[int, Array], final: bool) -> None:
    bsp = ledger.models[table.name].model == BSP
    for key, cell in ledger.cells.items():
        if key[0] == table.name and key[3] not in found:
            least = ledger.bounds(reader, table.name, key, cell.acked if final else 0)[0]
            if least:
                raise Broken(f"export at clock {reader.clock}: row {key[3]} of table {table.name} is missing, {least} pushes went there")
    for row, numbers in found.items():
        key = (table.name, *owner_of(row), row)
        acked = ledger.cells[key].acked if final and not bsp and key in ledger.cells else 0
        least, most = ledger.bounds(reader, table.name, key, acked)
        if not ledger.read_cell(reader, table, row, numbers, least, most):
            raise Broken(f"export at clock {reader.clock}: row {row} of table {table.name} is there, and nobody has pushed to it")
