"""What a request gets back: one read of what it wants, as far as the consistency of its tables allows, into `param`.

Owns the gate: how many clocks must be closed, and how far the slowest member must have come.  Refuses to know pushes,
beyond which of them must be visible.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core.limits import Limits
from ..shm_protocol.request import Request
from ..shm_protocol.rows import Rows
from ..wire import messages as m
from .landing import Landing
from .router import Job
from .sparse import cut_pull
from .transfer import Gather, Stream


class Fetch:
    """One read of one request by a worker in `clock`.  Raises `RequestError` for more rows than fit into messages."""

    __slots__ = ("job", "stream", "clock", "slowest", "gather", "landing", "empty", "gate_seen")

    def __init__(
        self, job: Job, stream: Stream, channel: str, number: int, request: Request, clock: int, wants: tuple[Rows, ...],
        pushed: tuple[int, ...], limits: Limits,
    ) -> None:  # fmt: skip
        plan = job.plan
        assert plan is not None
        self.job = job
        self.stream = stream
        self.clock = clock
        dense = request.takes_dense
        gate = plan.gate_of(dense, [section.table for section in request.sections if section.want])
        parts, wanted = cut_pull(plan, wants, dense, limits, stream.cuts)
        self.empty = not parts
        self.slowest = gate.slowest(clock)  # nothing is asked before
        self.gather = Gather(job, number, stream.worker, stream.gen, parts, gate.closed(clock), limits.window_bytes)
        if gate.own:
            self.gather.after = {**stream.prev, **dict.fromkeys(pushed, request.seq)}
        self.landing = Landing(channel, plan, dense, wanted, request.text)
        self.gate_seen = False

    def pump(self) -> list[Any]:
        return self.gather.pump() if self.gather.unsent and self.job.slowest >= self.slowest else []

    @property
    def gate_open(self) -> bool:
        """As far as we know, the values that we wait for may be read."""
        return self.job.closed >= self.gather.closed and self.job.slowest >= self.slowest

    @property
    def done(self) -> bool:
        """All values are here; who wants none waits for the others all the same."""
        return self.gather.done and (not self.empty or self.gate_open)

    def on_values(self, values: m.Values) -> list[Any] | None:
        """What is to be written; None if it is no news."""
        part = self.gather.on_values(values)
        if part is None:
            return None
        self.stream.base[values.range] = values.version
        return self.landing.take(part, values.payload)

    def resend(self, moved: frozenset[int] | None = None) -> list[Any]:
        return list(self.gather.resend(moved)) if self.gate_open else []

    def tables(self) -> Sequence[int]:
        """Numbers of the tables that were read."""
        plan = self.job.plan
        assert plan is not None
        if self.landing.dense and not self.landing.wanted:
            return plan.tables
        dense = list(plan.tables) if self.landing.dense else []
        return dense + [one.table.number for one in self.landing.wanted]
