"""One channel's turn-taking: which line in `cmd` is a new request, and in what order a request is answered.

Owns seq, clock and the words of the page that stand for the last answered request.  Refuses to know servers and
files.  The rules, for a line that ends in a newline:

    no whole line                        nothing: the program is still writing
    the line that was answered last      nothing: a bell rang twice
    hello                                answered always, with done_seq
    seq = done_seq + 1                   a new request
    seq = done_seq, at adoption only     the reply again, out of the page; no data file is touched
    any other seq                        err SEQ, addressed to that seq; done_seq stays

A refusal addressed to done_seq + 1 counts as done, whatever was wrong: the program that reads `err 7` goes on with 8.
So does a line whose seq cannot be read: who waits for an answer waits for that of done_seq + 1.

`clock` counts the clocks that the worker has finished: it is the one to go on with, and every reply says it.  A program
that repeats a clock under a new seq is told so; the request that an earlier agent left unfinished is not, since the
page's words of done_seq still say the clock before it.
"""

from __future__ import annotations

from typing import Any

from ..core.errors import Code, RequestError
from ..shm_protocol.page import BROKEN, CLOSED, READY
from ..shm_protocol.request import Reply as Record
from ..shm_protocol.request import Request, format_reply, parse_request, seq_of
from . import effects as e

#: Verbs that belong to a clock.  (`init` and `bye` concern the whole job, `ping` nobody.)
CLOCKED = frozenset({"push", "pull", "pushpull", "step", "clock"})
ONE_LINE_MAX = 4000
#: Said when values could not be handed over: the reply's clock tells how far the request came.
TAKEN = "what was asked is done, only its values could not be handed over: pull"


