"""Who gives the first values of a job: one stream at a time, each new one under a higher number.

A claim falls with its stream; what was given under one that has fallen is refused.  Knows neither values nor members.
"""

from __future__ import annotations

from typing import Any

from . import plain


class Claims:
    def __init__(self, offers: bool) -> None:
        self.initialised = 0  # claim whose first values are complete
        self.last = 0  # number of the last claim
        self._offers = offers  # some table takes first values
        self._claimer: tuple[int, int] | None = None  # the stream that holds it

    @property
    def is_free(self) -> bool:
        """Whether a stream that asks is given a claim."""
        return self._offers and not self.initialised and self._claimer is None

    def ask(self, worker: int, gen: int, here: bool) -> int:
        """The claim that the stream holds, 0 = none; a new one if nobody holds it."""
        stream = (worker, gen)
        if self.is_free and here:
            self.last += 1
            self._claimer = stream
        return self.last if self._claimer == stream and not self.initialised else 0

    def done(self, worker: int, gen: int, claim: int) -> bool:
        """Whether first values under this claim count: now, or before."""
        if claim == self.initialised:
            return True
        if self.initialised or claim != self.last or self._claimer != (worker, gen):
            return False
        self.initialised = claim
        return True

    def drop(self, worker: int) -> None:
        """The worker has another stream, or left."""
        if self._claimer is not None and self._claimer[0] == worker:
            self._claimer = None

    def rewind(self) -> None:
        """All incarnations are over."""
        self._claimer = None

    def state(self) -> tuple[Any, ...]:
        return (self.initialised, self.last, self._claimer)

    # -- copies

    def dump(self) -> dict[str, Any]:
        """Everything, as a plain document."""
        return {"initialised": self.initialised, "last": self.last, "claimer": self._claimer or ()}

    def load(self, meta: Any) -> None:
        """What a copy's document says, in place of what is here.  Raises `PeerError`."""
        self.last = plain.whole(plain.field(meta, "last"))
        self.initialised = plain.whole(plain.field(meta, "initialised"), 0, self.last)
        claimer = plain.listed(plain.field(meta, "claimer"))
        self._claimer = plain.pair(claimer) if claimer else None

    def check(self) -> None:
        assert self.initialised <= self.last
