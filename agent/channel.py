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
So does a line whose seq cannot be read: who waits for an answer waits for that of done_seq + 1.  Only AGAIN does not: the
program rings again with the same line.

`clock` counts the clocks that the worker has finished: it is the one to go on with, and every reply says it.  A program
that repeats a clock under a new seq is told so; the request that an earlier agent left unfinished is not, since the
page's words of done_seq still say the clock before it.

A request that was *accepted* (async=1, or t= ran out) is answered before it is carried out.  It counts at once: its
weight among those of its clock, its tick in `clock`.  Until that tick is heard the sums of weights stay those of the
clock before (`owed`); what fails after all is undone when the program is told so.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from zlib import crc32

from ..core.errors import Code, RequestError
from ..shm_protocol.page import BROKEN, CLOSED, FLAG_OWED, FLAG_PIECE, FLAG_STOP, FLAG_TOLD, READY
from ..shm_protocol.request import Reply as Record
from ..shm_protocol.request import Request, format_reply, parse_request, seq_of
from . import effects as e

#: Verbs that belong to a clock.  (`init` and `bye` concern the whole job, `ping` nobody.)
CLOCKED = frozenset({"push", "pull", "pushpull", "step", "clock"})
ONE_LINE_MAX = 4000
#: Said when values could not be handed over: the reply's clock tells how far the request came.
TAKEN = "what was asked is done, only its values could not be handed over: pull"


#: Verbs that no worker may ask any more once the job's last clock is over.
STOPPED = frozenset({"push", "pushpull", "step", "clock"})
DENSE = ""  # the name under which the dense tables are weighed: they always take part together


_DENSE_ALONE = (DENSE,)


def tables_of(request: Request) -> tuple[str, ...]:
    """Names of the sparse tables that take part, and DENSE if the dense ones do."""
    if not request.sections:
        return _DENSE_ALONE
    names = tuple(section.table for section in request.sections)
    return names if request.n is None else (DENSE, *names)


def combined(one: int, other: int) -> int:
    """Samples of two pushes of a clock as one; 0 stays out of it: those bytes were all zero."""
    if not one or not other:
        return one or other
    return crc32(other.to_bytes(4, "little"), one) or 1


class Answer(NamedTuple):
    """What an ok says beside seq and clock."""

    version: int
    lag: int | None = None
    stop: bool = False
    n: int | None = None  # of `next`: bytes of `data`