class Channel:
    """The program's side of one stream (worker, gen)."""

    __slots__ = (
        "name", "job", "number", "worker", "gen", "done_seq", "cur_seq", "clock", "version", "status", "weight",
        "pushes", "elements", "state", "line", "request", "looked", "taken_up", "rung", "said_bye", "kept", "seen_us", "last_error", "refused", "reading",
    )  # fmt: skip

    def __init__(self, opened: e.ChannelOpened, now_us: int) -> None:
        self.name = opened.channel
        self.job = opened.job
        self.number = opened.number
        self.worker = opened.worker
        self.gen = opened.gen
        self.done_seq = opened.done_seq
        self.cur_seq = opened.cur_seq
        self.clock = opened.clock  # clocks finished = the next one
        self.version = opened.version
        self.status = opened.status
        self.weight = opened.weight  # sum over the pushes of the current clock
        self.pushes = opened.pushes
        self.elements = opened.elements
        self.state = READY
        self.line: bytes | None = None  # the line that was answered last
        self.request: Request | None = None  # the one being worked on
        self.looked = False  # cmd was read once since we opened the channel
        self.taken_up = False  # `request` was begun by an earlier agent
        self.rung = False  # the bell rang while we worked
        self.said_bye = False
        self.kept = True  # its launcher lives, as far as we know
        self.seen_us = now_us  # when the program was last heard
        self.last_error = ""
        self.refused = 0  # requests
        self.reading: bytes | None = None  # the line of `request`

    # -- the bell

    def on_bell(self, now_us: int) -> list[Any]:
        self.seen_us = now_us
        if self.state != READY:
            return []
        if self.request is not None:
            self.rung = True
            return []
        return [e.ReadCmd(self.name)]

    def on_cmd(self, read: e.CmdRead) -> list[Any]:
        """What the line calls for at once; `request` is set when it is a new request to work on."""
        if self.state != READY or self.request is not None:
            return []
        adopting, self.looked = not self.looked, True
        line = read.line
        if read.code:
            # What stands in cmd is no file of a program's any more, so that nobody is addressed but by the turn.
            return self._refuse(self.done_seq + 1, None, read.code, read.text)
        if line is None or line == self.line:
            return []

        try:
            if adopting and self._was_answered(line):
                self.line = line
                return [self._reply_again(line)]
            request = parse_request(line)
            if request.verb == "hello":
                return [self._hello()]
            self._check(request)
        except RequestError as error:
            seq = seq_of(line)
            return self._refuse(self.done_seq + 1 if seq is None else seq, line, error.code, error.text)
        self.request = request
        self.reading = line
        self.taken_up = adopting and request.seq == self.cur_seq
        if request.verb == "ping":
            return self.finish(self.version)
        self.cur_seq = request.seq
        return [e.SetCurrent(self.name, request.seq)]

    def _was_answered(self, line: bytes) -> bool:
        """Does the line that an earlier agent left stand for done_seq?"""
        seq = seq_of(line)
        if seq is None:  # if it was answered, then as FORMAT
            return self.done_seq > 0 and self.status == Code.FORMAT
        return seq == self.done_seq and seq > 0

    def _check(self, request: Request) -> None:
        if request.seq != self.done_seq + 1:
            raise RequestError(Code.SEQ, f"seq {request.seq} is not the next one: {self.done_seq} is done, so {self.done_seq + 1} is")
        if self.said_bye:
            raise RequestError(Code.GONE, f"{request.verb} after bye: this worker has left the job")
        if request.verb == "next":
            raise RequestError(Code.FORMAT, "next: pieces of input are not handed out in this version; read your share by PLUGML_WORKER")
        if request.sections:
            raise RequestError(Code.FORMAT, "table=: sparse tables are not available in this version; dense tables need no table=")
        if request.unwaited:
            raise RequestError(Code.FORMAT, "async=1 is not available in this version; leave it out")
        if request.timeout_ms is not None:
            raise RequestError(Code.FORMAT, "t= is not available in this version; leave it out and the answer is waited for")
        if request.verb in CLOCKED and request.clock != self.clock:
            raise RequestError(Code.SEQ, f"clock {request.clock} is not this worker's next one: {self.clock} is")
        if request.n is not None and request.n != self.elements and (request.pushes or request.pulls):
            raise RequestError(Code.SIZE, f"n={request.n}, but the job's dense tables have {self.elements} elements")

    # -- answers

    def finish(self, version: int, *, pushed: bool = False, ticked: bool = False) -> list[Any]:
        """The request succeeded: what is to be written, in order, and then the reply."""
        request = self.request
        assert request is not None
        self._applied(request, pushed, ticked)
        self.version = version
        self._done(request.seq, Code.OK)
        self.line = self.reading
        return [*self._words(), self._ok(request), *self._look_again()]

    def fail(self, code: Code, text: str, *, pushed: bool = False, ticked: bool = False) -> list[Any]:
        """The request failed, definitely or not as the code says; it counts as done, and so does what of it was taken."""
        request = self.request
        assert request is not None
        self._applied(request, pushed, ticked)
        return self._refuse(request.seq, self.reading, code, text) + self._look_again()

    def on_param_failed(self, failed: e.ParamFailed) -> list[Any]:
        """`param` could not be written after all.  The performer holds back what stands for success until WriteError."""
        return self._refuse(self.done_seq, self.line, failed.code, f"{failed.text}; {TAKEN}", again=True)

    def _applied(self, request: Request, pushed: bool, ticked: bool) -> None:
        if pushed:
            self.weight += request.weight
            self.pushes += 1
        if ticked:
            self.clock += 1
            self.weight = 0.0

    def on_reply_failed(self, failed: e.ReplyFailed) -> list[Any]:
        return self.break_off(f"the program does not read its replies: {failed.text}")

    def break_off(self, text: str) -> list[Any]:
        """Give the channel up: nothing of it is answered any more."""
        if self.state != READY:
            return []
        self.state = BROKEN
        self.last_error = text
        return [e.WriteError(self.name, text), e.CloseChannel(self.name, BROKEN, False)]

    def retire(self) -> None:
        """Its program has ended: no bell is heard any more, while the directory stays for now."""
        if self.state == READY:
            self.state = CLOSED

    def bury(self, request: Request, *, pushed: bool, ticked: bool) -> None:
        """A request was carried out whose program has ended: it counts among the last words."""
        self._applied(request, pushed, ticked)

    def close(self, sweep: bool) -> list[Any]:
        self.state = CLOSED
        return [e.CloseChannel(self.name, CLOSED, sweep)]

    def _refuse(self, seq: int, line: bytes | None, code: Code, text: str, again: bool = False) -> list[Any]:
        self.line = line
        if code is not Code.STOP:
            self.last_error = f"{code.name} at clock {self.clock}: {text}"
        reply = e.Reply(self.name, format_reply(Record(False, seq, self.clock, code=code)))
        error = e.WriteError(self.name, f"{code.name} seq={seq}: {text}"[:ONE_LINE_MAX])
        if seq != self.done_seq + 1 and not again:
            return [error, reply]
        self._done(seq, code)
        return [error, *self._words(), reply]

    def _done(self, seq: int, status: Code) -> None:
        self.done_seq = seq
        self.status = status
        self.request = None

    def _words(self) -> list[Any]:
        """Everything that stands for done_seq, and then done_seq itself: a crash between the two repeats the request."""
        result = e.WriteResult(self.name, self.done_seq, self.clock, self.version, self.status, self.weight, self.pushes)
        return [result, e.SetDone(self.name, self.done_seq)]

    def _ok(self, request: Request) -> e.Reply:
        elements = self.elements if request.pulls else None
        return e.Reply(self.name, format_reply(Record(True, request.seq, self.clock, self.version, elements)))

    def _reply_again(self, line: bytes) -> e.Reply:
        """The reply to done_seq from what the page says, and the line that is still there."""
        if self.status == Code.OK:
            return self._ok(parse_request(line))
        return e.Reply(self.name, format_reply(Record(False, self.done_seq, self.clock, code=Code(self.status))))

    def _hello(self) -> e.Reply:
        return e.Reply(self.name, format_reply(Record(True, 0, self.clock, self.version, done=self.done_seq)))

    def _look_again(self) -> list[Any]:
        """A bell that rang while we worked may stand for a hello of a program that lost patience."""
        if not self.rung:
            return []
        self.rung = False
        return [e.ReadCmd(self.name)]
