"""One copy of one range on this server: its log, its part in the epoch, and the entries that wait to be applied.

    message -> consider (range) -> append -> Replicate ... Held -> committed -> apply, in turns -> what the entry says
    map     -> a new epoch: lead, follow, or learn

Only the primary of the epoch considers and answers, and one that was a backup not before all that its log held is
committed and applied.  Refuses to know other ranges, connections, and how the master decides.
"""

from __future__ import annotations

from typing import Any, Union

from ..core.effects import Effects
from ..core.effects import Log as LogLine
from ..core.errors import PeerError, RequestError
from ..core.jobmap import Assignment
from ..core.limits import Limits
from ..wire import messages as m
from .blocks import Slices, whole
from .clock import ClockMachine
from .contents import Taken
from .dump import Dump
from .effects import AskSeat
from .log import Entry, Log, payload_bytes
from .range import NoRoom, RangeMachine
from .replica_clock import consider
from .replica_follow import BrokenCopy, Follow
from .replica_lead import Lead
from .replica_learn import Learn
from .replica_seat import Seat

_READS = frozenset({m.Pull, m.PullAt, m.Scan, m.LastAsk})
_FLOORS = 4  # times in `closes_max` clocks that the clock's backups are told which closes all ranges have


class Replica:
    """`range` is what is applied.  Whoever feeds it looks at `ready` afterwards, and lets it `apply`."""

    def __init__(self, name: str, held: RangeMachine, limits: Limits, min_insync: int) -> None:
        self.range = held
        self.clock: ClockMachine | None = held.clock  # of the job, if this is its range
        self.log = Log()
        self.seat = Seat(name, held.job, held.number, limits)
        self.part: Union[Lead, Follow, Learn] = Follow(self.seat, self.log, held)
        self.leads = False  # it is the primary of its epoch
        self.serves = False  # and everything that was before it is applied
        self.alone = False  # and has the only copy: an entry is committed as it is appended
        self.cold = False  # its file of a checkpoint is being read: it says nothing until `warm`
        self.stuck = ""  # why no further entry can be applied here
        self.early = False  # somebody has spoken to it before it served
        self.queued = False  # for whoever lets replicas apply in turns
        self.alarm_us: int | None = None  # for whoever keeps their timers
        self.gone = False  # nobody's any more
        self._limits = limits
        self._min_insync = min_insync
        self._seated: Assignment | None = None  # newest, while cold
        self._work: Slices[list[Any]] | None = None  # an entry that is applied in part
        self._ready_at = 0
        self._registered = 0  # entries up to here are known to the range as under way

    # -- maps

    def adopt(self, item: Assignment, token: int, now_us: int) -> list[Any]:
        """A newer map.  Who was a learner and is one again in another epoch is another Replica."""
        seat, held = self.seat, self.range
        seat.token = held.token = token
        if item.epoch == seat.epoch:
            return []
        led = self.serves
        seat.epoch = held.epoch = item.epoch
        seat.primary = item.primary
        if self.cold:
            self._seated = item
            return []
        if isinstance(self.part, Lead):
            self.part.end()
        if isinstance(self.part, Learn) and not self.part.whole and item.learner != seat.name:
            self.stuck = f"server {seat.name} was named in sync while it was being filled"
        if item.primary == seat.name and not self.stuck:
            return self._lead(item, led, now_us)
        self._step_down()
        if item.learner == seat.name:
            self.part = Learn(seat, self.log, held, item.born, now_us)
            return self.part.on_time(now_us)
        self.part = Follow(seat, self.log, held)
        return [self._ask_to_drop()] if self.stuck else []

    def warm(self, dump: Dump, now_us: int) -> list[Any]:
        """What the range starts from is here: every copy in sync starts so, at the same position.  Raises as `RangeMachine.restore` does."""
        assert self.cold and self._seated is not None
        self.range.restore(dump)
        self.log.begin(self.range.version)
        self.cold, self.seat.epoch = False, 0
        return self.adopt(self._seated, self.seat.token, now_us)

    def _lead(self, item: Assignment, led: bool, now_us: int) -> list[Any]:
        self.part = Lead(self.seat, self.log, self.range, item, self._min_insync, now_us)
        self.leads = True
        self.alone = self.part.alone
        self.range.marking = not self.alone
        self.serves = led
        self._ready_at = self.log.last
        if self.clock is not None and not led:
            self.clock.lead(now_us)  # said when everything is applied
        return self.part.begin(now_us) + self._commit(now_us)

    def _step_down(self) -> None:
        """Somebody else considers and answers from here on."""
        self.leads = self.serves = self.alone = False
        self.range.marking = True
        self.range.underway.clear()
        self._registered = 0
        self.range.forget_parked()

    def end(self) -> None:
        """This node has no part in the range any more: its memory goes back."""
        self.gone = True
        if isinstance(self.part, Lead):
            self.part.end()
        self.range.underway.clear()
        self.range.forget()

    # -- messages of agents and of the clock

    def on_message(self, sender: str, message: Any, now_us: int) -> Effects:
        """Of a stream, to a copy that serves.  Raises `PeerError`."""
        if type(message) in _READS:
            return self.range.read(sender, message)
        if not self.alone or self.log.applied < self.log.last:
            return self.offer(sender, message, now_us)[1]
        verdict = self.range.consider(sender, message)
        return self._at_once(sender, message, verdict, now_us) if type(verdict) is Taken else verdict

    def _at_once(self, sender: str, message: Any, taken: Taken, now_us: int) -> list[Any]:
        """The only copy, and nothing waits: the entry is committed and applied as it is appended."""
        log, held = self.log, self.range
        entry = Entry(log.last + 1, sender, message, 0, log.written, self.seat.epoch, taken, log.last)
        effects: list[Any]
        try:
            self._work = held.apply(entry, True, now_us)
            effects = self._slice()
        except NoRoom as error:
            effects = held.void(entry, error.why)
        if self._work is not None:  # it is large: the rest in turns
            log.append(sender, message, payload_bytes(message), self.seat.epoch, taken, log.last)
            log.committed = log.last
            return effects
        log.pass_by()
        return effects

    def offer(self, sender: str, message: Any, now_us: int) -> tuple[bool, Effects]:
        """Whether it has become an entry of the log, and what is said at once.  Raises `PeerError`."""
        assert isinstance(self.part, Lead)
        if self.log.last > self.log.applied:
            if type(message) is m.Push and self.part.full():
                return False, []
            self._register()
        verdict = self.range.consider(sender, message)
        if type(verdict) is not Taken:
            return False, verdict
        entry = self.log.append(sender, message, payload_bytes(message), self.seat.epoch, verdict, self.range.version)
        if not self.alone:
            self._register()  # room that it needs is nobody else's, in other ranges of the job neither
        return True, self._appended(entry, now_us)

    def on_clock(self, sender: str, message: Any, now_us: int) -> Effects:
        """To the job's clock.  Raises `PeerError`."""
        assert self.clock is not None
        if type(message) is m.CloseAck or type(message) is m.RosterAck:
            effects = self.clock.on_message(sender, message, now_us)
            return effects + self._tell_floor(now_us)
        verdict = consider(self.clock, sender, message, now_us)
        if type(verdict) is list:
            return verdict
        if self.log.last > self.log.applied:
            self._register()
            if self.range.underway.asks(sender, verdict):
                return []
        if self.alone and self.log.applied == self.log.last:
            log = self.log
            effects = whole(self.range.apply(Entry(log.last + 1, sender, verdict, 0, log.written, self.seat.epoch), True, now_us))
            log.pass_by()
            return effects
        return self._appended(self.log.append(sender, verdict, 0, self.seat.epoch), now_us)

    def _appended(self, entry: Entry, now_us: int) -> list[Any]:
        assert isinstance(self.part, Lead)
        if self.alone:
            self.log.committed = entry.version
            return []
        return self.part.appended(entry, now_us) + self._commit(now_us)

    def _register(self) -> None:
        """What is in the log and not applied has to be known before more is considered."""
        start = max(self._registered, self.log.applied)
        for entry in self.log.after(start):
            self.range.underway.add(entry)
        self._registered = self.log.last

    def _tell_floor(self, now_us: int) -> list[Any]:
        """Backups of the clock keep closes until they hear that all ranges have them."""
        assert self.clock is not None and isinstance(self.part, Lead)
        outbox = self.clock.outbox
        if self.alone or outbox.floor - outbox.told < max(1, self._limits.closes_max // _FLOORS):
            return []
        told = m.CloseAck(self.seat.job, self.seat.epoch, self.seat.token, outbox.floor, ())
        outbox.told = outbox.floor
        return self._appended(self.log.append(self.seat.name, told, 0, self.seat.epoch), now_us)

    # -- messages of copies

    def on_copy(self, sender: str, message: Any, now_us: int) -> list[Any]:
        """In this epoch.  Raises `PeerError`."""
        if self.stuck or self.cold:
            return []
        try:
            return self._heard(sender, message, now_us)
        except BrokenCopy as error:
            return self._stick(str(error))

    def _heard(self, sender: str, message: Any, now_us: int) -> list[Any]:
        part = self.part
        if isinstance(part, Lead):
            if type(message) is m.Held:
                effects = part.on_held(sender, message.last, now_us) + self._commit(now_us)
                self.log.trim(part.lacked())
                return effects
            if type(message) is m.CopyAsk:
                return part.on_copy_ask(sender, message, now_us)
        elif sender == self.seat.primary:
            if type(message) is m.Replicate:
                return part.on_replicate(sender, message)
            if type(message) is m.Sync:
                return part.on_sync(sender, message)
            if type(message) is m.CopyTold and isinstance(part, Learn):
                return part.on_copy_told(message, now_us)
        raise PeerError(f"{type(message).__name__} to a copy that takes none in epoch {self.seat.epoch}")

    def _commit(self, now_us: int) -> list[Any]:
        assert isinstance(self.part, Lead)
        point = self.part.commit_point()
        if point > self.log.committed:
            self.log.commit(point)
            self.part.committed(now_us)
        return [] if self.serves else self._take_over(now_us)

    def _take_over(self, now_us: int) -> list[Any]:
        """Serve, once everything is applied that the log held when this copy was named the primary."""
        if self.stuck or self.log.applied < self._ready_at:
            return []
        self.serves = True
        effects: list[Any] = []
        if self.clock is not None:
            effects += self.clock.lead(now_us)
        return effects + self.range.failed()

    # -- applying

    @property
    def ready(self) -> bool:
        """Whether an entry waits to be applied."""
        return self.log.applied < self.log.committed and not self.stuck

    def apply(self, budget_bytes: int, most: int, now_us: int) -> tuple[int, list[Any]]:
        """Apply committed entries until the budget is used up, at most so many; returns what is left of it."""
        effects: list[Any] = []
        log, held, part, leads = self.log, self.range, self.part, self.leads
        try:
            while log.applied < log.committed and most > 0 and budget_bytes > 0 and not self.stuck:
                entry = log.next()
                budget_bytes -= held.cost(entry)
                try:
                    if self._work is None:
                        self._work = held.apply(entry, leads, now_us)
                    effects += self._slice()
                except NoRoom as error:
                    effects += self._void(entry, error.why)
                if self._work is not None:
                    return 0, effects
                log.applied += 1
                most -= 1
                if isinstance(part, Follow):
                    part.compare()
        except BrokenCopy as error:
            effects += self._stick(str(error))
        log.trim(part.lacked() if isinstance(part, Lead) and not self.alone else log.last)
        if leads and not self.serves:
            effects += self._take_over(now_us)
        return budget_bytes, effects

    def _slice(self) -> list[Any]:
        """About `turn_bytes` of the entry that is being applied; what it says, once it is over."""
        work, self._work = self._work, None  # for good, if it is over or raises
        assert work is not None
        done = 0
        try:
            while done < self._limits.turn_bytes:
                done += next(work)
        except StopIteration as end:
            effects: list[Any] = end.value
            return effects
        self._work = work
        return []

    @property
    def suspended(self) -> bool:
        """An entry is applied in part: nobody may look at the range, only `apply` goes on."""
        return self._work is not None

    def _void(self, entry: Entry, why: RequestError) -> list[Any]:
        """No memory for an entry: it comes to nothing if nobody else has it, else this copy is none any more."""
        asks = self.part.forsake_learner(why.text) if isinstance(self.part, Lead) else None
        if asks is None:
            raise BrokenCopy(why.text)
        self.alone = True
        return asks + self.range.void(entry, why)

    def _stick(self, reason: str) -> list[Any]:
        """This copy takes nothing and says nothing any more, and asks to be dropped."""
        self.stuck = reason
        self.serves = False
        seat = self.seat
        line = LogLine("copy_broken", {"job": seat.job, "range": seat.range, "epoch": seat.epoch, "text": reason})
        return [line, self._ask_to_drop()]

    def _ask_to_drop(self) -> AskSeat:
        seat = self.seat
        return AskSeat(seat.job, seat.range, seat.epoch, "drop", seat.name, self.stuck)

    # -- time

    @property
    def due_us(self) -> int | None:
        """When `on_time` is to be called."""
        if self.alone:
            return self.clock.outbox.due_us if self.clock is not None and self.serves else None
        part = self.part
        due_us = part.due_us if isinstance(part, (Lead, Learn)) and not self.stuck else None
        if self.serves and self.clock is not None:
            clock_us = self.clock.outbox.due_us
            if clock_us is not None and (due_us is None or clock_us < due_us):
                return clock_us
        return due_us

    def on_time(self, now_us: int) -> list[Any]:
        part = self.part
        effects = part.on_time(now_us) if isinstance(part, (Lead, Learn)) and not self.stuck else []
        if isinstance(part, Lead):
            self.alone = part.alone
            self.log.trim(part.lacked())  # somebody may have been given up
        if self.serves and self.clock is not None:
            effects += self.clock.on_time(now_us)
        return effects

    # -- what must always hold

    def check(self) -> None:
        self.log.check()
        if self.suspended:
            return
        assert self.range.version == self.log.applied
        assert self.leads == isinstance(self.part, Lead)
        assert not self.serves or self.leads
        assert not self.alone or (isinstance(self.part, Lead) and self.part.alone)
        self.range.check()
        if isinstance(self.part, Lead):
            self.part.check()
