"""What an onlooker hears of a conversation.  This one looks away; `observer.py` judges the program."""

from __future__ import annotations

from ...core.errors import RequestError
from ..reading import Data
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

    def read(self, request: Request, data: Data) -> None:
        """Its data were read, and all is well with them."""

    def refused(self, seq: int, request: Request | None, line: bytes, error: RequestError, scripted: bool) -> None:
        """It is refused: because the script says so, or for what the program did.  No `request`: the line cannot be read."""

    def waiting(self, seq: int) -> None:
        """The program has been kept waiting for a while; it should sleep by now."""

    def waited(self, seq: int) -> None:
        """The end of that wait: the answer comes next."""

    def answers(self, reply: Reply, request: Request | None, stale: bool) -> None:
        """The reply goes out next; `stale`: an old one has gone out before it."""

    def sent(self, reply: Reply | None) -> None:
        """A record has gone out; None: one that the program has had already."""
