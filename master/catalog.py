"""What the master stores: nodes, jobs, who leads which range, and the numbers that never go back.

Values only.  A state is never changed: whoever decides makes a new one (`decisions`), and it becomes true when the
state store has it (`ledger`).  Liveness, load and progress are not here: they are rebuilt from beats.

    state    format, term, token, last job number, ring ranges, writer, nodes, jobs, names of removed jobs, drained servers
    job      number, spec, state, reason, why it is placed so, seats by range, endpoints, attachments by worker, moves, checkpoint
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any, NamedTuple

import msgpack

from ..core.errors import PeerError, UsageError, WorldError
from ..core.job import JobSpec
from ..core.jobmap import RUNNING, Assignment, JobMap
from ..core.table import TableSpec, check_name

FORMAT = 2
REMOVED_KEPT = 256
#: Why a range is led by the server that leads it: as placed; promoted, since the one before is gone; in place of a server
#: that was drained; moved by `plugml scale`; or so that nobody leads more than its share.
PLACED, PROMOTED, DRAINED, SPREAD, LEVELLED = CAUSES = ("placed", "promoted", "drained", "spread", "levelled")


class NodeRecord(NamedTuple):
    """A registered node; its name is `<id>.<incarnation>`."""

    name: str
    role: str  # server | agent
    host: str
    endpoint: str
    pid: int
    build: str


class Seat(NamedTuple):
    """Where one range of a job lies: `core.jobmap.Assignment`, and why.

    `passed` full servers stood before the leading one on the ring when it was placed; `cause` is one of CAUSES.
    """

    epoch: int
    replicas: tuple[str, ...]
    passed: int = 0
    learner: str = ""
    born: int = 0
    cause: str = PLACED

    def names(self) -> tuple[str, ...]:
        """Everybody who holds something of the range, the learner last."""
        return (*self.replicas, self.learner) if self.learner else self.replicas

    def next(self, **changes: Any) -> Seat:
        """The seat under a new epoch.  A learner that is named now is born in it; another one keeps its birth."""
        after = self._replace(epoch=self.epoch + 1, **changes)
        born = 0 if not after.learner else after.epoch if after.learner != self.learner else after.born
        return after._replace(born=born)


class Move(NamedTuple):
    """A copy that `target` gets in place of `source` (node names), ordered by `plugml scale`."""

    source: str
    target: str


class Attachment(NamedTuple):
    """The newest generation of a worker, and the question that it answered (so that a repeat gets the same answer)."""

    gen: int
    agent: str
    request: int


class Joined(NamedTuple):
    """Workers that joined the running job together: their numbers from `first` on, and what their launcher drew to be known by."""

    first: int
    workers: int
    launcher: str


class Saved(NamedTuple):
    """The newest checkpoint of a job that is kept, and what went wrong since, "" = nothing.  `place` is the directory of them all."""

    number: int = 0
    clock: int = 0
    place: str = ""
    problem: str = ""


class Job(NamedTuple):
    number: int
    spec: JobSpec
    state: str
    reason: str
    why: str
    asker: str  # the agent that registered it
    seats: dict[int, Seat]
    endpoints: dict[str, str]  # of the nodes named in seats
    attached: dict[int, Attachment]
    moves: dict[int, tuple[Move, ...]] = {}  # by range: ordered and not done yet, the next one first; never changed in place
    saved: Saved = Saved()
    joins: tuple[Joined, ...] = ()  # in order of their numbers
    gone: tuple[tuple[int, int], ...] = ()  # (worker, gen) of those among them that were lost with their host

    @property
    def workers(self) -> int:
        """All that have ever had a part: the next one to join has this number."""
        return self.joins[-1].first + self.joins[-1].workers if self.joins else self.spec.workers

    @property
    def running(self) -> bool:
        return self.state == RUNNING

    def servers(self) -> list[str]:
        """Nodes that hold something of the job, by name."""
        return sorted({name for seat in self.seats.values() for name in seat.names()})

    def agents(self) -> list[str]:
        """Agents that are known to the store to have to do with the job, by name."""
        return sorted({self.asker, *(item.agent for item in self.attached.values())})

    def map(self, token: int, ring_ranges: int) -> JobMap:
        """What servers and agents are told."""
        seats = {n: Assignment(seat.epoch, seat.replicas, seat.learner, seat.born) for n, seat in self.seats.items()}
        gens = {worker: item.gen for worker, item in self.attached.items()}
        return JobMap(self.number, token, self.spec, self.state, self.reason, ring_ranges, seats, self.endpoints, gens, self.workers - self.spec.workers, self.gone)


class State(NamedTuple):
    """Everything that must outlive the master.

    `term` rises at each start of a master, `token` with each change of a map, `last` with each job; none ever falls.
    `writer` is the incarnation of the master that stored it.
    """

    term: int
    token: int
    last: int
    ring_ranges: int
    writer: str
    nodes: dict[str, NodeRecord]  # by id
    jobs: dict[int, Job]
    removed: dict[int, str]  # names of the jobs that were forgotten last: nodes may still ask for them
    drained: tuple[str, ...] = ()  # servers that hold nothing, or are being emptied: ids, or names of processes that are to end

    @property
    def drained_ids(self) -> list[str]:
        return sorted({node_id(word) for word in self.drained})

    def job_named(self, name: str) -> Job | None:
        """The newest job of that name."""
        found = [job for job in self.jobs.values() if job.spec.name == name]
        return max(found, key=lambda job: job.number) if found else None

    def with_job(self, job: Job) -> State:
        """The same state with one job replaced or added, and the token of a changed map."""
        return self._replace(token=self.token + 1, jobs={**self.jobs, job.number: job})

    def without_jobs(self, numbers: list[int]) -> State:
        """The same state without some jobs; of the newest their names stay."""
        jobs = {number: job for number, job in self.jobs.items() if number not in numbers}
        names = {**self.removed, **{number: self.jobs[number].spec.name for number in numbers}}
        return self._replace(jobs=jobs, removed=dict(sorted(names.items())[-REMOVED_KEPT:]))


def node_id(name: str) -> str:
    """The id within a node's name.

    >>> node_id("s0.9f3a01c2")
    's0'
    """
    return name.partition(".")[0]


def is_drained(name: str, drained: Container[str]) -> bool:
    """By its id, whatever process has that, or this process alone."""
    return node_id(name) in drained or name in drained


def fresh(writer: str, ring_ranges: int) -> State:
    """The state of a cluster that has none."""
    return State(1, 0, 0, ring_ranges, writer, {}, {}, {})


class Packer:
    """Makes the bytes for the store, where the state is written whole at each change; equal states have equal bytes.

    Remembers those of each job, since one change leaves most jobs as they are.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Job, bytes]] = {}

    def pack(self, state: State) -> bytes:
        known = {}
        for number, job in sorted(state.jobs.items()):
            before = self._known.get(number)
            known[number] = before if before is not None and before[0] is job else (job, msgpack.packb(_pack_job(job)))
        self._known = known
        return msgpack.packb(  # type: ignore[no-any-return]
            {
                "format": FORMAT, "term": state.term, "token": state.token, "last": state.last, "ring_ranges": state.ring_ranges,
                "writer": state.writer, "nodes": [list(item) for _, item in sorted(state.nodes.items())],
                "jobs": [packed for _, packed in known.values()], "removed": sorted(state.removed.items()),
                "drained": list(state.drained),
            }
        )  # fmt: skip

    def size(self, state: State) -> int:
        return len(self.pack(state))


