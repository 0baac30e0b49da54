"""What becomes of the copies of one job: a server is lost, a copy is added or dropped, somebody leaves when others hold all.

Values in, values out; who is alive, and where a new copy should go, is decided elsewhere.  Whatever changes a seat
raises its epoch, so that an epoch stands for one set of copies and one primary.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

from ..core.errors import Code, RequestError
from .catalog import DRAINED, PROMOTED, SPREAD, Job, Move, Seat, is_drained, node_id

ADD, DROP = "add", "drop"


def leaving(seat: Seat, moves: Sequence[Move], drained: Container[str]) -> set[str]:
    """Servers whose copy of the range does not count, because they are to give it up."""
    source = moves[0].source if moves else ""
    return {name for name in seat.replicas if name == source or is_drained(name, drained)}


def settled(seat: Seat, copies: int, gone: Container[str]) -> tuple[str, ...]:
    """Who stays: copies that count, and of those that leave as many as are still needed, in the order in which they are."""
    spare = max(0, copies - sum(name not in gone for name in seat.replicas))
    stay = [name for name in seat.replicas if name in gone][:spare]
    return tuple(name for name in seat.replicas if name not in gone or name in stay)


def held_alone(job: Job, name: str, is_heard: Callable[[str], bool]) -> list[int]:
    """Ranges of which this server has a copy, and nobody else that is heard."""
    return [
        number for number, seat in job.seats.items()
        if name in seat.replicas and not any(is_heard(other) for other in seat.replicas if other != name)
    ]  # fmt: skip


def without(job: Job, name: str, but: Container[int] = ()) -> tuple[Job, int]:
    """The job less a dead server, and how many ranges have no copy left.  Of the others the next copy leads.

    `but`: ranges that it may still have; in those nothing changes.
    """
    seats = dict(job.seats)
    lost = 0
    for number, seat in job.seats.items():
        if name not in seat.names() or number in but:
            continue
        left = tuple(replica for replica in seat.replicas if replica != name)
        lost += not left
        learner = "" if seat.learner == name or not left else seat.learner
        cause = PROMOTED if left and seat.replicas[0] == name else seat.cause
        seats[number] = seat.next(replicas=left, learner=learner, cause=cause)
    moves = {n: tuple(move for move in items if name not in move) for n, items in job.moves.items()}
    return with_seats(job, seats, {}, {n: items for n, items in moves.items() if items}), lost


def with_seats(job: Job, seats: dict[int, Seat], known: Mapping[str, str], moves: dict[int, tuple[Move, ...]] | None = None) -> Job:
    """The job with other seats, the endpoints of exactly those named there (new ones out of `known`), and moves that may still be done."""
    names = {name for seat in seats.values() for name in seat.names()}
    endpoints = {name: job.endpoints.get(name) or known[name] for name in sorted(names)}
    return job._replace(seats=seats, endpoints=endpoints, moves=job.moves if moves is None else moves)


def reseated(job: Job, sender: str, number: int, epoch: int, verb: str, node: str, drained: Container[str]) -> Job:
    """What a primary or a copy asks for, carried out; the same job if that has been done before.

    Raises `RequestError`: AGAIN if the asker does not know the newest epoch, else for what it may not ask.
    """
    seat = job.seats.get(number)
    if seat is None:
        raise RequestError(Code.RANGE, f"job {job.spec.name!r} has no range {number}")
    if verb not in (ADD, DROP):
        raise RequestError(Code.FORMAT, f"a seat is changed by {ADD} or {DROP}, not by {verb[:40]!r}")
    if node in seat.replicas if verb == ADD else node not in seat.names():
        return job
    if epoch != seat.epoch:
        raise RequestError(Code.AGAIN, f"range {number} of job {job.spec.name!r} is in epoch {seat.epoch}, not {epoch}")
    if sender != seat.replicas[0] and not (verb == DROP and sender == node):
        raise RequestError(Code.PERM, f"{sender} does not lead range {number} of job {job.spec.name!r}")
    if verb == ADD and node != seat.learner:
        raise RequestError(Code.RANGE, f"{node} is not the learner of range {number}")
    if verb == ADD:
        return _added(job, number, drained)
    return _dropped(job, number, node)


def _added(job: Job, number: int, drained: Container[str]) -> Job:
    """The learner is in sync: it comes last, and whoever only waited for it leaves in the same epoch."""
    seat = job.seats[number]
    gone = leaving(seat, job.moves.get(number, ()), drained)
    if sum(name not in gone for name in seat.replicas) >= job.spec.copies:  # whom it should have replaced stays after all
        return with_seats(job, {**job.seats, number: seat.next(learner="")}, {})
    whole = seat._replace(replicas=(*seat.replicas, seat.learner), learner="")
    after = released(whole, job.spec.copies, gone, drained)
    return with_seats(job, {**job.seats, number: seat.next(**after)}, {})


def released(seat: Seat, copies: int, gone: Container[str], drained: Container[str]) -> dict[str, Any]:
    """What changes in a seat when whoever is to leave, and may, has left; a primary leaves like anybody: the next copy leads."""
    stay = settled(seat, copies, gone)
    cause = seat.cause
    if stay[0] != seat.replicas[0]:
        cause = DRAINED if is_drained(seat.replicas[0], drained) else SPREAD
    return {"replicas": stay, "learner": seat.learner, "cause": cause}


def _dropped(job: Job, number: int, node: str) -> Job:
    """The copy is none any more.  Raises `RequestError` (GONE) for the only one: then there is nothing to go on with."""
    seat = job.seats[number]
    if node == seat.learner:
        return with_seats(job, {**job.seats, number: seat.next(learner="")}, {})
    left = tuple(name for name in seat.replicas if name != node)
    if not left:
        raise RequestError(Code.GONE, f"server {node_id(node)} holds the only copy of range {number}")
    cause = PROMOTED if seat.replicas[0] == node else seat.cause
    return with_seats(job, {**job.seats, number: seat.next(replicas=left, cause=cause)}, {})
