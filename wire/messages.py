"""One NamedTuple per message.  What each promises stands beside it; how it lies in bytes stands in `codec`.

Fields named `job range epoch worker gen token request` mean the same everywhere:

    job      number that the master gave to the job (a new run of an old name has a new number)
    range    key range of the ring; the range that holds `keys.clock_key` also keeps the job's clock
    epoch    fence of that range's assignment, as the sender knows it
    token    map version that the sender has seen; who is behind it asks the master before it answers
    worker   the stream is (worker, gen): one incarnation of one worker's channel
    request  the asker's own number, repeated in the answer

What everybody and the master say to each other stands in `control`, what concerns a job's clock in `clocks`, what the
copies of a range say to each other in `copies`; all are here by name.  Answers go to whoever asked,
by name.  Every message may be lost, doubled, delayed and reordered: each is harmless when it comes again.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Union

from .clocks import NO_PIECE as NO_PIECE
from .clocks import NOBODY as NOBODY
from .clocks import SAME_PIECE as SAME_PIECE
from .clocks import ClaimAsk as ClaimAsk
from .clocks import ClaimTold as ClaimTold
from .clocks import Close as Close
from .clocks import CloseAck as CloseAck
from .clocks import InitDone as InitDone
from .clocks import Join as Join
from .clocks import Leave as Leave
from .clocks import NextAsk as NextAsk
from .clocks import NextTold as NextTold
from .clocks import Roster as Roster
from .clocks import RosterAck as RosterAck
from .clocks import SaveAsk as SaveAsk
from .clocks import Standing as Standing
from .clocks import StandingAsk as StandingAsk
from .clocks import StopAsk as StopAsk
from .clocks import Tick as Tick
from .clocks import Twins as Twins
from .clocks import WriteAsk as WriteAsk
from .clocks import Wrote as Wrote
from .control import Admin as Admin
from .control import AdminTold as AdminTold
from .control import AttachAsk as AttachAsk
from .control import AttachTold as AttachTold
from .control import Beat as Beat
from .control import BeatAck as BeatAck
from .control import Done as Done
from .control import JobAsk as JobAsk
from .control import JobEnd as JobEnd
from .control import JobTold as JobTold
from .control import MapAsk as MapAsk
from .control import MapTold as MapTold
from .control import MoreAsk as MoreAsk
from .control import MoreTold as MoreTold
from .control import NodeExit as NodeExit
from .control import NotLeader as NotLeader
from .control import Register as Register
from .control import Registered as Registered
from .control import Retire as Retire
from .control import SaveEnd as SaveEnd
from .control import SeatAsk as SeatAsk
from .copies import CopyAsk as CopyAsk
from .copies import CopyTold as CopyTold
from .copies import Held as Held
from .copies import Replicate as Replicate
from .copies import Sync as Sync

Buffer = Any  # memoryview, ndarray or a received frame: anything with the buffer protocol, passed by reference

#: Kinds of segment: a dense block; rows of a sparse table; their numbers (u64), in front of them; their keys, where rows
#: are named by strings: u32 length of each, then the bytes of all, between numbers and rows; bytes of a copy.
BLOCK, ROWS, IDS, KEYS, RAW = 0, 1, 2, 3, 4
BY_VALUE, ABSENT, BY_REFERENCE = 0, 1, 2  # how a segment's numbers travel


class Component(NamedTuple):
    """One worker's part of a push.  A sum of several workers' pushes lists one each: of one clock and of equal weights.

    `prev` is the seq of this stream's previous push *to the same range*: a sparse push touches few ranges.
    """

    worker: int
    gen: int
    seq: int
    prev: int
    clock: int
    weight: float


class Segment(NamedTuple):
    """A piece of one table: `elements` numbers of block or bucket `block`.  Payload frame i is that of the i-th segment by value.

    Rows of a sparse table travel as IDS, KEYS (index=str only), ROWS of one bucket, in this order; a message may hold
    several such groups of a bucket, since a frame is bounded, but no row twice.  In ROWS `elements` is rows x width.
    """

    table: int
    block: int
    elements: int
    dtype: int  # table.DTYPE_CODES, codec.U64 (IDS), codec.U8 (KEYS)
    kind: int = BLOCK
    carry: int = BY_VALUE


# -- agent and range: pushes ------------------------------------------------------------------------------------------


class Push(NamedTuple):
    """Take this once, however often it arrives.  `base` is the version of the values it was computed on."""

    job: int
    range: int
    epoch: int
    token: int
    base: int
    components: tuple[Component, ...]
    segments: tuple[Segment, ...]
    payload: tuple[Buffer, ...]


class PushAck(NamedTuple):
    """Every push of the stream to this range up to `seq` is held by all copies.

    `behind`: others' pushes that were applied here between the values that the push was computed on and itself.
    """

    job: int
    range: int
    epoch: int
    token: int
    worker: int
    gen: int
    seq: int
    behind: int = 0


class Partial(NamedTuple):
    """Of this sum some components are taken already and some are not: send each alone.  `seen` lists (worker, gen, last seq)."""

    job: int
    range: int
    epoch: int
    token: int
    seen: tuple[tuple[int, int, int], ...]


class LastAsk(NamedTuple):
    """Which push of this stream did the range take last?  (An agent that was restarted does not know `prev`.)"""

    job: int
    range: int
    epoch: int
    token: int
    worker: int
    gen: int


class LastTold(NamedTuple):
    """`seq` of the last push taken from the stream, 0 = none."""

    job: int
    range: int
    epoch: int
    token: int
    worker: int
    gen: int
    seq: int


class Init(NamedTuple):
    """First values of tables with init=program.  Taken iff `claim` is the highest seen; see ClaimAsk."""

    job: int
    range: int
    epoch: int
    token: int
    claim: int
    segments: tuple[Segment, ...]
    payload: tuple[Buffer, ...]


class InitAck(NamedTuple):
    job: int
    range: int
    epoch: int
    token: int
    claim: int


# -- agent and range: pulls -------------------------------------------------------------------------------------------


class Pull(NamedTuple):
    """Read blocks and rows.  Answered when the stream's own push `after` is visible and `closed` clocks are closed.

    Blocks are ABSENT segments; rows are asked for by IDS (and KEYS) by value.
    """

    job: int
    range: int
    epoch: int
    token: int
    request: int
    worker: int
    gen: int
    after: int
    closed: int
    segments: tuple[Segment, ...]
    payload: tuple[Buffer, ...] = ()


class PullAt(NamedTuple):
    """Read blocks of the snapshot that the range keeps of the clock `at` (`snapshot_every`; the newest two are kept).

    Answered by Values, or refused: AGAIN while `at` is not closed, RANGE when it is no longer, or never was, kept.
    """

    job: int
    range: int
    epoch: int
    token: int
    request: int
    at: int
    segments: tuple[Segment, ...]


class Scan(NamedTuple):
    """Read the rows of one bucket from number `cursor` on, of the snapshot `at` or (0) as they are.  Answered by Scanned."""

    job: int
    range: int
    epoch: int
    token: int
    request: int
    at: int
    cursor: int
    table: int
    bucket: int


class Scanned(NamedTuple):
    """Rows as IDS, KEYS, ROWS; ask on with `cursor` = `next` unless that is 0.  A row keeps its place: none comes twice."""

    job: int
    range: int
    epoch: int
    token: int
    request: int
    version: int
    next: int
    closed: int
    segments: tuple[Segment, ...]
    payload: tuple[Buffer, ...]


class Values(NamedTuple):
    """Blocks, and rows in the order in which they were asked for (ROWS segments alone), at log position `version` with
    `closed` clocks closed."""

    job: int
    range: int
    epoch: int
    token: int
    request: int
    version: int
    closed: int
    segments: tuple[Segment, ...]
    payload: tuple[Buffer, ...]


# -- refusals ---------------------------------------------------------------------------------------------------------


class Nack(NamedTuple):
    """Not taken: this node does not lead the range, or the asker's map is old.  Fetch the map, then ask again."""

    job: int
    range: int
    epoch: int
    token: int
    request: int


