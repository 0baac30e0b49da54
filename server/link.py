"""The server's word with the masters: registration, beats, questions for maps, requests, and the news that a job has failed.

Everything is repeated until it is answered, to whichever master leads by then.  With all masters away the server serves
on, and the link knocks on.  Refuses to know what a map says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..core.effects import Connect, Log, Send, Stop
from ..core.jobmap import FAILED
from ..core.lead import Lead
from ..core.limits import Limits
from ..wire import messages as m

_RETIRE = ("retire", 0)
_REFUSED = {"end": "job_end_refused", "seat": "seat_refused", "save": "checkpoint_refused"}


class Identity(NamedTuple):
    """What this server is, for the masters and for whoever connects to it.  `masters` are id -> endpoint."""

    node: str  # s0.9f3a01c2
    host: str
    endpoint: str
    pid: int
    build: str
    masters: dict[str, str]


class Question:
    """One request until it is answered by `Done`."""

    __slots__ = ("message", "due_us")

    def __init__(self, message: Any, due_us: int) -> None:
        self.message = message
        self.due_us = due_us


class MasterLink:
    def __init__(self, identity: Identity, limits: Limits) -> None:
        self.identity = identity
        self.lead = Lead(identity.masters, limits)
        self.token = 0  # newest map version that a master has shown
        self._limits = limits
        self._connected = False
        self._registered = False
        self.retired = False  # the masters have stored that this process is about to end, and that no range is its own
        self._due_us = 0  # of the next Register or Beat
        self._asked: dict[int, tuple[int, int]] = {}  # job -> (token, when): questions that were not answered yet
        self._questions: dict[Any, Question] = {}  # ("end", job), ("save", job), ("seat", job, range, verb, node), _RETIRE: in order of asking
        self._request = 0

    # -- what the node has to say

    def ask_map(self, job: int, token: int, now_us: int) -> list[Any]:
        """Ask for a map of version `token` or later.  It is not asked again at once: whoever needs it comes again."""
        asked = self._asked.get(job)
        if asked is not None and asked[0] >= token and now_us < asked[1] + self._limits.resend_us:
            return []
        if asked is None and len(self._asked) >= self._limits.jobs_max:
            self._asked.pop(next(iter(self._asked)))
        self._asked[job] = (token, now_us)
        return [self._send(m.MapAsk(job, token))]

    def map_came(self, job: int) -> None:
        self._asked.pop(job, None)

    def job_failed(self, job: int, reason: str, now_us: int) -> list[Any]:
        """Tell the master, until it says that it knows.  The first reason is the one that counts."""
        news = self._ask(("end", job), lambda request: m.JobEnd(request, job, FAILED, reason), now_us)
        return [Log("job_failed", {"job": job, "reason": reason}), *news] if news else []

    def job_ended(self, job: int) -> None:
        """The master knows: its map says so."""
        for key in [key for key in self._questions if key[1] == job]:
            del self._questions[key]

    def ask_seat(self, job: int, number: int, epoch: int, verb: str, node: str, reason: str, now_us: int) -> list[Any]:
        """Ask for a change of a range's copies, until the master says that it has heard.  The same again is asked once."""
        key = ("seat", job, number, verb, node)
        before = self._questions.get(key)
        if before is not None and before.message.epoch != epoch:
            del self._questions[key]
        return self._ask(key, lambda request: m.SeatAsk(request, job, number, epoch, verb, node, reason), now_us)

    def ask_save(self, job: int, number: int, clock: int, place: str, problem: str, now_us: int) -> tuple[int, list[Any]]:
        """Tell what became of a checkpoint, until the master has stored it; the number of the request.  The newest word counts."""
        key = ("save", job)
        self._questions.pop(key, None)
        asked = self._ask(key, lambda request: m.SaveEnd(request, job, number, clock, place, problem), now_us)
        return self._request, asked

    def retire(self, now_us: int) -> list[Any]:
        """Tell that this process is about to end, until the master says that no range is its own any more."""
        self.retired = False
        self._questions.pop(_RETIRE, None)
        return self._ask(_RETIRE, m.Retire, now_us)

    def seat_settled(self, job: int, number: int, epoch: int) -> None:
        """The range has come to this epoch: what was asked in an earlier one is settled."""
        stale = [
            key for key, asked in self._questions.items()
            if key[0] == "seat" and key[1:3] == (job, number) and asked.message.epoch < epoch
        ]  # fmt: skip
        for key in stale:
            del self._questions[key]

    def _ask(self, key: Any, build: Callable[[int], Any], now_us: int) -> list[Any]:
        if key in self._questions:
            return []
        self._request += 1
        message = build(self._request)
        self._questions[key] = Question(message, now_us + self._limits.resend_us)
        return [self._send(message)]

    # -- the masters' words

    def on_registered(self, sender: str, told: m.Registered, now_us: int) -> list[Any]:
        before = self.lead.term
        if not self.lead.heard(sender, told.term, now_us):
            return []
        if not told.known:
            return [Stop(1, told.text or f"another server is registered as {self.identity.node.split('.')[0]}")]
        self.token = max(self.token, told.token)
        effects = self._again(now_us) if told.term > before else []
        if self._registered:
            return effects
        self._registered = True
        self._due_us = now_us + self._limits.beat_us
        return [Log("registered", {"master": sender, "cluster": told.cluster, "term": told.term, "token": told.token}), *effects]

    def on_beat_ack(self, sender: str, ack: m.BeatAck, now_us: int) -> list[Any]:
        before = self.lead.term
        if not self.lead.heard(sender, ack.term, now_us):
            return []
        self.token = max(self.token, ack.token)
        effects = self._again(now_us) if ack.term > before else []
        if ack.known or not self._registered:
            return effects
        self._registered = False
        self._due_us = now_us + self._limits.resend_us
        return [Log("unknown_to_master", {"master": sender}), *effects, self._register()]

    def on_not_leader(self, sender: str, told: m.NotLeader, now_us: int, counters: dict[str, int]) -> list[Any]:
        """What was said to it is said to the one that leads: at once if that is news, else when it is due again."""
        if not self.lead.refused(sender, told.term, told.leader):
            return []
        return [*self._again(now_us), *self._knock(now_us, counters)]

    def on_done(self, done: m.Done, now_us: int) -> list[Any]:
        for key, asked in list(self._questions.items()):
            if asked.message.request != done.request:
                continue
            if key == _RETIRE and done.code:
                asked.due_us = now_us + self._limits.resend_us  # some are, as yet
                continue
            del self._questions[key]
            self.retired |= key == _RETIRE
            if done.code:
                fields = {"job": asked.message.job, "code": done.code, "text": done.text}
                return [Log(_REFUSED[key[0]], fields)]
        return []

    def _again(self, now_us: int) -> list[Any]:
        """Another master leads: it has heard nothing of what the one before was asked."""
        effects: list[Any] = []
        for job, (token, _) in self._asked.items():
            self._asked[job] = (token, now_us)
            effects.append(self._send(m.MapAsk(job, token)))
        return effects + self._ask_again(now_us, everything=True)

    def _ask_again(self, now_us: int, everything: bool = False) -> list[Any]:
        effects: list[Any] = []
        for asked in self._questions.values():
            if everything or now_us >= asked.due_us:
                asked.due_us = now_us + self._limits.resend_us_max
                effects.append(self._send(asked.message))
        return effects

    # -- time

    def on_time(self, now_us: int, counters: dict[str, int]) -> list[Any]:
        effects: list[Any] = []
        if not self._connected:
            self._connected = True
            effects += [Connect(master, endpoint) for master, endpoint in self.identity.masters.items()]
        if now_us >= self._due_us:
            self.lead.asked(now_us)
            effects += self._knock(now_us, counters)
        return effects + self._ask_again(now_us)

    def deadline_us(self) -> int:
        if not self._questions:
            return self._due_us
        return min(self._due_us, min(asked.due_us for asked in self._questions.values()))

    def _knock(self, now_us: int, counters: dict[str, int]) -> list[Any]:
        """Beats come from this loop, whatever the masters say."""
        if self._registered:
            self._due_us = now_us + self._limits.beat_us
            return [self._send(m.Beat(self.token, counters))]
        self._due_us = now_us + self._limits.resend_us
        return [self._register()]

    def _register(self) -> Send:
        identity = self.identity
        return self._send(m.Register("server", identity.host, identity.endpoint, identity.pid, identity.build))

    def _send(self, message: Any) -> Send:
        return Send(self.lead.master, message)
