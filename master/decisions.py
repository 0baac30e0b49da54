"""What changes the stored state: each decision takes a state and a question, and gives the next state with its answer.

Pure functions.  The answers of an outcome may leave only when its state is stored; who waits for that, and who is
alive, is known elsewhere.  A decision that people will ask about carries its reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from ..core.effects import Log, Send
from ..core.errors import Code, RequestError, UsageError, shown
from ..core.job import JobSpec, packed_bytes
from ..core.jobmap import FAILED, FINISHED, LOST, RUNNING, STOPPED
from ..core.limits import KIB, Limits
from ..core.ring import plural
from ..wire import messages as m
from .catalog import Attachment, Job, NodeRecord, State, node_id
from .placement import place, too_many_blocks

REASON_CHARS_MAX = 1_000
GEN_BYTES = 14  # of one worker and its gen in a map, at most
MAP_ROOM_BYTES = 5 * KIB  # in a map's message for the envelope and the reason, whose characters have up to 4 bytes
ENDINGS = (FINISHED, FAILED, STOPPED)
TOKEN_TRUSTED = 1 << 31  # no cluster changes its maps so often


class Outcome(NamedTuple):
    """The next state, what may be sent once it is stored, and the jobs whose map goes out.

    `waits`: nothing can be decided before there are servers.
    """

    state: State
    effects: tuple[Any, ...] = ()
    maps: tuple[int, ...] = ()
    waits: bool = False


class Sight(NamedTuple):
    """What a registration must know beyond the stored state."""

    servers: list[NodeRecord]  # that may be given ranges; none = wait
    gone: Callable[[str], bool]  # is that agent surely dead?
    size: Callable[[State], int]  # bytes of a state in the store


# -- nodes ------------------------------------------------------------------------------------------------------------


def admit(state: State, record: NodeRecord, cluster: str) -> Outcome:
    """The node has its id.  What an older incarnation led is lost with it."""
    key = node_id(record.name)
    before = state.nodes.get(key)
    lost = Outcome(state)
    if before is not None and before.name != record.name:
        lost = lose(state, before.name, f"{record.name} took its place")
    after = lost.state
    if before != record:
        after = after._replace(nodes={**after.nodes, key: record})
    told = Send(record.name, m.Registered(after.term, after.token, cluster, True, ""))
    return Outcome(after, (*lost.effects, told), lost.maps)


def lose(state: State, name: str, why: str) -> Outcome:
    """The node is dead: it has no id any more, and every range that it alone held is lost with its job."""
    nodes = {key: record for key, record in state.nodes.items() if record.name != name}
    after = state._replace(nodes=nodes) if len(nodes) != len(state.nodes) else state
    effects: list[Any] = []
    maps = []
    for job in state.jobs.values():
        if job.state not in (RUNNING, LOST) or name not in job.servers():
            continue
        damaged = _without(job, name, why)
        after = after.with_job(damaged)
        maps.append(job.number)
        effects.append(Log("job", {"job": job.number, "name": job.spec.name, "state": damaged.state, "reason": damaged.reason}))
    return Outcome(after, tuple(effects), tuple(maps))


def _without(job: Job, name: str, why: str) -> Job:
    """The job with one server less.  A range keeps its other copies, the next of them leads, under a new epoch."""
    seats = {}
    gone = 0
    for number, seat in job.seats.items():
        if name not in seat.replicas:
            seats[number] = seat
            continue
        left = tuple(replica for replica in seat.replicas if replica != name)
        gone += not left
        seats[number] = seat.next(replicas=left)
    endpoints = {node: endpoint for node, endpoint in job.endpoints.items() if node != name}
    if not gone:
        return job._replace(seats=seats, endpoints=endpoints)
    reason = f"server {node_id(name)} held the only copy of {plural(gone, 'range')} ({why})"
    if job.reason:
        reason = f"{job.reason}; {reason}"
    return job._replace(seats=seats, endpoints=endpoints, state=LOST, reason=_short(reason))


def catch_up(state: State, token: int) -> Outcome:
    """A node has seen a newer map version than the store ever had: the store was lost or replaced.

    Every registration of a job raised the token, so that job numbers above it were never used either.
    """
    if not state.token < token < TOKEN_TRUSTED:
        return Outcome(state)
    log = Log("store_behind", {"stored": state.token, "seen": token, "text": "the state store was lost or replaced; going on above"})
    return Outcome(state._replace(token=token, last=max(state.last, token)), (log,))


# -- jobs -------------------------------------------------------------------------------------------------------------


def register(state: State, sender: str, ask: m.JobAsk, sight: Sight, limits: Limits) -> Outcome:
    """A job's number: a new one, or that of the same job while it runs."""
    try:
        return _register(state, sender, ask, sight, limits)
    except RequestError as refused:
        return Outcome(state, (Send(sender, m.JobTold(ask.request, refused.code, refused.text, 0)),))


