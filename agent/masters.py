"""What the masters say: registration, maps, answers to questions."""

from __future__ import annotations

from typing import Any

from ..core.effects import Connect, Disconnect, Log
from ..core.errors import PeerError
from ..core.jobmap import RUNNING, JobMap
from ..wire import messages as m
from . import effects as e
from .desk import Desk
from .house import House
from .router import Job
from .servers import Servers


class Masters:
    def __init__(self, house: House, servers: Servers, desk: Desk) -> None:
        self.house = house
        self.servers = servers
        self.desk = desk
        self.connected: dict[str, str] = {}  # server -> endpoint

    def oldest_token(self) -> int:
        """The oldest map that we act by, for beats: the master's answer tells when there is a newer one."""
        return min((job.token for job in self.house.jobs.values() if job.running), default=self.house.link.token)

    def on_registered(self, sender: str, told: m.Registered, now_us: int) -> list[Any]:
        effects = self.house.link.on_registered(sender, told, now_us)
        self.house.wake(self.house.link.deadline_us())
        return effects + self._newer_maps(now_us)

    def on_beat_ack(self, sender: str, ack: m.BeatAck, now_us: int) -> list[Any]:
        effects = self.house.link.on_beat_ack(sender, ack, now_us)
        self.house.wake(self.house.link.deadline_us())
        return effects + self._newer_maps(now_us)

    def on_not_leader(self, sender: str, told: m.NotLeader, now_us: int) -> list[Any]:
        effects = self.house.link.on_not_leader(sender, told, now_us)
        self.house.wake(self.house.link.deadline_us())
        return effects

    def _newer_maps(self, now_us: int) -> list[Any]:
        """The master has changed some map since ours: perhaps one of those."""
        effects: list[Any] = []
        for job in self.house.jobs.values():
            if job.running and self.house.link.token > job.checked_token:
                job.checked_token = self.house.link.token
                effects += self.house.link.ask_map(job.number, job.token, now_us)
        return effects

    def on_map(self, sender: str, told: m.MapTold, now_us: int) -> list[Any]:
        job = self.house.jobs.get(told.job)
        if job is None:
            return []
        new = JobMap.from_document(told.document)
        if new.number != job.number or (new.spec.name != job.name and job.map is not None):
            raise PeerError(f"map of job {new.number} {new.spec.name!r} in place of {job.number} {job.name!r}")
        if new.spec.name != job.name:
            self.house.rename(job, new.spec.name)  # a launcher was wrong about it; the master knows
        before = job.map
        moved, clock_moved = job.on_map(new)
        self.house.link.map_came(job.number, new.token)
        job.checked_token = min(job.checked_token, new.token)  # it may have been on its way for long: the next ack asks again
        effects = self._connect(new) if job.map is new else []
        if job.map is new and not job.running and (before is None or before.state != new.state):
            effects += self._ended(job, new)
        if clock_moved:
            effects += self.servers.join_again(job, now_us)
        for operation in self.house.operations_of(job.number):
            effects += operation.on_map(moved, clock_moved, now_us)
            self.house.settle(operation, effects, now_us)
        return effects + self._leave_for_the_lost(job, now_us) + self.desk.on_map(job, moved, now_us)

    def _leave_for_the_lost(self, job: Job, now_us: int) -> list[Any]:
        """Nobody is left where these workers were: we say for them that they leave, as every agent of the job does."""
        effects: list[Any] = []
        for worker, gen in job.map.gone if job.map is not None and job.running else ():
            if (worker, gen) not in job.left_behind and gen >= job.newest_gen(worker):
                job.left_behind.add((worker, gen))
                effects += self.servers.leave(job, worker, gen, 0, "lost", now_us)
        return effects

    def _ended(self, job: Job, new: JobMap) -> list[Any]:
        fields = {"job": job.name, "state": new.state, "reason": new.reason}
        return [Log("job", {**fields, "number": job.number}), e.Tell(e.ALL, {"event": "job", "run": job.number, **fields})]

    def _connect(self, new: JobMap) -> list[Any]:
        """Reach every server of the map; let go of those that no running job needs any more."""
        effects: list[Any] = []
        for node, endpoint in new.endpoints.items() if new.state == RUNNING else ():
            if self.connected.get(node) != endpoint:
                self.connected[node] = endpoint
                effects.append(Connect(node, endpoint))
        named = {node for job in self.house.jobs.values() if job.map is not None and job.running for node in job.map.endpoints}
        for node in [node for node in self.connected if node not in named]:
            del self.connected[node]
            effects.append(Disconnect(node))
        return effects

    def on_answer(self, sender: str, told: Any, now_us: int) -> list[Any]:
        if not self.house.link.answered(told):
            return []
        return self.desk.on_answer(told, now_us)
