"""A few servers, a master of one page and agents of another, on a network that loses, doubles, delays and cuts; by seed.

Servers are the real machines.  The master decides as docs/internals.md says of copies, at once and without a store.  An
agent sends what it owes until it is answered, to whom its map names.  Everything that a copy applies is written down: at
one position of a range's log there is one entry, whoever applies it.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any

import numpy as np

from plugml.core.effects import Connect, Disconnect, Log, Send, Stop
from plugml.core.job import JobSpec
from plugml.core.jobmap import RUNNING, Assignment, JobMap, Piece, pieces, ranges_used
from plugml.core.limits import MS, SECOND, Limits
from plugml.core.table import DTYPE_CODES
from plugml.server.effects import Turn, Warm, WarmUp
from plugml.server.link import Identity
from plugml.server.node import ServerMachine
from plugml.server.range import RangeMachine
from plugml.server.replica import Replica
from plugml.wire import messages as m

MASTER = "m0"
LIMITS = Limits(
    beat_us=200 * MS, resend_us=40 * MS, resend_us_max=300 * MS, replicate_us=15 * MS, replicate_bytes=2_000, behind_bytes_max=6_000,
    behind_us_max=600 * MS, copy_part_bytes=256, copy_parts=2, copy_bytes_a_second=200_000, marks_us=100 * MS, turn_bytes=2_000,
    closes_max=8, parked_max=64,
)  # fmt: skip


class World:
    """`net`: chances of loss and doubling, and the longest delay.  Events are performed one by one, in order of time."""

    def __init__(
        self, spec: JobSpec, seed: int, servers: int = 3, ring: int = 4, limits: Limits = LIMITS, loss: float = 0.05, double: float = 0.05,
        delay_us: int = 5 * MS,
    ) -> None:  # fmt: skip
        self.draw = random.Random(seed)
        self.spec = spec
        self.limits = limits
        self.now_us = 1_000_000
        self.loss, self.double, self.delay_us = loss, double, delay_us
        self.servers: dict[str, ServerMachine] = {}
        self.paused: dict[str, int] = {}  # until when
        self.cut: set[tuple[str, str]] = set()  # (from, to)
        self.links: set[tuple[str, str]] = set()  # who has connected to whom
        self.logs: list[tuple[str, Log]] = []
        self.history: dict[tuple[int, int], str] = {}  # (range, version) -> the entry that stands there
        self.unlinked = 0  # messages between servers that nobody had connected
        self.incarnations = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0
        self._wakes: dict[str, int] = {}
        self.agents: dict[str, Any] = {}
        self.master = Master(self, ring)
        for number in range(servers):
            self.start(f"s{number}")

    # -- time

    def at(self, at_us: int, what: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (at_us, self._number, what))

    def later(self, low_us: int, high_us: int, what: Callable[[], None]) -> None:
        self.at(self.now_us + self.draw.randint(low_us, high_us), what)

    def run(self, until: Callable[[], bool], most_us: int) -> bool:
        """Until it is so; False if it is not after so much time."""
        end_us = self.now_us + most_us
        while not until():
            if not self._events or self._events[0][0] > end_us:
                return False
            at_us, _, what = heapq.heappop(self._events)
            self.now_us = max(self.now_us, at_us)
            what()
        return True

    # -- servers

    def start(self, node_id: str) -> str:
        self.incarnations += 1
        name = f"{node_id}.{self.incarnations:08x}"
        self.servers[name] = ServerMachine(Identity(name, "here", f"ipc://{name}", 1, "test", {MASTER: "ipc://m0"}), self.limits)
        self.feed(name, MASTER, m.Registered(1, 0, "box", True, ""))
        return name

    def kill(self, name: str) -> None:
        del self.servers[name]

    def pause(self, name: str, duration_us: int) -> None:
        """It hears and does nothing until then; what is sent to it waits."""
        self.paused[name] = self.now_us + duration_us

    def feed(self, name: str, sender: str, message: Any) -> None:
        if name in self.agents:
            self.agents[name].hear(sender, message)
            return
        machine = self.servers.get(name)
        if machine is None:
            return
        until_us = self.paused.get(name, 0)
        if until_us > self.now_us:
            self.at(until_us, lambda: self.feed(name, sender, message))
            return
        self._perform(name, machine.on_message(sender, message, self.now_us))

    def _wake(self, name: str, at_us: int) -> None:
        machine = self.servers.get(name)
        if machine is None or self._wakes.get(name) != at_us:
            return
        del self._wakes[name]
        until_us = self.paused.get(name, 0)
        if until_us > self.now_us:
            self.at(until_us, lambda: self._arm(name))
            return
        due_us = machine.deadline_us()
        if due_us is not None and due_us <= self.now_us:
            self._perform(name, machine.on_time(self.now_us))
        else:
            self._arm(name)

    def _arm(self, name: str) -> None:
        machine = self.servers.get(name)
        due_us = machine.deadline_us() if machine is not None else None
        if due_us is not None and due_us < self._wakes.get(name, 1 << 62):
            at_us = max(due_us, self.now_us + 1)
            self._wakes[name] = at_us
            self.at(at_us, lambda: self._wake(name, at_us))

    def _perform(self, name: str, effects: list[Any]) -> None:
        self.servers[name].check()
        for effect in effects:
            if isinstance(effect, Send):
                self.send(name, effect.to, effect.message)
            elif isinstance(effect, Connect):
                self.links.add((name, effect.node))
            elif isinstance(effect, Disconnect):
                self.links.discard((name, effect.node))
            elif isinstance(effect, Log):
                self.logs.append((name, effect))
            elif isinstance(effect, Turn):
                self.later(0, 500, lambda effect=effect: self.feed(name, "", effect))
            elif isinstance(effect, WarmUp):
                self.later(0, 50 * MS, lambda: self.feed(name, "", Warm()))
            else:
                assert not isinstance(effect, Stop), effect
                raise AssertionError(effect)
        self._arm(name)

    # -- network

    def send(self, sender: str, to: str, message: Any) -> None:
        """What it carries is as it was when it was sent."""
        if to == MASTER:
            self.later(0, self.delay_us, lambda: self.master.hear(sender, message))
            return
        if sender in self.servers and to in self.servers and not {(sender, to), (to, sender)} & self.links:
            self.unlinked += 1
            return
        if (sender, to) in self.cut or self.draw.random() < self.loss:
            return
        if isinstance(message, (m.Values, m.CopyTold)):
            message = message._replace(payload=tuple(bytes(part) for part in message.payload))
        for _ in range(1 + (self.draw.random() < self.double)):
            far = self.draw.random() < 0.05
            self.later(100, self.delay_us * (20 if far else 1), lambda: self.feed(to, sender, message))

    # -- looking inside

    def copies(self, number: int) -> dict[str, Replica]:
        """Those that are in sync by the master's map and alive."""
        names = self.master.map.ranges[number].replicas
        return {name: self.servers[name].jobs[1].replicas[number] for name in names if name in self.servers}

    def settled(self) -> bool:
        """Every range has all its copies, each holds the same log, and the primary has applied it to its end.

        That it is committed a backup may not have heard: the next entry says so, or its own promotion.
        """
        for number, item in self.master.map.ranges.items():
            found = self.copies(number)
            if len(found) < min(self.spec.copies, len(self.servers)) or len(found) != len(item.replicas) or item.learner:
                return False
            if any(number not in self.servers[name].jobs[1].replicas for name in found):
                return False
            ends = {(replica.seat.epoch, replica.log.last, replica.stuck) for replica in found.values()}
            first = found[item.primary]
            if len(ends) != 1 or not first.serves or first.log.last != first.log.applied:
                return False
        return True

    def check_copies(self) -> None:
        """Equal position, equal bits; what is applied in part is applied to its end first."""
        for machine in self.servers.values():
            machine._turns.finish(self.now_us)
        for number in self.master.map.ranges:
            found: dict[int, set[tuple[int, int]]] = {}
            for replica in self.copies(number).values():
                found.setdefault(replica.log.applied, set()).add((replica.range.digest(), replica.range.mark))
            assert all(len(digests) == 1 for digests in found.values()), f"copies of range {number} differ"

    def note(self, held: RangeMachine, entry: Any) -> None:
        said = repr((entry.origin, type(entry.message).__name__, entry.message[4:7]))
        known = self.history.setdefault((held.number, entry.version), said)
        assert known == said, f"range {held.number} has two entries {entry.version}: {known} and {said}"


