"""Simulated serial programs: they take turns on a channel exactly as a stranger's program would, and may die anywhere.

A program is a generator that yields after each store, so that it can be killed between any two of them.  It knows
the channel's rules and nothing of the machines.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .checkers import Stream
from .host import Channel, Host
from .ledger import Ledger, Push
from .mischief import mischief
from .talk import ENDED, NOTHING, READING, STANDS_FOR_ALL, TIMED, WAIT, Answer, Failed, Steps, Stopped, parse
from .weather import Plan
from .workload import (
    OWNED,
    SHARED_ROWS,
    STREAM_ROWS,
    Content,
    Section,
    end_clock,
    from_text,
    in_places,
    names_in_places,
    stream_row,
    to_text,
)
from .world import Violation, World


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
        self.stream: Stream = (channel.worker, channel.gen + ledger.roll.earlier)
        self.clock = clock
        self.seq = 0
        self.text = world.happens(plan.texts)  # numbers as lines of text
        self.unconfirmed: list[Push] = []  # accepted, and nothing has said yet that they were carried out
        self.stopping = False  # stop=1 was said
        self.fed = ledger.spec.pieces > 0  # there may be input left
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
        self.ledger.input.died(self.stream)
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
            self.ledger.input.died(self.stream)  # its launcher will say that it is lost: what it held comes back
            self.world.note(f"w{self.stream[0]}", "FAILED", str(error))
            self.ended(self, str(error))
            return
        if delay == WAIT:
            self._waiting = True
            if self.channel.files.answered:
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

    def write(self, name: str, data: bytes | bytearray) -> Steps:
        """A file in a few stores; one of nothing is left as it is."""
        if not data:
            return
        file = self.channel.files.contents[name]
        if len(file) != len(data):
            file[:] = bytes(len(data))
            yield self._store()
        pieces = self.plan.write_pieces
        step = -(-len(data) // pieces)
        for at in range(0, len(data), step):
            file[at : at + step] = data[at : at + step]
            yield self._store()

    def write_numbers(self, content: Content, data: bytes | bytearray) -> Steps:
        """`grad` with the names of the rows in it."""
        yield from self.write("grad.txt" if self.text else "grad", to_text(self.ledger.spec, content, data) if self.text else data)
        yield from self._write_names(content, "gidx", "gkey")

    def _write_names(self, content: Content, numbers: str, keys: str) -> Steps:
        found = names_in_places(content, self.text)
        yield from self.write(f"{numbers}.txt" if self.text else numbers, found[0])
        yield from self.write(keys, found[1])

    def request(self, line: str, committed: Callable[[], None] = lambda: None) -> Steps:
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
        committed()
        cmd[:] = content
        yield self._store()
        self.host.ring(channel)
        self.waiting_since_us = self.world.now_us
        yield self._store()
        wanted = int(line.split()[1])
        while True:
            record = channel.files.take_reply()
            if record is None:
                yield WAIT
                continue
            answer = parse(record)
            if answer.seq != wanted:
                continue
            if answer.code == "AGAIN":
                self.world.reached("told to ring again")
                yield self.world.draw(500, 5_000)
                self.host.ring(channel)
                continue
            break
        self.waiting_since_us = None
        if answer.ok:
            channel.files.check_param_untouched()
        if self.world.happens(self.plan.stale_bells):
            self.world.fault("stale bell")
            self.host.ring(channel)  # once more, with the line that was answered
        return answer

    def _words(self, push: Push | None, want: Content, counted: bool) -> str:
        """The sections and numbers of a request.  Its push and what it wants name the same dense tables."""
        names: dict[str, list[int]] = {}
        for at, content in enumerate((push.content if push is not None else NOTHING, want)):
            for section in content.sections:
                names.setdefault(section.table.name, [0, 0])[at] = len(section.rows)
        words = f" n={sum(place.table.count for place in self.ledger.spec.layout.places)}" if counted else ""
        for name, (rows, wanted) in names.items():
            words += f" table={name}" + (f" k={rows}" if rows else "") + (f" want={wanted}" if wanted else "")
        return words

    def _ask(self, verb: str, words: str = "", push: Push | None = None, reads: bool = False) -> Steps:
        """One request that must be answered ok, or accepted; what it reads is judged."""
        want = NOTHING
        if reads:
            want = self._draw_want(push.content if push is not None else None)
            yield from self._write_names(want, "want", "wkey")
        dense = want.dense or (push is not None and push.content.dense) or verb == "init"
        sections = bool(want.sections or (push is not None and push.content.sections))
        words += self._words(push, want, dense and (sections or self.world.happens(0.5)))
        words += " fmt=text" if self.text and verb not in ("clock", "bye", "next") else ""
        timed = verb in TIMED and self.world.happens(self.plan.timeouts)
        words += f" t={self.world.draw(0, self.plan.limit_ms)}" if timed else ""
        asked = self.ledger.ask(self.world.now_us, want, self.stream[0])
        ticks = verb in ("step", "clock")

        def committed() -> None:
            if push is not None:
                self.ledger.begin(push)
            if ticks:
                self.ledger.roll.tick(self.stream[0], self.clock)

        self.seq += 1
        answer = yield from self.request(f"{verb} {self.seq} {self.clock}{words}", committed)
        if answer.code == "STOP" and verb in ENDED:
            if push is not None:
                self.ledger.withdraw(push)
            self.ledger.stopping.refused(self.stream, answer.clock)
            raise Stopped
        late = answer.code == "TIMEOUT" and timed
        full = answer.code == "NOSPC" and verb in READING
        if late and self.stopping and verb in ENDED:
            raise Violation(f"{self.channel.name}: {verb} was accepted although stop=1 had been said")
        if late:
            self.world.reached(f"{verb} timed out")
        if not (answer.ok or late or full):
            raise Failed(f"{answer.code}: {self.channel.error}")
        if push is not None:
            self.unconfirmed.append(push)
        if verb in STANDS_FOR_ALL and not late and "async=1" not in words:
            self.confirm()
        self._move(answer, self.clock + ticks)
        if answer.ok and (ticks or reads):
            self.stopping = "stop" in answer.words
            self.ledger.stopping.replied(self.stream, self.clock, self.stopping)
        if reads and not answer.ok:
            yield from self._pull_late(want)
        elif reads:
            self._read(asked, want)
        return answer

    def confirm(self) -> None:
        """Whatever was accepted has been carried out."""
        for push in self.unconfirmed:
            self.ledger.ack(push)
        self.unconfirmed.clear()

    def _move(self, answer: Answer, clock: int) -> None:
        if answer.clock != clock:
            raise Violation(f"{self.channel.name}: seq {answer.seq} was answered with clock {answer.clock}, it must be {clock}")
        self.clock = clock

    def _pull_late(self, want: Content) -> Steps:
        """The request was carried out or accepted, only its values did not come: get them until they do."""
        want = want if want.dense or want.sections else Content(True, ())
        yield from self._write_names(want, "want", "wkey")
        while True:
            yield self._delay()
            self.seq += 1
            words = self._words(None, want, bool(want.sections) and want.dense) + (" fmt=text" if self.text else "")
            asked = self.ledger.ask(self.world.now_us, want, self.stream[0])
            answer = yield from self.request(f"pull {self.seq} {self.clock}{words}")
            if answer.code != "NOSPC":
                break
            self.confirm()
        if answer.code == "STOP" and self.unconfirmed:  # what was accepted came too late: the job had ended before it
            for push in reversed(self.unconfirmed):
                self.ledger.withdraw(push)
            self.clock = answer.clock
            self.ledger.stopping.refused(self.stream, answer.clock)
            raise Stopped
        if not answer.ok:
            raise Failed(f"{answer.code}: {self.channel.error}")
        self.confirm()
        self._move(answer, self.clock)
        self.stopping = "stop" in answer.words
        self.ledger.stopping.replied(self.stream, self.clock, self.stopping)
        self._read(asked, want)

    def _draw_want(self, pushed: Content | None) -> Content:
        """What a request reads: any rows of anybody, in any order, some twice.  The dense tables beside a push as that says."""
        draw, ledger = self.world.draw, self.ledger
        tables = [table for table in ledger.spec.tables if table.kind == "sparse"]
        if not tables:
            return Content(True, ())
        streams = [(worker, gen) for worker, newest in ledger.roll.granted.items() for gen in range(1, newest + 1)]
        sections = []
        for table in tables:
            named = pushed is None or any(section.table is table for section in pushed.sections)
            if not self.world.happens(0.6) or not (named or ledger.spec.combine_of(table) == "sum"):
                continue  # a table that is named weighs in the mean of its clock: the reference knows only those that are pushed
            rows = []
            for _ in range(draw(0, min(6, table.batch_rows))):
                stream = self.stream if self.world.happens(0.5) else streams[draw(0, len(streams) - 1)]
                rows.append(stream_row(*stream, draw(0, STREAM_ROWS - 1)) if table.name in OWNED else draw(0, SHARED_ROWS - 1))
            sections.append(Section(table, tuple(rows)))
        if pushed is not None:  # a section says both what is pushed and what is wanted: one order, and one word on the dense tables
            order = {section.table.name: at for at, section in enumerate(pushed.sections)}
            sections.sort(key=lambda section: order.get(section.table.name, len(order)))
            return Content(pushed.dense, tuple(sections))
        return Content(not sections or self.world.happens(0.6), tuple(sections))

    def _read(self, asked: Any, want: Content) -> None:
        contents, spec = self.channel.files.contents, self.ledger.spec
        param = from_text(spec, want, bytes(contents["param.txt"])) if self.text else bytes(contents["param"])
        self.ledger.read(self.stream, self.clock, self.world.now_us, asked, want, param)

    # -- the program

    def _main(self) -> Steps:
        answer = yield from self.request(f"hello 0 {self.clock}")
        if not answer.ok:
            raise Failed(f"{answer.code}: {self.channel.error}")
        self.seq = self.channel.done_seq
        try:
            yield from self._train()
        except Stopped:
            self.world.reached("stopped")
        if self.stream[0] == 0:
            while self.fed:
                yield from self._next()
        self.ledger.bye(self.stream[0], self.clock)
        self.ledger.input.ask(self.stream)
        yield from self._ask("bye")
        self.ledger.input.left(self.stream)

    def _train(self) -> Steps:
        if any(table.init == "program" for table in self.ledger.spec.tables):
            yield from self.write("grad.txt" if self.text else "grad", self._offer())
            yield from self._init()
        elif self.clock == 0 or self.world.happens(0.5):
            yield from self._ask("pull", reads=True)
        end = end_clock(self.ledger.seed, self.plan, self.stream[0])
        while self.clock < end:
            yield self.world.draw(*self.plan.think_us)
            if self.stopping and self.world.happens(0.7):
                raise Stopped  # a client that looks at stop=1; the others run into STOP
            if self.fed and self.world.happens(0.5):
                yield from self._next()
            if self.world.happens(self.plan.mischief):
                yield from mischief(self)
            yield from self._one_clock()

    def _offer(self) -> bytes | bytearray:
        data = self.ledger.offer(self.stream)
        return to_text(self.ledger.spec, Content(True, ()), data) if self.text else data

    def _init(self) -> Steps:
        """`init` brings and reads the dense tables."""
        want = Content(True, ())
        asked = self.ledger.ask(self.world.now_us, want, self.stream[0])
        self.seq += 1
        answer = yield from self.request(f"init {self.seq} {self.clock}" + (" fmt=text" if self.text else ""))
        if answer.code == "NOSPC":
            yield from self._pull_late(want)
        elif not answer.ok:
            raise Failed(f"{answer.code}: {self.channel.error}")
        else:
            self._read(asked, want)

    def _one_clock(self) -> Steps:
        turn = self.ledger.turn(self.stream[0], self.clock)
        last = len(turn.weights) - 1
        for number, weight in enumerate(turn.weights):
            push = self.ledger.push(self.stream, self.clock, number)
            yield from self.write_numbers(push.content, in_places(self.ledger.spec, push.content, push.dense, push.rows))
            words = f" w={weight:g}"
            if number == last and turn.style == "step":
                yield from self._ask("step", words, push, reads=True)
                return
            if turn.style == "mixed" and number == last:
                yield from self._ask("pushpull", words, push, reads=True)
            elif self.world.happens(self.plan.unwaited):
                self.world.reached("accepted push")
                yield from self._ask("push", words + " async=1", push)
            else:
                yield from self._ask("push", words, push)
        yield from self._ask("clock")
        if turn.style == "parts" and self.clock < end_clock(self.ledger.seed, self.plan, self.stream[0]):
            yield from self._ask("pull", reads=True)

    def _next(self) -> Steps:
        """Another piece of input; the one before it is done."""
        book = self.ledger.input
        due = book.begin()
        self.seq += 1
        answer = yield from self.request(f"next {self.seq} {self.clock}", lambda: book.ask(self.stream))
        if answer.code == "NOSPC":
            return book.refuse(self.stream)
        if not answer.ok:
            raise Failed(f"{answer.code}: {self.channel.error}")
        data = bytes(self.channel.files.contents["data"])[: int(answer.words["n"])]
        if data:
            turn, piece, path = data.split()
            assert path == self.ledger.spec.settings["pieces_file"].encode()
            book.told(self.stream, int(turn), int(piece))
        else:
            self.fed = False
            book.told_empty(self.stream, due)
