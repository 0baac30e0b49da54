"""`python -m bench.keys [--count N]`: what keys cost between hosts: pushes of 4 MiB and of 100 B, with keys and without, over TCP.

Two processes of the same kind, a node each, talk over the loopback: what the network of a node costs, without an
optimizer or a program in the way.  The two kinds are measured in turn, and of each the best of five is told: what else
the machine does only adds time.  Read the ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from plugml.runtime.keys import Keys, Trust, make_keys
from plugml.runtime.network import Network
from plugml.wire import messages as m

from .place import place

SERVER, AGENT = "s0.00000001", "a0.00000001"
TURNS = 5
WINDOW_BYTES = 64 << 20  # of pushes that are not acknowledged yet, as an agent keeps it
WINDOW = 256  # and so many of them at most


def trust_of(directory: str, id_: str) -> Trust:
    return Trust(Keys(Path(directory), id_)) if directory else Trust(insecure=True)


def serve(directory: str) -> None:
    """A server that acknowledges each push and does nothing else."""
    loop = uvloop.new_event_loop()

    def deliver(sender: str, message: Any) -> None:
        if isinstance(message, m.Push):
            network.send(sender, m.PushAck(1, 2, 3, 4, message.components[0].seq, 1, 0))
        else:
            loop.stop()

    network = Network(loop, SERVER, "tcp://127.0.0.1:0", deliver, trust=trust_of(directory, "s0"))
    print(network.endpoint, flush=True)
    loop.run_forever()
    network.close()


class Pusher:
    """An agent that keeps its window full."""

    def __init__(self, directory: str) -> None:
        argv = [sys.executable, "-m", "bench.keys", "--serve", directory]
        self.server = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        assert self.server.stdout is not None
        endpoint = self.server.stdout.readline().strip()
        self.loop = uvloop.new_event_loop()
        self.network = Network(self.loop, AGENT, None, self.on_ack, trust=trust_of(directory, "a0"))
        self.network.connect(SERVER, endpoint)
        self.block = np.zeros(25, "<f4")
        self.sent = self.acked = self.total = 0
        self.push(100, 10)  # the connection is up

    def push(self, nbytes: int, count: int) -> float:
        """Seconds until `count` pushes of `nbytes` are acknowledged."""
        self.block = np.ones(nbytes // 4, "<f4")
        self.sent = self.acked = 0
        self.total = count
        self.waiter: asyncio.Future[None] = self.loop.create_future()
        start = time.perf_counter()
        self.fill()
        self.loop.run_until_complete(self.waiter)
        return time.perf_counter() - start

    def fill(self) -> None:
        size = self.block.nbytes
        while self.sent < self.total and self.sent - self.acked < min(WINDOW, max(1, WINDOW_BYTES // size)):
            self.sent += 1
            component = m.Component(0, 1, self.sent, self.sent - 1, 0, 1.0)
            self.network.send(SERVER, m.Push(1, 2, 3, 4, 0, (component,), (m.Segment(0, 0, self.block.size, 1),), (self.block,)))

    def on_ack(self, sender: str, message: Any) -> None:
        self.acked += 1
        if self.acked == self.total:
            self.waiter.set_result(None)
        self.fill()

    def close(self) -> None:
        self.network.send(SERVER, m.LastAsk(1, 2, 3, 4, 5, 6))  # anything but a push
        self.network.close()
        self.server.wait(60)
        self.loop.close()
        assert self.server.stdout is not None
        self.server.stdout.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.keys", description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="pushes of 4 MiB a turn")
    parser.add_argument("--serve", metavar="DIR", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve is not None:
        serve(given.serve)
        return
    with place() as work:
        make_keys(work / "keys", ["s0", "a0"])
        pushers = {"without keys": Pusher(""), "with keys": Pusher(str(work / "keys"))}
        print(f"plugml on {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}", flush=True)
        for what, nbytes, count in (("4 MiB pushes, MB/s", 4 << 20, given.count), ("100 B pushes, 1000/s", 100, 20_000)):
            best: dict[str, float] = {}
            for _ in range(TURNS):
                for name, pusher in pushers.items():
                    best[name] = min(best.get(name, 1e9), pusher.push(nbytes, count))
            rates = {name: count * (nbytes / 1e6 if nbytes > 100 else 1e-3) / seconds for name, seconds in best.items()}
            told = ", ".join(f"{name} {rate:.0f}" for name, rate in rates.items())
            print(f"{what}: {told}, ratio {rates['without keys'] / rates['with keys']:.2f}", flush=True)
        for pusher in pushers.values():
            pusher.close()


if __name__ == "__main__":
    main()