def _register(state: State, sender: str, ask: m.JobAsk, sight: Sight, limits: Limits) -> Outcome:
    try:
        spec = JobSpec.from_document(ask.document)
    except UsageError as error:
        raise RequestError(Code.FORMAT, str(error)) from error

    before = Outcome(state)
    named = state.job_named(spec.name)
    if named is not None and named.running:
        if _with_blocks_of(spec, named.spec) == named.spec:
            return Outcome(state, (Send(sender, m.JobTold(ask.request, Code.OK, named.why, named.number)),))
        if not all(sight.gone(agent) for agent in named.agents()):
            raise RequestError(Code.COLLIDE, _collision(spec, named.spec))
        before = end(state, named.number, STOPPED, "its agent is gone, and its name was used again")
    newest = named.number if named is not None else 0
    if ask.after != newest:
        text = f"the newest run of {spec.name!r} is job {newest}, not {ask.after}"
        return Outcome(state, (Send(sender, m.JobTold(ask.request, Code.AGAIN, text, newest)),))
    if not sight.servers:
        return Outcome(state, waits=True)

    job = _placed(before.state, spec, sender, sight.servers, limits)
    after = prune(before.state._replace(last=job.number).with_job(job), sight.size, limits)
    if sight.size(after) > limits.state_bytes_max:
        raise RequestError(Code.NOSPC, "the master's state is full: stop jobs with `plugml stop JOB`, or use fewer tables")
    log = Log("job", {"job": job.number, "name": spec.name, "state": RUNNING, "workers": spec.workers, "placement": job.why})
    told = Send(sender, m.JobTold(ask.request, Code.OK, job.why, job.number))
    return Outcome(after, (*before.effects, log, told), (*before.maps, job.number))


def _placed(state: State, spec: JobSpec, sender: str, servers: list[NodeRecord], limits: Limits) -> Job:
    """The new job with its blocks and seats.  Raises `RequestError` for one that no cluster could carry."""
    if sum(job.running for job in state.jobs.values()) >= limits.jobs_max:
        raise RequestError(Code.NOSPC, f"{limits.jobs_max} jobs are running: stop some with `plugml stop JOB`")
    spec = spec.with_blocks(len(servers), limits)
    trouble = too_many_blocks(spec, state.ring_ranges, limits)
    if trouble:
        raise RequestError(Code.RANGE, f"job {spec.name!r}: {trouble}")

    seats, why = place(spec, servers, state.ring_ranges, limits)
    used = {name for seat in seats.values() for name in seat.replicas}
    endpoints = {server.name: server.endpoint for server in servers if server.name in used}
    job = Job(state.last + 1, spec, RUNNING, "", why, sender, seats, endpoints, {})
    nbytes = packed_bytes(job.map(state.token, state.ring_ranges).to_document(), depth=32)
    nbytes += spec.workers * GEN_BYTES + MAP_ROOM_BYTES
    if nbytes > limits.control_bytes_max:
        text = f"its map would have {nbytes} bytes, at most {limits.control_bytes_max}: use fewer tables, workers or settings"
        raise RequestError(Code.NOSPC, f"job {spec.name!r}: {text}")
    return job


def _with_blocks_of(asked: JobSpec, running: JobSpec) -> JobSpec:
    """The asked job with the blocks and buckets that the master chose where the asker left the choice."""
    if len(asked.tables) != len(running.tables):
        return asked
    tables = []
    for mine, theirs in zip(asked.tables, running.tables):
        if mine.kind == theirs.kind == "sparse":
            mine = mine if mine.buckets else mine.with_buckets(theirs.buckets)
        elif mine.kind == theirs.kind:
            mine = mine if mine.block_bytes else mine.with_block_bytes(theirs.block_bytes)
        tables.append(mine)
    return replace(asked, tables=tuple(tables))


