"""Three masters, one store, a server and an agent in simulated time: crashes, sleeps, outages, lost and late messages.

The machines are the real ones (`RivalMaster`, both `MasterLink`s); the store, the sockets and the clock are not.  Every
write to the store and every word of a leader is checked as it happens.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from plugml.agent import link as agent_link
from plugml.core.effects import Log, Send, Stop
from plugml.core.errors import Code
from plugml.core.limits import Limits
from plugml.master import catalog, leadership
from plugml.master.effects import LEADER_KEY, STATE_KEY, StoreCas, StoreDone, StoreRead
from plugml.master.rival import RivalMaster
from plugml.server import link as server_link
from plugml.wire import messages as m
from tests.fuzz.master_world import spec

SECOND = 1_000_000
LIMITS = Limits(leader_beat_us=100_000, leader_dead_us=500_000, beat_us=100_000, suspect_us=300_000, dead_us=900_000)
MASTERS = {"m0": "ipc://m0", "m1": "ipc://m1", "m2": "ipc://m2"}
SERVER, AGENT = "s0.1", "a0.1"


class Violation(AssertionError):
    """Something that must never be."""


class Store:
    """Values by key; each success has a higher version.  Whoever asks may hear nothing certain."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.values: dict[str, tuple[int, bytes]] = {}
        self.terms: dict[str, dict[int, str]] = {LEADER_KEY: {}, STATE_KEY: {}}  # who has written under which term
        self.unknown_rate = 0.0
        self.down = False
        self.cut: set[str] = set()  # masters that cannot reach it
        self.writes = 0

    def ask(self, effect: StoreCas | StoreRead, who: str, answer: Callable[[StoreDone], None]) -> None:
        """Perhaps now, perhaps later, perhaps never."""
        random, world = self.world.random, self.world
        if self.down or who in self.cut or random.random() < self.unknown_rate:
            if isinstance(effect, StoreCas) and not self.down and random.random() < 0.6:
                world.after(random.choice((0, 1_000, 200_000, 2 * SECOND)), lambda: self._swap(effect))
            done = StoreDone(effect.key, "unknown", 0, b"", "no answer", effect.number)
            world.after(random.randint(1_000, 150_000), lambda: answer(done))
            return
        world.after(random.randint(100, 4_000), lambda: self._now(effect, answer))

    def _now(self, effect: StoreCas | StoreRead, answer: Callable[[StoreDone], None]) -> None:
        done = self._read(effect) if isinstance(effect, StoreRead) else self._swap(effect)
        self.world.after(self.world.random.randint(100, 4_000), lambda: answer(done))

    def _read(self, effect: StoreRead) -> StoreDone:
        return StoreDone(effect.key, "ok", *self.values.get(effect.key, (0, b"")), number=effect.number)

    def _swap(self, effect: StoreCas) -> StoreDone:
        version, value = self.values.get(effect.key, (0, b""))
        if version != effect.version:
            return StoreDone(effect.key, "conflict", version, value, number=effect.number)
        self._check(effect.key, effect.value, value)
        self.writes += 1
        version += 1 + self.world.random.randint(0, 2)
        self.values[effect.key] = (version, effect.value)
        return StoreDone(effect.key, "ok", version, effect.value, number=effect.number)

    def _check(self, key: str, new: bytes, old: bytes) -> None:
        writer, term = self._who(key, new)
        if old and term < self._who(key, old)[1]:
            raise Violation(f"{key}: the term falls from {self._who(key, old)[1]} to {term}")
        if self.terms[key].setdefault(term, writer) != writer:
            raise Violation(f"{key}: {writer} and {self.terms[key][term]} both write in term {term}")
        if key == STATE_KEY and self.terms[LEADER_KEY].get(term) != writer:
            raise Violation(f"{writer} writes the state in term {term}, in which it never led")
        if key == STATE_KEY and old and (catalog.unpack(new).token < catalog.unpack(old).token):
            raise Violation("the token falls")

    @staticmethod
    def _who(key: str, value: bytes) -> tuple[str, int]:
        if key == STATE_KEY:
            state = catalog.unpack(value)
            return state.writer, state.term
        word = leadership.unpack(value)
        assert word is not None
        return word.writer, word.term


