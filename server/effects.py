"""What a range tells the node that it lives in, and what the node asks of its process, beyond messages to send."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..core.job import JobSpec
from .dump import Dump


class JobFailed(NamedTuple):
    """A range cannot go on without storing what is no number, and keeps what it has.  The node tells the keeper of the clock."""

    job: int
    range: int
    code: int
    reason: str


class Reached(NamedTuple):
    """A range has applied a Close or a Roster: `key` says which, see `closing`.  The node acks it to the clock's keeper."""

    job: int
    range: int
    key: tuple[Any, int]


class SaveBegun(NamedTuple):
    """Checkpoint `number` of a job has begun, whose cut lies at `clock`.  The keeper of the clock carries it out."""

    job: int
    number: int
    clock: int


class Cut(NamedTuple):
    """What a range holds at a checkpoint's cut; `dump` None: there was no memory for it."""

    job: int
    range: int
    number: int
    dump: Dump | None


class AskSeat(NamedTuple):
    """The copies of a range have to change; the node asks the master until a map says so.  See wire.control.SeatAsk."""

    job: int
    range: int
    epoch: int
    verb: str
    node: str
    reason: str


class Retiring(NamedTuple):
    """An event: this process was told to end, and may hand over what it holds before it does."""


class Turn(NamedTuple):
    """Perform what was given so far, let others have their turn, then feed this back: what is committed is applied on."""


class WarmUp(NamedTuple):
    """Bring in the compiled part for rows of sparse tables, beside the loop: it takes seconds.  Answered by `Warm`."""


class Warm(NamedTuple):
    """Rows can be kept from here on; or why they never can."""

    problem: str = ""


class WriteRange(NamedTuple):
    """Write a range's file of a checkpoint, beside the loop; what checkpoint `kept` has need not be written (0 = none).  -> RangeWritten"""

    job: int
    range: int
    number: int
    kept: int
    spec: JobSpec
    ring_ranges: int
    dump: Dump


class RangeWritten(NamedTuple):
    """The file is on the disk, whole, or it is not there for the `problem`.  `refers`: numbers of checkpoints that it needs."""

    job: int
    range: int
    number: int
    nbytes: int
    crc: int
    refers: tuple[int, ...]
    problem: str


class ReadRange(NamedTuple):
    """Read a range's file of the checkpoint in the directory `place`.  -> RangeRead"""

    job: int
    range: int
    place: str
    spec: JobSpec
    ring_ranges: int


class RangeRead(NamedTuple):
    job: int
    range: int
    dump: Dump | None
    problem: str


class WriteManifest(NamedTuple):
    """Complete a checkpoint in `root`: bytes and checksum of each range's file, and (number, range) of the earlier ones needed.  -> ManifestWritten"""

    job: int
    number: int
    root: str
    kept: int
    document: dict[str, Any]
    files: dict[int, tuple[int, int]]
    earlier: tuple[tuple[int, int], ...]


class ManifestWritten(NamedTuple):
    job: int
    number: int
    problem: str


class TidySaves(NamedTuple):
    """Checkpoint `number` is kept: remove what is older than the newest `keep` and needed by none; keep 0: remove this one itself."""

    root: str
    number: int
    keep: int
