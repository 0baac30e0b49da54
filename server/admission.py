"""Whether a push may be taken at all, its numbers aside.  Each rule raises `RequestError` with a sentence.

Looks at what the range has applied, so that it says the same on every copy; knows neither the log nor who asks.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..core.errors import Code, RequestError
from ..core.limits import Limits
from ..wire.messages import Component
from .contents import Holder
from .staging import Staging

WEIGHT_MAX = 2.0**53


def check_push(components: Sequence[Component], holders: Sequence[Holder], staged: bool, closed: int, staging: Staging, limits: Limits) -> None:
    """`holders` are the blocks and buckets that it is for; `staged`: some of it waits for its clock's close."""
    for component in components:
        if component.worker >= limits.workers_max:
            raise RequestError(Code.RANGE, f"worker {component.worker}; from 0 to {limits.workers_max - 1}")
        if not 0.0 <= component.weight <= WEIGHT_MAX:  # NaN fails too
            raise RequestError(Code.RANGE, f"weight {component.weight} of the push; use a number from 0 to 2^53")
        if component.clock < 0:
            raise RequestError(Code.RANGE, f"clock {component.clock} of the push is below 0")
        if staged:
            _check_staged(component, closed, staging, limits.staged_max)
    if len(components) > 1:
        _check_sum(components, holders)


def _check_staged(component: Component, closed: int, staging: Staging, most: int) -> None:
    if component.clock < closed:
        raise RequestError(Code.SEQ, f"clock {component.clock} is closed already; {closed} is the next one to close")
    if staging.count(component) >= most:
        text = f"worker {component.worker} pushed more than {most} times in clock {component.clock}"
        raise RequestError(Code.RANGE, f"{text}; end the clock more often, or add the pushes up before sending them")


def _check_sum(components: Sequence[Component], holders: Sequence[Holder]) -> None:
    """Several pushes may come as their sum if that does what they would do alone."""
    if len({component[4:] for component in components}) > 1:
        raise RequestError(Code.RANGE, "a sum of pushes of different clocks or weights; send each alone")
    for holder in holders:
        name, optimizer = holder.spec.name, holder.spec.optimizer
        if not holder.staged and (holder.kernel.slots or optimizer == "assign"):  # two steps are not one with their sum
            raise RequestError(Code.RANGE, f"table {name!r} makes a step of {optimizer} with each push (ASP, SSP); send each alone, not their sum")
