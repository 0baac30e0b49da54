"""A close on its way through the ranges of one server, in turns, so that the first answers travel while the rest steps.

Owns which ranges are still to be asked and which have closed; the node asks them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from ..core.effects import Send
from ..wire.messages import Close, CloseAck
from .hosted import Hosted
from .range import RangeMachine


class Closing:
    """One Close for all ranges of a job here; `sender` gets one ack for those that have closed it."""

    def __init__(self, hosted: Hosted, sender: str, close: Close) -> None:
        self.hosted = hosted
        self._sender = sender
        self._close = close
        self._left = deque(hosted.ranges)
        self._closed: list[int] = []
        self._at: RangeMachine | None = None  # in the middle of its close

    def go_on(self, budget_bytes: int, emit: Callable[[list[Any]], None], now_us: int) -> int:
        """Ask ranges until the budget is used up; returns what is left of it.  At least one range is asked."""
        while self._left or self._at is not None:
            if self._at is not None:
                held = self._at
                emit(held.go_on())
            else:
                known = self.hosted.ranges.get(self._left.popleft())
                if known is None:
                    continue
                held = known
                if held.closed == self._close.clock:
                    budget_bytes -= held.closing_bytes(self._close.clock)
                emit(held.on_message(self._sender, self._close, now_us))
            self._at = held if held.suspended else None
            if self._at is not None:
                return 0
            if held.closed > self._close.clock:
                self._closed.append(held.number)
            if budget_bytes <= 0:
                break
        return budget_bytes

    @property
    def suspended(self) -> bool:
        """A range is in the middle of its close."""
        return self._at is not None

    @property
    def over(self) -> bool:
        return not self._left and self._at is None

    def ack(self) -> list[Any]:
        if not self._closed:
            return []
        close = self._close
        epoch, token = close.epoch, self.hosted.token
        return [Send(self._sender, CloseAck(close.job, epoch, token, close.clock + 1, tuple(self._closed)))]
