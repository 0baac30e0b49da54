"""A story is a text file: commands, a line of four dashes, and everything that happened because of them.

    # A sentence that says what the story shows.

    job workers=2 n=3:f64:add            a job; tables are NAME=COUNT:DTYPE:OPTIMIZER[:KEY=VALUE...]
    push 0.1 seq=1 clock=0 n=1,2,3       worker 0 of generation 1 pushes (one number = that many times)
    ----
    s0.1 -> a0.1  PushAck range=0 worker=0 gen=1 seq=1

    A sparse table is NAME=ROWSxWIDTH:DTYPE:OPTIMIZER[:KEY=VALUE...] (rows 0 = any number), its rows are pushed as
    NAME=ROW:1,2/ROW:3,4 and pulled as NAME=ROW/ROW; `sum 0.1@2 1.1@5` is one push for several workers (prev = seq - 1).

    commands: job push sum pull pullat scan init last join tick leave ask stop next claim done map wait hold lose double release show
    every command takes agent=NAME; the job takes servers= ring= workers= consistency= combine= parked= snapshot= pieces= passes=

A block of lines up to `----` is done in order; its trace ends at the next empty line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from plugml.core.job import JobSpec
from plugml.core.jobmap import Assignment
from plugml.core.limits import Limits
from plugml.core.table import TableSpec
from plugml.wire import messages as m

from .agent_story import AgentTeller
from .kit import Box, Heard
from .sparse import Name, read_keys
from .tables import table_of

RULE = "----"
_PLAIN = ("job", "epoch", "token", "segments", "payload")  # not worth a word in every line


def rewritten(text: str) -> str:
    """The same story with the trace that happens now."""
    teller: Teller | AgentTeller = AgentTeller() if _is_of_agent(text) else Teller()
    lines: list[str] = []
    commands: list[str] = []
    in_trace = False
    for line in text.splitlines():
        if in_trace:
            if line.strip():
                continue
            in_trace = False
        lines.append(line)
        if line.strip() == RULE:
            lines += teller.tell(commands)
            commands = []
            in_trace = True
        elif line.strip() and not line.startswith("#"):
            commands.append(line)
    assert not commands, f"commands without a trace: {commands}"
    return "\n".join(lines) + "\n"


def _is_of_agent(text: str) -> bool:
    commands = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return commands[0].split()[0] == "agent"


class Teller:
    """Does what a line says and writes down what the machines did."""

    def __init__(self) -> None:
        self.box: Box | None = None
        self.lines: list[str] = []

    def tell(self, commands: list[str]) -> list[str]:
        self.lines = []
        for command in commands:
            verb, *words = command.split()
            options = dict(word.split("=", 1) for word in words if "=" in word)
            plain = [word for word in words if "=" not in word]
            _VERBS[verb](self, plain, options)
            self._told()
        return self.lines or ["(nothing)"]

    # -- commands

    def _job(self, plain: list[str], options: dict[str, str]) -> None:
        servers = tuple(f"s{i}.1" for i in range(int(options.pop("servers", "1"))))
        ring = int(options.pop("ring", "1"))
        limits = Limits(parked_max=int(options.pop("parked", "64")))
        head = {key: options.pop(key) for key in ("consistency", "combine") if key in options}
        workers = int(options.pop("workers", "1"))
        every = int(options.pop("snapshot", "0"))
        counts = {key: int(options.pop(key)) for key in ("pieces", "passes") if key in options}
        tables = tuple(table_of(name, words) for name, words in options.items())
        self.box = Box(JobSpec("story", workers, tables, snapshot_every=every, **head, **counts), servers, ring, limits)
        self._told()
        self.box.on_heard = self._heard

    def _push(self, plain: list[str], options: dict[str, str]) -> None:
        stream = self._stream(plain, options, "seq", "prev", "clock", "weight", "only", "base")
        self.there.push(self._values(options), **stream, rows=self._rows(options))

    def _sum(self, plain: list[str], options: dict[str, str]) -> None:
        components = []
        for word in plain:
            stream, seq = word.split("@")
            worker, gen = stream.split(".")
            clock, weight = int(options.get("clock", "0")), float(options.get("weight", "1"))
            components.append(m.Component(int(worker), int(gen), int(seq), int(seq) - 1, clock, weight))
        self.there.push_sum(self._values(options), components, self._rows(options), options.get("agent", "a0.1"))

    def _pull(self, plain: list[str], options: dict[str, str]) -> None:
        self.there.pull(None, **self._stream(plain, options, "after", "closed", "request"), rows=self._wants(options))

    def _pull_at(self, plain: list[str], options: dict[str, str]) -> None:
        self.there.pull_at(int(plain[0]), options.get("agent", "a0.1"))

    def _scan(self, plain: list[str], options: dict[str, str]) -> None:
        numbers = {name: int(options[name]) for name in ("bucket", "cursor", "at") if name in options}
        self.there.scan(plain[0], **numbers, agent=options.get("agent", "a0.1"))

    def _init(self, plain: list[str], options: dict[str, str]) -> None:
        self.there.init(self._values(options), int(options["claim"]), options.get("agent", "a0.1"))

    def _last(self, plain: list[str], options: dict[str, str]) -> None:
        self.there.last(**self._stream(plain, options))

    def _tick(self, plain: list[str], options: dict[str, str]) -> None:
        self.there.tick(**self._stream(plain, options, "clock", "weight"))

    def _join(self, plain: list[str], options: dict[str, str]) -> None:
        self.there.clock(m.Join, **self._stream(plain, options))

    def _leave(self, plain: list[str], options: dict[str, str]) -> None:
        self.there.clock(m.Leave, int(options.get("clock", "0")), options.get("reason", "bye"), **self._stream(plain, options))

    def _ask(self, plain: list[str], options: dict[str, str]) -> None:
        self.there.clock(m.StandingAsk, **self._stream(plain, options))

    def _stop(self, plain: list[str], options: dict[str, str]) -> None:
        """A stop rule has fired."""
        self.there.stop(" ".join(plain), options.get("agent", "a0.1"))

    def _next(self, plain: list[str], options: dict[str, str]) -> None:
        """A worker asks for its next piece of input."""
        self.there.clock(m.NextAsk, int(options["request"]), **self._stream(plain, options))

    def _claim(self, plain: list[str], options: dict[str, str]) -> None:
        self.there.clock(m.ClaimAsk, **self._stream(plain, options))

    def _done(self, plain: list[str], options: dict[str, str]) -> None:
        self.there.clock(m.InitDone, int(options["claim"]), **self._stream(plain, options))

    def _map(self, plain: list[str], options: dict[str, str]) -> None:
        """The master tells a newer map (only the `agents`, if that word stands there); `epoch=` raises every fence."""
        old = self.there.map
        epoch = int(options.get("epoch", "0"))
        ranges = {n: Assignment(epoch or item.epoch, item.replicas) for n, item in old.ranges.items()}
        state = options.get("state", old.state)
        new = old._replace(token=int(options.get("token", str(old.token + 1))), state=state, ranges=ranges)
        if plain == ["agents"]:
            self.there.map = new
        else:
            self.there.tell_map(new)

    def _wait(self, plain: list[str], options: dict[str, str]) -> None:
        self.there.time(int(plain[0].removesuffix("ms")) * 1000)

    def _hold(self, plain: list[str], options: dict[str, str]) -> None:
        """From here on messages between servers wait."""
        self.there.hold = True

    def _lose(self, plain: list[str], options: dict[str, str]) -> None:
        """What waits is lost (all, or one kind of message)."""
        self.there.transit = [item for item in self.there.transit if plain and type(item.message).__name__ not in plain]

    def _double(self, plain: list[str], options: dict[str, str]) -> None:
        self.there.transit = [item for item in self.there.transit for _ in (0, 1)]

    def _release(self, plain: list[str], options: dict[str, str]) -> None:
        """What waits arrives in order, or with `backwards` the last one first."""
        if plain == ["backwards"]:
            self.there.transit.reverse()
        for item in self.there.transit:
            self.lines.append(f"{item.to} gets  {self._message(item.message)}")
        self.there.release()

    def _show(self, plain: list[str], options: dict[str, str]) -> None:
        """Values, and what ranges and clock know."""
        box = self.there
        for spec in box.spec.tables:
            if spec.kind == "dense":
                self.lines.append(f"{spec.name} = {_numbers(box.values(spec.name))}")
        for name, machine in box.servers.items():
            for hosted in machine.jobs.values():
                for number, held in hosted.ranges.items():
                    rows = " ".join(f"{worker}.{gen}@{seq}" for worker, (gen, seq) in sorted(held.rows.items()))
                    self.lines.append(
                        f"{name} range {number}: version {held.version}, closed {held.closed}, streams {rows or 'none'}, "
                        f"staged {len(held._staging.pushes())}, parked {held._parking.count}"
                        + (f", rows {held.contents.buckets.count}" if held.contents.buckets.held else "")
                    )
                if hosted.clock is not None:
                    members = " ".join(
                        f"{row.worker}.{row.gen}@{row.finished}" + ("" if row.here else "-left") for row in hosted.clock.members.rows.values()
                    )
                    self.lines.append(f"{name} clock: closed {hosted.clock.closed}, everywhere {hosted.clock.outbox.floor}, members {members}")

    # -- words to values

    @property
    def there(self) -> Box:
        assert self.box is not None, "a story begins with `job`"
        return self.box

    def _stream(self, plain: list[str], options: dict[str, str], *numbers: str) -> dict[str, Any]:
        worker, gen = plain[0].split(".")
        found: dict[str, Any] = {"worker": int(worker), "gen": int(gen), "agent": options.get("agent", "a0.1")}
        for name in numbers:
            if name in options:
                found[name] = float(options[name]) if name == "weight" else int(options[name])
        return found

    def _values(self, options: dict[str, str]) -> dict[str, Any]:
        values = {}
        for spec in self.there.spec.tables:
            if spec.kind == "dense" and spec.name in options:
                numbers = [float(word) for word in options[spec.name].split(",")]
                values[spec.name] = np.array(numbers * spec.count if len(numbers) == 1 else numbers)
        return values

    def _rows(self, options: dict[str, str]) -> dict[str, dict[Name, Any]] | None:
        """What is pushed to rows; None if nothing is."""
        rows: dict[str, dict[Name, Any]] = {}
        for spec in self.there.spec.tables:
            if spec.kind == "sparse" and spec.name in options:
                pairs = [item.split(":") for item in options[spec.name].split("/")]
                rows[spec.name] = {_row(spec, row): [float(word) for word in words.split(",")] for row, words in pairs}
        return rows or None

    def _wants(self, options: dict[str, str]) -> dict[str, list[Name]] | None:
        sparse = [spec for spec in self.there.spec.tables if spec.kind == "sparse" and spec.name in options]
        return {spec.name: [_row(spec, row) for row in options[spec.name].split("/")] for spec in sparse} or None

    # -- the trace

    def _heard(self, item: Heard) -> None:
        self.lines.append(f"{item.sender} -> {item.to}  {self._message(item.message)}")

    def _told(self) -> None:
        box = self.there
        box.heard.clear()
        for server, log in box.logs:
            if log.event not in ("registered",):
                self.lines.append(f"{server} log  {log.event} " + " ".join(f"{key}={value}" for key, value in log.fields.items()))
        box.logs.clear()

    def _message(self, message: Any) -> str:
        words = [type(message).__name__]
        for name, value in zip(message._fields, message):
            if name in _PLAIN or (name == "request" and not value):
                continue
            if name == "worker" and value == m.NOBODY:
                value = "nobody"
            words.append(f"{name}={str(value).replace(', ', ',')}" if name != "text" else f"({value})")
        if isinstance(message, m.Nack):
            words.append(f"token={message.token}")
        for segment, payload in zip(getattr(message, "segments", ()), getattr(message, "payload", ())):
            spec = self.there.spec.tables[segment.table]
            words.append(f"{spec.name}.{segment.block}{_shown(spec, segment, payload, message)}")
        return " ".join(words)


def _row(spec: TableSpec, word: str) -> Name:
    return word if spec.index_name == "str" else int(word)


def _shown(spec: TableSpec, segment: m.Segment, payload: Any, message: Any) -> str:
    """A payload frame as a word."""
    if segment.kind == m.IDS:
        return f" rows {','.join(map(str, np.frombuffer(payload, np.uint64).tolist()))}"
    if segment.kind == m.KEYS:
        count = next(other.elements for other in message.segments if other.kind == m.IDS)
        return f" keys {','.join(read_keys(payload, count))}"
    return f"=[{_numbers(np.frombuffer(payload, spec.storage_dtype))}]"


def _numbers(array: Any) -> str:
    return " ".join(f"{float(x):.6g}" for x in array)


_VERBS: dict[str, Callable[[Teller, list[str], dict[str, str]], None]] = {
    "job": Teller._job, "push": Teller._push, "sum": Teller._sum, "pull": Teller._pull, "pullat": Teller._pull_at, "scan": Teller._scan, "init": Teller._init, "last": Teller._last, "tick": Teller._tick,
    "join": Teller._join, "leave": Teller._leave, "ask": Teller._ask, "stop": Teller._stop, "next": Teller._next, "claim": Teller._claim, "done": Teller._done, "map": Teller._map,
    "wait": Teller._wait, "hold": Teller._hold, "lose": Teller._lose, "double": Teller._double, "release": Teller._release,
    "show": Teller._show,
}  # fmt: skip
