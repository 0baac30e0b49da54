"""One question to a cluster's master, with patience: plain zmq, no event loop."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import zmq

from ..core.errors import Code, PeerError, RequestError, WorldError
from ..launch.discovery import ClusterFile
from ..launch.reach import admin_trust
from ..runtime.node import node_name
from ..runtime.sockets import proven_caller
from ..wire import codec
from ..wire.messages import Admin, AdminTold, NotLeader

RESEND_S = 0.5
UNDECIDED_S = 5.0  # a takeover is over by then
WAIT_SAID_S = 10.0
WAIT_S_MAX = 30.0  # a master that is started again needs a second or two


class Asker:
    """A connection to the masters.  `ask` gives a document or raises `RequestError` (the leading master's own words)."""

    def __init__(self, cluster: ClusterFile) -> None:
        self.cluster = cluster
        trust, name = admin_trust(cluster, os.environ), node_name("c0")
        self._keys = f", or it does not let in the admin's key in {trust.keys.directory}" if trust.keys is not None else ", or it wants keys" if trust.insecure else ""
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.set(zmq.IDENTITY, name.encode())
        self._socket.set(zmq.IMMEDIATE, 1)
        self._socket.set(zmq.RECONNECT_IVL, 10)
        self._socket.set(zmq.RECONNECT_IVL_MAX, 500)
        self._socket.set(zmq.LINGER, 0)
        self._request = 0
        for master, endpoint in cluster.masters.items():
            proven_caller(self._socket, name, master, endpoint, trust)
            self._socket.connect(endpoint)

    def __enter__(self) -> Asker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close(linger=0)
        self._context.term()

    def ask(self, verb: str, **arguments: Any) -> dict[str, Any]:
        """Sent again until it is answered: every verb of the master may be repeated."""
        self._request += 1
        frames = codec.encode(Admin(self._request, verb, arguments))
        start = led = time.monotonic()
        said = False
        while True:
            waited_s = time.monotonic() - start
            if time.monotonic() - led > UNDECIDED_S:
                raise WorldError(self._undecided())
            if waited_s > WAIT_S_MAX:
                raise WorldError(
                    f"the master of cluster {self.cluster.name} has not answered for {waited_s:.0f} s{self._keys}; "
                    f"its log is {self.cluster.logs / 'm0.log'}"
                )
            if waited_s > WAIT_SAID_S and not said:
                said = True
                print(f"plugml: waiting for the master of cluster {self.cluster.name} to answer", file=sys.stderr)
            for _ in self.cluster.masters:  # one to each: the socket takes them in turn
                if self._socket.poll(int(1000 * RESEND_S), zmq.POLLOUT):
                    self._socket.send_multipart(frames)
            told, leaders = self._answer(RESEND_S)
            if leaders != {""}:  # somebody leads, or nobody has said that nobody does
                led = time.monotonic()
            if told is None:
                continue
            if told.code != Code.OK:
                raise RequestError(Code(told.code), told.text)
            return told.document

    def ask_all(self, verb: str, **arguments: Any) -> dict[str, Any]:
        """The same for an answer in pages: lists are put together."""
        whole: dict[str, Any] = {}
        after = 0
        while after >= 0:
            page = self.ask(verb, after=after, **arguments)
            for key, value in page.items():
                whole[key] = [*whole.get(key, ()), *value] if isinstance(value, (list, tuple)) else value
            after = whole.pop("next", -1)
        return whole

    def _undecided(self) -> str:
        return (
            f"the masters of cluster {self.cluster.name} cannot decide: none of {', '.join(self.cluster.masters)} leads, for their etcd does not "
            "say what it has stored (are most of its members down?). Training goes on; jobs and workers wait to be admitted, and no death is noticed, "
            f"until it is back. Their logs are in {self.cluster.logs}"
        )

    def _answer(self, limit_s: float) -> tuple[AdminTold | None, set[str]]:
        """The answer to the newest question, if it comes in time, and who leads in the words of those who do not; the rest is dropped."""
        leaders: set[str] = set()
        end = time.monotonic() + limit_s
        while self._socket.poll(max(0, int(1000 * (end - time.monotonic())))):
            frames = self._socket.recv_multipart()
            try:
                message = codec.decode(frames)
            except PeerError:
                continue
            if isinstance(message, AdminTold) and message.request == self._request:
                return message, leaders
            if isinstance(message, NotLeader):
                leaders.add(message.leader)
        return None, leaders
