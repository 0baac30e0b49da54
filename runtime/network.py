"""Messages to and from other nodes over zmq: one ROUTER where we are called, one DEALER for each node that we call.

Owns sockets, frames and the bytes that wait in them.  Refuses to know what a message means, and promises nothing about
its arrival: a peer that is away, slow or talks nonsense costs its own messages, never ours and never the process.

    Network.send -> DEALER -----------------> ROUTER of the peer      for nodes given to connect()
                 -> our ROUTER -------------> DEALER of the peer      else: an answer, by the name that it called with

Small messages of one turn to one peer travel as one multipart: a send costs more than what is in it.  They leave when
what lay ready was read, or at the end of the turn.

zmq's descriptor is edge-triggered, and a send or a receive may swallow its signal.  So a socket is read until it says
that it is empty: after every wake, and once per turn of the loop when it was sent on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import zmq

from ..core.errors import KeysError, PeerError, PlugmlError
from ..core.limits import Limits
from ..wire import codec
from ..wire.messages import Buffer, Message
from ..wire.roles import key_of_name, may_say
from .callers import Callers
from .gate import Gate
from .keys import NO_TCP, Trust
from .lent import Lent
from .line import Line, Socket, identity_of
from .sockets import LINGER_MS, Sockets

NO_COPY_BYTES = 256 << 10  # below this a copy costs less than handing the memory over and hearing when it is free
MESSAGES_A_TURN = 256
BATCH_MAX = 64  # messages in one multipart
WAITING_MAX = 64  # small messages that wait for the first connection to a node

_NOW, _MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)  # plain numbers: combining flags costs a microsecond

Deliver = Callable[[str, Message], None]


class Network:
    """The node's sockets.  `deliver(sender, message)` is called for each message, `log(event, **fields)` once per change."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        name: str,
        bind: str | None,
        deliver: Deliver,
        limits: Limits = Limits(),
        log: Callable[..., None] = lambda event, **fields: None,
        trust: Trust = NO_TCP,
    ) -> None:
        self.name = name
        self.endpoint = ""  # where we are called; a port of 0 is filled in
        self.sent = self.received = self.bytes_sent = self.bytes_received = 0
        self.away = self.full = self.refused = self.strangers = 0  # messages dropped, and why
        self._loop = loop
        self._deliver = deliver
        self._limits = limits
        self._log = log
        self._lent = Lent()
        self._dealers: dict[str, Line] = {}
        self._callers = Callers(name, None, strict=trust.keys is not None)
        self._reading: Socket | None = None
        self._batching: dict[str, Line] = {}  # peers with a batch
        self._touched: dict[Socket, Line] = {}  # sent on, and not read since
        self._unusable: dict[str, str] = {}  # nodes without a socket, perhaps only until there is a key
        self._trust = trust
        self._sockets = Sockets(name, limits, trust)
        self._context = self._sockets.context
        self._gate: Gate | None = None  # where keys are needed
        self._router = None if bind is None else self._listen(bind)

    # -- for the node's effects ---------------------------------------------------------------------------------------

    def send(self, to: str, message: Message) -> None:
        """Hand a message over.  What cannot go out now is dropped and counted: whoever cares asks again."""
        if to == self.name:
            self._loop.call_soon(self._deliver, to, message)
            return
        line = self._dealers.get(to) or self._callers.lines.get(to) or self._caller(to)
        if line is None:
            self.away += 1
            return

        frames = codec.encode(message)
        nbytes = sum([memoryview(frame).nbytes for frame in frames])
        if nbytes < NO_COPY_BYTES:
            self._add(line, frames, nbytes)
        else:
            self._send_long(line, frames, nbytes)

    def connect(self, node: str, endpoint: str) -> None:
        """From now on messages to `node` go to `endpoint`.  Small ones that are sent before it is up wait for it."""
        if node in self._dealers:
            return
        gate = self._gate_open() if self._sockets.is_proven(node, endpoint) else None
        try:
            socket = self._sockets.dealer(node, endpoint)
        except (zmq.ZMQError, KeysError) as error:  # no such address, no descriptor left, or no key
            why = str(error) if isinstance(error, KeysError) else error.strerror
            self._log("endpoint_unusable", peer=node, endpoint=endpoint, why=why)
            self._unusable[node] = endpoint
            return
        self._unusable.pop(node, None)
        line = Line(node, socket, lambda: None, b"", endpoint)
        line.read = partial(self._read_dealer, line)
        line.waiting = deque(maxlen=WAITING_MAX)
        self._dealers[node] = line
        self._loop.add_reader(socket.fileno(), line.read)
        if gate is not None:
            gate.watch(socket, node, partial(self._redial, line))

    def disconnect(self, node: str) -> None:
        """Forget the node and whatever still waits for it."""
        self._callers.lines.pop(node, None)
        self._batching.pop(node, None)
        self._unusable.pop(node, None)
        line = self._dealers.pop(node, None)
        if line is not None:
            self._shut(line.socket, 0)

    def is_lent(self, array: Any) -> bool:
        """True while a send still reads from this array: write to another one."""
        return self._lent.covers(array)

    def close(self, linger_ms: int = LINGER_MS) -> None:
        """Give what was sent a moment to leave, then be silent.  Nothing is delivered any more."""
        self._send_batches()
        for line in self._dealers.values():
            self._shut(line.socket, linger_ms)
        self._dealers.clear()
        self._callers.lines.clear()
        if self._router is not None:
            self._shut(self._router, linger_ms)
            self._router = None
        self._end()

    def counters(self) -> dict[str, int]:
        """For beats and status pages."""
        names = ("sent", "received", "bytes_sent", "bytes_received", "away", "full", "refused", "strangers")
        told = {f"net_{name}": getattr(self, name) for name in names}
        return told if self._gate is None else {**told, **self._gate.counters()}

    # -- sockets ------------------------------------------------------------------------------------------------------

    def _listen(self, endpoint: str) -> Socket:
        router = self._sockets.router()
        try:
            if self._sockets.is_guarded(endpoint):
                self._gate_open().watch(router)
                self._callers.gate = self._gate
            self.endpoint = self._sockets.listen(router, endpoint)
        except PlugmlError:
            self._shut(router, 0)
            self._end()
            raise
        self._loop.add_reader(router.fileno(), self._read_router)
        return router

    def _gate_open(self) -> Gate:
        if self._gate is None:
            assert self._trust.keys is not None
            self._gate = Gate(self._loop, self._context, self.name, self._trust.keys, self._log, self._on_keys)
        return self._gate

    def _on_keys(self, changed: set[str]) -> None:
        """Keys were made, taken away or made anew: no connection lives on that another key has opened."""
        self._callers.forget(changed)
        for node, line in tuple(self._dealers.items()):
            if key_of_name(node) in changed and self._sockets.is_proven(node, line.endpoint):
                self._redial(line)
        for node, endpoint in tuple(self._unusable.items()):
            if key_of_name(node) in changed:
                self.connect(node, endpoint)

    def _redial(self, line: Line) -> None:
        """Call the node by another socket; what waits for the connection waits on."""
        node, waiting = line.name, line.waiting
        self.disconnect(node)
        self.connect(node, line.endpoint)
        again = self._dealers.get(node)
        if again is not None and again.waiting is not None:
            again.waiting.extend(waiting or ())
            again.away = line.away  # so that its return is told

    def _end(self) -> None:
        if self._gate is not None:
            self._gate.close()
        self._context.destroy(linger=0)  # also what a fault has left open, for which `term` would wait without end

    def _shut(self, socket: Socket, linger_ms: int) -> None:
        self._touched.pop(socket, None)
        self._loop.remove_reader(socket.fileno())
        if self._gate is not None:
            self._gate.unwatch(socket)
        socket.close(linger=linger_ms)

    # -- sending ------------------------------------------------------------------------------------------------------

    def _add(self, line: Line, frames: list[Buffer], nbytes: int) -> None:
        """Put a small message behind those that leave for this peer anyway; its payload may be changed from here on."""
        if not self._batching and self._reading is None:
            self._loop.call_soon(self._send_batches)
        if len(line.batch) + len(frames) > self._limits.frames_max:
            self._send_batch(line)
        self._batching[line.name] = line
        line.batch.append(frames[0])
        line.batch += [bytes(frame) for frame in frames[1:]]
        line.batch_bytes += nbytes
        line.batched += 1
        if line.batch_bytes >= NO_COPY_BYTES or line.batched >= BATCH_MAX:
            self._send_batch(line)

    def _send_batches(self) -> None:
        while self._batching:
            _, line = self._batching.popitem()
            self._send_batch(line)

    def _send_batch(self, line: Line) -> None:
        frames, nbytes, count = line.batch, line.batch_bytes, line.batched
        if not count:
            return
        line.batch, line.batch_bytes, line.batched = [], 0, 0
        if line.waiting is not None:
            line.waiting.append((frames, nbytes, count))
            self._flush(line)
        else:
            self._send(line, frames, nbytes, count)

    def _send(self, line: Line, frames: list[Any], nbytes: int, count: int = 1) -> bool:
        """False: the peer is away, nothing was sent."""
        waits = line.queue.nbytes()
        if waits and waits + nbytes > self._limits.queue_bytes_max:
            self.full += count
            if not line.full:
                line.full = True
                self._log("peer_full", peer=line.name, bytes=waits)
            return True

        socket = line.socket
        self._touch(line)
        try:
            if line.prefix:
                socket.send(line.prefix, _MORE)
            self._send_frames(line, frames, nbytes)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            self._is_away(line, count)
            return False

        self.sent += count
        self.bytes_sent += nbytes
        if line.away or (line.full and waits < self._limits.queue_bytes_max // 2):
            line.away = line.full = False
            self._log("peer_back", peer=line.name)
        return True

    def _send_frames(self, line: Line, frames: list[Any], nbytes: int) -> None:
        """Once zmq has taken the first frame it takes, or drops, the others too: only the first can fail."""
        socket, last = line.socket, len(frames) - 1
        due = line.queue.wants_tracker(nbytes)
        tracker = None
        for number, frame in enumerate(frames):
            flags = _MORE if number < last else _NOW
            lend = number > 0 and memoryview(frame).nbytes >= NO_COPY_BYTES
            if not lend and not (due and number == last):
                socket.send(frame, flags)
                continue
            tracked = zmq.Frame(frame, track=True, copy=False, copy_threshold=0)
            socket.send(tracked, flags, copy=False)
            tracker = tracked.tracker
            if lend:
                self._lent.add(frame, tracker)
        line.queue.note(nbytes, tracker)

    def _send_long(self, line: Line, frames: list[Any], nbytes: int) -> None:
        """Behind what was said before, and never kept waiting; if the peer was not there yet, it may be by now."""
        self._send_batch(line)
        if line.waiting:
            self._flush(line)
        if not line.waiting and self._send(line, frames, nbytes):
            line.waiting = None
        elif line.waiting is not None:
            self.away += 1

    def _is_away(self, line: Line, count: int) -> None:
        if line.waiting is not None:
            return  # It was never there yet: no news.
        self.away += count
        if not line.away:
            line.away = True
            self._log("peer_away", peer=line.name)

    def _flush(self, line: Line) -> bool:
        """Send what waits for the first connection, which is up when zmq takes a message; whether it is."""
        while line.waiting:
            if not self._send(line, *line.waiting[0]):
                return False
            line.waiting.popleft()
        line.waiting = None
        return True

    def _caller(self, name: str) -> Line | None:
        """The way back to a node that calls us, None if nobody does."""
        return None if self._router is None else self._callers.line(name, self._router, self._read_router)

    def _touch(self, line: Line) -> None:
        if line.socket is self._reading:
            return
        if not self._touched:
            self._loop.call_soon(self._sweep)
        self._touched[line.socket] = line

    def _sweep(self) -> None:
        """Look after what the sends of this turn, and our looking, have swallowed the signal of: a message, a connection."""
        touched, self._touched = self._touched, {}
        for socket, line in touched.items():
            if not socket.closed and (int(socket.get(zmq.EVENTS)) & zmq.POLLIN or line.waiting):
                line.read()

    # -- receiving ----------------------------------------------------------------------------------------------------

    def _read_router(self) -> None:
        router = self._router
        if router is None:
            return
        for _ in range(MESSAGES_A_TURN):
            self._reading = router
            try:
                head = router.recv(_NOW, copy=self._callers.gate is None)
            except zmq.Again:
                if self._batching:
                    self._send_batches()  # on this very socket too, which may swallow a signal: look again
                    continue
                self._reading = None
                return
            frames = self._frames(router)
            sender = self._callers.sender(head)
            if sender:
                self._receive(sender, frames)
            else:
                self.strangers += 1
            if router.closed:
                break
        self._send_batches()
        self._reading = None
        self._loop.call_soon(self._read_router)

    def _read_dealer(self, line: Line) -> None:
        socket = line.socket
        if socket.closed:
            return
        for _ in range(MESSAGES_A_TURN):
            self._reading = socket
            try:
                head = socket.recv(_NOW, copy=False)
            except zmq.Again:
                if self._batching:
                    self._send_batches()
                    continue
                if line.waiting and self._flush(line):
                    continue  # what it sent may have swallowed the signal of an answer: look again
                self._reading = None
                return
            frames = self._frames(socket) if head.more else []
            # An endpoint outlives its process.  Who answers there after a restart is another node.
            if identity_of(head) == line.name:
                self._receive(line.name, [head.bytes, *frames])
            else:
                self.strangers += 1
            if socket.closed:
                break
        self._send_batches()
        self._reading = None
        self._loop.call_soon(line.read)

    def _frames(self, socket: Socket) -> list[Buffer]:
        """The rest of a message: its head, which is small, as bytes, and the payload as it lies."""
        frames: list[Buffer] = [socket.recv(_NOW)]
        more = socket.get(zmq.RCVMORE)
        while more:
            frame = socket.recv(_NOW, copy=False)
            more = frame.more
            if len(frames) <= self._limits.frames_max:
                frames.append(frame)
        return frames

    def _receive(self, sender: str, frames: list[Buffer]) -> None:
        """Deliver the messages of one multipart; one that is none takes those behind it along."""
        at = 0
        while at < len(frames):
            try:
                message, at = codec.decode_at(frames, at, self._limits)
            except PeerError as error:
                self._is_bad(sender, str(error))
                return
            if self._trust.keys is not None and not may_say(sender, message):
                self._is_bad(sender, f"a node of its role has no {type(message).__name__} to say")
                return
            self.received += 1
            self._deliver(sender, message)

    def _is_bad(self, sender: str, why: str) -> None:
        self.refused += 1
        line = self._dealers.get(sender) or self._callers.lines.get(sender) or self._caller(sender)
        if line is not None and not line.bad:
            line.bad = True
            self._log("peer_refused", peer=sender, why=why)
