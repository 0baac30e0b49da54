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
from .catalog import Attachment, Job, Joined, NodeRecord, Seat, State, node_id
from .placement import place, too_many_blocks
from .seats import DROP, held_alone, reseated, with_seats, without

REASON_CHARS_MAX = 1_000
GEN_BYTES = 14  # of one worker and its gen in a map, at most: of one that has joined perhaps twice
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
    copies: int = 0  # of jobs that leave it open, 0 = 2 where there are two servers


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
    """The node is dead: it has no id any more, its copies are none, and a job that has a range without any other is lost."""
    nodes = {key: record for key, record in state.nodes.items() if record.name != name}
    after = state._replace(nodes=nodes) if len(nodes) != len(state.nodes) else state
    if name in state.drained:  # this process alone: the next one under its id takes part again
        after = after._replace(drained=tuple(word for word in state.drained if word != name))
    effects: list[Any] = []
    maps = []
    for job in state.jobs.values():
        if job.state not in (RUNNING, LOST) or name not in job.endpoints:
            continue
        damaged, gone = without(job, name)
        if gone:
            damaged = _lost(damaged, name, gone, why)
        after = after.with_job(damaged)
        maps.append(job.number)
        fields = {"job": job.number, "name": job.spec.name, "state": damaged.state, "reason": damaged.reason}
        if not gone:
            fields["text"] = f"server {node_id(name)} is gone ({why}); every range has another copy"
        effects.append(Log("job", fields))
    return Outcome(after, tuple(effects), tuple(maps))


def set_aside(state: State, name: str, is_heard: Callable[[str], bool]) -> Outcome:
    """The node leaves all ranges but those that nobody else has: it is silent, or about to end."""
    after = state
    maps = []
    for job in state.jobs.values():
        if not job.running or name not in job.endpoints:
            continue
        alone = held_alone(job, name, is_heard)
        if any(name in seat.names() and number not in alone for number, seat in job.seats.items()):
            after = after.with_job(without(job, name, alone)[0])
            maps.append(job.number)
    return Outcome(after, (), tuple(maps))


def _lost(job: Job, name: str, gone: int, why: str) -> Job:
    """Nothing holds these ranges any more: this run has ended, and whoever restores the job begins another one (section 9 of internals.md)."""
    which = "only" if job.spec.copies == 1 else "last"
    reason = f"server {node_id(name)} held the {which} copy of {plural(gone, 'range')} ({why})"
    if job.reason:
        reason = f"{job.reason}; {reason}"
    return job._replace(state=LOST, reason=_short(reason), moves={})


def change_seat(state: State, sender: str, ask: m.SeatAsk) -> Outcome:
    """A copy is added or dropped, once: the answer to a repeat is the same, and who knows an old epoch is told the newest map."""

    def told(code: Code, text: str) -> Send:
        return Send(sender, m.Done(ask.request, code, text))

    job = state.jobs.get(ask.job)
    if job is None or not job.running:
        return Outcome(state, (told(Code.OK, f"job {ask.job} has ended"),))
    try:
        after = reseated(job, sender, ask.range, ask.epoch, ask.verb, ask.node, state.drained)
    except RequestError as refused:
        if refused.code == Code.GONE:
            failed = end(state, ask.job, FAILED, f"{refused.text}, and it cannot go on: {ask.reason}")
            return failed._replace(effects=(*failed.effects, told(Code.OK, "the job has failed")))
        if refused.code != Code.AGAIN:
            return Outcome(state, (told(refused.code, refused.text),))
        newest = m.MapTold(ask.job, state.token, job.map(state.token, state.ring_ranges).to_document())
        return Outcome(state, (Send(sender, newest), told(refused.code, refused.text)))
    if after is job:
        return Outcome(state, (told(Code.OK, ""),))
    seat = after.seats[ask.range]
    fields = {"job": ask.job, "range": ask.range, "verb": ask.verb, "node": ask.node, "epoch": seat.epoch, "replicas": list(seat.replicas)}
    log = Log("seat", fields | ({"reason": _short(ask.reason)} if ask.verb == DROP else {}))
    return Outcome(state.with_job(after), (log, told(Code.OK, "")), (ask.job,))


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
        if _with_choices_of(spec, named.spec) == named.spec:
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

    job = _placed(before.state, spec, sender, sight, limits)
    after = prune(before.state._replace(last=job.number).with_job(job), sight.size, limits)
    if sight.size(after) > limits.state_bytes_max:
        raise RequestError(Code.NOSPC, "the master's state is full: stop jobs with `plugml stop JOB`, or use fewer tables")
    log = Log("job", {"job": job.number, "name": spec.name, "state": RUNNING, "workers": spec.workers, "placement": job.why})
    told = Send(sender, m.JobTold(ask.request, Code.OK, job.why, job.number))
    return Outcome(after, (*before.effects, log, told), (*before.maps, job.number))


