"""One job on one server: its map, the ranges that this server leads, and the job's clock if it is kept here."""

from __future__ import annotations

from collections.abc import Callable

from ..core.errors import Code
from ..core.job import JobSpec
from ..core.jobmap import Bucket, JobMap, Piece, buckets, pieces
from ..core.limits import Limits
from .clock import ClockMachine
from .memory import Memory
from .pool import Pool
from .range import RangeMachine


class Hosted:
    """Ranges and clock come into being with the first map that names this server, and go with the job."""

    def __init__(self, name: str, number: int, limits: Limits, memory: Memory, left: Callable[[], int]) -> None:
        self.number = number
        self.ranges: dict[int, RangeMachine] = {}
        self.clock: ClockMachine | None = None
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

    def adopt(self, new: JobMap) -> None:
        """Take a newer map: new ranges start empty, those that are led elsewhere now are dropped."""
        if self.map is None:
            for piece in pieces(new.spec, new.ring_ranges):
                self._pieces.setdefault(piece.range, []).append(piece)
            for bucket in buckets(new.spec, new.ring_ranges):
                self._buckets.setdefault(bucket.range, []).append(bucket)
            self.sparse = bool(self._buckets)
            self.clock_range = new.clock_range
        self.map, self.token = new, new.token
        self.keeper = (new.primary(self.clock_range), new.epoch(self.clock_range))
        mine = {number: item for number, item in new.ranges.items() if item.primary == self._name}
        for number in [number for number in self.ranges if number not in mine]:
            del self.ranges[number]
        for number, item in sorted(mine.items()):
            held = self.ranges.get(number)
            if held is None:
                held = self.ranges[number] = RangeMachine(
                    new.number, number, new.spec, self._pieces.get(number, ()), self._buckets.get(number, ()), self._memory,
                    self.pool, self._limits, item.epoch, new.token,
                )  # fmt: skip
            held.epoch, held.token = item.epoch, new.token
        self.nbytes = sum(held.blocks.nbytes for held in self.ranges.values())
        self.pool.share = self._share() if new.spec.memory_bytes else None
        self._place_clock(new)

    def _share(self) -> int:
        """Bytes of the job's memory that rows may take here: of what its dense tables leave, the part of the buckets here."""
        whole = sum(map(len, self._buckets.values()))
        here = sum(len(self._buckets.get(number, ())) for number in self.ranges)
        rest = max(0, self.spec.memory_bytes - self.spec.dense_bytes)
        return rest * here // max(1, whole)

    def _place_clock(self, new: JobMap) -> None:
        server, epoch = self.keeper
        if server != self._name:
            self.clock = None
            return
        if self.clock is None:
            self.clock = ClockMachine(new.number, self.clock_range, new.spec, self._limits, epoch, new.token)
        self.clock.place({number: item.primary for number, item in new.ranges.items()}, epoch, new.token)

    def holds(self, ranges: tuple[int, ...], worker: int, gen: int, seq: int) -> bool:
        """Whether each of these ranges is led here and has this push of the stream."""
        held = self.ranges
        return all(number in held and held[number].holds(worker, gen, seq) for number in ranges)

    def others(self) -> dict[str, str]:
        """Servers that the clock has to reach, with their endpoints."""
        if self.clock is None or self.map is None:
            return {}
        primaries = {item.primary for item in self.map.ranges.values()} - {self._name, ""}
        return {server: self.map.endpoints[server] for server in sorted(primaries) if server in self.map.endpoints}

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
