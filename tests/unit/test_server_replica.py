"""One range on two servers, message by message: how a learner is filled, and what a log counts."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from plugml.core.effects import Send
from plugml.core.job import JobSpec
from plugml.core.jobmap import Assignment, JobMap, pieces, ranges_used
from plugml.core.limits import MIB, Limits
from plugml.core.table import DTYPE_CODES, TableSpec
from plugml.server.effects import Turn
from plugml.server.link import Identity
from plugml.server.log import Log
from plugml.server.node import ServerMachine
from plugml.wire import messages as m
from plugml.wire.codec import decode, encode

A, B, C = "s0.00000001", "s1.00000002", "s2.00000003"
LIMITS = Limits(ranges=4)


class Servers:
    """Three servers that hear each other at once; what they say to others is kept."""

    def __init__(self, min_insync: int = 1) -> None:
        self.machines = {
            name: ServerMachine(Identity(name, "here", f"ipc://{name}", 1, "test", {"m0": "ipc://m0"}), LIMITS) for name in (A, B, C)
        }
        table = TableSpec("w", (4,), optimizer="add", combine="sum")
        self.spec = JobSpec("job", 1, (table,), consistency="asp", copies=2, min_insync=min_insync).with_blocks(1, LIMITS)
        self.home = pieces(self.spec, LIMITS.ranges)[0].range
        self.said: list[tuple[str, Any]] = []
        self.holds_when_asked: dict[int, int] = {}  # by range: what a learner held when the primary asked to add it
        self.deaf: list[str] = []
        self.queue: deque[tuple[str, str, Any]] = deque()

    def map(self, epoch: int, *seat: Any) -> None:
        ranges = dict.fromkeys(ranges_used(self.spec, LIMITS.ranges), Assignment(epoch, *seat))
        endpoints = {name: f"ipc://{name}" for name in self.machines}
        told = JobMap(1, epoch, self.spec, "running", "", LIMITS.ranges, ranges, endpoints, {})
        for name in self.machines:
            self.queue.append(("m0", name, m.MapTold(1, epoch, told.to_document())))
        self.settle()

    def settle(self) -> None:
        while self.queue:
            sender, to, message = self.queue.popleft()
            for effect in self.machines[to].on_message(sender, message, 0) if to not in self.deaf else ():
                if isinstance(effect, Turn):
                    self.queue.append(("", to, effect))
                elif isinstance(effect, Send) and effect.to in self.machines:
                    self.queue.append((to, effect.to, effect.message))
                elif isinstance(effect, Send):
                    self.said.append((to, effect.message))
                    if isinstance(effect.message, m.SeatAsk) and effect.message.verb == "add":
                        self.holds_when_asked[effect.message.range] = self.last(effect.message.node, effect.message.range)
            self.machines[to].check()

    def last(self, name: str, number: int) -> int:
        return self.machines[name].jobs[1].replicas[number].log.last

    def push(self, to: str, epoch: int, seq: int) -> None:
        values = np.ones(4, np.float32)
        component = m.Component(0, 1, seq, seq - 1, 0, 1.0)
        push = m.Push(1, self.home, epoch, epoch, 0, (component,), (m.Segment(0, 0, 4, DTYPE_CODES["f32"]),), (values,))
        self.queue.append(("a0.1", to, decode([bytes(frame) for frame in encode(push)])))
        self.settle()

    def acked(self) -> list[int]:
        return [message.seq for _, message in self.said if isinstance(message, m.PushAck)]


def test_a_range_that_has_taken_nothing_is_copied_like_any_other() -> None:
    servers = Servers()
    servers.map(1, (A,))
    servers.map(2, (A,), B, 2)
    assert servers.holds_when_asked == dict.fromkeys(ranges_used(servers.spec, LIMITS.ranges), 0)


def test_a_learner_counts_when_it_holds_all_that_the_primary_before_may_have_committed() -> None:
    servers = Servers(min_insync=2)
    servers.map(1, (A, B))
    servers.push(A, 1, 1)
    assert servers.acked() == [1] and servers.last(B, servers.home) == 1
    servers.deaf.append(A)
    servers.map(2, (B,), C, 2)  # B has not heard that it is committed, and alone it may commit nothing
    assert servers.holds_when_asked[servers.home] == 1


def test_a_log_counts_only_the_bytes_that_are_still_there() -> None:
    log = Log()
    for _ in range(3):
        log.append("a0", None, MIB)
    assert log.bytes_after(1) == 2 * MIB
    log.commit(3)
    log.applied = 3
    log.trim(3)
    assert log.bytes_after(0) == log.bytes_after(3) == 0
