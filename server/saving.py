"""The cuts of ranges led here: kept until the keeper of the clock asks for their files, written one by one, reported.

    Cut (from the range) + WriteAsk (from the keeper) -> WriteRange -> RangeWritten -> Wrote, again for each repeat of the ask

A cut holds memory: it is let go when it is written, when a newer one comes, and when its epoch ends.  Knows neither files
nor which ranges there are elsewhere.
"""

from __future__ import annotations

from typing import Any

from ..core.effects import Send
from ..wire import messages as m
from .dump import Dump
from .effects import Cut, RangeWritten, WriteRange
from .hosted import Hosted
from .replica import Replica

KEPT, WRITING, SETTLED = "kept", "writing", "settled"
NO_MEMORY = "there was no memory for what the range holds: add servers, or memory"


class Held:
    """One range's part of a checkpoint."""

    __slots__ = ("number", "replica", "dump", "state", "nbytes", "crc", "refers", "problem", "missed")

    def __init__(self, number: int, replica: Replica, dump: Dump | None) -> None:
        self.number = number
        self.replica = replica
        self.dump = dump
        self.state = KEPT if dump is not None else SETTLED
        self.nbytes = self.crc = 0
        self.missed = 0  # number of a later cut that came while this one was being written
        self.refers: tuple[int, ...] = ()
        self.problem = "" if dump is not None else NO_MEMORY


