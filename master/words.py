"""What is said of copies: why a range is where it is, what is missing and what is done about it, how a drain goes on.

Sentences for people and the numbers in them; reads, never changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from ..core.ring import plural
from . import saves
from .catalog import DRAINED, LEVELLED, PROMOTED, SPREAD, Job, NodeRecord, Seat, State, is_drained, node_id
from .seats import held_alone, leaving

ALARMS_MAX = 32
NAMES_MAX = 4  # servers named in one sentence

_CAUSES = {
    PROMOTED: "took over from a server that is gone",
    DRAINED: "took over from a server that was drained",
    SPREAD: "moved here by `plugml scale`",
    LEVELLED: "leads it so that no server leads more than its share",
}


# -- a range


def seat_reason(job: Job, number: int, drained: Iterable[str]) -> str:
    """Why a range is where it is, and what is still to come."""
    seat = job.seats[number]
    if not seat.replicas:
        return "its only copy is lost" if job.spec.copies == 1 else "every copy of it is lost"
    text = _CAUSES.get(seat.cause, "")
    if not text and seat.passed:
        text = f"balanced: {plural(seat.passed, 'server')} before it on the ring had a full share"
    text = text or "the first server clockwise on the ring"
    gone = leaving(seat, job.moves.get(number, ()), tuple(drained))
    missing = job.spec.copies - len(seat.replicas)
    if missing > 0:
        text += f"; {plural(missing, 'copy')} missing"
    if seat.learner:
        text += f"; {node_id(seat.learner)} is being filled"
        if gone:
            text += f" in place of {_names(gone)}"
    elif gone:
        text += f"; {_names(gone)} is to leave"
    return text


# -- a cluster


def alarms(state: State, takers: list[NodeRecord], silence: list[str], trouble: str) -> list[str]:
    """What somebody should know of, as sentences.  `takers` are servers that may be given copies, `silence` is said of those that are not heard."""
    said = list(silence)
    if trouble:
        said.append(f"the state store does not answer ({trouble}): nothing can be decided meanwhile; training goes on")
    for job in state.jobs.values():
        if job.running:
            said += [*saves.alarm(job), *_job_alarms(state, job, takers)]
    for key in state.drained_ids:
        document = drain_document(state, key, takers)
        if document["ranges"]:
            said.append(document["text"])
    return said if len(said) <= ALARMS_MAX else [*said[: ALARMS_MAX - 1], f"... and {len(said) - ALARMS_MAX + 1} more"]


def stranded(silent: list[str], count: int) -> str:
    """Why nobody is declared dead, "" = there is no reason: one silent server is a normal event, most of several are not."""
    if len(silent) < 2 or 2 * len(silent) <= count:
        return ""
    return (
        f"{len(silent)} of {plural(count, 'server')} are silent ({_names(silent)}): nobody is declared dead, for it may be this master "
        "that is cut off; of one that is gone for good, say `plugml drain --gone SERVER`"
    )


def waits_for(state: State, name: str, is_heard: Callable[[str], bool]) -> str:
    """Why a silent server is not given up, "" = there is no reason."""
    alone = {job.spec.name: len(ranges) for job in state.jobs.values() if job.running and (ranges := held_alone(job, name, is_heard))}
    if not alone:
        return ""
    jobs = f"job {next(iter(alone))}" if len(alone) == 1 else plural(len(alone), "job")
    return f"nobody else has {plural(sum(alone.values()), 'range')} of {jobs}, which wait for it a while"


def _job_alarms(state: State, job: Job, takers: list[NodeRecord]) -> list[str]:
    copies, name = job.spec.copies, job.spec.name
    if copies == 1:
        return []
    short: dict[int, list[Seat]] = {}
    for seat in job.seats.values():
        if len(seat.replicas) < copies:
            short.setdefault(len(seat.replicas), []).append(seat)
    said = []
    for held, seats in sorted(short.items()):
        waits = f", and wait because min_insync = {job.spec.min_insync}" if held < job.spec.min_insync else ""
        have = "has" if len(seats) == 1 else "have"
        said.append(f"job {name}: {plural(len(seats), 'range')} {have} {held} of {copies} copies{waits}; {_remedy(seats, takers)}")
    hosts = {record.name: record.host for record in state.nodes.values()}
    crowded = sum(len({hosts.get(node, node) for node in seat.replicas}) < len(seat.replicas) for seat in job.seats.values())
    if crowded and len({record.host for record in takers}) >= copies:
        said.append(f"job {name}: copies of {plural(crowded, 'range')} share a host without need: `plugml scale` parts them")
    return said


def _remedy(seats: list[Seat], takers: list[NodeRecord]) -> str:
    """What is done about ranges with too few copies."""
    filled = Counter(node_id(seat.learner) for seat in seats if seat.learner)
    waiting = len(seats) - filled.total()
    if filled:
        text = f"{plural(filled.total(), 'copy')} on the way to {_names(filled)}"
        return text + (f", {waiting} wait for their turn" if waiting else "")
    free = {record.name for record in takers}
    if all(free <= set(seat.replicas) for seat in seats):
        return f"there is no other server for them ({plural(len(free), 'server')} can take copies): start more"
    return "they wait for their turn"


def drain_document(state: State, key: str, takers: list[NodeRecord]) -> dict[str, Any]:
    """How far the drain of a server is: `ranges` it still has a copy of, of which `copying` are on their way to another."""
    record = state.nodes.get(key)
    name = record.name if record is not None else ""
    left = copying = 0
    stuck = ""
    for job in state.jobs.values():
        if not job.running or name not in job.endpoints:
            continue
        for seat in job.seats.values():
            if name in seat.replicas:
                left += 1
                copying += bool(seat.learner)
                if not seat.learner and all(taker.name in seat.replicas for taker in takers):
                    stuck = stuck or f"job {job.spec.name} keeps {job.spec.copies} copies, and {plural(len(takers), 'server')} can take them"
    if not is_drained(name or key, state.drained):
        how, text = "in use", f"server {key} takes part" if record is not None else f"server {key} is not drained"
    elif left:
        how, text = "draining", f"server {key} is being drained: {plural(left, 'range')} left, {copying} on the way"
        text += f"; {stuck}: start another server" if stuck and not copying else ""
    elif record is None:
        how, text = "drained", f"server {key} is drained and not here"
    else:
        how, text = "drained", f"server {key} is drained: it holds nothing, and may be ended"
    return {"server": key, "node": name, "state": how, "ranges": left, "copying": copying, "text": text}


def scale_document(state: State) -> dict[str, Any]:
    """Copies that `plugml scale` has ordered to move and that have not moved yet."""
    jobs = [job for job in state.jobs.values() if job.running and job.moves]
    count = sum(len(moves) for job in jobs for moves in job.moves.values())
    text = "nothing is to move: every server has its share"
    if count:
        text = f"{plural(count, 'copy')} of {plural(len(jobs), 'job')} are to move"
    return {"moves": count, "jobs": [job.spec.name for job in jobs[:ALARMS_MAX]], "text": text}


def after(state: State, name: str) -> str:
    """What becomes of the ranges of running jobs whose copies a dead server held, "" = it held none; `state` is that before its end."""
    held = [seat for job in state.jobs.values() if job.running for seat in job.seats.values() if name in seat.replicas]
    safe = sum(len(seat.replicas) > 1 for seat in held)
    if not safe:
        return ""  # the jobs that are lost say so themselves
    each = f"its {plural(safe, 'range')} {'is' if safe == 1 else 'are'}" if safe == len(held) else f"{safe} of its {plural(len(held), 'range')} are"
    return f"{each} served by other copies, and what is missing is copied again"


def held_by(state: State) -> dict[str, dict[str, int]]:
    """By node: ranges of running jobs that it leads, backs up and is being filled with."""
    counts: dict[str, Counter[str]] = {}
    for job in state.jobs.values():
        if job.running:
            for seat in job.seats.values():
                for at, name in enumerate(seat.names()):
                    role = "leads" if not at and seat.replicas else "learns" if name == seat.learner else "backs"
                    counts.setdefault(name, Counter())[role] += 1
    return {name: {role: count[role] for role in ("leads", "backs", "learns")} for name, count in counts.items()}


def _names(names: Iterable[str]) -> str:
    """`s1`, `s1 and s2`, `s1, s2 and 3 others`."""
    ids = sorted({node_id(name) for name in names})
    if len(ids) > NAMES_MAX:
        return f"{', '.join(ids[:NAMES_MAX])} and {len(ids) - NAMES_MAX} others"
    return " and ".join(filter(None, (", ".join(ids[:-1]), ids[-1])))