class Process:
    """A machine with a name, dead or alive, asleep or not: what comes to a sleeper waits.  Its clock runs at `rate`."""

    def __init__(self, world: World, node: str, make: Callable[[int], Any], rate: float = 1.0) -> None:
        self.world = world
        self.node = node
        self.rate = rate
        self.make = make
        self.starts = 0
        self.asleep_until_us = 0
        self.wake_us = -1
        self.machine: Any = None
        self.inbox: deque[tuple[str, Any]] = deque()
        self.start()

    def start(self) -> None:
        self.starts += 1
        self.machine = self.make(self.starts)
        self.inbox.clear()
        self.asleep_until_us = 0
        self.wake_us = -1
        self.world.after(0, self.run)

    def crash(self) -> None:
        self.machine = None

    def give(self, sender: str, message: Any) -> None:
        if self.machine is not None:
            self.inbox.append((sender, message))
            self.run()

    @property
    def now_us(self) -> int:
        return int(self.world.now_us * self.rate)

    def run(self) -> None:
        """Whatever has come, and whatever is due; a late one perhaps sees its messages first, perhaps its timers."""
        world = self.world
        if self.machine is None or world.now_us < self.asleep_until_us:
            return
        timers_first = world.random.random() < 0.5
        if timers_first:
            self._on_time()
        while self.inbox and self.machine is not None:
            sender, message = self.inbox.popleft()
            self._perform(self.machine.on_message(sender, message, self.now_us))
        self._on_time()

    def _on_time(self) -> None:
        for _ in range(50):
            due_us = self.machine.deadline_us() if self.machine is not None else None
            if due_us is None or due_us > self.now_us:
                break
            self._perform(self.machine.on_time(self.now_us))
        else:
            raise Violation(f"{self.node}: its deadline never goes away")
        if due_us is not None and due_us != self.wake_us:
            self.wake_us = due_us
            self.world.after(int((due_us - self.now_us) / self.rate) + 1, lambda: self._wake(due_us))

    def _wake(self, due_us: int) -> None:
        """Of all times that were asked for only the newest counts."""
        if due_us == self.wake_us:
            self.wake_us = -1
            self.run()

    def sleep(self, us: int) -> None:
        self.asleep_until_us = self.world.now_us + us
        self.world.after(us, self.run)

    def _perform(self, effects: list[Any]) -> None:
        self.machine.check()
        machine = self.machine
        for effect in effects:
            if isinstance(effect, Send):
                self.world.send(self, effect)
            elif isinstance(effect, (StoreCas, StoreRead)):
                self.world.store.ask(effect, self.node, lambda done: self.give("", done) if self.machine is machine else None)
            elif isinstance(effect, Stop):
                raise Violation(f"{self.node} ends: {effect.text}")
            elif isinstance(effect, Log):
                self.world.logs.append((self.world.now_us, self.node, effect))


class Server:
    """As much of a server as masters see."""

    def __init__(self) -> None:
        self.link = server_link.MasterLink(server_link.Identity(SERVER, "h0", "ipc://s0", 1, "test", MASTERS), LIMITS)

    def on_message(self, sender: str, message: Any, now_us: int) -> list[Any]:
        link = self.link
        if isinstance(message, m.Registered):
            return link.on_registered(sender, message, now_us)
        if isinstance(message, m.BeatAck):
            return link.on_beat_ack(sender, message, now_us)
        if isinstance(message, m.NotLeader):
            return link.on_not_leader(sender, message, now_us, {})
        return []

    def on_time(self, now_us: int) -> list[Any]:
        return self.link.on_time(now_us, {})

    def deadline_us(self) -> int | None:
        return self.link.deadline_us()

    def check(self) -> None:
        return


class Agent:
    """Registers a job, then attaches its worker again and again: each time the generation must be the next one.

    A job that was lost (its server was silent for too long) is followed by the next.
    """

    def __init__(self) -> None:
        identity = agent_link.Identity(AGENT, "h0", 1, "test", "test", "boot", MASTERS)
        self.link = agent_link.MasterLink(identity, LIMITS)
        self.job = self.gen = self.ended = self.attached = 0
        self.asked = False

    def on_message(self, sender: str, message: Any, now_us: int) -> list[Any]:
        link = self.link
        if isinstance(message, m.Registered):
            return link.on_registered(sender, message, now_us)
        if isinstance(message, m.BeatAck):
            return link.on_beat_ack(sender, message, now_us)
        if isinstance(message, m.NotLeader):
            return link.on_not_leader(sender, message, now_us)
        if isinstance(message, (m.JobTold, m.AttachTold)) and link.answered(message):
            self._told(message)
        return []

    def _told(self, told: m.JobTold | m.AttachTold) -> None:
        self.asked = False
        if isinstance(told, m.JobTold) and told.code == Code.AGAIN and told.job > self.ended:
            self.ended = told.job  # it was registered and lost before the answer came
        elif isinstance(told, m.AttachTold) and told.code == Code.NOSERVER:
            self.ended, self.job, self.gen = self.job, 0, 0
        elif told.code != Code.OK:
            raise Violation(f"a good question is refused: {told}")
        elif isinstance(told, m.JobTold):
            if told.job <= self.ended:
                raise Violation(f"job {told.job} after {self.ended}")
            self.job = told.job
        elif told.gen != self.gen + 1:
            raise Violation(f"generation {told.gen} after {self.gen}")
        else:
            self.gen = told.gen
            self.attached += 1

    def on_time(self, now_us: int) -> list[Any]:
        effects = self.link.on_time(now_us, 0, dict)
        if not self.asked:
            self.asked = True
            effects += self.link.ask(self._question, now_us)[1]
        return effects

    def _question(self, number: int) -> Any:
        if self.job:
            return m.AttachAsk(number, self.job, 0, self.gen)
        return m.JobAsk(number, spec().to_document(), self.ended)

    def deadline_us(self) -> int | None:
        return self.link.deadline_us()

    def check(self) -> None:
        return


