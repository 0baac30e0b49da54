"""One request's walk from `grad` to the reply.

    read push -> check -> (first values given) -> Push to each range, Pulls beside them -> all acked
        -> Tick -> gate -> Values -> param -> words of the page -> done -> reply

Owns what is still owed to this one request and when it is asked for again.  Refuses to know other requests: turns are
the channel's, places the router's, bytes under way the transfer's.  Nothing is sent before the whole push was found
good.  `pump` may be called at any time and does whatever has become possible.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..core.effects import Send
from ..core.errors import Code
from ..core.limits import Limits
from ..shm_protocol.page import PARKED
from ..shm_protocol.request import Request
from ..wire import messages as m
from . import effects as e
from .channel import Channel
from .router import Credits, Job
from .transfer import Gather, Scatter, Stream


class Operation:
    """The request that a channel is working on.  `over` once it has been answered."""

    __slots__ = (
        "channel", "job", "stream", "request", "number", "limits", "credits", "scatter", "gather", "buffer", "text_values", "read", "ticking",
        "tick_sent", "ticked", "leaving", "left", "claim", "claim_asked", "init_done_sent", "over", "heard_us", "backoff_us", "due_us",
        "quiet_since_us", "explain_us", "parked", "gate_seen", "nack_wait_us",
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
        self.scatter: Scatter | None = None
        self.gather: Gather | None = None
        self.buffer: Any = None  # the push as read
        self.text_values: bytearray | None = None  # fmt=text: values are gathered here first
        self.read = False
        self.ticking = self.request.verb in ("step", "clock")
        self.tick_sent = False
        self.ticked = False
        self.leaving = self.request.verb == "bye"
        self.left = False
        self.claim: int | None = None  # init: what the clock answered
        self.claim_asked = False
        self.init_done_sent = False
        self.over = False
        self.heard_us = now_us  # when something owed to us came last
        self.backoff_us = limits.resend_us
        self.due_us = now_us + limits.resend_us
        self.quiet_since_us = now_us
        self.explain_us = now_us + limits.explain_us
        self.parked = False
        self.gate_seen = False
        self.nack_wait_us = max(1, limits.resend_us // 8)

    # -- walking on

    def start(self, now_us: int) -> list[Any]:
        """The first step.  Without a map it waits: an adopted channel may be earlier than the master."""
        if self.job.map is None:
            return []
        ended = self.job.ended()
        if ended is not None and not self.leaving:
            return self.fail(*ended)
        newest = self.job.newest_gen(self.channel.worker)
        if newest > self.channel.gen:
            return self.fail(Code.FENCED, self._fenced(newest))
        if self.leaving and ended is not None:
            return self._finish()
        if self.request.pushes and not self.read:
            return [e.ReadPush(self.channel.name, self.request.text, self.request.n is None)]
        return self.pump(now_us)

    def on_push_read(self, push: e.PushRead, now_us: int) -> list[Any]:
        if self.read or self.over:
            return []
        if push.code:
            return self.fail(push.code, push.text)
        self.read = True
        self.buffer = push.buffer
        return self.pump(now_us)

    def pump(self, now_us: int) -> list[Any]:
        """Everything that has become possible.  May end the request."""
        if self.over or (self.request.pushes and not self.read):
            return []
        if self.leaving:
            return self._pump_leave()
        if self.request.verb == "init":
            effects = self._pump_init()
        else:
            effects = self._pump_push()
        if self.scatter is None or self.scatter.sent:
            effects += self._pump_pull()
        if self._complete():
            effects += self._finish()
        return effects

    def _pump_push(self) -> list[Any]:
        """Push, and once every part is acked the tick."""
        job, request = self.job, self.request
        if not job.ready:
            return []
        effects: list[Any] = []
        if request.pushes:
            if self.scatter is None:
                assert job.plan is not None
                self.scatter = Scatter(
                    job, self.stream, request.seq, request.clock, request.weight, self.buffer, job.plan.parts, self.credits
                )  # fmt: skip
            if self.scatter.unsent:
                effects += self.scatter.pump(self)
            if not self.scatter.done:
                return effects
        if self.ticking and not self.tick_sent:
            self.tick_sent = True
            effects.append(self._tick())
        return effects

    def _pump_init(self) -> list[Any]:
        """Claim the right to give the first values, give them, say so; whoever has no claim waits for another's."""
        job = self.job
        assert job.plan is not None
        if job.initialised > 0 or not job.plan.program_tables:
            return []
        if not self.claim:
            if self.claim_asked:
                return []
            self.claim_asked = True
            return [self._to_clock(m.ClaimAsk)]
        effects: list[Any] = []
        if self.scatter is None:
            parts = tuple(part.only(job.plan.program_tables) for part in job.plan.parts)
            parts = tuple(part for part in parts if part.segments)
            self.scatter = Scatter(job, self.stream, 0, 0, 0.0, self.buffer, parts, self.credits, claim=self.claim)
        if self.scatter.unsent:
            effects += self.scatter.pump(self)
        if self.scatter.done and not self.init_done_sent:
            self.init_done_sent = True
            effects.append(self._init_done())
        return effects

    def _pump_pull(self) -> list[Any]:
        if not self.request.pulls or not self.job.ready:
            return []
        if self.gather is None:
            self.gather = self._new_gather()
        if not self.gather.unsent or self.job.slowest < self._slowest_needed():
            return []
        return self.gather.pump()

    def _new_gather(self) -> Gather:
        plan = self.job.plan
        assert plan is not None
        clock = self._read_clock()
        gather = Gather(self.job, self.number, self.stream.worker, self.stream.gen, plan.closed_needed(clock), self.limits.window_bytes)
        if plan.reads_own_pushes:
            gather.after = dict(self.stream.prev)
            if self.scatter is not None and not self.scatter.claim:
                gather.after = dict.fromkeys(plan.by_range, self.request.seq)
        if self.request.text:
            self.text_values = bytearray(plan.nbytes)
        return gather

    def _pump_leave(self) -> list[Any]:
        if self.left:
            return self._finish()
        if self.tick_sent:
            return []
        self.tick_sent = True
        return [self._leave()]

    def _read_clock(self) -> int:
        """The clock whose state is to be read: a step reads in the clock that its tick opens."""
        return self.channel.clock + 1 if self.ticking else self.channel.clock

    def _slowest_needed(self) -> int:
        assert self.job.plan is not None
        return self.job.plan.slowest_needed(self._read_clock())

    def _gate_open(self) -> bool:
        """As far as we know, the values that we wait for may be read."""
        if self.gather is None:
            return True
        return self.job.closed >= self.gather.closed and self.job.slowest >= self._slowest_needed()

    def _complete(self) -> bool:
        if self.request.verb == "init":
            return self.gather is not None and self.gather.done
        if not self.job.ready or (self.scatter is not None and not self.scatter.done):
            return False
        if self.ticking and not self.ticked:
            return False
        return not self.request.pulls or (self.gather is not None and self.gather.done)

    # -- answers

    def on_last(self, told: m.LastTold, now_us: int) -> list[Any]:
        if self.scatter is None or not self.scatter.on_last(told):
            return []
        self._heard(now_us)
        return self.pump(now_us)

    def on_ack(self, ack: m.PushAck | m.InitAck, now_us: int) -> list[Any]:
        if self.scatter is None or not self.scatter.on_ack(ack):
            return []
        self._heard(now_us)
        return self.pump(now_us) if self.scatter.sent else []

    def on_values(self, values: m.Values, now_us: int) -> list[Any]:
        gather = self.gather
        if gather is None:
            return []
        slices = gather.on_values(values)
        if slices is None:
            return []
        self._heard(now_us)
        self.stream.base[values.range] = values.version
        if self.ticking and gather.closed and values.closed >= gather.closed:
            self.ticked = True  # a clock closes only with our tick
        effects: list[Any] = []
        if self.text_values is None:
            name = self.channel.name
            for place, frame in zip(slices, values.payload):
                effects.append(e.WriteParam(name, place.offset, frame))
        else:
            for place, frame in zip(slices, values.payload):
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
            if self.tick_sent and self.ticking and standing.finished > channel.clock:
                if not self.ticked:
                    self._heard(now_us)
                self.ticked = True
            if self.leaving and self.tick_sent and standing.end >= 0:
                self.left = True
        if self.gather is not None and not self.gate_seen and self._gate_open():
            self.gate_seen = True
            self._heard(now_us)  # from here on the ranges owe us values
        return self.pump(now_us)

    def on_claim(self, told: m.ClaimTold, now_us: int) -> list[Any]:
        if not self.claim_asked or self.claim:
            return []
        self._heard(now_us)
        self.claim = told.claim
        return self.pump(now_us) if told.claim else []

    def concerns(self, refuse: m.Refuse) -> bool:
        """Is this refusal about us?  Ranges name the push's seq, the clock (code SEQ) the clock; 0 is about the stream."""
        if refuse.code == Code.SEQ:
            return self.ticking and self.tick_sent and refuse.seq == self.channel.clock
        return refuse.seq in (0, self.request.seq)

    def on_refuse(self, refuse: m.Refuse) -> list[Any]:
        try:
            code = Code(refuse.code)
        except ValueError:
            code = Code.INTERNAL
        return self.fail(code, refuse.text)

    def on_nack(self, now_us: int) -> list[Any]:
        """Not taken by this map.  A newer one brings `on_map`; without one its server is behind and gets a moment."""
        if self.due_us > now_us + self.nack_wait_us:
            self.heard_us = now_us
            self.backoff_us = self.nack_wait_us
            self.due_us = now_us + self.nack_wait_us
            self.nack_wait_us = min(2 * self.nack_wait_us, self.limits.resend_us_max)
        return []

    def on_map(self, moved: frozenset[int], clock_moved: bool, now_us: int) -> list[Any]:
        """A new map: what is owed by ranges that have moved is asked for where they lie now."""
        ended = self.job.ended()
        if ended is not None and not self.leaving:
            return self.fail(*ended)
        if not self.under_way or (self.request.pushes and not self.read):
            return self.start(now_us)
        effects: list[Any] = []
        if self.scatter is not None:
            effects += self.scatter.resend(moved)
        if self.gather is not None and self._gate_open():
            effects += self.gather.resend(moved)
        if clock_moved:
            effects += self._resend_to_clock()
        return effects + self.pump(now_us)

    # -- the end

    def fail(self, code: Code, text: str) -> list[Any]:
        """Answer err and forget the rest.  What was acked stays applied; the text of the server says what was not."""
        if self.over:
            return []
        self._close()
        return self.channel.fail(code, text)

    def _fenced(self, newest: int) -> str:
        return f"worker {self.channel.worker} runs as generation {newest} now; this program is of generation {self.channel.gen}"

    def drop(self) -> None:
        """The channel is gone: nobody waits for the answer any more."""
        if not self.over:
            self._close()
            self.channel.request = None

    def _finish(self) -> list[Any]:
        self._close()
        channel, request = self.channel, self.request
        effects: list[Any] = []
        if self.text_values is not None:
            effects.append(e.WriteText(channel.name, self.text_values))
        version = self.gather.version if self.gather is not None else channel.version
        if self.leaving:
            channel.said_bye = True
        pushed = request.pushes and request.verb != "init"
        return effects + channel.finish(version, pushed=pushed, ticked=self.ticking)

    def _close(self) -> None:
        self.over = True
        self.credits.blocked.pop(self, None)
        if self.scatter is not None:
            self.scatter.give_up()

    # -- time

    def on_time(self, now_us: int) -> list[Any]:
        """Ask again for what a server owes us; ask how the clock stands when we wait for other workers."""
        if self.over or now_us < self.due_us:
            return []
        effects: list[Any] = []
        if self.under_way:
            if self._owed_now():
                if now_us >= self.heard_us + self.backoff_us:
                    effects += self._resend()
                    self.heard_us = now_us
                    self.backoff_us = min(2 * self.backoff_us, self.limits.resend_us_max)
                self.due_us = self.heard_us + self.backoff_us
            else:
                effects += self._ask_standing(now_us)
                self.due_us = now_us + self.limits.poll_us
        else:
            self.due_us = now_us + self.limits.resend_us
        if not self.parked:
            self.parked = True
            effects.append(e.SetState(self.channel.name, PARKED))
        return effects

    @property
    def under_way(self) -> bool:
        """Something of it has left this process, or waits for first values."""
        if self.job.map is None:
            return False
        return self.scatter is not None or self.gather is not None or self.tick_sent or self.claim_asked or not self.job.ready

    def _owed_now(self) -> bool:
        """A server owes us an answer that depends on nobody else."""
        if self.scatter is not None and not self.scatter.done:
            return True
        if self.tick_sent and self.ticking and not self.ticked:
            return True
        if self.leaving or (self.init_done_sent and self.job.initialised == 0):
            return True
        return self.gather is not None and bool(self.gather.open) and self._gate_open()

    def _resend(self) -> list[Any]:
        effects: list[Any] = []
        if self.scatter is not None:
            effects += self.scatter.resend()
        if self.gather is not None and self._gate_open():
            effects += self.gather.resend()
        return effects + self._resend_to_clock()

    def _resend_to_clock(self) -> list[Any]:
        if self.tick_sent and self.ticking and not self.ticked:
            return [self._tick()]
        if self.tick_sent and self.leaving and not self.left:
            return [self._leave()]
        if self.init_done_sent and self.job.initialised == 0:
            return [self._init_done()]
        return []

    def _ask_standing(self, now_us: int) -> list[Any]:
        """In case a notice was lost.  One question per job and period serves all its channels."""
        effects: list[Any] = []
        if self.claim_asked and not self.claim and self.job.initialised == 0:
            effects.append(self._to_clock(m.ClaimAsk))
        if now_us - self.job.asked_us >= self.limits.poll_us // 2:
            self.job.asked_us = now_us
            effects.append(self._to_clock(m.StandingAsk))
        return effects

    def _heard(self, now_us: int) -> None:
        self.heard_us = self.quiet_since_us = now_us
        self.backoff_us = self.limits.resend_us
        self.explain_us = now_us + self.limits.explain_us

    def explain(self, now_us: int, local_seen: Callable[[int], int | None]) -> str:
        """What this request waits for, one sentence without a subject; `local_seen` tells when a worker of this host was heard."""
        job, clock = self.job, self.request.clock
        if job.map is None:
            return f"clock {clock}: waiting for the map of job {job.name} from the master"
        if not job.ready and self.request.verb != "init":
            return f"clock {clock}: waiting for initial values of table {self._program_table()}"
        owing = self.scatter.owing() if self.scatter is not None else []
        if not owing and self.gather is not None and self._gate_open():
            owing = self.gather.owing()
        if owing:
            servers = sorted({job.routes[number].server.partition(".")[0] or "a lost server" for number in owing})
            return f"clock {clock}: waiting for server {', '.join(servers[:4])}, {len(owing)} ranges unanswered"
        if self.claim_asked and not self.claim:
            return f"clock {clock}: waiting for initial values of table {self._program_table()}, which another worker gives"
        if (self.ticking and not self.ticked) or self.leaving or self.init_done_sent:
            return f"clock {clock}: waiting for server {job.clock_route.server.partition('.')[0]}, which keeps the job's clock"
        return f"clock {clock}: waiting for {self._awaited(now_us, local_seen)}"

    def _awaited(self, now_us: int, local_seen: Callable[[int], int | None]) -> str:
        words = []
        for worker in self.job.waiting[:4]:
            seen_us = local_seen(worker)
            since_us = self.job.waiting_since_us.get(worker, now_us)
            if seen_us is not None:
                words.append(f"worker {worker}, last seen {(now_us - seen_us) // 1_000_000} s ago")
            else:
                words.append(f"worker {worker}, for {(now_us - since_us) // 1_000_000} s already")
        if len(self.job.waiting) > 4:
            words.append(f"and {len(self.job.waiting) - 4} more")
        return "; ".join(words) or "the other workers"

    def _program_table(self) -> str:
        assert self.job.plan is not None
        return self.job.spec.tables[min(self.job.plan.program_tables)].name

    # -- messages to the clock

    def _tick(self) -> Send:
        job, channel = self.job, self.channel
        assert job.plan is not None
        weight = channel.weight + (self.request.weight if self.request.pushes else 0.0)
        weights = tuple((number, weight) for number in job.plan.tables) if weight else ()
        token = max(job.token, self.scatter.token if self.scatter is not None else 0)
        server, epoch = job.clock_route
        return Send(server, m.Tick(job.number, epoch, token, channel.worker, channel.gen, channel.clock, weights))

    def _leave(self) -> Send:
        job, channel = self.job, self.channel
        server, epoch = job.clock_route
        return Send(server, m.Leave(job.number, epoch, job.token, channel.worker, channel.gen, channel.clock, "bye"))

    def _init_done(self) -> Send:
        job, channel = self.job, self.channel
        server, epoch = job.clock_route
        return Send(server, m.InitDone(job.number, epoch, job.token, channel.worker, channel.gen, self.claim or 0))

    def _to_clock(self, kind: Any) -> Send:
        """ClaimAsk or StandingAsk: both name the stream and nothing else."""
        job, channel = self.job, self.channel
        server, epoch = job.clock_route
        return Send(server, kind(job.number, epoch, job.token, channel.worker, channel.gen))
