"""When a job's checkpoints begin, and what has become of them: decided from the clock's log, the same on every copy.

    every E clocks, or asked for  ->  number, in the Close behind which the cut lies (a job without closes: at once)

What has become of one is known to the copy that leads alone.  Refuses to know ranges, files and who writes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..core.clock import BSP, SSP
from ..core.errors import PeerError
from ..core.job import JobSpec
from ..wire.messages import SaveAsk, Tick
from . import plain
from .members import Member

#: What lies in a cut: all of the clocks that are closed and nothing else; what everybody had finished when all were
#: held; or whatever was there when each range came to it.
CLOSED, HELD, FUZZY = "closed", "held", "fuzzy"


def cut_of(spec: JobSpec) -> str:
    """Which kind of cut a job's checkpoints have."""
    models = {spec.consistency_of(table).model for table in spec.tables}
    if models == {BSP}:
        return CLOSED
    return HELD if models == {SSP} else FUZZY


class Saves:
    """`begun` numbers have been given out; `settled`, `kept`, `clock` (of the kept one) and `base` are the leader's alone."""

    def __init__(self, spec: JobSpec) -> None:
        self.cut = cut_of(spec)
        self.begun = spec.checkpoint_first - 1
        self.settled = self.begun
        self.kept = 0
        self.clock = 0
        self.base = 0  # number of the one to whose files the next may refer, 0 = it writes everything
        self.problem = ""  # why the one that was settled last came to nothing; the leader's alone, too
        self.asked = False
        self._possible = bool(spec.checkpoint_dir)
        self._every = spec.checkpoint_every
        self._done = 0  # turns of `every` clocks whose checkpoints have begun
        self.held = 0  # clock of the last cut at which all were held
        self._wanted = 0  # clock at which somebody's checkpoint is to be, where members are held
        # Of the leader alone, where members are held: nobody comes beyond this clock, and who has come to it, with the tick that waits.
        self.holding = 0
        self.waiting: dict[int, tuple[str, Tick]] = {}

    @property
    def told(self) -> tuple[int, int, int, int]:
        """For a Standing."""
        return (self.begun, self.settled, self.kept, self.clock)

    def ask(self, ask: SaveAsk, farthest: int) -> int:
        """Somebody wants one, and gets what has begun since it looked; or all are held: then the number of the one that begins, 0 = none.

        `farthest`: the most clocks that anybody has finished.
        """
        if ask.held:
            return self._begin_held(ask.held)
        if self._possible and ask.after >= self.begun and not self.asked:
            self.asked = True
            self._wanted = farthest + 1
        return 0

    def due(self, clocks: int) -> int:
        """So many clocks are done by all: the number of the checkpoint that begins here, 0 = none."""
        if not self._possible or self.cut == HELD:
            return 0
        turn = clocks // self._every if self._every else 0
        regular = turn > self._done
        self._done = max(self._done, turn)
        if not (regular or self.asked):
            return 0
        self.asked = False
        self.begun += 1
        return self.begun

    @property
    def clock_of_cut(self) -> int:
        """In a dump of a job without closes: the clock at which its cut lies for all, -1 = for each where it stood."""
        return self.held if self.cut == HELD else -1

    @property
    def hold(self) -> int:
        """Clock at which all members are held for the next checkpoint, 0 = none is to come."""
        if not self._possible or self.cut != HELD:
            return 0
        regular = (self._done + 1) * self._every
        if not self.asked:
            return regular
        return min(regular, self._wanted) if regular else self._wanted

    def stops(self, sender: str, tick: Tick) -> bool:
        """Whether this tick has to wait, since its worker has come to a cut."""
        hold = self.holding or self.hold
        if not hold or tick.clock + 1 < hold:
            return False
        self.waiting[tick.worker] = (sender, tick)
        return True

    def all_held(self, members: Iterable[Member]) -> bool:
        """Whether every member has come to the cut; true once."""
        here = [member for member in members if member.here]
        if self.holding or not here:
            return False
        waiting = {worker: tick.gen for worker, (_, tick) in self.waiting.items()}
        if any(waiting.get(member.worker) != member.gen for member in here):
            return False
        self.holding = self.hold
        return True

    def _begin_held(self, clock: int) -> int:
        """All are held there: the number of the checkpoint, 0 = it has begun already."""
        if not clock or clock != self.hold:
            return 0
        self.asked = False
        self._done = max(self._done, clock // self._every if self._every else 0)
        self.begun += 1
        self.held = clock
        return self.begun

    def release(self) -> list[tuple[str, Tick]]:
        """Nobody is held any more: the ticks that have waited."""
        waited, self.waiting, self.holding = self.waiting, {}, 0
        return [waited[worker] for worker in sorted(waited)]

    def lead(self) -> None:
        """What was under way before this copy led has come to nothing."""
        self.settled = self.begun
        self.release()

    def settle(self, number: int, kept: bool, clock: int, problem: str = "") -> None:
        self.settled, self.problem = max(self.settled, number), problem
        if kept:
            self.kept, self.clock, self.base = number, clock, number

    def rewind(self, spec: JobSpec, clocks: int) -> None:
        """The job goes on from a checkpoint: numbers are counted from those that the directory has."""
        self.begun = self.settled = spec.checkpoint_first - 1
        self.kept = self.clock = self.base = 0
        self.problem, self.asked = "", False
        self._done = clocks // self._every if self._every else 0
        self.release()

    # -- copies

    def dump(self) -> dict[str, Any]:
        return {"begun": self.begun, "asked": self.asked, "done": self._done, "held": self.held, "wanted": self._wanted}

    def load(self, meta: Any) -> None:
        """What a copy's document says, in place of what is here.  Raises `PeerError`."""
        begun = plain.whole(plain.field(meta, "begun"))
        asked, done = plain.flag(plain.field(meta, "asked")), plain.whole(plain.field(meta, "done"))
        if asked and not self._possible:
            raise PeerError("a copy of the clock is to make a checkpoint of a job that has no place for one")
        self.held, self._wanted = [plain.whole(plain.field(meta, name)) for name in ("held", "wanted")]
        self.begun, self.asked, self._done = begun, asked, done
        self.settled = begun

    def state(self) -> tuple[Any, ...]:
        return (self.begun, self.asked, self._done, self.held, self._wanted)
