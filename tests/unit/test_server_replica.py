"""One range on two servers, message by message: how a learner is filled, and what a log counts."""

from __future__ import annotations

from collections import deque
from typing import Any

from plugml.core.effects import Send
from plugml.core.job import JobSpec
from plugml.core.jobmap import Assignment, JobMap, ranges_used
from plugml.core.limits import MIB, Limits
from plugml.core.table import TableSpec
from plugml.server.effects import Turn
from plugml.server.link import Identity
from plugml.server.log import Log
from plugml.server.node import ServerMachine
from plugml.wire import messages as m

A, B = "s0.00000001", "s1.00000002"
LIMITS = Limits(ranges=4)


class Pair:
    """Two servers that hear each other at once; what they say to the master is kept."""

    def __init__(self) -> None:
        self.machines = {
            name: ServerMachine(Identity(name, "here", f"ipc://{name}", 1, "test", {"m0": "ipc://m0"}), LIMITS) for name in (A, B)
        }
        self.spec = JobSpec("job", 1, (TableSpec("w", (4,), optimizer="add", combine="sum"),), copies=2).with_blocks(1, LIMITS)
        self.now_us = 0
        self.to_master: list[Any] = []
        self.queue: deque[tuple[str, str, Any]] = deque()

    def map(self, token: int, *seat: Any) -> None:
        ranges = dict.fromkeys(ranges_used(self.spec, LIMITS.ranges), Assignment(*seat))
        endpoints = {name: f"ipc://{name}" for name in self.machines}
        told = JobMap(1, token, self.spec, "running", "", LIMITS.ranges, ranges, endpoints, {})
        for name in self.machines:
            self.queue.append(("m0", name, m.MapTold(1, token, told.to_document())))
        self.settle()

    def settle(self) -> None:
        while self.queue:
            sender, to, message = self.queue.popleft()
            for effect in self.machines[to].on_message(sender, message, self.now_us):
                if isinstance(effect, Turn):
                    self.queue.append(("", to, effect))
                elif isinstance(effect, Send) and effect.to in self.machines:
                    self.queue.append((to, effect.to, effect.message))
                elif isinstance(effect, Send):
                    self.to_master.append(effect.message)
            self.machines[to].check()


def test_a_range_that_has_taken_nothing_is_copied_like_any_other() -> None:
    pair = Pair()
    pair.map(1, 1, (A,))
    pair.map(2, 2, (A,), B, 2)
    asked = [ask for ask in pair.to_master if isinstance(ask, m.SeatAsk)]
    assert [(ask.verb, ask.node) for ask in asked] == [("add", B)] * len(ranges_used(pair.spec, LIMITS.ranges))


def test_a_log_counts_only_the_bytes_that_are_still_there() -> None:
    log = Log()
    for _ in range(3):
        log.append("a0", None, MIB)
    assert log.bytes_after(1) == 2 * MIB
    log.commit(3)
    log.applied = 3
    log.trim(3)
    assert log.bytes_after(0) == log.bytes_after(3) == 0
