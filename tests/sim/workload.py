"""What the simulated programs push, and what they must read: pure functions of the plan, and the ledger of a run.

The counting table gets (1, n, n^2) for push n of a generation.  The exact table gets integers that depend on (worker,
clock, k) alone, so that a generation which repeats a clock pushes the same again, and BSP values are known beforehand.
"""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

import numpy as np

from plugml.core.clock import BSP, Consistency
from plugml.core.job import JobSpec
from plugml.core.keys import mix
from plugml.core.table import Placed, TableSpec

from . import checkers
from .checkers import Issued, Pull, Staged, Stream
from .weather import GENS, Plan

Array = np.ndarray[Any, Any]
FILED = 77.0  # every number of the file that gives first values


class Turn(NamedTuple):
    """What a worker does in one clock: its pushes' weights, and whether the last one is a `step`."""

    weights: tuple[float, ...]
    style: str  # step: push.., step | parts: push.., clock, pull | mixed: push.., pushpull, clock | ahead: push.., clock, waiting for nobody


def turn_of(seed: int, worker: int, clock: int, at_least: int = 0) -> Turn:
    """The same for every generation of the worker."""
    chance = Random(mix(mix(seed) + worker * 1_000 + clock))
    style = ("step", "step", "step", "parts", "mixed", "ahead")[chance.randrange(6)]
    pushes = 1 if style == "step" else chance.randrange(3)
    if chance.randrange(4) == 0:
        pushes += 1
    return Turn(tuple(float(chance.randrange(1, 6)) for _ in range(max(pushes, at_least))), style)


def end_clock(seed: int, plan: Plan, worker: int) -> int:
    """Clocks that the worker does before it says bye; worker 0 does all."""
    if worker and plan.ends_early:
        return max(1, plan.clocks - Random(mix(seed + worker)).randrange(3))
    return plan.clocks


def exact_gradient(table: TableSpec, worker: int, clock: int, number: int) -> Array:
    """Small integers that depend on place, worker, clock and push."""
    index = np.arange(table.count, dtype=np.int64)
    return ((index * 5 + worker * 31 + clock * 7 + number * 3) % 11 - 5).astype(table.numpy_dtype)


