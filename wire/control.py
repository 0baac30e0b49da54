"""Messages between everybody and the master: who is alive, which jobs there are, who owns what.  See `messages`."""

from __future__ import annotations

from typing import Any, NamedTuple


class Register(NamedTuple):
    """A node says what it is; its name is the sender.  `build` names software that copies must share (numpy, kernels)."""

    role: str  # server | agent
    host: str
    endpoint: str  # where others reach it; empty for an agent
    pid: int
    build: str


class Registered(NamedTuple):
    term: int
    token: int
    cluster: str
    known: bool  # False: another process has this node id, text says which; the newcomer ends
    text: str


class Beat(NamedTuple):
    """Sent from the main loop.  `counters` are progress and load; they live in the master's memory only."""

    token: int
    counters: dict[str, int]


class BeatAck(NamedTuple):
    """`known` False: register again (the master lost or never had this node)."""

    term: int
    token: int
    known: bool


class JobAsk(NamedTuple):
    """Register a job (JobSpec document).  While it runs the same document gives the same number; an unequal one is refused.

    `after` is the newest run of that name that the asker knows to have ended, 0 = none: only that one is followed.  So a
    late question whose run has ended meanwhile begins no other; who knows an older end is told the newest (code AGAIN).
    """

    request: int
    document: dict[str, Any]
    after: int = 0


class JobTold(NamedTuple):
    request: int
    code: int
    text: str
    job: int


class AttachAsk(NamedTuple):
    """A new incarnation of a worker: the master raises its gen in the store before it answers.

    `after` is the gen that the asker knows, 0 = none: only that one is followed.  So a late question of an agent that
    is dead fences nobody; who knows an old gen is told the newest one (code AGAIN) and asks again.
    """

    request: int
    job: int
    worker: int
    after: int


class AttachTold(NamedTuple):
    request: int
    code: int
    text: str
    job: int
    worker: int
    gen: int


class MoreAsk(NamedTuple):
    """More workers for the running job of this name, `workers` of them; 0 = only tell how things stand.

    `launcher` is drawn by who asks for them: asked again with the same one, it is told the same numbers, whoever carries the question.
    """

    request: int
    name: str
    workers: int
    launcher: str


class MoreTold(NamedTuple):
    """The workers are `first`, `first` + 1 ...: numbers that nobody has had.  A map of version `token` knows of them."""

    request: int
    code: int
    text: str
    job: int
    first: int
    token: int


class MapAsk(NamedTuple):
    """Send me the map of a job (JobMap document) whenever you have one of version `token` or later."""

    job: int
    token: int


class MapTold(NamedTuple):
    """The map of one job, also unasked to servers and agents that have to do with it.  See core.jobmap."""

    job: int
    token: int
    document: dict[str, Any]


class JobEnd(NamedTuple):
    """The job has come to its end: finished, failed or stopped, and why."""

    request: int
    job: int
    state: str
    reason: str


class NodeExit(NamedTuple):
    """The host's supervisor saw this node's process end."""

    request: int
    node: str
    status: int


class SeatAsk(NamedTuple):
    """The primary of a range asks for a change of its copies; `epoch` is the one it leads in.  Answered by Done, then a map.

    add    the learner `node` holds everything: count it as in sync (the primary waits for its acks from now on)
    drop   `node` is too slow, or its numbers differ, or it says itself that it cannot go on: take it out; `reason` says why
    """

    request: int
    job: int
    range: int
    epoch: int
    verb: str
    node: str
    reason: str


class Retire(NamedTuple):
    """A server is about to end: others are to have what it holds.  Answered by Done: AGAIN while it is the only one to hold some."""

    request: int


class SaveEnd(NamedTuple):
    """From the keeper of a job's clock: checkpoint `number` of `clock` is whole in `place`; or why it came to nothing.

    Answered by Done: 0 = stored, so that it is kept.
    """

    request: int
    job: int
    number: int
    clock: int
    place: str
    problem: str


class NotLeader(NamedTuple):
    """A master that does not lead: ask `leader` ("" = it knows none), which leads since `term`."""

    term: int
    leader: str


class Done(NamedTuple):
    """Answer to JobEnd, NodeExit, SeatAsk, SaveEnd and Retire; code 0 = carried out.  To a NodeExit `text` says what follows for ranges, "" = nothing."""

    request: int
    code: int
    text: str


class Admin(NamedTuple):
    """A question or an order of the command line: status, jobs, stop ..."""

    request: int
    verb: str
    arguments: dict[str, Any]


class AdminTold(NamedTuple):
    request: int
    code: int
    text: str
    document: dict[str, Any]
