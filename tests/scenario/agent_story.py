"""A story of one agent: what its programs ask, what it does to channels, what it and the servers say, and where it dies.

    # A sentence that says what the story shows.

    agent workers=1 servers=1 n=2:f64:add      a job with its channels, one for each worker
    ask 0 push 1 0 async=1 with 1,2            worker 0 writes grad (if there is `with`) and cmd, and rings
    ----
    a0.1 does KeepPush slot=0

    hold KIND ...     messages of these kinds are lost from here on        let     they are not any more
    die KIND          the agent dies before its next effect of this kind   pass MS time passes
    show              what lies in pend.0 and pend.1, and what servers hold

The real agent and servers, channels in memory (`tests/unit/test_agent_harness.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from plugml.core.effects import Connect, Log, Send
from plugml.core.job import JobSpec
from plugml.shm_protocol.kept import HEAD_BYTES, read_kept
from plugml.wire import messages as m

from ..unit.test_agent_harness import Died, Program, World
from .tables import table_of

#: What fills every trace and says nothing.
_QUIET = (m.Register, m.Registered, m.Beat, m.BeatAck, m.MapAsk, m.MapTold, m.JobAsk, m.JobTold, m.AttachAsk, m.AttachTold)
_SHOWN = ("worker", "gen", "seq", "prev", "clock", "finished", "closed", "stop_clock", "after", "piece", "turn", "request")


class Watched(World):
    """The harness, with everything that happens told."""

    def __init__(self, tell: Callable[[str], None], **named: Any) -> None:
        self.tell = tell
        self.die_before = ""
        super().__init__(**named)

    def _perform(self, effect: Any) -> None:
        kind = type(effect).__name__
        if kind == self.die_before:
            self.die_before = ""
            self.tell(f"a0.{self.lives} dies before {kind}")
            raise Died
        if not isinstance(effect, (Send, Connect, Log)) and kind not in ("Tell", "OpenChannel", "ReadCmd"):
            self.tell(f"a0.{self.lives} does {kind}{_effect(effect)}")
        super()._perform(effect)

    def _post(self, sender: str, to: str, message: Any) -> None:
        lost = not list(self.interfere(sender, to, message))
        if not isinstance(message, _QUIET):
            one, other = (name.split(".")[0] + "." + str(int(name.split(".")[1], 16)) if name.startswith("a") else name for name in (sender, to))
            self.tell(f"{one} -> {other} {type(message).__name__}{_words(message)}" + (" (lost)" if lost else ""))
        super()._post(sender, to, message)


def _effect(effect: Any) -> str:
    words = []
    for name in ("seq", "slot", "clock", "status", "piece"):
        value = getattr(effect, name, None)
        if value is not None:
            words.append(f"{name}={getattr(value, 'name', value)}")
    if type(effect).__name__ == "Reply":
        words.append(f"({effect.record.decode().strip()})")
    return "".join(f" {word}" for word in words)


def _words(message: Any) -> str:
    fields = dict(zip(message._fields, message))
    if isinstance(message, m.Push):
        fields |= message.components[0]._asdict()
    if fields.get("worker") == m.NOBODY:
        fields["worker"] = "nobody"
    return "".join(f" {name}={fields[name]}" for name in ("range", *_SHOWN) if name in fields and fields[name] != ())


class AgentTeller:
    """Does what a line says and writes down what happened."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.world: Watched | None = None
        self.programs: dict[int, Program] = {}

    def tell(self, commands: list[str]) -> list[str]:
        self.lines = []
        for command in commands:
            verb, *words = command.split()
            _VERBS[verb](self, words)
        return self.lines or ["(nothing)"]

    @property
    def there(self) -> Watched:
        assert self.world is not None, "a story of an agent begins with `agent`"
        return self.world

    def _agent(self, words: list[str]) -> None:
        options = dict(word.split("=", 1) for word in words)
        workers, servers = int(options.pop("workers", "1")), int(options.pop("servers", "1"))
        consistency = options.pop("consistency", "bsp")
        counts = {key: int(options.pop(key)) for key in ("stop_clock", "pieces") if key in options}
        settings = {"pieces_file": "/input"} if counts.get("pieces") else {}
        tables = tuple(table_of(name, shape, block=0) for name, shape in options.items())
        self.world = Watched(self.lines.append, servers=servers)
        self.world.register(JobSpec("story", workers, tables, consistency=consistency, combine="sum", settings=settings, **counts))
        for worker in range(workers):
            self.programs[worker] = self.world.plug("story", worker)
        self.world.settle()
        self.lines.clear()
        self.world.tell = lambda line: self.lines.append(line)

    def _ask(self, words: list[str]) -> None:
        program = self.programs[int(words[0])]
        grad = None
        if "with" in words:
            at = words.index("with")
            grad = np.array([float(number) for number in words[at + 1].split(",")])
            words = words[:at]
        program.say(" ".join(words[1:]), grad)
        self.there.settle()

    def _hold(self, words: list[str]) -> None:
        self.there.interfere = lambda sender, to, message: () if type(message).__name__ in words else (message,)

    def _let(self, words: list[str]) -> None:
        self.there.interfere = lambda sender, to, message: (message,)

    def _die(self, words: list[str]) -> None:
        self.there.die_before = words[0]

    def _kill(self, words: list[str]) -> None:
        self.lines.append(f"a0.{self.there.lives} is killed")
        self.there.kill_agent()
        self.there.settle()

    def _pass(self, words: list[str]) -> None:
        self.there.run(float(words[0]) / 1000)

    def _show(self, words: list[str]) -> None:
        for worker, program in self.programs.items():
            for slot in ("pend.0", "pend.1"):
                file = program.files.contents[slot]
                kept = read_kept(bytes(file[:HEAD_BYTES]), len(file))
                self.lines.append(f"worker {worker} {slot}: {kept.line.decode() if kept is not None else 'free'}")
        for name, server in self.there.servers.items():
            for hosted in server.jobs.values():
                for number, held in hosted.ranges.items():
                    streams = " ".join(f"{worker}.{gen}@{seq}" for worker, (gen, seq) in sorted(held.rows.items()))
                    self.lines.append(f"{name} range {number}: version {held.version}, closed {held.closed}, streams {streams or 'none'}")


_VERBS: dict[str, Callable[[AgentTeller, list[str]], None]] = {
    "agent": AgentTeller._agent, "ask": AgentTeller._ask, "hold": AgentTeller._hold, "let": AgentTeller._let, "die": AgentTeller._die,
    "kill": AgentTeller._kill, "pass": AgentTeller._pass, "show": AgentTeller._show,
}  # fmt: skip
