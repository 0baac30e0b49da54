"""Who has called us: by which name, and the way back to each.

Owns names and lines of callers.  Refuses to read or to send; who has to prove a name is asked by the gate.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import zmq

from ..wire.roles import is_concerned, may_call
from .gate import Gate
from .line import Line, Socket

PEERS_MAX = 8_192  # remembered by name
_NAME = re.compile(rb"[a-z][a-z0-9]{0,15}(\.[0-9a-f]{8})?\Z")


class Callers:
    """The callers of one router.  `gate`: they must prove their names.  `strict`: only those whose role calls here."""

    def __init__(self, name: str, gate: Gate | None, strict: bool) -> None:
        self.lines: dict[str, Line] = {}
        self.gate = gate
        self._name = name
        self._strict = strict
        self._names: dict[bytes, str] = {}

    def sender(self, head: bytes | zmq.Frame) -> str:
        """Who calls, by the first frame of what came; "" if it is nobody that may."""
        if isinstance(head, bytes):
            return self._names.get(head) or self._name_of(head)
        assert self.gate is not None
        sender = self.gate.sender_of(head)
        line = self.lines.get(sender)
        if line is not None:
            line.prefix = self.gate.routes[sender]
        return sender

    def line(self, name: str, router: Socket, read: Callable[[], None]) -> Line | None:
        """The way back, None to who must have proven its name and has not."""
        prefix = name.encode() if self.gate is None else self.gate.routes.get(name)
        if prefix is None:
            return None
        if len(self.lines) >= PEERS_MAX:
            self.lines.clear()
        line = self.lines[name] = Line(name, router, read, prefix)
        return line

    def forget(self, changed: set[str]) -> None:
        """The keys of these ids are others now: who has called by the old ones has not proven anything."""
        self.lines = {name: line for name, line in self.lines.items() if not is_concerned(name, changed)}

    def _name_of(self, identity: bytes) -> str:
        """The node's name, "" if it is none (zmq gives a number of its own to who calls without a name)."""
        if not _NAME.match(identity) or (self._strict and not may_call(self._name, identity.decode())):
            return ""
        if len(self._names) >= PEERS_MAX:
            self._names.clear()
        name = self._names[identity] = identity.decode()
        return name
