"""Judges a program by what it does to its channel: an onlooker of one conversation, sentence by sentence of SPEC.md.

Everything is noted in the agent's thread, at the moment that it is seen; `verdict.py` makes of it what is told.  How a
program ends, and that it hangs, is told by whoever runs it.
"""

from __future__ import annotations

import fcntl
import os
import struct
import termios
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from ...core.errors import Code, RequestError
from ..info import Info
from ..reading import Data
from ..request import Reply, Request
from . import guess
from .eye import CAME_BY, MADE, OPENED, REMOVED, WENT_BY, WROTE, Event, Eye
from .group import Group, Used
from .refusals import rule_of_line, rule_of_request
from .watch import Watch

PROGRAM_FILES = frozenset({"cmd", "grad", "grad.txt", "gidx", "gidx.txt", "want", "want.txt", "gkey", "wkey"})
AGENT_FILES = frozenset({"req", "rep", "reply", "ctl", "param", "param.txt", "data", "pend.0", "pend.1", "sums", "err", "info", "keeper"})
FATAL = frozenset({Code.VERSION, Code.GONE, Code.FENCED})
LINGERED = 8  # answers before which the agent waits; later ones would only cost time
#: While it waits a program is woken seldom and computes next to nothing.
SWITCHES_MAX = 4
CPU_PART_MAX = 0.3


class Breach(NamedTuple):
    """`seq` is that of the request, 0 where there is none."""

    rule: str
    seq: int
    seen: str