class Ledger:
    """What was issued, acked and read in one run; `judge` applies the checkers that need the whole history."""

    def __init__(self, seed: int, plan: Plan) -> None:
        assert plan.spec is not None
        self.seed = seed
        self.plan = plan
        self.spec = plan.spec
        self.bsp = Consistency.parse(self.spec.consistency).model == BSP
        self.issued: dict[Stream, Issued] = {}
        self.offers: dict[Stream, float] = {}
        self.pulls: list[Pull] = []
        self.assigned: dict[float, Stream] = {}  # values that `assign` pushes carried outside of BSP
        self.first_values: dict[str, Array] = {}  # table -> its values with no clock closed, as first read
        self.equal: dict[int, tuple[Stream, bytes]] = {}
        self.expected: dict[str, list[Array]] = {}
        self.saying_bye: dict[int, None] = {}  # workers whose last clock is done: another generation has nothing to do
        self.doomed = plan.overflow_clock >= 0
        self.granted: dict[int, int] = {}  # worker -> newest generation
        self.refusals = 0

    def registered(self, spec: JobSpec) -> None:
        """The job as the master stored it: the same, with blocks chosen."""
        if spec.layout.nbytes != self.spec.layout.nbytes or spec.name != self.spec.name:
            raise checkers.Broken(f"the job came back as another one: {spec}")
        self.spec = spec

    @property
    def newest_gen(self) -> int:
        return max(self.granted.values(), default=0)

    def grant(self, worker: int, gen: int) -> None:
        """A generation was given out: never twice, and always a higher one."""
        if gen <= self.granted.get(worker, 0):
            raise checkers.Broken(f"worker {worker} was given generation {gen} after {self.granted[worker]}")
        self.granted[worker] = gen

    # -- writing

    def gradient(self, stream: Stream, clock: int, number: int, n: int) -> bytearray:
        """The bytes of `grad` for push n of the stream, the `number`-th of its clock."""
        worker, gen = stream
        data = bytearray(self.spec.layout.nbytes)
        for place in self.spec.layout.places:
            table = place.table
            if table.name == "count":
                array = np.zeros(table.shape, np.float64)
                array[:, worker, gen - 1, :3] = (1, n, n * n)
                values = (array * -2 if table.optimizer == "sgd" else array).astype(table.numpy_dtype).reshape(-1)
            elif table.name in ("offered", "filed") and not self.bsp:
                values = np.zeros(table.count, table.numpy_dtype)
            elif self.bsp and table.name == "exact" and clock == self.plan.overflow_clock:
                values = np.full(table.count, 1.7e308)
            elif self.bsp:
                values = exact_gradient(table, worker, clock, number)
            else:
                tag = float((worker * GENS + gen) * 1_000 + n)
                self.assigned[tag] = stream
                values = np.full(table.count, tag, table.numpy_dtype)
            data[place.offset : place.offset + table.nbytes] = values.tobytes()
        return data

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
        return turn_of(self.seed, worker, clock, at_least=1 if clock == self.plan.overflow_clock else 0)

    def begin(self, stream: Stream) -> None:
        old = self.issued.get(stream, Issued(0, 0))
        self.issued[stream] = Issued(old.begun + 1, old.acked)

    def ack(self, stream: Stream) -> None:
        old = self.issued[stream]
        self.issued[stream] = Issued(old.begun, old.acked + 1)

    # -- reading

    def known(self) -> dict[Stream, int]:
        """Pushes that are acked now: outside of BSP every read that begins from here on must show them, whoever reads."""
        return {} if self.bsp else {stream: item.acked for stream, item in self.issued.items()}

    def read(
        self, stream: Stream, clock: int, started_us: int, ended_us: int, own: int, known: dict[Stream, int], param: bytes
    ) -> None:  # fmt: skip
        """A pull as the program saw it, checked at once as far as one pull can be."""
        for place in self.spec.layout.places:
            values = self._table(place, param)
            if place.table.name == "count":
                slots = values.reshape(place.table.shape)
                pull = Pull(started_us, ended_us, stream, clock, own, slots, known)
                checkers.counts(pull)
                self.pulls.append(pull)
            elif place.table.name in ("offered", "filed"):
                self._check_offered(stream, clock, place.table, values)
            elif self.bsp:
                self._check_exact(stream, clock, place.table, values)
            else:
                self._check_assigned(stream, place.table, values)
        if self.bsp:
            checkers.check_equal(self.equal, clock, stream, self._without_padding(param))

    def _without_padding(self, param: bytes) -> bytes:
        return b"".join(param[place.offset : place.offset + place.table.nbytes] for place in self.spec.layout.places)

    @staticmethod
    def _table(place: Placed, param: bytes) -> Array:
        return np.frombuffer(param, place.table.numpy_dtype, place.table.count, place.offset).copy()

    def _check_offered(self, stream: Stream, clock: int, table: TableSpec, values: Array) -> None:
        """Somebody's offer or the file, the same for all and for ever, plus (BSP) what was pushed since."""
        rest = values - self._pushed(table, clock) if self.bsp else values
        tags = self.offers.values() if table.init == "program" else (FILED,)
        if not any((rest == tag).all() for tag in tags):
            raise checkers.Broken(f"stream {stream} at clock {clock}: table {table.name} began as {rest[:4]}, which nobody offered")
        first = self.first_values.setdefault(table.name, rest)
        if (first != rest).any():
            raise checkers.Broken(f"stream {stream} at clock {clock}: table {table.name} began as {rest[:4]} and as {first[:4]}")

    def _pushed(self, table: TableSpec, clock: int) -> Array:
        total = np.zeros(table.count)
        for done in range(clock):
            for push in self._staged(table, done):
                total = total + push.gradient
        return total

    def _check_exact(self, stream: Stream, clock: int, table: TableSpec, values: Array) -> None:
        known = self.expected.get(table.name)
        if known is None:
            if clock == 0:
                known = self.expected[table.name] = [values.astype(np.float64)]
            elif table.init == "zeros":
                known = self.expected[table.name] = [np.zeros(table.count)]
            else:
                return  # nobody read the first values: what they were is not known to the programs
        while len(known) <= clock:
            known.append(
                checkers.close_clock(
                    known[-1], self._staged(table, len(known) - 1), table.optimizer,
                    table.setting("lr") if table.optimizer == "sgd" else 0.0, self.spec.combine_of(table),
                )
            )  # fmt: skip
        whole = self.spec.combine_of(table) == "sum" and table.init == "zeros"
        relative = 0.0 if whole else {"f32": 1e-5, "f64": 1e-12, "i64": 0.0}[table.dtype]
        checkers.check_exact(stream, clock, table.name, values, known[clock], relative)

    def _staged(self, table: TableSpec, clock: int) -> list[Staged]:
        """Every push of the clock in the order that the contract fixes."""
        return [
            Staged(worker, weight, exact_gradient(table, worker, clock, number).astype(np.float64))
            for worker in range(self.plan.workers)
            if clock < end_clock(self.seed, self.plan, worker)
            for number, weight in enumerate(self.turn(worker, clock).weights)
        ]

    def _check_assigned(self, stream: Stream, table: TableSpec, values: Array) -> None:
        for block in table.blocks() if table.block_bytes else ():
            checkers.check_whole(stream, table.name, values[block.start : block.stop], self.assigned)

    # -- the end

    def judge(self) -> None:
        checkers.check_counting(self.pulls, self.issued)

    def judge_export(self, files: dict[str, bytes], clock: int, final: bool) -> None:
        """Exported tables stand at one closed clock; the last ones hold exactly what was acked (and perhaps what was begun)."""
        last = max(end_clock(self.seed, self.plan, worker) for worker in range(self.plan.workers))
        if final and self.bsp and clock < last:
            raise checkers.Broken(f"the final export stands at clock {clock}, {last} were finished")
        for place in self.spec.layout.places:
            values = np.frombuffer(files[f"{place.table.name}.bin"], place.table.numpy_dtype)
            if place.table.name == "count":
                slots = values.reshape(place.table.shape)
                if final:
                    # Under BSP a generation that died within a clock leaves its acked pushes of that clock unused.
                    issued = {stream: Issued(item.begun, 0 if self.bsp else item.acked) for stream, item in self.issued.items()}
                    checkers.check_final(slots, issued)
                else:
                    checkers.counts(Pull(0, 0, (-1, 0), clock, 0, slots))
            elif self.bsp and place.table.name == "exact":
                self._check_exact((-1, 0), clock, place.table, values)
