"""Which push of each stream a range has taken last: what a push is that comes now, and how old the values were behind it.

Knows neither what is pushed nor who is answered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from ..core.errors import Code, RequestError
from ..wire.messages import Component
from . import plain

#: What a push of a stream is: another incarnation has followed; taken already; an earlier one is still under way; it
#: names another push before it than the last one; the next one; refused when its turn had come; itself or one before it
#: is in the log and not applied.
FENCED, SEEN, GAP, ASTRAY, NEXT, VOID, WAITS = range(7)

HISTORY = 4_096  # steps that are remembered to count those behind: who was further behind is told that many


class Streams:
    def __init__(self) -> None:
        self.rows: dict[int, tuple[int, int]] = {}  # worker -> (gen, seq of the last push taken)
        self.voids: dict[int, tuple[int, int, RequestError]] = {}  # worker -> (gen, seq, why) of its last push that came to nothing
        self._steps: deque[tuple[int, int]] = deque(maxlen=HISTORY)  # (version, worker) of pushes that stepped at once
        self._behind: dict[int, int] = {}  # worker -> what its last push was told, for a repeat

    def look(self, component: Component) -> int:
        """What this push of a stream is.  A new incarnation counts from the start: it takes the row with its first push."""
        row_gen, last = self.rows.get(component.worker, (0, 0))
        if component.gen < row_gen:
            return FENCED
        if component.gen > row_gen:
            last = 0
        if self.voids and self._void(component) is not None:
            return VOID
        if component.seq <= last:
            return SEEN
        return GAP if component.prev > last else ASTRAY if component.prev < last else NEXT

    def void(self, components: Sequence[Component], why: RequestError) -> None:
        """The push was in the log and came to nothing: a repeat of it is told so, on every copy."""
        for worker, gen, seq, *_ in components:
            self.voids[worker] = (gen, seq, why)

    def why(self, component: Component) -> RequestError:
        """Why this push came to nothing."""
        found = self._void(component)
        assert found is not None
        return found

    def _void(self, component: Component) -> RequestError | None:
        gen, seq, why = self.voids.get(component.worker, (0, 0, None))
        return why if (gen, seq) == component[1:3] else None

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

    def rewind(self) -> None:
        """From a checkpoint: no incarnation has pushed anything yet."""
        self.rows, self.voids, self._behind = {}, {}, {}

    # -- copies

    def dump(self) -> dict[str, Any]:
        """Everything, as a plain document."""
        return {
            "rows": [(worker, *row) for worker, row in sorted(self.rows.items())],
            "voids": [(worker, gen, seq, int(why.code), why.text) for worker, (gen, seq, why) in sorted(self.voids.items())],
            "steps": list(self._steps), "behind": sorted(self._behind.items()),
        }  # fmt: skip

    def load(self, meta: Any) -> None:
        """What a copy's document says, in place of what is here.  Raises `PeerError`."""
        rows = plain.records(plain.field(meta, "rows"), plain.whole, plain.whole, plain.whole)
        voids = plain.records(plain.field(meta, "voids"), plain.whole, plain.whole, plain.whole, plain.code, plain.text)
        steps = plain.records(plain.field(meta, "steps"), plain.whole, plain.whole)
        behind = plain.records(plain.field(meta, "behind"), plain.whole, plain.whole)
        self.rows = plain.once([(worker, (gen, seq)) for worker, gen, seq in rows])
        self.voids = plain.once([(worker, (gen, seq, RequestError(Code(code), why))) for worker, gen, seq, code, why in voids])
        self._steps = deque([(version, worker) for version, worker in steps], HISTORY)
        self._behind = plain.once([(worker, number) for worker, number in behind])
