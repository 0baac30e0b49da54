"""The agent's word with the masters: registration, beats, and questions that are asked until they are answered.

Owns request numbers and resending, to whichever master leads by then.  Refuses to know what a question is for: whoever
asks keeps the number.  With all masters away everything goes on; the link knocks on until an answer comes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..core.effects import Connect, Log, Send, Stop
from ..core.lead import Lead
from ..core.limits import Limits
from ..wire import messages as m

_ANSWERS: dict[type[Any], type[Any]] = {m.JobAsk: m.JobTold, m.AttachAsk: m.AttachTold, m.MoreAsk: m.MoreTold, m.JobEnd: m.Done}


class Identity(NamedTuple):
    """What this agent is, for the master and for launchers.  `masters` are id -> endpoint."""

    node: str  # a0.9f3a01c2
    host: str
    pid: int
    build: str
    cluster: str
    boot_id: str
    masters: dict[str, str]


class Question:
    """One message until its answer."""

    __slots__ = ("message", "due_us", "backoff_us")

    def __init__(self, message: Any, due_us: int, backoff_us: int) -> None:
        self.message = message
        self.due_us = due_us
        self.backoff_us = backoff_us


class MasterLink:
    """Everything between this node and the masters."""

    def __init__(self, identity: Identity, limits: Limits) -> None:
        self.identity = identity
        self.limits = limits
        self.lead = Lead(identity.masters, limits)
        self.registered = False
        self.connected = False
        self.token = 0  # newest map version that a master has shown
        self.heard_us = 0
        self.beat_due_us = 0
        self.register_due_us = 0
        self.questions: dict[Any, Question] = {}  # by request number, or ("map", job)
        self.number = 0

    # -- asking

    def ask(self, build: Callable[[int], Any], now_us: int) -> tuple[int, list[Any]]:
        """Ask with a fresh request number; returns it."""
        self.number += 1
        message = build(self.number)
        self.questions[self.number] = Question(message, now_us + self.limits.resend_us, self.limits.resend_us)
        return self.number, self._send(message)

    def ask_map(self, job: int, token: int, now_us: int) -> list[Any]:
        """Ask for a job's map of version `token` or later; one question per job is out at a time."""
        key = ("map", job)
        asked = self.questions.get(key)
        if asked is not None and asked.message.token >= token:
            return []
        message = m.MapAsk(job, token)
        self.questions[key] = Question(message, now_us + self.limits.resend_us, self.limits.resend_us)
        return self._send(message)

    def answered(self, told: Any) -> bool:
        """The answer to a question has come; False for a second answer, and for one to another kind of question."""
        asked = self.questions.get(told.request)
        if asked is None or _ANSWERS[type(asked.message)] is not type(told):
            return False
        del self.questions[told.request]
        return True

    def map_came(self, job: int, token: int) -> None:
        asked = self.questions.get(("map", job))
        if asked is not None and token >= asked.message.token:
            del self.questions["map", job]

    def forget(self, key: Any) -> None:
        """Nobody waits for the answer any more."""
        self.questions.pop(key, None)

    # -- the masters' words

    def on_registered(self, sender: str, told: m.Registered, now_us: int) -> list[Any]:
        before = self.lead.term
        if not self.lead.heard(sender, told.term, now_us):
            return []
        self.heard_us = now_us
        if not told.known:
            return [Stop(1, told.text or f"the master knows another agent by the id of {self.identity.node}; stop it or choose another id")]
        fresh = not self.registered
        self.registered = True
        self.token = max(self.token, told.token)
        effects = self._again(now_us) if told.term > before else []
        if not fresh:
            return effects
        self.beat_due_us = now_us
        return [Log("registered", {"master": sender, "term": told.term, "token": told.token}), *effects]

    def on_beat_ack(self, sender: str, ack: m.BeatAck, now_us: int) -> list[Any]:
        before = self.lead.term
        if not self.lead.heard(sender, ack.term, now_us):
            return []
        self.heard_us = now_us
        self.token = max(self.token, ack.token)
        effects = self._again(now_us) if ack.term > before else []
        if ack.known:
            return effects
        self.registered = False
        self.register_due_us = now_us + self.limits.resend_us
        return [Log("unknown_to_master", {"master": sender}), *effects, *self._register()]

    def on_not_leader(self, sender: str, told: m.NotLeader, now_us: int) -> list[Any]:
        """What was said to it is said to the one that leads: at once if that is news, else when it is due again."""
        if not self.lead.refused(sender, told.term, told.leader):
            return []
        self.beat_due_us = self.register_due_us = now_us
        return self._again(now_us)

    def _again(self, now_us: int) -> list[Any]:
        """Another master leads: it has heard nothing of what the one before was asked."""
        effects: list[Any] = []
        for question in self.questions.values():
            question.backoff_us = self.limits.resend_us
            question.due_us = now_us + question.backoff_us
            effects += self._send(question.message)
        return effects

    # -- time

    def on_time(self, now_us: int, token: int, counters: Callable[[], dict[str, int]]) -> list[Any]:
        effects: list[Any] = []
        if not self.registered:
            if now_us >= self.register_due_us:
                self.register_due_us = now_us + self.limits.resend_us
                self.lead.asked(now_us)
                effects += self._register()
        elif now_us >= self.beat_due_us:
            # Beats come from this loop, whatever the masters say: a silent one is knocked at all the same.
            self.beat_due_us = now_us + self.limits.beat_us
            self.lead.asked(now_us)
            effects += self._send(m.Beat(token, counters()))
        for question in self.questions.values():
            if now_us >= question.due_us:
                question.backoff_us = min(2 * question.backoff_us, self.limits.resend_us_max)
                question.due_us = now_us + question.backoff_us
                effects += self._send(question.message)
        return effects

    def deadline_us(self) -> int:
        due_us = self.beat_due_us if self.registered else self.register_due_us
        for question in self.questions.values():
            due_us = min(due_us, question.due_us)
        return due_us

    def _register(self) -> list[Any]:
        identity = self.identity
        return self._send(m.Register("agent", identity.host, "", identity.pid, identity.build))

    def _send(self, message: Any) -> list[Any]:
        effects: list[Any] = [Send(self.lead.master, message)]
        if self.connected:
            return effects
        self.connected = True
        return [*(Connect(master, endpoint) for master, endpoint in self.lead.masters.items()), *effects]
