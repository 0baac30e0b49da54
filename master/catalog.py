"""What the master stores: nodes, jobs, who leads which range, and the numbers that never go back.

Values only.  A state is never changed: whoever decides makes a new one (`decisions`), and it becomes true when the
state store has it (`ledger`).  Liveness, load and progress are not here: they are rebuilt from beats.

    state    format, term, token, last job number, ring ranges, writer, nodes, jobs
    job      number, spec, state, reason, why it is placed so, seats by range, endpoints, attachments by worker
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgpack

from ..core.errors import PeerError, UsageError, WorldError
from ..core.job import JobSpec
from ..core.jobmap import RUNNING, STATES, Assignment, JobMap

FORMAT = 1


class NodeRecord(NamedTuple):
    """A registered node; its name is `<id>.<incarnation>`."""

    name: str
    role: str  # server | agent
    host: str
    endpoint: str
    pid: int
    build: str


class Seat(NamedTuple):
    """Where one range of a job lies.  `passed` full servers stood before it on the ring when it was placed."""

    epoch: int
    replicas: tuple[str, ...]
    passed: int


class Attachment(NamedTuple):
    """The newest generation of a worker, and the question that it answered (so that a repeat gets the same answer)."""

    gen: int
    agent: str
    request: int


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

    @property
    def running(self) -> bool:
        return self.state == RUNNING

    def servers(self) -> list[str]:
        """Nodes that hold something of the job, by name."""
        return sorted({name for seat in self.seats.values() for name in seat.replicas})

    def agents(self) -> list[str]:
        """Agents that are known to the store to have to do with the job, by name."""
        return sorted({self.asker, *(item.agent for item in self.attached.values())})

    def map(self, token: int, ring_ranges: int) -> JobMap:
        """What servers and agents are told."""
        seats = {number: Assignment(seat.epoch, seat.replicas) for number, seat in self.seats.items()}
        gens = {worker: item.gen for worker, item in self.attached.items()}
        return JobMap(self.number, token, self.spec, self.state, self.reason, ring_ranges, seats, self.endpoints, gens)


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

    def job_named(self, name: str) -> Job | None:
        """The newest job of that name."""
        found = [job for job in self.jobs.values() if job.spec.name == name]
        return max(found, key=lambda job: job.number) if found else None

    def with_job(self, job: Job) -> State:
        """The same state with one job replaced or added, and the token of a changed map."""
        return self._replace(token=self.token + 1, jobs={**self.jobs, job.number: job})


def node_id(name: str) -> str:
    """The id within a node's name.

    >>> node_id("s0.9f3a01c2")
    's0'
    """
    return name.partition(".")[0]


def fresh(writer: str, ring_ranges: int) -> State:
    """The state of a cluster that has none."""
    return State(1, 0, 0, ring_ranges, writer, {}, {})


def pack(state: State) -> bytes:
    """The bytes for the store; equal states have equal bytes."""
    return msgpack.packb(  # type: ignore[no-any-return]
        {
            "format": FORMAT, "term": state.term, "token": state.token, "last": state.last, "ring_ranges": state.ring_ranges,
            "writer": state.writer, "nodes": [list(item) for _, item in sorted(state.nodes.items())],
            "jobs": [_pack_job(job) for _, job in sorted(state.jobs.items())],
        }
    )  # fmt: skip


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
        jobs = [_unpack_job(item, document) for item in document["jobs"]]
        return State(
            document["term"], document["token"], document["last"], document["ring_ranges"], document["writer"],
            {node_id(node.name): node for node in nodes}, {job.number: job for job in jobs},
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError, UsageError, PeerError, msgpack.exceptions.UnpackException) as error:
        raise WorldError(f"the stored state cannot be read ({error}): move the state store away and start again") from error


def _pack_job(job: Job) -> list[Any]:
    """Node names are long and ranges many: seats name their nodes by position in one list."""
    names = job.servers()
    position = {name: at for at, name in enumerate(names)}
    seats = [[n, seat.epoch, seat.passed, *(position[name] for name in seat.replicas)] for n, seat in sorted(job.seats.items())]
    agents = sorted({item.agent for item in job.attached.values()})
    place = {name: at for at, name in enumerate(agents)}
    attached = [[worker, item.gen, place[item.agent], item.request] for worker, item in sorted(job.attached.items())]
    endpoints = sorted(job.endpoints.items())
    return [
        job.number, job.spec.to_document(), job.state, job.reason, job.why, job.asker, names, seats, endpoints, agents, attached,
    ]  # fmt: skip


def _unpack_job(item: Any, document: Any) -> Job:
    number, spec, state, reason, why, asker, names, seats, endpoints, agents, attached = item
    if state not in STATES:
        raise ValueError(f"job {number} is {state!r}")
    job = Job(
        number, JobSpec.from_document(spec), state, reason, why, asker,
        {n: Seat(epoch, tuple(names[at] for at in replicas), passed) for n, epoch, passed, *replicas in seats},
        dict(endpoints), {worker: Attachment(gen, agents[at], request) for worker, gen, at, request in attached},
    )  # fmt: skip
    # The map checks every number and name of it: what nodes would refuse is refused here, at the start.
    JobMap.from_document(job.map(document["token"], document["ring_ranges"]).to_document())
    return job
