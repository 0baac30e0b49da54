"""The server as one machine: registers, keeps maps, and hands each message to the range or the clock that it is for.

    agent  --Push, Pull, Init, LastAsk-->  range          master  --MapTold-->  ranges, clock
    agent  --Join, Tick, Leave ...----->   clock          clock   --Close, Roster-->  every range here, one ack for all

Owns the rules of maps: who is behind asks the master and answers Nack meanwhile; who shows an old epoch gets a Nack.
Messages from this server to itself never leave the process.  Refuses to know what a push does to a range.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any
from zlib import crc32

from ..core.effects import Connect, Disconnect, Log, Send
from ..core.errors import Code, PeerError
from ..core.jobmap import RUNNING, JobMap
from ..core.limits import Limits
from ..wire import messages as m
from ..wire.codec import NO_RANGE
from .closing import Closing
from .effects import JobFailed, Turn, Warm
from .hosted import Hosted
from .link import Identity, MasterLink
from .memory import Array, Memory, never_lent
from .pool import endless_room
from .range import RangeMachine
from .warmth import State, Warmth

_READS = (m.Pull, m.PullAt, m.Scan)
_OF_MASTER = frozenset({m.MapTold, m.Registered, m.BeatAck, m.Done})


class ServerMachine:
    """`is_lent(array)`: a message under way still reads it; `room()`: bytes of memory that the host has left."""

    def __init__(
        self, identity: Identity, limits: Limits, is_lent: Callable[[Array], bool] = never_lent, room: Callable[[], int] = endless_room
    ) -> None:
        self.name = identity.node
        self.jobs: dict[int, Hosted] = {}
        self.link = MasterLink(identity, limits)
        self.counters = {"pushes": 0, "pulls": 0, "ticks": 0, "nexts": 0, "closes": 0, "refused": 0, "nacks": 0, "dropped": 0}
        self._limits = limits
        self._memory = Memory(is_lent)
        self._room = room
        self._warmth = Warmth(limits)
        self._ended: dict[int, int] = {}  # job -> token of the map that ended it
        self._linked: dict[str, str] = {}  # other servers that our clocks speak to, with their endpoints
        self._closings: deque[Closing] = deque()
        self._turning = False  # a Turn is on its way back
        self._pushing: tuple[Hosted, RangeMachine] | None = None  # in the middle of a large push
        self._later: deque[tuple[str, Any]] = deque()  # what came meanwhile, in order
        self._own: deque[Any] = deque()  # messages to ourselves
        self._effects: list[Any] = []
        self._now_us = 0
        self._handlers: dict[type[Any], Callable[[str, Any], None]] = {
            **dict.fromkeys((m.Push, m.Pull, m.PullAt, m.Scan, m.Init, m.LastAsk), self._on_range),
            **dict.fromkeys((m.Join, m.Tick, m.Leave, m.StandingAsk, m.ClaimAsk, m.InitDone, m.StopAsk, m.NextAsk), self._on_clock),
            **dict.fromkeys((m.CloseAck, m.RosterAck, m.Refuse), self._on_clock_ack),
            m.Close: self._on_close, m.Roster: self._on_roster, m.MapTold: self._on_map, m.Registered: self._on_registered,
            m.BeatAck: self._on_beat_ack, m.Done: self._on_done, Turn: self._on_turn, Warm: self._on_warm,
        }  # fmt: skip

    # -- surface of a machine

    def on_message(self, sender: str, message: Any, now_us: int) -> list[Any]:
        """Whatever a server is sent.  A peer that breaks the protocol is logged, and nothing of its message is done."""
        self._memory.begin_event()
        self._now_us = now_us
        if self._busy and sender not in ("", self.link.master):
            if len(self._later) < self._limits.parked_max:  # more are as if lost: agents ask again
                self._later.append((sender, message))
        else:
            self._do(sender, message)
        return self._finish()

    @property
    def _busy(self) -> bool:
        """A range is in the middle of something large: nobody else may look at it."""
        return self._pushing is not None or bool(self._closings and self._closings[0].suspended)

    def _do(self, sender: str, message: Any) -> None:
        try:
            self._handler(sender, message)(sender, message)
        except PeerError as error:
            self.counters["dropped"] += 1
            self._effects.append(Log("peer_dropped", {"node": sender, "text": str(error)}))

    def _handler(self, sender: str, message: Any) -> Callable[[str, Any], None]:
        handler = self._handlers.get(type(message))
        if handler is None:
            raise PeerError(f"a server has no use for {type(message).__name__}")
        if type(message) in _OF_MASTER and sender != self.link.master:
            raise PeerError(f"{type(message).__name__} from a node that is not the master")
        if sender == self.name:  # what we tell ourselves never comes in here
            raise PeerError(f"{type(message).__name__} in our own name")
        return handler

    def on_time(self, now_us: int) -> list[Any]:
        self._memory.begin_event()
        self._now_us = now_us
        if now_us >= self.link.deadline_us():
            self._emit(self.link.on_time(now_us, self._counters()))
        for hosted in self.jobs.values():
            if hosted.clock is not None:
                self._emit(hosted.clock.on_time(now_us))
        return self._finish()

    def deadline_us(self) -> int | None:
        due_us = self.link.deadline_us()
        for hosted in self.jobs.values():
            if hosted.clock is not None:
                clock_us = hosted.clock.outbox.due_us
                if clock_us is not None and clock_us < due_us:
                    due_us = clock_us
        return due_us

    def _finish(self) -> list[Any]:
        """What we told ourselves is done in the same event, then what came while a range was busy."""
        while (self._own or self._later) and not self._busy:
            if self._own:
                message = self._own.popleft()
                self._handlers[type(message)](self.name, message)
            else:
                self._do(*self._later.popleft())
        effects, self._effects = self._effects, []
        return effects

    def _emit(self, effects: list[Any]) -> None:
        for effect in effects:
            if type(effect) is Send and effect.to == self.name:
                self._own.append(effect.message)
            elif type(effect) is JobFailed:
                self._tell_keeper(effect)
            else:
                self._effects.append(effect)

    def _tell_keeper(self, failed: JobFailed) -> None:
        """The clock's keeper tells everybody that the job cannot go on, and brings the close again until it has heard so."""
        hosted = self.jobs[failed.job]
        server, epoch = hosted.keeper
        news = m.Refuse(failed.job, failed.range, epoch, hosted.token, 0, m.NOBODY, 0, 0, failed.code, failed.reason)
        self._emit([Send(server, news)] if server else [])

    # -- ranges

    def _on_range(self, sender: str, message: Any) -> None:
        hosted = self.jobs.get(message.job)
        held = hosted.ranges.get(message.range) if hosted is not None else None
        if hosted is None or held is None or message.token > held.token or message.epoch != held.epoch:
            self._nack(sender, message, message.range, held.epoch if held else 0)
            return

        kind = type(message)
        if kind is m.Push:
            self.counters["pushes"] += 1
        elif kind is m.Pull:
            self.counters["pulls"] += 1
        if hosted.refusal is not None:
            self._refuse_all(sender, message, hosted, *hosted.refusal)
        elif hosted.sparse and not self._warmth.warm:
            self._warmth.keep(sender, message)
        else:
            self._emit(held.on_message(sender, message, self._now_us))
            if held.suspended:
                self._pushing = (hosted, held)
                self._turn()

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

    # -- the compiled part for rows

    def _on_warm(self, sender: str, warm: Warm) -> None:
        """What waited for it is done in the order in which it came."""
        kept = self._warmth.came(warm.problem)
        if warm.problem:
            self._effects.append(Log("rows_impossible", {"text": warm.problem}))
            for hosted in self.jobs.values():
                self._refuse_if_impossible(hosted)
        self._later.extend(kept)

    def _refuse_if_impossible(self, hosted: Hosted) -> None:
        if hosted.sparse and hosted.refusal is None and self._warmth.state is State.BROKEN:
            text = f"server {self.name} cannot keep the sparse tables of job {hosted.spec.name!r}: {self._warmth.problem}"
            hosted.refusal = (Code.INTERNAL, text)
            self._effects += self.link.job_failed(hosted.number, text, self._now_us)

    # -- clocks

    def _on_clock(self, sender: str, message: Any) -> None:
        hosted = self.jobs.get(message.job)
        clock = hosted.clock if hosted is not None else None
        if hosted is None or clock is None or message.token > clock.token or message.epoch != clock.epoch:
            number = hosted.clock_range if hosted is not None else NO_RANGE
            self._nack(sender, message, number, clock.epoch if clock else 0)
            return

        if type(message) is m.Tick:
            self.counters["ticks"] += 1
            if message.seq and not hosted.holds(message.ranges, message.worker, message.gen, message.seq):
                return  # it rode behind a push that is not held here: it comes again when that is acked
        elif type(message) is m.NextAsk:
            self.counters["nexts"] += 1
        self._emit(clock.on_message(sender, message, self._now_us))

    def _on_clock_ack(self, sender: str, message: Any) -> None:
        """An ack of ranges, or one that cannot close.  A late one of an old map changes nothing that is true."""
        hosted = self.jobs.get(message.job)
        if hosted is not None and hosted.clock is not None and message.epoch == hosted.clock.epoch:
            self._emit(hosted.clock.on_message(sender, message, self._now_us))

    def _on_close(self, sender: str, close: m.Close) -> None:
        hosted = self._led_by_clock(sender, close)
        if hosted is not None:
            self._closings.append(Closing(hosted, sender, close))
            self._close_on()

    def _on_roster(self, sender: str, roster: m.Roster) -> None:
        hosted = self._led_by_clock(sender, roster)
        if hosted is None:
            return
        for held in hosted.ranges.values():
            self._emit(held.on_message(sender, roster, self._now_us))
        ack = m.RosterAck(roster.job, roster.epoch, hosted.token, roster.number, tuple(hosted.ranges))
        self._emit([Send(sender, ack)])

    def _led_by_clock(self, sender: str, message: Any) -> Hosted | None:
        """The job, if the message comes from the keeper of its clock and our map is not older.  It is sent again."""
        hosted = self.jobs.get(message.job)
        if hosted is None or message.token > hosted.token:
            self._ask_map(message.job, message.token)
            return None
        return hosted if (sender, message.epoch) == hosted.keeper else None

    def _on_turn(self, sender: str, turn: Turn) -> None:
        self._turning = False
        if self._now_us >= self.link.deadline_us():
            self._emit(self.link.on_time(self._now_us, self._counters()))  # time may not come between turns, and a beat must
        if self._pushing is not None:
            self._push_on(*self._pushing)
        self._close_on()

    def _turn(self) -> None:
        if not self._turning:
            self._turning = True
            self._effects.append(Turn())

    def _push_on(self, hosted: Hosted, held: RangeMachine) -> None:
        """The next slice of a large push; nothing more if its job has ended meanwhile."""
        if self.jobs.get(hosted.number) is hosted and hosted.ranges.get(held.number) is held:
            self._emit(held.go_on())
            if held.suspended:
                self._turn()
                return
        self._pushing = None

    def _close_on(self) -> None:
        """Step what is to be closed, at most so many bytes before what was answered so far is sent."""
        budget_bytes = self._limits.turn_bytes
        while self._closings and not self._turning and self._pushing is None:
            closing = self._closings[0]
            if self.jobs.get(closing.hosted.number) is not closing.hosted:
                self._closings.popleft()  # the job has ended meanwhile
                continue
            budget_bytes = closing.go_on(budget_bytes, self._emit, self._now_us)
            if closing.over:
                self._closings.popleft()
                self.counters["closes"] += 1
                self._emit(closing.ack())
            if budget_bytes <= 0 and self._closings:
                self._turn()

    # -- maps

    def _nack(self, sender: str, message: Any, number: int, epoch: int) -> None:
        """Not taken.  If our map may be the older one, the master is asked."""
        token = self._token_of(message.job)
        if message.token > token or (message.job not in self.jobs and message.job not in self._ended):
            self._ask_map(message.job, message.token)
        self.counters["nacks"] += 1
        request = message.request if isinstance(message, _READS) else 0
        self._effects.append(Send(sender, m.Nack(message.job, number, epoch, token, request)))

    def _token_of(self, job: int) -> int:
        hosted = self.jobs.get(job)
        return hosted.token if hosted is not None else self._ended.get(job, 0)

    def _ask_map(self, job: int, token: int) -> None:
        self._effects += self.link.ask_map(job, token, self._now_us)

    def _on_map(self, sender: str, told: m.MapTold) -> None:
        new = JobMap.from_document(told.document)
        hosted = self.jobs.get(new.number)
        self.link.map_came(new.number)
        if hosted is not None:
            hosted.checked_token = max(hosted.checked_token, self.link.token)
        if new.token <= self._token_of(new.number):
            return
        if new.state != RUNNING:  # a lost one too: nobody can do anything with the rest of it
            self._drop(new)
            return
        if hosted is None:
            if all(item.primary != self.name for item in new.ranges.values()):
                return
            self._host(new)
        else:
            hosted.adopt(new)
            hosted.checked_token = max(new.token, self.link.token)
        self._link_servers()

    def _host(self, new: JobMap) -> None:
        """Make room for a job that is new here, or say that there is none."""
        room_bytes = self._left()
        hosted = self.jobs[new.number] = Hosted(self.name, new.number, self._limits, self._memory, self._left)
        hosted.adopt(new)
        hosted.checked_token = max(new.token, self.link.token)
        hosted.refuse_if_full(room_bytes, self.name)
        fields = {"job": new.number, "name": new.spec.name, "ranges": len(hosted.ranges), "bytes": hosted.nbytes}
        self._effects.append(Log("job_hosted", {**fields, "clock": hosted.clock is not None}))
        if hosted.refusal is not None:
            self._effects += self.link.job_failed(new.number, hosted.refusal[1], self._now_us)
        elif hosted.sparse:
            self._effects += self._warmth.wanted()
            self._refuse_if_impossible(hosted)

    def _left(self) -> int:
        """Memory that the host has, less what was promised to dense tables."""
        return self._room() - sum(hosted.untouched_bytes() for hosted in self.jobs.values())

    def _drop(self, new: JobMap) -> None:
        """The job has ended: its memory is free for others."""
        self._ended[new.number] = new.token
        if len(self._ended) > self._limits.jobs_max:
            del self._ended[next(iter(self._ended))]
        self.link.job_ended(new.number)
        if self.jobs.pop(new.number, None) is not None:
            self._memory.forget_free()
            self._effects.append(Log("job_dropped", {"job": new.number, "state": new.state, "reason": new.reason}))
            self._link_servers()

    def _link_servers(self) -> None:
        """Connections to the servers that our clocks have to reach, and to no others."""
        wanted: dict[str, str] = {}
        for hosted in self.jobs.values():
            wanted.update(hosted.others())
        for server in [server for server in self._linked if server not in wanted]:
            del self._linked[server]
            self._effects.append(Disconnect(server))
        for server, endpoint in wanted.items():
            if self._linked.get(server) != endpoint:
                self._linked[server] = endpoint
                self._effects.append(Connect(server, endpoint))

    # -- the master

    def _on_registered(self, sender: str, told: m.Registered) -> None:
        self._effects += self.link.on_registered(told, self._now_us)
        self._check_maps()

    def _on_beat_ack(self, sender: str, ack: m.BeatAck) -> None:
        self._effects += self.link.on_beat_ack(ack, self._now_us)
        self._check_maps()

    def _check_maps(self) -> None:
        """The cluster's token has risen: perhaps by a map of ours."""
        for hosted in self.jobs.values():
            if self.link.token > hosted.checked_token:
                self._ask_map(hosted.number, hosted.token)

    def _on_done(self, sender: str, done: m.Done) -> None:
        self._effects += self.link.on_done(done)

    def _counters(self) -> dict[str, int]:
        ranges = sum(len(hosted.ranges) for hosted in self.jobs.values())
        nbytes = sum(hosted.nbytes + hosted.pool.taken for hosted in self.jobs.values())
        rows = sum(hosted.row_count for hosted in self.jobs.values())
        return {**self.counters, "jobs": len(self.jobs), "ranges": ranges, "bytes": nbytes, "rows": rows}

    # -- what must always hold

    def check(self) -> None:
        assert not self._effects and (self._busy or not self._own), "an event left something undone"
        assert bool(self._closings or self._pushing) == self._turning
        assert self._busy or not self._later, "messages wait for nothing"
        assert len(self._ended) <= self._limits.jobs_max
        self._warmth.check()
        for hosted in self.jobs.values():
            for held in hosted.ranges.values():
                held.check()
            if hosted.clock is not None:
                hosted.clock.check()

    def digest(self) -> int:
        total = crc32(self.name.encode())
        for number, hosted in sorted(self.jobs.items()):
            total = crc32(f"{number} {hosted.token}".encode(), total)
            for held in hosted.ranges.values():
                total = crc32(held.digest().to_bytes(4, "little"), total)
            if hosted.clock is not None:
                total = crc32(hosted.clock.digest().to_bytes(4, "little"), total)
        return total