def _collision(asked: JobSpec, running: JobSpec) -> str:
    """What differs between a job and the running one of its name."""
    mine, theirs = _with_blocks_of(asked, running).to_document(), running.to_document()
    key = next((key for key in mine if mine[key] != theirs[key]), "")
    what = f"{key} = {shown(theirs[key])}, here {shown(mine[key])}"
    if key == "tables":
        what = "other tables"
        same_count = len(mine[key]) == len(theirs[key])
        for old, new in zip(theirs[key], mine[key]) if same_count else ():
            field = next((field for field in old if old[field] != new[field]), "")
            if field:
                what = f"table {old['name']}: {field} = {shown(old[field])}, here {shown(new[field])}"
                break
    name = asked.name
    if key == "settings":  # what launchers note, and a random number: all else is the same
        by = f", started by {shown(running.settings['command'])}" if running.settings.get("command") else ""
        return f"a job {name!r} is running already{by}; choose another --name, or stop that one with `plugml stop {name}`"
    return f"a job {name!r} is running with {what}; choose another --name, or stop that one with `plugml stop {name}`"


def attach(state: State, sender: str, ask: m.AttachAsk) -> Outcome:
    """A new generation of a worker; the same one for a repeat of the same question.

    The numbers of one sender's questions rise: a lower one than the last is late, and its answer was given long ago.
    """

    def told(after: State, code: Code, text: str, gen: int) -> Outcome:
        return Outcome(after, (Send(sender, m.AttachTold(ask.request, code, text, ask.job, ask.worker, gen)),))

    job = state.jobs.get(ask.job)
    if job is None:
        return told(state, Code.RANGE, f"there is no job {ask.job}: it was removed, or never registered", 0)
    if not job.running:
        code = Code.NOSERVER if job.state == LOST else Code.STOP
        return told(state, code, f"job {job.spec.name!r} is {job.state}" + (f": {job.reason}" if job.reason else ""), 0)
    if ask.worker >= job.spec.workers:
        return told(state, Code.RANGE, f"worker {ask.worker}: job {job.spec.name!r} has workers 0 to {job.spec.workers - 1}", 0)

    last = job.attached.get(ask.worker)
    if last is not None and last.agent == sender and ask.request <= last.request:
        return told(state, Code.OK, "", last.gen) if ask.request == last.request else Outcome(state)
    newest = last.gen if last is not None else 0
    if ask.after != newest:
        return told(state, Code.AGAIN, f"worker {ask.worker} is at generation {newest}, not {ask.after}", newest)
    gen = newest + 1
    attached = {**job.attached, ask.worker: Attachment(gen, sender, ask.request)}
    # Generations travel with the next map: nobody decides by them, so the token stays and no node is disturbed.
    return told(state._replace(jobs={**state.jobs, job.number: job._replace(attached=attached)}), Code.OK, "", gen)


def end(state: State, number: int, ending: str, reason: str) -> Outcome:
    """The job has ended.  The first ending stays: later words about it change nothing."""
    job = state.jobs.get(number)
    if job is None or not job.running:
        return Outcome(state)
    ended = job._replace(state=ending, reason=_short(reason))
    log = Log("job", {"job": number, "name": job.spec.name, "state": ending, "reason": ended.reason})
    return Outcome(state.with_job(ended), (log,), (number,))


def remove(state: State, number: int) -> Outcome:
    """Forget an ended job."""
    return Outcome(state.without_jobs([number]), (Log("job_removed", {"job": number, "name": state.jobs[number].spec.name}),))


def prune(state: State, size: Callable[[State], int], limits: Limits) -> State:
    """Forget the oldest ended jobs: at most `jobs_kept` of them stay, and fewer where the state grows too large."""
    ended = [number for number, job in sorted(state.jobs.items()) if not job.running]
    surplus = ended[: max(0, len(ended) - limits.jobs_kept)]
    while True:
        state = state.without_jobs(surplus) if surplus else state
        ended = [number for number in ended if number not in surplus]
        if not ended or size(state) <= limits.state_bytes_max * 3 // 4:
            return state
        surplus = ended[: max(1, len(ended) // 4)]


def _short(text: str) -> str:
    return text if len(text) <= REASON_CHARS_MAX else text[: REASON_CHARS_MAX - 4] + " ..."
