"""`stop` and `checkpoint` of agent.sock: a job's clock is told until it has said where all workers end, or what became of a checkpoint."""

from __future__ import annotations

from typing import Any

from ..core.errors import Code
from ..wire import messages as m
from .asked import Ticket, no, yes
from .house import House
from .router import Job


class Stop:
    """One request, and when it is said again.  `after`: the checkpoint that had begun last when a newer one was asked for, -1 = none is."""

    __slots__ = ("ticket", "job", "reason", "after", "due_us", "backoff_us")

    def __init__(self, ticket: Ticket, job: Job, reason: str, after: int, backoff_us: int, now_us: int) -> None:
        self.ticket = ticket
        self.job = job
        self.reason = reason
        self.after = after
        self.backoff_us = backoff_us
        self.due_us = now_us + backoff_us


    def ask(self) -> list[Any]:
        return self.job.stop_ask(self.reason) if self.after < 0 else self.job.save_ask(self.after)


class Stops:
    """All that are unanswered."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.running: list[Stop] = []

    def begin(self, ticket: Ticket, job: Job, reason: str, now_us: int) -> list[Any]:
        return self._begin(Stop(ticket, job, reason, -1, self.house.limits.resend_us, now_us))

    def save(self, ticket: Ticket, job: Job, now_us: int) -> list[Any]:
        """A checkpoint is wanted, other than those that have begun by now."""
        if job.map is None or not job.spec.checkpoint_dir:
            return no(ticket, Code.FORMAT, f"job {job.name!r} has no place for checkpoints: say --checkpoint-dir when it is started")
        return self._begin(Stop(ticket, job, "", job.saves[0], self.house.limits.resend_us, now_us))

    def _begin(self, stop: Stop) -> list[Any]:
        self.running.append(stop)
        self.house.wake(stop.due_us)
        return stop.ask()

    def on_standing(self, job: Job, standing: m.Standing) -> list[Any]:
        """The clock has spoken: of a checkpoint or the end too?  The end that the job began with says nothing, unless it has come."""
        if not self.running:
            return []
        return self._saved(job) + self._stopped(job, standing)

    def _saved(self, job: Job) -> list[Any]:
        _, settled, kept, clock = job.saves
        answered = [stop for stop in self.running if stop.job is job and 0 <= stop.after < settled]
        self.running = [stop for stop in self.running if stop not in answered]
        effects: list[Any] = []
        for stop in answered:
            if kept > stop.after:
                effects += yes(stop.ticket, {"number": kept, "clock": clock})
            else:
                effects += no(stop.ticket, Code.INTERNAL, f"checkpoint {settled} of job {job.name!r} has failed: {job.save_problem or 'another one was still being written'}")
        return effects

    def _stopped(self, job: Job, standing: m.Standing) -> list[Any]:
        if standing.stop_clock < 0:
            return []
        if standing.stop_clock == job.spec.stop_clock and max([standing.slowest, *job.finished.values()]) + 1 < standing.stop_clock:
            return []
        answered = [stop for stop in self.running if stop.job is job and stop.after < 0]
        self.running = [stop for stop in self.running if stop not in answered]
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
                effects += stop.ask()
        return effects

    def deadline_us(self, latest_us: int) -> int:
        return min([latest_us, *(stop.due_us for stop in self.running)])
