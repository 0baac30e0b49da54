"""A daemon: loop, signals, log, readiness, network and driver put together, for one machine.

Owns how a node starts and how it ends.  Refuses to know what the machine does; a shell hands in a function that makes
it, and performers for the effects that are the shell's own.

    exit code   0 told to end (SIGTERM, SIGINT)   as the machine's Stop said   as the error said (no space, port taken)
                70 an exception that nobody expected: the log has the traceback and the last events
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import os
import random
import signal
import socket
import time
import traceback
from collections.abc import Callable
from typing import Any

import uvloop

from ..core.effects import Connect, Disconnect, Log, Machine, Send, Stop
from ..core.errors import PlugmlError
from ..core.limits import Limits
from ..wire.messages import Beat
from .descriptors import raise_limit
from .driver import Driver, Performer
from .keys import NO_TCP, Trust, check_library
from .log import LogFile
from .memory import keep_freed_memory
from .network import Network
from .sockets import LINGER_MS

EXIT_CRASH = 70
NOTIFY_S_MAX = 5.0  # for a supervisor that reads slowly; one that stands still must not hold us up


def node_name(id_: str) -> str:
    """The name of a new incarnation of node `id_`: `s0` -> `s0.9f3a01c2`."""
    return f"{id_}.{os.urandom(4).hex()}"


def now_us() -> int:
    """Microseconds of the monotonic clock."""
    return time.monotonic_ns() // 1_000


def sd_notify(text: str) -> None:
    """Tell the supervisor (systemd, or our own: the same words) when it left an address to talk to."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        channel.settimeout(NOTIFY_S_MAX)
        try:
            channel.sendto(text.encode(), address.replace("@", "\0", 1) if address[0] == "@" else address)
        except OSError:
            return  # a supervisor that has gone wants no news