class Channel:
    """The program's side of one stream (worker, gen)."""

    __slots__ = (
        "name", "job", "number", "worker", "gen", "done_seq", "cur_seq", "clock", "version", "status", "sums", "owed", "crc",
        "pushes", "elements", "state", "line", "request", "looked", "taken_up", "rung", "said_bye", "kept", "seen_us", "last_error", "refused", "reading",
        "stopped", "piece", "piece_owed", "abandoned", "data_bytes",
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
        # Sums of the weights of this clock's pushes, by table: a push counts for the tables that take part in it.
        self.sums = {**({DENSE: opened.weight} if opened.weight else {}), **dict(opened.sums)}
        self.owed = bool(opened.flags & FLAG_OWED)  # `sums` are those of clock - 1, whose tick is under way
        self.crc = 0  # sample of this clock's pushes
        self.pushes = opened.pushes
        self.elements = opened.elements
        self.data_bytes = opened.data_bytes  # at adoption
        self.state = READY
        self.line: bytes | None = None  # the line that was answered last
        self.request: Request | None = None  # the one being worked on
        self.looked = False  # cmd was read once since we opened the channel
        self.taken_up = False  # `request` was begun by an earlier agent
        self.rung = False  # the bell rang while we worked
        self.said_bye = False
        self.abandoned = False  # its program has ended while requests of it are still on their way
        self.kept = True  # its launcher lives, as far as we know
        self.seen_us = now_us  # when the program was last heard
        self.last_error = ""
        self.refused = 0  # requests
        self.reading: bytes | None = None  # the line of `request`
        self.stopped = opened.stop  # the program was told that its job ends at this clock
        self.piece: tuple[int, int] | None = None  # (piece, turn) that was handed out, but could not be written
        self.piece_owed = bool(opened.flags & FLAG_PIECE)  # there is one, though it may be another agent that knew it

    def adopted(self, ticking: bool) -> None:
        """Is the end of the clock before still under way?  If not, its weights have done their work."""
        if self.owed and not ticking:
            self._end_clock()

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
            return self.finish(Answer(self.version, stop=self.stopped))
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
        if request.verb in CLOCKED and request.clock != self.clock:
            raise RequestError(Code.SEQ, f"clock {request.clock} is not this worker's next one: {self.clock} is")
        if request.n is not None and request.n != self.elements and (request.pushes or request.pulls):
            raise RequestError(Code.SIZE, f"n={request.n}, but the job's dense tables have {self.elements} elements")

    # -- answers

    def finish(self, answer: Answer, *, pushed: bool = False, ticked: bool = False, crc: int = 0) -> list[Any]:
        """The request succeeded: what is to be written, in order, and then the reply."""
        request = self.request
        assert request is not None
        self._applied(request, pushed, ticked, crc)
        return self._succeed(request, answer)

    def fail(self, code: Code, text: str, *, pushed: bool = False, held: tuple[str, ...] = (), ticked: bool = False, crc: int = 0, told: bool = False) -> list[Any]:
        """The request failed, definitely or not as the code says; it counts as done, and so does what of it was taken.

        `held`: tables of which some ranges have taken their part of a push that others refused.  `told`: the text is about a push that was accepted before.
        """
        request = self.request
        assert request is not None
        self._weigh(held, request.weight)
        self._applied(request, pushed, ticked, crc)
        return self._refuse(request.seq, self.reading, code, text, told=told) + self._look_again()

    def accept(self, answer: Answer | None, text: str, *, ticking: bool) -> list[Any]:
        """The request will be carried out behind the program's back: ok, or (no answer) TIMEOUT."""
        request = self.request
        assert request is not None
        assert not self.owed, "the clock before is not over"
        if request.pushes:
            self._weigh(tables_of(request), request.weight)
            self.pushes += 1
        if ticking:
            self.clock += 1
            self.owed = True
        if answer is not None:
            return self._succeed(request, answer)
        return self._refuse(request.seq, self.reading, Code.TIMEOUT, text) + self._look_again()

    def carried(self, crc: int, *, ticking: bool) -> None:
        """An accepted request is where it belongs."""
        self.crc = combined(self.crc, crc)
        if ticking and self.owed:
            self._end_clock()

    def undo(self, request: Request, *, ticking: bool, pushed: bool, held: tuple[str, ...] = ()) -> None:
        """An accepted request has failed: it does not count, but for what ranges hold of it."""
        if ticking and self.owed:
            self.clock -= 1
            self.owed = False
        if request.pushes and not pushed:
            self._weigh(tuple(name for name in tables_of(request) if name not in held), -request.weight)
            self.pushes -= 1

    def again(self, text: str) -> list[Any]:
        """No room just now: nothing was done, and the same line may be rung for again."""
        request = self.request
        assert request is not None
        self.request = None
        self.last_error = f"AGAIN at clock {self.clock}: {text}"
        error = e.WriteError(self.name, f"AGAIN seq={request.seq}: {text}"[:ONE_LINE_MAX])
        reply = e.Reply(self.name, format_reply(Record(False, request.seq, self.clock, code=Code.AGAIN)))
        return [error, e.SetState(self.name, READY), reply, *self._look_again()]

    def on_param_failed(self, failed: e.ParamFailed) -> list[Any]:
        """`param` could not be written after all.  The performer holds back what stands for success until WriteError."""
        return self._refuse(self.done_seq, self.line, failed.code, f"{failed.text}; {TAKEN}", again=True)

    def _applied(self, request: Request, pushed: bool, ticked: bool, crc: int) -> None:
        if pushed:
            self._weigh(tables_of(request), request.weight)
            self.pushes += 1
            self.crc = combined(self.crc, crc)
        if ticked:
            self.clock += 1
            self._end_clock()

    def _weigh(self, names: tuple[str, ...], weight: float) -> None:
        for name in names:
            self.sums[name] = max(0.0, self.sums.get(name, 0.0) + weight)

    def _end_clock(self) -> None:
        self.sums = {}
        self.crc = 0
        self.owed = False

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
        self._applied(request, pushed, ticked, 0)

    def close(self, sweep: bool) -> list[Any]:
        self.state = CLOSED
        return [e.CloseChannel(self.name, CLOSED, sweep)]

    def _refuse(self, seq: int, line: bytes | None, code: Code, text: str, again: bool = False, told: bool = False) -> list[Any]:
        self.line = line
        if code is not Code.STOP:
            self.last_error = f"{code.name} at clock {self.clock}: {text}"
        reply = e.Reply(self.name, format_reply(Record(False, seq, self.clock, code=code)))
        error = e.WriteError(self.name, f"{code.name} seq={seq}: {text}"[:ONE_LINE_MAX])
        if seq != self.done_seq + 1 and not again:
            return [error, reply]
        self._done(seq, code)
        return [error, *self._words(FLAG_TOLD if told else 0), reply]

    def _succeed(self, request: Request, answer: Answer) -> list[Any]:
        self.version = answer.version
        self.stopped = answer.stop
        self._done(request.seq, Code.OK)
        self.line = self.reading
        return [*self._words(0), self._ok(request, answer), *self._look_again()]

    def _done(self, seq: int, status: Code) -> None:
        self.done_seq = seq
        self.status = status
        self.request = None

    def _words(self, flags: int) -> list[Any]:
        """Everything that stands for done_seq, and then done_seq itself: a crash between the two repeats the request."""
        flags |= (FLAG_OWED if self.owed else 0) | (FLAG_STOP if self.stopped else 0) | (FLAG_PIECE if self.piece_owed else 0)
        weight, sums = self.sums.get(DENSE, 0.0), tuple((name, weight) for name, weight in self.sums.items() if name != DENSE)
        result = e.WriteResult(self.name, self.done_seq, self.clock, self.version, self.status, weight, self.pushes, flags, sums)
        return [result, e.SetDone(self.name, self.done_seq)]

    def _ok(self, request: Request, answer: Answer) -> e.Reply:
        n, rows = answer.n, 0
        if request.pulls:
            n = self.elements if request.takes_dense else None
            rows = sum(section.want for section in request.sections) if request.sections else 0
        record = Record(True, request.seq, self.clock, answer.version, n, lag=answer.lag, stop=answer.stop, rows=rows or None)
        return e.Reply(self.name, format_reply(record))

    def _reply_again(self, line: bytes) -> e.Reply:
        """The reply to done_seq from what the page says, and the line that is still there."""
        if self.status == Code.OK:
            request = parse_request(line)
            return self._ok(request, Answer(self.version, stop=self.stopped, n=self.data_bytes if request.verb == "next" else None))
        return e.Reply(self.name, format_reply(Record(False, self.done_seq, self.clock, code=Code(self.status))))

    def _hello(self) -> e.Reply:
        return e.Reply(self.name, format_reply(Record(True, 0, self.clock, self.version, done=self.done_seq)))

    def _look_again(self) -> list[Any]:
        """A bell that rang while we worked may stand for a hello of a program that lost patience."""
        if not self.rung:
            return []
        self.rung = False
        return [e.ReadCmd(self.name)]
