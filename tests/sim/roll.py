"""Who takes part in which clocks, as far as launchers and programs know it."""

from __future__ import annotations

from .checkers import Broken, Stream
from .weather import Plan
from .workload import end_clock

FAR = 1 << 30


class Roll:
    def __init__(self, seed: int, plan: Plan) -> None:
        assert plan.spec is not None
        self._seed, self._plan = seed, plan
        self.workers = plan.spec.workers + sum(plan.joining)
        self.granted: dict[int, int] = {}  # worker -> newest generation
        self.asked: dict[int, int] = {}  # worker -> how often one was asked for
        self.first: dict[int, int] = dict.fromkeys(range(plan.spec.workers), 0)  # first clock of its present life as a member; not here = it has left
        self.spans: dict[int, list[tuple[int, int]]] = {}  # clocks [first, end) of earlier ones
        self.leaving: dict[int, None] = {}  # killed for good, and the clock has not said yet what counts
        self.saying_bye: dict[int, int] = {}  # workers whose last clock is done, and which it was: another generation has nothing to do
        self.ticking: dict[int, int] = {}  # clocks whose end was asked for
        self.earlier = 0  # generations that workers had before the job went on from a checkpoint: they are counted anew then
        self.cut = -1  # clock of that checkpoint

    @property
    def newest_gen(self) -> int:
        """At most: each time that somebody asks for one, perhaps in vain, it may be given out."""
        return max(self.asked.values(), default=0)

    def ask(self, worker: int) -> None:
        self.asked[worker] = self.asked.get(worker, 0) + 1

    def grant(self, worker: int, gen: int, clock: int) -> None:
        """A generation was given out: never twice, and always a higher one."""
        if gen <= self.granted.get(worker, 0):
            raise Broken(f"worker {worker} was given generation {gen} after {self.granted[worker]}")
        if self.cut >= 0 and worker not in self.granted and clock != self.cut:
            raise Broken(f"worker {worker} goes on at clock {clock} from a checkpoint of clock {self.cut}")
        self.granted[worker] = gen
        self.first.setdefault(worker, clock)
        self.ticking[worker] = max(clock, self.ticking.get(worker, 0))

    def left(self, worker: int, clock: int) -> None:
        self.spans.setdefault(worker, []).append((self.first.pop(worker), clock))
        self.leaving.pop(worker, None)

    def tick(self, worker: int, clock: int) -> None:
        """The end of a clock was asked for."""
        self.ticking[worker] = max(self.ticking.get(worker, 0), clock + 1)

    def awaited(self) -> dict[int, int]:
        """Members that surely are here, each with the most clocks that it can have finished."""
        return {
            worker: begun for worker, begun in self.ticking.items()
            if worker in self.first and worker not in self.saying_bye and worker not in self.leaving
        }  # fmt: skip

    def lives(self, stream: Stream) -> bool:
        """No other incarnation has ticked in its place: what it pushed in clocks that are over counts."""
        worker, gen = stream
        return self.granted.get(worker) == gen and worker not in self.leaving and worker in self.first

    def members(self, clock: int) -> list[int]:
        """Workers that take part in a clock, by number."""
        return [worker for worker in range(self.workers) if self._takes_part(worker, clock)]

    def _takes_part(self, worker: int, clock: int) -> bool:
        if any(first <= clock < end for first, end in self.spans.get(worker, ())):
            return True
        first = self.first.get(worker)
        return first is not None and first <= clock < min(end_clock(self._seed, self._plan, worker), self.saying_bye.get(worker, FAR))

    def last_clock(self) -> int:
        """The most clocks that anybody does."""
        ends = [self.saying_bye.get(worker, end_clock(self._seed, self._plan, worker)) for worker in self.first]
        return max(ends + [end for spans in self.spans.values() for _, end in spans])
