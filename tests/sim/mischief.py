"""Requests that must be refused, by name, and change nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from plugml.core.table import TableSpec

from .talk import ENDED, Failed, Steps, Stopped
from .workload import KEY, OTHER_KEY, OWNED, Content
from .world import Violation

if TYPE_CHECKING:
    from .programs import Program


def mischief(program: Program) -> Steps:
    """A request that must be refused, by name, and change nothing."""
    kinds = ["SEQ", "SEQ clock", "FORMAT"]
    if not program.text:
        kinds += ["NONFINITE", "SIZE"]
    sparse = [table for table in program.ledger.spec.tables if table.kind == "sparse"]
    if sparse:
        kinds += ["FORMAT section", "RANGE batch", "RANGE table"]
    named = [table for table in sparse if table.index_name == "str" and table.batch_rows > 1]
    if named:
        kinds += ["COLLIDE", "COLLIDE twins"]
    kind = kinds[program.world.draw(0, len(kinds) - 1)]
    program.ledger.refusals += 1
    seq = program.seq + 1
    everything = Content(True, ())
    if kind.startswith("COLLIDE"):
        yield from _collide(program, named[0], twins=kind.endswith("twins"))
        return
    line = {
        "SEQ": f"push {program.seq + 3} {program.clock}", "SEQ clock": f"clock {seq} {program.clock + 2}", "FORMAT": f"frobnicate {seq} {program.clock}",
        "SIZE": f"push {seq} {program.clock}", "NONFINITE": f"push {seq} {program.clock}",
        "RANGE table": f"pull {seq} {program.clock} table=nowhere want=1",
        "FORMAT section": f"pull {seq} {program.clock} table={sparse[0].name} k=1" if sparse else "",
        "RANGE batch": f"pull {seq} {program.clock} table={sparse[0].name} want={sparse[0].batch_rows + 1}" if sparse else "",
    }[kind]  # fmt: skip
    if kind == "SIZE":
        yield from program.write("grad", bytes(max(1, program.ledger.spec.layout.nbytes - 4)))
    elif kind == "NONFINITE":
        if not any(place.table.dtype != "i64" for place in program.ledger.spec.layout.places):
            return
        yield from program.write_numbers(everything, _with_nan(program))
    answer = yield from program.request(line)
    if answer.code in ("GONE", "NOSERVER"):  # the job has ended meanwhile: that goes before
        raise Failed(f"{answer.code}: {program.channel.error}")
    if answer.code == "STOP" and line.split()[0] in ENDED:
        program.seq = program.channel.done_seq
        program.ledger.stopping.refused(program.stream, answer.clock)
        raise Stopped
    if answer.ok or answer.code != kind.split()[0]:
        raise Violation(f"{program.channel.name}: {line!r} ({kind}) was answered {answer}")
    yield from program.request(f"hello 0 {program.clock}")
    program.seq = program.channel.done_seq


def _collide(program: Program, table: TableSpec, twins: bool) -> Steps:
    """A key whose hash another one has: beside that one in a request it is refused, and alone once that one's row is there."""
    ledger = program.ledger
    cell = ledger.cells.get((table.name, 0, 1, 0)) if table.name in OWNED else None
    surely = twins or (cell is not None and cell.acked > 0)
    yield from program.write("wkey", OTHER_KEY + b"\n" + (KEY + b"\n" if twins else b""))
    answer = yield from program.request(f"pull {program.seq + 1} {program.clock} table={table.name} want={1 + twins}")
    if answer.code in ("GONE", "NOSERVER"):
        raise Failed(f"{answer.code}: {program.channel.error}")
    if answer.code not in ("OK", "COLLIDE", "NOSPC") or (surely and answer.ok):
        raise Violation(f"{program.channel.name}: a key whose hash another one has was answered {answer}")
    if answer.code == "COLLIDE":
        program.world.reached("keys that collide")
    yield from program.request(f"hello 0 {program.clock}")
    program.seq = program.channel.done_seq


def _with_nan(program: Program) -> bytearray:
    data = bytearray(program.ledger.spec.layout.nbytes)
    for place in program.ledger.spec.layout.places:
        if place.table.dtype != "i64":
            at = place.offset + (place.table.count - 1) * place.table.numpy_dtype.itemsize
            itemsize = place.table.numpy_dtype.itemsize
            data[at : at + itemsize] = np.array([np.nan], place.table.numpy_dtype).tobytes()
    return data
