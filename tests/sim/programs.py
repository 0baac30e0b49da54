"""Simulated serial programs: they take turns on a channel exactly as a stranger's program would, and may die anywhere.

A program is a generator that yields after each store, so that it can be killed between any two of them.  It knows
the channel's rules and nothing of the machines.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import numpy as np

from plugml.core.job import JobSpec

from .checkers import Stream
from .host import Channel, Host
from .weather import Plan
from .workload import Ledger, end_clock
from .world import Violation, World

Steps = Generator[int, None, Any]  # yields microseconds until the next step, or WAIT for the bell
WAIT = -1


class Answer(NamedTuple):
    """A reply, taken apart by a stranger's means."""

    ok: bool
    seq: int
    clock: int
    words: dict[str, str]

    @property
    def code(self) -> str:
        return self.words.get("code", "OK")


class Failed(Exception):
    """The request was refused; a serial program ends with it."""


def parse(record: bytes) -> Answer:
    words = record.decode("ascii").split()
    rest = dict(word.split("=", 1) for word in words[3:])
    return Answer(words[0] == "ok", int(words[1]), int(words[2]), rest)


def to_text(spec: JobSpec, data: bytes | bytearray) -> bytes:
    """One number a line, all dense tables one after the other."""
    lines: list[str] = []
    for place in spec.layout.places:
        lines += map(repr, np.frombuffer(data, place.table.numpy_dtype, place.table.count, place.offset).tolist())
    return ("\n".join(lines) + "\n").encode()


def from_text(spec: JobSpec, text: bytes) -> bytes:
    """Back into the layout of `param`."""
    data = bytearray(spec.layout.nbytes)
    words, at = text.split(), 0
    for place in spec.layout.places:
        kind = int if place.table.dtype == "i64" else float
        values = np.array([kind(word) for word in words[at : at + place.table.count]], place.table.numpy_dtype)
        data[place.offset : place.offset + place.table.nbytes] = values.tobytes()
        at += place.table.count
    if at != len(words):
        raise Violation(f"param.txt holds {len(words)} numbers instead of {at}")
    return bytes(data)


