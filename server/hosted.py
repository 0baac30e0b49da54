"""One job on one server: its map, the copies of ranges that lie here, and the job's clock if its range is one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..core.clock import BSP
from ..core.effects import Log
from ..core.errors import Code
from ..core.job import JobSpec
from ..core.jobmap import Assignment, Bucket, JobMap, Piece, buckets, pieces
from ..core.limits import Limits
from .clock import ClockMachine
from .closing import Closings
from .effects import ReadRange
from .memory import Memory
from .pool import Pool
from .range import RangeMachine
from .replica import Replica


class Hosted:
    """Ranges and clock come into being with the first map that names this server, and go with the job."""

    def __init__(self, name: str, number: int, limits: Limits, memory: Memory, left: Callable[[], int]) -> None:
        self.number = number
        self.ranges: dict[int, RangeMachine] = {}  # what is applied of every copy here
        self.replicas: dict[int, Replica] = {}  # the same ranges
        self.closings = Closings()
        self.map: JobMap | None = None
        self.token = 0  # of the map
        self.clock_range = 0
        self.keeper = ("", 0)  # who keeps the job's clock, under which epoch
        self.nbytes = 0  # of values and optimizer state that the ranges here have when all are touched
        self.checked_token = 0  # cluster token up to which the map is known to be the newest
        self.refusal: tuple[Code, str] | None = None  # why the job's values cannot be here
        self.pool = Pool(left)
        self.sparse = False  # the job has a sparse table
        self._name = name
        self._limits = limits
        self._memory = memory
        self._pieces: dict[int, list[Piece]] = {}
        self._buckets: dict[int, list[Bucket]] = {}

    @property
    def spec(self) -> JobSpec:
        assert self.map is not None
        return self.map.spec

    @property
    def closes(self) -> bool:
        """Whether the job's clocks are closed: a table of it is BSP."""
        return any(self.spec.consistency_of(table).model == BSP for table in self.spec.tables)

    @property
    def clock(self) -> ClockMachine | None:
        """The job's clock, if it is kept here: its range is led here."""
        replica = self.keeps
        return replica.clock if replica is not None else None

    @property
    def keeps(self) -> Replica | None:
        """The range of the job's clock, if it is led here."""
        replica = self.replicas.get(self.clock_range)
        return replica if replica is not None and (replica.leads or replica.cold) else None

    def adopt(self, new: JobMap, now_us: int) -> list[Any]:
        """Take a newer map: new copies start empty, those that this server has no part in any more are dropped."""
        if self.map is None:
            for piece in pieces(new.spec, new.ring_ranges):
                self._pieces.setdefault(piece.range, []).append(piece)
            for bucket in buckets(new.spec, new.ring_ranges):
                self._buckets.setdefault(bucket.range, []).append(bucket)
            self.sparse = bool(self._buckets)
            self.clock_range = new.clock_range
        self.map, self.token = new, new.token
        self.keeper = (new.primary(self.clock_range), new.epoch(self.clock_range))
        mine = {number: item for number, item in sorted(new.ranges.items()) if self._name in (*item.replicas, item.learner)}
        for number in [number for number in self.replicas if number not in mine]:
            self._drop(number)
        effects: list[Any] = []
        promoted = 0
        for number, item in mine.items():
            replica = self._replica(number, item)
            if replica.cold and not replica.seat.epoch:
                effects.append(ReadRange(self.number, number, new.spec.resume, new.spec, new.ring_ranges))
            followed = replica.seat.epoch > 0 and not replica.leads
            effects += replica.adopt(item, new.token, now_us)
            promoted += followed and replica.leads
        if promoted:
            effects.append(Log("promoted", {"job": self.number, "ranges": promoted, "token": new.token}))
        keeps = self.replicas.get(self.clock_range)
        if keeps is not None and keeps.clock is not None:
            keeps.clock.place({number: item.primary for number, item in new.ranges.items()}, keeps.seat.epoch, new.token)
        self.nbytes = sum(held.blocks.nbytes for held in self.ranges.values())
        self.pool.share = self._share() if new.spec.memory_bytes else None
        return effects

    def _replica(self, number: int, item: Assignment) -> Replica:
        """The copy of a range here; a new one where there is none, and for a learner of another epoch."""
        replica = self.replicas.get(number)
        if replica is not None and item.learner == self._name and replica.seat.epoch != item.epoch:
            self._drop(number)
            replica = None
        if replica is None:
            clock = ClockMachine(self.number, number, self.spec, self._limits, 0, 0) if number == self.clock_range else None
            held = self.ranges[number] = RangeMachine(
                self.number, number, self.spec, self._pieces.get(number, ()), self._buckets.get(number, ()), self._memory,
                self.pool, self._limits, 0, 0, clock,
            )  # fmt: skip
            replica = self.replicas[number] = Replica(self._name, held, self._limits, self.spec.min_insync)
            replica.cold = bool(self.spec.resume) and item.learner != self._name
        return replica

    def _drop(self, number: int) -> None:
        del self.ranges[number]
        self.replicas.pop(number).end()

    def end(self) -> None:
        """The job has ended."""
        for number in list(self.replicas):
            self._drop(number)

    def _share(self) -> int:
        """Bytes of the job's memory that rows may take here: of what its dense tables leave, the part of the buckets here."""
        whole = sum(map(len, self._buckets.values()))
        here = sum(len(self._buckets.get(number, ())) for number in self.ranges)
        rest = max(0, self.spec.memory_bytes - self.spec.dense_bytes)
        return rest * here // max(1, whole)

    def holds(self, ranges: tuple[int, ...], worker: int, gen: int, seq: int) -> bool:
        """Whether each of these ranges is led here and has this push of the stream."""
        found = [self.replicas.get(number) for number in ranges]
        return all(replica is not None and replica.serves and replica.range.holds(worker, gen, seq) for replica in found)

    def others(self) -> dict[str, str]:
        """Servers that copies here speak to, and those that the clock has to reach, with their endpoints."""
        if self.map is None:
            return {}
        wanted: set[str] = set()
        for number in self.replicas:
            item = self.map.ranges[number]
            wanted.update(item.replicas, (item.learner,))
        if self.keeps is not None:
            wanted.update(item.primary for item in self.map.ranges.values())
        return {server: self.map.endpoints[server] for server in sorted(wanted - {self._name, ""}) if server in self.map.endpoints}

    def untouched_bytes(self) -> int:
        """Promised room: values that no array holds yet."""
        if self.refusal is not None:
            return 0
        return sum(place.owed_bytes for held in self.ranges.values() for place in held.blocks.places.values())

    def refuse_if_full(self, room_bytes: int, name: str) -> None:
        """A model that does not fit is refused when it comes, not by the system when it is half trained."""
        most, dense = self.spec.memory_bytes, self.spec.dense_bytes
        if 0 < most < dense:
            text = f"job {self.spec.name!r} may take {most} bytes of the servers' memory, and its dense tables need {dense} for values and optimizers"
            self.refusal = (Code.NOSPC, f"{text}; raise the job's memory (--memory), or make the tables smaller")
            return
        if self.nbytes <= room_bytes:
            return
        text = f"job {self.spec.name!r} needs {self.nbytes} bytes on server {name}, which has {max(0, room_bytes)} left"
        self.refusal = (Code.NOSPC, f"{text}; add servers, or make the tables smaller")

    @property
    def full(self) -> str:
        """Why the job's values cannot be here, "" if they can."""
        return self.refusal[1] if self.refusal is not None else ""

    @property
    def row_count(self) -> int:
        """Rows of sparse tables here."""
        return sum(held.contents.buckets.count for held in self.ranges.values())
