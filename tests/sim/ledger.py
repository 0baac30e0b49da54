"""What was issued, acked and read in one run of a job, and whether that may be.

A *cell* is what one stream alone adds to: its slot of the dense counting table, or a row of a sparse one.  Whatever is
read of a cell lies between what must be there and what was begun, under whatever consistency its table has.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from plugml.core.clock import ASP, BSP, Consistency
from plugml.core.job import JobSpec
from plugml.core.table import TableSpec

from . import checkers, reference
from .cells import Cell, Reader, read_order, read_tally
from .checkers import Issued, Pull, Stream
from .inputs import Input
from .ordered import FOLD
from .roll import Roll
from .stopping import Stopping
from .weather import GENS, Plan
from .workload import (
    FILED,
    OWNED,
    SHARED_ROWS,
    Array,
    Content,
    Section,
    Turn,
    content_of,
    exact_gradient,
    exact_row,
    number_of,
    owner_of,
    places_of,
    turn_of,
)  # fmt: skip

Key = tuple[str, int, int, int]  # table, worker, gen, row (0 = the dense slot)


class Push(NamedTuple):
    """One push as a program is about to ask for it."""

    stream: Stream
    clock: int
    content: Content
    dense: bytearray
    rows: list[Array]
    adds: list[tuple[Cell, tuple[int, ...]]]  # what it counts in each cell


class Asked(NamedTuple):
    """What a read that begins now must show at least."""

    started_us: int
    slots: dict[Stream, int]
    cells: dict[Key, int]


class Ledger:
    def __init__(self, seed: int, plan: Plan) -> None:
        assert plan.spec is not None
        self.seed = seed
        self.plan = plan
        self.spec = plan.spec
        self.models = {table.name: Consistency.parse(table.consistency or plan.spec.consistency) for table in plan.spec.tables}
        self.closes = any(model.model == BSP for model in self.models.values())
        self.cells: dict[Key, Cell] = {}
        self.offers: dict[Stream, float] = {}
        self.pulls: list[Pull] = []
        self.assigned: dict[float, Stream] = {}  # values that `assign` pushes carried outside of BSP
        self.first_values: dict[str, Array] = {}  # table -> its values with no clock closed, as first read
        self.equal: dict[tuple[str, int, int], dict[int, tuple[Stream, bytes]]] = {}
        self.unjudged: list[tuple[Any, ...]] = []  # exact reads that depend on them
        self.roll = Roll(seed, plan)
        self.doomed = plan.overflow_clock >= 0
        self.refusals = 0
        self.input = Input(plan.spec.pieces, plan.spec.passes)
        self.stopping = Stopping(plan.spec.stop_clock)
        self._references: dict[str, Any] = {}

    def registered(self, spec: JobSpec) -> None:
        """The job as the master stored it: the same, with blocks chosen."""
        if spec.layout.nbytes != self.spec.layout.nbytes or spec.name != self.spec.name:
            raise checkers.Broken(f"the job came back as another one: {spec}")
        self.spec = spec

    def grant(self, worker: int, gen: int, clock: int) -> None:
        self.roll.grant(worker, gen, clock)
        self.input.succeeded(worker, gen)

    def left(self, worker: int, clock: int) -> None:
        """A worker has left the clock, without a bye."""
        self.roll.left(worker, clock)
        self.stopping.left(worker)
        self.input.succeeded(worker, GENS + 1)
        if not self.roll.leaving:
            waiting, self.unjudged = self.unjudged, []
            for arguments in waiting:
                self._check_exact(*arguments)

    def bye(self, worker: int, clock: int) -> None:
        """The worker is about to say that it has finished."""
        self.roll.saying_bye.setdefault(worker, clock)
        self.stopping.left(worker)

    # -- writing

    def content(self, stream: Stream, clock: int, number: int) -> Content:
        return content_of(self.spec, self.seed, *stream, clock, number, dense=clock == self.plan.overflow_clock)

    def cell(self, table: str, stream: Stream, row: int = 0) -> Cell:
        return self.cells.setdefault((table, *stream, row), Cell())

    def push(self, stream: Stream, clock: int, number: int) -> Push:
        """The `number`-th push of the stream in a clock."""
        content = self.content(stream, clock, number)
        adds: list[tuple[Cell, tuple[int, ...]]] = []
        dense = self._dense(stream, clock, number, adds) if content.dense else bytearray()
        rows = [self._rows(stream, clock, number, section, adds) for section in content.sections]
        return Push(stream, clock, content, dense, rows, adds)

    def _dense(self, stream: Stream, clock: int, number: int, adds: list[Any]) -> bytearray:
        """The bytes of the dense tables in `grad`."""
        worker, gen = stream
        data = bytearray(self.spec.layout.nbytes)
        for place in self.spec.layout.places:
            table = place.table
            bsp = self.models[table.name].model == BSP
            if table.name == "count":
                cell = self.cell("count", stream)
                n = cell.begun + 1
                adds.append((cell, (n,)))
                array = np.zeros(table.shape, np.float64)
                array[:, worker, gen - 1, :3] = (1, n, n * n)
                values = (array * -2 if table.optimizer == "sgd" else array).astype(table.numpy_dtype).reshape(-1)
            elif table.name in ("offered", "filed") and not bsp:
                values = np.zeros(table.count, table.numpy_dtype)
            elif bsp and table.name == "exact" and clock == self.plan.overflow_clock:
                values = np.full(table.count, 1.7e308)
            elif bsp:
                values = exact_gradient(table, worker, clock, number)
            else:
                values = np.full(table.count, self._tag(stream), table.numpy_dtype)
            data[place.offset : place.offset + table.nbytes] = values.tobytes()
        return data

    def _tag(self, stream: Stream) -> float:
        tag = float(len(self.assigned) + 1)
        self.assigned[tag] = stream
        return tag

    def _rows(self, stream: Stream, clock: int, number: int, section: Section, adds: list[Any]) -> Array:
        table = section.table
        values = np.zeros((len(section.rows), table.width), np.float64)
        counted: dict[int, list[int]] = {}
        tag = self._tag(stream) if table.name == "written" else 0.0
        for at, row in enumerate(section.rows):
            if table.name in OWNED:
                cell = self.cell(table.name, stream, row)
                more = counted.setdefault(row, [])
                more.append(cell.begun + len(more) + 1)
                n = more[-1]
                values[at] = tally_row(table, n) if table.name == "tally" else order_row(table, row, n)
            else:
                values[at] = tag or exact_row(table, row, stream[0], clock, number)
        adds += [(self.cell(table.name, stream, row), tuple(more)) for row, more in counted.items()]
        return values

    def offer(self, stream: Stream) -> bytearray:
        """First values for tables with init=program: a number that names who offered."""
        data = bytearray(self.spec.layout.nbytes)
        tag = self.offers.setdefault(stream, float(stream[0] * GENS + stream[1]))
        for place in self.spec.layout.places:
            if place.table.init == "program":
                values = np.full(place.table.count, tag, place.table.numpy_dtype)
                data[place.offset : place.offset + place.table.nbytes] = values.tobytes()
        return data

    def turn(self, worker: int, clock: int) -> Turn:
        if worker in self.plan.grouped:
            return Turn((1.0,), "step")
        return turn_of(self.seed, worker, clock, at_least=1 if clock == self.plan.overflow_clock else 0)

    def begin(self, push: Push) -> None:
        for cell, numbers in push.adds:
            cell.begin(push.clock, len(numbers))

    def ack(self, push: Push) -> None:
        for cell, numbers in push.adds:
            cell.acked += len(numbers)

    def withdraw(self, push: Push) -> None:
        """It was refused for good, and it is the stream's newest one."""
        for cell, numbers in reversed(push.adds):
            cell.withdraw(len(numbers))

    # -- reading

    def ask(self, now_us: int, want: Content, reader: int) -> Asked:
        """A read begins: outside of BSP it must show all that is acked now; where primaries change, acked through the reader's agent."""
        agents = self.plan.agents if self.plan.may_be_replaced else 1
        slots = {}
        if want.dense and self.models["count"].model != BSP:
            mine = [(key[1:3], cell) for key, cell in self.cells.items() if key[0] == "count" and key[1] % agents == reader % agents]
            slots = {stream: cell.acked for stream, cell in mine}
        cells = {}
        for table, rows in want.sections:
            if table.name in OWNED and self.models[table.name].model != BSP:
                for row in rows:
                    key = (table.name, *owner_of(row), row)
                    if key[1] % agents != reader % agents:
                        continue
                    cells[key] = self.cells[key].acked if key in self.cells else 0
        return Asked(now_us, slots, cells)

    def read(self, stream: Stream, clock: int, now_us: int, asked: Asked, want: Content, param: bytes) -> None:
        """A read as the program in `clock` saw it, checked at once as far as one can be."""
        reader = Reader(stream, clock)
        models = [self.models[place.table.name] for place in places_of(self.spec, Content(want.dense, ()))[0]]
        models += [self.models[section.table.name] for section in want.sections if section.rows]
        self._check_staleness(reader, models)
        dense, sections, _ = places_of(self.spec, want)
        for place in dense:
            values = np.frombuffer(param, place.table.numpy_dtype, place.elements, place.offset).copy()
            self._read_dense(reader, place.table, values, now_us, asked)
        with_rows = [section for section in want.sections if section.rows]
        for place, section in zip(sections, with_rows):
            table = place.table
            values = np.frombuffer(param, table.numpy_dtype, place.elements, place.offset).reshape(-1, table.width)
            for row, numbers in zip(section.rows, values):
                self._read_row(reader, table, row, numbers, asked)

    def _check_staleness(self, reader: Reader, models: list[Consistency]) -> None:
        """Nobody reads further ahead of the slowest member than the tables allow."""
        for model in models:
            needed = model.slowest_needed(reader.clock)
            for worker, begun in self.roll.awaited().items():
                if begun < needed:
                    raise checkers.Broken(
                        f"stream {reader.stream} has read under {model} in clock {reader.clock}, while worker {worker} has finished at most {begun} clocks"
                    )

    def bounds(self, reader: Reader, table: str, key: Key, acked: int) -> tuple[int, int]:
        """(least, most) pushes of a cell that the read may show."""
        cell, model = self.cells.get(key), self.models[table]
        if cell is None:
            return 0, 0
        if cell.known:
            return cell.begun, cell.begun
        owner = (key[1], key[2])
        if model.model == BSP:
            most = cell.before(reader.clock)
            return (most if self.roll.lives(owner) else 0), most
        least = cell.begun if owner == reader.stream else acked
        if model.model != ASP and self.roll.lives(owner):
            least = max(least, cell.before(model.slowest_needed(reader.clock)))
        return least, cell.begun

    def _read_dense(self, reader: Reader, table: TableSpec, values: Array, now_us: int, asked: Asked) -> None:
        model = self.models[table.name]
        if table.name == "count":
            keys = {(worker, gen): ("count", worker, gen, 0) for (name, worker, gen, _) in self.cells if name == "count"}
            bounds = {stream: self.bounds(reader, table.name, key, asked.slots.get(stream, 0)) for stream, key in keys.items()}
            own = bounds.get(reader.stream, (0, 0))[0]
            known = {stream: least for stream, (least, _) in bounds.items() if least}
            most = {stream: bound for stream, (_, bound) in bounds.items()}
            pull = Pull(asked.started_us, now_us, reader.stream, reader.clock, own, values.reshape(table.shape), known, most)
            checkers.counts(pull)
            self.pulls.append(pull)
        elif table.name in ("offered", "filed"):
            self._check_offered(reader, table, values)
        elif model.model == BSP:
            self.judge_exact(reader, table, values)
        else:
            self._check_assigned(reader.stream, table, values)
        if model.model == BSP:
            self._same_bits(table.name, 0, reader, values)

    def _same_bits(self, table: str, row: int, reader: Reader, values: Array) -> None:
        checkers.check_equal(self.equal.setdefault((table, row, 0), {}), reader.clock, reader.stream, values.tobytes())

    def _read_row(self, reader: Reader, table: TableSpec, row: int, values: Array, asked: Asked) -> None:
        model = self.models[table.name]
        if table.name in OWNED:
            key: Key = (table.name, *owner_of(row), row)
            least, most = self.bounds(reader, table.name, key, asked.cells.get(key, 0))
            self.read_cell(reader, table, row, values, least, most)
        elif table.name == "summed":
            self._judge_exact_row(reader, table, row, values)
        else:
            checkers.check_whole(reader.stream, f"{table.name}, row {row}", values, self.assigned)
        if model.model == BSP:
            self._same_bits(table.name, row, reader, values)

    def read_cell(self, reader: Reader, table: TableSpec, row: int, values: Array, least: int, most: int) -> int:
        what = f"row {row} of table {table.name}, of stream {owner_of(row)}"
        key: Key = (table.name, *owner_of(row), row)
        cell = self.cells.get(key) or Cell()
        if table.name == "tally":
            return read_tally(reader, what, cell, values, least, most)
        return read_order(reader, what, cell, values, least, most, lambda n: order_row(table, row, n))

    # -- BSP: known beforehand

    def judge_exact(self, reader: Reader, table: TableSpec, values: Array) -> None:
        if self.roll.leaving:
            self.unjudged.append((reader, table, values))
        else:
            self._check_exact(reader, table, values)

    def _judge_exact_row(self, reader: Reader, table: TableSpec, row: int, values: Array) -> None:
        if self.roll.leaving:
            self.unjudged.append((reader, table, values, row))
        else:
            self._check_exact(reader, table, values, row)

    def judge_exact_rows(self, reader: Reader, table: TableSpec, found: dict[int, Array]) -> None:
        """An export: exactly the rows that were ever stepped, with their values."""
        if self.roll.leaving:
            return
        known = set(self.reference(table).at(reader.clock))
        if known != set(found):
            raise checkers.Broken(f"export at clock {reader.clock}: table {table.name} has rows {sorted(found)}, pushed were {sorted(known)}")
        for row, values in found.items():
            self._check_exact(reader, table, values, row)

    def _check_exact(self, reader: Reader, table: TableSpec, values: Array, row: int = -1) -> None:
        known = self.reference(table)
        expected = known.at(reader.clock) if row < 0 else known.read(row, reader.clock)
        name = table.name if row < 0 else f"{table.name}, row {row}"
        checkers.check_exact(reader.stream, reader.clock, name, values, expected, reference.rounding(self.spec, table))

    def reference(self, table: TableSpec) -> Any:
        known = self._references.get(table.name)
        if known is None:
            if table.kind == "dense":
                known = reference.Dense(self.spec, table, lambda clock: self._staged(table, clock))
            else:
                numbers = {row: number_of(table, row) for row in range(SHARED_ROWS)}
                known = reference.Rows(self.spec, table, lambda clock: self._rows_staged(table, clock), numbers)
            self._references[table.name] = known
        return known

    def _pushes(self, clock: int) -> list[tuple[int, int, float, Content]]:
        """Every push of the clock in the order that the contract fixes: worker, number, weight, what takes part (rows of gen 1)."""
        return [
            (worker, number, weight, self.content((worker, 1), clock, number))
            for worker in self.roll.members(clock)
            for number, weight in enumerate(self.turn(worker, clock).weights)
        ]

    def _staged(self, table: TableSpec, clock: int) -> list[reference.Staged]:
        return [
            reference.Staged(worker, weight, exact_gradient(table, worker, clock, number).astype(np.float64))
            for worker, number, weight, content in self._pushes(clock) if content.dense
        ]  # fmt: skip

    def _rows_staged(self, table: TableSpec, clock: int) -> list[reference.RowsStaged]:
        found = []
        for worker, number, weight, content in self._pushes(clock):
            for section in content.sections:
                if section.table.name == table.name:
                    rows: dict[int, Array] = {}
                    for row in section.rows:
                        g = exact_row(table, row, worker, clock, number).astype(np.float64)
                        rows[row] = rows[row] + g if row in rows else g
                    found.append(reference.RowsStaged(worker, weight, rows))
        return found

    def _check_offered(self, reader: Reader, table: TableSpec, values: Array) -> None:
        """Somebody's offer or the file, the same for all and for ever, plus (BSP) what was pushed since."""
        if self.roll.leaving:
            return
        bsp = self.models[table.name].model == BSP
        rest = values - self._pushed(table, reader.clock) if bsp else values
        tags = self.offers.values() if table.init == "program" else (FILED,)
        if not any((rest == tag).all() for tag in tags):
            raise checkers.Broken(f"stream {reader.stream} at clock {reader.clock}: table {table.name} began as {rest[:4]}, which nobody offered")
        first = self.first_values.setdefault(table.name, rest)
        if (first != rest).any():
            raise checkers.Broken(f"stream {reader.stream} at clock {reader.clock}: table {table.name} began as {rest[:4]} and as {first[:4]}")

    def _pushed(self, table: TableSpec, clock: int) -> Array:
        return sum((push.gradient for done in range(clock) for push in self._staged(table, done)), np.zeros(table.count))

    def _check_assigned(self, stream: Stream, table: TableSpec, values: Array) -> None:
        for block in table.blocks() if table.block_bytes else ():
            checkers.check_whole(stream, table.name, values[block.start : block.stop], self.assigned)

    # -- the end

    def issued(self) -> dict[Stream, Issued]:
        return {(worker, gen): Issued(cell.begun, cell.acked) for (table, worker, gen, _), cell in self.cells.items() if table == "count"}

    def last_clock(self) -> int:
        """Clocks that must be closed once every worker has finished."""
        return self.stopping.nearest(self.roll.last_clock())

    def judge(self) -> None:
        checkers.check_counting(self.pulls, self.issued())
        self.stopping.judge()


def tally_row(table: TableSpec, n: int) -> Array:
    """What push n adds to a counting row."""
    values = np.zeros(table.width)
    values[:3] = (1, n, n * n)
    return values * -2 if table.optimizer == "sgd" else values


def order_row(table: TableSpec, row: int, n: int) -> Array:
    """What push n brings to a row whose value depends on the order; any number may stand behind any other."""
    assert table.optimizer == FOLD
    return (np.arange(table.width) + row * 7919 + n * n * 104_729 + 1) % 1_000_003.0