def pack(state: State) -> bytes:
    """`Packer.pack` of one state alone."""
    return Packer().pack(state)


def unpack(value: bytes) -> State:
    """The state in these bytes.  Raises `WorldError` if they are no state that this version can read."""
    try:
        document = msgpack.unpackb(value, use_list=False)
        if document["format"] != FORMAT:
            raise WorldError(
                f"the stored state has format {document['format']} and this plugml reads {FORMAT}: "
                "run the version that wrote it, or stop the cluster and start it with another --state"
            )
        nodes = [NodeRecord(*item) for item in document["nodes"]]
        jobs = [_unpack_job(msgpack.unpackb(item, use_list=False), document) for item in document["jobs"]]
        return State(
            document["term"], document["token"], document["last"], document["ring_ranges"], document["writer"],
            {node_id(node.name): node for node in nodes}, {job.number: job for job in jobs},
            {number: check_name(name, "job name") for number, name in document["removed"]},
            tuple(key.strip() for key in document["drained"]),
        )  # fmt: skip
    except (LookupError, TypeError, ValueError, AttributeError, UsageError, PeerError, msgpack.exceptions.UnpackException) as error:
        raise WorldError(f"the stored state cannot be read ({error}): move the state store away and start again") from error


def _lean(spec: JobSpec) -> dict[str, Any]:
    """The job's document without what a table has by default: most of most tables."""
    tables = []
    for table in spec.tables:
        document = table.to_document()
        tables.append({key: value for key, value in document.items() if key not in _DEFAULTS or value != _DEFAULTS[key]})
    return {**spec.to_document(), "tables": tables}