class Master:
    """Maps, and who is in them."""

    def __init__(self, world: World, ring: int) -> None:
        self.world = world
        self.ring = ring
        self.token = 0
        self.map: JobMap
        self.failed = ""
        self.fills = True  # names learners where copies are missing

    def begin(self) -> None:
        """Ranges are dealt out one by one, with as many copies as the job wants."""
        names = list(self.world.servers)
        spec = self.world.spec
        used = ranges_used(spec, self.ring)
        ranges = {n: Assignment(1, tuple(names[(i + k) % len(names)] for k in range(min(spec.copies, len(names))))) for i, n in enumerate(used)}
        self.map = JobMap(1, 1, spec, RUNNING, "", self.ring, ranges, {}, {})
        self.tell(ranges)
        self.look_around()

    def look_around(self) -> None:
        if self.fills:
            self.fill()
        self.world.later(100 * MS, 200 * MS, self.look_around)

    def tell(self, ranges: dict[int, Assignment]) -> None:
        """The next map, to everybody."""
        self.token += 1
        endpoints = {name: f"ipc://{name}" for item in ranges.values() for name in (*item.replicas, item.learner) if name}
        self.map = self.map._replace(token=self.token, ranges=ranges, endpoints=endpoints)
        for name in (*self.world.servers, *self.world.agents):
            self.tell_one(name)

    def tell_one(self, name: str) -> None:
        world, told = self.world, m.MapTold(1, self.token, self.map.to_document())
        if world.draw.random() >= world.loss:
            world.later(100, world.delay_us, lambda: world.feed(name, MASTER, told))

    def hear(self, sender: str, message: Any) -> None:
        world = self.world
        if isinstance(message, m.MapAsk):
            self.tell_one(sender)
        elif isinstance(message, m.Beat):
            world.later(100, world.delay_us, lambda: world.feed(sender, MASTER, m.BeatAck(1, self.token, True)))
        elif isinstance(message, m.Register):
            world.later(100, world.delay_us, lambda: world.feed(sender, MASTER, m.Registered(1, self.token, "box", True, "")))
        elif isinstance(message, m.JobEnd):
            self.failed = message.reason
        elif isinstance(message, m.SeatAsk):
            self.on_seat(sender, message)
            world.later(100, world.delay_us, lambda: world.feed(sender, MASTER, m.Done(message.request, 0, "")))

    def on_seat(self, sender: str, ask: m.SeatAsk) -> None:
        item = self.map.ranges[ask.range]
        if item.epoch != ask.epoch:
            return
        if ask.verb == "add" and sender == item.primary and ask.node == item.learner and ask.node in self.world.servers:
            self.change(ask.range, (*item.replicas, ask.node), "")
        elif ask.verb == "drop" and sender in (item.primary, ask.node):
            if ask.node == item.learner:
                self.change(ask.range, item.replicas, "")
            elif item.replicas == (ask.node,):
                self.failed = ask.reason
            elif ask.node in item.replicas:
                self.change(ask.range, tuple(name for name in item.replicas if name != ask.node), item.learner)

    def change(self, number: int, replicas: tuple[str, ...], learner: str) -> None:
        item = self.map.ranges[number]
        born = item.born if learner == item.learner else item.epoch + 1
        self.tell({**self.map.ranges, number: Assignment(item.epoch + 1, replicas, learner, born if learner else 0)})

    def dead(self, name: str) -> None:
        """The node is gone, or is taken to be."""
        ranges = dict(self.map.ranges)
        for number, item in ranges.items():
            left = tuple(other for other in item.replicas if other != name)
            if name in (*item.replicas, item.learner) and left:
                learner = "" if item.learner == name else item.learner
                ranges[number] = Assignment(item.epoch + 1, left, learner, item.born if learner else 0)
        if ranges != self.map.ranges:
            self.tell(ranges)

    def fill(self) -> None:
        """Missing copies are given to whoever has none."""
        for number, item in list(self.map.ranges.items()):
            free = [name for name in self.world.servers if name not in item.replicas]
            if len(item.replicas) < self.world.spec.copies and not item.learner and free:
                self.change(number, item.replicas, self.world.draw.choice(free))

    def hand_over(self, number: int) -> None:
        """Another copy leads."""
        item = self.map.ranges[number]
        if len(item.replicas) > 1:
            self.change(number, (*item.replicas[1:], item.replicas[0]), item.learner)

    def may_die(self, name: str) -> bool:
        """Whether no range is lost with it."""
        items = self.map.ranges.values()
        return all(name not in item.replicas or any(other != name and other in self.world.servers for other in item.replicas) for item in items)


