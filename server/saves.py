"""When a job's checkpoints begin, and what has become of them: decided from the clock's log, the same on every copy.

    every E clocks, or asked for  ->  number, in the Close behind which the cut lies (a job without closes: at once)

What has become of one is known to the copy that leads alone.  Refuses to know ranges, files and who writes them.
"""

from __future__ import annotations

from typing import Any

from ..core.clock import BSP, SSP
from ..core.errors import PeerError
from ..core.job import JobSpec
from . import plain

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
    """`begun` numbers have been given out; `settled`, `kept` and `clock` (of the kept one) are the leader's alone."""

    def __init__(self, spec: JobSpec) -> None:
        self.cut = cut_of(spec)
        self.begun = spec.checkpoint_first - 1
        self.settled = self.begun
        self.kept = 0
        self.clock = 0
        self.asked = False
        self._possible = bool(spec.checkpoint_dir)
        self._every = spec.checkpoint_every
        self._done = 0  # clocks up to which checkpoints that come by themselves have begun

    @property
    def told(self) -> tuple[int, int, int, int]:
        """For a Standing."""
        return (self.begun, self.settled, self.kept, self.clock)

    def ask(self, after: int) -> None:
        """Somebody wants one; what has begun since it looked is the one that it gets."""
        if self._possible and after >= self.begun:
            self.asked = True

    def due(self, clocks: int) -> int:
        """So many clocks are done by all: the number of the checkpoint that begins here, 0 = none."""
        if not self._possible:
            return 0
        turn = clocks // self._every if self._every else 0
        regular = turn > self._done
        self._done = max(self._done, turn)
        if not (regular or self.asked):
            return 0
        self.asked = False
        self.begun += 1
        return self.begun

    def lead(self) -> None:
        """What was under way before this copy led has come to nothing."""
        self.settled = self.begun

    def settle(self, number: int, kept: bool, clock: int) -> None:
        self.settled = max(self.settled, number)
        if kept:
            self.kept, self.clock = number, clock

    def rewind(self, spec: JobSpec, clocks: int) -> None:
        """The job goes on from a checkpoint: numbers are counted from those that the directory has."""
        self.begun = self.settled = spec.checkpoint_first - 1
        self.kept = self.clock = 0
        self.asked = False
        self._done = clocks // self._every if self._every else 0

    # -- copies

    def dump(self) -> dict[str, Any]:
        return {"begun": self.begun, "asked": self.asked, "done": self._done}

    def load(self, meta: Any) -> None:
        """What a copy's document says, in place of what is here.  Raises `PeerError`."""
        begun = plain.whole(plain.field(meta, "begun"))
        asked, done = plain.flag(plain.field(meta, "asked")), plain.whole(plain.field(meta, "done"))
        if asked and not self._possible:
            raise PeerError("a copy of the clock is to make a checkpoint of a job that has no place for one")
        self.begun, self.asked, self._done = begun, asked, done
        self.settled = begun

    def state(self) -> tuple[Any, ...]:
        return (self.begun, self.asked, self._done)
