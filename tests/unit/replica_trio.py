"""Three servers, message by message: what they say to each other arrives at once, unless a test loses or keeps it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from plugml.core.effects import Log, Send
from plugml.core.job import JobSpec
from plugml.core.jobmap import Assignment, JobMap, pieces, ranges_used
from plugml.core.limits import Limits
from plugml.core.table import DTYPE_CODES
from plugml.server.effects import Turn, Warm, WarmUp
from plugml.server.link import Identity
from plugml.server.node import ServerMachine, endless_room
from plugml.server.replica import Replica
from plugml.wire import messages as m
from plugml.wire.codec import decode, encode
from tests.scenario.kit import job, table

A, B, C = "s0.00000001", "s1.00000002", "s2.00000003"
COUNT = table("n", 3, "f64", "add", combine="sum")
LIMITS = Limits()


def counts(*tables: Any, copies: int = 2, consistency: str = "asp", **rest: Any) -> JobSpec:
    return job(*(tables or (COUNT,)), copies=copies, consistency=consistency, **rest)


class Trio:
    """One range, all of the job.  `lost(sender, to, message)`: it never arrives.  `said`: what others than servers were told."""

    def __init__(self, spec: JobSpec | None = None, limits: Limits = LIMITS, room: Callable[[], int] = endless_room) -> None:
        self.spec = spec if spec is not None else counts()
        self.machines = {
            name: ServerMachine(Identity(name, "here", f"ipc://{name}", 1, "test", {"m0": "ipc://m0"}), limits, room=room) for name in (A, B, C)
        }
        self.lost: Callable[[str, str, Any], bool] = lambda sender, to, message: False
        self.deaf: set[str] = set()
        self.said: list[tuple[str, str, Any]] = []
        self.logs: list[tuple[str, Log]] = []
        self.now_us = 1_000_000
        self.turns = True  # whether Turns come back
        self.home = ranges_used(self.spec, 1)[0]
        self.epoch = self.token = 0
        self.queue: deque[tuple[str, str, Any]] = deque()

    # -- moving messages

    def map(self, *replicas: str, learner: str = "", born: int = 0, to: tuple[str, ...] = (A, B, C), state: str = "running") -> None:
        """The next epoch."""
        self.epoch, self.token = self.epoch + 1, self.token + 1
        self.item = Assignment(self.epoch, replicas, learner, (born or self.epoch) if learner else 0)
        endpoints = {name: f"ipc://{name}" for name in self.machines}
        told = JobMap(1, self.token, self.spec, state, "", 1, {self.home: self.item}, endpoints, {})
        self.told = m.MapTold(1, self.token, told.to_document())
        for name in to:
            self.queue.append(("m0", name, self.told))
        self.settle()

    def hear_map(self, name: str) -> None:
        self.feed("m0", name, self.told)

    def feed(self, sender: str, to: str, message: Any) -> None:
        self.queue.append((sender, to, message))
        self.settle()

    def settle(self) -> None:
        while self.queue:
            sender, to, message = self.queue.popleft()
            if to in self.deaf:
                continue
            machine = self.machines[to]
            self._perform(to, machine.on_message(sender, message, self.now_us))
            machine.check()

    def _perform(self, name: str, effects: list[Any]) -> None:
        for effect in effects:
            if isinstance(effect, Turn):
                if self.turns:
                    self.queue.append(("", name, effect))
            elif isinstance(effect, WarmUp):
                self.queue.append(("", name, Warm()))
            elif isinstance(effect, Log):
                self.logs.append((name, effect))
            elif isinstance(effect, Send) and effect.to in self.machines:
                if not self.lost(name, effect.to, effect.message):
                    self.queue.append((name, effect.to, decode([bytes(frame) for frame in encode(effect.message)])))
            elif isinstance(effect, Send):
                self.said.append((name, effect.to, effect.message))

    def time(self, passed_us: int, *names: str) -> None:
        """It passes at once; everybody (or those that are named) does what is due."""
        self.now_us += passed_us
        for name in names or tuple(self.machines):
            machine = self.machines[name]
            due_us = machine.deadline_us()
            if name not in self.deaf and due_us is not None and due_us <= self.now_us:
                self._perform(name, machine.on_time(self.now_us))
                machine.check()
                left_us = machine.deadline_us()
                assert left_us is None or left_us > self.now_us
        self.settle()

    # -- an agent

    def head(self) -> tuple[int, int, int, int]:
        return (1, self.home, self.epoch, self.token)

    def push(
        self, seq: int, values: Any = 1.0, worker: int = 0, gen: int = 1, prev: int | None = None, clock: int = 0, to: str = "",
        weight: float = 1.0,
    ) -> None:  # fmt: skip
        component = m.Component(worker, gen, seq, seq - 1 if prev is None else prev, clock, weight)
        segments, payload = [], []
        for piece in pieces(self.spec, 1):
            spec = self.spec.tables[piece.table]
            segments.append(m.Segment(piece.table, piece.block.number, piece.block.stop - piece.block.start, DTYPE_CODES[spec.storage_name]))
            payload.append(np.ascontiguousarray(np.broadcast_to(values, (segments[-1].elements,)), spec.storage_dtype).tobytes())
        self.feed("a0.1", to or self.item.primary, m.Push(*self.head(), 0, (component,), tuple(segments), tuple(payload)))

    def pull(self, to: str = "", after: int = 0, closed: int = 0, gen: int = 1) -> None:
        absent = []
        for piece in pieces(self.spec, 1):
            code = DTYPE_CODES[self.spec.tables[piece.table].storage_name]
            absent.append(m.Segment(piece.table, piece.block.number, piece.block.stop - piece.block.start, code, m.BLOCK, m.ABSENT))
        self.feed("a0.1", to or self.item.primary, m.Pull(*self.head(), 7, 0, gen, after, closed, tuple(absent)))

    def clock(self, kind: type[Any], *rest: Any, worker: int = 0, gen: int = 1) -> None:
        self.feed("a0.1", self.item.primary, kind(1, self.epoch, self.token, worker, gen, *rest))

    def tick(self, clock: int, worker: int = 0) -> None:
        self.clock(m.Tick, clock, ((0, 1.0),), worker=worker)

    # -- looking

    def take(self, kind: type[Any] | None = None) -> list[Any]:
        """What agents and the master were told since the last time (of one type: the others are forgotten)."""
        found = [message for _, _, message in self.said if kind is None or isinstance(message, kind)]
        self.said.clear()
        return found

    def asks(self) -> list[tuple[str, str, str]]:
        """(who asks, verb, node) of the seats that the master was asked for."""
        return [(sender, message.verb, message.node) for sender, _, message in self.said if isinstance(message, m.SeatAsk)]

    def acked(self) -> list[int]:
        return [message.seq for message in self.take(m.PushAck)]

    def replica(self, name: str) -> Replica:
        return self.machines[name].jobs[1].replicas[self.home]

    def values(self, name: str) -> Any:
        place = next(iter(self.replica(name).range.blocks.places.values()))
        return place.current(self.machines[name]._memory).tolist()

    def same(self, *names: str) -> None:
        assert len({(self.replica(name).range.digest(), self.replica(name).range.mark) for name in names}) == 1

    def cut(self, *pairs: tuple[str, str]) -> None:
        """Nothing goes this way any more."""
        self.lost = lambda sender, to, message: (sender, to) in pairs
