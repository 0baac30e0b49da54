"""Whoever speaks to the masters from outside: of processes that have ended, and the orders of people.

Asks the master that it believes to lead, and again until that one has answered.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from plugml.core.effects import Connect, Send
from plugml.core.lead import Lead
from plugml.core.limits import Limits
from plugml.wire.messages import Admin, AdminTold, Done, NodeExit, NotLeader

from .world import Violation


class Watched(NamedTuple):
    """A watched process has ended."""

    node: str
    status: int


class Order(NamedTuple):
    """Somebody has typed a command."""

    verb: str
    arguments: dict[str, Any]


class Supervisor:
    """A machine as small as the real one's word with the masters."""

    def __init__(self, limits: Limits, masters: dict[str, str]) -> None:
        self.answers: dict[int, tuple[Order, AdminTold]] = {}
        self._limits = limits
        self._lead = Lead(masters, limits)
        self._asked: dict[int, Any] = {}
        self._orders: dict[int, Order] = {}
        self._number = 0
        self._due_us: int | None = 0
        self._connected = False

    def on_message(self, sender: str, message: Any, now_us: int) -> list[Any]:
        if isinstance(message, Watched):
            self._ask(NodeExit(self._number + 1, message.node, message.status), now_us)
        elif isinstance(message, Order):
            self._orders[self._number + 1] = message
            self._ask(Admin(self._number + 1, message.verb, message.arguments), now_us)
        elif isinstance(message, (Done, AdminTold)):
            self._lead.heard(sender, self._lead.term, now_us)
            self._asked.pop(message.request, None)
            if isinstance(message, AdminTold):
                self._answered(message)
        elif isinstance(message, NotLeader):
            if self._lead.refused(sender, message.term, message.leader):
                self._due_us = now_us
        return []

    def _ask(self, message: Any, now_us: int) -> None:
        self._number += 1
        self._asked[self._number] = message
        self._due_us = now_us

    def _answered(self, told: AdminTold) -> None:
        order = self._orders.pop(told.request, None)
        if order is not None:
            if told.code and not told.text:
                raise Violation(f"the order {order} was refused without a word")
            self.answers[told.request] = (order, told)

    def on_time(self, now_us: int) -> list[Any]:
        effects: list[Any] = []
        if not self._connected:
            self._connected = True
            effects += [Connect(master, endpoint) for master, endpoint in self._lead.masters.items()]
        if self._asked:
            self._lead.asked(now_us)
        self._due_us = now_us + self._limits.resend_us if self._asked else None
        return [*effects, *(Send(self._lead.master, message) for message in self._asked.values())]

    def deadline_us(self) -> int | None:
        return self._due_us

    def check(self) -> None:
        return

    def digest(self) -> int:
        return len(self._asked)
