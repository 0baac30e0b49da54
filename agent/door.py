"""agent.sock: where launchers and tools come in.  JSON objects, one a line, at most 64 KiB.

Owns connections and bytes.  Refuses to know what is asked; lets in nobody but our own user, and puts out whoever sends
what is no JSON object or does not read its answers.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..core.errors import RootError
from . import effects as e

LINE_BYTES_MAX = 64 << 10
UNREAD_BYTES_MAX = 4 << 20  # answers that a peer has not read
CONNECTIONS_MAX = 1024

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


class Door:
    """The listening socket.  `garbage` counts connections that were put out."""

    def __init__(self, loop: asyncio.AbstractEventLoop, root: Path, feed: Callable[[Any], None], log: Callable[..., None]) -> None:
        self.garbage = 0
        self.path = root / "agent.sock"
        self._loop = loop
        self._feed = feed
        self._log = log
        self._next = 0
        self._open: dict[int, _Connection] = {}
        self._socket = _listen(self.path)
        self._server: asyncio.AbstractServer | None = None
        self._task = loop.create_task(self._serve())

    async def _serve(self) -> None:
        self._server = await self._loop.create_unix_server(lambda: _Connection(self), sock=self._socket)

    def tell(self, effect: e.Tell) -> None:
        line = json.dumps(effect.document, separators=(",", ":")).encode() + b"\n"
        if effect.connection == e.ALL:
            for connection in list(self._open.values()):
                connection.write(line)
        elif effect.connection in self._open:
            self._open[effect.connection].write(line)

    def close(self) -> None:
        """No more requests.  The socket's file stays: who connects to it meanwhile is told that nobody is there."""
        self._task.cancel()
        if self._server is not None:
            self._server.close()
        for connection in list(self._open.values()):
            connection.abort()
        self._socket.close()

    # -- for connections

    def entered(self, connection: _Connection) -> int | None:
        if len(self._open) >= CONNECTIONS_MAX:
            return None
        self._next += 1
        self._open[self._next] = connection
        return self._next

    def left(self, number: int) -> None:
        if self._open.pop(number, None) is not None:
            self._feed(e.Hung(number))

    def said(self, number: int, line: bytes) -> bool:
        """False: that was no JSON object."""
        try:
            document = json.loads(line)
        except (ValueError, RecursionError):
            return False
        if not isinstance(document, dict):
            return False
        self._feed(e.Asked(number, document))
        return True

    def refuse(self, why: str) -> None:
        self.garbage += 1
        self._log("connection_refused", socket="agent.sock", why=why, count=self.garbage)


class _Connection(asyncio.Protocol):
    def __init__(self, door: Door) -> None:
        self._door = door
        self._number: int | None = None
        self._buffer = bytearray()
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        uid = peer_uid(transport.get_extra_info("socket"))
        if uid != os.getuid():
            self._out(f"a process of user {uid}")
            return
        self._number = self._door.entered(self)
        if self._number is None:
            self._out(f"more than {CONNECTIONS_MAX} connections")

    def data_received(self, data: bytes) -> None:
        if self._number is None:
            return
        buffer = self._buffer
        buffer += data
        while (end := buffer.find(b"\n", 0, LINE_BYTES_MAX + 1)) >= 0:
            line = bytes(buffer[:end])
            del buffer[: end + 1]
            if not self._door.said(self._number, line):
                self._out("a line that is no JSON object")
                return
            if self._number is None:
                return
        if len(buffer) > LINE_BYTES_MAX:
            self._out(f"a line of more than {LINE_BYTES_MAX} bytes")

    def connection_lost(self, error: Exception | None) -> None:
        self._forget()

    def write(self, line: bytes) -> None:
        if self._transport.get_write_buffer_size() > UNREAD_BYTES_MAX:
            self._out("a peer that does not read")
        else:
            self._transport.write(line)

    def abort(self) -> None:
        self._transport.abort()

    def _out(self, why: str) -> None:
        self._door.refuse(why)
        self._buffer.clear()
        self._forget()
        self._transport.abort()

    def _forget(self) -> None:
        number, self._number = self._number, None
        if number is not None:
            self._door.left(number)


def peer_uid(connection: Any) -> int:
    """Whose process is at the other end of a unix socket?"""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    uid: int = _CREDENTIALS.unpack(raw)[1]
    return uid


def _listen(path: Path) -> socket.socket:
    """Bind anew: whoever holds agent.lock owns the name."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        path.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            listening.bind(str(path))
        finally:
            os.umask(before)
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise RootError(f"{path} cannot be made: {error.strerror}; see the root's mode and space") from error
    return listening
