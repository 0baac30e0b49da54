"""Request lines and reply records as text: reading and writing them, bounds first.

    step 12 11 n=650 w=3\n                              a request: verb seq clock [key=value ...]
    ok 12 11 v=48 n=650                          ...\n  a reply: exactly 64 bytes

Refuses to know which seq is the next one and which tables a job has: that is the agent's to judge.  Reading never
raises anything but `RequestError`.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from ..core.errors import Code, RequestError
from ..core.limits import Limits
from .page import RECORD_BYTES, REQUEST_BYTES_MAX

VERBS = ("hello", "init", "push", "pull", "pushpull", "step", "clock", "next", "ping", "bye")
#: Verbs that take a push out of `grad`, and verbs that fill `param`.
PUSHING = frozenset({"init", "push", "pushpull", "step"})
PULLING = frozenset({"init", "pull", "pushpull", "step"})
#: Verbs that may name rows of sparse tables, and verbs whose wait may be bounded.  (`init` offers whole tables only.)
SECTIONED = frozenset({"push", "pull", "pushpull", "step"})
TIMED = SECTIONED | {"clock"}
#: Verbs that may be answered before they are carried out.
ACCEPTED = TIMED - {"pull"}
KEYS = ("n", "w", "fmt", "t", "async", "table", "k", "want")

TABLES_MAX = Limits().tables_max
SEQ_MAX = (1 << 63) - 1
COUNT_MAX = 1 << 62
TIMEOUT_MS_MAX = 1 << 31
WEIGHT_MAX = 2.0**53  # the largest number up to which every count of examples is exact

_NUMBER = re.compile(r"[0-9]+\Z")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}\Z")
_WEIGHT = re.compile(r"([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?\Z")
_FORM = "<verb> <seq> <clock> [key=value ...]"


class Section(NamedTuple):
    """What a request says of one sparse table: rows pushed (`k`) and rows wanted."""

    table: str
    rows: int
    want: int


class Request(NamedTuple):
    """A request line, checked word by word.

    `n` is None when the line does not say it; `weight` counts examples; `timeout_ms` None = wait as long as it takes.
    """

    verb: str
    seq: int
    clock: int
    n: int | None = None
    weight: float = 1.0
    text: bool = False
    timeout_ms: int | None = None
    unwaited: bool = False
    sections: tuple[Section, ...] = ()

    @property
    def pushes(self) -> bool:
        return self.verb in PUSHING

    @property
    def pulls(self) -> bool:
        return self.verb in PULLING

    @property
    def takes_dense(self) -> bool:
        """Whether the dense tables take part in what it pushes and pulls: beside sections only if `n=` is said."""
        return not self.sections or self.n is not None


class Reply(NamedTuple):
    """A reply.  `done` is said in the answer to hello only; None = not said."""

    ok: bool
    seq: int
    clock: int
    version: int | None = None
    n: int | None = None
    code: Code = Code.OK
    lag: int | None = None
    stop: bool = False
    done: int | None = None
    rows: int | None = None


def seq_of(line: bytes) -> int | None:
    """The seq of a line that may be unreadable otherwise: a refusal is addressed to it.

    >>> seq_of(b"stop 7 x"), seq_of(b"nonsense")
    (7, None)
    """
    words = line[:64].split()
    if len(words) < 2 or not words[1].isdigit() or len(words[1]) > 19 or int(words[1]) > SEQ_MAX:
        return None
    return int(words[1])


def parse_request(line: bytes) -> Request:
    """Read a request line (without its newline).  Raises `RequestError` with code FORMAT or RANGE.

    >>> parse_request(b"step 12 11 n=650 w=3").weight
    3.0
    """
    if len(line) > REQUEST_BYTES_MAX:
        raise _format(f"the request line is longer than {REQUEST_BYTES_MAX} bytes")
    try:
        text = line.decode("ascii")
    except UnicodeDecodeError as error:
        raise _format(f"byte {error.start} of the request line is {line[error.start]:#04x}, which is not ASCII") from None
    words = text.split()
    if len(words) < 3:
        raise _format(f"{_shown(text)} has {len(words)} words; a request is {_FORM}")
    verb = words[0]
    if verb not in VERBS:
        raise _format(f"unknown verb {_shown(verb)}; known are {', '.join(VERBS)}")
    seq = _number(words[1], "seq", SEQ_MAX)
    clock = _number(words[2], "clock", SEQ_MAX)
    if verb == "hello" and seq != 0:
        raise _format(f"hello has seq 0, not {seq}")
    if verb != "hello" and seq == 0:
        raise _format(f"seq 0 belongs to hello; the first {verb} of a channel has seq 1")
    return _with_keys(Request(verb, seq, clock), words[3:])


def _with_keys(request: Request, words: list[str]) -> Request:
    """The request with its `key=value` words read."""
    seen: set[str] = set()
    sections: list[Section] = []
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise _format(f"{_shown(word)} is no key=value")
        if key not in KEYS:
            raise _format(f"unknown key {_shown(key)}; known are {', '.join(KEYS)}")
        if key in ("table", "k", "want"):
            _section_word(sections, request.verb, seen, key, value)
            continue
        if key in seen:
            raise _format(f"{key}= is given twice")
        seen.add(key)
        request = _with_key(request, key, value)
    _check_sections(request, sections)
    return request._replace(sections=tuple(sections)) if sections else request


def _check_sections(request: Request, sections: list[Section]) -> None:
    """Rows go the way that the verb goes."""
    if len(sections) > TABLES_MAX:
        raise _format(f"{len(sections)} table= sections, a job has at most {TABLES_MAX} tables")
    for section in sections:
        if section.rows and not request.pushes:
            raise _format(f"table={section.table} k={section.rows}: {request.verb} pushes nothing")
        if section.want and not request.pulls:
            raise _format(f"table={section.table} want={section.want}: {request.verb} pulls nothing")


def _with_key(request: Request, key: str, value: str) -> Request:
    if key == "n":
        return request._replace(n=_number(value, "n", COUNT_MAX))
    if key == "w":
        return request._replace(weight=_weight(value))
    if key == "t":
        if request.verb not in TIMED:
            raise _format(f"t= with {request.verb}, which waits for nobody; it belongs to {', '.join(sorted(TIMED))}")
        return request._replace(timeout_ms=_number(value, "t", TIMEOUT_MS_MAX))
    if key == "fmt":
        if value not in ("text", "raw"):
            raise _format(f"fmt={_shown(value)}; use fmt=text or fmt=raw")
        return request._replace(text=value == "text")
    if value not in ("0", "1"):
        raise _format(f"async={_shown(value)}; use async=1 or leave it out")
    if request.verb != "push":
        raise _format(f"async= with {request.verb}: only push can be answered before it is carried out")
    return request._replace(unwaited=value == "1")


def _section_word(sections: list[Section], verb: str, seen: set[str], key: str, value: str) -> None:
    """Take `table=`, which opens a section, or `k=` and `want=`, which belong to the one that is open."""
    if verb not in SECTIONED:
        raise _format(f"{key}= with {verb}, which moves no rows; they belong to {', '.join(sorted(SECTIONED))}")
    if key == "table":
        seen -= {"k", "want"}
        if not _NAME.match(value):
            raise _format(f"table={_shown(value)} is no name of a table")
        if any(section.table == value for section in sections):
            raise _format(f"table={value} is given twice")
        sections.append(Section(value, 0, 0))
        return
    if not sections:
        raise _format(f"{key}= stands before any table=")
    if key in seen:
        raise _format(f"{key}= is given twice for table={sections[-1].table}")
    seen.add(key)
    number = _number(value, key, COUNT_MAX)
    last = sections[-1]
    sections[-1] = last._replace(rows=number) if key == "k" else last._replace(want=number)


def format_request(request: Request) -> bytes:
    """The line for a request, newline included; `parse_request` reads it back.

    >>> format_request(Request("step", 1, 0, n=4))
    b'step 1 0 n=4\\n'
    """
    words = [request.verb, str(request.seq), str(request.clock)]
    if request.n is not None:
        words.append(f"n={request.n}")
    if request.weight != 1.0:
        words.append(f"w={_shortest(request.weight)}")
    if request.text:
        words.append("fmt=text")
    if request.timeout_ms is not None:
        words.append(f"t={request.timeout_ms}")
    if request.unwaited:
        words.append("async=1")
    for section in request.sections:
        words.append(f"table={section.table}")
        if section.rows:
            words.append(f"k={section.rows}")
        if section.want:
            words.append(f"want={section.want}")
    line = " ".join(words).encode() + b"\n"
    if len(line) > REQUEST_BYTES_MAX + 1:
        raise _format(f"the request line would have {len(line) - 1} bytes, {REQUEST_BYTES_MAX} is the most")
    return line


def format_reply(reply: Reply) -> bytes:
    """The 64 bytes of a reply.  Where large numbers leave no room, `lag`, then `k`, `n`, `v` are left out; `stop` is said with ok.

    >>> format_reply(Reply(True, 12, 11, version=48))[:16]
    b'ok 12 11 v=48   '
    """
    for dropped in (0, 1, 2, 3, 4):
        words = ["ok" if reply.ok else "err", str(reply.seq), str(reply.clock)]
        if reply.done is not None:
            words.append(f"done={reply.done}")
        if reply.version is not None and dropped < 4:
            words.append(f"v={reply.version}")
        if reply.n is not None and dropped < 3:
            words.append(f"n={reply.n}")
        if reply.rows is not None and dropped < 2:
            words.append(f"k={reply.rows}")
        if reply.lag is not None and dropped < 1:
            words.append(f"lag={reply.lag}")
        if not reply.ok:
            words.append(f"code={reply.code.name}")
        elif reply.stop:
            words.append("stop=1")
        text = " ".join(words)
        if len(text) < RECORD_BYTES:
            break
    assert len(text) < RECORD_BYTES, "done= belongs to hello, whose seq is 0"
    return text.encode().ljust(RECORD_BYTES - 1) + b"\n"


def parse_reply(record: bytes) -> Reply:
    """Read a record; unknown keys are passed over, so that a later agent may say more.  Raises `RequestError` FORMAT."""
    if len(record) != RECORD_BYTES or not record.endswith(b"\n"):
        raise _format(f"a reply has {RECORD_BYTES} bytes and ends in a newline, this one has {len(record)}")
    try:
        words = record.decode("ascii").split()
    except UnicodeDecodeError:
        raise _format("a reply is ASCII") from None
    if len(words) < 3 or words[0] not in ("ok", "err"):
        raise _format(f"a reply is ok|err <seq> <clock> ..., not {_shown(' '.join(words))}")
    values: dict[str, int] = {}
    code = Code.OK
    for word in words[3:]:
        key, _equals, value = word.partition("=")
        if key == "code":
            if value not in Code.__members__:
                raise _format(f"unknown code {_shown(value)} in a reply")
            code = Code[value]
        elif key in ("v", "n", "k", "lag", "stop", "done"):
            values[key] = _number(value, key, (1 << 64) - 1, digits=20)
    if (words[0] == "ok") != (code is Code.OK):
        raise _format(f"a reply with {words[0]} and code={code.name}")
    return Reply(
        words[0] == "ok", _number(words[1], "seq", SEQ_MAX), _number(words[2], "clock", SEQ_MAX),
        values.get("v"), values.get("n"), code, values.get("lag"), values.get("stop") == 1, values.get("done"), values.get("k"),
    )  # fmt: skip


def _number(word: str, what: str, most: int, digits: int = 19) -> int:
    if not _NUMBER.match(word):
        raise _format(f"{what} {_shown(word)} is no whole number from 0 on")
    if len(word) > digits or int(word) > most:
        raise RequestError(Code.RANGE, f"{what} {_shown(word)[1:-1]} is above {most}")
    return int(word)


def _shortest(weight: float) -> str:
    """The weight as a program would write it."""
    return repr(weight).removesuffix(".0")


def _weight(word: str) -> float:
    if not _WEIGHT.match(word):
        raise _format(f"w={_shown(word)} is no number (digits, with '.' for the decimal point)")
    weight = float(word)
    if not math.isfinite(weight) or weight > WEIGHT_MAX:
        raise RequestError(Code.RANGE, f"w={_shown(word)}: a weight is from 0 to 2^53")
    return weight


def _format(text: str) -> RequestError:
    return RequestError(Code.FORMAT, text)


def _shown(word: str) -> str:
    """A stranger's word, short enough for a log line."""
    return repr(word if len(word) <= 40 else word[:37] + "...")
