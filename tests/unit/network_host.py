"""A loop with networks on it for tests: what they were given, and what they told the log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvloop

from plugml.core.limits import Limits
from plugml.runtime.keys import NO_TCP, Trust
from plugml.runtime.network import Network
from plugml.wire import messages as m

HANG_S = 60.0
S0, S0_AGAIN, A0, A0_AGAIN = "s0.00000001", "s0.00000002", "a0.00000003", "a0.00000004"
ACK = m.PushAck(1, 2, 3, 4, 5, 6, 7)


class Host:
    """A loop with networks on it, what they were given, and what they told the log."""

    def __init__(self, directory: Path) -> None:
        self.loop = uvloop.new_event_loop()
        self.directory = directory
        self.got: dict[str, list[tuple[str, Any]]] = {}
        self.logged: list[tuple[str, str, dict[str, Any]]] = []
        self.networks: dict[str, Network] = {}
        self.errors: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda loop, context: self.errors.append(context))

    def endpoint(self, id_: str) -> str:
        return f"ipc://{self.directory}/{id_}"

    def open(
        self,
        name: str,
        bind: str | None = None,
        limits: Limits = Limits(),
        deliver: Callable[[str, Any], None] | None = None,
        trust: Trust = NO_TCP,
    ) -> Network:
        got = self.got.setdefault(name, [])

        def log(event: str, **fields: Any) -> None:
            self.logged.append((name, event, fields))

        network = Network(self.loop, name, bind, deliver or (lambda sender, message: got.append((sender, message))), limits, log, trust)
        self.networks[name] = network
        return network

    def until(self, holds: Callable[[], object]) -> None:
        async def watch() -> None:
            while not holds():
                await asyncio.sleep(0.002)

        self.loop.run_until_complete(asyncio.wait_for(watch(), HANG_S))

    def run(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def events(self, name: str) -> list[str]:
        return [event for node, event, _ in self.logged if node == name]

    def close(self, name: str) -> None:
        self.networks.pop(name).close(linger_ms=0)


@contextmanager
def opened(directory: Path) -> Iterator[Host]:
    host = Host(directory)
    yield host
    for network in host.networks.values():
        network.close(linger_ms=0)
    host.loop.close()
    assert not host.errors, host.errors
