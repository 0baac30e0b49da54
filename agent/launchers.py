"""Who speaks for which job, and what becomes of a job whose launcher has died without a word.

A launcher speaks over a connection of its own and keeps its channels.  When both are gone for every worker of a job, nobody can go on
with it, save it or end it: after `gone_us` it is ended, so that the servers have their memory again; at once if its name is used again.
Refuses to know why a connection was closed: a launcher that comes back within that time is as good as one that never left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..core.effects import Log
from ..core.job import JobSpec
from ..core.jobmap import STOPPED
from ..wire import messages as m
from .channel import Channel
from .house import House
from .router import Job

REASON = "its launcher is gone"
NAME_REASON = "its launcher is gone, and its name was used again"


def end_of(job: Job, reason: str) -> Callable[[int], m.JobEnd]:
    """What the master is asked, by the number of the question."""
    return lambda request: m.JobEnd(request, job.number, STOPPED, reason)


class Launchers:
    def __init__(self, house: House) -> None:
        self.house = house
        self.speakers: dict[int, set[int]] = {}  # job -> connections of its launchers
        self.left: dict[int, set[int]] = {}  # job -> workers whose last channel is gone, with its launcher or before
        self.due_us: dict[int, int] = {}  # job without a launcher -> when it is ended

    def spoke(self, connection: int, job: Job) -> None:
        if job.ended() is None:
            self.speakers.setdefault(job.number, set()).add(connection)
            self.due_us.pop(job.number, None)

    def on_opened(self, channel: Channel) -> None:
        self.left.get(channel.number, set()).discard(channel.worker)

    def on_left(self, channel: Channel) -> None:
        """A worker's channel is gone."""
        self.left.setdefault(channel.number, set()).add(channel.worker)

    def on_hung(self, connection: int, now_us: int) -> None:
        for number in [number for number, speakers in self.speakers.items() if connection in speakers]:
            self.speakers[number].discard(connection)
            self.look(number, now_us)

    def forget(self, job: Job) -> None:
        """It has ended."""
        for table in (self.speakers, self.left):
            table.pop(job.number, None)
        self.due_us.pop(job.number, None)

    def is_gone(self, job: Job) -> bool:
        """Has its launcher died?  Then no connection speaks for it, and nobody keeps a channel for any of its workers."""
        if not job.running or self.speakers.get(job.number):
            return False
        gone = set(self.left.get(job.number, ()))
        for channel in self.house.channels.values():
            if channel.number == job.number and channel.worker < job.spec.workers:
                if channel.kept:
                    return False
                gone.add(channel.worker)
        return gone.issuperset(range(job.spec.workers))

    def is_followed(self, job: Job, spec: JobSpec) -> bool:
        """Is this another run of its name, not the same one told again?"""
        return self.is_gone(job) and spec.settings != job.spec.settings

    def look(self, number: int, now_us: int) -> None:
        """Something of the job has gone: was it the last?"""
        job = self.house.jobs.get(number)
        if job is not None and number not in self.due_us and self.is_gone(job):
            self.due_us[number] = now_us + self.house.limits.gone_us
            self.house.wake(self.due_us[number])

    def on_time(self, now_us: int) -> list[Any]:
        effects: list[Any] = []
        for number in [number for number, due_us in self.due_us.items() if now_us >= due_us]:
            del self.due_us[number]
            job = self.house.jobs.get(number)
            if job is not None and self.is_gone(job):
                effects.append(Log("launcher_gone", {"job": job.name, "number": number}))
                effects += self.house.link.ask(end_of(job, REASON), now_us)[1]
        return effects

    def deadline_us(self, latest_us: int) -> int:
        return min([latest_us, *self.due_us.values()])