def on_signals(loop: asyncio.AbstractEventLoop, callback: Callable[[int], object]) -> None:
    """Call back for each SIGTERM, SIGINT and SIGHUP as soon as the loop runs, also for those that come before.

    (uvloop forgets a signal that comes while it does not run.)  What our parent has told us to ignore stays ignored.
    """
    numbers = [n for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
    early: list[int] = []
    for number in numbers:
        signal.signal(number, lambda n, frame: early.append(n))

    def install() -> None:
        for number in numbers:
            loop.add_signal_handler(number, callback, int(number))
        for noted in early:
            callback(noted)

    loop.call_soon(install)


class Node:
    """What a shell's `make_machine` is handed, and keeps.

    `performers` takes the callables for the shell's own effects; `feed` gives the machine an event (sender "" = of
    this process) and belongs to the loop's thread; `at_end` callbacks run last first, before the network closes.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        name: str,
        bind: str | None,
        limits: Limits,
        log: LogFile,
        ready_on: str,
        trust: Trust = NO_TCP,
    ) -> None:
        self.loop = loop
        self.name = name
        self.limits = limits
        self.log = log
        self.exit_code = 0
        self.stopping = False
        self.network = Network(loop, name, bind, self.feed, limits, log, trust)
        self.draw: Callable[[int, int], int] = random.SystemRandom().randint
        #: What only the shell can count; beats carry it along with what the machine counts.
        self.counted: list[Callable[[], dict[str, int]]] = [self.network.counters]
        self.on_term: Callable[[], bool] = lambda: False  # at the first SIGTERM: True = this node ends by itself when it may
        self.performers: dict[type[Any], Performer] = {
            Send: self._send,
            Connect: lambda effect: self.network.connect(effect.node, effect.endpoint),
            Disconnect: lambda effect: self.network.disconnect(effect.node),
            Log: self._log,
            Stop: lambda effect: self.stop(effect.exit_code, effect.text),
        }
        self._driver: Driver | None = None
        self._ends: list[Callable[[], object]] = []
        self._ready_on = ready_on
        self._ready = False

    @staticmethod
    def now_us() -> int:
        return now_us()

    def feed(self, sender: str, message: Any) -> None:
        assert self._driver is not None, "events come when the loop runs, not while the machine is made"
        self._driver.feed(sender, message)

    def is_lent(self, array: Any) -> bool:
        """True while a send still reads from this array."""
        return self.network.is_lent(array)

    def at_end(self, callback: Callable[[], object]) -> None:
        self._ends.append(callback)

    def ready(self) -> None:
        """Say once that this node does its work: in the log, and to the supervisor."""
        if not self._ready:
            self._ready = True
            self.log("ready", pid=os.getpid(), endpoint=self.network.endpoint)
            sd_notify(f"READY=1\nMAINPID={os.getpid()}\nX_PLUGML_NODE={self.name}")

    def served(self) -> None:
        """Tell the supervisor that this process was of use to somebody: whatever it dies of, it is not its start."""
        sd_notify(f"X_PLUGML_SERVED=1\nMAINPID={os.getpid()}")

    def signalled(self, number: int) -> None:
        """Told to end: at once, but for the first SIGTERM, which a node may answer by ending in its own time."""
        on_term, self.on_term = self.on_term, lambda: False
        if number != signal.SIGTERM or not on_term():
            self.stop(0, f"got {signal.Signals(number).name}")

    def stop(self, exit_code: int, text: str) -> None:
        """End this process in order; the first reason counts."""
        if self.stopping:
            return
        self.stopping = True
        self.exit_code = exit_code
        self.log("stop", code=exit_code, text=text)
        sd_notify("STOPPING=1")
        if exit_code:
            tell(text)
        self.loop.stop()

    # -- for run_node -------------------------------------------------------------------------------------------------

    def run(self, machine: Machine) -> None:
        self._driver = Driver(self.loop, machine, self.performers, now_us)
        self.loop.call_soon(self._driver.start)
        if not self._ready_on:
            self.loop.call_soon(self.ready)
        self.loop.run_forever()

    def end(self) -> None:
        try:
            if self._driver is not None:
                self._driver.close()
            while self._ends:
                self._ends.pop()()
        finally:
            self.network.close(linger_ms=0 if self.exit_code == EXIT_CRASH else LINGER_MS)

    def crash(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """The loop's exception handler.  An error that was raised on purpose ends with its own code and sentence."""
        error = context.get("exception")
        if isinstance(error, PlugmlError):
            self.stop(getattr(error, "exit_code", 1), str(error))
            return
        for line in self._driver.story() if self._driver is not None else []:
            self.log("before_crash", told=line)
        trace = traceback.format_exception(error) if error is not None else []
        for line in "".join(trace).splitlines():
            self.log("traceback", line=line)
        self.stop(EXIT_CRASH, f"{self.name} failed: {error!r} {context.get('message', '')}".strip())

    def _send(self, effect: Send) -> None:
        message = effect.message
        if type(message) is Beat:
            counters = dict(message.counters)
            for count in self.counted:
                counters.update(count())
            message = message._replace(counters=counters)
        self.network.send(effect.to, message)

    def _log(self, effect: Log) -> None:
        if effect.event != "ready":
            self.log.write(effect.event, effect.fields)
        if effect.event == self._ready_on:
            self.ready()


def run_node(
    make_machine: Callable[[Node], Machine],
    name: str,
    bind: str | None,
    *,
    limits: Limits = Limits(),
    log: LogFile | None = None,
    ready_on: str = "",
    trust: Trust = NO_TCP,
) -> int:
    """Run one node until it is told to end; gives the exit code.  `trust` says what it may do over TCP.

    `make_machine(node)` is called once, before the loop runs; it may raise PlugmlError.  The node is ready when the
    machine first logs the event `ready_on` (or the shell calls `node.ready()`); without one, as soon as it listens.
    """
    raise_limit()
    keep_freed_memory()
    faulthandler.enable(file=2)
    check_library(curve=trust.keys is not None)
    log = log or LogFile(name)
    log.node = name
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        node = Node(loop, name, bind, limits, log, ready_on, trust)
        _warn(node, trust)
        loop.set_exception_handler(node.crash)
        try:
            sd_notify(f"STATUS=starting\nMAINPID={os.getpid()}\nX_PLUGML_NODE={name}")
            on_signals(loop, node.signalled)
            machine = make_machine(node)
            gc.collect()
            gc.freeze()  # what lives from the start is never garbage: full collections skip it
            node.run(machine)
        finally:
            node.end()
        log("end", code=node.exit_code)
        return node.exit_code
    finally:
        asyncio.set_event_loop(None)
        loop.close()
        log.close()


def _warn(node: Node, trust: Trust) -> None:
    """What others on the network can do is said aloud, and stands in the log."""
    if trust.insecure:
        text = "speaks over TCP without keys (--insecure-trusted-network): whoever reaches its port can read and change everything"
    elif trust.plain_data:
        text = "leaves pushes and values plain (--data-security plain): whoever is on the network between hosts can read and forge them"
    else:
        return
    node.log("insecure", text=text)
    tell(f"{node.name} {text}")


def tell(text: str) -> None:
    """A sentence on standard error, whoever may or may not read it."""
    try:
        os.write(2, f"plugml: {text}\n".encode())
    except OSError:
        return
