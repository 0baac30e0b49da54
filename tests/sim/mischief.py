"""Requests that must be refused, by name, and change nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .talk import ENDED, Failed, Steps, Stopped
from .workload import Content
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
    kind = kinds[program.world.draw(0, len(kinds) - 1)]
    program.ledger.refusals += 1
    seq = program.seq + 1
    everything = Content(True, ())
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
        program.ledger.stopping.refused(program.stream, answer.clock)
        raise Stopped
    if answer.ok or answer.code != kind.split()[0]:
        raise Violation(f"{program.channel.name}: {line!r} ({kind}) was answered {answer}")
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