class Refuse(NamedTuple):
    """Definite: surely not applied, and never will be.  `code` is one of core.errors.Code."""

    job: int
    range: int
    epoch: int
    token: int
    request: int
    worker: int
    gen: int
    seq: int
    code: int
    text: str


Message = Union[
    Push, PushAck, Partial, LastAsk, LastTold, Init, InitAck, Pull, PullAt, Scan, Scanned, Values, Nack, Refuse, Join, Tick, Leave,
    StandingAsk, Standing, StopAsk, NextAsk, NextTold, Twins, ClaimAsk, ClaimTold, InitDone, Close, CloseAck, Roster, RosterAck, Register, Registered, Beat, BeatAck, JobAsk, JobTold,
    AttachAsk, AttachTold, MapAsk, MapTold, JobEnd, NodeExit, Done, Admin, AdminTold, SeatAsk, NotLeader,
    Replicate, Held, Sync, CopyAsk, CopyTold, SaveAsk, WriteAsk, Wrote, SaveEnd, Retire, MoreAsk, MoreTold,
]  # fmt: skip

#: What a range's log holds: whatever changes its numbers, its streams or, in the clock's range, its clock.
ENTRIES = frozenset({Push, Init, Close, Roster, Join, Tick, Leave, StopAsk, NextAsk, ClaimAsk, InitDone, CloseAck, Refuse, SaveAsk})
