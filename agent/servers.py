"""What ranges and clocks say: each answer is brought to the request that waits for it, or dropped.

Also says Join and Leave of our streams until they are heard.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..core.effects import Log
from ..core.errors import Code, PeerError
from ..core.limits import Limits
from ..wire import messages as m
from . import effects as e
from .desk import Desk
from .export import Export
from .house import House
from .operation import Operation
from .router import Job, code_of


class Notice:
    """A word to a job's clock that is said until it is heard: Join or Leave of one stream."""

    __slots__ = ("kind", "gen", "clock", "reason", "due_us", "backoff_us")

    def __init__(self, kind: type[Any], gen: int, clock: int, reason: str, limits: Limits, now_us: int) -> None:
        self.kind = kind
        self.gen = gen
        self.clock = clock
        self.reason = reason
        self.backoff_us = limits.resend_us
        self.due_us = now_us + limits.resend_us


class Servers:
    def __init__(self, house: House, desk: Desk) -> None:
        self.house = house
        self.desk = desk
        self.notices: dict[tuple[int, int], Notice] = {}  # by (job, worker)

    # -- ranges

    def on_push_ack(self, sender: str, ack: m.PushAck, now_us: int) -> list[Any]:
        operation = self.house.pushing(ack.job, ack.worker, ack.gen)
        return [] if operation is None else self.house.settle(operation, operation.on_ack(ack, now_us), now_us)

    def on_last(self, sender: str, told: m.LastTold, now_us: int) -> list[Any]:
        operation = self.house.pushing(told.job, told.worker, told.gen)
        return [] if operation is None else self.house.settle(operation, operation.on_last(told, now_us), now_us)

    def _to_stream(self, message: Any, tell: Callable[[Operation], list[Any]], now_us: int) -> list[Any]:
        """To each request of the stream that is under way: one of them waits for it, the others pass it over."""
        effects: list[Any] = []
        for operation in self.house.of_stream(message.job, message.worker, message.gen):
            effects += tell(operation)
            self.house.settle(operation, effects, now_us)
        return effects

    def on_partial(self, sender: str, partial: m.Partial, now_us: int) -> list[Any]:
        """Agents send every push alone: this is an answer to nothing of ours."""
        raise PeerError("Partial, which answers sums of several pushes, and none was sent")

    def on_init_ack(self, sender: str, ack: m.InitAck, now_us: int) -> list[Any]:
        effects: list[Any] = []
        for operation in self.house.operations_of(ack.job):
            effects += operation.on_ack(ack, now_us)
            self.house.settle(operation, effects, now_us)
        return effects

    def on_values(self, sender: str, values: m.Values, now_us: int) -> list[Any]:
        asker = self.house.by_request.get(values.request)
        if asker is None or asker.job.number != values.job:
            return []  # late or doubled: the request was answered, and what it may write was written
        if isinstance(asker, Export):
            return self.desk.exports.on_answer(asker, values, now_us)
        return self.house.settle(asker, asker.on_values(values, now_us), now_us)

    def on_scanned(self, sender: str, scanned: m.Scanned, now_us: int) -> list[Any]:
        asker = self.house.by_request.get(scanned.request)
        if not isinstance(asker, Export) or asker.job.number != scanned.job:
            return []
        return self.desk.exports.on_answer(asker, scanned, now_us)

    def on_nack(self, sender: str, nack: m.Nack, now_us: int) -> list[Any]:
        job = self.house.jobs.get(nack.job)
        if job is None:
            return []
        self.house.counts["nacks"] += 1
        job.nacked.add(nack.range)
        effects = self.house.newer_map(job, nack.token, now_us)
        for operation in self.house.operations_of(nack.job):
            operation.patience.nacked(now_us)  # a newer map comes by `on_map`; without one, its server is behind
            self.house.wake(operation.patience.due_us)
        return effects

    def on_refuse(self, sender: str, refuse: m.Refuse, now_us: int) -> list[Any]:
        job = self.house.jobs.get(refuse.job)
        if job is None:
            return []
        if refuse.worker == m.NOBODY and not refuse.request and not refuse.seq:
            return self._on_failure(sender, job, refuse, now_us)
        effects: list[Any] = []
        notice = self.notices.get((refuse.job, refuse.worker))
        of_stream = not refuse.seq and not refuse.request  # and so not of one push or pull of it
        if notice is not None and notice.gen == refuse.gen and of_stream and refuse.code in (Code.FENCED, Code.RANGE):
            del self.notices[refuse.job, refuse.worker]
            effects += self.desk.on_refused_join(job, refuse.worker, refuse.code, refuse.text)
        for asker in self._refused(refuse):
            if isinstance(asker, Export):
                effects += self.desk.exports.on_refuse(asker, refuse)
            elif asker.job is job:
                effects += asker.on_refuse(refuse, now_us)
                self.house.settle(asker, effects, now_us)
        return effects

    def _on_failure(self, sender: str, job: Job, refuse: m.Refuse, now_us: int) -> list[Any]:
        """The clock says that the job cannot go on: programs are told, and the launcher, who saves what is there and ends it."""
        if job.failure is not None or sender != job.clock_route.server:
            return []
        job.failure = (code_of(refuse.code), refuse.text)
        fields = {"job": job.name, "text": refuse.text}
        effects: list[Any] = [Log("failing", fields), e.Tell(e.ALL, {"event": "failing", "run": job.number, **fields})]
        for operation in self.house.operations_of(job.number):
            effects += operation.on_end(*job.failure)
            self.house.settle(operation, effects, now_us)
        return effects + self.desk.exports.on_failure(job)

    def _refused(self, refuse: m.Refuse) -> list[Operation | Export]:
        """Whom it concerns: a pull, an offer of first values (seq is their claim), a push, or (seq 0) what was told to the clock."""
        if refuse.request:
            asker = self.house.by_request.get(refuse.request)
            return [] if asker is None else [asker]
        if refuse.worker == m.NOBODY:
            return [other for other in self.house.operations_of(refuse.job) if other.offers(refuse.seq)]
        operations = self.house.of_stream(refuse.job, refuse.worker, refuse.gen)
        if refuse.seq:
            return [operation for operation in operations if operation.request.seq == refuse.seq]
        return [*operations[:1], *(operation for operation in operations[1:] if operation.owed.by_clock())]

    # -- the clock

    def on_standing(self, sender: str, standing: m.Standing, now_us: int) -> list[Any]:
        job = self.house.jobs.get(standing.job)
        if job is None:
            return []
        effects = self.house.newer_map(job, standing.token, now_us)
        concerns_all = job.on_standing(standing, now_us)
        notice = self.notices.get((standing.job, standing.worker))
        if notice is not None and standing.gen >= notice.gen and (notice.kind is m.Join or standing.end >= 0):
            del self.notices[standing.job, standing.worker]
        effects += self.desk.on_standing(job, standing, now_us)
        if concerns_all:
            concerned = self.house.operations_of(standing.job)
        else:
            concerned = self.house.of_stream(standing.job, standing.worker, standing.gen)
        for operation in concerned:
            effects += operation.on_standing(standing, now_us)
            self.house.settle(operation, effects, now_us)
        return effects

    def on_claim(self, sender: str, told: m.ClaimTold, now_us: int) -> list[Any]:
        return self._to_stream(told, lambda operation: operation.on_claim(told, now_us), now_us)

    def on_next(self, sender: str, told: m.NextTold, now_us: int) -> list[Any]:
        return self._to_stream(told, lambda operation: operation.on_next(told, now_us), now_us)

    def on_twins(self, sender: str, twins: m.Twins, now_us: int) -> list[Any]:
        """Two workers push the same bytes: for launchers, once per doubling."""
        job = self.house.jobs.get(twins.job)
        if job is None:
            return []
        pair = (min(twins.worker, twins.other), max(twins.worker, twins.other))
        if twins.clocks < 2 * job.twins.get(pair, 0) or not twins.clocks:
            return []
        job.twins[pair] = twins.clocks
        fields = {"job": job.name, "worker": twins.worker, "other": twins.other, "clocks": twins.clocks}
        return [Log("twins", fields), e.Tell(e.ALL, {"event": "twins", "run": job.number, **fields})]

    def join(self, job: Job, worker: int, gen: int, now_us: int) -> list[Any]:
        """Tell the clock that the stream exists and that its notices come here."""
        return self._notify(job, worker, Notice(m.Join, gen, 0, "", self.house.limits, now_us))

    def leave(self, job: Job, worker: int, gen: int, clock: int, reason: str, now_us: int) -> list[Any]:
        """Tell the clock that nobody need wait for the worker any more."""
        return self._notify(job, worker, Notice(m.Leave, gen, clock, reason, self.house.limits, now_us))

    def join_again(self, job: Job, now_us: int) -> list[Any]:
        """The clock has another keeper: what we were about to say goes there, and our streams make themselves known."""
        effects: list[Any] = []
        for (number, worker), notice in self.notices.items():
            if number == job.number:
                effects += self._say(job, worker, notice)
        for channel in self.house.channels.values():
            if channel.number == job.number and (job.number, channel.worker) not in self.notices:
                effects += self.join(job, channel.worker, channel.gen, now_us)
        return effects

    def ask_standing(self, job: Job) -> list[Any]:
        """How does the clock stand, asked for nobody in particular?"""
        return list(job.to_clock(m.StandingAsk, m.NOBODY, 0))

    def _notify(self, job: Job, worker: int, notice: Notice) -> list[Any]:
        self.notices[job.number, worker] = notice
        self.house.wake(notice.due_us)
        return self._say(job, worker, notice)

    def _say(self, job: Job, worker: int, notice: Notice) -> list[Any]:
        more = () if notice.kind is m.Join else (notice.clock, notice.reason)
        return list(job.to_clock(notice.kind, worker, notice.gen, *more))

    def on_time(self, now_us: int) -> list[Any]:
        effects: list[Any] = []
        for key, notice in list(self.notices.items()):
            job = self.house.jobs.get(key[0])
            if job is None or job.ended() is not None:
                del self.notices[key]
            elif now_us >= notice.due_us:
                notice.backoff_us = min(2 * notice.backoff_us, self.house.limits.resend_us_max)
                notice.due_us = now_us + notice.backoff_us
                effects += self._say(job, key[1], notice)
        return effects

    def deadline_us(self, latest_us: int) -> int:
        return min([latest_us, *(notice.due_us for notice in self.notices.values())])