def _placed(state: State, spec: JobSpec, sender: str, sight: Sight, limits: Limits) -> Job:
    """The new job with its blocks and seats.  Raises `RequestError` for one that no cluster could carry."""
    if sum(job.running for job in state.jobs.values()) >= limits.jobs_max:
        raise RequestError(Code.NOSPC, f"{limits.jobs_max} jobs are running: stop some with `plugml stop JOB`")
    servers = sight.servers
    spec = spec.with_blocks(len(servers), limits).with_copies(len(servers), sight.copies)
    if spec.min_insync > len(servers):
        text = f"min_insync = {spec.min_insync} copies need as many servers, and {plural(len(servers), 'server')} can take some: start more"
        raise RequestError(Code.NOSERVER, f"job {spec.name!r}: {text}")
    trouble = too_many_blocks(spec, state.ring_ranges, limits)
    if trouble:
        raise RequestError(Code.RANGE, f"job {spec.name!r}: {trouble}")

    seats, why = place(spec, servers, state.ring_ranges, limits)
    known = {server.name: server.endpoint for server in servers}
    job = with_seats(Job(state.last + 1, spec, RUNNING, "", why, sender, {}, {}, {}), seats, known)
    nbytes = map_bytes(_at_its_largest(job, known), state.ring_ranges)
    if nbytes > limits.control_bytes_max:
        text = f"its map may come to {nbytes} bytes, at most {limits.control_bytes_max}: use fewer tables, workers or settings"
        raise RequestError(Code.NOSPC, f"job {spec.name!r}: {text}")
    return job


def map_bytes(job: Job, ring_ranges: int) -> int:
    """Bytes of the message with the job's map once all its workers have been attached."""
    document = job._replace(attached={}).map(TOKEN_TRUSTED, ring_ranges).to_document()
    return packed_bytes(document, depth=32) + (2 * job.workers - job.spec.workers) * GEN_BYTES + MAP_ROOM_BYTES


def _at_its_largest(job: Job, known: dict[str, str]) -> Job:
    """The job with as many copies everywhere as there may ever be, and one being filled, on the servers of today with the longest names."""
    names = sorted(known, key=lambda name: (-len(name), name))
    copies = min(job.spec.copies, len(names))
    seat = Seat(TOKEN_TRUSTED, tuple(names[:copies]), 0, (names[copies:] or [""])[0], TOKEN_TRUSTED)
    used = known if len(job.seats) * (copies + 1) >= len(known) else job.endpoints
    return job._replace(seats=dict.fromkeys(job.seats, seat), endpoints=dict(used))


def _with_choices_of(asked: JobSpec, running: JobSpec) -> JobSpec:
    """The asked job with the copies, blocks and buckets that the master chose where the asker left the choice."""
    if not asked.copies and running.copies >= asked.min_insync:
        asked = replace(asked, copies=running.copies)
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
    mine, theirs = _with_choices_of(asked, running).to_document(), running.to_document()
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
        return told(state, *_over(job), 0)
    if ask.worker >= job.workers:
        return told(state, Code.RANGE, f"worker {ask.worker}: job {job.spec.name!r} has workers 0 to {job.workers - 1}", 0)

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


def _over(job: Job) -> tuple[Code, str]:
    """The answer to whoever wants a part in a job that does not run any more."""
    code = Code.NOSERVER if job.state == LOST else Code.STOP
    return code, f"job {job.spec.name!r} is {job.state}" + (f": {job.reason}" if job.reason else "")


def more(state: State, sender: str, ask: m.MoreAsk, size: Callable[[State], int], limits: Limits) -> Outcome:
    """Numbers for workers that join a running job: the next ones, and the same again for the same launcher."""

    def told(after: State, code: Code, text: str, job: int = 0, first: int = 0) -> Send:
        return Send(sender, m.MoreTold(ask.request, code, text, job, first, after.token))

    job = state.job_named(ask.name)
    if job is None:
        return Outcome(state, (told(state, Code.RANGE, f"no job {ask.name!r} runs here: `plugml jobs` lists those that do"),))
    if not job.running:
        return Outcome(state, (told(state, *_over(job)),))
    known = next((join for join in job.joins if join.launcher == ask.launcher), None)
    if known is not None or not ask.workers:
        return Outcome(state, (told(state, Code.OK, "", job.number, known.first if known is not None else job.workers),))

    first = job.workers
    if first + ask.workers > limits.workers_max:
        text = f"job {ask.name!r} has had {plural(first, 'worker')}, and at most {limits.workers_max} may ever have a part in one"
        return Outcome(state, (told(state, Code.RANGE, text),))
    grown = job._replace(joins=(*job.joins, Joined(first, ask.workers, ask.launcher)))
    after = state.with_job(grown)
    nbytes = map_bytes(_at_its_largest(grown, grown.endpoints), state.ring_ranges)
    if nbytes > limits.control_bytes_max or size(after) > limits.state_bytes_max:
        text = f"job {ask.name!r} can take no more workers: its map, or the master's state, would grow too large"
        return Outcome(state, (told(state, Code.NOSPC, text),))
    log = Log("joined", {"job": job.number, "name": ask.name, "first": first, "workers": ask.workers, "agent": sender})
    return Outcome(after, (log, told(after, Code.OK, "", job.number, first)), (job.number,))


def leave_behind(state: State, strays: tuple[tuple[int, int, int], ...]) -> Outcome:
    """Workers that joined, (job, worker, gen) each, are lost with their hosts: the maps say so."""
    after, effects = state, []
    for number in dict.fromkeys(stray[0] for stray in strays):
        job = after.jobs.get(number)
        lost = [] if job is None or not job.running else [(worker, gen) for of, worker, gen in strays if of == number and job.attached[worker].gen == gen]
        if job is not None and lost:
            after = after.with_job(job._replace(gone=tuple(sorted({*job.gone, *lost}))))
            effects.append(Log("left_behind", {"job": number, "workers": [worker for worker, _ in lost], "text": "their agent is gone: the others go on without them"}))
    return Outcome(after, tuple(effects), tuple(effect.fields["job"] for effect in effects))


def end(state: State, number: int, ending: str, reason: str) -> Outcome:
    """The job has ended.  The first ending stays: later words about it change nothing."""
    job = state.jobs.get(number)
    if job is None or not job.running:
        return Outcome(state)
    ended = job._replace(state=ending, reason=_short(reason), moves={})
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