class Agent:
    """Owes messages, each under a key, until it is answered; knows a map and the newest token that it was shown."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.map: JobMap | None = None
        self.token = 0
        self.owed: dict[Any, Callable[[], tuple[int, Any]]] = {}
        self.parts: dict[int, list[Piece]] = {}
        for piece in pieces(world.spec, world.master.ring):
            self.parts.setdefault(piece.range, []).append(piece)
        world.agents[name] = self
        self._again()

    def owe(self, key: Any, build: Callable[[], tuple[int, Any]]) -> None:
        self.owed[key] = build
        self._send(key)

    def _send(self, key: Any) -> None:
        if self.map is not None and key in self.owed:
            number, message = self.owed[key]()
            primary = self.map.primary(number)
            if primary:
                self.world.send(self.name, primary, message)

    def _again(self) -> None:
        for key in list(self.owed):
            self._send(key)
        if self.map is None or self.token > self.map.token:
            self.world.send(self.name, MASTER, m.MapAsk(1, self.token))
        self.world.later(30 * MS, 60 * MS, self._again)

    def head(self, number: int) -> tuple[int, int, int]:
        assert self.map is not None
        return (1, self.map.epoch(number), max(self.token, self.map.token))

    def hear(self, sender: str, message: Any) -> None:
        if isinstance(message, m.MapTold):
            new = JobMap.from_document(message.document)
            if self.map is None or new.token > self.map.token:
                self.map = new
                for key in list(self.owed):
                    self._send(key)
            return
        if isinstance(message, m.Nack):
            self.token = max(self.token, message.token)
            self.world.send(self.name, MASTER, m.MapAsk(1, message.token))
            return
        self.token = max(self.token, message.token)
        self.on_answer(message)

    def on_answer(self, message: Any) -> None:
        raise NotImplementedError

    # -- what it says

    def segments(self, number: int, of: Callable[[Piece], Any]) -> tuple[tuple[m.Segment, ...], tuple[Any, ...]]:
        segments, payload = [], []
        for piece in self.parts[number]:
            code = DTYPE_CODES[self.world.spec.tables[piece.table].storage_name]
            segments.append(m.Segment(piece.table, piece.block.number, piece.block.stop - piece.block.start, code))
            payload.append(np.ascontiguousarray(of(piece), self.world.spec.tables[piece.table].storage_dtype).tobytes())
        return tuple(segments), tuple(payload)

    def push(self, number: int, component: m.Component, of: Callable[[Piece], Any]) -> Callable[[], tuple[int, Any]]:
        segments, payload = self.segments(number, of)

        def build() -> tuple[int, Any]:
            job, epoch, token = self.head(number)
            return number, m.Push(job, number, epoch, token, 0, (component,), segments, payload)

        return build

    def pull(self, number: int, request: int, worker: int, after: int, closed: int) -> Callable[[], tuple[int, Any]]:
        absent = tuple(segment._replace(carry=m.ABSENT) for segment in self.segments(number, lambda piece: np.zeros(piece.block.stop - piece.block.start))[0])

        def build() -> tuple[int, Any]:
            job, epoch, token = self.head(number)
            return number, m.Pull(job, number, epoch, token, request, worker, 1, after, closed, absent)

        return build

    def to_clock(self, kind: type[Any], *rest: Any) -> Callable[[], tuple[int, Any]]:
        def build() -> tuple[int, Any]:
            assert self.map is not None
            number = self.map.clock_range
            return number, kind(*self.head(number), *rest)

        return build


MONKEY = SECOND  # how long faults come, before all is well again