_DEFAULTS = {key: value for key, value in TableSpec("x", (1,)).to_document().items() if key not in ("name", "shape")}


def _pack_job(job: Job) -> list[Any]:
    """Ranges are many and most of them alike: each names its copies, and what else is said of it, by positions in lists."""
    names = job.servers()
    position = {name: at for at, name in enumerate(names)}
    endpoints = [job.endpoints[name] for name in names]
    agents = sorted({item.agent for item in job.attached.values()})
    place = {name: at for at, name in enumerate(agents)}
    attached = [[worker, item.gen, place[item.agent], item.request] for worker, item in sorted(job.attached.items())]
    moves = [[number, *(tuple(move) for move in items)] for number, items in sorted(job.moves.items())]
    return [
        job.number, _lean(job.spec), job.state, job.reason, job.why, job.asker, names, endpoints,
        _pack_seats(job.seats, position), agents, attached, moves, list(job.saved) if any(job.saved) else [],
        [list(join) for join in job.joins], [list(pair) for pair in job.gone],
    ]  # fmt: skip


def _pack_seats(seats: dict[int, Seat], position: dict[str, int]) -> list[Any]:
    """Columns: gaps between the ranges' numbers, kinds of copies, kinds of the rest, and which of these each range has."""
    numbers = sorted(seats)
    gaps = [number - before for before, number in zip([0, *numbers], numbers)]
    groups: dict[tuple[str, ...], int] = {}
    kinds: dict[tuple[int, int, int], int] = {}
    group_of, kind_of, learners = [], [], []
    for number in numbers:
        seat = seats[number]
        group_of.append(groups.setdefault(seat.replicas, len(groups)))
        kind_of.append(kinds.setdefault((seat.epoch, seat.passed, CAUSES.index(seat.cause)), len(kinds)))
        if seat.learner:
            learners.append([number, position[seat.learner], seat.born])
    held = [[position[name] for name in group] for group in groups]
    return [gaps, held, group_of, [list(kind) for kind in kinds], kind_of if len(kinds) > 1 else [], learners]


def _unpack_seats(packed: Any, names: Any) -> dict[int, Seat]:
    gaps, held, group_of, kinds, kind_of, learners = packed
    groups = [tuple(names[at] for at in group) for group in held]
    filled = {number: (names[at], born) for number, at, born in learners}
    seats, number = {}, 0
    for at, gap in enumerate(gaps):
        number += gap
        epoch, passed, cause = kinds[kind_of[at] if len(kinds) > 1 else 0]
        learner, born = filled.get(number, ("", 0))
        seats[number] = Seat(epoch, groups[group_of[at]], passed, learner, born, CAUSES[cause])
    return seats


def _unpack_job(item: Any, document: Any) -> Job:
    """The job, checked as a map: what nodes would refuse is refused here, at the start."""
    number, spec, state, reason, why, asker, names, endpoints, packed, agents, attached, moves, saved, joins, gone = item
    seats = _unpack_seats(packed, names)
    found = JobMap.from_document(
        {
            "number": number, "token": document["token"], "spec": spec, "state": state, "reason": reason,
            "ring_ranges": document["ring_ranges"], "endpoints": dict(zip(names, endpoints)),
            "ranges": [(n, seat.epoch, seat.replicas, seat.learner, seat.born) for n, seat in seats.items()],
            "gens": [(worker, gen) for worker, gen, _, _ in attached], "joined": sum(workers for _, workers, _ in joins), "gone": gone,
        }
    )  # fmt: skip
    job = Job(
        number, found.spec, state, reason, why, asker, seats, found.endpoints,
        {worker: Attachment(gen, agents[at], request) for worker, gen, at, request in attached},
        {n: tuple(Move(str(source), str(target)) for source, target in items) for n, *items in moves if items},
        Saved(*saved) if saved else Saved(), tuple(Joined(*join) for join in joins), found.gone,
    )  # fmt: skip
    if set(job.servers()) != set(job.endpoints) or not job.moves.keys() <= seats.keys():
        raise ValueError(f"job {number} has servers without endpoints, or moves without ranges")
    return job
