"""Messages to the copies on one server: which may be heard here, and what follows when one was.

    agent  --Push, Pull, Init, LastAsk-->  the copy that leads     copy   --Replicate, Held ...-->  the copy of that epoch
    agent  --Join, Tick, Leave ...----->   the clock's copy        clock  --Close, Roster-->        every range led here

Owns the rules of maps: who is behind asks the master and answers Nack meanwhile; who shows an old epoch gets a Nack.  A
copy that leads and is not ready is silent; what comes for it meanwhile is done when it is.  Refuses to know what a message does to a range.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from ..core.effects import Log, Send
from ..core.errors import Code
from ..core.limits import Limits
from ..wire import messages as m
from ..wire.codec import NO_RANGE
from .alarms import Alarms
from .closing import Key, ack
from .effects import AskSeat, Cut, JobFailed, Reached, SaveBegun, Turn, Warm
from .hosted import Hosted
from .link import MasterLink
from .memory import Memory
from .replica import Replica
from .turns import Turns
from .waiting import Waiting
from .warmth import State, Warmth

_READS = (m.Pull, m.PullAt, m.Scan)


class Traffic:
    """One half of a server: what is said to its copies.  The other half keeps maps and speaks with the master."""

    def __init__(self, name: str, link: MasterLink, limits: Limits, memory: Memory) -> None:
        self.name = name
        self.jobs: dict[int, Hosted] = {}
        self.link = link
        self.counters = {"pushes": 0, "pulls": 0, "ticks": 0, "nexts": 0, "closes": 0, "refused": 0, "nacks": 0, "dropped": 0}
        self._limits = limits
        self._memory = memory
        self._warmth = Warmth(limits)
        self._elsewhere: dict[int, int] = {}  # job that has ended or is nothing of ours -> token of the map that says so
        self._turns = Turns(limits.turn_bytes, self._emit)
        self._alarms = Alarms()
        self._own: deque[Any] = deque()  # messages to ourselves
        self._later: deque[tuple[str, Any]] = deque()  # what came while a range was busy, in order
        self._early = Waiting(limits)  # what came to copies that lead and are not ready
        self._effects: list[Any] = []
        self._now_us = 0

    # -- effects

    def _emit(self, effects: Any) -> None:
        for effect in effects:
            kind = type(effect)
            if kind is Send and effect.to == self.name:
                self._own.append(effect.message)
            elif kind is Reached:
                self._reached(effect)
            elif kind is JobFailed:
                self._tell_keeper(effect)
            elif kind is AskSeat:
                self._ask_seat(effect)
            elif kind is Cut or kind is SaveBegun:
                self._save(effect)
            else:
                self._effects.append(effect)

    def _tell_keeper(self, failed: JobFailed) -> None:
        """The clock's keeper tells everybody that the job cannot go on, and brings the close again until it has heard so."""
        hosted = self.jobs[failed.job]
        server, epoch = hosted.keeper
        news = m.Refuse(failed.job, failed.range, epoch, hosted.token, 0, m.NOBODY, 0, 0, failed.code, failed.reason)
        self._emit([Send(server, news)] if server else [])

    def _ask_seat(self, ask: AskSeat) -> None:
        asked = self.link.ask_seat(*ask, now_us=self._now_us)
        if asked:
            self._effects.append(Log("seat_asked", ask._asdict()))
        self._effects += asked

    def _after(self, replica: Replica) -> None:
        """A copy was spoken to: what is committed now is applied, and its next alarm stands."""
        if replica.log.applied < replica.log.committed and not replica.stuck:
            self._go_on(replica)
        self._alarms.set(replica)
        if replica.early and replica.serves:
            self._serve_early(replica)

    def _keep_early(self, sender: str, message: Any, replica: Replica) -> None:
        """It would be asked again only after a while."""
        replica.early = True
        self._early.keep(sender, message)

    def _serve_early(self, replica: Replica) -> None:
        """It is ready: what came before is done in its order, and what is for others waits again."""
        replica.early = False
        self._later.extend(self._early.take())

    def _go_on(self, replica: Replica) -> None:
        """The primary applies at once, since somebody waits; others after they have said what they hold."""
        if replica.serves:
            self._turns.apply(replica, self._now_us)
        elif self._warmth.warm or not self.jobs[replica.seat.job].sparse:  # else it goes on when rows can be kept
            if replica.leads:
                self._turns.apply(replica, self._now_us)
            else:
                self._turns.later(replica)

    def _on_turn(self, sender: str, turn: Turn) -> None:
        if self._turns.busy and self._now_us >= self.link.deadline_us():
            self._emit(self.link.on_time(self._now_us, self._counters()))  # time may not come between slices, and a beat must
        for replica in self._turns.on_turn(self._now_us):
            self._alarms.set(replica)
            if replica.early and replica.serves:
                self._serve_early(replica)

    # -- ranges

    def _on_range(self, sender: str, message: Any) -> None:
        hosted = self.jobs.get(message.job)
        replica = hosted.replicas.get(message.range) if hosted is not None else None
        if hosted is None or replica is None or not (replica.leads or replica.cold) or message.token > hosted.token or message.epoch != replica.seat.epoch:
            self._nack(sender, message, message.range, replica.seat.epoch if replica else 0)
            return

        kind = type(message)
        if kind is m.Push:
            self.counters["pushes"] += 1
        elif kind is m.Pull:
            self.counters["pulls"] += 1
        if hosted.refusal is not None:
            self._refuse_all(sender, message, hosted, *hosted.refusal)
        elif hosted.sparse and not self._warmth.warm:
            self._warmth.waiting.keep(sender, message)
        elif replica.serves:
            self._emit(replica.on_message(sender, message, self._now_us))
            if not replica.alone or replica.log.applied < replica.log.last:
                self._after(replica)
        else:
            self._keep_early(sender, message, replica)

    def _refuse_all(self, sender: str, message: Any, hosted: Hosted, code: Code, text: str) -> None:
        """Every request for numbers that cannot be here is told so."""
        streams = [(m.NOBODY, 0, 0)]
        if isinstance(message, m.Push):
            streams = [component[:3] for component in message.components]
        elif isinstance(message, m.Init):
            streams = [(m.NOBODY, 0, message.claim)]
        elif isinstance(message, (m.Pull, m.LastAsk)):
            streams = [(message.worker, message.gen, 0)]
        request = message.request if isinstance(message, _READS) else 0
        self.counters["refused"] += 1
        for worker, gen, seq in streams:
            refusal = m.Refuse(
                message.job, message.range, message.epoch, hosted.token, request, worker, gen, seq, int(code), text
            )  # fmt: skip
            self._effects.append(Send(sender, refusal))

    # -- the other copies of a range

    def _on_copy(self, sender: str, message: Any) -> None:
        """A word of an older epoch is late; one of a newer comes again, when our map is as new."""
        hosted = self.jobs.get(message.job)
        replica = hosted.replicas.get(message.range) if hosted is not None else None
        if replica is None or message.epoch > replica.seat.epoch:
            if message.token > self._token_of(message.job):
                self._ask_map(message.job, message.token)
            return
        if message.epoch < replica.seat.epoch:
            return
        if type(message) is m.CopyTold and hosted is not None and hosted.sparse and not self._warmth.warm:
            return  # it is asked for again
        self._emit(replica.on_copy(sender, message, self._now_us))
        self._after(replica)

    # -- the compiled part for rows

    def _on_warm(self, sender: str, warm: Warm) -> None:
        """What waited for it is done in the order in which it came."""
        kept = self._warmth.came(warm.problem)
        if warm.problem:
            self._effects.append(Log("rows_impossible", {"text": warm.problem}))
            for hosted in self.jobs.values():
                self._refuse_if_impossible(hosted)
        for hosted in self.jobs.values() if not warm.problem else ():
            for replica in hosted.replicas.values():
                self._after(replica)
        self._later.extend(kept)

    def _refuse_if_impossible(self, hosted: Hosted) -> None:
        if hosted.sparse and hosted.refusal is None and self._warmth.state is State.BROKEN:
            text = f"server {self.name} cannot keep the sparse tables of job {hosted.spec.name!r}: {self._warmth.problem}"
            hosted.refusal = (Code.INTERNAL, text)
            self._effects += self.link.job_failed(hosted.number, text, self._now_us)

    def _counters(self) -> dict[str, int]:
        raise NotImplementedError

    def _save(self, effect: Cut | SaveBegun) -> None:
        raise NotImplementedError

    # -- clocks

    def _on_clock(self, sender: str, message: Any) -> None:
        hosted = self.jobs.get(message.job)
        keeps = hosted.keeps if hosted is not None else None
        if hosted is None or keeps is None or message.token > hosted.token or message.epoch != keeps.seat.epoch:
            number = hosted.clock_range if hosted is not None else NO_RANGE
            self._nack(sender, message, number, keeps.seat.epoch if keeps else 0)
            return
        if type(message) is m.Tick:
            self.counters["ticks"] += 1
            if message.seq and not hosted.holds(message.ranges, message.worker, message.gen, message.seq):
                return  # it rode behind a push that is not held here: it comes again when that is acked
        elif type(message) is m.NextAsk:
            self.counters["nexts"] += 1
        if keeps.serves:
            self._emit(keeps.on_clock(sender, message, self._now_us))
            self._after(keeps)
        else:
            self._keep_early(sender, message, keeps)

    def _on_clock_ack(self, sender: str, message: Any) -> None:
        """An ack of ranges, or one that cannot close.  A late one of an old map changes nothing that is true."""
        hosted = self.jobs.get(message.job)
        keeps = hosted.keeps if hosted is not None else None
        if keeps is not None and keeps.serves and message.epoch == keeps.seat.epoch:
            self._emit(keeps.on_clock(sender, message, self._now_us))
            self._after(keeps)

    def _on_close(self, sender: str, close: m.Close) -> None:
        """Taken by every range that comes to it; the others say how far they are, and those that cannot close why."""
        hosted = self._led_by_clock(sender, close)
        if hosted is None:
            return
        stand: dict[int, list[int]] = {}
        offered = []
        for number, replica in hosted.replicas.items():
            if not replica.serves:
                if replica.leads and not replica.early:  # at most once: it comes again
                    self._keep_early(sender, close, replica)
                continue
            closed, failed = replica.range.closed, replica.range.failed()
            self._emit(failed)
            if not failed and (closed == close.clock or (closed < close.clock and replica.log.last > replica.log.applied)):
                offered.append(replica)
            else:
                stand.setdefault(closed, []).append(number)
        taken = self._offer(hosted, sender, close, (m.Close, close.clock + 1), offered)
        self.counters["closes"] += taken
        for closed, numbers in stand.items():
            self._ack(hosted, (m.Close, closed), numbers)

    def _on_roster(self, sender: str, roster: m.Roster) -> None:
        hosted = self._led_by_clock(sender, roster)
        if hosted is None:
            return
        serving = [replica for replica in hosted.replicas.values() if replica.serves]
        new = [replica for replica in serving if replica.range.shares.number < roster.number]
        self._offer(hosted, sender, roster, (m.Roster, roster.number), new)
        known = [replica.seat.range for replica in serving if replica not in new]
        if known:
            self._ack(hosted, (m.Roster, roster.number), known)

    def _offer(self, hosted: Hosted, sender: str, message: Any, key: Key, replicas: list[Replica]) -> bool:
        """One entry for each of these ranges; they are acked together, when all of them have applied it."""
        taken = False
        for replica in replicas:
            new, effects = replica.offer(sender, message, self._now_us)
            self._emit(effects)
            if new:
                taken = True
                hosted.closings.expect(key, replica.seat.range)
        for replica in replicas:
            self._after(replica)
        return taken

    def _reached(self, reached: Reached) -> None:
        hosted = self.jobs[reached.job]
        numbers = hosted.closings.came(reached.key, reached.range)
        if numbers:
            self._ack(hosted, reached.key, numbers)

    def _ack(self, hosted: Hosted, key: Key, numbers: list[int]) -> None:
        keeper, epoch = hosted.keeper
        if keeper:
            self._emit([Send(keeper, ack(key, hosted.number, epoch, hosted.token, numbers))])

    def _led_by_clock(self, sender: str, message: Any) -> Hosted | None:
        """The job, if the message comes from the keeper of its clock and our map is not older.  It is sent again."""
        hosted = self.jobs.get(message.job)
        if hosted is None or message.token > hosted.token:
            self._ask_map(message.job, message.token)
            return None
        return hosted if (sender, message.epoch) == hosted.keeper else None

    # -- who is behind

    def _nack(self, sender: str, message: Any, number: int, epoch: int) -> None:
        """Not taken.  If our map may be the older one, the master is asked."""
        token = self._token_of(message.job)
        if message.token > token or (message.job not in self.jobs and message.job not in self._elsewhere):
            self._ask_map(message.job, message.token)
        self.counters["nacks"] += 1
        request = message.request if isinstance(message, _READS) else 0
        self._effects.append(Send(sender, m.Nack(message.job, number, epoch, token, request)))

    def _token_of(self, job: int) -> int:
        hosted = self.jobs.get(job)
        return hosted.token if hosted is not None else self._elsewhere.get(job, 0)

    def _ask_map(self, job: int, token: int) -> None:
        self._effects += self.link.ask_map(job, token, self._now_us)
