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
from plugml.server.log import HEAD_BYTES, Log
from plugml.server.node import ServerMachine
from plugml.wire import messages as m
from plugml.wire.codec import decode, encode

A, B, C = "s0.00000001", "s1.00000002", "s2.00000003"
LIMITS = Limits(ranges=4)


class Servers:
    """Three servers that hear each other at once; what they say to others is kept."""

    def __init__(self, min_insync: int = 1, consistency: str = "asp") -> None:
        self.machines = {
            name: ServerMachine(Identity(name, "here", f"ipc://{name}", 1, "test", {"m0": "ipc://m0"}), LIMITS) for name in (A, B, C)
        }
        table = TableSpec("w", (4,), optimizer="add", combine="sum")
        self.spec = JobSpec("job", 1, (table,), consistency=consistency, copies=2, min_insync=min_insync).with_blocks(1, LIMITS)
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

    def push(self, to: str, epoch: int, seq: int, number: float = 1.0) -> None:
        values = np.full(4, number, np.float32)
        component = m.Component(0, 1, seq, seq - 1, 0, 1.0)
        push = m.Push(1, self.home, epoch, epoch, 0, (component,), (m.Segment(0, 0, 4, DTYPE_CODES["f32"]),), (values,))
        self.say(to, push)

    def say(self, to: str, message: Any) -> None:
        self.queue.append(("a0.1", to, decode([bytes(frame) for frame in encode(message)])))
        self.settle()

    def failures(self) -> list[tuple[str, str]]:
        """Who has told agents that the job cannot go on, and why."""
        return [(name, message.text) for name, message in self.said if isinstance(message, m.Refuse) and message.worker == m.NOBODY]

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


def test_a_close_that_cannot_be_made_is_told_by_whoever_leads() -> None:
    """Every copy of range and clock comes to it; exports read the values before, from any that leads."""
    servers = Servers(consistency="bsp")
    servers.map(1, (A, B))
    servers.push(A, 1, 1, 3e38)
    servers.push(A, 1, 2, 3e38)
    servers.said.clear()
    servers.say(A, m.Tick(1, 1, 1, 0, 1, 0, ((0, 1.0),)))
    ((teller, why),) = servers.failures()
    assert teller == A and "clock 0 cannot be closed" in why
    assert not [message for _, message in servers.said if isinstance(message, m.JobEnd)]

    servers.said.clear()
    servers.deaf.append(A)
    servers.map(2, (B, A))
    assert not servers.failures(), "whether A had committed it B cannot know"
    servers.map(3, (B,))
    assert set(servers.failures()) == {(B, why)}
    there, here = [servers.machines[name].jobs[1].replicas[servers.home] for name in (A, B)]
    assert there.range.failure is not None and here.range.failure is not None and there.range.failure.text == here.range.failure.text
    servers.said.clear()
    servers.say(B, m.StandingAsk(1, 3, 3, 0, 1))
    assert [type(message) for _, message in servers.said] == [m.Refuse, m.Standing]
    servers.said.clear()
    absent = (m.Segment(0, 0, 4, DTYPE_CODES["f32"], m.BLOCK, m.ABSENT),)
    servers.say(B, m.Pull(1, servers.home, 3, 3, 7, m.NOBODY, 0, 0, 0, absent))
    servers.say(B, m.Pull(1, servers.home, 3, 3, 8, m.NOBODY, 0, 0, 1, absent))
    assert [type(message) for _, message in servers.said] == [m.Values, m.Refuse]


def test_a_log_counts_only_the_bytes_that_are_still_there() -> None:
    log = Log()
    for _ in range(3):
        log.append("a0", None, MIB)
    assert log.bytes_after(1) == 2 * (MIB + HEAD_BYTES)
    log.commit(3)
    log.applied = 3
    log.trim(3)
    assert log.bytes_after(0) == log.bytes_after(3) == 0
