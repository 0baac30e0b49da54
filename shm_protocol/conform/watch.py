"""What an onlooker hears of a conversation.  This one looks away; `observer.py` judges the program."""

from __future__ import annotations

from ...core.errors import RequestError
from ..request import Reply, Request


class Watch:
    """Each method is called by the agent's thread, at the moment that it names."""

    #: How long the agent waits before each answer, so that a touch that comes too early is seen.
    linger_s = 0.0

    def rang(self, adopted: bool) -> None:
        """A bell was heard, or another agent has adopted the channel."""

    def rang_for_nothing(self, line: bytes | None) -> None:
        """There is no new request in `cmd`: None = no whole line, else the one that was answered."""

    def took(self, seq: int, line: bytes) -> None:
        """A request was taken up."""

    def refused(self, seq: int, request: Request | None, error: RequestError, scripted: bool) -> None:
        """It is refused: because the script says so, or for what the program did."""

    def waits(self, seq: int, end: float) -> None:
        """The agent keeps the program waiting until then."""

    def again(self, seq: int) -> None:
        """AGAIN is answered next."""

    def answers(self, reply: Reply, request: Request | None, stale: bool) -> None:
        """The reply goes out next; `stale`: an old one has gone out before it."""

    def answered(self, reply: Reply) -> None:
        """It has gone out."""

    def repeated(self) -> None:
        """It has gone out once more."""
