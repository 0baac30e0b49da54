"""Simulated sockets: every message is encoded, may be lost, doubled, delayed, reordered or cut off, and is decoded.

Keeps to what the runtime's network does: a connection leads to an *endpoint*, so a message for a dead incarnation
reaches its successor there, and an answer through the own ROUTER reaches only who is connected.  Payloads are taken by
reference: while an array is lent its bytes must not change, and `is_lent` says so to the machine that owns it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from plugml.core.errors import PeerError
from plugml.wire.codec import decode, encode
from plugml.wire.messages import Beat

from .world import Violation, World

if TYPE_CHECKING:
    from .process import Process

KEPT_MESSAGES = 64  # old messages that may come again


@dataclass(slots=True)
class Weather:
    """Rates of the network's faults; zero = never."""

    drop: float = 0.0
    double: float = 0.0
    corrupt: float = 0.0
    straggle: float = 0.0  # comes very late
    replay: float = 0.0  # an old message comes once more, perhaps to a restarted node
    lend: float = 1.0  # arrays sent without a copy
    delay_us: tuple[int, int] = (20, 400)
    straggle_us: tuple[int, int] = (1_000, 400_000)
    lent_us: tuple[int, int] = (0, 300)


@dataclass(slots=True)
class _Flight:
    """A message between two ids: the frames, copied once nobody may change them any more."""

    source: str  # endpoint of the sender
    target: str  # endpoint of the receiver
    only_for: str  # an answer through a ROUTER reaches this incarnation or nobody; "" = whoever is at the endpoint
    sender_name: str  # what the receiver is told
    kind: str
    frames: list[Any] = field(default_factory=list)


