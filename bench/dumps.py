"""What a copy of a range costs: cut out of what is being trained, taken apart and put together, loaded, written and read.

Each line is megabytes of the dump in a second, beside what the same bytes take to be copied in memory, or to be written
and read as one plain file.  Dense blocks are in a dump by reference: their cut is a line of its own, without a baseline.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from plugml.core.job import JobSpec
from plugml.core.jobmap import buckets, pieces
from plugml.core.keys import row_hashes, table_hash
from plugml.core.table import TableSpec
from plugml.server.contents import Contents
from plugml.server.dump import Dump, Filling, Stream
from plugml.server.memory import Memory
from plugml.server.place import Place, State
from plugml.server.pool import Pool
from plugml.server.rangefiles import about, read_range, write_range
from plugml.server.rows import Rows, Step

ROUNDS = 5
PART = 1 << 20
WIDTH = 16


def dump_figures(work: Path, rows: int) -> Iterator[tuple[str, int, list[float], list[float]]]:
    """(what, bytes, MB/s, MB/s of the bare mechanism)."""
    spec = JobSpec("bench", 1, (TableSpec("e", (0, WIDTH), kind="sparse", optimizer="adam", buckets=1),))
    contents = _contents(spec)
    (bucket,) = contents.buckets.held.values()
    _fill(bucket, rows)
    dump = contents.dump()
    nbytes = sum(array.nbytes for array in dump.arrays.values())
    bare = {name: _speed(nbytes, action) for name, action in _bare(work, dump).items()}

    def cut() -> None:
        contents.let_go(contents.dump())

    def carried() -> Dump:
        stream = Stream(dump)
        filling = Filling(stream.total, len(stream.head), PART, _contents(spec).layout)
        while not filling.complete:
            (cursor,) = filling.missing(1)
            filling.put(cursor, stream.part(cursor, PART))
        return filling.taken()

    said = about(spec, 1, 0)
    ours: dict[str, tuple[str, Callable[[], Any]]] = {
        "cut of rows": ("copied", cut),
        "parts of a copy": ("copied", carried),
        "load of rows": ("copied", lambda: _contents(spec).load(dump.meta, dict(dump.arrays))),
        "file written": ("written", lambda: write_range(work, "range", _as_range(dump), said)),
        "file read": ("read", lambda: read_range(work, "range", said, lambda meta: _contents(spec).layout(meta["contents"]))),
    }
    for name, (what, action) in ours.items():
        yield f"{name} / as plain bytes {what}", nbytes, _speed(nbytes, action), bare[what]
    yield from _dense()


def _dense() -> Iterator[tuple[str, int, list[float], list[float]]]:
    spec = JobSpec("bench", 1, (TableSpec("w", (1 << 22,), optimizer="adam", block_bytes=1 << 20),))
    contents = _contents(spec)
    contents.blocks.replace([(place, _stepped(place)) for place in contents.blocks.places.values()], 1)
    nbytes = sum(array.nbytes for array in contents.dump().arrays.values())

    def cut() -> None:
        contents.let_go(contents.dump())

    bare = np.ones(nbytes, np.uint8)
    yield "cut of dense blocks / as plain bytes copied", nbytes, _speed(nbytes, cut), _speed(nbytes, bare.copy)


def _stepped(place: Place) -> State:
    count = place.segment.elements
    return State(np.ones(count, place.dtype), tuple([np.ones(count, place.state_dtype) for _ in range(place.kernel.slots)]), 1)


def _contents(spec: JobSpec) -> Contents:
    return Contents(spec, 0, pieces(spec, 1), buckets(spec, 1), Memory(), Pool(lambda: 1 << 50))


def _fill(bucket: Rows, rows: int) -> None:
    ids = row_hashes(np.arange(rows, dtype=np.uint64), table_hash("x", "y"))
    numbers = np.ones((rows, WIDTH), np.float32)
    bucket.reserve(rows, 0)
    bucket.take(Step(bucket, ids, None, np.full(rows, -1, np.int64), numbers, (numbers, numbers), np.ones(rows, np.int64)))


def _as_range(dump: Dump) -> Dump:
    """A range's file holds the document of a whole range."""
    return Dump({"contents": dump.meta}, dump.arrays)


def _bare(work: Path, dump: Dump) -> dict[str, Callable[[], Any]]:
    arrays = list(dump.arrays.values())
    whole = b"".join(array.tobytes() for array in arrays)

    def write() -> None:
        with (work / "bare").open("wb") as file:
            file.write(whole)
            file.flush()
            os.fsync(file.fileno())

    return {"copied": lambda: [array.copy() for array in arrays], "written": write, "read": (work / "bare").read_bytes}


def _speed(nbytes: int, action: Callable[[], Any]) -> list[float]:
    found = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        action()
        found.append(nbytes / (time.perf_counter() - start) / 1e6)
    return found
