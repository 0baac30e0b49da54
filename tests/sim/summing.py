"""A sender of sums: one node that speaks for two workers and sends their pushes added up, as an agent's messages.

Agents send every push alone today; the ranges take sums all the same.  This node dies, and what it had under way is begun
again alone, or alone for one worker and then as the sum: all, none or some of it has been taken.  Its disk holds the clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from plugml.agent.plan import Part
from plugml.agent.plan import Plan as Cut
from plugml.agent.sparse import cut_push
from plugml.core.effects import Connect, Send
from plugml.core.jobmap import JobMap
from plugml.shm_protocol.rows import Rows, hashed
from plugml.wire import messages as m

from .cluster import Cluster
from .ledger import Ledger, Push
from .process import Process
from .weather import Plan
from .workload import Array, name_of
from .world import Violation, World

AGAIN_US = 60_000
ALONE, FIRST, SUM = "alone", "the first alone", "sum"


class Disk:
    """What outlives the node."""

    def __init__(self) -> None:
        self.clock = 0
        self.pushes: list[Push] = []  # of this clock, one for each worker
        self.done = False


class Group:
    """The machine.  `find` gives the job's map once an agent knows it."""

    def __init__(self, process: Process, ledger: Ledger, workers: tuple[int, int], disk: Disk, clocks: int, find: Callable[[], JobMap | None]) -> None:
        self.process, self.ledger, self.disk, self.clocks, self.find = process, ledger, disk, clocks, find
        self.streams = [(worker, 1) for worker in workers]
        self.map: JobMap | None = None
        self.mode = SUM if not disk.pushes else (ALONE, FIRST)[process.world.draw(0, 1)]
        self.fresh = disk.clock == 0 and not disk.pushes
        self.last: dict[tuple[int, int], int] = {}  # (worker, range) -> seq of its last push there, as far as we know
        self.needed: dict[tuple[int, int], None] = {}  # (worker, range) that has not acked this clock's push
        self.cut = False  # this clock's pushes, into parts
        self.together: dict[int, Part] = {}
        self.apart: list[dict[int, Part]] = []
        self.closed = 0
        self.joined: dict[int, None] = {}
        self.ticked: dict[int, None] = {}
        self.left: dict[int, None] = {}
        self.wake: int | None = 0

    # -- the surface of a machine

    def on_message(self, sender: str, message: Any, now_us: int) -> list[Any]:
        kind = type(message)
        if kind is m.Standing:
            return self._on_standing(message)
        if kind is m.PushAck:
            return self._acked(message.worker, message.range, message.seq)
        if kind is m.Partial:
            return self._on_partial(message)
        if kind is m.LastTold:
            return self._on_last(message)
        if kind is m.Refuse:
            raise Violation(f"a sum was refused: {message}")
        return []

    def on_time(self, now_us: int) -> list[Any]:
        if self.wake is None or now_us < self.wake:
            return []
        self.wake = None if self.disk.done else now_us + AGAIN_US
        if self.map is None:
            self.map = self.find()
            if self.map is None:
                return []
            self.ledger.registered(self.map.spec)
            return [Connect(name, endpoint) for name, endpoint in self.map.endpoints.items()] + self._again()
        return self._again()

    def deadline_us(self) -> int | None:
        return self.wake

    def check(self) -> None:
        return

    def digest(self) -> int:
        return self.disk.clock

    # -- a clock

    @property
    def seq(self) -> int:
        return self.disk.clock + 1

    def _again(self) -> list[Any]:
        """Whatever is owed, once more."""
        if len(self.joined) < len(self.streams):
            return [self._to_clock(m.Join, stream) for stream in self.streams]
        if self.disk.clock == self.clocks:
            return [self._to_clock(m.Leave, stream, self.disk.clock, "finished") for stream in self.streams if stream[0] not in self.left]
        if not self.cut:
            self._begin()
        if self.needed:
            if self.ledger.closes and self.closed < self.disk.clock:
                return [self._to_clock(m.StandingAsk, stream) for stream in self.streams]
            return self._send()
        return [self._to_clock(m.Tick, stream, self.disk.clock, self._weights(number)) for number, stream in enumerate(self.streams)]

    def _begin(self) -> None:
        disk, ledger = self.disk, self.ledger
        if not disk.pushes:
            disk.pushes = [ledger.push(stream, disk.clock, 0) for stream in self.streams]
            for push in disk.pushes:
                ledger.begin(push)
                ledger.roll.tick(push.stream[0], disk.clock)
        assert self.map is not None
        self.cut = True
        cut = Cut.of(self.map.spec, self.map.ring_ranges)
        self.together = self._parts(cut, disk.pushes)
        self.apart = [self._parts(cut, [push]) for push in disk.pushes]
        self.needed = {(worker, number): None for number in self.together for worker, _ in self.streams}

    def _parts(self, cut: Cut, pushes: list[Push]) -> dict[int, Part]:
        """By range, its payload whole in `frames`."""
        spec = self.ledger.spec
        dense = [push for push in pushes if push.content.dense]
        buffer = bytearray(spec.stored_layout.nbytes)
        for place, stored in zip(spec.layout.places, spec.stored_layout.places):
            table = place.table
            arrays = [np.frombuffer(push.dense, table.numpy_dtype, table.count, place.offset) for push in dense]
            if arrays:
                total = np.sum(arrays, axis=0).astype(table.storage_dtype)
                buffer[stored.offset : stored.offset + table.stored_bytes] = total.tobytes()
        parts = {}
        for part in cut_push(cut, self._rows(pushes), bool(dense), self.process.machine_limits):
            payload = tuple(memoryview(buffer)[place.start : place.end] for place in part.slices) + part.frames
            parts[part.range] = part._replace(frames=payload)
        return parts

    def _rows(self, pushes: list[Push]) -> list[Rows]:
        """Each table's rows of all pushes."""
        spec, found = self.ledger.spec, []
        for number, table in enumerate(spec.tables):
            names: list[int | bytes] = []
            values: list[Array] = []
            for push in pushes:
                for section, rows in zip(push.content.sections, push.rows):
                    if section.table.name == table.name and len(section.rows):
                        names += [name_of(table, row) for row in section.rows]
                        values.append(rows)
            if not names:
                continue
            stored = np.concatenate(values).astype(table.numpy_dtype).astype(table.storage_dtype)
            if table.index_name == "str":
                texts = [name for name in names if isinstance(name, bytes)]
                ends = np.cumsum([len(text) for text in texts]).astype(np.int64)
                found.append(hashed(number, np.frombuffer(b"".join(texts), np.uint8), ends, stored))
            else:
                found.append(Rows(number, np.array(names, np.uint64), stored))
        return found

    def _weights(self, number: int) -> tuple[tuple[int, float], ...]:
        content = self.disk.pushes[number].content
        named = {section.table.name for section in content.sections}
        return tuple(
            (table, 1.0) for table, spec in enumerate(self.ledger.spec.tables)
            if spec.name in named or (content.dense and spec.kind == "dense")
        )  # fmt: skip

    # -- pushes

    def _send(self) -> list[Any]:
        effects: list[Any] = []
        for number in self.together:
            owing = [at for at, (worker, _) in enumerate(self.streams) if (worker, number) in self.needed]
            unknown = [at for at in owing if not self.fresh and (self.streams[at][0], number) not in self.last]
            if unknown:
                effects += [self._to_range(m.LastAsk, number, *self.streams[at]) for at in unknown]
            elif self.mode == SUM and len(owing) == len(self.streams):
                effects.append(self._push(number, self.together[number], owing))
            else:
                effects += [self._push(number, self._alone(at, number), [at]) for at in owing if at == 0 or self.mode != FIRST]
        if not effects:  # the first worker's are all taken: now both at once
            self.mode = SUM
            return self._push_both()
        return effects

    def _push_both(self) -> list[Any]:
        """Although one of them has been taken: each range says `Partial`, and the other one goes alone."""
        return [
            self._push(number, self.together[number], list(range(len(self.streams))))
            for number in self.together if any((worker, number) in self.needed for worker, _ in self.streams)
        ]  # fmt: skip

    def _alone(self, at: int, number: int) -> Part:
        """A stream's own part; a range that it brings nothing to hears of it all the same, with an empty push."""
        found = self.apart[at].get(number)
        return found if found is not None else Part(number, (), (), 0, ())

    def _push(self, number: int, part: Part, which: list[int]) -> Send:
        components = tuple(
            m.Component(*self.streams[at], self.seq, self.last.get((self.streams[at][0], number), 0), self.disk.clock, 1.0) for at in which
        )
        return self._to_range(m.Push, number, 0, components, part.segments, part.frames)

    def _on_partial(self, partial: m.Partial) -> list[Any]:
        self.process.world.reached("partial")
        effects: list[Any] = []
        for worker, _, seq in partial.seen:
            effects += self._acked(worker, partial.range, seq)
            if (worker, partial.range) in self.needed:
                at = [number for number, stream in enumerate(self.streams) if stream[0] == worker][0]
                self.last[worker, partial.range] = seq
                effects.append(self._push(partial.range, self._alone(at, partial.range), [at]))
        return effects

    def _on_last(self, told: m.LastTold) -> list[Any]:
        key = (told.worker, told.range)
        if told.seq >= self.seq:
            return self._acked(told.worker, told.range, told.seq)
        self.last[key] = told.seq
        return []

    def _acked(self, worker: int, number: int, seq: int) -> list[Any]:
        if seq < self.seq or (worker, number) not in self.needed:
            return []
        del self.needed[worker, number]
        self.last[worker, number] = self.seq
        return [] if self.needed else self._again()

    # -- the clock

    def _on_standing(self, standing: m.Standing) -> list[Any]:
        self.closed = max(self.closed, standing.closed)
        mine = [worker for worker, _ in self.streams]
        if standing.worker not in mine:
            return []
        self.joined.setdefault(standing.worker)
        if standing.end >= 0:
            self.left.setdefault(standing.worker)
            self.disk.done = len(self.left) == len(mine)
        elif standing.finished > self.disk.clock and not self.needed and self.cut:
            self.ticked.setdefault(standing.worker)
            if len(self.ticked) == len(mine):
                return self._next_clock()
        return []

    def _next_clock(self) -> list[Any]:
        for push in self.disk.pushes:
            self.ledger.ack(push)
        self.disk.pushes, self.cut, self.ticked = [], False, {}
        self.disk.clock += 1
        self.mode = (SUM, SUM, SUM, FIRST, ALONE)[self.process.world.draw(0, 4)]
        if self.disk.clock == self.clocks:
            for worker, _ in self.streams:
                self.ledger.bye(worker, self.clocks)
        return self._again()

    # -- messages

    def _to_range(self, kind: Any, number: int, *rest: Any) -> Send:
        assert self.map is not None
        item = self.map.ranges[number]
        return Send(item.primary, kind(self.map.number, number, item.epoch, self.map.token, *rest))

    def _to_clock(self, kind: Any, stream: tuple[int, int], *rest: Any) -> Send:
        assert self.map is not None
        item = self.map.ranges[self.map.clock_range]
        return Send(item.primary, kind(self.map.number, item.epoch, self.map.token, *stream, *rest))


class Summed(Cluster):
    """A run with a group of two workers beside the others."""

    def __init__(self, world: World, plan: Plan) -> None:
        super().__init__(world, plan)
        self.disk = Disk()
        run, first = self.runs[0], plan.workers
        ledger = run.ledger
        for worker in plan.grouped:
            ledger.grant(worker, 1, 0)
        assert plan.grouped == (first, first + 1)

        def make(process: Process) -> Any:
            return Group(process, ledger, (first, first + 1), self.disk, plan.clocks, self._find)

        self.group = self._process("g0", make, lambda process: {})
        self.group.machine_limits = plan.limits
        run.others_done = lambda: self.disk.done

    def _find(self) -> JobMap | None:
        for agent in self.agents:
            jobs = agent.machine.house.jobs.values() if agent.alive else ()
            for job in jobs:
                if job.map is not None:
                    return job.map
        return None

    def start(self) -> None:
        super().start()
        self.group.start()
        self.storm.every(self.plan.group_crash_us, lambda: self.group.alive and self.group.crash())