class Observer(Watch):
    """One worker's conversation, judged.

    `blame` says what a breach means in this case, if it is not what it seems; `distinct` that no two pushes of the program
    are alike on a good day.
    """

    def __init__(self, directory: Path, info: Info, blame: Mapping[str, str], linger_s: float = 0.0, distinct: bool = False) -> None:
        self.info = info
        self.eye = Eye(directory)
        self.group: Group | None = None
        self.blame = blame
        self.breaches: list[Breach] = []
        self.reached: set[str] = set()
        self.opened: set[str] = set()
        self.opened_first: frozenset[str] = frozenset()  # before the first request
        self.verbs: dict[int, str] = {}
        self.lines: list[bytes] = []
        self.owes = False  # the agent has a request in hand
        self.news = 0  # bells and answers so far: what does not grow is a conversation that stands still
        self.seq = 0
        self.answered = 0
        self.last_code = Code.OK
        self.said_hello = self.said_bye = False
        self.digests: dict[int, bytes] = {}
        self.before_answer: Callable[[], None] = lambda: None
        self._linger_s = linger_s
        self._directory = directory
        self._rep = os.open(directory / "rep", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._turn: list[Event] = []  # what the program has done since the last answer
        self._early: list[Event] = []  # and what while the agent had the files
        self._sent = self._own_end = unread(self._rep)
        self._own_seq = 0
        self._seeded = self._sent
        self._fatal: Code | None = None
        self._again: bytes | None = None
        self._stops = 0
        self._timed_out: Request | None = None
        self._distinct = distinct
        self._written: set[str] = set()  # before the bell of the request in hand
        self._rung = False
        self._line = b""
        self._empty_bell = False
        self._used: Used | None = None

    def close(self) -> None:
        self.look()
        self.eye.close()
        os.close(self._rep)

    @property
    def linger_s(self) -> float:  # type: ignore[override]
        return self._linger_s if self.answered < LINGERED else 0.0

    def forget(self) -> None:
        """What has happened so far was nobody's of the program."""
        self.eye.look()

    # -- events of files

    def look(self) -> None:
        """Note what has happened to the files since the last look.  Only the thread that serves may do it."""
        for event in self.eye.look():
            if event.kind & OPENED:
                self.opened.add(event.name)
            if event.name in AGENT_FILES and event.kind & (WENT_BY | CAME_BY | MADE | REMOVED):
                self.breach("1.9", f"{event.name} was {_done(event.kind)}")
            if event.name in PROGRAM_FILES and event.kind & (WROTE | CAME_BY | MADE | WENT_BY | REMOVED):
                (self._early if self.owes or self._rung else self._turn).append(event)

    def let_ring(self) -> None:
        """The program sleeps in its bell: what it does from here on comes after it."""
        self.look()
        self._rung = True

    def rang(self, adopted: bool) -> None:
        self.look()
        self.news += 1

    def rang_for_nothing(self, line: bytes | None) -> None:
        self._empty_bell = True

    # -- a request

    def took(self, seq: int, line: bytes) -> None:
        if self.owes and seq == self.seq and line == self._line:
            return  # the next agent has found what the dead one had in hand
        self.look()
        # A hello is answered at any bell: also at one that came before its line.
        self._empty_bell = seq == 0 and self._line == line and not any(event.name == "cmd" for event in self._turn)
        self._check_fatal(seq, line)
        self._check_replies_read(seq)
        if self.said_bye and self._again is None:
            self.breach("9.9", f"after bye came {_shown(line)}", seq)
        if not self.lines:
            self.opened_first = frozenset(self.opened)
        self.seq, self._line = seq, line
        self.lines.append(line)
        self.verbs[seq] = line.split(b" ", 1)[0].decode(errors="replace")
        self.said_hello |= seq == 0
        self.said_bye |= self.verbs[seq] == "bye"
        self._check_turn(seq, line)
        if self.verbs[seq] == "pull":
            self._timed_out = None
        if self._again is not None:
            if line != self._again:
                self.breach("6.10", f"after AGAIN for {_shown(self._again)} came {_shown(line)}", seq)
            self.reached.add("6.10")
            self._again = None
        self.reached |= {"1.9", "1.10", "4.1", "4.2", "4.4", "4.5", "4.8", "5.1", "5.2"}
        if self.said_bye:
            self.reached.add("9.9")
        if self.verbs[seq] == "next":
            self.reached.add("4.14")
        if self.verbs[seq] in ("step", "push", "pull", "pushpull", "clock"):
            self.reached.add("4.6")
        if b"=" in line:
            self.reached.add("4.7")
        self._written = {event.name for event in self._turn}
        self._turn = []
        self.owes, self._rung = True, False

    def _check_fatal(self, seq: int, line: bytes) -> None:
        if self._fatal is not None:
            self.breach("8.2", f"after {self._fatal.name} came {_shown(line)}", seq)

    def _check_replies_read(self, seq: int) -> None:
        """Who asks again has read the answer to what was asked before."""
        if self.info.bell != "fifo" or self._own_end == self._seeded:
            return
        read = self._sent - unread(self._rep)
        if read <= self._seeded:
            self.breach("5.8", f"{self._sent // 64} replies lie in rep and none was read", seq)
        elif read < self._own_end:
            self.breach("5.4", f"the reply to request {self.seq} was not read: {(self._sent - read) // 64} records lie in rep", seq)
        self.reached |= {"5.4", "5.5", "5.8"}

    def _check_turn(self, seq: int, line: bytes) -> None:
        """What was written since the last answer, in order."""
        writes = [at for at, event in enumerate(self._turn) if event.name == "cmd"]
        size = self._size("cmd")
        if size > len(line) + 1 and writes and all(self._turn[at].kind & WROTE for at in writes):
            if len(writes) > 1:
                self.breach("4.3", f"cmd, which has {size} bytes, was not truncated and the line came in {len(writes)} writes", seq)
            self.reached.add("4.3")
        late = {event.name for event in self._turn[writes[-1] :] if event.name != "cmd"} if writes and self._rung else set()
        if late:
            self.breach("5.2", f"{', '.join(sorted(late))} was written after cmd", seq)

    def _size(self, name: str) -> int:
        try:
            return os.stat(self._directory / name).st_size
        except OSError:
            return 0

    def read(self, request: Request, data: Data) -> None:
        self.reached |= guess.reached(request, data, self.info)
        seen = guess.foreign_numbers(data, self.info)
        if seen:
            self.breach("3.1", seen, request.seq)
        if not request.pushes:
            return
        self.digests[request.seq] = guess.digest(data)
        if self._timed_out is not None and self._distinct and self.digests.get(self._timed_out.seq) == self.digests[request.seq]:
            self.breach("4.17", f"the push of request {self._timed_out.seq}, which had timed out, came again", request.seq)
        self._timed_out = None

    def refused(self, seq: int, request: Request | None, line: bytes, error: RequestError, scripted: bool) -> None:
        if scripted:
            self._note_refusal(seq, request, error.code)
            return
        if error.code is Code.NOSPC:
            return  # the host's affair
        rule = rule_of_line(line, error) if request is None else rule_of_request(request, error)
        if self.said_bye:
            rule = "9.9"
        if self._again is not None:
            rule = "6.10"
        elif self._fatal is not None:
            rule = "8.2"
        elif self._timed_out is not None and request is not None and error.code is Code.SEQ and request.clock == self._timed_out.clock:
            rule = "4.17"
        self.breach(rule, f"{_shown(line)}: {error.code.name}: {error.text}", seq)

    def _note_refusal(self, seq: int, request: Request | None, code: Code) -> None:
        if code in FATAL:
            self._fatal = code
        if code is Code.TIMEOUT:
            self._timed_out = request
            self.reached.add("4.17")
        if code is Code.STOP:
            self._stops += 1
            if self._stops > 1:
                self.breach("6.7", f"after STOP came {_shown(self._line)}", seq)

    # -- the wait and the answer

    def waiting(self, seq: int) -> None:
        self._used = self.group.used() if self.group is not None else None

    def waited(self, seq: int) -> None:
        self.look()
        if self.group is None or self._used is None:
            return
        now, before = self.group.used(), self._used
        self.reached.add("5.9")
        switches, part = now.switches - before.switches, now.cpu_part(before)
        if part > CPU_PART_MAX or (switches > SWITCHES_MAX and not self.group.blocked_on_pipe("read")):
            self.breach("5.9", f"while it waited for the reply it woke {switches} times and used {part:.0%} of a processor", seq)

    def answers(self, reply: Reply, request: Request | None, stale: bool) -> None:
        self.look()
        self.before_answer()
        if not self._early:
            return
        names = sorted({event.name for event in self._early})
        self._early = []
        late = [name for name in names if name != "cmd" and name not in self._written]
        if late and request is not None and request.pushes and "cmd" not in names:
            self.breach("5.2", f"{', '.join(late)} was written only after the bell", reply.seq)
            return
        if stale and "cmd" in names:
            self.breach("5.4", f"{', '.join(names)} was written after the reply to another request, before its own", reply.seq)
            return
        self.breach("1.10", f"{', '.join(names)} was written between the bell and the reply", reply.seq)

    def sent(self, reply: Reply | None) -> None:
        self._sent += 64
        self.news += 1
        if reply is None:
            return
        if reply.seq != self._own_seq or not reply.seq or self._again is not None:
            self._own_end = self._sent  # a repeat after an agent's death may come when the program has read the first one
        self._own_seq = reply.seq
        self.owes = False
        self.answered += 1
        self.last_code = reply.code
        if reply.code is Code.AGAIN:
            self._again = self._line
        if reply.stop:
            self.reached.add("6.7")

    # -- the end

    def breach(self, rule: str, seen: str, seq: int = 0) -> None:
        self.breaches.append(Breach(self.blame.get(rule, rule), seq or self.seq, seen))

    def why_it_hangs(self, ringing: bool) -> Breach:
        """The program does nothing any more, and nobody owes it an answer; `ringing`: it sleeps in a bell that is full."""
        line = self._cmd()
        if ringing and not self.line_has_come():
            return Breach("5.2", self.seq + 1, "the bell rang before cmd had its line")
        asked = line is not None and line != self._line
        if self._empty_bell and self.lines and not asked and line is not None:
            return Breach("4.5", self.seq, f"{_shown(line)} was answered already, and came again")
        if asked and self._empty_bell:
            return Breach("5.2", self.seq + 1, f"cmd holds {_shown(line or b'')}, but the bell rang before it was there")
        if asked:
            return Breach("5.1", self.seq + 1, f"cmd holds {_shown(line or b'')}, but no bell rang")
        if line is None and self._empty_bell:
            return Breach("4.2", self.seq + 1, "the bell rang, and cmd holds no newline")
        if not self.lines:
            return Breach("5.1", 0, "no bell rang, and cmd was never written")
        if self._again is not None:
            return Breach("6.10", self.seq, "after AGAIN nothing came any more")
        if self.info.bell == "fifo" and unread(self._rep):
            return Breach("5.8", self.seq, f"{unread(self._rep)} bytes of replies lie unread in rep")
        return Breach("5.5", self.seq, "the reply was read, but the program still waits: does it ask for more than 64 bytes?")

    def line_has_come(self) -> bool:
        """Whether `cmd` holds a line that was not taken up yet; the same one counts if it was written anew."""
        line = self._cmd()
        return line is not None and (line != self._line or any(event.name == "cmd" for event in self._turn))

    def _cmd(self) -> bytes | None:
        """The line that lies in `cmd`, None if there is none."""
        try:
            line, newline, _rest = (self._directory / "cmd").read_bytes()[:4096].partition(b"\n")
        except OSError:
            return None
        return line if newline else None


def unread(fifo: int) -> int:
    """Bytes that lie in it."""
    return int(struct.unpack("i", fcntl.ioctl(fifo, termios.FIONREAD, bytes(4)))[0])


def _done(kind: int) -> str:
    return "removed" if kind & REMOVED else "moved away" if kind & WENT_BY else "replaced"


def _shown(line: bytes) -> str:
    text = line.decode(errors="replace")
    return repr(text if len(text) <= 60 else text[:57] + "...")
