"""The clock of one job: who has finished which iteration, when a clock closes, who gives the first values.

    Join, Tick, Leave, StandingAsk  ->  Standing          to the agent that spoke
    StopAsk                         ->  Standing          the clock where all workers end is decided once
    NextAsk                         ->  NextTold          the stream's next piece of input
    every member has finished c     ->  Close(c)          to every server of the job, until all ranges acked (BSP)
    slowest, closed, members ...    ->  Standing          to every other agent, as a notice
    membership changes              ->  Roster            to every server of the job, until all ranges acked
    two workers push the same bytes ->  Twins             to the agents of both
    a range cannot close (Refuse)   ->  Refuse            to every agent, and to each that speaks from then on

Closes are decided once, in order, with the incarnation that ticked.  Runs from the log of its range, on every copy the
same: what it says counts from the one that leads alone (`replica_clock`).  Owns membership, ticks and the stop clock;
first values, pieces and twins have books of their own.  Refuses to know values, pushes, and how many agents there will be.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from zlib import crc32

from ..core.clock import BSP
from ..core.effects import Log, Send
from ..core.errors import Code, PeerError, RequestError
from ..core.job import JobSpec
from ..core.kinds import WHOLE_OPTIMIZERS
from ..core.limits import Limits
from ..wire import messages as m
from . import plain
from .claims import Claims
from .effects import SaveBegun
from .members import Member, Members
from .outbox import Outbox
from .saves import Saves
from .twins import Twins
from .weights import Weights, checked_weights, read_ticks, sorted_ticks
from .worklist import Worklist

WAITING_MAX = 16

#: Reasons of a Leave after which a worker's piece of input is done; after any other it comes back.
DONE = ("bye", "finished")


class ClockMachine:
    """Every message of a stream is harmless when it comes again, and refused when the stream has a successor."""

    def __init__(self, job: int, number: int, spec: JobSpec, limits: Limits, epoch: int, token: int) -> None:
        self.job, self.number = job, number  # number of the range that the clock belongs to
        self.epoch, self.token = epoch, token
        self.members = Members(spec.workers)
        self.outbox = Outbox(limits)
        self.closed = 0  # clocks decided so far
        self.stop_clock = spec.stop_clock or -1  # all workers end when they have finished so many clocks; -1 = none is known
        self.work = Worklist(spec.pieces, spec.passes)
        self.twins = Twins()
        self.saves = Saves(spec)
        self.failure: RequestError | None = None  # a range cannot close: nothing is closed any more, and the job has to be ended
        self._spec = spec
        self._asked_to_stop = False  # a rule has fired: nothing changes stop_clock any more
        self._limits = limits
        self._closes = any(spec.consistency_of(table).model == BSP for table in spec.tables)
        self._tables = len(spec.tables)
        self._gradients = frozenset(number for number, table in enumerate(spec.tables) if table.optimizer not in WHOLE_OPTIMIZERS)
        self.claims = Claims(any(table.init in ("program", "file") for table in spec.tables))
        self._ticks: dict[int, dict[int, tuple[int, Weights]]] = {}  # clock -> worker -> (gen that ticked, weights)
        self._agents: dict[str, None] = {}  # nodes that speak for somebody
        self._news: list[Any] = []  # effects of this event beside answer, closes and notices

    def place(self, owners: dict[int, str], epoch: int, token: int) -> None:
        """A map: where each range of the job lies."""
        self.epoch, self.token = epoch, token
        self.outbox.place(owners)

    # -- surface of a machine

    def on_message(self, sender: str, message: Any, now_us: int) -> list[Any]:
        if isinstance(message, m.CloseAck):
            return list(self.outbox.on_close_ack(sender, message, self.epoch, self.token, now_us))
        if isinstance(message, m.RosterAck):
            return list(self.outbox.on_roster_ack(sender, message, self.epoch, self.token, now_us))
        if isinstance(message, m.Refuse):
            return self._on_failure(message)

        before = self._notice()
        roster = self.members.number
        answer = _HANDLERS[type(message)](self, sender, message)
        effects = self._failing((sender,))
        effects += self._close_what_is_done(now_us)
        if self.members.number != roster:
            effects += self.outbox.roster(self._roster(), now_us)
        if isinstance(answer, Member):
            effects.append(Send(sender, self._standing(answer)))
        elif answer is not None:
            effects.append(Send(sender, answer))
        effects += self._news
        self._news = []
        if self._notice() != before:
            told = sender if isinstance(answer, (Member, m.Standing)) else ""
            notice = self._standing(None)
            effects += [Send(agent, notice) for agent in self._agents if agent != told]
        return effects

    def lead(self, now_us: int) -> list[Any]:
        """This copy was a backup, and everything that was decided before is known to it: bring it to all once more."""
        roster = self._roster() if self.members.number else None
        self.saves.lead()
        return self.notices() + self._failing(self._agents) + self.outbox.lead(roster, self.epoch, self.token, now_us)

    def notices(self) -> list[Any]:
        """How the clock stands, to every agent."""
        notice = self._standing(None)
        return [Send(agent, notice) for agent in self._agents]

    def on_time(self, now_us: int) -> list[Any]:
        if self.outbox.due_us is None or now_us < self.outbox.due_us:
            return []
        return list(self.outbox.resend(self.epoch, self.token, now_us))

    def deadline_us(self) -> int | None:
        return self.outbox.due_us

    # -- streams.  Each answers the member whose Standing is due, or a message, or None for silence.

    def _on_join(self, sender: str, join: m.Join) -> Member | m.Refuse:
        """The stream exists; lower incarnations are fenced from here on."""
        if not 0 <= join.worker < self._limits.workers_max:
            return self._refuse(join, Code.RANGE, f"worker {join.worker}; from 0 to {self._limits.workers_max - 1}")
        member = self.members.get(join.worker)
        if member is not None and join.gen < member.gen:
            return self._fenced(join, member)
        if member is not None and join.gen == member.gen:
            self._speaks(sender, member)
            return member
        return self._joined(sender, join.worker, join.gen)

    def too_far(self, clock: int) -> bool:
        """Whether this clock is so far ahead of the ranges that its tick has to wait."""
        return self._closes and clock >= self.outbox.floor + self._limits.closes_max

    def _on_tick(self, sender: str, tick: m.Tick) -> Member | m.Refuse:
        """The worker has finished exactly its next clock.  Its weights were checked before the tick became an entry."""
        member = self._stream(sender, tick)
        if not isinstance(member, Member):
            return member
        if tick.clock < member.finished:
            return member  # a repeat
        if tick.clock > member.finished:
            return self._refuse(tick, Code.SEQ, f"worker {tick.worker} is in clock {member.finished}, not {tick.clock}")
        if 0 <= self.stop_clock <= tick.clock:
            return self._refuse(tick, Code.STOP, f"the job ends for all workers at clock {self.stop_clock}")
        if not member.here:
            return self._refuse(tick, Code.SEQ, f"worker {tick.worker} has left at clock {member.end}")

        if self._closes:
            self._ticks.setdefault(tick.clock, {})[tick.worker] = (tick.gen, tick.weights)
        self.members.finish(member)
        self._compare(member, tick)
        return member

    def _compare(self, member: Member, tick: m.Tick) -> None:
        """Has somebody else pushed the same bytes, clock after clock?  The agents of both are told.

        Counts and finished values (add, assign) may well be equal: a clock without a gradient is not compared.
        """
        crc = tick.crc if any(table in self._gradients for table, _ in tick.weights) else 0
        pair = self.twins.note(tick.worker, tick.clock, crc, self.members.slowest)
        if pair is None:
            return
        told = m.Twins(self.job, self.epoch, self.token, *pair)
        other = self.members.get(pair.other)
        agents = [member.agent] if other is None or other.agent in ("", member.agent) else [member.agent, other.agent]
        self._news += [Send(agent, told) for agent in agents]

    def _on_leave(self, sender: str, leave: m.Leave) -> Member | m.Refuse:
        """The worker ends with what it has finished: nobody waits for it any more."""
        member = self._stream(sender, leave)
        if isinstance(member, Member) and member.here:
            self.members.leave(member)
            self.claims.drop(member.worker)
            self.twins.forget(member.worker)
            if leave.reason in DONE:
                self.work.finish(member.worker, member.finished if self._closes else 0)
            else:
                self.work.lose(member.worker)
        return member

    def _on_stop_ask(self, sender: str, ask: m.StopAsk) -> m.Standing:
        """A stop rule has fired: all end at the clock behind the farthest one that anybody is in.

        The first one decides, and a clock that the job names itself is only brought nearer.
        """
        if not self._asked_to_stop:
            self._asked_to_stop = True
            end = self.members.farthest + 1
            self.stop_clock = end if self.stop_clock < 0 else min(end, self.stop_clock)
            self._news.append(Log("stopping", {"job": self.job, "clock": self.stop_clock, "reason": ask.reason}))
        return self._standing(None)

    def _on_save_ask(self, sender: str, ask: m.SaveAsk) -> m.Standing:
        number = self.saves.ask(ask, self.members.farthest)
        self._news += [SaveBegun(self.job, number, ask.held)] if number else []
        return self._standing(None)

    def _on_next_ask(self, sender: str, ask: m.NextAsk) -> m.NextTold | m.Refuse | None:
        """A piece for the stream; none for a worker that has left, since nobody would give it back."""
        member = self._stream(sender, ask)
        if not isinstance(member, Member):
            return member
        if not self.work.pieces:
            return self._refuse(ask, Code.FORMAT, f"job {self.job} hands out no input: it has no pieces")
        if not member.here and self.work.heard(ask.worker, ask.gen, ask.request):
            return None  # late: a refusal would be taken for one of the bye
        if not member.here:
            return self._refuse(ask, Code.SEQ, f"worker {ask.worker} has left at clock {member.end} and gets no piece")
        told = self.work.ask(ask.worker, ask.gen, ask.request, member.finished if self._closes else 0)
        return m.NextTold(self.job, self.epoch, self.token, ask.worker, ask.gen, ask.request, *told) if told is not None else None

    def _on_standing_ask(self, sender: str, ask: m.StandingAsk) -> Member | m.Refuse | m.Standing:
        """Asked for nobody (a tool, an export), it is told as a notice is."""
        return self._standing(None) if ask.worker == m.NOBODY else self._stream(sender, ask)

    def _on_claim_ask(self, sender: str, ask: m.ClaimAsk) -> m.ClaimTold | m.Refuse:
        """One stream at a time may give the first values; each new one gets a higher number."""
        member = self._stream(sender, ask)
        if not isinstance(member, Member):
            return member
        return m.ClaimTold(self.job, self.epoch, self.token, ask.worker, ask.gen, self.claims.ask(ask.worker, ask.gen, member.here))

    def _on_init_done(self, sender: str, done: m.InitDone) -> Member | m.Refuse:
        member = self._stream(sender, done)
        if not isinstance(member, Member) or self.claims.done(done.worker, done.gen, done.claim):
            return member
        return self._refuse(done, Code.FENCED, f"claim {done.claim} of worker {done.worker} on the first values has fallen")

    def _stream(self, sender: str, message: Any) -> Member | m.Refuse:
        """The member that speaks, under its newest incarnation; a higher one than known has just joined by speaking."""
        member = self.members.get(message.worker)
        if member is None:
            return self._refuse(message, Code.RANGE, f"worker {message.worker} has not joined job {self.job}")
        if message.gen < member.gen:
            return self._fenced(message, member)
        if message.gen > member.gen:
            return self._joined(sender, message.worker, message.gen)
        self._speaks(sender, member)
        return member

    def _joined(self, sender: str, worker: int, gen: int) -> Member:
        """A worker of the roster goes on where it stood; one that comes anew starts where nothing is under way yet, and all end."""
        first = self.closed + bool(self.members.count) if self._closes else self.members.slowest
        self.claims.drop(worker)
        self.work.lose(worker)
        member = self.members.join(worker, gen, sender, min(first, self.stop_clock) if self.stop_clock >= 0 else first)
        self._count_agents()
        return member

    def _speaks(self, sender: str, member: Member) -> None:
        """An agent that was restarted speaks under another name."""
        if member.agent != sender:
            member.agent = sender
            self._count_agents()

    def _count_agents(self) -> None:
        self._agents = {member.agent: None for member in self.members.rows.values() if member.agent}

    def weights(self, weights: tuple[Any, ...]) -> Weights:
        """What a Tick says that its worker weighs.  Raises `PeerError`."""
        return checked_weights(weights, self._tables)

    # -- closing

    def _close_what_is_done(self, now_us: int) -> list[Any]:
        """Close every clock that all its members have finished.  A clock of which nobody is left is closed empty."""
        effects: list[Any] = []
        if self.failure is not None:
            return effects
        if not self._closes:
            save = self.saves.due(self.members.slowest)
            return [SaveBegun(self.job, save, self.members.slowest)] if save else []
        while self._done(self.closed):
            save = self.saves.due(self.closed + 1)
            effects += self.outbox.close(self._close(self.closed, save), now_us)
            self.closed += 1
            effects += [SaveBegun(self.job, save, self.closed)] if save else []
        return effects

    def _done(self, clock: int) -> bool:
        """Whoever left has finished every clock of its own, so only those that are here can be waited for."""
        if self.members.count:
            return self.members.slowest > clock
        return clock in self._ticks

    def _close(self, clock: int, save: int) -> m.Close:
        ticks = self._ticks.pop(clock, {})
        totals: dict[int, float] = {}
        for worker in sorted(ticks):
            for table, weight in ticks[worker][1]:
                totals[table] = totals.get(table, 0.0) + weight
        members = tuple((worker, ticks[worker][0]) for worker in sorted(ticks))
        return m.Close(self.job, self.epoch, self.token, clock, members, tuple(sorted(totals.items())), save)

    def _on_failure(self, refuse: m.Refuse) -> list[Any]:
        """One range cannot close.  The others go no further than they are, so that what is saved is of one time, or nearly."""
        if self.failure is not None:
            return []
        self.failure = RequestError(Code(refuse.code), refuse.text)
        told = Log("job_failed", {"job": self.job, "range": refuse.range, "reason": refuse.text})
        return [told, *self._failing(self._agents)]

    # -- what is told

    def _failing(self, agents: Iterable[str]) -> list[Any]:
        """To these agents, why the job cannot go on; nothing if it can."""
        if self.failure is None:
            return []
        code, text = int(self.failure.code), self.failure.text
        refuse = m.Refuse(self.job, self.number, self.epoch, self.token, 0, m.NOBODY, 0, 0, code, text)
        return [Send(agent, refuse) for agent in agents]

    def _notice(self) -> tuple[int, int, int, int, int]:
        """Whatever of it changes is told to every agent."""
        return (self.members.slowest, self.closed, self.members.count, self.claims.initialised, self.stop_clock)

    def _standing(self, member: Member | None) -> m.Standing:
        worker, gen, finished = (member.worker, member.gen, member.finished) if member else (m.NOBODY, 0, 0)
        return m.Standing(
            self.job, self.epoch, self.token, worker, gen, finished, self.members.slowest, self.closed, self.members.count,
            self.claims.initialised, self.stop_clock, self.members.waiting(WAITING_MAX), member.end if member else -1, self.saves.told, self.saves.problem,
        )  # fmt: skip

    def _roster(self) -> m.Roster:
        return m.Roster(self.job, self.epoch, self.token, self.members.number, self.members.roster())

    def _fenced(self, message: Any, member: Member) -> m.Refuse:
        text = f"generation {member.gen} of worker {member.worker} has taken the place of {message.gen}"
        return self._refuse(message, Code.FENCED, text)

    def _refuse(self, message: Any, code: Code, text: str) -> m.Refuse:
        return m.Refuse(self.job, self.number, self.epoch, self.token, 0, message.worker, message.gen, 0, int(code), text)

    # -- copies

    def dump(self) -> dict[str, Any]:
        """Everything but where ranges lie and what they have acked, as a plain document."""
        return {
            "closed": self.closed, "stop_clock": self.stop_clock, "asked": self._asked_to_stop, "failure": plain.from_failure(self.failure),
            "claims": self.claims.dump(), "members": self.members.dump(), "work": self.work.dump(),
            "twins": self.twins.dump(), "outbox": self.outbox.dump(), "saves": self.saves.dump(), "ticks": sorted_ticks(self._ticks),
        }  # fmt: skip

    def load(self, meta: Any) -> None:
        """What a copy's document says, in place of what is here.  Raises `PeerError`."""
        self.closed, self.failure = plain.whole(plain.field(meta, "closed")), plain.failure(plain.field(meta, "failure"))
        self.stop_clock, self._asked_to_stop = plain.signed(plain.field(meta, "stop_clock")), plain.flag(plain.field(meta, "asked"))
        self.claims.load(plain.field(meta, "claims"))
        self._ticks = plain.once([(clock, read_ticks(some, self._tables)) for clock, some in plain.records(plain.field(meta, "ticks"), plain.whole, plain.listed)])
        self.members.load(plain.field(meta, "members"))
        self.work.load(plain.field(meta, "work"))
        self.twins.load(plain.field(meta, "twins"))
        self.outbox.load(plain.field(meta, "outbox"), self.job, self.epoch, self.token)
        self.saves.load(plain.field(meta, "saves"))
        self._count_agents()
        if self.outbox.decided != self.closed or any(clock < self.closed for clock in self._ticks):
            raise PeerError(f"a copy of the clock has {self.closed} clocks closed, and does not remember the last of them")
        rows = self.members.rows
        if len(rows) > self._limits.workers_max or (self._closes and self.members.count and self.failure is None and self.members.slowest > self.closed):
            raise PeerError("a copy of the clock has members that cannot be")
        if any(worker not in rows or last != rows[worker].finished - 1 for worker, last in self.twins.heard.items()):
            raise PeerError("a copy of the clock compares clocks that nobody has finished")

    def rewind(self, clocks: int) -> None:
        """Loaded from a checkpoint whose cut lies behind so many closed clocks: all incarnations are over, and nothing is under way."""
        self.closed = clocks  # none without closes
        self.outbox.rewind(clocks)
        clocks = clocks if self._closes else self.saves.clock_of_cut
        self.members.rewind(clocks, self._spec.workers)
        self.claims.rewind()
        self._ticks, self.twins, self.failure = {}, Twins(), None
        self.stop_clock, self._asked_to_stop = self._spec.stop_clock or -1, False
        self.work.rewind(max(0, clocks))
        self.saves.rewind(self._spec, self.members.slowest)
        self._count_agents()

    # -- what must always hold

    def check(self) -> None:
        self.members.check()
        self.outbox.check()
        assert self.outbox.floor <= self.closed, "a range closed a clock that was not closed"
        assert all(clock >= self.closed for clock in self._ticks), "a tick of a closed clock was kept"
        if self._closes and self.members.count and self.failure is None:
            assert self.members.slowest <= self.closed, "a clock that all have finished is not closed"
        self.claims.check()
        assert not self._news, "an event left something unsaid"
        assert self._limits.workers_max >= len(self.members.rows)
        self.work.check()
        self.twins.check()

    def digest(self) -> int:
        state = (
            self.members.roster(), [member.finished for member in self.members.rows.values()], self.closed,
            self.claims.state(), sorted_ticks(self._ticks), self.stop_clock, self.work.state(), self.saves.state(), str(self.failure or ""),
        )  # fmt: skip
        return crc32(repr(state).encode())


_HANDLERS: dict[type[Any], Any] = {
    m.Join: ClockMachine._on_join,
    m.Tick: ClockMachine._on_tick,
    m.Leave: ClockMachine._on_leave,
    m.StandingAsk: ClockMachine._on_standing_ask,
    m.ClaimAsk: ClockMachine._on_claim_ask,
    m.InitDone: ClockMachine._on_init_done,
    m.StopAsk: ClockMachine._on_stop_ask,
    m.SaveAsk: ClockMachine._on_save_ask,
    m.NextAsk: ClockMachine._on_next_ask,
}
