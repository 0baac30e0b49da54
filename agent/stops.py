"""`stop` of agent.sock: a stop rule has fired.  The clock is told until it has said where all workers end."""

from __future__ import annotations

from typing import Any

from ..wire import messages as m
from .asked import Ticket, yes
from .house import House
from .router import Job


class Stop:
    """One request, and when it is said again."""

    __slots__ = ("ticket", "job", "reason", "due_us", "backoff_us")

    def __init__(self, ticket: Ticket, job: Job, reason: str, backoff_us: int, now_us: int) -> None:
        self.ticket = ticket
        self.job = job
        self.reason = reason
        self.backoff_us = backoff_us
        self.due_us = now_us + backoff_us


class Stops:
    """All that are unanswered."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.running: list[Stop] = []

    def begin(self, ticket: Ticket, job: Job, reason: str, now_us: int) -> list[Any]:
        stop = Stop(ticket, job, reason, self.house.limits.resend_us, now_us)
        self.running.append(stop)
        self.house.wake(stop.due_us)
        return list(job.stop_ask(reason))

    def on_standing(self, job: Job, standing: m.Standing) -> list[Any]:
        """The clock has spoken: of the end too?  The end that the job began with says nothing, unless it has come."""
        if standing.stop_clock < 0 or not self.running:
            return []
        if standing.stop_clock == job.spec.stop_clock and max([standing.slowest, *job.finished.values()]) + 1 < standing.stop_clock:
            return []
        answered = [stop for stop in self.running if stop.job is job]
        self.running = [stop for stop in self.running if stop.job is not job]
        effects: list[Any] = []
        for stop in answered:
            effects += yes(stop.ticket, {"stop_clock": job.stop_clock})
        return effects

    def take(self, job: Job) -> list[Ticket]:
        """The job has ended: who waits for its clock waits in vain."""
        tickets = [stop.ticket for stop in self.running if stop.job is job]
        self.running = [stop for stop in self.running if stop.job is not job]
        return tickets

    def on_hung(self, connection: int) -> None:
        self.running = [stop for stop in self.running if stop.ticket.connection != connection]

    def on_time(self, now_us: int) -> list[Any]:
        effects: list[Any] = []
        for stop in self.running:
            if now_us >= stop.due_us:
                stop.backoff_us = min(2 * stop.backoff_us, self.house.limits.resend_us_max)
                stop.due_us = now_us + stop.backoff_us
                effects += stop.job.stop_ask(stop.reason)
        return effects

    def deadline_us(self, latest_us: int) -> int:
        return min([latest_us, *(stop.due_us for stop in self.running)])
