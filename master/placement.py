"""Where the ranges of a job lie: weighs them, asks the ring, and explains.  Knows neither liveness nor the store."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..core.job import JobSpec
from ..core.keys import GOLDEN, clock_key, range_of, table_hash
from ..core.limits import Limits
from ..core.ring import Member, Ring, plural
from ..core.table import TableSpec
from .catalog import Job, NodeRecord, Seat, node_id


class TablePlace(NamedTuple):
    """How a dense table falls into ranges: blocks and bytes of it by range."""

    table: TableSpec
    blocks: dict[int, int]
    nbytes: dict[int, int]


def table_places(spec: JobSpec, ring_ranges: int) -> list[TablePlace]:
    """Every dense table of a job; the same ranges as `jobmap.pieces`, without a value per block."""
    return [_table_place(spec.name, table, ring_ranges) for table in spec.tables if table.kind == "dense"]


def _table_place(job: str, table: TableSpec, ring_ranges: int) -> TablePlace:
    count, itemsize = table.block_count, table.numpy_dtype.itemsize
    numbers = np.arange(count, dtype=np.uint64)
    keys = numbers * np.uint64(GOLDEN) + np.uint64(table_hash(job, table.name))  # modulo 2^64, as in keys.block_key
    shift = 65 - ring_ranges.bit_length()
    homes = (keys >> np.uint64(shift)).astype(np.int64) if ring_ranges > 1 else np.zeros(count, np.int64)
    blocks = np.bincount(homes, minlength=ring_ranges)
    nbytes = blocks * (table.block_elements * itemsize)
    nbytes[homes[-1]] -= (count * table.block_elements - table.count) * itemsize  # the last block may be shorter
    used = [int(number) for number in np.flatnonzero(blocks)]
    return TablePlace(table, {n: int(blocks[n]) for n in used}, {n: int(nbytes[n]) for n in used})


def weights_of(spec: JobSpec, ring_ranges: int) -> dict[int, int]:
    """Bytes of each range that holds something of the job; the clock's range is among them."""
    weights = {range_of(clock_key(spec.name), ring_ranges): 0}
    for place in table_places(spec, ring_ranges):
        for number, nbytes in place.nbytes.items():
            weights[number] = weights.get(number, 0) + nbytes
    return weights


def too_many_blocks(spec: JobSpec, ring_ranges: int, limits: Limits) -> str:
    """Why the job's blocks do not fit into messages, "" if they do: one push names all blocks of a range."""
    total = sum(table.block_count for table in spec.tables if table.kind == "dense")
    fit = f"at most {limits.segments_max} in each of {ring_ranges} ranges"
    if total > ring_ranges * limits.segments_max:
        return f"the tables have {total} blocks, {fit}: use fewer tables or a larger block_bytes"
    blocks: dict[int, int] = {}
    for place in table_places(spec, ring_ranges):
        for number, count in place.blocks.items():
            blocks[number] = blocks.get(number, 0) + count
    if max(blocks.values()) > limits.segments_max:
        return f"{max(blocks.values())} blocks of the tables fall into one range, {fit}: use fewer tables or a larger block_bytes"
    return ""


def place(spec: JobSpec, servers: list[NodeRecord], ring_ranges: int, limits: Limits) -> tuple[dict[int, Seat], str]:
    """A seat for each range of a new job, and why it is so."""
    names = {node_id(server.name): server.name for server in servers}
    ring = Ring([Member(node_id(server.name), server.host) for server in servers], ring_ranges, limits.points)
    shares, why = ring.place(weights_of(spec, ring_ranges))
    seats = {n: Seat(1, tuple(names[server] for server in share.servers), share.passed) for n, share in shares.items()}
    return seats, why


def table_lines(job: Job, ring_ranges: int) -> list[str]:
    """Where each table is, for people.  A small table is one block on one server, and this says so."""
    lines = []
    for item in table_places(job.spec, ring_ranges):
        primaries = {name for number in item.blocks for name in job.seats[number].replicas[:1]}
        lost = sum(not job.seats[number].replicas for number in item.blocks)
        text = f"table {item.table.name}: {plural(sum(item.blocks.values()), 'block')} on {plural(len(primaries), 'server')}"
        lines.append(text + (f", {plural(lost, 'range')} lost" if lost else ""))
    return lines


def seat_reason(seat: Seat) -> str:
    """Why a range is where it is."""
    if not seat.replicas:
        return "its only copy is lost"
    if seat.passed:
        return f"balanced: {plural(seat.passed, 'server')} before it on the ring had a full share"
    return "the first server clockwise on the ring"
