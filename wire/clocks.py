"""Messages between agents, the keeper of a job's clock, and its ranges: who has finished what, closes, first values, input.

See `messages`, where they are by name too.
"""

from __future__ import annotations

from typing import NamedTuple

NOBODY = 0xFFFFFFFF  # a worker number that no worker has
NO_PIECE = 0xFFFFFFFF  # a piece of input that there is not
SAME_PIECE = 0  # the request of a NextAsk that wants what was told last: the program has not seen it


class Join(NamedTuple):
    """The stream exists: lower gens of the worker are fenced from here on.  Answered by Standing."""

    job: int
    epoch: int
    token: int
    worker: int
    gen: int


class Tick(NamedTuple):
    """The worker has finished clock `clock` and every push of it is acked.  Answered by Standing.

    `weights` lists (table, sum of the weights of this clock's pushes to it); `crc` samples their bytes, 0 = nothing to
    compare.  A tick with a `seq` rides behind the
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
    crc: int = 0


class Leave(NamedTuple):
    """The worker takes no part in clock `clock` and later ones.  `reason`: bye | finished | lost; a lost worker's piece comes back."""

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
    saves: tuple[int, int, int, int] = (0, 0, 0, 0)  # checkpoints: number begun last, settled last, kept last and the clock of that
    problem: str = ""  # why the one that was settled last came to nothing


class SaveAsk(NamedTuple):
    """Make a checkpoint as soon as it can be, unless one has begun since number `after`.  Answered by Standing, for nobody.

    `held`: the keeper's own word, which no agent has: all members are held at this clock (SSP), the cut is now.
    """

    job: int
    epoch: int
    token: int
    after: int
    held: int = 0


class StopAsk(NamedTuple):
    """A stop rule has fired: let all workers end at one clock that none has finished yet.  Answered by Standing, for nobody.

    The first one decides; `stop_clock` never changes again.
    """

    job: int
    epoch: int
    token: int
    reason: str


class NextAsk(NamedTuple):
    """The worker wants its next piece of input; the one before it is done.  `request` is the channel's seq: a repeat.

    SAME_PIECE: it has not seen the one before, and wants that.
    """

    job: int
    epoch: int
    token: int
    worker: int
    gen: int
    request: int


class NextTold(NamedTuple):
    """Piece number `piece` in pass `turn` (from 0), or NO_PIECE: nothing is left to hand out."""

    job: int
    epoch: int
    token: int
    worker: int
    gen: int
    request: int
    piece: int
    turn: int


class Twins(NamedTuple):
    """Workers `worker` and `other` have pushed the same bytes in `clocks` clocks in a row: same shard, same seed?

    Told to the agents of both, and again when the number has doubled.
    """

    job: int
    epoch: int
    token: int
    worker: int
    other: int
    clocks: int


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
    `save` is the number of the checkpoint whose cut lies right behind this close, 0 = none.
    """

    job: int
    epoch: int
    token: int
    clock: int
    members: tuple[tuple[int, int], ...]
    totals: tuple[tuple[int, float], ...]
    save: int = 0


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


class WriteAsk(NamedTuple):
    """The keeper of the clock to a server: write your ranges' files of checkpoint `number`.  Answered by Wrote, for each range.

    `kept` is the newest one that is kept: what has not changed since need not be written.  `fuzzy`: the cut is now.
    """

    job: int
    epoch: int
    token: int
    number: int
    kept: int
    fuzzy: bool


class Wrote(NamedTuple):
    """What became of a range's file: bytes, crc32 and the numbers of the checkpoints that it refers to; or the `problem`.

    `nbytes` 0 without a problem: the cut is made, and the file is still being written.
    """

    job: int
    range: int
    epoch: int
    token: int
    number: int
    nbytes: int
    crc: int
    refers: tuple[int, ...]
    problem: str
