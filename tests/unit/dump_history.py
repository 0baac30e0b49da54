"""Histories of one range: whatever may become an entry of its log, drawn at random, and machines that go through them."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

from plugml.core.job import JobSpec
from plugml.core.jobmap import buckets, pieces
from plugml.core.limits import Limits
from plugml.core.table import DTYPE_CODES, TableSpec
from plugml.server.blocks import whole
from plugml.server.clock import ClockMachine
from plugml.server.dump import Dump, Filling, Stream
from plugml.server.holding import Facts, Holding
from plugml.server.log import Entry
from plugml.server.memory import Memory, never_lent
from plugml.server.pool import Pool
from plugml.server.range import RangeMachine, Taken
from plugml.wire import messages as m
from plugml.wire.codec import decode, encode
from tests.scenario.sparse import by_range, joined, sparse_table

STEPPED = ("sgd", "momentum", "nesterov", "adagrad", "rmsprop", "adam", "adamw", "add", "assign")
#: Two names with one hash (FNV-1a of 64 bits).
ONE, TWO = "8yn0iYCKYHlIj4-BwPqk", "GReLUrM4wMqfg9yzV3KQ"
WORKERS = 3


class Copy:
    """One copy of the one range of a job, with its clock, outside of any server."""

    def __init__(
        self, spec: JobSpec, limits: Limits = Limits(), room: int = 1 << 40, lent: Callable[[Any], bool] = never_lent
    ) -> None:  # fmt: skip
        self.spec = spec
        self.room = room
        self.memory = Memory(lent)
        self.pool = Pool(lambda: self.room)
        clock = ClockMachine(1, 0, spec, limits, 1, 1)
        clock.place({0: "s0.1"}, 1, 1)
        self.range = RangeMachine(1, 0, spec, pieces(spec, 1), buckets(spec, 1), self.memory, self.pool, limits, 1, 1, clock)
        self.range.marking = True
        self.holding = Holding(self.range.contents, self.range._staging, self.range.streams, self.range.shares, clock)

    def take(self, message: Any) -> list[Any]:
        """The message as an entry of the log, if it may be one; what is said to it."""
        origin = f"a{getattr(message, 'worker', 0) % 2}.1"
        self.memory.begin_event()
        message = decode([bytes(frame) for frame in encode(message)])
        if type(message) in (m.Push, m.Init, m.Close, m.Roster):
            verdict = self.range.consider(origin, message)
            if not isinstance(verdict, Taken):
                return list(verdict)
        effects = whole(self.range.apply(Entry(self.range.version + 1, origin, message, 0, 0), True, 5))
        self.range.check()
        return effects

    def says(self, message: Any) -> list[str]:
        """The same, as far as it lies in what a copy holds: whom a roster is on its way to is known to who leads alone."""
        return [repr(effect) for effect in self.take(message) if type(getattr(effect, "message", None)) is not m.Roster]

    def facts(self) -> Facts:
        held = self.range
        return Facts(held.version, held.closed, held.claim, held.mark, held.failure)

    def dump(self) -> Dump:
        return self.holding.dump(self.facts())

    def load(self, dump: Dump) -> None:
        held, facts = self.range, self.holding.load(dump)
        held.version, held.closed, held.claim, held.mark, held.failure = facts
        held.check()

    def whole(self) -> bytes:
        """Everything, as bytes."""
        dump = self.dump()
        stream = Stream(dump)
        made = b"".join([stream.head, *[dump.arrays[name].tobytes() for name in sorted(dump.arrays)]])
        self.holding.contents.let_go(dump)
        assert len(made) == stream.total
        return made


def carried(dump: Dump, into: Copy, draw: Random) -> Dump:
    """The dump as its bytes in parts, out of order and some of them twice, make it again."""
    stream = Stream(dump)
    part = draw.choice((64, 1000, 5000, 1 << 20))
    filling = Filling(stream.total, len(stream.head), part, into.holding.layout)
    while not filling.complete:
        cursor = draw.choice(filling.missing(4))
        data = bytes(stream.part(cursor, part))
        for _ in range(draw.choice((1, 1, 2))):
            filling.put(cursor, data)
    return filling.taken()


def drawn_job(draw: Random) -> JobSpec:
    """Tables of every kind, with models and combinations of their own."""
    models = ("bsp", "asp", "ssp:2")

    def rest(storages: tuple[str, ...]) -> dict[str, Any]:
        optimizer = draw.choice(STEPPED)
        storage = draw.choice(storages)
        combine = draw.choice(("mean", "sum"))
        return {
            "optimizer": optimizer, "storage": storage, "dtype": "f32" if storage == "f16" else storage,
            "combine": combine, "consistency": draw.choice(models),
        }  # fmt: skip

    tables: list[TableSpec] = []
    for name, count in (("w", 40), ("b", 3)):
        block_bytes, init = draw.choice((32, 64, 1 << 16)), draw.choice(("zeros", "normal", "uniform"))
        tables.append(TableSpec(name, (count,), block_bytes=block_bytes, init=init, **rest(("f32", "f64", "f16"))))
    tables.append(TableSpec("p", (5,), block_bytes=64, init="program", **rest(("f32", "f64"))))
    tables.append(TableSpec("n", (4,), block_bytes=64, dtype="i64", optimizer="add", combine="sum", consistency=draw.choice(models)))
    tables.append(sparse_table("e", width=draw.choice((1, 3)), buckets=2, init=draw.choice(("zeros", "normal")), **rest(("f32", "f64", "f16"))))
    tables.append(sparse_table("s", width=2, index="str", buckets=1, init="uniform", **rest(("f32", "f64"))))
    draw.shuffle(tables)
    rest_of_it = {"lr_scale": "linear", "lr_warmup": 4, "pieces": 7, "passes": 2, "snapshot_every": 2}
    return JobSpec("story", WORKERS, tuple(tables), seed=draw.randrange(99), **rest_of_it)


class History:
    """Draws messages that a range may get; it watches one copy to know which would be taken."""

    def __init__(self, spec: JobSpec, draw: Random, watched: Copy) -> None:
        self.spec, self.draw, self.watched = spec, draw, watched
        self.gens = [1] * WORKERS
        self.rosters = 0
        self.claims = 0
        self.requests = 0
        self.sent: list[Any] = []

    def next(self) -> Any:
        kind = self.draw.choice(("push",) * 12 + ("sum", "again", "close", "close", "roster", "init", "clock", "clock", "clock", "gen"))
        message = getattr(self, f"_{kind}")()
        self.sent.append(message)
        return message

    def _component(self, worker: int, weight: float, clock: int, count: int = 1) -> m.Component:
        gen = self.gens[worker]
        last = self.watched.range.streams.last(worker, gen)
        return m.Component(worker, gen, last + count, last, clock, weight)

    def _push(self) -> Any:
        worker = self.draw.randrange(WORKERS)
        weight = self.draw.choice((1.0, 2.0, 0.0, 3.5))
        clock = self.watched.range.closed + self.draw.choice((0, 0, 0, 1))
        return self._made((self._component(worker, weight, clock),))

    def _sum(self) -> Any:
        clock = self.watched.range.closed
        return self._made((self._component(0, 1.0, clock), self._component(2, 1.0, clock)))

    def _made(self, components: tuple[m.Component, ...]) -> Any:
        groups = []
        for number, spec in enumerate(self.spec.tables):
            if self.draw.random() < 0.5:
                continue
            if spec.kind == "sparse":
                names = [f"k{self.draw.randrange(30)}" for _ in range(4)] if spec.index_name == "str" else [self.draw.randrange(40) for _ in range(6)]
                if spec.index_name == "str" and self.draw.random() < 0.2:
                    names.append(self.draw.choice((ONE, TWO)))
                wanted = {name: self._numbers(spec, spec.width) for name in names}
                groups += by_range(self.spec, 1, {spec.name: wanted})[0]
                continue
            for block in spec.blocks():
                if self.draw.random() < 0.7:
                    count = block.stop - block.start
                    groups.append(((m.Segment(number, block.number, count, DTYPE_CODES[spec.storage_name]),), (self._numbers(spec, count),)))
        segments, payload = joined(groups)
        base = max(0, self.watched.range.version - self.draw.randrange(4))
        return m.Push(1, 0, 1, 1, base, components, segments, payload)

    def _numbers(self, spec: TableSpec, count: int) -> Any:
        if spec.storage_dtype.kind == "i":
            return np.array([self.draw.randrange(-9, 9) for _ in range(count)], spec.storage_dtype)
        numbers = np.array([self.draw.gauss(0, 1) for _ in range(count)]).astype(spec.storage_dtype)
        if self.draw.random() < 0.02:  # the step leaves the range of the numbers: the push, or the close, comes to nothing
            numbers[0] = np.finfo(spec.storage_dtype).max
        return numbers

    def _again(self) -> Any:
        pushes = [message for message in self.sent if isinstance(message, m.Push)]
        return self.draw.choice(pushes) if pushes else self._push()

    def _close(self) -> Any:
        clock = self.watched.range.closed
        members = tuple((worker, self.gens[worker]) for worker in range(WORKERS) if self.draw.random() < 0.8)
        totals = tuple((number, 3.0) for number in range(len(self.spec.tables)))
        return m.Close(1, 1, 1, clock, members, totals)

    def _roster(self) -> Any:
        self.rosters += 1
        members = tuple((worker, self.gens[worker], 0, self.draw.choice((-1, -1, -1, 2))) for worker in range(WORKERS))
        return m.Roster(1, 1, 1, self.rosters, members)

    def _init(self) -> Any:
        number = self.spec.table_number("p")
        spec = self.spec.tables[number]
        self.claims += self.draw.choice((0, 1))
        segment = m.Segment(number, 0, 5, DTYPE_CODES[spec.storage_name])
        return m.Init(1, 0, 1, 1, max(1, self.claims), (segment,), (np.arange(5).astype(spec.storage_dtype),))

    def _gen(self) -> Any:
        worker = self.draw.randrange(WORKERS)
        self.gens[worker] += 1
        return m.Join(1, 1, 1, worker, self.gens[worker])

    def _clock(self) -> Any:
        worker = self.draw.randrange(WORKERS)
        head = (1, 1, 1, worker, self.gens[worker])
        clock = self.watched.holding.clock
        assert clock is not None
        member = clock.members.get(worker)
        finished = member.finished if member is not None else 0
        self.requests += 1
        return self.draw.choice((
            m.Join(*head), m.Tick(*head, finished, ((0, 1.0), (3, 2.0)), crc=finished % 3),
            m.Tick(*head, finished, ((0, 1.0),), crc=77), m.Tick(*head, finished, ((0, 1.0),), crc=77),
            m.NextAsk(*head, self.requests), m.ClaimAsk(*head), m.InitDone(*head, self.claims),
            m.Leave(*head, finished, self.draw.choice(("bye", "lost"))) if self.draw.random() < 0.2 else m.Join(*head),
            m.StopAsk(1, 1, 1, "enough") if self.draw.random() < 0.1 else m.Join(*head),
            m.CloseAck(1, 1, 1, clock.outbox.floor + min(1, len(clock.outbox._closes)), (0,)),
        ))  # fmt: skip


def lived(draw: Random, steps: int = 60) -> tuple[JobSpec, Copy, History]:
    """A drawn job, and a copy with a history of so many messages."""
    spec = drawn_job(draw)
    copy = Copy(spec)
    history = History(spec, draw, copy)
    for _ in range(steps):
        copy.take(history.next())
    return spec, copy, history


def copied(dump: Dump) -> dict[str, Any]:
    """Its arrays, for somebody who spoils or keeps them."""
    return {name: array.copy() for name, array in dump.arrays.items()}
