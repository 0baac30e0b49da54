"""One worker's conversation: what the scripted agent does between a bell and its reply, in the order of SPEC.md 7.8.

A request is a generator, because its worker may have to wait for others (it yields None) or for a while (it yields the
time until which).  Carrying out is `work.py`.  Refuses to know sockets, threads and programs.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ...core.errors import Code, RequestError
from ..channel import AgentChannel
from ..create import Channel
from ..page import RECORD_BYTES
from ..request import Reply, Request, format_reply, parse_reply, parse_request, seq_of
from .faults import Script
from .server import PlainServer
from .watch import Watch
from .work import SCRIPTED, Answer, Waits, Work

SLOW_S = 0.2
SETTLED = 0.25  # the part of a slow answer after which a program that waits is asleep
STALE_S = 0.0


class Talk:
    """The channel of one worker while one agent after the other serves it.  `channel` is None once it was given up."""

    def __init__(self, worker: int, kept: Channel, channel: AgentChannel, server: PlainServer, script: Script) -> None:
        self.worker = worker
        self.kept = kept
        self.channel: AgentChannel | None = channel
        self.server = server
        self.script = script
        self.watch = Watch()
        self.work = Work(worker, channel, server, script)
        self.lines: list[str] = []
        self.remarks: list[str] = []
        self.said_bye = False
        self._wait_until: float | None = None
        self._bye_seq: int | None = None
        self._running: Waits | None = None
        self._answered = b""
        self._last_reply = b""

    # -- for the agent

    def attend(self, watch: Watch) -> None:
        self.watch = self.work.watch = watch

    @property
    def wake_at(self) -> float | None:
        """When there is something to go on with, if no bell rings before."""
        times = [at for at in (self._wait_until, self.work.due_at) if at is not None]
        return min(times) if times else None

    def bell(self, adopted: bool = False) -> None:
        """Look at `cmd`, as at each bell and at an adoption.  May raise `Killed`."""
        channel = self.channel
        assert channel is not None
        self.watch.rang(adopted)
        if self._running is not None:
            return  # a bell during a request carries nothing
        try:
            line = channel.read_cmd()
        except RequestError as error:  # a link, a directory: nothing can be read, and nothing will be
            self.watch.refused(channel.done_seq + 1, None, b"", error, scripted=False)
            self._running = self._refuse(channel, b"", channel.done_seq + 1, error)
            self.go_on()
            return
        if line is None or (line == self._answered and not line.startswith(b"hello")):
            self.watch.rang_for_nothing(line)
            return
        self._running = self._request(channel, line, adopted)
        self.go_on()

    def go_on(self) -> None:
        """Carry the request on, as far as it goes, and what was accepted before.  May raise `Killed`."""
        if self.channel is None:
            return
        if self._running is not None:
            try:
                self._wait_until = next(self._running)
            except StopIteration:
                self._running = self._wait_until = None
        if self._running is None and self.channel is not None:
            self.work.carry_out_due()

    def killed(self) -> None:
        """The agent is dead: what it had in hand is gone."""
        assert self.channel is not None
        self.channel.abandon()
        self._running = self._wait_until = None
        self._answered = b""

    def adopted(self, channel: AgentChannel) -> None:
        """Another agent has taken the channel over, with what was accepted before."""
        self.channel = channel
        self.work.adopted(channel)

    def give_up(self) -> None:
        """No agent comes back: the launcher answers, so that no program hangs."""
        self._let_go()
        self.kept.retire()

    def vanish(self) -> None:
        """Agent and launcher end at once, and nobody answers any more."""
        self._let_go()
        self.kept.close(remove=False)

    def _let_go(self) -> None:
        if self.channel is not None:
            self.channel.abandon()
            self.channel = None
        self._running = self._wait_until = None

    # -- one request

    def _request(self, channel: AgentChannel, line: bytes, adopted: bool) -> Waits:
        """One request by the rules."""
        worker, server = self.worker, self.server
        done = channel.done_seq
        seq = seq_of(line)
        if seq == 0 and line.startswith(b"hello"):
            self.watch.took(0, line)
            yield from self._answer(channel, line, Reply(True, 0, server.finished[worker], channel.result.version, done=done), None)
            return
        if adopted and seq == done:
            record = channel.repeat()
            self._store(seq, lambda: channel.reply(record))
            self.watch.sent(parse_reply(record))
            self._answered = line
            return
        if seq is not None and seq != done + 1:
            channel.count("refused_sequences")
            error = RequestError(Code.SEQ, f"seq {seq} came, {done + 1} is the next one")
            self.watch.refused(seq, None, line, error, scripted=False)
            yield from self._refuse(channel, line, seq, error)
            return
        seq = done + 1 if seq is None else seq
        self._note(line, adopted)
        self.watch.took(seq, line)
        if self.script.fault("again", worker, seq):
            again = Reply(False, seq, server.finished[worker], code=Code.AGAIN)
            self._store(seq, lambda: channel.reply(format_reply(again)))
            self.watch.sent(again)
            return
        if self.script.fault("gone", worker, seq):
            self.give_up()
            return
        if self.script.fault("vanish", worker, seq):
            self.vanish()
            return
        yield from self._carry_out(channel, line, seq)

    def _note(self, line: bytes, adopted: bool) -> None:
        """The request among those that the worker has sent; a second agent finds the same line."""
        text = line.decode(errors="replace")
        if not adopted or not self.lines or self.lines[-1] != text:
            self.lines.append(text)

    def _refuse(self, channel: AgentChannel, line: bytes, seq: int, error: RequestError) -> Waits:
        """A line that is none of the next request: done_seq stays."""
        channel.write_error(f"{error.code.name} seq={seq}: {error.text}")
        yield from self._answer(channel, line, Reply(False, seq, self.server.finished[self.worker], code=error.code), None)

    def _carry_out(self, channel: AgentChannel, line: bytes, seq: int) -> Waits:
        worker, server = self.worker, self.server
        self._store(seq, lambda: channel.set_current(seq))
        request: Request | None = None
        answer, code, scripted = Answer(), Code.OK, False
        self.work.as_scripted = False
        try:
            request = parse_request(line)
            channel.info.check(request)
            self._check(request)
            refusal = self.script.fault("err", worker, seq)
            if refusal:
                scripted = True
                raise RequestError(Code[refusal.argument or "INTERNAL"], SCRIPTED)
            answer = yield from self.work.carry_out(request)
            if request.verb == "bye":
                self._bye(seq)
            if self.script.fault("stop", worker, seq):
                server.stop_clock = server.finished[worker]
        except RequestError as error:
            code = error.code
            text = f"{code.name} seq={seq}: {error.text}"
            if code is Code.AGAIN:
                yield from self._answer(channel, b"", Reply(False, seq, server.finished[worker], code=code), request)
                return
            self.watch.refused(seq, request, line, error, scripted or code in (Code.TIMEOUT, Code.STOP) or self.work.as_scripted)
            self._store(seq, lambda: channel.write_error(text))
        yield from self._wait(seq, code)
        if code is Code.OK and request is not None:
            self.remarks += self.work.touched(request)
        yield from self._end(channel, line, seq, request, answer, code)

    def _end(self, channel: AgentChannel, line: bytes, seq: int, request: Request | None, answer: Answer, code: Code) -> Waits:
        worker, server = self.worker, self.server
        clock = server.finished[worker]
        stop = code is Code.OK and bool(server.stop_clock) and clock == server.stop_clock
        lag = server.lag(worker) if code is Code.OK and request is not None and request.verb in ("step", "pull", "pushpull", "clock") else None
        reply = Reply(code is Code.OK, seq, clock, server.version, answer.n, code, lag, stop, rows=answer.rows)
        self._store(seq, lambda: channel.write_result(seq, clock, server.version, int(code), stop=stop))
        self._store(seq, lambda: channel.set_done(seq))
        yield from self._answer(channel, line, reply, request)

    def _check(self, request: Request) -> None:
        """Refuse what may not be just now.  Raises `RequestError`."""
        if self._bye_seq is not None and request.seq > self._bye_seq:
            raise RequestError(Code.GONE, f"{request.verb} after bye: this worker has left the job")
        finished = self.server.finished[self.worker]
        if request.seq <= self.server.ticked[self.worker]:
            return  # the agent died after the tick
        if request.verb in ("push", "pushpull", "step", "clock") and self.server.stops(self.worker):
            raise RequestError(Code.STOP, f"the job has ended at clock {self.server.stop_clock}")
        if request.verb in ("step", "clock", "push", "pull", "pushpull") and request.clock != finished:
            raise RequestError(Code.SEQ, f"clock {request.clock} came, worker {self.worker} is in clock {finished}")

    def _wait(self, seq: int, code: Code) -> Waits:
        """A slow agent is what the script asks for, and a look at what the program does meanwhile what the watch asks for."""
        late = self.script.fault("slow", self.worker, seq) if code is not Code.TIMEOUT else None
        if late is None:
            yield from self._pause(self.watch.linger_s)
            return
        whole = float(late.argument or SLOW_S)
        yield from self._pause(whole * SETTLED)
        self.watch.waiting(seq)
        yield from self._pause(whole * (1 - SETTLED))
        self.watch.waited(seq)

    @staticmethod
    def _pause(seconds: float) -> Waits:
        end = time.monotonic() + seconds
        while seconds and time.monotonic() < end:
            yield end

    def _bye(self, seq: int) -> None:
        self.said_bye = True
        self._bye_seq = seq
        self.server.leave(self.worker)

    # -- replies

    def _answer(self, channel: AgentChannel, line: bytes, reply: Reply, request: Request | None) -> Waits:
        record = self._record(reply)
        stale = self.script.fault("stale", self.worker, reply.seq) if self._last_reply else None
        if stale:
            channel.reply(self._last_reply)
            self.watch.sent(None)
            yield from self._pause(float(stale.argument or STALE_S))
        self.watch.answers(reply, request, stale is not None)
        self._store(reply.seq, lambda: channel.reply(record))
        self.watch.sent(reply)
        if self.script.fault("repeat", self.worker, reply.seq):
            channel.reply(record)
            self.watch.sent(None)
        self._last_reply = record
        self._answered = line

    def _record(self, reply: Reply) -> bytes:
        """The 64 bytes; a strange one has words that nobody knows, and lacks those that may be missing."""
        if not self.script.fault("strange", self.worker, reply.seq):
            return format_reply(reply)
        words = ["ok" if reply.ok else "err", str(reply.seq), str(reply.clock), "x=1", "later=soon"]
        words += [] if reply.ok else [f"code={reply.code.name}"]
        words += ["stop=1"] if reply.stop else []
        return " ".join(words).encode().ljust(RECORD_BYTES - 1) + b"\n"

    def _store(self, seq: int, action: Callable[[], object]) -> None:
        self.script.store(self.worker, seq, action)
