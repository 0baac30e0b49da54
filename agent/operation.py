"""One request's walk from `cmd` to the reply.

    (accepted requests first) -> read and cut -> (first values given) -> Delivery: pushes, tick -> Fetch: gate, values -> reply

    async=1     read -> KeepPush -> reply; behind the program's back: ReadKept -> Delivery -> DropPush
    t= is over  (read) -> KeepPush -> TIMEOUT; the delivery goes on in the same way, nothing is fetched

Owns the order of these steps; when what is owed is asked for again is `Owed`'s.  Refuses to know other requests: turns are the
channel's, places the plan's, bytes under way the transfer's.  Nothing is sent before the whole push was found good.
`pump` may be called at any time and does whatever has become possible.
"""

from __future__ import annotations

from typing import Any

from ..core.errors import Code, RequestError
from ..core.limits import MS, Limits
from ..shm_protocol.request import Request
from ..wire import messages as m
from . import effects as e
from . import orphan
from .acceptance import FAR_US, Acceptance
from .behind import Behind
from .channel import STOPPED, TAKEN, Answer, Channel
from .delivery import Delivery
from .fetch import Fetch
from .offer import Offer
from .owed import Owed
from .patience import Patience
from .pieces import Piece, check_pieces
from .router import Credits, Job, code_of
from .sparse import check_sections, cut_push
from .transfer import Stream

#: Replies that say how far the others are behind.
_LAGGED = frozenset({"step", "pull", "pushpull", "clock"})
#: Refusals of a pull that leave the push beside it as it is.
_OF_VALUES = frozenset({int(Code.NOSPC), int(Code.RANGE), int(Code.COLLIDE)})


