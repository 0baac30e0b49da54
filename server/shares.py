"""What part of a full step one push makes where pushes are applied as they come (ASP, SSP) and combined by mean.

The share is w / (sum of w over the members of the push's clock).  A worker weighs what its newest push to the table
weighed; one that has not pushed yet is taken to weigh the mean of the others.  One worker alone has the share 1.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..core.errors import Code, RequestError
from ..wire.messages import Component, Roster
from .contents import Holder


class Shares:
    """Members come from the roster; before the first one they are the workers 0 .. W - 1 of the job."""

    def __init__(self, workers: int) -> None:
        self.number = 0
        self._members: list[tuple[int, int, int]] = [(worker, 0, -1) for worker in range(workers)]  # worker, first, end
        self._weights: dict[int, dict[int, float]] = {}  # table -> worker -> weight of the newest push
        self._totals: dict[int, tuple[int, float]] = {}  # table -> (clock, sum), until a weight or the roster changes

    def take(self, roster: Roster) -> None:
        self.number = roster.number
        self._members = sorted((worker, first, end) for worker, _, first, end in roster.members)
        self._totals.clear()

    def share(self, table: int, component: Component, others: Sequence[Component] = ()) -> float:
        """0 when nobody weighs anything: then there is no step.  The push may still be refused: `note` it when it is taken.

        A sum of several pushes of one weight makes the step of one of them, with all that was pushed; `others` are the rest.
        """
        weights = self._weights.get(table, {})
        if others:
            total = self._total({**weights, **{other.worker: other.weight for other in (component, *others)}}, component, others)
        elif weights.get(component.worker) != component.weight:
            total = self._total({**weights, component.worker: component.weight}, component)
        else:
            clock, total = self._totals.get(table, (-1, 0.0))
            if clock != component.clock:
                total = self._total(weights, component)
                self._totals[table] = (component.clock, total)
        return component.weight / total if total > 0.0 else 0.0

    def note(self, table: int, component: Component) -> None:
        """The push was taken: from here on its worker weighs this."""
        weights = self._weights.setdefault(table, {})
        if weights.get(component.worker) != component.weight:
            weights[component.worker] = component.weight
            self._totals.pop(table, None)

    def _total(self, weights: dict[int, float], component: Component, others: Sequence[Component] = ()) -> float:
        """Sum of the weights of the members of the clock; a pusher counts even if the roster came too late."""
        clock = component.clock
        workers = [worker for worker, first, end in self._members if first <= clock and (end < 0 or clock < end)]
        workers += [pusher.worker for pusher in (component, *others) if pusher.worker not in workers]
        seen = [weights[worker] for worker in workers if worker in weights]
        unseen = len(workers) - len(seen)
        return sum(seen) * (len(workers) / len(seen)) if unseen else sum(seen)


def check_sum(components: Sequence[Component], holders: Sequence[Holder]) -> None:
    """Whether several pushes may come as their sum, which has to do what they would do alone.  Raises `RequestError`."""
    if len({component[4:] for component in components}) > 1:
        raise RequestError(Code.RANGE, "a sum of pushes of different clocks or weights; send each alone")
    for holder in holders:
        name, optimizer = holder.spec.name, holder.spec.optimizer
        if not holder.staged and (holder.kernel.slots or optimizer == "assign"):  # two steps are not one with their sum
            raise RequestError(Code.RANGE, f"table {name!r} makes a step of {optimizer} with each push (ASP, SSP); send each alone, not their sum")
