"""The map of one job: who leads which range, under which epoch, and where to reach them.  Made by the master only.

Agents and servers cache it; its `token` is the map version that they show to each other.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .errors import PeerError, UsageError, shown
from .job import JobSpec
from .keys import block_key, clock_key, range_of, table_hash
from .limits import Limits
from .table import Block

RUNNING, FINISHED, FAILED, STOPPED, LOST = "running", "finished", "failed", "stopped", "lost"
RING_RANGES_MAX = 1 << 16
BLOCKS_MAX = 1 << 20  # of a job: a list of them fits into memory
STATES = (RUNNING, FINISHED, FAILED, STOPPED, LOST)


class Assignment(NamedTuple):
    """One range of a job: the fence and its copies (node names, so a restarted process is another).

    `replicas` are in sync, the primary first: a push is acked when each of them holds it.  `learner` is being filled, ""
    = nobody; `born` is the epoch in which it was named: a node that is named again forgets what it holds.
    """

    epoch: int
    replicas: tuple[str, ...]
    learner: str = ""
    born: int = 0

    @property
    def primary(self) -> str:
        """The node that orders pushes; "" when every copy is lost."""
        return self.replicas[0] if self.replicas else ""


class JobMap(NamedTuple):
    """`ranges` maps a range's number to its assignment; only ranges that hold something of the job are there.

    `ring_ranges` is Q of the cluster; `endpoints` gives the address of every node named in `ranges`; `gens` the newest
    generation of each worker that was ever attached.  `joined` workers have come to those that the job began with; of
    these, `gone` (worker, gen) were lost with their hosts: whoever reads it says their Leave.
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
    joined: int = 0
    gone: tuple[tuple[int, int], ...] = ()

    @property
    def workers(self) -> int:
        """All that have ever had a part in the job: their numbers are the ones below it."""
        return self.spec.workers + self.joined

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
            "ranges": [
                [number, item.epoch, list(item.replicas), item.learner, item.born] for number, item in sorted(self.ranges.items())
            ],
            "endpoints": dict(self.endpoints), "gens": [list(pair) for pair in sorted(self.gens.items())], "joined": self.joined,
            "gone": [list(pair) for pair in self.gone],
        }  # fmt: skip

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> JobMap:
        """Raises `PeerError` for anything that is not a map."""
        try:
            ring_ranges = _whole(document["ring_ranges"], RING_RANGES_MAX)
            if ring_ranges & (ring_ranges - 1) or not ring_ranges:
                raise ValueError(f"{ring_ranges} ranges are no power of two")
            if document["state"] not in STATES:
                raise ValueError(f"state {shown(document['state'])}")
            spec = JobSpec.from_document(document["spec"])
            if not all(table.block_bytes for table in spec.tables if table.kind == "dense"):
                raise ValueError("a table without block_bytes")
            if not all(table.buckets for table in spec.tables if table.kind == "sparse"):
                raise ValueError("a sparse table without buckets")
            if sum(table.block_count for table in spec.tables if table.kind == "dense") > BLOCKS_MAX:
                raise ValueError(f"more than {BLOCKS_MAX} blocks")
            ranges = {
                _whole(number, ring_ranges - 1): _assignment(epoch, replicas, learner, born)
                for number, epoch, replicas, learner, born in _items(document["ranges"])
            }
            gens = {_whole(worker): _whole(gen) for worker, gen in _items(document["gens"])}
            endpoints = {_text(name): _text(endpoint) for name, endpoint in document["endpoints"].items()}
            number, token = _whole(document["number"]), _whole(document["token"], (1 << 64) - 1)
            joined = _whole(document["joined"], Limits().workers_max)
            gone = tuple((_whole(worker), _whole(gen)) for worker, gen in _items(document["gone"]))
            return cls(number, token, spec, document["state"], _text(document["reason"]), ring_ranges, ranges, endpoints, gens, joined, gone)
        except (AttributeError, KeyError, TypeError, ValueError, UsageError) as error:
            raise PeerError(f"no job map: {error}") from error


def _assignment(epoch: Any, replicas: Any, learner: Any, born: Any) -> Assignment:
    held = tuple(_text(name) for name in _items(replicas))
    if len(set(held)) != len(held) or (learner and learner in held):
        raise ValueError(f"a range has a copy twice on one server: {held}, learner {shown(learner)}")
    return Assignment(_whole(epoch), held, _text(learner), _whole(born))


def _whole(value: Any, most: int = (1 << 32) - 1) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{shown(value)} is no number from 0 to {most}")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"{shown(value)} is no text")
    return value


def _items(value: Any) -> list[Any] | tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{shown(value)} is no list")
    return value


class Piece(NamedTuple):
    """One block of one dense table and where it lies: its range, and its bytes in `grad` and `param`.

    `stored_*` is the same for the servers' kind of numbers (`JobSpec.stored_layout`), as it travels.
    """

    range: int
    table: int
    block: Block
    offset: int
    nbytes: int
    stored_offset: int
    stored_nbytes: int


class Bucket(NamedTuple):
    """One bucket of one sparse table and the range that holds it."""

    range: int
    table: int
    number: int


def buckets(spec: JobSpec, ring_ranges: int) -> list[Bucket]:
    """Every bucket of the job's sparse tables; several may lie in one range."""
    result = []
    for number, table in enumerate(spec.tables):
        if table.kind == "sparse":
            start = table_hash(spec.name, table.name)
            result += [Bucket(range_of(block_key(start, bucket), ring_ranges), number, bucket) for bucket in range(table.buckets)]
    return result


def pieces(spec: JobSpec, ring_ranges: int) -> list[Piece]:
    """Every block of the job's dense tables in file order; several blocks may lie in one range."""
    result = []
    offsets = {place.table.name: place.offset for place in spec.layout.places}
    stored = {place.table.name: place.offset for place in spec.stored_layout.places}
    for number, table in enumerate(spec.tables):
        if table.kind != "dense":
            continue
        start = table_hash(spec.name, table.name)
        itemsize, stored_itemsize = table.numpy_dtype.itemsize, table.storage_dtype.itemsize
        for block in table.blocks():
            home = range_of(block_key(start, block.number), ring_ranges)
            count = block.stop - block.start
            offset = offsets[table.name] + block.start * itemsize
            stored_offset = stored[table.name] + block.start * stored_itemsize
            result.append(Piece(home, number, block, offset, count * itemsize, stored_offset, count * stored_itemsize))
    return result


def ranges_used(spec: JobSpec, ring_ranges: int) -> list[int]:
    """Numbers of the ranges that hold something of the job, the clock's range among them, ascending."""
    used = {piece.range for piece in pieces(spec, ring_ranges)} | {bucket.range for bucket in buckets(spec, ring_ranges)}
    return sorted(used | {range_of(clock_key(spec.name), ring_ranges)})