class Program:
    """One incarnation of one worker's program."""

    def __init__(
        self, world: World, host: Host, plan: Plan, ledger: Ledger, channel: Channel, clock: int,
        ended: Callable[[Program, str], None],
    ) -> None:  # fmt: skip
        self.world = world
        self.host = host
        self.plan = plan
        self.ledger = ledger
        self.channel = channel
        self.stream: Stream = (channel.worker, channel.gen)
        self.clock = clock
        self.seq = 0
        self.text = world.happens(plan.texts)  # numbers as lines of text
        self.pushed = 0  # pushes begun by this generation
        self.acked = 0
        self.ticked = 0  # own pushes in clocks that this generation has ticked
        self.alive = True
        self.waiting_since_us: int | None = None
        self.stores = 0
        self.die_at_store: int | None = None
        self.ended = ended
        self._steps = self._main()
        self._waiting = False
        channel.listener = self._heard
        world.after(self._delay(), self._go)

    def kill(self) -> None:
        """kill -9: between two stores."""
        if not self.alive:
            return
        self.alive = False
        self._steps.close()
        self.channel.listener = lambda: None
        self.world.note(f"w{self.stream[0]}.{self.stream[1]}", "KILLED", f"seq {self.seq} clock {self.clock}")
        self.ended(self, "killed")

    # -- the engine

    def _go(self) -> None:
        if not self.alive:
            return
        if self.die_at_store is not None and self.stores >= self.die_at_store:
            self.die_at_store = None
            self.world.fault("program killed between stores")
            self.kill()
            return
        try:
            delay = next(self._steps)
        except StopIteration:
            self.alive = False
            self.ended(self, "finished")
            return
        except Failed as error:
            self.alive = False
            self.world.note(f"w{self.stream[0]}", "FAILED", str(error))
            self.ended(self, str(error))
            return
        if delay == WAIT:
            self._waiting = True
            if self.channel.files.replies:
                self._heard()
        else:
            self.world.after(delay, self._go)

    def _heard(self) -> None:
        """A record has arrived: wake up, a moment later."""
        if self._waiting:
            self._waiting = False
            self.world.after(self.world.draw(1, 60), self._go)

    def _delay(self) -> int:
        return self.world.draw(1, 80)

    # -- turn-taking

    def _store(self) -> int:
        self.stores += 1
        return self._delay()

    def _write_grad(self, data: bytes | bytearray) -> Steps:
        """The dense tables, laid out like `grad`, in a few stores."""
        if self.text:
            data = to_text(self.ledger.spec, data)
        grad = self.channel.files.contents["grad.txt" if self.text else "grad"]
        if len(grad) != len(data):
            grad[:] = bytes(len(data))
            yield self._store()
        pieces = self.plan.write_pieces
        step = -(-max(1, len(data)) // pieces)
        for at in range(0, len(data), step):
            grad[at : at + step] = data[at : at + step]
            yield self._store()

    def _request(self, line: str, commits_push: bool = False) -> Steps:
        """Write the line in two stores, ring, wait for the reply with its seq."""
        channel = self.channel
        content = line.encode() + b"\n"
        cut = self.world.draw(0, len(content) - 1)
        cmd = channel.files.contents["cmd"]
        cmd[:] = content[:cut]  # a shell truncates first; a reader may see half a line
        yield self._store()
        if self.world.happens(self.plan.stale_bells):
            self.world.fault("stale bell")
            self.host.ring(channel)
        if commits_push:
            self.pushed += 1
            self.ledger.begin(self.stream)
        cmd[:] = content
        yield self._store()
        self.host.ring(channel)
        self.waiting_since_us = self.world.now_us
        yield self._store()
        wanted = int(line.split()[1])
        while True:
            if not channel.files.replies:
                yield WAIT
                continue
            answer = parse(channel.files.replies.popleft())
            if answer.seq == wanted:
                break
        self.waiting_since_us = None
        if answer.ok:
            channel.files.check_param_untouched()
        if self.world.happens(self.plan.stale_bells):
            self.world.fault("stale bell")
            self.host.ring(channel)  # once more, with the line that was answered
        return answer

    def _next(self, verb: str, words: str = "", pushes: bool = False) -> Steps:
        """One request that must be answered ok."""
        self.seq += 1
        words += " fmt=text" if self.text and verb not in ("clock", "bye") else ""
        answer = yield from self._request(f"{verb} {self.seq} {self.clock}{words}", pushes)
        if answer.code == "NOSPC" and verb in ("init", "pull", "pushpull", "step"):
            answer = yield from self._pull_what_had_no_room(self.clock + (verb == "step"))
        if not answer.ok:
            raise Failed(f"{answer.code}: {self.channel.error}")
        if pushes:
            self.acked += 1
            self.ledger.ack(self.stream)
        return answer

    def _pull_what_had_no_room(self, clock: int) -> Steps:
        """The request was carried out, only its values could not be written: get them until there is room."""
        while True:
            yield self._delay()
            self.seq += 1
            answer = yield from self._request(f"pull {self.seq} {clock}" + (" fmt=text" if self.text else ""))
            if answer.code != "NOSPC":
                return answer

    def _read(self, clock: int, started: tuple[int, dict[Stream, int]], own: int) -> None:
        contents = self.channel.files.contents
        param = from_text(self.ledger.spec, bytes(contents["param.txt"])) if self.text else bytes(contents["param"])
        self.ledger.read(self.stream, clock, started[0], self.world.now_us, own, started[1], param)

    def _now(self) -> tuple[int, dict[Stream, int]]:
        """What a read that begins now must show at least."""
        return self.world.now_us, self.ledger.known()

    # -- the program

    def _main(self) -> Steps:
        answer = yield from self._request(f"hello 0 {self.clock}")
        if not answer.ok:
            raise Failed(f"{answer.code}: {self.channel.error}")
        self.seq = self.channel.done_seq
        if any(table.init == "program" for table in self.ledger.spec.tables):
            yield from self._write_grad(self.ledger.offer(self.stream))
            started = self._now()
            yield from self._next("init")
            self._read(self.clock, started, self.acked)
        elif self.clock == 0 or self.world.happens(0.5):
            started = self._now()
            yield from self._next("pull")
            self._read(self.clock, started, self.acked)
        end = end_clock(self.ledger.seed, self.plan, self.stream[0])
        while self.clock < end:
            yield self.world.draw(*self.plan.think_us)
            if self.world.happens(self.plan.mischief):
                yield from self._mischief()
            yield from self._one_clock()
        self.ledger.saying_bye.setdefault(self.stream[0])
        yield from self._next("bye")

    def _one_clock(self) -> Steps:
        turn = self.ledger.turn(self.stream[0], self.clock)
        last = len(turn.weights) - 1
        for number, weight in enumerate(turn.weights):
            data = self.ledger.gradient(self.stream, self.clock, number, self.pushed + 1)
            yield from self._write_grad(data)
            words = f" w={weight:g}" + (f" n={sum(t.count for t in self.ledger.spec.tables)}" if number % 2 else "")
            own, started = self.acked, self._now()
            if number == last and turn.style == "step":
                yield from self._next("step", words, pushes=True)
                self.clock += 1
                self.ticked = self.acked
                self._read(self.clock, started, own + 1)
                return
            verb = "pushpull" if turn.style == "mixed" and number == last else "push"
            yield from self._next(verb, words, pushes=True)
            if verb == "pushpull":
                self._read(self.clock, started, self.ticked if self.ledger.bsp else own + 1)
        yield from self._next("clock")
        self.clock += 1
        self.ticked = self.acked
        if turn.style == "parts" and self.clock < end_clock(self.ledger.seed, self.plan, self.stream[0]):
            started = self._now()
            yield from self._next("pull")
            self._read(self.clock, started, self.acked)

    def _mischief(self) -> Steps:
        """A request that must be refused, by name, and change nothing."""
        kinds = ("SEQ", "SEQ clock", "FORMAT") if self.text else ("SEQ", "SEQ clock", "FORMAT", "NONFINITE", "SIZE")
        kind = kinds[self.world.draw(0, len(kinds) - 1)]
        self.ledger.refusals += 1
        seq = self.seq + 1
        if kind == "SEQ":
            line = f"push {self.seq + 3} {self.clock}"
        elif kind == "SEQ clock":
            line = f"clock {seq} {self.clock + 2}"
        elif kind == "FORMAT":
            line = f"frobnicate {seq} {self.clock}"
        elif kind == "SIZE":
            del self.channel.files.contents["grad"][-4:]
            yield self._store()
            line = f"push {seq} {self.clock}"
        else:
            if not any(table.dtype != "i64" for table in self.ledger.spec.tables):
                return
            yield from self._write_grad(self._with_nan())
            line = f"push {seq} {self.clock}"
        answer = yield from self._request(line)
        if answer.code in ("GONE", "NOSERVER"):  # the job has ended meanwhile: that goes before
            raise Failed(f"{answer.code}: {self.channel.error}")
        if answer.ok or answer.code != kind.split()[0]:
            raise Violation(f"{self.channel.name}: {line!r} ({kind}) was answered {answer}")
        answer = yield from self._request(f"hello 0 {self.clock}")
        self.seq = self.channel.done_seq

    def _with_nan(self) -> bytearray:
        data = bytearray(self.ledger.spec.layout.nbytes)
        for place in self.ledger.spec.layout.places:
            if place.table.dtype != "i64":
                at = place.offset + (place.table.count - 1) * place.table.numpy_dtype.itemsize
                itemsize = place.table.numpy_dtype.itemsize
                data[at : at + itemsize] = np.array([np.nan], place.table.numpy_dtype).tobytes()
        return data
