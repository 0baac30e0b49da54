"""The agent's word with the master: registration, beats, and questions that are asked until they are answered.

Owns request numbers and resending.  Refuses to know what a question is for: whoever asks keeps the number.  With the
master away everything goes on; the link knocks on until an answer comes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..core.effects import Connect, Log, Send, Stop
from ..core.limits import Limits
from ..wire import messages as m

_ANSWERS: dict[type[Any], type[Any]] = {m.JobAsk: m.JobTold, m.AttachAsk: m.AttachTold, m.JobEnd: m.Done}


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
    """Everything between this node and the master."""

    def __init__(self, identity: Identity, limits: Limits) -> None:
        self.identity = identity
        self.limits = limits
        self.master, self.endpoint = next(iter(sorted(identity.masters.items())))
        self.registered = False
        self.connected = False
        self.term = 0
        self.token = 0  # newest map version that the master has shown
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

    # -- the master's words

    def on_registered(self, told: m.Registered, now_us: int) -> list[Any]:
        self.heard_us = now_us
        if not told.known:
            return [Stop(1, told.text or f"the master knows another agent by the id of {self.identity.node}; stop it or choose another id")]
        fresh = not self.registered
        self.registered = True
        self.term = told.term
        self.token = max(self.token, told.token)
        if not fresh:
            return []
        self.beat_due_us = now_us
        return [Log("registered", {"master": self.master, "term": told.term, "token": told.token})]

    def on_beat_ack(self, ack: m.BeatAck, now_us: int) -> list[Any]:
        self.heard_us = now_us
        self.term = ack.term
        self.token = max(self.token, ack.token)
        if ack.known:
            return []
        self.registered = False
        self.register_due_us = now_us + self.limits.resend_us
        return [Log("unknown_to_master", {"master": self.master}), *self._register()]

    # -- time

    def on_time(self, now_us: int, token: int, counters: Callable[[], dict[str, int]]) -> list[Any]:
        effects: list[Any] = []
        if not self.registered:
            if now_us >= self.register_due_us:
                self.register_due_us = now_us + self.limits.resend_us
                effects += self._register()
        elif now_us >= self.beat_due_us:
            # Beats come from this loop, whatever the master says: a silent one is knocked at all the same.
            self.beat_due_us = now_us + self.limits.beat_us
            effects.append(Send(self.master, m.Beat(token, counters())))
        for question in self.questions.values():
            if now_us >= question.due_us:
                question.backoff_us = min(2 * question.backoff_us, self.limits.resend_us_max)
                question.due_us = now_us + question.backoff_us
                effects.append(Send(self.master, question.message))
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
        if self.connected:
            return [Send(self.master, message)]
        self.connected = True
        return [Connect(self.master, self.endpoint), Send(self.master, message)]
