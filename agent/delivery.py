"""What a request brings: its push to every range that it concerns, then its tick, or its leave, to the clock.

    Push to each range -> all acked -> Tick -> Standing that counts it
    Push to each range, Tick right behind them (where one server has everything: it rides) -> acks and Standing

Owns what is still owed by ranges and clock for this one request.  Refuses to know when to ask again and what the program
is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core.effects import Send
from ..core.errors import Code
from ..shm_protocol.request import Request
from ..wire import messages as m
from .channel import DENSE, Channel, combined, tables_of
from .plan import Part
from .router import Credits, Job, code_of
from .transfer import Buffer, Scatter, Stream


class Delivery:
    """`counted`: the channel has counted the request already, since it was accepted."""

    __slots__ = (
        "channel", "job", "stream", "request", "credits", "clock", "pushing", "ticking", "leaving", "counted", "parts", "buffer", "crc",
        "scatter", "clock_told", "ticked", "left", "refusal",
    )  # fmt: skip

    def __init__(self, channel: Channel, job: Job, stream: Stream, request: Request, credits: Credits, clock: int) -> None:
        self.channel = channel
        self.job = job
        self.stream = stream
        self.request = request
        self.credits = credits
        self.clock = clock
        self.pushing = request.pushes and request.verb != "init"
        self.ticking = request.verb in ("step", "clock")
        self.leaving = request.verb == "bye"
        self.counted = False
        self.parts: tuple[Part, ...] | None = None  # of the push, once it is read
        self.buffer: Buffer | None = None  # its dense numbers
        self.crc = 0
        self.scatter: Scatter | None = None
        self.clock_told = False  # Tick or Leave is out
        self.ticked = False
        self.left = False
        self.refusal: tuple[Code, str] | None = None  # of a part of the push, by the first range that does not take it

    def load(self, parts: tuple[Part, ...], buffer: Buffer | None, crc: int) -> None:
        """The push has been read, found good, and cut."""
        self.parts, self.buffer, self.crc = parts, buffer, crc

    # -- walking on

    def pump(self, owner: Any) -> list[Any]:
        """Push, and once every part is acked the tick; where one server has it all, the tick rides behind the push."""
        effects: list[Any] = []
        if self.pushing and self.scatter is None:
            request, plan = self.request, self.job.plan
            assert plan is not None and self.parts is not None
            names = [section.table for section in request.sections]
            if not self.job.takes_pushes_of(self.clock, plan.gate_of(request.takes_dense, names)):
                return []
            self.scatter = Scatter(self.job, self.stream, request.seq, self.clock, request.weight, self.buffer, self.parts, self.credits)
        if self.scatter is not None:
            if self.scatter.unsent:
                effects += self.scatter.pump(owner)
            if not self.scatter.done and not (self.job.one_home and self.scatter.at_once):
                return effects
        if self.ticking and not self.clock_told:
            self.clock_told = True
            effects += self._tick()
        return effects

    def pump_leave(self) -> list[Any]:
        if self.clock_told:
            return []
        self.clock_told = True
        return list(self._leave())

    @property
    def sent(self) -> bool:
        """Nothing of the push is held back any more: what is pulled beside it may be asked for."""
        return not self.pushing or (self.scatter is not None and self.scatter.sent)

    @property
    def begun(self) -> bool:
        """Others may have heard of it."""
        return self.scatter is not None or self.clock_told

    @property
    def pushed(self) -> bool:
        """Every range has its part."""
        return self.scatter is not None and self.scatter.done and self.refusal is None

    @property
    def carried(self) -> bool:
        """All of it is where it belongs."""
        return (self.pushed or not self.pushing) and (self.ticked or not self.ticking)

    def release(self) -> None:
        """Let go of what was read: the channel's buffers are used again when nobody has any of them."""
        self.parts = self.buffer = self.scatter = None

    def tables(self) -> Sequence[int]:
        """Numbers of the tables that take part."""
        plan = self.job.plan
        found: list[int] = []
        assert plan is not None
        if not self.request.sections:
            return plan.tables
        for name in tables_of(self.request):
            found += plan.tables if name == DENSE else (plan.sparse[name].number,)
        return found

    # -- answers

    def on_standing(self, standing: m.Standing) -> bool:
        """The clock speaks of our worker; tells whether it has counted our tick just now."""
        if self.clock_told and self.leaving and standing.end >= 0:
            self.left = True
        if self.clock_told and self.ticking and standing.finished > self.clock and not self.ticked:
            self.ticked = True
            return True
        return False

    def on_refuse(self, refuse: m.Refuse) -> bool:
        """Tells whether it is about the push, which has failed then: once all that were sent their parts have answered."""
        if self.scatter is None or not refuse.seq:
            return False
        self.scatter.on_refuse(refuse.range)
        self.refusal = self.refusal or (code_of(refuse.code), refuse.text)
        return True

    def failed(self) -> tuple[Code, str] | None:
        """Why the push has failed, and what of it was taken all the same; None while that is not known yet."""
        if self.refusal is None or self.scatter is None or not self.scatter.done:
            return None
        code, text = self.refusal
        held = len(self.scatter.held)
        return (code, f"{text}; {held} other parts of this push had been taken") if held else self.refusal

    def held(self) -> tuple[str, ...]:
        """Tables of which some range holds its part of a push that others have not: it counts for those, as zeros where it was refused."""
        if self.scatter is None or self.pushed and self.refusal is None:
            return ()
        plan, numbers = self.job.plan, set().union(*(part.tables for part in self.scatter.held))
        assert plan is not None
        return tuple(name for name in tables_of(self.request) if (numbers & set(plan.tables) if name == DENSE else plan.sparse[name].number in numbers))

    def resend(self, moved: frozenset[int] | None = None) -> list[Any]:
        """To ranges: all of them, or those that have moved."""
        if self.scatter is None:
            return []
        effects = list(self.scatter.resend(moved))
        if self.scatter.again and not self.scatter.done:
            self.clock_told = False  # the tick no longer rides: it follows the acks
        return effects

    def resend_to_clock(self) -> list[Any]:
        if self.owed_by_clock:
            return list(self._tick() if self.ticking else self._leave())
        return []

    @property
    def owed_by_clock(self) -> bool:
        """The clock owes us an answer which depends on nobody else."""
        return self.clock_told and not (self.ticked or self.left)

    def give_up(self) -> None:
        if self.scatter is not None:
            self.scatter.give_up()

    # -- messages to the clock

    def _tick(self) -> list[Send]:
        channel, plan, scatter = self.channel, self.job.plan, self.scatter
        assert plan is not None
        token = scatter.token if scatter is not None else 0
        rides = (0, ()) if scatter is None or scatter.done else (scatter.seq, tuple(part.range for part in scatter.parts))
        crc = combined(channel.crc, self.crc)
        return self.job.to_clock(m.Tick, channel.worker, channel.gen, self.clock, self._weights(), *rides, crc, token=token)

    def _weights(self) -> tuple[tuple[int, float], ...]:
        """Of this clock's pushes, by table."""
        plan, sums = self.job.plan, self.channel.sums
        assert plan is not None
        if self.pushing and not self.counted:
            sums = dict(sums)
            for name in tables_of(self.request):
                sums[name] = sums.get(name, 0.0) + self.request.weight
        weights: list[tuple[int, float]] = []
        for name, weight in sums.items():
            if weight:
                weights += [(number, weight) for number in (plan.tables if name == DENSE else (plan.sparse[name].number,))]
        return tuple(sorted(weights))

    def _leave(self) -> list[Send]:
        channel = self.channel
        reason = "lost" if channel.piece_owed else "bye"  # a piece that its program never saw goes to somebody else
        return self.job.to_clock(m.Leave, channel.worker, channel.gen, channel.clock, reason)