class Operation:
    """A request that a channel is working on.  `over` once it has been answered, or carried out behind the program's back."""

    __slots__ = (
        "channel", "job", "stream", "behind", "request", "number", "limits", "credits", "delivery", "pulling", "piece", "offer", "fetch", "data",
        "read", "reading", "prepared", "started", "taken_up", "unread", "orphan", "over", "accepted", "patience", "limit_us", "parked", "_acceptance",
    )  # fmt: skip

    def __init__(
        self, channel: Channel, job: Job, stream: Stream, behind: Behind, request: Request, number: int, limits: Limits, credits: Credits,
        now_us: int,
    ) -> None:  # fmt: skip
        self.channel = channel
        self.job = job
        self.stream = stream
        self.behind = behind
        self.request = request
        self.number = number  # names this request's pulls
        self.limits = limits
        self.credits = credits
        clock = request.clock if request.verb in ("push", "pushpull", "step", "clock") else channel.clock
        self.delivery = Delivery(channel, job, stream, request, credits, clock)
        self.pulling = request.pulls
        self.piece = Piece(channel, job, request.seq) if request.verb == "next" else None
        self.offer: Offer | None = None
        self.fetch: Fetch | None = None
        self.data: e.DataRead | None = None
        self.read = not request.pushes and not request.sections
        self.reading = False
        self.prepared = False  # cut into parts
        self.started = False  # the job's map was there
        self.taken_up = channel.taken_up  # an earlier agent had begun it, and parts of it may have arrived
        self.unread: tuple[Code, str] | None = None  # why its values cannot be handed over
        self.orphan = False  # its program has ended: only what was begun is brought to an end
        self.over = False
        self.accepted = False  # the program has its answer, and goes on
        self.patience = Patience(limits, now_us)
        self.limit_us = FAR_US if request.timeout_ms is None else now_us + request.timeout_ms * MS  # the program wants an answer by then
        self.parked = False  # the page says that it waits
        self._acceptance: Acceptance | None = None  # most requests need none

    @property
    def acceptance(self) -> Acceptance:
        if self._acceptance is None:
            self._acceptance = Acceptance(self, self.behind)
        return self._acceptance

    @property
    def slot(self) -> int:
        """Of its copy in pend.*, -1 = there is none."""
        return self._acceptance.slot if self._acceptance is not None else -1

    @property
    def owed(self) -> Owed:
        return Owed(self)

    def accepted_before(self, slot: int) -> None:
        """By an earlier agent, which has left its copy in this slot."""
        self._acceptance = Acceptance(self, self.behind, slot)
        self.accepted = self.taken_up = self.delivery.counted = True
        self.pulling, self.limit_us = False, FAR_US
        self.read = not self.request.pushes

    @property
    def due_us(self) -> int:
        """When to look at it again."""
        patience, limit_us = self.patience, self.limit_us
        due_us = patience.due_us if patience.due_us < patience.explain_us else patience.explain_us
        return due_us if due_us < limit_us else limit_us

    # -- walking on

    def start(self, now_us: int) -> list[Any]:
        """The first step.  Without a map it waits: an adopted channel may be earlier than the master."""
        if self.channel.stopped and self._ends():
            return self.fail(Code.STOP, self._stopped())  # the page says so, whatever a map would
        if self.job.map is None:
            return []
        self.started = True
        newest = self.job.newest_gen(self.channel.worker)
        if newest > self.channel.gen:
            return self.fail(Code.FENCED, self._fenced(newest))
        if (ended := self.job.ended() or self.job.failure) is not None:
            return self.on_end(*ended)
        try:
            self._check()
        except RequestError as error:
            return self.fail(error.code, error.text)
        return self.pump(now_us)

    def _ends(self) -> bool:
        """Is it one that no worker may ask for any more once the job's last clock is over?"""
        return self.request.verb in STOPPED and not self.accepted

    def _stopped(self) -> str:
        return f"the job has ended at clock {self.channel.clock}"

    def _check(self) -> None:
        """Raises `RequestError` for what this job does not take, or not any more."""
        request, job = self.request, self.job
        if job.ends_before(self.delivery.clock) and self._ends():
            raise RequestError(Code.STOP, self._stopped())
        if request.sections:
            assert job.plan is not None
            check_sections(job.plan, request, [table.name for table in job.spec.tables])
        if self.piece is not None:
            check_pieces(job.spec)

    def pump(self, now_us: int) -> list[Any]:
        """Everything that has become possible.  May end the request."""
        if self.over:
            return []
        if not self.started:
            return self.start(now_us)
        if self.delivery.refusal is not None:
            return self.fail(*why) if (why := self.delivery.failed()) is not None else []
        behind, request = self.behind, self.request
        if (behind.queue or behind.failures) and self.acceptance.held_back():
            return self.acceptance.tell_failures()
        if request.unwaited and self.acceptance.keeping:
            return []
        if self.orphan:
            return orphan.pump(self)
        if self.delivery.leaving:
            return self._finish() if self.delivery.left else self.delivery.pump_leave()
        if self.piece is not None:
            return self.piece.pump()
        if self.accepted and not self.job.ready:
            return self._pump_offer()
        if not self.read:
            return self.read_data()
        if request.unwaited and not self.accepted:
            return self.acceptance.keep()
        if not self.job.ready:
            return self._pump_offer()
        if not self.prepared and (error := self.prepare()) is not None:
            return self.fail(error.code, error.text)
        delivery, fetch = self.delivery, self.fetch
        effects = delivery.pump(self)
        if fetch is not None and fetch.gather.unsent and delivery.sent:
            effects += fetch.pump()
        if delivery.carried and (not self.pulling or self.unread is not None or (fetch is not None and fetch.done)):
            effects += self._finish()
        return effects

    def read_data(self) -> list[Any]:
        if self.reading:
            return []
        self.reading = True
        name = self.channel.name
        return [e.ReadKept(name, self.acceptance.slot, self.request) if self.accepted else e.ReadData(name, self.request)]

    def prepare(self) -> RequestError | None:
        """Cut what was read into parts.  What cannot be is refused before anything is sent."""
        plan, data, delivery = self.job.plan, self.data, self.delivery
        assert plan is not None
        try:
            if delivery.pushing:
                assert data is not None
                dense = data.buffer is not None
                delivery.load(cut_push(plan, data.rows, dense, self.limits, self.stream.cuts), data.buffer, data.crc)
            if self.pulling:
                clock = delivery.clock + 1 if delivery.ticking else self.channel.clock  # a step reads in the clock that its tick opens
                pushed = tuple(part.range for part in delivery.parts or ())
                wants = data.wants if data is not None else ()
                self.fetch = Fetch(self.job, self.stream, self.channel.name, self.number, self.request, clock, wants, pushed, self.limits)
        except RequestError as error:
            return error
        self.prepared = True
        return None

    def _pump_offer(self) -> list[Any]:
        """First values are missing.  `init` offers its own; where they all lie in files, any request may."""
        plan = self.job.plan
        assert plan is not None
        if self.offer is None:
            if plan.program_tables and self.request.verb != "init":
                lone = self.job.workers == 1 and self.channel.worker in self.job.gens  # as the clock has told us
                return self.fail(Code.SEQ, "no first values yet, and no other worker to give them: send init first") if lone else []
            grad = self.data.buffer if plan.program_tables and self.data is not None else None
            self.offer = Offer(self.job, self.stream, self.channel.name, self.credits, grad)
        return self.offer.pump(self)

    # -- answers of the host

    def on_data(self, data: e.DataRead, now_us: int) -> list[Any]:
        if not self.reading or self.over:
            return []
        self.reading = False
        if data.code:
            return self.fail(data.code, data.text)
        self.read = True
        self.data = data
        if self.slot >= 0 and not self.accepted:  # t= ran out before it could be read
            return self.acceptance.keep()
        return self.pump(now_us)

    def on_data_written(self, written: e.DataWritten) -> list[Any]:
        if self.piece is None or self.over:
            return []
        self.close()
        self.channel.piece, self.channel.piece_owed = None, False
        return self.channel.finish(self.answer(written.nbytes))

    def on_param_failed(self, failed: e.ParamFailed) -> list[Any]:
        """The program's file refuses its values.  What was begun goes on: the clock must not be left half told."""
        if self.piece is not None:
            return self.fail(failed.code, failed.text)
        self.unread = (failed.code, failed.text)
        return []

    def on_files_read(self, files: e.FilesRead, now_us: int) -> list[Any]:
        if self.offer is None or not self.offer.reading or self.over:
            return []
        try:
            if files.code:
                raise RequestError(files.code, files.text)
            self.offer.on_files(files.buffer)
        except RequestError as error:
            return self.fail(error.code, error.text)
        return self.pump(now_us)

    # -- answers of servers

    def on_last(self, told: m.LastTold, now_us: int) -> list[Any]:
        scatter = self.delivery.scatter
        return self._on_news(scatter is not None and scatter.on_last(told), now_us)

    def on_ack(self, ack: m.PushAck | m.InitAck, now_us: int) -> list[Any]:
        if not isinstance(ack, m.PushAck):
            return self._on_news(self.offer is not None and self.offer.scatter is not None and self.offer.scatter.on_ack(ack), now_us)
        scatter = self.delivery.scatter
        if scatter is None or not scatter.on_ack(ack):
            return []
        self.patience.heard(now_us)
        return [] if scatter.unacked and not scatter.unsent else self.pump(now_us)  # while others are owed nothing new is possible

    def on_values(self, values: m.Values, now_us: int) -> list[Any]:
        fetch = self.fetch
        if fetch is None or self.orphan:
            return []
        effects = fetch.on_values(values)
        if effects is None:
            return []
        self.patience.heard(now_us)
        if fetch.gather.unsent or fetch.gather.done:
            effects += self.pump(now_us)
        return effects

    def on_standing(self, standing: m.Standing, now_us: int) -> list[Any]:
        """The job has taken it already; here it may be the answer to a tick, or open the gate."""
        channel, fetch = self.channel, self.fetch
        if standing.worker == channel.worker:
            if standing.gen > channel.gen:
                return self.fail(Code.FENCED, self._fenced(standing.gen))
            if self.delivery.on_standing(standing):
                self.patience.heard(now_us)
        if fetch is not None and not fetch.gate_seen and fetch.gate_open:
            fetch.gate_seen = True
            self.patience.heard(now_us)  # from here on the ranges owe us values
        return self.pump(now_us)

    def on_next(self, told: m.NextTold, now_us: int) -> list[Any]:
        effects = self.piece.on_told(told) if self.piece is not None else []
        if effects:
            self.patience.heard(now_us)
        return effects

    def on_claim(self, told: m.ClaimTold, now_us: int) -> list[Any]:
        return self._on_news(self.offer is not None and self.offer.on_claim(told), now_us)

    def _on_news(self, is_news: bool, now_us: int) -> list[Any]:
        """Something that was owed has come, unless it had come before."""
        if not is_news:
            return []
        self.patience.heard(now_us)
        return self.pump(now_us)

    def offers(self, claim: int) -> bool:
        return self.offer is not None and self.offer.claim == claim

    def on_refuse(self, refuse: m.Refuse, now_us: int) -> list[Any]:
        text = refuse.text
        if refuse.request and refuse.code in _OF_VALUES and (self.delivery.pushing or self.delivery.ticking):
            self.unread = (code_of(refuse.code), text)  # of a pull: the push and the tick beside it are carried out all the same
            return self.pump(now_us)
        if self.delivery.on_refuse(refuse):
            return self._on_news(True, now_us)
        return self.fail(code_of(refuse.code), text)

    def on_map(self, moved: frozenset[int], clock_moved: bool, now_us: int) -> list[Any]:
        """A new map: what is owed by ranges that have moved is asked for where they lie now."""
        if not self.started:
            return self.start(now_us)
        if (ended := self.job.ended()) is not None:
            return self.on_end(*ended)
        return [*self.owed.resend(moved), *(self.owed.resend_to_clock() if clock_moved else ()), *self.pump(now_us)]

    # -- the end

    def on_end(self, code: Code, text: str) -> list[Any]:
        """The job has ended, or cannot go on."""
        return self._finish() if self.delivery.leaving else self.fail(code, text)

    def fail(self, code: Code, text: str, told: bool = False) -> list[Any]:
        """Answer err and forget the rest."""
        if self.over:
            return []
        if self.accepted:
            self.acceptance.fail(code, text)
            return []
        if self.orphan:
            self.drop()
            return []
        delivery = self.delivery
        pushed, held, ticked = delivery.pushed, delivery.held(), delivery.ticking and delivery.ticked
        self.close()
        effects = self._drop_copy()
        return effects + self.channel.fail(code, text, pushed=pushed, held=held, ticked=ticked, crc=delivery.crc if pushed else 0, told=told)

    def drop(self) -> None:
        """Forget it, wherever it stands."""
        if not self.over:
            if self.accepted:
                self.acceptance.forget()
            self.close()
            if not self.accepted:
                self.channel.request = None

    def let_go(self) -> None:
        """The program goes on: nothing is fetched for it."""
        self.pulling, self.fetch = False, None
        if not self.delivery.begun:  # what was kept is read when its turn comes
            self.read, self.prepared, self.data = not self.request.pushes, False, None
            self.delivery.release()

    def answer(self, n: int | None = None) -> Answer:
        """What an ok says of it."""
        job, delivery, fetch = self.job, self.delivery, self.fetch
        clock = self.channel.clock + (1 if delivery.ticking else 0)
        version = fetch.gather.version if fetch is not None and not fetch.empty else self.channel.version
        lag = job.lag_of(clock) if self.request.verb in _LAGGED else None
        return Answer(version, lag, self.channel.stopped or job.ends_before(clock), n)

    def _finish(self) -> list[Any]:
        delivery, fetch, worker = self.delivery, self.fetch, self.channel.worker
        if delivery.pushing:
            assert delivery.scatter is not None
            self.job.staleness.pushed(worker, delivery.tables(), delivery.scatter.behind)
        if self.accepted:
            return self.acceptance.end()
        if self.unread is not None:
            return self.fail(self.unread[0], f"{self.unread[1]}; {TAKEN}")
        self.close()
        effects = self._drop_copy()
        if fetch is not None:
            self.job.staleness.pulled(worker, fetch.tables(), max(0, fetch.clock - self.job.slowest))
            effects += fetch.landing.finish()
        if delivery.leaving:
            self.channel.said_bye = True
        return effects + self.channel.finish(self.answer(), pushed=delivery.pushing, ticked=delivery.ticking, crc=delivery.crc)

    def _drop_copy(self) -> list[Any]:
        return self._acceptance.drop_copy() if self._acceptance is not None else []

    def release(self) -> None:
        """It is forgotten: so is all that it has in memory, at once."""
        self.data = self.fetch = self.offer = self._acceptance = None
        self.delivery.release()

    def _fenced(self, newest: int) -> str:
        return f"worker {self.channel.worker} runs as generation {newest} now; this program is of generation {self.channel.gen}"

    def close(self) -> None:
        self.over = True
        self.credits.blocked.pop(self, None)
        self.delivery.give_up()
        if self.offer is not None:
            self.offer.give_up()
