"""The desk where launchers and tools come: requests of agent.sock, each checked, carried out, answered once.

Owns what is asked and still unanswered.  Refuses to know channels' turns and the way of pushes.  Every op may be asked
again after a lost connection; bad input is answered with a sentence and changes nothing.

    {"op": "attach", "id": 7, "job": "digits", "worker": 2}
    {"id": 7, "ok": true, "gen": 1, "clock": 0, "info": "version=1 ...", "sizes": {"grad": 2600, "idx": 0, "param": 2600}}
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..core.effects import Log
from ..core.errors import Code, UsageError, shown
from ..core.job import JobSpec
from ..core.jobmap import FAILED, FINISHED, STOPPED
from ..shm_protocol.info import Info
from ..wire import messages as m
from . import effects as e
from .asked import TEXT_MAX, Ticket, checked, no, without, yes
from .channel import Channel
from .exports import Exports
from .guests import Guests
from .house import House
from .lastwords import LastWords
from .launchers import NAME_REASON, Launchers, end_of
from .router import Job
from .stops import Stops

if TYPE_CHECKING:
    from .servers import Servers

SOCKET_VERSION = 1
HOWS = ("finished", "restarting", "lost")
ENDS = (FINISHED, FAILED, STOPPED)
TICKETS_MAX = 4096  # unanswered requests over all connections


class Desk:
    servers: Servers  # who speaks to the clocks for us

    def __init__(self, house: House) -> None:
        self.house = house
        self.by_question: dict[int, Ticket] = {}  # number of a question to the master
        self.for_map: list[Ticket] = []  # register and attach: the job's map is on its way
        self.for_join: dict[tuple[int, int], list[Ticket]] = {}  # attach: (job, worker)
        self.for_leave: dict[tuple[int, int], list[Ticket]] = {}  # exited: (job, worker)
        self.for_channel: dict[str, list[Ticket]] = {}  # opened
        self.for_orphan: dict[str, list[Ticket]] = {}  # exited: the channel's last push is on its way
        house.farewell = self.farewell
        self.exports = Exports(house)
        self.stops = Stops(house)
        self.launchers = Launchers(house)
        self.guests = Guests(house)
        self.last = LastWords(house)
        self._ops: dict[str, Callable[[Ticket, dict[str, Any], int], list[Any]]] = {
            "hello": self._hello, "register": self._register, "attach": self._attach, "opened": self._opened,
            "exited": self._exited, "join": self._join, "standing": self._standing, "export": self._export, "end": self._end, "stat": self._stat,
            "stop": self._stop, "checkpoint": self._checkpoint,
        }  # fmt: skip

    # -- a request comes in

    def on_asked(self, asked: e.Asked, now_us: int) -> list[Any]:
        document = asked.document
        ticket = Ticket(asked.connection, document.get("id"), str(document.get("op"))[:40])
        self.house.counts["asked"] += 1
        try:
            fields = checked(document)
            if self._count() >= TICKETS_MAX:
                return no(ticket, Code.AGAIN, f"the agent works on {TICKETS_MAX} requests already: ask again in a moment")
            return self._ops[ticket.op](ticket, fields, now_us)
        except UsageError as error:
            return no(ticket, Code.FORMAT, str(error))

    def on_hung(self, hung: e.Hung, now_us: int) -> list[Any]:
        """Nobody waits at that connection any more; what was begun goes on, and may be asked for again."""
        gone = hung.connection
        for number in [number for number, ticket in self.by_question.items() if ticket.connection == gone]:
            del self.by_question[number]
            self.house.link.forget(number)
        self.for_map = [ticket for ticket in self.for_map if ticket.connection != gone]
        self.for_join = without(self.for_join, gone)
        self.for_leave = without(self.for_leave, gone)
        self.for_channel = without(self.for_channel, gone)
        self.for_orphan = without(self.for_orphan, gone)
        self.stops.on_hung(gone)
        self.launchers.on_hung(gone, now_us)
        self.guests.on_hung(gone, now_us)
        return self.exports.on_hung(gone)

    def _hello(self, ticket: Ticket, fields: dict[str, Any], now_us: int) -> list[Any]:
        if fields["version"] != SOCKET_VERSION:
            return no(ticket, Code.VERSION, f"this agent speaks version {SOCKET_VERSION} of agent.sock, not {fields['version']}")
        identity = self.house.identity
        return yes(ticket, {"cluster": identity.cluster, "node": identity.node, "boot_id": identity.boot_id})

    def _stat(self, ticket: Ticket, fields: dict[str, Any], now_us: int) -> list[Any]:
        stale = {str(job.number): job.staleness.worst() for job in self.house.jobs.values() if job.staleness.rows}
        return yes(ticket, {"counters": self.house.counters(), "registered": self.house.link.registered, "staleness": stale})

    def on_time(self, now_us: int) -> list[Any]:
        late = [self.servers.leave(job, worker, gen, 0, "lost", now_us) for job, worker, gen in self.guests.on_time(now_us)]
        return sum(late, self.exports.on_time(now_us) + self.stops.on_time(now_us) + self.launchers.on_time(now_us))

    def deadline_us(self, latest_us: int) -> int:
        return self.guests.deadline_us(self.launchers.deadline_us(self.stops.deadline_us(self.exports.deadline_us(latest_us))))

    # -- jobs

    def _register(self, ticket: Ticket, fields: dict[str, Any], now_us: int) -> list[Any]:
        ticket.spec = JobSpec.from_document(fields["spec"])
        ticket.guest = bool(fields.get("joined"))
        if "job" in fields:  # told to a restarted agent: this run exists already, and must not begin anew if it has ended
            ticket.job = self.house.job(fields["job"], ticket.spec.name)
            return self._with_map(ticket, now_us)
        known = self.house.jobs.get(self.house.names.get(ticket.spec.name, 0))
        if known is not None and self.launchers.is_followed(known, ticket.spec):
            ticket.job = known
            return self._ask_master(ticket, end_of(known, NAME_REASON), now_us)
        return self._ask_job(ticket, known.number if known is not None and known.ended() is not None else 0, now_us)

    def _ask_job(self, ticket: Ticket, after: int, now_us: int) -> list[Any]:
        """Ask for the job that runs under the name, or for a run that follows `after`, the newest one known to have ended."""
        assert ticket.spec is not None
        document = ticket.spec.to_document()
        return self._ask_master(ticket, lambda number: m.JobAsk(number, document, after), now_us)

    def _on_job_told(self, ticket: Ticket, told: m.JobTold, now_us: int) -> list[Any]:
        if told.code == Code.AGAIN:
            return self._ask_job(ticket, told.job, now_us)  # the newest run of the name was not known here
        if told.code:
            return no(ticket, told.code, told.text)
        assert ticket.spec is not None
        ticket.job = self.house.job(told.job, ticket.spec.name)
        return self._with_map(ticket, now_us)

    def _join(self, ticket: Ticket, fields: dict[str, Any], now_us: int) -> list[Any]:
        """More workers for a job that somebody else has begun, perhaps on another host."""
        ticket.name, workers, launcher = fields["job"], fields["workers"], fields["launcher"]
        return self._ask_master(ticket, lambda number: m.MoreAsk(number, ticket.name, workers, launcher), now_us)

    def _on_more_told(self, ticket: Ticket, told: m.MoreTold, now_us: int) -> list[Any]:
        if told.code:
            return no(ticket, told.code, told.text)
        ticket.job, ticket.first, ticket.token = self.house.job(told.job, ticket.name), told.first, told.token
        return [*self.house.newer_map(ticket.job, told.token, now_us), *self._with_map(ticket, now_us)]

    def _end(self, ticket: Ticket, fields: dict[str, Any], now_us: int) -> list[Any]:
        if fields["state"] not in ENDS:
            raise UsageError(f"end: state {shown(fields['state'])} is none of {', '.join(ENDS)}")
        job = self._known(ticket, fields)
        state, reason = fields["state"], fields["reason"][:TEXT_MAX]
        return self._ask_master(ticket, lambda number: m.JobEnd(number, job.number, state, reason), now_us)

    def _stop(self, ticket: Ticket, fields: dict[str, Any], now_us: int) -> list[Any]:
        """A stop rule has fired: let all workers end at one clock."""
        job = self._known(ticket, fields)
        ended = job.ended()
        return no(ticket, *ended) if ended is not None else self.stops.begin(ticket, job, fields["reason"][:TEXT_MAX], now_us)

    def _checkpoint(self, ticket: Ticket, fields: dict[str, Any], now_us: int) -> list[Any]:
        job = self._known(ticket, fields)
        ended = job.ended()
        return no(ticket, *ended) if ended is not None else self.stops.save(ticket, job, now_us)

    def _standing(self, ticket: Ticket, fields: dict[str, Any], now_us: int) -> list[Any]:
        """What we know; asking the clock anew is for the next time."""
        job = self._known(ticket, fields)
        document = job.known_document()
        clocks = document["clocks"]
        for channel in self.house.channels.values():
            if channel.number == job.number:
                clocks[str(channel.worker)] = max(channel.clock, clocks.get(str(channel.worker), 0))
        document["waiting_s"] = [max(0, now_us - job.waiting_since_us.get(worker, now_us)) // 1_000_000 for worker in job.waiting]
        document["state"] = job.map.state if job.map is not None else "unknown"
        return [*yes(ticket, document), *self.servers.ask_standing(job)]

    # -- workers

    def _attach(self, ticket: Ticket, fields: dict[str, Any], now_us: int) -> list[Any]:
        ticket.job = self._known(ticket, fields)
        ticket.worker = fields["worker"]
        return self._with_map(ticket, now_us)

    def _with_map(self, ticket: Ticket, now_us: int) -> list[Any]:
        """Go on as soon as the job's map is here."""
        job = ticket.job
        assert job is not None
        if job.map is None or job.token < ticket.token:
            self.for_map.append(ticket)
            return self.house.want_map(job, now_us)
        if ticket.spec is not None and ticket.spec.name != job.name:
            return no(ticket, Code.FORMAT, f"job {job.number} is {job.name!r}, not {ticket.spec.name!r}")
        ended = job.ended()
        if ended is not None:
            return no(ticket, *ended)
        if ticket.op == "join":
            return yes(ticket, {"job": job.number, "spec": job.spec.to_document(), "first": ticket.first, "workers": job.workers})
        if ticket.op == "register":
            if ticket.guest:
                self.guests.add(ticket.connection)
            self._spoke(ticket.connection, job)
            return yes(ticket, {"job": job.number, "spec": job.spec.to_document()})
        if job.failure is not None:
            return no(ticket, *job.failure)
        return self._ask_attach(ticket, job.newest_gen(ticket.worker), now_us)

    def _ask_attach(self, ticket: Ticket, after: int, now_us: int) -> list[Any]:
        """Ask for the generation that follows `after`."""
        assert ticket.job is not None
        number, worker = ticket.job.number, ticket.worker
        return self._ask_master(ticket, lambda request: m.AttachAsk(request, number, worker, after), now_us)

    def on_map(self, job: Job, moved: frozenset[int], now_us: int) -> list[Any]:
        waiting = [ticket for ticket in self.for_map if ticket.job is job]
        self.for_map = [ticket for ticket in self.for_map if ticket.job is not job]
        effects: list[Any] = []
        for ticket in waiting:
            effects += self._with_map(ticket, now_us)
        ended = job.ended()
        effects += self.exports.on_map(job, moved)
        if ended is not None:
            self.launchers.forget(job)
            effects += self._refuse_waiting(job, *ended)
        return effects

    def _refuse_waiting(self, job: Job, code: Code, text: str) -> list[Any]:
        """The job has ended: nobody joins it any more, and who leaves it has left."""
        effects: list[Any] = []
        for key in [key for key in self.for_join if key[0] == job.number]:
            for ticket in self.for_join.pop(key):
                effects += no(ticket, code, text)
        for ticket in self.stops.take(job):
            effects += no(ticket, code, text)
        for key in [key for key in self.for_leave if key[0] == job.number]:
            effects += self._left(key)
        return effects

    def _on_attach_told(self, ticket: Ticket, told: m.AttachTold, now_us: int) -> list[Any]:
        if told.code == Code.AGAIN:
            return self._ask_attach(ticket, told.gen, now_us)  # the newest generation was not known here
        if told.code:
            return no(ticket, told.code, told.text)
        job = ticket.job
        assert job is not None
        ticket.gen = told.gen
        self.for_join.setdefault((job.number, ticket.worker), []).append(ticket)
        return self.servers.join(job, ticket.worker, ticket.gen, now_us)

    def on_standing(self, job: Job, standing: m.Standing, now_us: int) -> list[Any]:
        """A clock speaks to one of our workers, or to all."""
        effects: list[Any] = []
        key = (job.number, standing.worker)
        for ticket in self.for_join.pop(key, []) if key in self.for_join else []:
            if standing.gen < ticket.gen:
                self.for_join.setdefault(key, []).append(ticket)
            elif standing.gen > ticket.gen:
                effects += no(ticket, Code.FENCED, f"worker {ticket.worker} runs as generation {standing.gen} already")
            else:
                effects += self._attached(ticket, standing.finished)
        if standing.end >= 0 and key in self.for_leave:
            effects += self._left(key)
        return effects + self.stops.on_standing(job, standing) + self.exports.on_standing(job, now_us)

    def on_refused_join(self, job: Job, worker: int, code: int, text: str) -> list[Any]:
        effects: list[Any] = []
        for ticket in self.for_join.pop((job.number, worker), []):
            effects += no(ticket, code, text)
        if (job.number, worker) in self.for_leave:
            effects += self._left((job.number, worker))
        return effects

    def _attached(self, ticket: Ticket, clock: int) -> list[Any]:
        job = ticket.job
        assert job is not None
        if ticket.connection in self.guests.connections:
            self.guests.attached(ticket.connection, job, ticket.worker, ticket.gen)
        workers = max(job.workers, ticket.worker + 1)
        info = Info.of(job.spec, ticket.worker, ticket.gen, self.house.identity.boot_id, clock, job.number, workers)
        sizes = {"grad": info.cap_grad, "idx": info.cap_idx, "param": info.cap_param}
        return yes(ticket, {"gen": ticket.gen, "clock": clock, "info": info.format(), "sizes": sizes})

    def _opened(self, ticket: Ticket, fields: dict[str, Any], now_us: int) -> list[Any]:
        name = f"{fields['job']}.{fields['worker']}.{fields['gen']}"
        if fields["dir"].rstrip("/").rpartition("/")[2] != name:
            raise UsageError(f"opened: dir {shown(fields['dir'])} is not the channel {name}")
        if name in self.house.channels:
            return yes(ticket, {})
        self.for_channel.setdefault(name, []).append(ticket)
        return [e.OpenChannel(name)]

    def on_opened(self, name: str) -> list[Any]:
        effects: list[Any] = []
        for ticket in self.for_channel.pop(name, []):
            effects += yes(ticket, {})
        return effects

    def on_channel_failed(self, failed: e.ChannelFailed) -> list[Any]:
        effects: list[Any] = []
        for ticket in self.for_channel.pop(failed.channel, []):
            effects += no(ticket, failed.code, failed.text)
        return effects

    def _exited(self, ticket: Ticket, fields: dict[str, Any], now_us: int) -> list[Any]:
        """A program has ended.  Its channel is served no more; unless it comes back, its worker leaves the clock.

        The directory goes after the answer: should we die before it, the next agent finds the same last words there.
        """
        if fields["how"] not in HOWS:
            raise UsageError(f"exited: how {shown(fields['how'])} is none of {', '.join(HOWS)}")
        job = self._known(ticket, fields)
        ticket.job, ticket.worker, ticket.gen = job, fields["worker"], fields["gen"]
        self.guests.settled(job.number, ticket.worker)
        channel = self.house.by_stream.get((job.number, ticket.worker, ticket.gen))
        ticket.how, ticket.clock = fields["how"], fields.get("clock")
        if channel is not None and self.house.abandon(channel):
            self.for_orphan.setdefault(channel.name, []).append(ticket)
            return []
        return self._depart(ticket, now_us)

    def farewell(self, channel: Channel, now_us: int) -> list[Any]:
        """The last push of a program that has ended is where it belongs."""
        effects: list[Any] = []
        for ticket in self.for_orphan.pop(channel.name, []):
            effects += self._depart(ticket, now_us)
        if not channel.kept and channel.name in self.house.channels:
            effects.append(Log("keeper_gone", {"channel": channel.name, "done_seq": channel.done_seq}))
            effects += self.house.close_channel(channel)
            job = self.house.jobs.get(channel.number)
            if job is not None and self.guests.is_guest(job, channel.worker):  # the others go on without it
                effects += self.servers.leave(job, channel.worker, channel.gen, channel.clock, "lost", now_us)
            self.launchers.on_left(channel)
            self.launchers.look(channel.number, now_us)
        return effects

    def _depart(self, ticket: Ticket, now_us: int) -> list[Any]:
        job = ticket.job
        assert job is not None
        if ticket.how == "restarting" or job.ended() is not None:
            return self._say_last_words(ticket)
        self.for_leave.setdefault((job.number, ticket.worker), []).append(ticket)
        clock = self.last.of(ticket).clocks if ticket.clock is None else ticket.clock
        channel = self.house.by_stream.get((job.number, ticket.worker, ticket.gen))
        unseen = channel is not None and channel.piece_owed  # a piece of input that its program never saw goes to somebody else
        return self.servers.leave(job, ticket.worker, ticket.gen, clock, "lost" if unseen else ticket.how, now_us)

    def _left(self, key: tuple[int, int]) -> list[Any]:
        effects: list[Any] = []
        for ticket in self.for_leave.pop(key, []):
            effects += self._say_last_words(ticket)
        return effects

    def _say_last_words(self, ticket: Ticket) -> list[Any]:
        assert ticket.job is not None
        effects = yes(ticket, {**self.last.of(ticket).to_document(), "members": ticket.job.members})
        channel = self.house.by_stream.get((ticket.job.number, ticket.worker, ticket.gen))
        if channel is not None:
            self.last.keep((ticket.job.number, ticket.worker), self.last.of(ticket))
            effects += self.house.close_channel(channel)
            self.launchers.on_left(channel)
        return effects

    def _export(self, ticket: Ticket, fields: dict[str, Any], now_us: int) -> list[Any]:
        job = self._known(ticket, fields)
        if not fields["dir"].startswith("/"):
            raise UsageError(f"export: dir {shown(fields['dir'])} is no absolute path")
        ended = job.ended()
        if ended is not None:
            return no(ticket, *ended)
        if job.map is None:
            return no(ticket, Code.AGAIN, f"the map of job {job.name!r} has not come yet: ask again in a moment")
        at = fields.get("at", 0)
        if at and (not job.spec.snapshot_every or at % job.spec.snapshot_every):
            every = job.spec.snapshot_every
            kept = f"multiples of {every} are kept" if every else "the job keeps no snapshots (snapshot_every)"
            raise UsageError(f"export: there is no snapshot of clock {at}: {kept}")
        return self.exports.begin(ticket, job, fields["dir"], at, now_us)

    # -- the master's answers

    def _ask_master(self, ticket: Ticket, build: Callable[[int], Any], now_us: int) -> list[Any]:
        number, effects = self.house.link.ask(build, now_us)
        self.by_question[number] = ticket
        self.house.wake(now_us + self.house.limits.resend_us)
        return effects

    def on_answer(self, told: Any, now_us: int) -> list[Any]:
        ticket = self.by_question.pop(told.request, None)
        if ticket is None:
            return []
        if isinstance(told, m.JobTold):
            return self._on_job_told(ticket, told, now_us)
        if isinstance(told, m.AttachTold):
            return self._on_attach_told(ticket, told, now_us)
        if isinstance(told, m.MoreTold):
            return self._on_more_told(ticket, told, now_us)
        if ticket.op == "register" and ticket.job is not None:  # the run before has ended
            return self._ask_job(ticket, ticket.job.number, now_us)
        return no(ticket, told.code, told.text) if told.code else yes(ticket, {})

    # -- answers

    def _known(self, ticket: Ticket, fields: dict[str, Any]) -> Job:
        """The job of this name: the run that is asked for, else the newest."""
        job = self.house.jobs.get(fields.get("run", self.house.names.get(fields["job"], 0)))
        if job is None or job.name != fields["job"]:
            raise UsageError(f"job {shown(fields['job'])} is not known to this agent: register it first")
        self._spoke(ticket.connection, job)
        return job

    def _spoke(self, connection: int, job: Job) -> None:
        if connection not in self.guests.connections:
            self.launchers.spoke(connection, job)

    def _count(self) -> int:
        waiting = sum(len(tickets) for table in (self.for_join, self.for_leave, self.for_channel, self.for_orphan) for tickets in table.values())
        return waiting + len(self.by_question) + len(self.for_map) + len(self.exports.running) + len(self.stops.running)
