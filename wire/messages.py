"""One NamedTuple per message.  What each promises stands beside it; how it lies in bytes stands in `codec`.

Fields named `job range epoch worker gen token request` mean the same everywhere:

    job      number that the master gave to the job (a new run of an old name has a new number)
    range    key range of the ring; the range that holds `keys.clock_key` also keeps the job's clock
    epoch    fence of that range's assignment, as the sender knows it
    token    map version that the sender has seen; who is behind it asks the master before it answers
    worker   the stream is (worker, gen): one incarnation of one worker's channel
    request  the asker's own number, repeated in the answer

What everybody and the master say to each other stands in `control`, and is here by name.  Answers go to whoever asked,
by name.  Every message may be lost, doubled, delayed and reordered: each is harmless when it comes again.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Union

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
from .control import NodeExit as NodeExit
from .control import Register as Register
from .control import Registered as Registered

Buffer = Any  # memoryview, ndarray or a received frame: anything with the buffer protocol, passed by reference

NOBODY = 0xFFFFFFFF  # a worker number that no worker has
BLOCK, ROWS = 0, 1  # kinds of segment
BY_VALUE, ABSENT, BY_REFERENCE = 0, 1, 2  # how a segment's numbers travel


class Component(NamedTuple):
    """One worker's part of a push (today a push has one; sums of a host will list several).

    `prev` is the seq of this stream's previous push *to the same range*: a sparse push touches few ranges.
    """

    worker: int
    gen: int
    seq: int
    prev: int
    clock: int
    weight: float


class Segment(NamedTuple):
    """A piece of one table: `elements` numbers of block `block`.  Payload frame i belongs to the i-th segment by value."""

    table: int
    block: int
    elements: int
    dtype: int  # table.DTYPE_CODES
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
    """Every push of the stream to this range up to `seq` is held by all copies."""

    job: int
    range: int
    epoch: int
    token: int
    worker: int
    gen: int
    seq: int


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
    """Read blocks.  Answered when the stream's own push `after` is visible and `closed` clocks are closed."""

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


class Values(NamedTuple):
    """The blocks as they stand at log position `version` with `closed` clocks closed."""

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


# -- the job's clock --------------------------------------------------------------------------------------------------


class Join(NamedTuple):
    """The stream exists: lower gens of the worker are fenced from here on.  Answered by Standing."""

    job: int
    epoch: int
    token: int
    worker: int
    gen: int


class Tick(NamedTuple):
    """The worker has finished clock `clock` and every push of it is acked.  Answered by Standing.

    `weights` lists (table, sum of the weights of this clock's pushes to it).  A tick with a `seq` rides behind the
    unacked push of that number: it counts iff each of `ranges` lies on this very node and holds that push already;
    else it is dropped without a word, and the tick comes again once the acks are there.
    """

    job: int
    epoch: int
    token: int
    worker: int
    gen: int
    clock: int
    weights: tuple[tuple[int, float], ...]
    seq: int = 0
    ranges: tuple[int, ...] = ()


class Leave(NamedTuple):
    """The worker takes no part in clock `clock` and later ones (`bye`, or the launcher's word for a dead one)."""

    job: int
    epoch: int
    token: int
    worker: int
    gen: int
    clock: int
    reason: str


class StandingAsk(NamedTuple):
    """How does the clock stand?  Asked every `poll_us` while somebody waits, in case a notice was lost.

    Asked for worker NOBODY it is answered by a notice to the asker alone.
    """

    job: int
    epoch: int
    token: int
    worker: int
    gen: int


class Standing(NamedTuple):
    """The job's clock, as an answer to one worker or (worker NOBODY) as a notice to every agent that has joined.

    `finished` counts the clocks that `worker` has finished; `slowest` that of the slowest member; `closed` the closed
    ones (BSP).  `waiting` names the members that hold the clock back (at most 16).  `initialised` is the claim whose
    first values are complete, 0 = none yet.  `gen` is the worker's newest generation: a lower one is fenced.
    """

    job: int
    epoch: int
    token: int
    worker: int
    gen: int
    finished: int
    slowest: int
    closed: int
    members: int
    initialised: int
    stop_clock: int  # -1 = no stop rule has fired
    waiting: tuple[int, ...]
    end: int = -1  # first clock that `worker` takes no part in; -1 = it is a member: how it knows that its Leave was heard


class ClaimAsk(NamedTuple):
    """May this stream give the first values?  Answered by ClaimTold; the claim falls when the stream leaves."""

    job: int
    epoch: int
    token: int
    worker: int
    gen: int


class ClaimTold(NamedTuple):
    """`claim` > 0: offer your values under this number.  0: somebody else's are, or will be, the first ones."""

    job: int
    epoch: int
    token: int
    worker: int
    gen: int
    claim: int


class InitDone(NamedTuple):
    """Every range has acked the values of `claim`.  Answered by Standing."""

    job: int
    epoch: int
    token: int
    worker: int
    gen: int
    claim: int


class Close(NamedTuple):
    """Clock `clock` is closed: sum the staged pushes of `members` [(worker, gen)] and step once.

    `totals` lists (table, sum of weights over the members).  Resent until every range acked it; applied in order.
    """

    job: int
    epoch: int
    token: int
    clock: int
    members: tuple[tuple[int, int], ...]
    totals: tuple[tuple[int, float], ...]


class CloseAck(NamedTuple):
    """These ranges have closed every clock below `closed`."""

    job: int
    epoch: int
    token: int
    closed: int
    ranges: tuple[int, ...]


class Roster(NamedTuple):
    """Who takes part in which clocks: members (worker, gen, first clock, end clock or -1).  Resent until acked."""

    job: int
    epoch: int
    token: int
    number: int
    members: tuple[tuple[int, int, int, int], ...]


class RosterAck(NamedTuple):
    job: int
    epoch: int
    token: int
    number: int
    ranges: tuple[int, ...]


Message = Union[
    Push, PushAck, LastAsk, LastTold, Init, InitAck, Pull, Values, Nack, Refuse, Join, Tick, Leave, StandingAsk, Standing,
    ClaimAsk, ClaimTold, InitDone, Close, CloseAck, Roster, RosterAck, Register, Registered, Beat, BeatAck, JobAsk, JobTold,
    AttachAsk, AttachTold, MapAsk, MapTold, JobEnd, NodeExit, Done, Admin, AdminTold,
]  # fmt: skip
