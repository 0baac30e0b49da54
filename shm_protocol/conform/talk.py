"""One worker's conversation: what the scripted agent does between a bell and its reply, in the order of SPEC.md 7.8.

A request is a generator, because its worker may have to wait for others (it yields None) or for a while (it yields the
time until which).  Refuses to know sockets, threads and programs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np

from ...core.errors import Code, RequestError
from .. import numbers
from ..channel import AgentChannel
from ..create import Channel
from ..request import Reply, Request, format_reply, parse_request, seq_of
from .faults import Script
from .server import PlainServer

SLOW_S = 0.2

Waits = Iterator[float | None]


class Talk:
    """The channel of one worker while one agent after the other serves it.  `channel` is None once it was given up."""

    def __init__(self, worker: int, kept: Channel, channel: AgentChannel, server: PlainServer, script: Script) -> None:
        self.worker = worker
        self.kept = kept
        self.channel: AgentChannel | None = channel
        self.server = server
        self.script = script
        self.lines: list[str] = []
        self.remarks: list[str] = []
        self.said_bye = False
        self.wake_at: float | None = None
        self._bye_seq: int | None = None
        self._running: Waits | None = None
        self._answered = b""
        self._last_reply = b""
        self._stopped_at: int | None = None
        self._buffer = numbers.aligned(kept.info.cap_grad)

    # -- for the agent

    @property
    def running(self) -> bool:
        return self._running is not None

    def bell(self, adopted: bool = False) -> None:
        """Look at `cmd`, as at each bell and at an adoption.  May raise `Killed`."""
        channel = self.channel
        assert channel is not None
        if self._running is not None:
            return  # a bell during a request carries nothing
        line = channel.read_cmd()
        if line is None:
            return
        if line == self._answered and not line.startswith(b"hello"):
            return
        self._running = self._request(channel, line, adopted)
        self.go_on()

    def go_on(self) -> None:
        """Carry the request on, as far as it goes.  May raise `Killed`."""
        if self._running is None:
            return
        try:
            self.wake_at = next(self._running)
        except StopIteration:
            self._running = self.wake_at = None

    def killed(self) -> None:
        """The agent is dead: what it had in hand is gone."""
        assert self.channel is not None
        self.channel.abandon()
        self._running = self.wake_at = None
        self._answered = b""

    def adopted(self, channel: AgentChannel) -> None:
        """Another agent has taken the channel over."""
        self.channel = channel

    def give_up(self) -> None:
        """No agent comes back: the launcher answers, so that no program hangs."""
        if self.channel is not None:
            self.channel.abandon()
            self.channel = None
        self.kept.retire()

    # -- one request

    def _request(self, channel: AgentChannel, line: bytes, adopted: bool) -> Waits:
        """One request by the rules."""
        worker, server = self.worker, self.server
        done = channel.done_seq
        seq = seq_of(line)
        if seq == 0 and line.startswith(b"hello"):
            self._answer(channel, line, Reply(True, 0, server.finished[worker], channel.result.version, done=done))
            return
        if adopted and seq == done:
            self._store(seq, lambda: channel.reply(channel.repeat()))
            self._answered = line
            return
        if seq is not None and seq != done + 1:
            channel.count("refused_sequences")
            text = f"seq {seq} came, {done + 1} is the next one"
            channel.write_error(f"SEQ seq={seq}: {text}")
            self._answer(channel, line, Reply(False, seq, server.finished[worker], code=Code.SEQ))
            return
        seq = done + 1 if seq is None else seq
        if not adopted or not self.lines or self.lines[-1] != line.decode(errors="replace"):
            self.lines.append(line.decode(errors="replace"))
        if self.script.fault("again", worker, seq):
            self._store(seq, lambda: channel.reply(format_reply(Reply(False, seq, 0, code=Code.AGAIN))))
            return
        if self.script.fault("gone", worker, seq):
            self.give_up()
            return
        yield from self._carry_out(channel, line, seq)

    def _carry_out(self, channel: AgentChannel, line: bytes, seq: int) -> Waits:
        server, worker = self.server, self.worker
        self._store(seq, lambda: channel.set_current(seq))
        stop, request, code = False, None, Code.OK
        try:
            request = parse_request(line)
            self._check(channel, request)
            if request.pushes:
                self._push(channel, request)
            self._store(seq, lambda: None)  # an effect of its own: the servers have it
            if request.verb in ("step", "clock"):
                server.tick(worker, seq, request.clock)
            while request.verb in ("step", "pull", "pushpull") and not server.ready(server.finished[worker]):
                yield None
            if request.pulls:
                self._write_values(channel, request)
            if request.verb == "bye":
                self._bye(seq)
            if self.script.fault("stop", worker, seq):
                stop, self._stopped_at = True, seq
        except RequestError as error:
            code, text = error.code, f"{error.code.name} seq={seq}: {error.text}"
            self._store(seq, lambda: channel.write_error(text))
        late = self.script.fault("slow", worker, seq)
        if late:
            end = time.monotonic() + float(late.argument or SLOW_S)
            while time.monotonic() < end:
                yield end
        if request is not None and code is Code.OK and request.pushes:
            self._check_untouched(channel, request)
        finished = server.finished[worker]
        self._store(seq, lambda: channel.write_result(seq, finished, server.version, int(code), stop=stop))
        self._store(seq, lambda: channel.set_done(seq))
        n = channel.info.elements if request is not None and code is Code.OK and request.pulls else None
        self._answer(channel, line, Reply(code is Code.OK, seq, finished, server.version, n, code, stop=stop))

    def _check(self, channel: AgentChannel, request: Request) -> None:
        """Refuse what may not be, before any file is touched.  Raises `RequestError`."""
        channel.info.check(request)
        if self._bye_seq is not None and request.seq > self._bye_seq:
            raise RequestError(Code.GONE, f"{request.verb} after bye: this worker has left the job")
        self._check_clock(request)
        refusal = self.script.fault("err", self.worker, request.seq)
        if refusal:
            raise RequestError(Code[refusal.argument or "INTERNAL"], "the script says so")
        if self._stopped_at is not None and request.verb == "step" and request.seq > self._stopped_at:
            raise RequestError(Code.STOP, "the stop rule has fired")

    def _check_clock(self, request: Request) -> None:
        finished = self.server.finished[self.worker]
        if request.seq <= self.server.ticked[self.worker]:
            return  # the agent died after the tick
        if request.verb in ("step", "clock", "push", "pull", "pushpull") and request.clock != finished:
            raise RequestError(Code.SEQ, f"clock {request.clock} came, worker {self.worker} is in clock {finished}")

    def _push(self, channel: AgentChannel, request: Request) -> None:
        channel.read_push(request.text, request.n is None, self._buffer)
        if request.verb == "init":
            self.server.init(self.worker, request.seq, self._buffer)
        else:
            self.server.push(self.worker, request.seq, request.clock, request.weight, self._buffer)

    def _check_untouched(self, channel: AgentChannel, request: Request) -> None:
        """The push must still lie there as it was read: until the reply its file is ours."""
        again = numbers.aligned(channel.info.cap_grad)
        try:
            channel.read_push(request.text, request.n is None, again)
        except RequestError:
            again = np.zeros(0, np.uint8)
        if not np.array_equal(self._buffer, again):
            self.remarks.append(f"worker {self.worker}: grad was touched between the ring and the reply of request {request.seq}")

    def _write_values(self, channel: AgentChannel, request: Request) -> None:
        values = self.server.values
        if request.text:
            self._store(request.seq, lambda: channel.write_text(values))
            return
        half = values.nbytes // 2 // 64 * 64
        self._store(request.seq, lambda: channel.write_param(0, values[:half]))
        self._store(request.seq, lambda: channel.write_param(half, values[half:]))

    def _bye(self, seq: int) -> None:
        self.said_bye = True
        self._bye_seq = seq
        self.server.leave(self.worker)

    def _answer(self, channel: AgentChannel, line: bytes, reply: Reply) -> None:
        record = format_reply(reply)
        if self.script.fault("stale", self.worker, reply.seq) and self._last_reply:
            channel.reply(self._last_reply)
        self._store(reply.seq, lambda: channel.reply(record))
        if self.script.fault("repeat", self.worker, reply.seq):
            channel.reply(record)
        self._last_reply = record
        self._answered = line

    def _store(self, seq: int, action: Callable[[], object]) -> None:
        self.script.store(self.worker, seq, action)
