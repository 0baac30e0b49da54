"""Calls each server back once, from where the master is: a closed port is told with both ends, before agents wait in vain.

Owns a thread that waits for connections.  Sends nothing, and decides nothing: what was found is fed to the machine.
"""

from __future__ import annotations

import contextlib
import queue
import threading

import zmq

from ..core.addresses import parse_tcp
from ..core.errors import PlugmlError
from ..runtime.hosts import local_end
from ..runtime.keys import Trust
from ..runtime.node import Node
from ..runtime.sockets import proven_caller
from .effects import Reach, Unreached

WAIT_MS = 5_000
ASKED_MAX = 8_192  # remembered by name: a server is called once, however often it registers


class CallBack:
    """Performs `Reach`, one after the other."""

    def __init__(self, node: Node, trust: Trust) -> None:
        self._node = node
        self._trust = trust
        self._asked: set[str] = set()
        self._queue: queue.SimpleQueue[Reach] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        node.performers[Reach] = self

    def __call__(self, effect: Reach) -> None:
        if effect.node in self._asked:
            return
        if len(self._asked) >= ASKED_MAX:
            self._asked.clear()
        self._asked.add(effect.node)
        self._queue.put(effect)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="call-back", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while True:
            effect = self._queue.get()
            trouble = cannot_reach(self._node.name, effect.node, effect.endpoint, self._trust)
            if trouble:
                with contextlib.suppress(RuntimeError):  # the loop is closed: this process ends
                    self._node.loop.call_soon_threadsafe(self._node.feed, "", Unreached(effect.node, trouble))


def cannot_reach(us: str, node: str, endpoint: str, trust: Trust, wait_ms: int = WAIT_MS) -> str:
    """Why no connection to `node` comes about, with both ends, "" if one does; with keys, they are tried too."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.DEALER)
    try:
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.IMMEDIATE, 1)  # so that it can send only once hands are shaken
        socket.set(zmq.IPV6, int("[" in endpoint))
        proven_caller(socket, us, node, endpoint, trust)
        socket.connect(endpoint)
        if socket.poll(wait_ms, zmq.POLLOUT):
            return ""
        address = parse_tcp(endpoint)
        here = local_end(address.host, address.first)
        return f"{us} at {here} cannot reach it at {endpoint}: is the port open to other hosts" + (", and has it the key of the roster?" if trust.keys else "?")
    except (zmq.ZMQError, PlugmlError) as error:
        return f"{us} cannot reach it at {endpoint}: {error}"
    finally:
        socket.close(linger=0)
        context.term()