class Network:
    """All sockets of the cluster."""

    def __init__(self, world: World, weather: Weather) -> None:
        self.world = world
        self.weather = weather
        self.sent = 0
        self.beats: dict[str, dict[str, int]] = {}  # what each node said of itself last
        self.on_send: Callable[[Process, Any], None] = lambda process, message: None
        self.on_arrival: Callable[[Process, str, Any], None] = lambda process, sender, message: None
        self._bound: dict[str, Process] = {}  # endpoint -> process
        self._links: dict[str, dict[str, str]] = {}  # process name -> {node: endpoint}
        self._cuts: dict[tuple[str, str], int] = {}  # (source endpoint, target endpoint) -> until
        self._slow: dict[tuple[str, str], int] = {}
        self._lent: dict[str, list[tuple[int, int]]] = {}  # process name -> address ranges
        self._old: list[_Flight] = []

    # -- sockets

    def bind(self, process: Process) -> None:
        self._bound[process.endpoint] = process
        self._links[process.name] = {}
        self._lent[process.name] = []

    def unbind(self, process: Process) -> None:
        if self._bound.get(process.endpoint) is process:
            del self._bound[process.endpoint]
        self._links.pop(process.name, None)
        self._lent.pop(process.name, None)

    def connect(self, process: Process, node: str, endpoint: str) -> None:
        self._links[process.name][node] = endpoint

    def disconnect(self, process: Process, node: str) -> None:
        self._links[process.name].pop(node, None)

    def is_lent(self, process: Process, array: Any) -> bool:
        """True while a send without a copy still reads memory of this array."""
        lent = self._lent.get(process.name)
        if not lent:
            return False
        start, end = _span(array)
        return any(start < other_end and other_start < end for other_start, other_end in lent)

    # -- faults that last

    def cut(self, source: str, target: str, duration_us: int) -> None:
        """Nothing goes from one endpoint to the other (the way back stays open)."""
        self._cuts[source, target] = self.world.now_us + duration_us
        self.world.fault("cut", f"{source} -> {target} for {duration_us} us")

    def slow(self, source: str, target: str, duration_us: int) -> None:
        self._slow[source, target] = self.world.now_us + duration_us
        self.world.fault("slow path", f"{source} -> {target} for {duration_us} us")

    def heal(self) -> None:
        self._cuts.clear()
        self._slow.clear()
        self._old.clear()
        self.weather.drop = self.weather.double = self.weather.corrupt = 0.0
        self.weather.straggle = self.weather.replay = 0.0

    # -- a message on its way

    def send(self, process: Process, to: str, message: Any) -> None:
        """What a `Send` does.  Encoding happens here, so what the codec cannot carry shows."""
        frames = encode(message)
        if self.world.print_trace:
            self.world.note(process.name, f"-> {to}", message)
        self.sent += 1
        self.on_send(process, message)
        if type(message) is Beat:
            self.beats[process.name] = message.counters
        self.world.fold_bytes(frames[0])
        route = self._route(process, to)
        if route is None:
            self.world.note(process.name, "unreachable", to)
            return
        flight = _Flight(process.endpoint, *route, type(message).__name__, frames)
        if len(frames) > 1 and self.world.happens(self.weather.lend):
            self._lend(process, flight)
        else:
            flight.frames = [bytes(frame) for frame in frames]
            self._launch(flight)

    def _route(self, process: Process, to: str) -> tuple[str, str, str] | None:
        """(endpoint, only for whom, sender as the receiver sees it), or None where no socket leads there."""
        endpoint = self._links[process.name].get(to)
        if endpoint is not None:
            return endpoint, "", process.name
        for other in self._bound.values():
            if other.name != to:
                continue
            for node, reached in reversed(self._links[to].items()):  # the newest connection has taken the identity over
                if reached == process.endpoint:
                    return other.endpoint, to, node  # our ROUTER answers; there it comes out of the DEALER to `node`
        return None

    def _lend(self, process: Process, flight: _Flight) -> None:
        """Keep the payload by reference for a while, then look whether somebody wrote into it."""
        spans = [_span(frame) for frame in flight.frames[1:]]
        sums = [crc32(frame) for frame in flight.frames[1:]]
        self._lent[process.name].extend(spans)
        self.world.after(self.world.draw(*self.weather.lent_us), self._sent, process, process.name, flight, spans, sums)

    def _sent(self, process: Process, name: str, flight: _Flight, spans: list[tuple[int, int]], sums: list[int]) -> None:
        if not process.alive or process.name != name:
            return  # its memory went with it
        for span in spans:
            self._lent[name].remove(span)
        if [crc32(frame) for frame in flight.frames[1:]] != sums:
            raise Violation(f"{name} wrote into an array that was lent to a {flight.kind} on its way to {flight.target}")
        flight.frames = [bytes(frame) for frame in flight.frames]
        self._launch(flight)

    def _launch(self, flight: _Flight) -> None:
        weather, world = self.weather, self.world
        if self._cuts.get((flight.source, flight.target), 0) > world.now_us:
            world.note("network", "cut off", flight.kind)
            return
        if world.happens(weather.drop):
            world.fault("drop", f"{flight.kind} to {flight.target}")
            return
        self._fly(flight)
        if world.happens(weather.double):
            world.fault("double", f"{flight.kind} to {flight.target}")
            self._fly(flight)
        if weather.replay:
            self._keep_or_replay(flight)

    def _fly(self, flight: _Flight) -> None:
        weather, world = self.weather, self.world
        delay = world.draw(*weather.delay_us)
        if self._slow.get((flight.source, flight.target), 0) > world.now_us:
            delay *= 40
        if world.happens(weather.straggle):
            world.fault("straggler", f"{flight.kind} to {flight.target}")
            delay += world.draw(*weather.straggle_us)
        world.after(delay, self._arrive, flight)

    def _keep_or_replay(self, flight: _Flight) -> None:
        world = self.world
        if len(self._old) < KEPT_MESSAGES:
            self._old.append(flight)
        else:
            self._old[world.draw(0, KEPT_MESSAGES - 1)] = flight
        if world.happens(self.weather.replay):
            old = self._old[world.draw(0, len(self._old) - 1)]
            world.fault("replay", f"{old.kind} to {old.target}")
            self._fly(old)

    def _arrive(self, flight: _Flight) -> None:
        process = self._bound.get(flight.target)
        if process is None or (flight.only_for and flight.only_for != process.name):
            return
        # Each delivery has memory of its own, as received frames have: what one receiver does to it nobody else sees.
        frames = [flight.frames[0], *(bytearray(frame) for frame in flight.frames[1:])]
        if self.world.happens(self.weather.corrupt):
            self._corrupt(flight)
            return
        message = decode(frames)
        self.on_arrival(process, flight.sender_name, message)
        process.feed(flight.sender_name, message)

    def _corrupt(self, flight: _Flight) -> None:
        """Flip a bit of the head: the receiver must see it, drop the message and go on."""
        head = bytearray(flight.frames[0])
        at = self.world.draw(0, len(head) - 1)
        head[at] ^= 1 << self.world.draw(0, 7)
        self.world.fault("flipped bit", f"{flight.kind} at byte {at}")
        try:
            decode([head, *flight.frames[1:]])
        except PeerError:
            return
        raise Violation(f"the codec took a {flight.kind} whose byte {at} was changed")


def _span(buffer: Any) -> tuple[int, int]:
    """First and last address of a buffer's memory."""
    array = buffer if isinstance(buffer, np.ndarray) else np.frombuffer(buffer, np.uint8)
    start = int(array.__array_interface__["data"][0])
    return start, start + array.nbytes
