"""Whether the compiled part for rows is there, and what came for sparse jobs before it was.

It is brought in when the first such job is hosted: the import takes half a second, or some seconds where nothing is
cached, and a server without sparse tables never pays for it.  What comes meanwhile is kept in order, so that nobody's
first push waits for a resend; what does not fit is dropped, as if the network had lost it: agents ask again.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from ..core.limits import Limits
from .effects import WarmUp
from .waiting import Waiting


class State(Enum):
    COLD = "nobody needs it"
    ASKED = "on its way"
    WARM = "there"
    BROKEN = "it cannot be had"


class Warmth:
    def __init__(self, limits: Limits) -> None:
        self.state = State.COLD
        self.problem = ""
        self.waiting = Waiting(limits)

    @property
    def warm(self) -> bool:
        return self.state is State.WARM

    def wanted(self) -> list[Any]:
        """A job with a sparse table is here."""
        if self.state is not State.COLD:
            return []
        self.state = State.ASKED
        return [WarmUp()]

    def came(self, problem: str) -> list[tuple[str, Any]]:
        """It is there, or never will be; returns what waited, in order."""
        self.state = State.BROKEN if problem else State.WARM
        self.problem = problem
        return self.waiting.take()

    def check(self) -> None:
        assert self.state is State.ASKED or not self.waiting, "messages wait for nothing"
        self.waiting.check()