class Saving:
    """`held` is the newest cut of each (job, range) here; `asks` the newest question of each job."""

    def __init__(self) -> None:
        self.held: dict[tuple[int, int], Held] = {}
        self.asks: dict[int, m.WriteAsk] = {}
        self._keepers: dict[int, str] = {}  # by job: who asked
        self.waits: set[tuple[int, int]] = set()  # cuts of clocks whose work list is open

    def on_cut(self, hosted: Hosted, cut: Cut) -> list[Any]:
        """A range has come to the cut of a checkpoint."""
        key, replica = (cut.job, cut.range), hosted.replicas[cut.range]
        before, ask = self.held.get(key), self.asks.get(cut.job)
        if before is not None and before.state != SETTLED and (before.state == WRITING or (ask is not None and ask.number == before.number)):
            before.missed = cut.number
            if cut.dump is not None:  # the one before is wanted, and has its time
                replica.range.let_go(cut.dump)
            return []
        self._drop(key)
        self.held[key] = held = Held(cut.number, replica, cut.dump)
        return self._go_on(hosted, held) if ask is not None and ask.number == cut.number else []

    def on_ask(self, hosted: Hosted, ask: m.WriteAsk) -> list[Any]:
        """The keeper wants the files of a checkpoint, or wants to hear of them again."""
        newest = self.asks.get(ask.job)
        if newest is not None and ask.number < newest.number:
            return []
        self.asks[ask.job] = ask
        self._keepers[ask.job] = hosted.keeper[0]
        effects: list[Any] = []
        for number, replica in hosted.replicas.items():
            if not replica.serves:
                continue
            held = self.held.get((ask.job, number))
            if ask.fuzzy and (held is None or held.number < ask.number):
                effects += self.on_cut(hosted, replica.range.cut(ask.number))
                held = self.held.get((ask.job, number))
            elif held is not None and held.number == ask.number:
                effects += self._go_on(hosted, held)
            if held is not None and held.number != ask.number:
                effects += self._behind(hosted, held, ask)
        return effects

    def _behind(self, hosted: Hosted, held: Held, ask: m.WriteAsk) -> list[Any]:
        """It has another cut than the one that is asked for."""
        if held.number < ask.number and held.missed < ask.number:
            return []  # it has not come to this cut yet
        why = "has come to a later cut already" if held.number > ask.number else "was still writing the one before"
        return self._tell(hosted, held.replica, ask.number, (0, 0, (), f"range {held.replica.seat.range} {why}"))

    def _go_on(self, hosted: Hosted, held: Held) -> list[Any]:
        replica, ask = held.replica, self.asks[hosted.number]
        if held.state == KEPT:
            assert held.dump is not None and hosted.map is not None
            if self._open(held):
                self.waits.add((hosted.number, replica.seat.range))
                return self._tell(hosted, replica, held.number, (0, 0, (), ""))
            held.state = WRITING
            write = WriteRange(hosted.number, replica.seat.range, held.number, ask.kept, hosted.spec, hosted.map.ring_ranges, held.dump)
            return [write, *self._tell(hosted, replica, held.number, (0, 0, (), ""))]
        if held.state == WRITING:
            return self._tell(hosted, replica, held.number, (0, 0, (), ""))
        return self._tell(hosted, replica, held.number, (held.nbytes, held.crc, held.refers, held.problem))

    @staticmethod
    def _open(held: Held) -> bool:
        """Who held a piece at the cut says by its next step whether it was done by then: until that is known the work list is open.

        Values are those of the cut, the work list is the newest: what was done behind the cut is known apart in it.
        """
        clock, dump = held.replica.clock, held.dump
        if clock is None or dump is None or not clock.work.pieces:
            return False
        closed = dump.meta["closed"]
        if not clock.work.remembers(closed):
            return False
        if any(clock.work.undecided(row.worker, row.finished, closed) for row in clock.members.rows.values()):
            return True
        dump.meta["clock"]["work"] = clock.work.dump()
        return False

    def on_step(self, hosted: Hosted) -> list[Any]:
        """Somebody has spoken to a clock here."""
        effects: list[Any] = []
        for key in [key for key in self.waits if key[0] == hosted.number]:
            self.waits.discard(key)
            held = self.held.get(key)
            if held is not None and held.state == KEPT and hosted.number in self.asks:
                effects += self._go_on(hosted, held)
        return effects

    def on_written(self, hosted: Hosted | None, done: RangeWritten) -> list[Any]:
        held = self.held.get((done.job, done.range))
        if held is None or held.number != done.number or held.state != WRITING:
            return []
        self._let_go(held)
        held.state = SETTLED
        held.nbytes, held.crc, held.refers, held.problem = done[3:]
        return self._go_on(hosted, held) if hosted is not None else []

    def on_map(self, hosted: Hosted) -> None:
        """Whoever leads no more has no cuts; nor has anybody whose keeper is another one, who asks for none of them."""
        for key in [key for key, held in self.held.items() if key[0] == hosted.number]:
            replica = hosted.replicas.get(key[1])
            if replica is not self.held[key].replica or not replica.leads:
                self._drop(key)
        if self._keepers.get(hosted.number, hosted.keeper[0]) != hosted.keeper[0]:
            self.forget(hosted.number)

    def forget(self, job: int) -> None:
        """The job has ended, or its checkpoint came to nothing."""
        self.asks.pop(job, None)
        self._keepers.pop(job, None)
        for key in [key for key in self.held if key[0] == job]:
            self._drop(key)

    def _drop(self, key: tuple[int, int]) -> None:
        self.waits.discard(key)
        held = self.held.pop(key, None)
        if held is not None:
            self._let_go(held)

    @staticmethod
    def _let_go(held: Held) -> None:
        if held.dump is not None and not held.replica.gone:
            held.replica.range.let_go(held.dump)
        held.dump = None

    @staticmethod
    def _tell(hosted: Hosted, replica: Replica, number: int, what: tuple[int, int, tuple[int, ...], str]) -> list[Any]:
        keeper, epoch = hosted.keeper
        return [Send(keeper, m.Wrote(hosted.number, replica.seat.range, epoch, hosted.token, number, *what))] if keeper else []

    def check(self, jobs: dict[int, Hosted]) -> None:
        for (job, number), held in self.held.items():
            assert job in jobs and jobs[job].replicas.get(number) is held.replica, "a cut of a copy that is not here"
            assert (held.dump is not None) == (held.state != SETTLED)
