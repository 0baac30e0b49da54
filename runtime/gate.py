"""The gate of a node that listens with keys: who is let in, who speaks under a name that is not his, who failed to shake hands.

Owns the ZAP socket by which zmq asks about each key, what watches the handshakes, the counts of the refused, and the
way back to each caller.  Refuses to know messages.

    the key of a caller     asked for by zmq when it connects (ZAP); then on each of its messages
    the name of a caller    stands in front of its identity, `a0.9f3a01c2/<32 digits>`, and must be one of its key's

Each refusal is counted, and told once for each one who is refused: a stranger who knocks all day fills no log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import zmq
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from ..wire.roles import CALLERS, MASTER, is_concerned, may_be, role_of_key, role_of_name
from .keys import Keys
from .line import Socket
from .sockets import DOMAIN

ZAP_ENDPOINT = "inproc://zeromq.zap.01"
REDIAL_S = 2.5  # for a connection that zmq has not made again by then
ROSTER_S = 2.0  # so often it is looked whether the roster has changed
ROUTES_MAX = 8_192  # the holder of one key may take as many names as it likes
TOLD_MAX = 256  # different refusals that are told
_NOW = int(zmq.NOBLOCK)
_FAILED = int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
_FAILED_AUTH = int(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
_SHAKEN, _PARTED = int(zmq.EVENT_HANDSHAKE_SUCCEEDED), int(zmq.EVENT_DISCONNECTED)
_WITHOUT_KEYS = (int(zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH), int(zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC))


@dataclass(slots=True, eq=False)
class Watched:
    """A socket, what tells of its handshakes, and the time at which it is given up."""

    socket: Socket
    monitor: Socket
    peer: str  # "" = our own callers
    redial: Callable[[], None]
    timer: asyncio.TimerHandle | None = None


class Gate:
    """`on_change(ids)` is called when the roster has changed; `log` once for each who is refused."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        context: zmq.Context[Socket],
        name: str,
        keys: Keys,
        log: Callable[..., None],
        on_change: Callable[[set[str]], None],
    ) -> None:
        self.keys_refused = self.names_refused = self.handshakes_failed = 0
        self.routes: dict[str, bytes] = {}  # name -> identity by which it called last
        self._loop = loop
        self._keys = keys
        self._log = log
        self._on_change = on_change
        self._callers = CALLERS.get(role_of_name(name), frozenset()) | {MASTER}  # which sees whether we can be reached
        self._told: set[tuple[str, ...]] = set()
        self._watched: dict[Socket, Watched] = {}
        self._trouble = ""
        self._zap = context.socket(zmq.REP)
        self._zap.set(zmq.LINGER, 0)
        self._zap.bind(ZAP_ENDPOINT)
        loop.add_reader(self._zap.fileno(), self._asked)
        self._timer = loop.call_later(ROSTER_S, self._look)

    def close(self) -> None:
        self._timer.cancel()
        for socket in tuple(self._watched):
            self.unwatch(socket)
        self._loop.remove_reader(self._zap.fileno())
        self._zap.close(linger=0)

    def counters(self) -> dict[str, int]:
        return {
            "keys_refused": self.keys_refused, "names_refused": self.names_refused, "handshakes_failed": self.handshakes_failed,
        }  # fmt: skip

    # -- who is let in ------------------------------------------------------------------------------------------------

    def _asked(self) -> None:
        """zmq asks whether the holder of a key may connect.  Every question is answered, or no other would come."""
        while True:
            try:
                frames = self._zap.recv_multipart(_NOW)
            except zmq.Again:
                return
            version, number, domain, address, _, mechanism, *rest = [*frames, *[b""] * 7][: max(7, len(frames))]
            public = z85.encode(rest[0]).decode() if mechanism == b"CURVE" and len(rest[0]) == 32 else ""
            why = self._why_not(public) if domain == DOMAIN else "the question is not of this cluster's sockets"
            if why:
                self.keys_refused += 1
                self._tell("key_refused", public, key=public, address=address.decode(errors="replace"), why=why)
            answer = (b"400", b"refused", b"") if why else (b"200", b"OK", public.encode())
            self._zap.send_multipart([version, number, *answer, b""])

    def _why_not(self, public: str) -> str:
        owner = self._keys.owner_of(public)
        if not owner:
            self._refresh()  # it may have been made a moment ago
            owner = self._keys.owner_of(public)
        if not owner:
            return "nobody of the roster has this key"
        if role_of_key(owner) not in self._callers:
            return f"it is the key of {owner}, and none of its kind has to call here"
        return ""

    def sender_of(self, frame: zmq.Frame) -> str:
        """The name of who called, by the first frame of what came: proven by its key, "" if it is not."""
        identity = frame.bytes
        name = identity.partition(b"/")[0].decode(errors="replace")
        owner = self._keys.owner_of(str(frame.get("User-Id")))
        if owner and may_be(owner, name):
            if self.routes.get(name) != identity:
                if len(self.routes) >= ROUTES_MAX:
                    self.routes.clear()  # whoever speaks again has one again
                self.routes[name] = identity
            return name
        self.names_refused += 1
        self._tell("name_refused", name[:32], owner, name=name[:32], key=owner or "of nobody in the roster any more")
        return ""

    # -- handshakes ---------------------------------------------------------------------------------------------------

    def watch(self, socket: Socket, peer: str = "", redial: Callable[[], None] = lambda: None) -> None:
        """Count the handshakes that fail.  A socket that calls `peer` is given up by zmq for good when it was refused, or
        somebody has tampered with what came: then it is time to `redial`, with another one."""
        monitor = socket.get_monitor_socket(_FAILED | (_FAILED_AUTH | _SHAKEN | _PARTED if peer else 0))
        monitor.set(zmq.LINGER, 0)
        watched = self._watched[socket] = Watched(socket, monitor, peer, redial)
        self._loop.add_reader(monitor.fileno(), self._happened, watched)
        self._loop.call_soon(self._happened, watched)  # what came before we listened

    def unwatch(self, socket: Socket) -> None:
        watched = self._watched.pop(socket, None)
        if watched is not None:
            self._is_up(watched)
            self._loop.remove_reader(watched.monitor.fileno())
            socket.disable_monitor()
            watched.monitor.close(linger=0)

    def _happened(self, watched: Watched) -> None:
        while not watched.monitor.closed:
            try:
                event = parse_monitor_message(watched.monitor.recv_multipart(_NOW))
            except zmq.Again:
                return
            kind, value = int(event["event"]), int(event["value"])
            if kind == _SHAKEN:
                self._is_up(watched)
            elif watched.peer and watched.timer is None:
                watched.timer = self._loop.call_later(REDIAL_S, watched.redial)
            if kind & (_FAILED | _FAILED_AUTH):
                self._has_failed(watched.peer, _words(kind, value, watched.peer))

    def _has_failed(self, peer: str, why: str) -> None:
        self.handshakes_failed += 1
        if peer:
            self._tell("refused_by", peer, why, peer=peer, why=why)
        else:
            self._tell("handshake_failed", why, why=why)

    @staticmethod
    def _is_up(watched: Watched) -> None:
        if watched.timer is not None:
            watched.timer.cancel()
            watched.timer = None

    # -- the roster ---------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        self._refresh()
        self._timer = self._loop.call_later(ROSTER_S, self._look)

    def _refresh(self) -> None:
        changed = self._keys.refresh()
        if self._keys.trouble != self._trouble:
            self._trouble = self._keys.trouble
            if self._trouble:
                self._log("roster_unusable", why=self._trouble)
        if changed:
            self._log("roster_changed", keys=" ".join(sorted(changed)))
            self.routes = {name: identity for name, identity in self.routes.items() if not is_concerned(name, changed)}
            self._on_change(changed)

    def _tell(self, event: str, *what: str, **fields: str) -> None:
        if len(self._told) < TOLD_MAX and (event, *what) not in self._told:
            self._told.add((event, *what))
            self._log(event, **fields)


def _words(kind: int, value: int, peer: str) -> str:
    if kind == _FAILED_AUTH:
        return "our key is none that it lets in: see that its roster has it"
    if kind == int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL):
        return "one end speaks without keys, or garbles them" if value in _WITHOUT_KEYS else f"it breaks the protocol (0x{value:x})"
    return "it has another key than our roster says, or the connection broke" if peer else "a caller that expects another key than ours, or broke off"
