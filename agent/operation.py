"""One request's walk from `grad` to the reply.

    read push -> check -> (first values given) -> Push to each range, Pulls beside them -> all acked -> Tick (which rides
        behind the push where one server has it all) -> gate -> Values -> param -> words of the page -> done -> reply

Owns what is still owed to this one request and when it is asked for again.  Refuses to know other requests: turns are
the channel's, places the router's, bytes under way the transfer's.  Nothing is sent before the whole push was found
good.  `pump` may be called at any time and does whatever has become possible.
"""

from __future__ import annotations

from typing import Any

from ..core.effects import Send
from ..core.errors import Code
from ..core.limits import Limits
from ..shm_protocol.page import PARKED
from ..shm_protocol.request import Request
from ..wire import messages as m
from . import effects as e
from .channel import TAKEN, Channel
from .offer import Offer
from .patience import Patience
from .router import Credits, Job, code_of
from .transfer import Gather, Scatter, Stream


class Operation:
    """The request that a channel is working on.  `over` once it has been answered."""

    __slots__ = (
        "channel", "job", "stream", "request", "number", "limits", "credits", "offer", "scatter", "gather", "buffer", "text_values",
        "read", "started", "taken_up", "unread", "pushing", "ticking", "leaving", "clock_told", "ticked", "left", "orphan", "over",
        "patience", "parked", "gate_seen",
    )  # fmt: skip

    def __init__(self, channel: Channel, job: Job, stream: Stream, number: int, limits: Limits, credits: Credits, now_us: int) -> None:
        assert channel.request is not None
        self.channel = channel
        self.job = job
        self.stream = stream
        self.request: Request = channel.request
        self.number = number  # names this request's pulls
        self.limits = limits
        self.credits = credits
        self.offer: Offer | None = None
        self.scatter: Scatter | None = None
        self.gather: Gather | None = None
        self.buffer: Any = None  # the push as read
        self.text_values: bytearray | None = None  # fmt=text: values are gathered here first
        self.read = not self.request.pushes
        self.started = False  # the job's map was there
        self.taken_up = channel.taken_up  # an earlier agent had begun it, and parts of it may have arrived
        self.unread: tuple[Code, str] | None = None  # why its values cannot be handed over
        self.pushing = self.request.pushes and self.request.verb != "init"
        self.ticking = self.request.verb in ("step", "clock")
        self.leaving = self.request.verb == "bye"
        self.clock_told = False  # Tick or Leave is out
        self.ticked = False
        self.left = False
        self.orphan = False  # its program has ended: only what was begun is brought to an end
        self.over = False
        self.patience = Patience(limits, now_us)
        self.parked = False
        self.gate_seen = False

    # -- walking on

    def start(self, now_us: int) -> list[Any]:
        """The first step.  Without a map it waits: an adopted channel may be earlier than the master."""
        if self.job.map is None:
            return []
        self.started = True
        newest = self.job.newest_gen(self.channel.worker)
        if newest > self.channel.gen:
            return self.fail(Code.FENCED, self._fenced(newest))
        ended = self.job.ended()
        if ended is not None:
            return self._finish() if self.leaving else self.fail(*ended)
        if not self.read:
            return [e.ReadPush(self.channel.name, self.request.text, self.request.n is None)]
        return self.pump(now_us)

    def pump(self, now_us: int) -> list[Any]:
        """Everything that has become possible.  May end the request."""
        if self.over or not self.read or not self.started:
            return []
        if self.orphan or self.leaving:
            return self._pump_orphan() if self.orphan else self._pump_leave()
        if not self.job.ready:
            return self._pump_offer()
        effects = self._pump_push()
        if self.request.pulls and (self.scatter is None or self.scatter.sent):
            effects += self._pump_pull()
        if self._is_carried() and (not self.request.pulls or self.unread is not None or (self.gather is not None and self.gather.done)):
            effects += self._finish()
        return effects

    def _pump_offer(self) -> list[Any]:
        """First values are missing.  `init` offers its own; where they all lie in files, any request may."""
        plan = self.job.plan
        assert plan is not None
        if self.offer is None:
            if plan.program_tables and self.request.verb != "init":
                lone = self.job.spec.workers == 1 and self.channel.worker in self.job.gens  # as the clock has told us
                return self.fail(Code.SEQ, "no first values yet, and no other worker to give them: send init first") if lone else []
            self.offer = Offer(self.job, self.stream, self.channel.name, self.credits, self.buffer if plan.program_tables else None)
        return self.offer.pump(self)

    def _pump_push(self) -> list[Any]:
        """Push, and once every part is acked the tick; where one server has it all, the tick rides behind the push."""
        effects: list[Any] = []
        if self.pushing and self.scatter is None:
            request, plan = self.request, self.job.plan
            assert plan is not None
            if not self.job.takes_pushes_of(request.clock):
                return []
            self.scatter = Scatter(self.job, self.stream, request.seq, request.clock, request.weight, self.buffer, plan.parts, self.credits)
        if self.scatter is not None:
            if self.scatter.unsent:
                effects += self.scatter.pump(self)
            if not self.scatter.done and not (self.job.one_home and self.scatter.at_once):
                return effects
        if self.ticking and not self.clock_told:
            self.clock_told = True
            effects += self._tick()
        return effects

    def _pump_pull(self) -> list[Any]:
        if self.gather is None:
            self.gather = self._new_gather()
        return self.gather.pump() if self.gather.unsent and self.job.slowest >= self.gather.slowest else []

    def _new_gather(self) -> Gather:
        plan = self.job.plan
        assert plan is not None
        clock = self.channel.clock + 1 if self.ticking else self.channel.clock  # a step reads in the clock that its tick opens
        gather = Gather(self.job, self.number, self.stream.worker, self.stream.gen, plan.closed_needed(clock), self.limits.window_bytes)
        gather.slowest = plan.slowest_needed(clock)
        if plan.reads_own_pushes:
            gather.after = dict(self.stream.prev) if self.scatter is None else dict.fromkeys(plan.by_range, self.request.seq)
        if self.request.text:
            self.text_values = bytearray(plan.nbytes)
        return gather

    def _pump_leave(self) -> list[Any]:
        if self.left:
            return self._finish()
        if self.clock_told:
            return []
        self.clock_told = True
        return list(self._leave())

    def _pump_orphan(self) -> list[Any]:
        """What has reached some ranges reaches all of them, and its tick the clock: no half of it stays behind."""
        if not self.job.ready:  # nothing was ever pushed, if the clock says the same
            if self.channel.worker in self.job.gens:
                self.drop()
            return []
        effects = self._pump_push()
        self._bury()
        return effects

    def _bury(self) -> None:
        """Once it has been carried out it counts, although nobody is told."""
        if self._is_carried():
            self.channel.bury(self.request, pushed=self.pushing, ticked=self.ticking)
            self.drop()

    def _gate_open(self) -> bool:
        """As far as we know, the values that we wait for may be read."""
        gather, job = self.gather, self.job
        return gather is None or (job.closed >= gather.closed and job.slowest >= gather.slowest)

    def _is_carried(self) -> bool:
        """All of it that concerns others is where it belongs."""
        pushed = self.scatter.done if self.scatter is not None else not self.pushing
        return pushed and (self.ticked or not self.ticking)

    # -- answers

    def on_push_read(self, push: e.PushRead, now_us: int) -> list[Any]:
        if self.read or self.over:
            return []
        if push.code:
            return self.fail(push.code, push.text)
        self.read = True
        self.buffer = push.buffer
        return self.pump(now_us)

    def on_param_failed(self, failed: e.ParamFailed) -> list[Any]:
        """The program's file refuses its values.  What was begun goes on: the clock must not be left half told."""
        self.unread = (failed.code, failed.text)
        return []

    def on_files_read(self, files: e.FilesRead, now_us: int) -> list[Any]:
        if self.offer is None or self.over:
            return []
        if files.code:
            return self.fail(files.code, files.text)
        self.offer.on_files(files.buffer)
        return self.pump(now_us)

    def on_last(self, told: m.LastTold, now_us: int) -> list[Any]:
        return self._on_news(self.scatter is not None and self.scatter.on_last(told), now_us)

    def on_ack(self, ack: m.PushAck | m.InitAck, now_us: int) -> list[Any]:
        scatter = self.scatter if isinstance(ack, m.PushAck) else self.offer.scatter if self.offer is not None else None
        return self._on_news(scatter is not None and scatter.on_ack(ack), now_us)

    def on_values(self, values: m.Values, now_us: int) -> list[Any]:
        gather = self.gather
        if gather is None or self.orphan:
            return []
        slices = gather.on_values(values)
        if slices is None:
            return []
        self.patience.heard(now_us)
        self.stream.base[values.range] = values.version
        if self.ticking and gather.closed:
            self.ticked = True  # what was asked for is closed, and a clock closes only with our tick
        effects: list[Any] = []
        if self.text_values is None:
            name = self.channel.name
            for place, frame in zip(slices, values.payload, strict=True):
                effects.append(e.WriteParam(name, place.offset, frame))
        else:
            for place, frame in zip(slices, values.payload, strict=True):
                self.text_values[place.offset : place.stop] = frame
        if gather.unsent or gather.done:
            effects += self.pump(now_us)
        return effects

    def on_standing(self, standing: m.Standing, now_us: int) -> list[Any]:
        """The job has taken it already; here it may be the answer to a tick, or open the gate."""
        channel = self.channel
        if standing.worker == channel.worker:
            if standing.gen > channel.gen:
                return self.fail(Code.FENCED, self._fenced(standing.gen))
            if self.clock_told and self.ticking and standing.finished > channel.clock and not self.ticked:
                self.ticked = True
                self.patience.heard(now_us)
            if self.clock_told and self.leaving and standing.end >= 0:
                self.left = True
        if self.gather is not None and not self.gate_seen and self._gate_open():
            self.gate_seen = True
            self.patience.heard(now_us)  # from here on the ranges owe us values
        return self.pump(now_us)

    def on_claim(self, told: m.ClaimTold, now_us: int) -> list[Any]:
        return self._on_news(self.offer is not None and self.offer.on_claim(told), now_us)

    def _on_news(self, is_news: bool, now_us: int) -> list[Any]:
        """Something that was owed has come, unless it had come before."""
        if not is_news:
            return []
        self.patience.heard(now_us)
        return self.pump(now_us)

    def concerns(self, refuse: m.Refuse) -> bool:
        """Is this refusal about us?  Ranges name the push's seq; 0, as the clock says, is about the stream."""
        return refuse.seq in (0, self.request.seq)

    def offers(self, claim: int) -> bool:
        return self.offer is not None and self.offer.claim == claim

    def on_refuse(self, refuse: m.Refuse, now_us: int) -> list[Any]:
        text = refuse.text
        if refuse.request and refuse.code == Code.NOSPC and (self.pushing or self.ticking):
            self.unread = (Code.NOSPC, text)  # of a pull: the push and the tick beside it are carried out all the same
            return self.pump(now_us)
        if self.scatter is not None and self.scatter.taken:
            text += f"; {self.scatter.taken} other parts of this push had been taken"
        return self.fail(code_of(refuse.code), text)

    def on_map(self, moved: frozenset[int], clock_moved: bool, now_us: int) -> list[Any]:
        """A new map: what is owed by ranges that have moved is asked for where they lie now."""
        if not self.started:
            return self.start(now_us)
        ended = self.job.ended()
        if ended is not None:
            return self._finish() if self.leaving else self.fail(*ended)
        return [*self._resend(moved), *(self._resend_to_clock() if clock_moved else ()), *self.pump(now_us)]

    # -- the end

    def fail(self, code: Code, text: str) -> list[Any]:
        """Answer err and forget the rest."""
        if self.over:
            return []
        if self.orphan:
            self.drop()
            return []
        pushed = self.scatter is not None and self.scatter.done
        self._close()
        return self.channel.fail(code, text, pushed=pushed, ticked=self.ticking and self.ticked)

    def abandon(self) -> bool:
        """Nobody waits for the answer any more.  True while what was begun of it is still on its way."""
        if not self.over:
            self.orphan = True
            if (self.pushing or self.ticking) and (self.taken_up or self.scatter is not None or self.clock_told):
                self._bury()
            else:
                self.drop()
        return not self.over

    def drop(self) -> None:
        """Forget it, wherever it stands."""
        if not self.over:
            self._close()
            self.channel.request = None

    def _finish(self) -> list[Any]:
        if self.unread is not None:
            return self.fail(self.unread[0], f"{self.unread[1]}; {TAKEN}")
        self._close()
        effects: list[Any] = []
        if self.text_values is not None:
            effects.append(e.WriteText(self.channel.name, self.text_values))
        if self.leaving:
            self.channel.said_bye = True
        version = self.gather.version if self.gather is not None else self.channel.version
        return effects + self.channel.finish(version, pushed=self.scatter is not None, ticked=self.ticking)

    def _fenced(self, newest: int) -> str:
        return f"worker {self.channel.worker} runs as generation {newest} now; this program is of generation {self.channel.gen}"

    def _close(self) -> None:
        self.over = True
        self.credits.blocked.pop(self, None)
        if self.scatter is not None:
            self.scatter.give_up()
        if self.offer is not None:
            self.offer.give_up()

    # -- time

    def on_time(self, now_us: int) -> list[Any]:
        """Ask again for what a server owes us; ask how the clock stands when we wait for other workers."""
        patience = self.patience
        if self.over or now_us < patience.due_us:
            return []
        effects: list[Any] = []
        if not self.started or not self.read:
            patience.look_again(now_us + self.limits.resend_us)
        elif self.owed_by_clock() or self.owing():
            if patience.is_over(now_us):
                effects += [*self._resend(), *self._resend_to_clock()]
        else:
            effects += self._ask_standing(now_us)
            patience.look_again(now_us + self.limits.poll_us)
        if not self.parked and not self.orphan:
            self.parked = True
            effects.append(e.SetState(self.channel.name, PARKED))
        return effects

    def owing(self) -> list[int]:
        """Ranges that owe us an answer which depends on nobody else."""
        scatter = self._scatter()
        owing = scatter.owing() if scatter is not None else []
        if not owing and not self.orphan and self.gather is not None and self._gate_open():
            owing = self.gather.owing()
        return owing

    def owed_by_clock(self) -> bool:
        """The clock owes us an answer which depends on nobody else."""
        if self.clock_told and not (self.ticked or self.left):
            return True
        return self.offer is not None and not self.orphan and self.offer.owed_by_clock()

    def _scatter(self) -> Scatter | None:
        """What is on its way to the ranges: a push, or first values."""
        return self.scatter if self.scatter is not None or self.offer is None else self.offer.scatter

    def _resend(self, moved: frozenset[int] | None = None) -> list[Any]:
        """To ranges: all of them, or those that have moved."""
        effects: list[Any] = []
        scatter = self._scatter()
        if scatter is not None:
            effects += scatter.resend(moved)
            if scatter.again and not scatter.done:
                self.clock_told = False  # the tick no longer rides: it follows the acks
        if self.gather is not None and not self.orphan and self._gate_open():
            effects += self.gather.resend(moved)
        return effects

    def _resend_to_clock(self) -> list[Any]:
        if self.clock_told and self.ticking and not self.ticked:
            return list(self._tick())
        if self.clock_told and self.leaving and not self.left:
            return list(self._leave())
        return [] if self.offer is None else list(self.offer.resend_to_clock())

    def _ask_standing(self, now_us: int) -> list[Any]:
        """In case a notice was lost.  One question per job and period serves all its channels."""
        effects: list[Any] = [] if self.offer is None else list(self.offer.poll())
        if now_us - self.job.asked_us >= self.limits.poll_us // 2:
            self.job.asked_us = now_us
            effects += self.job.to_clock(m.StandingAsk, self.channel.worker, self.channel.gen)
        return effects

    # -- messages to the clock

    def _tick(self) -> list[Send]:
        channel, plan = self.channel, self.job.plan
        assert plan is not None
        weight = channel.weight + (self.request.weight if self.request.pushes else 0.0)
        weights = tuple((number, weight) for number in plan.tables) if weight else ()
        scatter = self.scatter
        token = scatter.token if scatter is not None else 0
        rides = () if scatter is None or scatter.done else (scatter.seq, tuple(plan.by_range))
        return self.job.to_clock(m.Tick, channel.worker, channel.gen, channel.clock, weights, *rides, token=token)

    def _leave(self) -> list[Send]:
        channel = self.channel
        return self.job.to_clock(m.Leave, channel.worker, channel.gen, channel.clock, "bye")
