"""Servers that make checkpoints on a real directory, in a world that loses messages and kills; workers that go on from one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from plugml.core.limits import MS
from plugml.runtime import checkpoints
from plugml.server import savedisk
from plugml.server.effects import ReadRange, TidySaves, WriteManifest, WriteRange
from plugml.wire import messages as m

from .replica_world import MASTER, Agent, Master, World

WORK = {WriteRange: savedisk.write, ReadRange: savedisk.read, WriteManifest: savedisk.complete, TidySaves: savedisk.tidy}


class SaveMaster(Master):
    """Stores the pointer.  `stored` has every checkpoint that was ever kept."""

    def __init__(self, world: World, ring: int) -> None:
        super().__init__(world, ring)
        self.stored: dict[int, int] = {}  # number -> clock
        self.problems: list[str] = []

    def hear(self, sender: str, message: Any) -> None:
        if not isinstance(message, m.SaveEnd):
            super().hear(sender, message)
            return
        if message.problem:
            self.problems.append(message.problem)
        else:
            self.stored[message.number] = message.clock
        self.world.later(100, self.world.delay_us, lambda: self.world.feed(sender, MASTER, m.Done(message.request, 0, "")))


class SaveWorld(World):
    """Work on the disk takes its time; what a server had begun when it was killed is done, or not.  `spoil(effect)`: fails it."""

    def __init__(self, *rest: Any, **more: Any) -> None:
        super().__init__(*rest, **more)
        self.master: SaveMaster = SaveMaster(self, self.master.ring)
        self.spoil: Any = lambda effect: None
        self.slow_us = 20 * MS

    def _perform(self, name: str, effects: list[Any]) -> None:
        work = [effect for effect in effects if type(effect) in WORK]
        super()._perform(name, [effect for effect in effects if type(effect) not in WORK])
        for effect in work:
            self.later(0, self.slow_us, lambda effect=effect: self.work(name, effect))

    def work(self, name: str, effect: Any) -> None:
        if name not in self.servers and self.draw.random() < 0.5:
            return
        event = self.spoil(effect) or WORK[type(effect)](effect)
        if event is not None and name in self.servers:
            self.feed(name, "", event)


class Stepper(Agent):
    """BSP: in clock c of worker w the push is c + 1 at w's own place, and after it all places have to show 1 + 2 + ... + (c + 1)."""

    def __init__(self, world: World, worker: int, clocks: int, gen: int = 1, reads: bool = True) -> None:
        super().__init__(world, f"a{worker}.{gen:08x}")
        self.worker, self.clocks, self.gen, self.reads = worker, clocks, gen, reads
        self.clock = self.first = -1
        self.owe("join", self.to_clock(m.Join, worker, gen))

    @property
    def done(self) -> bool:
        return self.clock >= self.clocks

    def next(self) -> None:
        self.clock += 1
        if self.done:
            self.owed.clear()
            return
        seq = self.clock - self.first + 1
        for number in self.parts:
            component = m.Component(self.worker, self.gen, seq, seq - 1, self.clock, 1.0)
            self.owe(("push", number), self.push(number, component, lambda piece: grown(self.world.spec.workers, self.worker, self.clock)))

    def on_answer(self, message: Any) -> None:
        if isinstance(message, m.PushAck) and message.seq == self.clock - self.first + 1:
            if self.owed.pop(("push", message.range), None) is not None and not any(key[0] == "push" for key in self.owed):
                self.owe("tick", self.to_clock(m.Tick, self.worker, self.gen, self.clock, ((0, 1.0),)))
        elif isinstance(message, m.Standing):
            self.on_standing(message)
        elif isinstance(message, m.Values) and message.request == self.clock + 1 and ("pull", message.range) in self.owed:
            del self.owed["pull", message.range]
            for payload in message.payload:
                wanted = (self.clock + 1) * (self.clock + 2) / 2
                assert set(np.frombuffer(payload)) == {wanted}, f"clock {self.clock} is not what was pushed up to it"
            if not self.owed:
                self.next()

    def on_standing(self, standing: m.Standing) -> None:
        if standing.worker != self.worker:
            return
        if "join" in self.owed:
            del self.owed["join"]
            self.clock, self.first = standing.finished - 1, standing.finished
            self.next()
        elif standing.finished > self.clock and self.owed.pop("tick", None) is not None:
            seq = self.clock - self.first + 1
            if not self.reads:
                self.next()
                return
            for number in self.parts:
                pull = self.pull(number, self.clock + 1, self.worker, seq, self.clock + 1)
                self.owe(("pull", number), lambda pull=pull: (pull()[0], pull()[1]._replace(gen=self.gen)))


def grown(workers: int, worker: int, clock: int) -> Any:
    values = np.zeros(workers)
    values[worker] = clock + 1
    return values


def newest(root: Path) -> Any:
    """The newest checkpoint that is whole."""
    return checkpoints.newest(root)[0]

