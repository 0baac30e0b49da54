"""A master machine with a store in memory, driven by hand: every message goes through the codec, every event is checked."""

from __future__ import annotations

from collections import deque
from typing import Any

from plugml.core.effects import Disconnect, Log, Send, Stop
from plugml.core.job import JobSpec
from plugml.core.limits import Limits
from plugml.core.table import TableSpec
from plugml.master.catalog import State, unpack
from plugml.master.effects import STATE_KEY, StoreCas, StoreDone
from plugml.master.machine import MasterMachine
from plugml.master.store import MemoryStore
from plugml.wire import messages as m
from plugml.wire.codec import decode, encode

LIMITS = Limits()
SECOND = 1_000_000


def spec(name: str = "job", workers: int = 2, shape: tuple[int, ...] = (1 << 20,), **more: Any) -> JobSpec:
    return JobSpec(name, workers, (TableSpec("w", shape),), **{"copies": 1, **more})


class MasterWorld:
    """`sent` holds what left for whom; `logs` the events; `stopped` the end of the process, if it came."""

    def __init__(self, limits: Limits = LIMITS, store: MemoryStore | None = None, servers_expected: int = 1) -> None:
        self.limits = limits
        self.store = store or MemoryStore()
        self.servers_expected = servers_expected
        self.now_us = 5 * SECOND
        self.starts = 0
        self.sent: list[tuple[str, Any]] = []
        self.logs: list[Log] = []
        self.gone: list[str] = []
        self.stopped: Stop | None = None
        self.held: deque[StoreDone] = deque()  # answers of the store that have not come yet
        self.hold = False
        self.request = 0
        self.token_seen = 0
        self.start()

    def start(self) -> None:
        """A new process of the same master."""
        self.starts += 1
        self.held.clear()
        self.stopped = None
        self.machine = MasterMachine("m0", f"{self.starts:08x}", "test", self.limits, self.servers_expected)
        self.run_for(0)

    # -- time and events

    def run_for(self, us: int) -> None:
        """Let time pass; the machine is called whenever it asked for it."""
        end_us = self.now_us + us
        while self.stopped is None:
            due_us = self.machine.deadline_us()
            if due_us is None or due_us > end_us:
                break
            self.now_us = max(self.now_us, due_us)
            self.perform(self.machine.on_time(self.now_us))
        self.now_us = end_us

    def feed(self, sender: str, message: Any) -> None:
        if self.stopped is None:
            if sender:
                message = decode([bytes(frame) for frame in encode(message)])
            self.perform(self.machine.on_message(sender, message, self.now_us))

    def perform(self, effects: list[Any]) -> None:
        self.machine.check()
        answers: list[StoreDone] = []
        message = received = None
        for effect in effects:
            if isinstance(effect, Send):
                if effect.message is not message:  # one map goes to many
                    message = effect.message
                    frames = encode(message)
                    assert sum(len(frame) for frame in frames) <= self.limits.control_bytes_max + 72
                    received = decode([bytes(frame) for frame in frames])
                self.sent.append((effect.to, received))
            elif isinstance(effect, StoreCas):
                outcome, version, value, text = self.store.cas(effect.key, effect.version, effect.value)
                answers.append(StoreDone(effect.key, outcome, version, value, text, effect.number))
            elif isinstance(effect, Log):
                self.logs.append(effect)
            elif isinstance(effect, Disconnect):
                self.gone.append(effect.node)
            else:
                assert isinstance(effect, Stop), effect
                self.stopped = effect
        self.held.extend(answers)
        if not self.hold:
            self.release()

    def release(self) -> None:
        """Let the store's answers in."""
        while self.held and self.stopped is None:
            self.feed("", self.held.popleft())

    # -- what people look at

    @property
    def state(self) -> State:
        value, version = self.store.read(STATE_KEY)
        assert version
        return unpack(value)

    def take(self, to: str, kind: type[Any]) -> list[Any]:
        """Messages of one kind that went to a node, and no longer are in `sent`."""
        found = [message for name, message in self.sent if name == to and type(message) is kind]
        self.sent = [item for item in self.sent if not (item[0] == to and type(item[1]) is kind)]
        return found

    def one(self, to: str, kind: type[Any]) -> Any:
        found = self.take(to, kind)
        assert len(found) == 1, found
        return found[0]

    def events(self, event: str) -> list[dict[str, Any]]:
        return [log.fields for log in self.logs if log.event == event]

    # -- what nodes say

    def register(self, name: str, role: str = "", host: str = "h0") -> None:
        role = role or ("server" if name[0] == "s" else "agent")
        endpoint = f"ipc:///run/plugml/ipc/{name}" if role == "server" else ""
        self.feed(name, m.Register(role, host, endpoint, 1000 + int(name[1 : name.index(".")]), "numpy-2"))

    def beat(self, *names: str, token: int = 0) -> None:
        for name in names:
            self.feed(name, m.Beat(token, {"pushes": 3}))

    def beats_for(self, us: int, *names: str) -> None:
        """Time passes, and these nodes go on beating."""
        end_us = self.now_us + us
        while self.now_us < end_us:
            self.beat(*names)
            self.run_for(min(self.limits.beat_us, end_us - self.now_us))

    def number(self) -> int:
        self.request += 1
        return self.request

    def ask_job(self, agent: str, document: JobSpec | dict[str, Any]) -> int:
        request = self.number()
        asked = document.to_document() if isinstance(document, JobSpec) else document
        state = self.machine.ledger.state
        newest = state.job_named(str(asked.get("name"))) if state is not None else None
        self.feed(agent, m.JobAsk(request, asked, newest.number if newest is not None else 0))
        return request

    def job(self, agent: str, document: JobSpec | dict[str, Any]) -> m.JobTold:
        self.ask_job(agent, document)
        told: m.JobTold = self.one(agent, m.JobTold)
        return told

    def attach(self, agent: str, job: int, worker: int, request: int = 0) -> m.AttachTold:
        state = self.machine.ledger.state
        found = state.jobs.get(job) if state is not None else None
        last = found.attached.get(worker) if found is not None else None
        self.feed(agent, m.AttachAsk(request or self.number(), job, worker, last.gen if last is not None else 0))
        told: m.AttachTold = self.one(agent, m.AttachTold)
        return told

    def admin(self, verb: str, **arguments: Any) -> m.AdminTold:
        self.feed("cli.1", m.Admin(self.number(), verb, arguments))
        told: m.AdminTold = self.one("cli.1", m.AdminTold)
        return told._replace(document=lists(told.document))


def lists(value: Any) -> Any:
    """The value with lists where the codec gives tuples."""
    if isinstance(value, dict):
        return {key: lists(item) for key, item in value.items()}
    return [lists(item) for item in value] if isinstance(value, tuple) else value
