"""A proxy in front of a node's socket that loses, doubles and delays whole messages, in both directions.

It reads the framing of ZMTP 3 (greeting, then frames: flags, size, body; a message ends with the first frame that has no
MORE) and lets the handshake and heartbeats pass.  It stands in the place of the socket's path: the node's own socket is
renamed, so that nobody is told of it.

    with FaultProxy(root / "ipc" / "s0", seed=1, drop=0.1, double=0.1, delay=0.1) as proxy: ...

Knows nothing of what the messages say.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
from pathlib import Path
from types import TracebackType

GREETING_BYTES = 64
MORE, LONG, COMMAND = 1, 2, 4
DELAY_S = 0.05


class FaultProxy:
    """`drop`, `double` and `delay` are probabilities of each message; one is drawn per message, at most one of them happens."""

    def __init__(self, path: Path, seed: int, drop: float, double: float, delay: float) -> None:
        self.counts = {"passed": 0, "dropped": 0, "doubled": 0, "delayed": 0}
        self._path, self._real = path, path.with_name(path.name + ".real")
        self._draw = random.Random(seed)
        self._odds = (drop, double, delay)
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fault proxy", daemon=True)

    def __enter__(self) -> FaultProxy:
        os.rename(self._path, self._real)
        self._loop = asyncio.new_event_loop()
        self._thread.start()
        assert self._ready.wait(30), "the proxy did not begin to listen"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        for path in (self._path, self._real):
            path.unlink(missing_ok=True)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_unix_server(self._accept, str(self._path), limit=1 << 26))
        self._ready.set()
        self._loop.run_forever()
        server.close()
        for task in self._tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there_reader, there_writer = await asyncio.open_unix_connection(str(self._real), limit=1 << 26)
        except OSError:  # the node has ended
            writer.close()
            return
        for source, sink in ((reader, there_writer), (there_reader, writer)):
            task = self._loop.create_task(self._pump(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        """One direction of one connection, until either side ends."""
        try:
            left = GREETING_BYTES  # each side sends the rest of its greeting only when it has seen the start of the other's
            while left and (part := await source.read(left)):
                sink.write(part)
                left -= len(part)
            message = bytearray()
            while True:
                head = await source.readexactly(1)
                flags = head[0]
                size = await source.readexactly(8 if flags & LONG else 1)
                message += head + size + await source.readexactly(int.from_bytes(size, "big"))
                if flags & COMMAND:
                    sink.write(message)
                elif flags & MORE:
                    continue
                else:
                    self._pass_on(bytes(message), sink)
                message = bytearray()
                await sink.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            sink.close()

    def _pass_on(self, message: bytes, sink: asyncio.StreamWriter) -> None:
        luck = self._draw.random()
        drop, double, delay = self._odds
        if luck < drop:
            self.counts["dropped"] += 1
        elif luck < drop + double:
            self.counts["doubled"] += 1
            sink.write(message + message)
        elif luck < drop + double + delay:
            self.counts["delayed"] += 1
            self._loop.call_later(self._draw.uniform(0, DELAY_S), self._late, message, sink)
        else:
            self.counts["passed"] += 1
            sink.write(message)

    @staticmethod
    def _late(message: bytes, sink: asyncio.StreamWriter) -> None:
        if not sink.is_closing():
            sink.write(message)
