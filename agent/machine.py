"""The agent: channels of programs on one side, servers and the master on the other.

Owns which channel belongs to which job, which answer belongs to which request, and when to ask again.  A request's
walk is `Operation`'s, a channel's turns are `Channel`'s, launchers are heard by `Desk`.  Waits for nothing, reads no
clock, touches no file: events in, effects out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from zlib import crc32

from ..core.effects import Connect, Disconnect, Log, Send
from ..core.errors import Code, PeerError
from ..core.jobmap import JobMap
from ..core.limits import Limits
from ..shm_protocol.page import READY
from ..wire import messages as m
from . import effects as e
from .channel import Channel
from .desk import Desk
from .export import Export
from .link import Identity, MasterLink
from .operation import Operation
from .router import Credits, Job
from .transfer import Stream

Key = tuple[int, int, int]  # job, worker, gen


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


class AgentMachine:
    """One host's agent."""

    def __init__(self, identity: Identity, limits: Limits) -> None:
        self.identity = identity
        self.limits = limits
        self.link = MasterLink(identity, limits)
        self.desk = Desk(self)
        self.jobs: dict[int, Job] = {}
        self.names: dict[str, int] = {}  # name -> newest job of that name
        self.channels: dict[str, Channel] = {}
        self.by_stream: dict[Key, Channel] = {}
        self.streams: dict[str, Stream] = {}  # by channel
        self.operations: dict[str, Operation] = {}  # by channel
        self.by_request: dict[int, Operation | Export] = {}
        self.notices: dict[tuple[int, int], Notice] = {}  # by (job, worker)
        self.credits = Credits(limits.window_bytes)
        self.servers: dict[str, str] = {}  # node -> endpoint that we are connected to
        self.counts: dict[str, int] = dict.fromkeys(COUNTS, 0)
        self._request = 0
        self._next_us = 0  # nothing is due before; may be too early, never too late
        self._handlers: dict[type[Any], Callable[[str, Any, int], list[Any]]] = {
            m.PushAck: self._on_push_ack, m.Values: self._on_values, m.Standing: self._on_standing, m.LastTold: self._on_last,
            m.InitAck: self._on_init_ack, m.ClaimTold: self._on_claim, m.Nack: self._on_nack, m.Refuse: self._on_refuse,
            m.Registered: self._on_registered, m.BeatAck: self._on_beat_ack, m.MapTold: self._on_map,
            m.JobTold: self._on_answer, m.AttachTold: self._on_answer, m.Done: self._on_answer, m.AdminTold: self._on_answer,
        }  # fmt: skip
        self._events: dict[type[Any], Callable[[Any, int], list[Any]]] = {
            e.Bell: self._on_bell, e.CmdRead: self._on_cmd, e.PushRead: self._on_push_read, e.Found: self._on_found,
            e.ChannelOpened: self._on_opened, e.ChannelFailed: self._on_channel_failed, e.ParamFailed: self._on_param_failed,
            e.ReplyFailed: self._on_reply_failed, e.KeeperGone: self._on_keeper_gone, e.Asked: self.desk.on_asked,
            e.Hung: self.desk.on_hung, e.ExportFailed: self._on_export, e.ExportEnded: self._on_export,
        }  # fmt: skip

    # -- the machine's surface

    def on_message(self, sender: str, message: Any, now_us: int) -> list[Any]:
        if sender:
            handler = self._handlers.get(type(message))
            if handler is None:
                return self._strange(sender, f"{type(message).__name__} is nothing that an agent is sent")
            return handler(sender, message, now_us)
        return self._events[type(message)](message, now_us)

    def on_time(self, now_us: int) -> list[Any]:
        if now_us < self._next_us:
            return []
        effects = self.link.on_time(now_us, self._token(), self.counters)
        next_us = self.link.deadline_us()
        for (number, worker), notice in self.notices.items():
            if now_us >= notice.due_us:
                notice.backoff_us = min(2 * notice.backoff_us, self.limits.resend_us_max)
                notice.due_us = now_us + notice.backoff_us
                effects += self._say(self.jobs[number], worker, notice)
            next_us = min(next_us, notice.due_us)
        for operation in list(self.operations.values()):
            effects += operation.on_time(now_us)
            if now_us >= operation.explain_us:
                effects += self._explain(operation, now_us)
            next_us = min(next_us, operation.due_us, operation.explain_us)
        for export in self.desk.exports():
            effects += export.on_time(now_us)
            next_us = min(next_us, export.due_us)
        self._next_us = next_us
        return effects

    def deadline_us(self) -> int | None:
        return self._next_us

    def wake(self, at_us: int) -> None:
        """Something is due then."""
        if at_us < self._next_us:
            self._next_us = at_us

    def check(self) -> None:
        """What must hold between any two events."""
        used: dict[str, int] = {}
        for name, operation in self.operations.items():
            assert not operation.over, f"{name}: an answered request is still kept"
            assert self.channels[name] is operation.channel and operation.channel.request is not None, name
            assert self.by_request[operation.number] is operation, name
            if operation.scatter is not None:
                for part, server in operation.scatter.unacked.values():
                    used[server] = used.get(server, 0) + part.nbytes
        assert used == self.credits.used, f"credits {self.credits.used}, but {used} is unanswered"
        for name, channel in self.channels.items():
            assert (channel.request is None) or name in self.operations, f"{name}: nobody works on its request"
            assert channel.cur_seq <= channel.done_seq + 1, f"{name}: cur_seq {channel.cur_seq} done_seq {channel.done_seq}"
        for number, job in self.jobs.items():
            assert job.number == number and (job.plan is None) == (job.map is None), job.name

    def digest(self) -> int:
        """A number that two runs of one history share."""
        lines = [f"{self.link.registered} {self.link.token} {self._request}"]
        for name in sorted(self.channels):
            channel = self.channels[name]
            lines.append(f"{name} {channel.done_seq} {channel.clock} {channel.version} {channel.state} {channel.line!r} {channel.request}")
            lines.append(repr(sorted(self.streams[name].prev.items())))
        for number in sorted(self.jobs):
            job = self.jobs[number]
            lines.append(f"{job.name} {job.token} {job.closed} {job.slowest} {job.initialised} {sorted(job.finished.items())}")
        lines.append(repr(sorted(self.credits.used.items())))
        return crc32("\n".join(lines).encode())

    def counters(self) -> dict[str, int]:
        """Progress and load, for beats and for agent.stat."""
        return {
            **self.counts,
            "channels": len(self.channels),
            "busy": len(self.operations),
            "jobs": sum(job.running for job in self.jobs.values()),
            "pushes": self.counts["pushes_closed"] + sum(channel.pushes for channel in self.channels.values()),
            "unanswered_bytes": sum(self.credits.used.values()),
        }

    # -- channels

    def _on_bell(self, bell: e.Bell, now_us: int) -> list[Any]:
        channel = self.channels.get(bell.channel)
        return [] if channel is None else channel.on_bell(now_us)

    def _on_cmd(self, read: e.CmdRead, now_us: int) -> list[Any]:
        channel = self.channels.get(read.channel)
        if channel is None:
            return []
        job = self.jobs[channel.number]
        before = channel.request
        effects = channel.on_cmd(read)
        if channel.request is None or channel.request is before:
            return effects
        operation = Operation(channel, job, self.streams[channel.name], self.new_request(), self.limits, self.credits, now_us)
        self.operations[channel.name] = operation
        self.by_request[operation.number] = operation
        self.wake(operation.due_us)
        effects += operation.start(now_us)
        return self._settle(operation, effects, now_us)

    def _on_push_read(self, push: e.PushRead, now_us: int) -> list[Any]:
        operation = self.operations.get(push.channel)
        return [] if operation is None else self._settle(operation, operation.on_push_read(push, now_us), now_us)

    def _on_found(self, found: e.Found, now_us: int) -> list[Any]:
        return [e.OpenChannel(found.channel)]

    def _on_opened(self, opened: e.ChannelOpened, now_us: int) -> list[Any]:
        """Adoption, the only way in: for a channel that was made just now and for one that an earlier agent left."""
        job = self.job(opened.number, opened.job)
        channel = Channel(opened, now_us)
        known = self.channels.get(channel.name)
        if known is not None and known.state == READY:
            return self.desk.on_opened(channel.name)
        key = (channel.number, channel.worker, channel.gen)
        self.channels[channel.name] = channel
        self.by_stream[key] = channel
        self.streams[channel.name] = Stream(channel.worker, channel.gen, fresh=opened.done_seq == 0 and opened.cur_seq == 0)
        effects: list[Any] = [Log("adopt", {"channel": channel.name, "done_seq": channel.done_seq, "clock": channel.clock})]
        effects += self.want_map(job, now_us)
        effects += self.join(job, channel.worker, channel.gen, now_us)
        effects += self.desk.on_opened(channel.name)
        return [*effects, e.ReadCmd(channel.name)]

    def _on_channel_failed(self, failed: e.ChannelFailed, now_us: int) -> list[Any]:
        effects: list[Any] = [Log("channel_failed", {"channel": failed.channel, "code": failed.code.name, "text": failed.text})]
        channel = self.channels.get(failed.channel)
        if channel is not None:
            self._drop_operation(failed.channel)
            effects += channel.break_off(failed.text)
            effects.append(self._news(channel, "broken", failed.text))
        return effects + self.desk.on_channel_failed(failed)

    def _on_param_failed(self, failed: e.ParamFailed, now_us: int) -> list[Any]:
        channel = self.channels.get(failed.channel)
        if channel is None:
            return []
        operation = self.operations.get(failed.channel)
        if operation is not None:
            return self._settle(operation, operation.fail(failed.code, failed.text), now_us)
        return channel.on_param_failed(failed)

    def _on_reply_failed(self, failed: e.ReplyFailed, now_us: int) -> list[Any]:
        channel = self.channels.get(failed.channel)
        if channel is None:
            return []
        self._drop_operation(failed.channel)
        return [*channel.on_reply_failed(failed), self._news(channel, "broken", channel.last_error)]

    def _on_keeper_gone(self, gone: e.KeeperGone, now_us: int) -> list[Any]:
        """The launcher has died without a word: what its program asked for is dropped, and the channel is swept."""
        channel = self.channels.get(gone.channel)
        if channel is None:
            return []
        log = Log("keeper_gone", {"channel": gone.channel, "done_seq": channel.done_seq})
        return [log, *self.close_channel(channel)]

    def close_channel(self, channel: Channel) -> list[Any]:
        """The channel has ended: its request is dropped and its directory swept."""
        self._drop_operation(channel.name)
        del self.channels[channel.name]
        del self.streams[channel.name]
        key = (channel.number, channel.worker, channel.gen)
        if self.by_stream.get(key) is channel:
            del self.by_stream[key]
        self.counts["pushes_closed"] += channel.pushes
        return channel.close(sweep=True)

    def _drop_operation(self, name: str) -> None:
        operation = self.operations.pop(name, None)
        if operation is not None:
            operation.drop()
            del self.by_request[operation.number]

    def _settle(self, operation: Operation, effects: list[Any], now_us: int) -> list[Any]:
        """After each step of a request: forget it when it is over, and let others into the room that it left.

        Appends to `effects` and returns them.
        """
        if operation.over:
            self._forget(operation)
        else:
            self.wake(min(operation.due_us, operation.explain_us))
        if self.credits.blocked:
            blocked = list(self.credits.blocked)
            self.credits.blocked.clear()
            for other in blocked:
                effects += other.pump(now_us)
                if other.over:
                    self._forget(other)
        return effects

    def _forget(self, operation: Operation) -> None:
        name = operation.channel.name
        if self.operations.get(name) is operation:
            del self.operations[name]
            del self.by_request[operation.number]
            self.counts["requests"] += 1
            self.counts["errors"] += operation.channel.status != Code.OK

    # -- ranges

    def _on_push_ack(self, sender: str, ack: m.PushAck, now_us: int) -> list[Any]:
        operation = self._operation_of(ack.job, ack.worker, ack.gen)
        return [] if operation is None else self._settle(operation, operation.on_ack(ack, now_us), now_us)

    def _on_last(self, sender: str, told: m.LastTold, now_us: int) -> list[Any]:
        operation = self._operation_of(told.job, told.worker, told.gen)
        return [] if operation is None else self._settle(operation, operation.on_last(told, now_us), now_us)

    def _on_init_ack(self, sender: str, ack: m.InitAck, now_us: int) -> list[Any]:
        effects: list[Any] = []
        for operation in self._operations_of(ack.job):
            effects += operation.on_ack(ack, now_us)
            self._settle(operation, effects, now_us)
        return effects

    def _on_values(self, sender: str, values: m.Values, now_us: int) -> list[Any]:
        asker = self.by_request.get(values.request)
        if asker is None or asker.job.number != values.job:
            return []  # late or doubled: the request was answered, and what it may write was written
        if isinstance(asker, Export):
            return asker.on_values(values, now_us) + self.desk.conclude_failed(asker)
        return self._settle(asker, asker.on_values(values, now_us), now_us)

    def _on_nack(self, sender: str, nack: m.Nack, now_us: int) -> list[Any]:
        job = self.jobs.get(nack.job)
        if job is None:
            return []
        self.counts["nacks"] += 1
        job.nacked.add(nack.range)
        effects: list[Any] = []
        if nack.token > job.token:
            job.token_wanted = max(job.token_wanted, nack.token)
            effects += self.want_map(job, now_us)
        for operation in self._operations_of(nack.job):
            effects += operation.on_nack(now_us)
            self.wake(operation.due_us)
        return effects

    def _on_refuse(self, sender: str, refuse: m.Refuse, now_us: int) -> list[Any]:
        job = self.jobs.get(refuse.job)
        if job is None:
            return []
        asker: Operation | Export | None
        if refuse.request:
            asker = self.by_request.get(refuse.request)
        elif refuse.worker == m.NOBODY:  # first values; seq is their claim
            asker = next((other for other in self._operations_of(refuse.job) if other.claim and other.claim == refuse.seq), None)
        else:
            asker = self._operation_of(refuse.job, refuse.worker, refuse.gen)
            asker = None if asker is None or not asker.concerns(refuse) else asker
        if isinstance(asker, Export):
            return asker.fail(refuse.code, refuse.text) + self.desk.conclude_failed(asker)
        effects: list[Any] = []
        notice = self.notices.get((refuse.job, refuse.worker))
        if notice is not None and notice.gen == refuse.gen and refuse.code in (Code.FENCED, Code.RANGE):
            del self.notices[refuse.job, refuse.worker]
            effects += self.desk.on_refused_join(job, refuse.worker, refuse.code, refuse.text)
        if asker is not None and asker.job is job:
            effects += asker.on_refuse(refuse)
            self._settle(asker, effects, now_us)
        return effects

    def _operation_of(self, job: int, worker: int, gen: int) -> Operation | None:
        channel = self.by_stream.get((job, worker, gen))
        return None if channel is None else self.operations.get(channel.name)

    def _operations_of(self, job: int) -> list[Operation]:
        return [operation for operation in self.operations.values() if operation.job.number == job]

    # -- the clock

    def join(self, job: Job, worker: int, gen: int, now_us: int) -> list[Any]:
        """Tell the clock that the stream exists and that its notices come here."""
        notice = Notice(m.Join, gen, 0, "", self.limits, now_us)
        self.notices[job.number, worker] = notice
        self.wake(notice.due_us)
        return self._say(job, worker, notice)

    def leave(self, job: Job, worker: int, gen: int, clock: int, reason: str, now_us: int) -> list[Any]:
        notice = Notice(m.Leave, gen, clock, reason, self.limits, now_us)
        self.notices[job.number, worker] = notice
        self.wake(notice.due_us)
        return self._say(job, worker, notice)

    def ask_standing(self, job: Job) -> list[Any]:
        """How does the clock stand, asked for nobody in particular?"""
        server, epoch = job.clock_route
        return [Send(server, m.StandingAsk(job.number, epoch, job.token, m.NOBODY, 0))] if server else []

    def _say(self, job: Job, worker: int, notice: Notice) -> list[Any]:
        server, epoch = job.clock_route
        if not server:
            return []
        if notice.kind is m.Join:
            return [Send(server, m.Join(job.number, epoch, job.token, worker, notice.gen))]
        return [Send(server, m.Leave(job.number, epoch, job.token, worker, notice.gen, notice.clock, notice.reason))]

    def _on_standing(self, sender: str, standing: m.Standing, now_us: int) -> list[Any]:
        job = self.jobs.get(standing.job)
        if job is None:
            return []
        effects: list[Any] = []
        if standing.token > job.token:
            job.token_wanted = max(job.token_wanted, standing.token)
            effects += self.want_map(job, now_us)
        job.on_standing(standing, now_us)
        notice = self.notices.get((standing.job, standing.worker))
        if notice is not None and standing.gen >= notice.gen and (notice.kind is m.Join or standing.end >= 0):
            del self.notices[standing.job, standing.worker]
        effects += self.desk.on_standing(job, standing, now_us)
        for operation in self._operations_of(standing.job):
            effects += operation.on_standing(standing, now_us)
            self._settle(operation, effects, now_us)
        return effects

    def _on_claim(self, sender: str, told: m.ClaimTold, now_us: int) -> list[Any]:
        operation = self._operation_of(told.job, told.worker, told.gen)
        return [] if operation is None else self._settle(operation, operation.on_claim(told, now_us), now_us)

    # -- the master

    def job(self, number: int, name: str) -> Job:
        """The job of this number; it may be new to us."""
        job = self.jobs.get(number)
        if job is None:
            job = self.jobs[number] = Job(number, name)
        if number >= self.names.get(name, 0):
            self.names[name] = number
        return job

    def want_map(self, job: Job, now_us: int) -> list[Any]:
        """Ask for the newest map that we know to exist, if ours is older."""
        if job.map is not None and job.token >= job.token_wanted:
            return []
        self.wake(now_us + self.limits.resend_us)
        return self.link.ask_map(job.number, job.token_wanted, now_us)

    def _on_registered(self, sender: str, told: m.Registered, now_us: int) -> list[Any]:
        effects = self.link.on_registered(told, now_us)
        self.wake(self.link.deadline_us())
        return effects + self._want_newer(now_us)

    def _on_beat_ack(self, sender: str, ack: m.BeatAck, now_us: int) -> list[Any]:
        effects = self.link.on_beat_ack(ack, now_us)
        self.wake(self.link.deadline_us())
        return effects + self._want_newer(now_us)

    def _want_newer(self, now_us: int) -> list[Any]:
        """The master has changed some map: ask for those that concern us."""
        effects: list[Any] = []
        for job in self.jobs.values():
            if job.running and self.link.token > job.token_wanted:
                job.token_wanted = self.link.token
                effects += self.want_map(job, now_us)
        return effects

    def _on_map(self, sender: str, told: m.MapTold, now_us: int) -> list[Any]:
        job = self.jobs.get(told.job)
        if job is None:
            return []
        try:
            new = JobMap.from_document(told.document)
            if new.number != job.number or new.spec.name != job.name:
                raise PeerError(f"map of job {new.number} {new.spec.name!r} in place of {job.number} {job.name!r}")
            state = job.map.state if job.map is not None else ""
            moved, clock_moved = job.on_map(new)
        except PeerError as error:
            return self._strange(sender, str(error))
        self.link.map_came(job.number, new.token)
        effects = self._connect(new)
        assert job.map is not None
        if job.map.state != state and not job.running:
            effects.append(Log("job", {"job": job.name, "number": job.number, "state": job.map.state, "reason": job.map.reason}))
            effects.append(e.Tell(e.ALL, {"event": "job", "job": job.name, "state": job.map.state, "reason": job.map.reason}))
        if clock_moved:
            effects += self._join_again(job, now_us)
        for operation in self._operations_of(job.number):
            effects += operation.on_map(moved, clock_moved, now_us)
            self._settle(operation, effects, now_us)
        return effects + self.desk.on_map(job, moved, now_us)

    def _connect(self, new: JobMap) -> list[Any]:
        """Reach every server of the map; let go of those that no map names any more."""
        effects: list[Any] = []
        for node, endpoint in new.endpoints.items():
            if self.servers.get(node) != endpoint:
                self.servers[node] = endpoint
                effects.append(Connect(node, endpoint))
        named = {node for job in self.jobs.values() if job.map is not None for node in job.map.endpoints}
        for node in [node for node in self.servers if node not in named]:
            del self.servers[node]
            effects.append(Disconnect(node))
        return effects

    def _join_again(self, job: Job, now_us: int) -> list[Any]:
        """The clock has another keeper: what we were about to say goes there, and our streams make themselves known."""
        effects: list[Any] = []
        for channel in self.channels.values():
            if channel.number == job.number and (job.number, channel.worker) not in self.notices:
                effects += self.join(job, channel.worker, channel.gen, now_us)
        for (number, worker), notice in self.notices.items():
            if number == job.number:
                effects += self._say(job, worker, notice)
        return effects

    def _on_answer(self, sender: str, told: Any, now_us: int) -> list[Any]:
        if not self.link.answered(told.request):
            return []
        return self.desk.on_answer(told, now_us)

    def _on_export(self, event: e.ExportFailed | e.ExportEnded, now_us: int) -> list[Any]:
        return self.desk.on_export(event)

    def new_request(self) -> int:
        self._request += 1
        return self._request

    # -- words for people

    def _explain(self, operation: Operation, now_us: int) -> list[Any]:
        """A wait that lasts says what it waits for, and again after four times as long."""
        waited_us = now_us - operation.quiet_since_us
        operation.explain_us = now_us + 3 * max(waited_us, self.limits.explain_us)
        channel = operation.channel
        text = operation.explain(now_us, lambda worker: self._seen_us(channel.number, worker))
        fields = {"job": channel.job, "worker": channel.worker, "text": text}
        return [Log("waiting", fields), e.Tell(e.ALL, {"event": "waiting", **fields})]

    def _seen_us(self, number: int, worker: int) -> int | None:
        """When a worker of this host was heard last."""
        for channel in self.channels.values():
            if channel.number == number and channel.worker == worker:
                return channel.seen_us
        return None

    def _news(self, channel: Channel, state: str, text: str) -> e.Tell:
        return e.Tell(e.ALL, {"event": "channel", "job": channel.job, "worker": channel.worker, "gen": channel.gen, "state": state, "text": text})

    def _strange(self, sender: str, text: str) -> list[Any]:
        """A peer that breaks the protocol is counted; its word is dropped, everybody is served on."""
        self.counts["strange"] += 1
        if self.counts["strange"] & (self.counts["strange"] - 1):
            return []  # once per change: the 1st, 2nd, 4th, 8th ... of them
        return [Log("strange_message", {"sender": sender, "text": text, "count": self.counts["strange"]})]

    def _token(self) -> int:
        """The oldest map that we act by: the master tells us when there is a newer one."""
        return min((job.token for job in self.jobs.values() if job.running), default=self.link.token)


#: What is counted over the life of the process.
COUNTS = ("requests", "errors", "nacks", "strange", "pushes_closed", "asked", "garbage")
