"""The server as one machine: registers, keeps maps, hosts the copies that they name, and hands each message to them.

Messages from this server to itself never leave the process.  Owns which jobs and copies are here, the connections to
other servers, and what the master is told; what is said to copies is `traffic`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from zlib import crc32

from ..core.effects import Connect, Disconnect, Log, Stop
from ..core.errors import PeerError
from ..core.jobmap import RUNNING, JobMap
from ..core.limits import Limits
from ..wire import messages as m
from .effects import Retiring, Turn, Warm
from .hosted import Hosted
from .link import Identity, MasterLink
from .memory import Array, Memory, never_lent
from .pool import endless_room
from .savetraffic import SaveTraffic

_OF_MASTER = frozenset({m.MapTold, m.Registered, m.BeatAck, m.Done, m.NotLeader})
_AT_ONCE = _OF_MASTER | {Turn}  # also while a range is busy


class ServerMachine(SaveTraffic):
    """`is_lent(array)`: a message under way still reads it; `room()`: bytes of memory that the host has left."""

    def __init__(
        self, identity: Identity, limits: Limits, is_lent: Callable[[Array], bool] = never_lent, room: Callable[[], int] = endless_room
    ) -> None:
        super().__init__(identity.node, MasterLink(identity, limits), limits, Memory(is_lent))
        self._room = room
        self._retiring = False  # this process ends as soon as others have what it holds
        self._linked: dict[str, str] = {}  # other servers that our copies and clocks speak to, with their endpoints
        self._handlers: dict[type[Any], Callable[[str, Any], None]] = {
            **dict.fromkeys((m.Push, m.Pull, m.PullAt, m.Scan, m.Init, m.LastAsk), self._on_range),
            **dict.fromkeys((m.Join, m.Tick, m.Leave, m.StandingAsk, m.ClaimAsk, m.InitDone, m.StopAsk, m.SaveAsk, m.NextAsk), self._on_clock),
            **dict.fromkeys((m.CloseAck, m.RosterAck, m.Refuse), self._on_clock_ack),
            **dict.fromkeys((m.Replicate, m.Held, m.Sync, m.CopyAsk, m.CopyTold), self._on_copy),
            **self._save_handlers(),
            m.Close: self._on_close, m.Roster: self._on_roster, m.MapTold: self._on_map, m.Registered: self._on_registered,
            m.BeatAck: self._on_beat_ack, m.Done: self._on_done, m.NotLeader: self._on_not_leader, Turn: self._on_turn, Warm: self._on_warm,
            Retiring: self._on_retiring,
        }  # fmt: skip

    # -- surface of a machine

    def on_message(self, sender: str, message: Any, now_us: int) -> list[Any]:
        """Whatever a server is sent.  A peer that breaks the protocol is logged, and nothing of its message is done."""
        self._begin(now_us)
        if self._turns.queue and self._turns.busy and type(message) not in _AT_ONCE:
            if not sender or len(self._later) < self._limits.parked_max:  # more are as if lost: peers ask again
                self._later.append((sender, message))
        else:
            self._do(sender, message)
        effects = self._finish()
        return [*effects, *self._retire()] if self._retiring else effects

    def _begin(self, now_us: int) -> None:
        self._memory.begin_event()
        self._turns.left_bytes = self._limits.turn_bytes
        self._now_us = now_us

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
        if type(message) in _OF_MASTER and not self.link.lead.knows(sender):
            raise PeerError(f"{type(message).__name__} from a node that is no master")
        if sender == self.name:  # what we tell ourselves never comes in here
            raise PeerError(f"{type(message).__name__} in our own name")
        return handler

    def on_time(self, now_us: int) -> list[Any]:
        self._begin(now_us)
        if now_us >= self.link.deadline_us():
            self._emit(self.link.on_time(now_us, self._counters()))
        if self._turns.busy:
            return self._finish()
        for replica in self._alarms.take(now_us):
            self._emit(replica.on_time(now_us))
            self._after(replica)
        self._emit(self.checkpoints.on_time(self.jobs, now_us))
        return self._finish()

    def deadline_us(self) -> int | None:
        due_us = self.link.deadline_us()
        if self._turns.busy:
            return due_us
        alarms = self._alarms.heap
        if alarms and alarms[0][0] < due_us:
            due_us = alarms[0][0]
        save_us = self.checkpoints.due_us
        return due_us if save_us is None or due_us < save_us else save_us

    def _finish(self) -> list[Any]:
        """What we told ourselves is done in the same event, then what came while a range was busy."""
        turns = self._turns
        while (self._own or self._later) and not turns.busy:
            if self._own:
                message = self._own.popleft()
                self._handlers[type(message)](self.name, message)
            else:
                self._do(*self._later.popleft())
        if turns.queue and turns.wants_turn():
            self._effects.append(Turn())
        effects, self._effects = self._effects, []
        return effects

    # -- maps

    def _on_map(self, sender: str, told: m.MapTold) -> None:
        new = JobMap.from_document(told.document)
        hosted = self.jobs.get(new.number)
        self.link.map_came(new.number)
        self._later.extend(self._early.take())  # some of it may be somebody else's now
        if hosted is not None:
            hosted.checked_token = max(hosted.checked_token, new.token)  # no further: it may have been on its way for long
        if new.token <= self._token_of(new.number):
            return
        self._turns.finish(self._now_us)
        if new.state != RUNNING:  # a lost one too: nobody can do anything with the rest of it
            self._drop(new)
            return
        if hosted is None:
            if all(self.name not in (*item.replicas, item.learner) for item in new.ranges.values()):
                self._is_elsewhere(new)
                return
            self._elsewhere.pop(new.number, None)
            self._host(new)
        else:
            self._adopt(hosted, new)
        self._link_servers()

    def _adopt(self, hosted: Hosted, new: JobMap) -> None:
        """A newer map of a job: copies come, go, and begin another epoch."""
        for key, numbers in hosted.closings.flush():
            self._ack(hosted, key, numbers)
        self._emit(hosted.adopt(new, self._now_us))
        self.saving.on_map(hosted)
        self._emit(self.checkpoints.on_map(hosted, self._now_us))
        hosted.checked_token = max(hosted.checked_token, new.token)
        for number, replica in hosted.replicas.items():
            self.link.seat_settled(hosted.number, number, replica.seat.epoch)
            self._after(replica)

    def _host(self, new: JobMap) -> None:
        """Make room for a job that is new here, or say that there is none."""
        room_bytes = self._left()
        hosted = self.jobs[new.number] = Hosted(self.name, new.number, self._limits, self._memory, self._left)
        self._adopt(hosted, new)
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

    def _is_elsewhere(self, new: JobMap) -> None:
        """Nothing of the job is to be here: an older map that comes late does not bring it."""
        self._elsewhere[new.number] = new.token
        if len(self._elsewhere) > self._limits.jobs_max:
            del self._elsewhere[next(iter(self._elsewhere))]

    def _drop(self, new: JobMap) -> None:
        """The job has ended: its memory is free for others."""
        self._is_elsewhere(new)
        self.link.job_ended(new.number)
        hosted = self.jobs.pop(new.number, None)
        if hosted is not None:
            self.saving.forget(new.number)
            self._emit(self.checkpoints.forget(hosted))
            hosted.end()
            self._memory.forget_free()
            self._effects.append(Log("job_dropped", {"job": new.number, "state": new.state, "reason": new.reason}))
            self._link_servers()

    def _link_servers(self) -> None:
        """Connections to the servers that copies and clocks here speak to, and to no others."""
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
        self._effects += self.link.on_registered(sender, told, self._now_us)
        if self._retiring:
            self._effects += self.link.retire(self._now_us)  # a master that did not know us knows nothing of that either
        self._check_maps()

    def _on_retiring(self, sender: str, event: Retiring) -> None:
        self._retiring = True
        self._effects.append(Log("retiring", {"copies": self.copies()}))
        self._effects += self.link.retire(self._now_us)

    def _retire(self) -> list[Any]:
        """Nobody relies on what is here any more: then this process has done its work."""
        if self.copies() or not self.link.retired:
            return []
        self._retiring = False
        return [Stop(0, "told to end, and others have what it held")]

    def copies(self) -> int:
        """How many copies of ranges lie here."""
        return sum(len(hosted.replicas) for hosted in self.jobs.values())

    def _on_beat_ack(self, sender: str, ack: m.BeatAck) -> None:
        self._effects += self.link.on_beat_ack(sender, ack, self._now_us)
        self._check_maps()

    def _on_not_leader(self, sender: str, told: m.NotLeader) -> None:
        self._effects += self.link.on_not_leader(sender, told, self._now_us, self._counters())

    def _check_maps(self) -> None:
        """The cluster's token has risen: perhaps by a map of ours."""
        for hosted in self.jobs.values():
            if self.link.token > hosted.checked_token:
                self._ask_map(hosted.number, hosted.token)

    def _on_done(self, sender: str, done: m.Done) -> None:
        self._emit(self.checkpoints.on_done(self.jobs, done, self._now_us))
        self._effects += self.link.on_done(done, self._now_us)

    def _counters(self) -> dict[str, int]:
        copies = [replica for hosted in self.jobs.values() for replica in hosted.replicas.values()]
        ranges = sum(replica.leads for replica in copies)
        nbytes = sum(hosted.nbytes + hosted.pool.taken for hosted in self.jobs.values())
        rows = sum(hosted.row_count for hosted in self.jobs.values())
        return {**self.counters, "jobs": len(self.jobs), "ranges": ranges, "copies": len(copies), "bytes": nbytes, "rows": rows}

    # -- what must always hold

    def check(self) -> None:
        assert not self._effects and (self._turns.busy or not self._own), "an event left something undone"
        assert self._turns.busy or not self._later, "messages wait for nothing"
        self._turns.check()
        assert len(self._elsewhere) <= self._limits.jobs_max
        self._warmth.check()
        self._early.check()
        self.saving.check(self.jobs)
        for hosted in self.jobs.values():
            for replica in hosted.replicas.values():
                replica.check()

    def digest(self) -> int:
        total = crc32(self.name.encode())
        for number, hosted in sorted(self.jobs.items()):
            total = crc32(f"{number} {hosted.token}".encode(), total)
            for held in hosted.ranges.values():
                total = crc32(held.digest().to_bytes(4, "little"), total)
        return total
