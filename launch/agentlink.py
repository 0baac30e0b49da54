"""The launcher's connection to its agent: JSON lines over agent.sock, made again whenever it breaks.

Every question is repeated on each new connection until it is answered (each may be carried out twice, see
docs/internals.md).  A new agent process knows our job no more, so that `register` is said to it again first.  Knows no
job otherwise: it carries questions, answers and news.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..core.errors import NoClusterError, WorldError
from . import effects as e

SOCKET = "agent.sock"  # in the root
VERSION = 1
LINE_BYTES_MAX = 64 << 10
RETRY_S, RETRY_S_MAX = 0.05, 1.0
ANSWER_S = 30.0
HELLO, AGAIN = 0, -1  # numbers of the link's own questions


class AgentLink:
    """Feeds AgentUp, AgentDown, Answer and AgentNews to `deliver`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, path: Path, deliver: Callable[[Any], None]) -> None:
        self._loop = loop
        self._path = path
        self._deliver = deliver
        self._waiting: dict[int, bytes] = {}  # question number -> its line
        self._line: _Line | None = None
        self._register: dict[str, Any] = {}  # once it was answered
        self._registering: tuple[int, dict[str, Any]] = (0, {})
        self._closed = False
        self._wait_s = RETRY_S
        self._retry: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = self._loop.create_task(self._connect())

    def ask(self, question: e.Ask) -> None:
        line = _encode(question.number, question.op, question.fields)
        if question.op == "register":
            self._register = {}
            self._registering = (question.number, question.fields)
        self._waiting[question.number] = line
        if self._line is not None and self._line.ready:
            self._line.write(line)

    def close(self) -> None:
        self._closed = True
        if self._retry is not None:
            self._retry.cancel()
        if self._task is not None:
            self._task.cancel()
        if self._line is not None:
            self._line.close()

    async def _connect(self) -> None:
        try:
            await self._loop.create_unix_connection(lambda: _Line(self), str(self._path))
        except OSError as error:  # not there yet, or not there any more
            self.lost(None, error.strerror or str(error))

    def _reconnect(self) -> None:
        if not self._closed:
            self._task = self._loop.create_task(self._connect())

    # -- what the connection says ---------------------------------------------------------------------------------------

    def made(self, line: _Line) -> None:
        self._line = line
        line.write(_encode(HELLO, "hello", {"version": VERSION}))

    def lost(self, line: _Line | None, text: str) -> None:
        if self._closed or (line is not None and line is not self._line):
            return
        self._line = None
        self._deliver(e.AgentDown(text))
        self._retry = self._loop.call_later(self._wait_s, self._reconnect)
        self._wait_s = min(2 * self._wait_s, RETRY_S_MAX)

    def said(self, line: _Line, document: dict[str, Any]) -> None:
        if "event" in document:
            self._deliver(e.AgentNews(document))
            return
        number = document.get("id")
        if number == HELLO:
            self._greeted(line, document)
        elif number == AGAIN:
            self._send_all(line)
        elif isinstance(number, int) and self._waiting.pop(number, None) is not None:
            code = "" if document.get("ok") else str(document.get("code") or "INTERNAL")
            if number == self._registering[0] and not code:
                # With its number: a run that has ended meanwhile must not begin anew under its name.
                self._register = {**self._registering[1], "job": document.get("job")}
            self._deliver(e.Answer(number, code, str(document.get("text") or ""), document))

    def _greeted(self, line: _Line, document: dict[str, Any]) -> None:
        if not document.get("ok"):
            line.close()
            self.lost(line, str(document.get("text") or "the agent refused the greeting"))
            return
        self._wait_s = RETRY_S
        if self._register:
            line.write(_encode(AGAIN, "register", self._register))
        else:
            self._send_all(line)
        self._deliver(e.AgentUp(str(document.get("cluster", "")), str(document.get("node", ""))))

    def _send_all(self, line: _Line) -> None:
        line.ready = True
        for waiting in self._waiting.values():
            line.write(waiting)


def _encode(number: int, op: str, fields: dict[str, Any]) -> bytes:
    return json.dumps({"op": op, "id": number, **fields}).encode() + b"\n"


class _Line(asyncio.Protocol):
    """One connection: bytes to lines to objects."""

    def __init__(self, link: AgentLink) -> None:
        self.ready = False  # greeted, and the agent knows our job
        self._link = link
        self._buffer = bytearray()
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._link.made(self)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\n")) >= 0:
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            try:
                document = json.loads(line)
            except ValueError:
                document = None
            if not isinstance(document, dict):
                self._broken("the agent sent a line that is no JSON object")
                return
            self._link.said(self, document)
        if len(self._buffer) > LINE_BYTES_MAX:
            self._broken("the agent sent a line without end")

    def connection_lost(self, exc: Exception | None) -> None:
        self._link.lost(self, str(exc) if exc else "it closed the connection")

    def write(self, line: bytes) -> None:
        self._transport.write(line)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _broken(self, text: str) -> None:
        self.close()
        self._link.lost(self, text)


async def ask_once(path: Path, op: str, fields: dict[str, Any], limit_s: float = ANSWER_S) -> e.Answer:
    """One question on a connection of its own.  Raises `NoClusterError` where no agent is, `WorldError` when it has not answered in time."""
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[e.Answer] = loop.create_future()

    def deliver(event: Any) -> None:
        if answered.done():
            return
        if isinstance(event, e.Answer):
            answered.set_result(event)
        elif isinstance(event, e.AgentDown):
            answered.set_exception(NoClusterError(f"the agent at {path} does not answer: {event.text}"))

    link = AgentLink(loop, path, deliver)
    link.ask(e.Ask(1, op, fields))
    link.start()
    try:
        return await asyncio.wait_for(answered, limit_s)
    except TimeoutError:
        raise WorldError(f"the agent at {path} has not answered for {limit_s:.0f} s; see `plugml status`") from None
    finally:
        link.close()
