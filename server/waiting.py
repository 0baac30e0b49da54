"""Messages that have come too early: kept in order until what they wait for is there, as many as there is room for.

More are dropped, as if the network had lost them: agents and clocks ask again.
"""

from __future__ import annotations

from typing import Any

from ..core.limits import Limits
from ..wire.messages import Init, Pull, Push


class Waiting:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._kept: list[tuple[str, Any]] = []
        self._kept_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._kept)

    def keep(self, sender: str, message: Any) -> None:
        """If there is room for it."""
        nbytes = sum(memoryview(buffer).nbytes for buffer in message.payload) if isinstance(message, (Push, Pull, Init)) else 0
        if len(self._kept) < self._limits.parked_max and self._kept_bytes + nbytes <= self._limits.window_bytes:
            self._kept.append((sender, message))
            self._kept_bytes += nbytes

    def take(self) -> list[tuple[str, Any]]:
        """All of them, in order."""
        kept, self._kept, self._kept_bytes = self._kept, [], 0
        return kept

    def check(self) -> None:
        assert len(self._kept) <= self._limits.parked_max and self._kept_bytes <= self._limits.window_bytes
