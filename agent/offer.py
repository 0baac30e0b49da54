"""First values of tables with init=program or init=file: who may give them, giving them, saying so.

    ClaimAsk -> claim > 0: (files are read) -> Init to every range that holds such a table -> InitDone -> Standing
             -> claim 0:   another worker's values are, or will be, the first ones; asked again while we wait

Whoever may give them does it once, however often it is asked: a range takes the values of one claim only once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.effects import Send
from ..core.errors import Code, RequestError
from ..wire import messages as m
from . import effects as e
from .router import Credits, Job
from .transfer import Scatter, Stream

Buffer = Any


class Offer:
    """One stream's part in it.  `grad` holds the program's values, laid out like the file, if it gives any."""

    __slots__ = ("job", "stream", "channel", "credits", "grad", "claim", "asked", "reading", "values", "scatter", "said")

    def __init__(self, job: Job, stream: Stream, channel: str, credits: Credits, grad: Buffer | None) -> None:
        self.job = job
        self.stream = stream
        self.channel = channel
        self.credits = credits
        self.grad = grad
        self.claim = 0
        self.asked = False
        self.reading = False
        self.values: Buffer | None = None
        self.scatter: Scatter | None = None
        self.said = False  # InitDone is out

    def pump(self, owner: Any) -> list[Any]:
        """Whatever has become possible."""
        plan = self.job.plan
        assert plan is not None
        if self.job.ready:
            return []
        if not self.claim:
            if self.asked:
                return []
            self.asked = True
            return list(self._claim_ask())
        if self.values is None:
            return self._read(owner)
        effects: list[Any] = []
        if self.scatter is None:
            parts = tuple(part.only(plan.first_tables) for part in plan.parts)
            parts = tuple(part for part in parts if part.segments)
            self.scatter = Scatter(self.job, self.stream, 0, 0, 0.0, self.values, parts, self.credits, claim=self.claim)
        if self.scatter.unsent:
            effects += self.scatter.pump(owner)
        if self.scatter.done and not self.said:
            self.said = True
            effects += self._init_done()
        return effects

    def _read(self, owner: Any) -> list[Any]:
        plan = self.job.plan
        assert plan is not None
        if not plan.files:
            self.values = self.grad
            return self.pump(owner) if self.values is not None else []
        if self.reading:
            return []
        self.reading = True
        return [e.ReadFiles(self.channel, plan.nbytes, plan.files)]

    def on_files(self, buffer: Buffer) -> None:
        """The files' values, of the program's kinds of numbers; the program's own go beside them.  Raises `RequestError` RANGE."""
        plan = self.job.plan
        assert plan is not None
        values = np.zeros(plan.stored_nbytes, np.uint8)
        came = memoryview(buffer).cast("B")
        grad = None if self.grad is None else memoryview(self.grad).cast("B")
        for part in plan.parts:
            for place in part.slices:
                if grad is not None and place.table in plan.program_tables:
                    values[place.start : place.end] = np.frombuffer(grad[place.start : place.end], np.uint8)
                else:
                    values[place.start : place.end] = self._stored(came[place.offset : place.stop], place.table)
        self.values = values.data

    def _stored(self, frame: Buffer, table: int) -> Any:
        """A block of a file as servers keep it."""
        assert self.job.plan is not None
        mine, stored = self.job.plan.dtypes[table]
        if mine == stored:
            return np.frombuffer(frame, np.uint8)
        numbers = np.frombuffer(frame, mine)
        with np.errstate(over="ignore"):
            kept = numbers.astype(stored)
        if not np.array_equal(np.isfinite(kept), np.isfinite(numbers)):
            name = self.job.spec.tables[table].name
            raise RequestError(Code.RANGE, f"the init file of table {name} holds a number that {stored} cannot hold")
        return kept.view(np.uint8)

    def on_claim(self, told: m.ClaimTold) -> bool:
        if not self.asked or self.claim:
            return False
        self.claim = told.claim
        return True

    def owed_by_clock(self) -> bool:
        return self.said and not self.job.ready

    def resend_to_clock(self) -> list[Send]:
        return self._init_done() if self.owed_by_clock() else []

    def poll(self) -> list[Send]:
        """Perhaps whoever had the claim has left."""
        return self._claim_ask() if self.asked and not self.claim and not self.job.ready else []

    def give_up(self) -> None:
        if self.scatter is not None:
            self.scatter.give_up()

    def _init_done(self) -> list[Send]:
        return self.job.to_clock(m.InitDone, self.stream.worker, self.stream.gen, self.claim)

    def _claim_ask(self) -> list[Send]:
        return self.job.to_clock(m.ClaimAsk, self.stream.worker, self.stream.gen)
