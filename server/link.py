"""The server's word with the master: registration, beats, questions for maps, and the news that a job has failed.

Everything is repeated until it is answered.  With the master away the server serves on, and the link knocks on.
Refuses to know what a map says.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..core.effects import Connect, Log, Send, Stop
from ..core.jobmap import FAILED
from ..core.limits import Limits
from ..wire import messages as m


class Identity(NamedTuple):
    """What this server is, for the master and for whoever connects to it."""

    node: str  # s0.9f3a01c2
    host: str
    endpoint: str
    pid: int
    build: str
    master: str  # id of the master, which is its node name
    master_endpoint: str


class MasterLink:
    def __init__(self, identity: Identity, limits: Limits) -> None:
        self.identity = identity
        self.master = identity.master
        self.token = 0  # newest map version that the master has shown
        self._limits = limits
        self._connected = False
        self._registered = False
        self._due_us = 0  # of the next Register or Beat
        self._asked: dict[int, tuple[int, int]] = {}  # job -> (token, when): questions that were not answered yet
        self._failed: dict[int, tuple[m.JobEnd, int]] = {}  # job -> (news, when to say it again)
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
        return [Send(self.master, m.MapAsk(job, token))]

    def map_came(self, job: int) -> None:
        self._asked.pop(job, None)

    def job_failed(self, job: int, reason: str, now_us: int) -> list[Any]:
        """Tell the master, until it says that it knows.  The first reason is the one that counts."""
        if job in self._failed:
            return []
        self._request += 1
        news = m.JobEnd(self._request, job, FAILED, reason)
        self._failed[job] = (news, now_us + self._limits.resend_us)
        return [Log("job_failed", {"job": job, "reason": reason}), Send(self.master, news)]

    def job_ended(self, job: int) -> None:
        """The master knows: its map says so."""
        self._failed.pop(job, None)

    # -- the master's words

    def on_registered(self, told: m.Registered, now_us: int) -> list[Any]:
        if not told.known:
            return [Stop(1, told.text or f"another server is registered as {self.identity.node.split('.')[0]}")]
        self.token = max(self.token, told.token)
        if self._registered:
            return []
        self._registered = True
        self._due_us = now_us + self._limits.beat_us
        return [Log("registered", {"master": self.master, "cluster": told.cluster, "term": told.term, "token": told.token})]

    def on_beat_ack(self, ack: m.BeatAck, now_us: int) -> list[Any]:
        self.token = max(self.token, ack.token)
        if ack.known or not self._registered:
            return []
        self._registered = False
        self._due_us = now_us + self._limits.resend_us
        return [Log("unknown_to_master", {"master": self.master}), self._register()]

    def on_done(self, done: m.Done) -> list[Any]:
        for job, (news, _) in list(self._failed.items()):
            if news.request == done.request:
                del self._failed[job]
                if done.code:
                    return [Log("job_end_refused", {"job": job, "code": done.code, "text": done.text})]
        return []

    # -- time

    def on_time(self, now_us: int, counters: dict[str, int]) -> list[Any]:
        effects: list[Any] = []
        if not self._connected:
            self._connected = True
            effects.append(Connect(self.master, self.identity.master_endpoint))
        if now_us >= self._due_us:
            if self._registered:
                self._due_us = now_us + self._limits.beat_us
                effects.append(Send(self.master, m.Beat(self.token, counters)))
            else:
                self._due_us = now_us + self._limits.resend_us
                effects.append(self._register())
        for job, (news, due_us) in self._failed.items():
            if now_us >= due_us:
                self._failed[job] = (news, now_us + self._limits.resend_us_max)
                effects.append(Send(self.master, news))
        return effects

    def deadline_us(self) -> int:
        if not self._failed:
            return self._due_us
        return min(self._due_us, min(due_us for _, due_us in self._failed.values()))

    def _register(self) -> Send:
        identity = self.identity
        return Send(self.master, m.Register("server", identity.host, identity.endpoint, identity.pid, identity.build))
