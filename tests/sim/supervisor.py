"""Whoever watches processes: tells the master of an end until the master says that it knows."""

from __future__ import annotations

from typing import Any, NamedTuple

from plugml.core.effects import Connect, Send
from plugml.core.limits import Limits
from plugml.wire.messages import Done, NodeExit

MASTER = "m0"


class Watched(NamedTuple):
    """A watched process has ended."""

    node: str
    status: int


class Supervisor:
    """A machine as small as the real one's word with the master."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._news: dict[int, NodeExit] = {}
        self._number = 0
        self._due_us: int | None = 0
        self._connected = False

    def on_message(self, sender: str, message: Any, now_us: int) -> list[Any]:
        if isinstance(message, Watched):
            self._number += 1
            self._news[self._number] = NodeExit(self._number, message.node, message.status)
            self._due_us = now_us
        elif isinstance(message, Done):
            self._news.pop(message.request, None)
        return []

    def on_time(self, now_us: int) -> list[Any]:
        self._due_us = now_us + self._limits.resend_us if self._news else None
        effects: list[Any] = [] if self._connected else [Connect(MASTER, f"ipc://{MASTER}")]
        self._connected = True
        return [*effects, *(Send(MASTER, news) for news in self._news.values())]

    def deadline_us(self) -> int | None:
        return self._due_us

    def check(self) -> None:
        return

    def digest(self) -> int:
        return len(self._news)
