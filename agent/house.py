"""What all parts of the agent share: jobs, channels, requests under way, and who asked what.

Owns the tables and the rule that a request that is over is in none of them.  Decides nothing: `programs`, `servers` and
`masters` do, each for the events of its side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..core.errors import Code
from ..core.limits import Limits
from ..shm_protocol.request import Request
from . import effects as e
from . import orphan
from .behind import SLOTS, Behind
from .channel import Channel
from .export import Export
from .link import Identity, MasterLink
from .operation import Operation
from .router import Credits, Job
from .transfer import Stream

Key = tuple[int, int, int]  # job, worker, gen

#: Codes that say: what the program sent is wrong, or has no room.
FAULTS = (Code.FORMAT, Code.RANGE, Code.SIZE, Code.NONFINITE, Code.PERM, Code.NOSPC)
#: What is counted over the life of the process.
COUNTS = ("requests", "errors", "nacks", "strange", "pushes_closed", "asked")


class House:
    def __init__(self, identity: Identity, limits: Limits) -> None:
        self.identity = identity
        self.limits = limits
        self.link = MasterLink(identity, limits)
        self.jobs: dict[int, Job] = {}
        self.names: dict[str, int] = {}  # name -> newest job of that name
        self.channels: dict[str, Channel] = {}
        self.by_stream: dict[Key, Channel] = {}
        self.streams: dict[str, Stream] = {}  # by channel
        self.operations: dict[str, Operation] = {}  # by channel: what its program waits for
        self.behind: dict[str, Behind] = {}  # by channel: what was accepted and is carried out behind its program's back
        self.by_request: dict[int, Operation | Export] = {}
        self.credits = Credits(limits.window_bytes)
        self.counts: dict[str, int] = dict.fromkeys(COUNTS, 0)
        self.next_us = 0  # nothing is due before; may be too early, never too late
        self.farewell: Callable[[Channel, int], list[Any]] = lambda channel, now_us: []  # the desk's
        self._request = 0

    def wake(self, at_us: int) -> None:
        """Something is due then."""
        if at_us < self.next_us:
            self.next_us = at_us

    def new_request(self) -> int:
        self._request += 1
        return self._request

    # -- jobs

    def job(self, number: int, name: str) -> Job:
        """The job of this number; it may be new to us."""
        job = self.jobs.get(number)
        if job is None:
            self._forget_ended_jobs()
            job = self.jobs[number] = Job(number, name)
        if number >= self.names.get(name, 0):
            self.names[name] = number
        return job

    def rename(self, job: Job, name: str) -> None:
        if self.names.get(job.name) == job.number:
            del self.names[job.name]
        job.name = name
        self.names[name] = max(job.number, self.names.get(name, 0))

    def _forget_ended_jobs(self) -> None:
        """Jobs that have ended are kept for late questions, but not for ever."""
        served = {channel.number for channel in self.channels.values()}
        for number in [number for number, job in self.jobs.items() if job.ended() is not None and number not in served]:
            if len(self.jobs) < self.limits.jobs_max:
                return
            job = self.jobs.pop(number)
            if self.names.get(job.name) == number:
                del self.names[job.name]

    def want_map(self, job: Job, now_us: int) -> list[Any]:
        """Ask for the newest map that we know to exist, if ours is older."""
        if job.map is not None and job.token >= job.token_wanted:
            return []
        self.wake(now_us + self.limits.resend_us)
        return self.link.ask_map(job.number, job.token_wanted, now_us)

    def newer_map(self, job: Job, token: int, now_us: int) -> list[Any]:
        """Somebody has shown a map version: if it is newer than ours, ask for it."""
        if token <= job.token_wanted:
            return []
        job.token_wanted = token
        return self.want_map(job, now_us)

    # -- requests

    def of_channel(self, name: str) -> list[Operation]:
        """Requests of a channel, in order of their seq."""
        behind, operation = self.behind.get(name), self.operations.get(name)
        found = list(behind.queue) if behind is not None and behind.queue else []
        return found if operation is None else [*found, operation]

    def of_stream(self, job: int, worker: int, gen: int) -> list[Operation]:
        channel = self.by_stream.get((job, worker, gen))
        return [] if channel is None else self.of_channel(channel.name)

    def pushing(self, job: int, worker: int, gen: int) -> Operation | None:
        """The one request of a stream that may have a push under way: the others wait for it."""
        channel = self.by_stream.get((job, worker, gen))
        if channel is None:
            return None
        queue = self.behind[channel.name].queue
        return queue[0] if queue else self.operations.get(channel.name)

    def all_operations(self) -> list[Operation]:
        found = [operation for behind in self.behind.values() for operation in behind.queue]
        return [*found, *self.operations.values()]

    def operations_of(self, job: int) -> list[Operation]:
        return [operation for operation in self.all_operations() if operation.job.number == job]

    def begin(self, channel: Channel, job: Job, now_us: int) -> Operation:
        """A channel has taken up a request."""
        assert channel.request is not None
        operation = self.operations[channel.name] = self._operation(channel, job, channel.request, now_us)
        return operation

    def take_over(self, channel: Channel, job: Job, request: Request, slot: int, now_us: int) -> Operation:
        """A request that an earlier agent accepted: it goes on."""
        operation = self._operation(channel, job, request, now_us)
        behind = self.behind[channel.name]
        behind.take(slot)
        operation.accepted_before(slot)
        behind.queue.append(operation)
        return operation

    def _operation(self, channel: Channel, job: Job, request: Request, now_us: int) -> Operation:
        stream, behind = self.streams[channel.name], self.behind[channel.name]
        operation = Operation(channel, job, stream, behind, request, self.new_request(), self.limits, self.credits, now_us)
        self.by_request[operation.number] = operation
        return operation

    def settle(self, operation: Operation, effects: list[Any], now_us: int) -> list[Any]:
        """After each step of a request: forget it when it is over, and let others into the room that it left.

        Appends to `effects` and returns them.
        """
        if operation.over:
            effects += self._forget(operation, now_us)
        else:
            if operation.accepted and self.operations.get(operation.channel.name) is operation:
                self._go_behind(operation, effects, now_us)
            self.wake(operation.due_us)
        if self.credits.blocked:
            blocked = list(self.credits.blocked)
            self.credits.blocked.clear()
            for other in blocked:
                effects += other.pump(now_us)
                if other.over:
                    effects += self._forget(other, now_us)
        return effects

    def _go_behind(self, operation: Operation, effects: list[Any], now_us: int) -> None:
        """It was accepted just now: its program goes on."""
        name = operation.channel.name
        del self.operations[name]
        self.behind[name].queue.append(operation)
        self.counts["requests"] += 1
        effects += operation.pump(now_us)
        if operation.over:
            effects += self._forget(operation, now_us)

    def _forget(self, operation: Operation, now_us: int) -> list[Any]:
        channel = operation.channel
        name = channel.name
        if self.by_request.pop(operation.number, None) is None:
            return []
        operation.release()
        if operation.accepted:
            self.behind[name].queue.remove(operation)
            return self._go_on(channel, now_us)
        del self.operations[name]
        if operation.orphan:
            return self._farewell(channel, now_us)
        self.counts["requests"] += 1
        answered = channel.done_seq == operation.request.seq  # and not told to ring again
        return self.refused(channel) if answered and channel.status != Code.OK else []

    def _go_on(self, channel: Channel, now_us: int) -> list[Any]:
        """An accepted request is over: the next one begins, or the one that its program waits for."""
        if channel.abandoned:
            self.behind[channel.name].forget_failures()
        effects: list[Any] = []
        for operation in self.of_channel(channel.name):
            effects += operation.pump(now_us)
            self.settle(operation, effects, now_us)
        return effects + self._farewell(channel, now_us)

    def _farewell(self, channel: Channel, now_us: int) -> list[Any]:
        return self.farewell(channel, now_us) if channel.abandoned and not self.of_channel(channel.name) else []

    def refused(self, channel: Channel) -> list[Any]:
        """A refusal that the program may keep to itself is told its launcher: the 1st, 2nd, 4th, 8th ..."""
        self.counts["errors"] += 1
        if channel.status not in FAULTS:
            return []
        channel.refused += 1
        return [] if channel.refused & (channel.refused - 1) else [self.news(channel, "refused", channel.last_error)]

    def abandon(self, channel: Channel) -> bool:
        """Its program has ended.  True while its pushes are still on their way: `farewell` is called when they have arrived."""
        channel.retire()
        self.behind[channel.name].forget_failures()
        for operation in self.of_channel(channel.name):
            if not orphan.abandon(operation):
                self._drop(operation)
        channel.abandoned = bool(self.of_channel(channel.name))
        return channel.abandoned

    def break_off(self, name: str) -> None:
        """A channel cannot be served any more: what is not under way is forgotten."""
        for operation in self.of_channel(name):
            if not operation.accepted or not operation.delivery.begun:
                self._drop(operation)

    def _drop(self, operation: Operation) -> None:
        """Forget a request, wherever it stands."""
        name = operation.channel.name
        operation.drop()
        if self.by_request.pop(operation.number, None) is None:
            return
        operation.release()
        if operation.accepted:
            self.behind[name].queue.remove(operation)
        else:
            del self.operations[name]

    # -- channels

    def close_channel(self, channel: Channel) -> list[Any]:
        """The channel has ended: its requests are dropped and its directory swept."""
        for operation in self.of_channel(channel.name):
            self._drop(operation)
        del self.channels[channel.name]
        del self.streams[channel.name]
        del self.behind[channel.name]
        del self.by_stream[channel.number, channel.worker, channel.gen]
        self.counts["pushes_closed"] += channel.pushes
        return channel.close(sweep=True)

    def news(self, channel: Channel, state: str, text: str) -> e.Tell:
        """For launchers: something has happened to a channel."""
        fields = {"job": channel.job, "run": channel.number, "worker": channel.worker, "gen": channel.gen, "state": state, "text": text}
        return e.Tell(e.ALL, {"event": "channel", **fields})

    def counters(self) -> dict[str, int]:
        """Progress and load, for beats and for agent.stat."""
        return {
            **self.counts,
            "channels": len(self.channels),
            "busy": len(self.operations),
            "accepted": sum(len(behind.queue) for behind in self.behind.values()),
            "jobs": sum(job.running for job in self.jobs.values()),
            "pushes": self.counts["pushes_closed"] + sum(channel.pushes for channel in self.channels.values()),
            "unanswered_bytes": sum(self.credits.used.values()),
        }

    # -- what must always hold

    def check(self) -> None:
        """What must hold between any two events."""
        used: dict[str, int] = {}
        for operation in self.all_operations():
            name = operation.channel.name
            assert not operation.over, f"{name}: an answered request is still kept"
            assert self.channels[name] is operation.channel, name
            assert self.by_request[operation.number] is operation, name
            scatters = (operation.delivery.scatter, operation.offer.scatter if operation.offer is not None else None)
            for scatter in scatters:
                for part, server in scatter.unacked.values() if scatter is not None else ():
                    used[server] = used.get(server, 0) + part.nbytes
        assert used == self.credits.used, f"credits {self.credits.used}, but {used} is unanswered"
        for name, operation in self.operations.items():
            assert operation.channel.request is not None and not operation.accepted, name
        for name, behind in self.behind.items():
            seqs = [operation.request.seq for operation in behind.queue]
            assert seqs == sorted(seqs) and all(operation.accepted for operation in behind.queue), f"{name}: {seqs}"
            assert len(behind.free) + len(behind.failures) + sum(operation.slot >= 0 for operation in self.of_channel(name)) == len(SLOTS), name
        for name, channel in self.channels.items():
            assert (channel.request is None) or name in self.operations, f"{name}: nobody works on its request"
            assert channel.cur_seq <= channel.done_seq + 1, f"{name}: cur_seq {channel.cur_seq} done_seq {channel.done_seq}"
            assert self.by_stream[channel.number, channel.worker, channel.gen] is channel, name
        for number, job in self.jobs.items():
            assert job.number == number and (job.plan is None) == (job.map is None), job.name

    def state(self) -> list[str]:
        """Everything that two runs of one history must share, as text."""
        lines = [f"{self.link.registered} {self.link.token} {self._request}"]
        for name in sorted(self.channels):
            channel = self.channels[name]
            lines.append(f"{name} {channel.done_seq} {channel.clock} {channel.version} {channel.state} {channel.line!r} {channel.request}")
            lines.append(repr(sorted(self.streams[name].prev.items())))
        for number in sorted(self.jobs):
            job = self.jobs[number]
            lines.append(f"{job.name} {job.token} {job.closed} {job.slowest} {job.initialised} {sorted(job.finished.items())}")
        lines.append(repr(sorted(self.credits.used.items())))
        return lines
