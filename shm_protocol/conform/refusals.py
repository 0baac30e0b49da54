"""Which sentence a request breaks that the agent has to refuse: from the line, the code, and the file that the text names."""

from __future__ import annotations

import re

from ...core.errors import Code, RequestError
from ..page import REQUEST_BYTES_MAX
from ..request import KEYS, VERBS, Request, seq_of

_NUMBERS = ("n", "t", "k", "want")
_FILE = re.compile(r"\b(grad|gidx|want)(\.txt)?\b|\b(gkey|wkey)\b")


def rule_of_line(line: bytes, error: RequestError) -> str:
    """For a line that cannot be read, or is none of the next request."""
    words = line.decode("ascii", errors="replace").split()
    if len(line) > REQUEST_BYTES_MAX or not line.isascii() or len(words) < 3:
        return "4.1"
    if words[0] not in VERBS:
        return "4.4"
    if not all(word.isascii() and word.isdigit() for word in words[1:3]):
        return "4.8"
    if error.code is Code.SEQ or (seq_of(line) == 0) != (words[0] == "hello"):
        return "4.5"
    for word in words[3:]:
        key, equals, value = word.partition("=")
        if not equals or key not in KEYS:
            return "4.7"
        if (key in _NUMBERS and not value.isdigit()) or key == "w" or error.code is Code.RANGE:
            return "4.8"
    return "4.7"


def rule_of_request(request: Request, error: RequestError) -> str:
    """For a line that says what it may say, in vain."""
    if error.code is Code.SEQ:
        return "4.6"
    if error.code is Code.GONE:
        return "9.9"
    if error.code is Code.PERM:
        return "1.9"
    if error.code is Code.COLLIDE:
        return "3.19"
    if error.code is Code.NONFINITE:
        return "3.9" if request.text else "3.5"
    if request.verb == "next":
        return "4.14"
    found = _FILE.search(error.text)
    named = found[0] if found else ""
    if error.code is Code.SIZE:
        return _rule_of_size(request, named)
    if error.code is Code.FORMAT:
        return {"grad.txt": "3.8", "gidx.txt": "3.20", "want.txt": "3.20", "gkey": "3.18", "wkey": "3.18"}.get(named, "4.12")
    return _rule_of_range(error.text, named)


def _rule_of_size(request: Request, named: str) -> str:
    if named in ("gkey", "wkey"):
        return "3.17"
    if named.endswith(".txt"):
        return "3.7" if named == "grad.txt" else "3.20"
    if named in ("gidx", "want"):
        return "3.14"
    return "3.3" if request.n is None else "3.4"


def _rule_of_range(text: str, named: str) -> str:
    if text.startswith("row "):
        return "3.16"
    if named.endswith(".txt"):
        return "3.9" if named == "grad.txt" else "3.20"
    if "servers keep" in text:
        return "3.21"
    if "pushes" in text and "clock" in text:
        return "4.10"
    return "4.13" if "batch" in text else "4.12"
