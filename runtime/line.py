"""One peer of a network: the socket that leads to it, and what leaves for it together.

Knows neither messages nor other peers; the network decides when something is sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import zmq

from ..wire.messages import Buffer
from .lent import Queue

Socket = zmq.Socket[bytes]


class Line:
    """One peer: the socket that leads to it, how that is read, and what waits for the peer."""

    __slots__ = ("name", "socket", "read", "prefix", "endpoint", "queue", "waiting", "away", "full", "bad", "batch", "batch_bytes", "batched")

    def __init__(self, name: str, socket: Socket, read: Callable[[], None], prefix: bytes, endpoint: str = "") -> None:
        self.name = name
        self.socket = socket
        self.read = read
        self.prefix = prefix  # the identity frame in front, for our ROUTER
        self.endpoint = endpoint  # of a node that we call
        self.queue = Queue()
        self.batch: list[Buffer] = []  # frames of small messages that leave together
        self.batch_bytes = self.batched = 0
        self.waiting: deque[tuple[list[Buffer], int, int]] | None = None  # until the first connection
        self.away = self.full = self.bad = False  # as the log was last told


def identity_of(frame: zmq.Frame) -> str:
    """Name that the other end of the connection gave in its handshake, "" if none."""
    try:
        return str(frame.get("Identity"))
    except (zmq.ZMQError, UnicodeDecodeError):
        return ""
