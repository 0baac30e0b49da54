"""Which push of each stream a range has taken last: what a push is that comes now, and how old the values were behind it.

Knows neither what is pushed nor who is answered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ..wire.messages import Component

#: What a push of a stream is: another incarnation has followed; taken already; an earlier one is still under way; it
#: names another push before it than the last one; the next one.
FENCED, SEEN, GAP, ASTRAY, NEXT = range(5)

HISTORY = 4_096  # steps that are remembered to count those behind: who was further behind is told that many


class Streams:
    def __init__(self) -> None:
        self.rows: dict[int, tuple[int, int]] = {}  # worker -> (gen, seq of the last push taken)
        self._steps: deque[tuple[int, int]] = deque(maxlen=HISTORY)  # (version, worker) of pushes that stepped at once
        self._behind: dict[int, int] = {}  # worker -> what its last push was told, for a repeat

    def look(self, component: Component) -> int:
        """What this push of a stream is.  A new incarnation counts from the start: it takes the row with its first push."""
        row_gen, last = self.rows.get(component.worker, (0, 0))
        if component.gen < row_gen:
            return FENCED
        if component.gen > row_gen:
            last = 0
        if component.seq <= last:
            return SEEN
        return GAP if component.prev > last else ASTRAY if component.prev < last else NEXT

    def gen(self, worker: int) -> int:
        """The newest incarnation that is known."""
        return self.rows.get(worker, (0, 0))[0]

    def last(self, worker: int, gen: int) -> int:
        """Seq of the last push taken from this incarnation."""
        row_gen, last = self.rows.get(worker, (0, 0))
        return last if gen == row_gen else 0

    def take(self, components: Sequence[Component]) -> bool:
        """The push is taken; True if an incarnation is new with it."""
        newer = False
        for worker, gen, seq, *_ in components:
            newer |= gen > self.gen(worker)
            self.rows[worker] = (gen, seq)
        return newer

    def fence(self, worker: int, gen: int) -> None:
        """Lower incarnations of the worker are over."""
        if gen > self.gen(worker):
            self.rows[worker] = (gen, 0)

    # -- staleness

    def measure(self, components: Sequence[Component], base: int, at_once: bool) -> None:
        """A push is about to step: count others' steps since version `base`, which it was computed on (0 = on none)."""
        behind = 0
        workers = [component.worker for component in components]
        if at_once and base > 0:
            for version, worker in reversed(self._steps):
                if version <= base:
                    break
                behind += worker not in workers
        for worker in workers:
            self._behind[worker] = behind

    def stepped(self, components: Sequence[Component], version: int) -> None:
        """A push has stepped at once, at this version."""
        for component in components:
            self._steps.append((version, component.worker))

    def behind(self, worker: int) -> int:
        """What the worker's last push was told."""
        return self._behind.get(worker, 0)
