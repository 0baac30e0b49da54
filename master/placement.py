"""Where the ranges of a job lie: weighs them, asks the ring, and explains.  Knows neither liveness nor the store."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ..core.job import JobSpec
from ..core.jobmap import BLOCKS_MAX
from ..core.keys import GOLDEN, clock_key, range_of, table_hash
from ..core.limits import Limits
from ..core.ring import Member, Ring, plural
from ..core.table import TableSpec
from .catalog import Job, NodeRecord, Seat, node_id

#: More than any server has: what a table of 2^64 rows declares is no reason to reckon with it.
BUCKET_BYTES_TOP = 1 << 40


class TablePlace(NamedTuple):
    """How a table falls into ranges: blocks (buckets of a sparse one) and bytes of it by range.

    The bytes are what servers hold, the optimizer's state with it; of a sparse table an estimate.
    """

    table: TableSpec
    blocks: dict[int, int]
    nbytes: dict[int, int]


def table_places(spec: JobSpec, ring_ranges: int) -> list[TablePlace]:
    """Every table of a job; the same ranges as `jobmap.pieces` and `jobmap.buckets`, without a value per block."""
    return [_table_place(spec.name, table, ring_ranges) for table in spec.tables]


def _table_place(job: str, table: TableSpec, ring_ranges: int) -> TablePlace:
    sparse = table.kind == "sparse"
    count = table.buckets if sparse else table.block_count
    numbers = np.arange(count, dtype=np.uint64)
    keys = numbers * np.uint64(GOLDEN) + np.uint64(table_hash(job, table.name))  # modulo 2^64, as in keys.block_key
    shift = 65 - ring_ranges.bit_length()
    homes = (keys >> np.uint64(shift)).astype(np.int64) if ring_ranges > 1 else np.zeros(count, np.int64)
    blocks = np.bincount(homes, minlength=ring_ranges)
    if sparse:
        nbytes = blocks * _bucket_bytes(table)
    else:
        nbytes = blocks * (table.block_elements * table.held_itemsize)
        nbytes[homes[-1]] -= (count * table.block_elements - table.count) * table.held_itemsize  # the last block may be shorter
    used = [int(number) for number in np.flatnonzero(blocks)]
    return TablePlace(table, {n: int(blocks[n]) for n in used}, {n: int(nbytes[n]) for n in used})


def _bucket_bytes(table: TableSpec) -> int:
    """Bytes that a bucket is reckoned at: all rows where their number is known, else those of one full request.

    Rows come as they are pushed, so this is a guess; every bucket of a table gets the same share by the hash of its rows.
    """
    rows = table.rows or table.batch_rows
    return min(BUCKET_BYTES_TOP, -(-rows * table.width * table.held_itemsize // table.buckets))


def weights_of(spec: JobSpec, ring_ranges: int) -> dict[int, int]:
    """Bytes of each range that holds something of the job; the clock's range is among them."""
    weights = {range_of(clock_key(spec.name), ring_ranges): 0}
    for place in table_places(spec, ring_ranges):
        for number, nbytes in place.nbytes.items():
            weights[number] = weights.get(number, 0) + nbytes
    return weights


def too_many_blocks(spec: JobSpec, ring_ranges: int, limits: Limits) -> str:
    """Why the job's blocks and buckets do not fit into messages, "" if they do: one push names all that it touches of a range."""
    total = sum(table.buckets if table.kind == "sparse" else table.block_count for table in spec.tables)
    fit = f"at most {limits.segments_max} in each of {ring_ranges} ranges"
    what = "blocks and buckets" if any(table.kind == "sparse" for table in spec.tables) else "blocks"
    if total > BLOCKS_MAX:
        return f"the tables have {total} {what}, at most {BLOCKS_MAX}: use fewer or smaller tables, or a larger block_bytes"
    if total > ring_ranges * limits.segments_max:
        return f"the tables have {total} {what}, {fit}: use fewer tables or a larger block_bytes"
    blocks: dict[int, int] = {}
    for place in table_places(spec, ring_ranges):
        for number, count in place.blocks.items():
            blocks[number] = blocks.get(number, 0) + count
    if max(blocks.values()) > limits.segments_max:
        return f"{max(blocks.values())} {what} of the tables fall into one range, {fit}: use fewer tables or a larger block_bytes"
    return ""


def place(spec: JobSpec, servers: list[NodeRecord], ring_ranges: int, limits: Limits) -> tuple[dict[int, Seat], str]:
    """A seat for each range of a new job, and why it is so."""
    names = {node_id(server.name): server.name for server in servers}
    ring = ring_of(servers, ring_ranges, limits)
    shares, why = ring.place(weights_of(spec, ring_ranges), spec.copies)
    seats = {n: Seat(1, tuple(names[server] for server in share.servers), share.passed) for n, share in shares.items()}
    return seats, why


def ring_of(servers: Iterable[NodeRecord], ring_ranges: int, limits: Limits) -> Ring:
    """The ring with these servers on it."""
    return _ring(tuple(sorted(Member(node_id(server.name), server.host) for server in servers)), ring_ranges, limits.points)


@lru_cache(maxsize=4)
def _ring(members: tuple[Member, ...], ring_ranges: int, points: int) -> Ring:
    return Ring(members, ring_ranges, points)


def table_lines(job: Job, ring_ranges: int, whole: bool = False) -> list[str]:
    """Where each table is, for people; `whole` also says what it is.  A small table is one block on one server, and this says so."""
    lines = []
    for item in table_places(job.spec, ring_ranges):
        holders = {name for number in item.blocks for name in job.seats[number].replicas}
        lost = sum(not job.seats[number].replicas for number in item.blocks)
        pieces = plural(sum(item.blocks.values()), "bucket" if item.table.kind == "sparse" else "block")
        about = f"{describe(item.table)}; " if whole else "sparse, " if item.table.kind == "sparse" else ""
        copies = f" in {job.spec.copies} copies" if job.spec.copies > 1 else ""
        text = f"table {item.table.name}: {about}{pieces}{copies} on {plural(len(holders), 'server')}"
        lines.append(text + (f", {plural(lost, 'range')} lost" if lost else ""))
    return lines


def describe(table: TableSpec) -> str:
    """A table in words: its rows, numbers, storage and optimizer."""
    if table.kind == "sparse":
        count = "" if table.index_name == "str" else f"{table.rows:,} " if table.rows else "any number of "
        index = "named by strings" if table.index_name == "str" else f"(index {table.index_name})"
        what = f"sparse, {count}rows of {table.width} {table.dtype} {index}, up to {plural(table.batch_rows, 'row')} a request"
    else:
        what = f"{' x '.join(map(str, table.shape))} {table.dtype}"
    kept = f", kept as {table.storage_name}" if table.storage_name != table.dtype else ""
    settings = ", ".join(f"{key} {value:g}" for key, value in sorted(table.settings.items()))
    return f"{what}{kept}, {table.optimizer}" + (f" ({settings})" if settings else "")
