"""What all parts of the agent share: jobs, channels, requests under way, and who asked what.

Owns the tables and the rule that a request that is over is in none of them.  Decides nothing: `programs`, `servers` and
`masters` do, each for the events of its side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..core.errors import Code
from ..core.limits import Limits
from . import effects as e
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
        self.operations: dict[str, Operation] = {}  # by channel
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

    def operation_of(self, job: int, worker: int, gen: int) -> Operation | None:
        channel = self.by_stream.get((job, worker, gen))
        return None if channel is None else self.operations.get(channel.name)

    def operations_of(self, job: int) -> list[Operation]:
        return [operation for operation in self.operations.values() if operation.job.number == job]

    def begin(self, channel: Channel, job: Job, now_us: int) -> Operation:
        """A channel has taken up a request."""
        operation = Operation(channel, job, self.streams[channel.name], self.new_request(), self.limits, self.credits, now_us)
        self.operations[channel.name] = operation
        self.by_request[operation.number] = operation
        return operation

    def settle(self, operation: Operation, effects: list[Any], now_us: int) -> list[Any]:
        """After each step of a request: forget it when it is over, and let others into the room that it left.

        Appends to `effects` and returns them.
        """
        if operation.over:
            effects += self._forget(operation, now_us)
        else:
            patience = operation.patience
            self.wake(patience.due_us if patience.due_us < patience.explain_us else patience.explain_us)
        if self.credits.blocked:
            blocked = list(self.credits.blocked)
            self.credits.blocked.clear()
            for other in blocked:
                effects += other.pump(now_us)
                if other.over:
                    effects += self._forget(other, now_us)
        return effects

    def _forget(self, operation: Operation, now_us: int) -> list[Any]:
        name = operation.channel.name
        if self.operations.get(name) is not operation:
            return []
        del self.operations[name]
        del self.by_request[operation.number]
        if operation.orphan:
            return self.farewell(operation.channel, now_us)
        self.counts["requests"] += 1
        return self.refused(operation.channel) if operation.channel.status != Code.OK else []

    def refused(self, channel: Channel) -> list[Any]:
        """A refusal that the program may keep to itself is told its launcher: the 1st, 2nd, 4th, 8th ..."""
        self.counts["errors"] += 1
        if channel.status not in FAULTS:
            return []
        channel.refused += 1
        return [] if channel.refused & (channel.refused - 1) else [self.news(channel, "refused", channel.last_error)]

    def abandon(self, channel: Channel) -> bool:
        """Its program has ended.  True while its push is still on its way: `farewell` is called when it has arrived."""
        channel.retire()
        operation = self.operations.get(channel.name)
        if operation is None:
            return False
        if operation.abandon():
            return True
        self.drop_operation(channel.name)
        return False

    def drop_operation(self, name: str) -> None:
        """Forget a channel's request, wherever it stands."""
        operation = self.operations.pop(name, None)
        if operation is not None:
            operation.drop()
            del self.by_request[operation.number]

    # -- channels

    def close_channel(self, channel: Channel) -> list[Any]:
        """The channel has ended: its request is dropped and its directory swept."""
        self.drop_operation(channel.name)
        del self.channels[channel.name]
        del self.streams[channel.name]
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
            "jobs": sum(job.running for job in self.jobs.values()),
            "pushes": self.counts["pushes_closed"] + sum(channel.pushes for channel in self.channels.values()),
            "unanswered_bytes": sum(self.credits.used.values()),
        }

    # -- what must always hold

    def check(self) -> None:
        """What must hold between any two events."""
        used: dict[str, int] = {}
        for name, operation in self.operations.items():
            assert not operation.over, f"{name}: an answered request is still kept"
            assert self.channels[name] is operation.channel and operation.channel.request is not None, name
            assert self.by_request[operation.number] is operation, name
            for scatter in (operation.scatter, operation.offer.scatter if operation.offer is not None else None):
                for part, server in scatter.unacked.values() if scatter is not None else ():
                    used[server] = used.get(server, 0) + part.nbytes
        assert used == self.credits.used, f"credits {self.credits.used}, but {used} is unanswered"
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
