"""The map of one job: who leads which range, under which epoch, and where to reach them.  Made by the master only.

Agents and servers cache it; its `token` is the map version that they show to each other.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .errors import PeerError, UsageError
from .job import JobSpec
from .keys import block_key, clock_key, range_of, table_hash
from .table import Block

RUNNING, FINISHED, FAILED, STOPPED, LOST = "running", "finished", "failed", "stopped", "lost"
STATES = (RUNNING, FINISHED, FAILED, STOPPED, LOST)


class Assignment(NamedTuple):
    """One range of a job: the fence and the replicas, primary first (node names, so a restarted process is another)."""

    epoch: int
    replicas: tuple[str, ...]

    @property
    def primary(self) -> str:
        """The node that orders pushes; "" when every copy is lost."""
        return self.replicas[0] if self.replicas else ""


class JobMap(NamedTuple):
    """`ranges` maps a range's number to its assignment; only ranges that hold something of the job are there.

    `ring_ranges` is Q of the cluster; `endpoints` gives the address of every node named in `ranges`; `gens` the newest
    generation of each worker that was ever attached.
    """

    number: int
    token: int
    spec: JobSpec
    state: str
    reason: str
    ring_ranges: int
    ranges: dict[int, Assignment]
    endpoints: dict[str, str]
    gens: dict[int, int]

    @property
    def clock_range(self) -> int:
        """Range whose primary also keeps the job's clock."""
        return range_of(clock_key(self.spec.name), self.ring_ranges)

    def primary(self, range_number: int) -> str:
        assignment = self.ranges.get(range_number)
        return assignment.primary if assignment else ""

    def epoch(self, range_number: int) -> int:
        assignment = self.ranges.get(range_number)
        return assignment.epoch if assignment else 0

    def to_document(self) -> dict[str, Any]:
        return {
            "number": self.number, "token": self.token, "spec": self.spec.to_document(), "state": self.state,
            "reason": self.reason, "ring_ranges": self.ring_ranges,
            "ranges": [[number, item.epoch, list(item.replicas)] for number, item in sorted(self.ranges.items())],
            "endpoints": dict(self.endpoints), "gens": [list(pair) for pair in sorted(self.gens.items())],
        }  # fmt: skip

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> JobMap:
        """Raises `PeerError` for anything that is not a map."""
        try:
            ranges = {int(number): Assignment(int(epoch), tuple(replicas)) for number, epoch, replicas in document["ranges"]}
            gens = {int(worker): int(gen) for worker, gen in document["gens"]}
            spec = JobSpec.from_document(document["spec"])
            return cls(
                int(document["number"]), int(document["token"]), spec, str(document["state"]), str(document["reason"]),
                int(document["ring_ranges"]), ranges, dict(document["endpoints"]), gens,
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, UsageError) as error:
            raise PeerError(f"no job map: {error}") from error


class Piece(NamedTuple):
    """One block of one table and where it lies: its range, and its first byte in `grad` and `param`."""

    range: int
    table: int
    block: Block
    offset: int
    nbytes: int


def pieces(spec: JobSpec, ring_ranges: int) -> list[Piece]:
    """Every block of the job's dense tables in file order; several blocks may lie in one range."""
    result = []
    offsets = {place.table.name: place.offset for place in spec.layout.places}
    for number, table in enumerate(spec.tables):
        if table.kind != "dense":
            continue
        start = table_hash(spec.name, table.name)
        itemsize = table.numpy_dtype.itemsize
        for block in table.blocks():
            home = range_of(block_key(start, block.number), ring_ranges)
            offset = offsets[table.name] + block.start * itemsize
            result.append(Piece(home, number, block, offset, (block.stop - block.start) * itemsize))
    return result


def ranges_used(spec: JobSpec, ring_ranges: int) -> list[int]:
    """Numbers of the ranges that hold something of the job, the clock's range among them, ascending."""
    used = {piece.range for piece in pieces(spec, ring_ranges)} | {range_of(clock_key(spec.name), ring_ranges)}
    return sorted(used)
