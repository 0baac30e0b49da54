"""What people ask and order: which verbs there are, what each answers, and what an order changes.

Questions read, orders give a next state; the words for both stand in `admin`.  An order may be repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..core.effects import Log, Send
from ..core.errors import Code, RequestError
from ..core.jobmap import STOPPED
from ..core.limits import Limits
from ..core.ring import plural
from ..core.spread import spread
from ..wire import messages as m
from . import admin, decisions, words
from .catalog import Job, Move, NodeRecord, State, is_drained, node_id
from .decisions import Outcome
from .membership import ALIVE, Membership
from .placement import ring_of, weights_of

QUESTIONS = ("status", "jobs", "job")
ORDERS = ("stop", "rm", "drain", "gone", "scale")
GONE_WHY = "said to be gone by `plugml drain --gone`"


class View(NamedTuple):
    """What a master sees beside the stored state."""

    members: Membership
    cluster: str
    master: str
    trouble: str  # of the store
    stranded: str  # why nobody is declared dead, "" = there is no reason
    now_us: int
    limits: Limits

    def takers(self, state: State) -> list[NodeRecord]:
        """Servers that may be given copies."""
        return [record for record in self.members.servers() if not is_drained(record.name, state.drained)]


def is_question(ask: m.Admin) -> bool:
    """Nothing is changed by it: also a look at how far a drain or a `scale` is."""
    return ask.verb in QUESTIONS or ask.verb in ("drain", "scale") and bool(ask.arguments.get("look", False))


def question(state: State, view: View, ask: m.Admin) -> dict[str, Any]:
    """The answer to a question.  Raises `RequestError` for what cannot be asked."""
    after = ask.arguments.get("after", 0)
    if type(after) is not int or after < 0:
        raise RequestError(Code.RANGE, "`after` is the number that the page before gave as `next`")
    if ask.verb == "status":
        said = words.alarms(state, view.takers(state), [*filter(None, [view.stranded]), *view.members.offline()], view.trouble)
        return admin.status(state, view.members, (view.cluster, view.master, view.trouble), said, after, view.now_us)
    if ask.verb == "jobs":
        return admin.jobs(state, after)
    if ask.verb != "job":
        return report(state, view, ask, 0, "")[1]
    return admin.job(state, job_of(state, ask.arguments.get("job")), after)


def check(state: State, view: View, ask: m.Admin) -> tuple[int, str]:
    """Number and name of the job, or the node, that an order is about.  Raises `RequestError` for what cannot be carried out."""
    if ask.verb not in ORDERS:
        known = ", ".join(QUESTIONS + ORDERS)
        raise RequestError(Code.RANGE, f"unknown verb {ask.verb[:40]!r}; known are {known}")
    if ask.verb in ("stop", "rm"):
        job = job_of(state, ask.arguments.get("job"))
        if ask.verb == "rm" and job.running:
            name = job.spec.name
            raise RequestError(Code.AGAIN, f"job {name!r} is running: stop it first with `plugml stop {name}`")
        return job.number, job.spec.name
    if ask.verb == "drain":
        key = _server_id(state, ask.arguments.get("server"))
        if not _cancels(ask) and not [record for record in view.takers(state) if node_id(record.name) != key]:
            raise RequestError(Code.NOSERVER, f"no other server could take what {key} holds: start one first")
    if ask.verb == "gone":
        key = _server_id(state, ask.arguments.get("server"))
        life = view.members.lives.get(key)
        if life is not None and life.state == ALIVE:
            raise RequestError(Code.AGAIN, f"server {key} is alive: drain it, or end its process ({life.record.pid} on {life.record.host})")
        return 0, state.nodes[key].name if key in state.nodes else ""
    return 0, ""


def carry_out(state: State, view: View, ask: m.Admin, number: int, name: str) -> Outcome:
    """The next state; `number` and `name` are those that `check` gave when the order came."""
    if ask.verb == "stop":
        return decisions.end(state, number, STOPPED, "stopped by `plugml stop`")
    if ask.verb == "rm":
        return decisions.remove(state, number) if number in state.jobs else Outcome(state)
    if ask.verb == "drain":
        return drain(state, _server_id(state, ask.arguments.get("server")), _cancels(ask))
    if ask.verb == "gone":
        return decisions.lose(state, name, GONE_WHY) if name else Outcome(state)
    return scale(state, view.takers(state), _cancels(ask), view.limits)


def report(state: State, view: View, ask: m.Admin, number: int, name: str) -> tuple[str, dict[str, Any]]:
    """What came of an order, as a sentence and as a document."""
    if ask.verb == "drain":
        key = node_id(str(ask.arguments.get("server")))  # it was found before; one that has ended is known to nobody when its drain is cancelled
        document = words.drain_document(state, key, view.takers(state))
        return document["text"], document
    if ask.verb == "scale":
        document = words.scale_document(state)
        return document["text"], document
    if ask.verb == "gone":
        return f"{name or 'it'} counts as dead", {"node": name, "state": "dead"}
    state_now = state.jobs[number].state if number in state.jobs else "removed"
    return f"job {name!r} is {state_now}", {"job": number, "name": name, "state": state_now}


# -- orders


def retire(state: State, name: str, request: int, is_heard: Callable[[str], bool]) -> Outcome:
    """This process is about to end: what others have too is theirs at once, the rest is given away like that of a drained one."""
    record = state.nodes.get(node_id(name))
    if record is None or record.name != name:
        return Outcome(state)  # its registration may be on the way
    known = name in state.drained
    after = decisions.set_aside(state if known else state._replace(drained=(*state.drained, name)), name, is_heard)
    after = after._replace(effects=() if known else (Log("retire", {"server": name}),))
    held = sum(name in seat.names() for job in after.state.jobs.values() if job.running for seat in job.seats.values())
    told = m.Done(request, Code.AGAIN, f"{plural(held, 'range')} left") if held else m.Done(request, Code.OK, "")
    return after._replace(effects=(*after.effects, Send(name, told)))


def drain(state: State, key: str, cancel: bool) -> Outcome:
    """The server gets nothing more and gives away what it has; or it takes part again."""
    if (key in state.drained) != cancel:
        return Outcome(state)
    drained = tuple(word for word in state.drained if word != key) if cancel else (*state.drained, key)
    return Outcome(state._replace(drained=drained), (Log("drain", {"server": key, "cancel": cancel}),))


def scale(state: State, servers: list[NodeRecord], cancel: bool, limits: Limits) -> Outcome:
    """Each running job is to lie as the ring has it on these servers: the moves that lead there, instead of earlier ones."""
    names = {node_id(record.name): record.name for record in servers}
    ring = ring_of(servers, state.ring_ranges, limits) if servers else None
    count = 0
    for job in [job for job in state.jobs.values() if job.running]:
        moves: dict[int, tuple[Move, ...]] = {}
        if ring is not None and not cancel:
            places = {n: [node_id(name) for name in seat.replicas if names.get(node_id(name)) == name] for n, seat in job.seats.items()}
            for move in spread(ring, weights_of(job.spec, state.ring_ranges), places).moves:
                moves[move.range] = (*moves.get(move.range, ()), Move(names[move.source], names[move.target]))
                count += 1
        if moves != job.moves:
            state = state._replace(jobs={**state.jobs, job.number: job._replace(moves=moves)})
    return Outcome(state, (Log("scale", {"servers": len(servers), "moves": count, "cancel": cancel}),))


# -- words that name something


def job_of(state: State, word: object) -> Job:
    """A job by its name (the newest of that name) or its number.  Raises `RequestError`."""
    found = None
    if isinstance(word, str):
        found = state.job_named(word)
        if found is None and word.isdecimal() and len(word) <= 10:
            found = state.jobs.get(int(word))
    elif type(word) is int:
        found = state.jobs.get(word)
    if found is None:
        names = ", ".join(sorted({item.spec.name for item in state.jobs.values()})[:20]) or "none at all"
        raise RequestError(Code.RANGE, f"there is no job {str(word)[:64]!r}; known are {names}")
    return found


def _server_id(state: State, word: object) -> str:
    """A server's id, of its id or its name.  Raises `RequestError`."""
    key = node_id(word) if isinstance(word, str) else ""
    record = state.nodes.get(key)
    known = sorted(name for name, item in state.nodes.items() if item.role == "server")
    if key in state.drained or record is not None and record.role == "server" and word in (key, record.name):
        return key
    raise RequestError(Code.RANGE, f"there is no server {str(word)[:64]!r}; known are {', '.join(known[:20]) or 'none at all'}")


def _cancels(ask: m.Admin) -> bool:
    return bool(ask.arguments.get("cancel", False))