class World:
    def __init__(self, seed: int, make: Callable[..., RivalMaster] = RivalMaster) -> None:
        """In half of all worlds the masters' clocks run at rates of their own: then only the store can keep them apart."""
        self.random = Random(seed)
        self.skewed = self.random.random() < 0.5
        self.now_us = SECOND
        self.logs: list[tuple[int, str, Log]] = []
        self.stormy = True
        self.loss = self.random.choice((0.0, 0.05, 0.3))
        self.cuts: set[tuple[str, str]] = set()
        self.spoken = 0  # the highest term that a leader has shown
        self._events: list[tuple[int, int, Callable[[], Any]]] = []
        self._order = 0
        self.store = Store(self)

        rates = {node: self.random.choice((0.5, 1.0, 2.0)) if self.skewed else 1.0 for node in MASTERS}

        def master(node: str) -> Process:
            return Process(self, node, lambda start: make(node, f"{start}", MASTERS[node], "test", LIMITS), rates[node])

        self.masters = [master(node) for node in MASTERS]
        self.server, self.agent = Process(self, SERVER, lambda start: Server()), Process(self, AGENT, lambda start: Agent())
        self.processes = {process.node: process for process in (*self.masters, self.server, self.agent)}

    # -- time

    def after(self, us: int, what: Callable[[], Any]) -> None:
        self._order += 1
        heapq.heappush(self._events, (self.now_us + us, self._order, what))

    def run_until(self, holds: Callable[[], bool], us: int) -> bool:
        end_us = self.now_us + us
        while not holds():
            if not self._events or self._events[0][0] > end_us:
                self.now_us = end_us
                return holds()
            self.now_us, _, what = heapq.heappop(self._events)
            what()
        return True

    # -- messages

    def send(self, sender: Process, effect: Send) -> None:
        message, random = effect.message, self.random
        if isinstance(message, (m.Registered, m.BeatAck)):
            if message.term < self.spoken and not self.skewed:
                raise Violation(f"{sender.node} speaks as the leader of term {message.term}, when {self.spoken} is led")
            self.spoken = max(self.spoken, message.term)
        if (sender.node, effect.to) in self.cuts or (self.stormy and random.random() < self.loss):
            return
        target = self.processes[effect.to]
        for _ in range(2 if self.stormy and random.random() < 0.05 else 1):
            late = self.stormy and random.random() < 0.05
            self.after(random.randint(50, SECOND if late else 3_000), lambda: target.give(sender.node, message))

    # -- weather

    def storm(self, us: int) -> None:
        end_us = self.now_us + us
        while self.now_us < end_us:
            self._mischief()
            self.run_until(lambda: False, self.random.randint(1_000, 400_000))

    def _mischief(self) -> None:
        random, store = self.random, self.store
        process = random.choice(self.masters)
        kind = random.choice(("crash", "start", "start", "sleep", "unknown", "outage", "well", "well", "cut off", "cut", "cut", "mend"))
        if kind == "crash":
            process.crash()
        elif kind == "start" and process.machine is None:
            process.start()
        elif kind == "sleep":
            random.choice(list(self.processes.values())).sleep(random.randint(1_000, 2 * SECOND))
        elif kind == "unknown":
            store.unknown_rate = random.choice((0.1, 0.5))
        elif kind == "outage":
            store.down = random.random() < 0.5
        elif kind == "cut off":
            store.cut.add(process.node)
        elif kind == "cut":
            self.cuts.add((random.choice(list(self.processes)), random.choice(list(self.processes))))
        elif kind == "mend":
            self.cuts.clear()
        elif kind == "well":
            store.down, store.unknown_rate = False, 0.0
            store.cut.clear()

    def heal(self) -> None:
        self.stormy = self.store.down = False
        self.store.unknown_rate = 0.0
        self.store.cut.clear()
        self.cuts.clear()
        for process in self.processes.values():
            process.asleep_until_us = 0
            if process.machine is None:
                process.start()
            process.run()

    # -- what must come true

    def leader(self) -> str:
        """The one master that leads and has read the state, "" = not yet."""
        leaders = [
            process.node for process in self.masters
            if process.machine is not None and process.machine.reigning is not None and process.machine.reigning.ledger.state is not None
        ]  # fmt: skip
        return leaders[0] if len(leaders) == 1 else ""

    def settled(self) -> bool:
        """Everybody asks the one that leads, and it knows everybody."""
        leader = self.leader()
        return bool(leader) and all(
            link.lead.master == leader and link.lead.term == self.spoken for link in (self.server.machine.link, self.agent.machine.link)
        )
