"""Servers in a box: real machines, messages through the real codec, agents and master played by the test."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from plugml.core.effects import Connect, Disconnect, Log, Send
from plugml.core.job import JobSpec
from plugml.core.jobmap import RUNNING, Assignment, JobMap, Piece, buckets, pieces, ranges_used
from plugml.core.limits import Limits
from plugml.core.table import DTYPE_CODES, TableSpec
from plugml.server.effects import ReadRange, TidySaves, Turn, Warm, WarmUp, WriteManifest, WriteRange
from plugml.server.link import Identity
from plugml.server.memory import never_lent
from plugml.server.node import ServerMachine
from plugml.server.pool import endless_room
from plugml.wire import messages as m
from plugml.wire.codec import decode, encode

from .sparse import Group, Name, Rows, Wants, bucket_of, by_range, joined, number_of

MASTER = "m0"
Array = np.ndarray[Any, np.dtype[Any]]


def table(name: str = "w", count: int = 4, dtype: str = "f32", optimizer: str = "sgd", block_bytes: int = 1 << 16, **rest: Any) -> TableSpec:
    settings = {"lr": rest.pop("lr")} if "lr" in rest else {}
    return TableSpec(name, (count,), dtype=dtype, optimizer=optimizer, settings=settings, block_bytes=block_bytes, **rest)


def job(*tables: TableSpec, workers: int = 1, **rest: Any) -> JobSpec:
    return JobSpec("story", workers, tables or (table(),), **rest)


def make_map(spec: JobSpec, servers: Sequence[str] = ("s0.1",), ring: int = 1, number: int = 1, token: int = 1, state: str = RUNNING) -> JobMap:
    """Ranges dealt out one by one."""
    used = ranges_used(spec, ring)
    ranges = {number_: Assignment(1, (servers[i % len(servers)],)) for i, number_ in enumerate(used)}
    endpoints = {server: f"ipc://{server}" for server in servers}
    return JobMap(number, token, spec, state, "", ring, ranges, endpoints, {})


class Heard(NamedTuple):
    """A message that left a server for somebody whom the test plays."""

    sender: str
    to: str
    message: Any


class Box:
    """One or more servers.  `heard` gathers what agents and master are sent; messages between servers travel at once
    unless `hold` keeps them in `transit`."""

    def __init__(
        self, spec: JobSpec, servers: Sequence[str] = ("s0.1",), ring: int = 1, limits: Limits = Limits(),
        is_lent: Callable[[Array], bool] = never_lent, room: Callable[[], int] = endless_room,
    ) -> None:  # fmt: skip
        self.spec = spec
        self.ring = ring
        self.now_us = 1_000_000
        self.heard: list[Heard] = []
        self.transit: list[Heard] = []
        self.logs: list[tuple[str, Log]] = []
        self.disk: list[tuple[str, Any]] = []  # what servers want written and read
        self.hold = False
        self.check = True
        self.on_heard: Callable[[Heard], None] = self.heard.append
        self.warms = True  # whether WarmUp is answered
        self._prev: dict[tuple[int, int, int], int] = {}  # (worker, gen, range) -> seq of the last push, as agents were told
        self.servers = {
            name: ServerMachine(Identity(name, "here", f"ipc://{name}", 1, "test", {MASTER: "ipc://m0"}), limits, is_lent, room)
            for name in servers
        }
        for name in servers:
            self.feed(name, MASTER, m.Registered(1, 0, "box", True, ""))
        self.map = make_map(spec, servers, ring)
        self.tell_map(self.map)

    # -- moving messages

    def feed(self, server: str, sender: str, message: Any) -> None:
        """One event, and everything that follows from it."""
        machine = self.servers[server]
        if isinstance(message, tuple) and type(message) not in (Turn, Warm):
            message = decode([bytes(frame) for frame in encode(message)])
        self._perform(server, machine.on_message(sender, message, self.now_us))
        if self.check:
            machine.check()

    def time(self, passed_us: int) -> None:
        self.now_us += passed_us
        for name, machine in self.servers.items():
            due = machine.deadline_us()
            if due is not None and due <= self.now_us:
                self._perform(name, machine.on_time(self.now_us))

    def release(self) -> None:
        """Deliver what was kept between servers, in order."""
        kept, self.transit = self.transit, []
        self.hold = False
        for item in kept:
            self.feed(item.to, item.sender, item.message)

    def _perform(self, server: str, effects: list[Any]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                item = Heard(server, effect.to, effect.message)
                if isinstance(effect.message, (m.PushAck, m.LastTold)):
                    self._prev[effect.message.worker, effect.message.gen, effect.message.range] = effect.message.seq
                if effect.to not in self.servers:
                    self.on_heard(item)
                elif self.hold:
                    self.transit.append(item)
                else:
                    self.feed(effect.to, server, effect.message)
            elif isinstance(effect, Log):
                self.logs.append((server, effect))
            elif isinstance(effect, Turn):
                self.feed(server, "", effect)
            elif isinstance(effect, WarmUp):
                if self.warms:
                    self.feed(server, "", Warm())
            elif isinstance(effect, (WriteRange, ReadRange, WriteManifest, TidySaves)):
                self.disk.append((server, effect))  # a disk that is slow for ever
            else:
                assert isinstance(effect, (Connect, Disconnect)), effect

    def take(self, kind: type[Any] | None = None) -> list[Any]:
        """Messages heard since the last time (of one type: the others are forgotten)."""
        found = [item.message for item in self.heard if kind is None or isinstance(item.message, kind)]
        self.heard.clear()
        return found

    # -- the master's and the agents' lines

    def tell_map(self, new: JobMap) -> None:
        self.map = new
        for name in self.servers:
            self.feed(name, MASTER, m.MapTold(new.number, new.token, new.to_document()))

    def parts(self, tables: Iterable[str] | None = None) -> dict[int, list[Piece]]:
        """Pieces of the job (or of some tables) by range."""
        found: dict[int, list[Piece]] = {}
        for piece in pieces(self.spec, self.ring):
            if tables is None or self.spec.tables[piece.table].name in tables:
                found.setdefault(piece.range, []).append(piece)
        return found

    def push(
        self, values: dict[str, Any], worker: int = 0, gen: int = 1, seq: int = 1, prev: int | None = None, clock: int = 0,
        weight: float = 1.0, agent: str = "a0.1", only: int | None = None, rows: Rows | None = None, base: int = 0,
    ) -> None:  # fmt: skip
        """`prev` of a push of rows is that of each range, as an agent keeps it; of a dense one the seq before."""
        made = self._made(values, rows or {})
        for number, (segments, payload) in made.items():
            if only is not None and number != only:
                continue
            before = seq - 1 if rows is None else self._prev.get((worker, gen, number), 0)
            component = m.Component(worker, gen, seq, before if prev is None else prev, clock, weight)
            self.send_push(number, (component,), segments, payload, agent, base)

    def push_sum(
        self, values: dict[str, Any], components: Sequence[m.Component], rows: Rows | None = None, agent: str = "a0.1"
    ) -> None:
        """One push for several workers."""
        for number, (segments, payload) in self._made(values, rows or {}).items():
            self.send_push(number, tuple(components), segments, payload, agent)

    def send_push(self, number: int, components: Any, segments: Any, payload: Any, agent: str = "a0.1", base: int = 0) -> None:
        item = self.map.ranges[number]
        self.feed(item.primary, agent, m.Push(self.map.number, number, item.epoch, self.map.token, base, components, segments, payload))

    def _made(self, values: dict[str, Any], rows: Rows) -> dict[int, Group]:
        """Segments and payload by range."""
        made = {number: [self._segments(held, values)] for number, held in (self.parts(values) if values else {}).items()}
        for number, groups in by_range(self.spec, self.ring, rows).items():
            made.setdefault(number, []).extend(groups)
        return {number: joined(groups) for number, groups in made.items()}

    def init(self, values: dict[str, Any], claim: int, agent: str = "a0.1") -> None:
        for number, held in self.parts(values).items():
            segments, payload = self._segments(held, values)
            item = self.map.ranges[number]
            self.feed(item.primary, agent, m.Init(self.map.number, number, item.epoch, self.map.token, claim, segments, payload))

    def _segments(self, held: list[Piece], values: dict[str, Any]) -> tuple[tuple[m.Segment, ...], tuple[Any, ...]]:
        segments, payload = [], []
        for piece in held:
            spec = self.spec.tables[piece.table]
            array = np.ascontiguousarray(values[spec.name], spec.storage_dtype)
            segments.append(m.Segment(piece.table, piece.block.number, piece.block.stop - piece.block.start, DTYPE_CODES[spec.storage_name]))
            payload.append(array[piece.block.start : piece.block.stop])
        return tuple(segments), tuple(payload)

    def pull(
        self, tables: Iterable[str] | None = None, worker: int = 0, gen: int = 1, after: int = 0, closed: int = 0, request: int = 1,
        agent: str = "a0.1", rows: Wants | None = None,
    ) -> None:  # fmt: skip
        """Dense tables (all of them, if neither tables nor rows are named) and rows."""
        parts = {} if tables is None and rows is not None else self.parts(tables)
        asked = {number: [(self._absent(held), ())] for number, held in parts.items()}
        for number, groups in by_range(self.spec, self.ring, rows or {}).items():
            asked.setdefault(number, []).extend(groups)
        for number, groups in asked.items():
            item = self.map.ranges[number]
            segments, payload = joined(groups)
            pull = m.Pull(self.map.number, number, item.epoch, self.map.token, request, worker, gen, after, closed, segments, payload)
            self.feed(item.primary, agent, pull)

    def _absent(self, held: list[Piece]) -> tuple[m.Segment, ...]:
        return tuple(
            m.Segment(p.table, p.block.number, p.block.stop - p.block.start, DTYPE_CODES[self.spec.tables[p.table].storage_name], m.BLOCK, m.ABSENT)
            for p in held
        )

    def pull_at(self, at: int, agent: str = "a0.1") -> None:
        """Dense tables of the snapshot of a clock."""
        for number, held in self.parts().items():
            item = self.map.ranges[number]
            self.feed(item.primary, agent, m.PullAt(self.map.number, number, item.epoch, self.map.token, 1, at, self._absent(held)))

    def scan(self, name: str = "e", bucket: int = 0, cursor: int = 0, at: int = 0, agent: str = "a0.1") -> None:
        number = self.spec.table_number(name)
        home = next(found.range for found in buckets(self.spec, self.ring) if (found.table, found.number) == (number, bucket))
        item = self.map.ranges[home]
        self.feed(item.primary, agent, m.Scan(self.map.number, home, item.epoch, self.map.token, 1, at, cursor, number, bucket))

    def clock(self, kind: type[Any], *rest: Any, worker: int = 0, gen: int = 1, agent: str = "a0.1") -> None:
        """Join, Tick, Leave, StandingAsk, ClaimAsk or InitDone; `rest` are its last fields."""
        item = self.map.ranges[self.map.clock_range]
        self.feed(item.primary, agent, kind(self.map.number, item.epoch, self.map.token, worker, gen, *rest))

    def stop(self, reason: str, agent: str = "a0.1") -> None:
        item = self.map.ranges[self.map.clock_range]
        self.feed(item.primary, agent, m.StopAsk(self.map.number, item.epoch, self.map.token, reason))

    def tick(self, clock: int, worker: int = 0, gen: int = 1, weight: float = 1.0, agent: str = "a0.1") -> None:
        weights = tuple((number, weight) for number in range(len(self.spec.tables)))
        self.clock(m.Tick, clock, weights, worker=worker, gen=gen, agent=agent)

    def last(self, worker: int = 0, gen: int = 1, agent: str = "a0.1") -> None:
        for number in dict.fromkeys([*self.parts(), *(bucket.range for bucket in buckets(self.spec, self.ring))]):
            item = self.map.ranges[number]
            self.feed(item.primary, agent, m.LastAsk(self.map.number, number, item.epoch, self.map.token, worker, gen))

    # -- looking inside

    def values(self, name: str = "w") -> Array:
        """What a pull would show now, put together from all servers."""
        number = self.spec.table_number(name)
        spec = self.spec.tables[number]
        whole = np.empty(spec.count, spec.storage_dtype)
        for range_number, held in self.parts([name]).items():
            machine = self.servers[self.map.primary(range_number)]
            hosted = machine.jobs[self.map.number]
            for piece in held:
                place = hosted.ranges[range_number].blocks.places[piece.table, piece.block.number]
                whole[piece.block.start : piece.block.stop] = place.current(machine._memory)
        return whole

    def row(self, row: Name, name: str = "e") -> Array:
        """What a pull of a row would show now."""
        number = self.spec.table_number(name)
        ids = np.array([number_of(row)], np.uint64)
        found = bucket_of(self.spec, self.spec.tables[number], row)
        for machine in self.servers.values():
            for held in machine.jobs[self.map.number].ranges.values():
                store = held.contents.buckets.held.get((number, found))
                if store is not None:
                    return store.read(ids, store.names.find(ids))[0]
        raise AssertionError(f"nobody holds row {row}")


def seen(values: Sequence[m.Values], spec: JobSpec, name: str = "w") -> Array:
    """A table put together from the answers to one pull."""
    number = spec.table_number(name)
    found = spec.tables[number]
    whole = np.full(found.count, 99, found.storage_dtype)
    blocks = found.blocks()
    for answer in values:
        for segment, payload in zip(answer.segments, answer.payload):
            if segment.table == number:
                block = blocks[segment.block]
                whole[block.start : block.stop] = np.frombuffer(payload, found.storage_dtype)
    return whole
