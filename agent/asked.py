"""What may be asked at agent.sock, and how it is answered: fields and their kinds, checked before anything is done."""

from __future__ import annotations

from typing import Any, TypeVar

from ..core.errors import UsageError, shown
from ..core.job import JobSpec
from . import effects as e
from .router import Job, code_of

TEXT_MAX = 4096
K = TypeVar("K")
_NUMBER_MAX = (1 << 32) - 1
#: op -> its fields, each with its kind; a "?" in front: may be left out.
FIELDS: dict[str, dict[str, str]] = {
    "hello": {"version": "number"},
    "register": {"spec": "document", "job": "?number", "joined": "?number"},
    "join": {"job": "text", "workers": "number", "launcher": "text"},
    "attach": {"job": "text", "run": "?number", "worker": "number"},
    "opened": {"job": "text", "worker": "number", "gen": "number", "dir": "text"},
    "exited": {"job": "text", "run": "?number", "worker": "number", "gen": "number", "how": "text", "clock": "?number"},
    "standing": {"job": "text", "run": "?number"},
    "export": {"job": "text", "run": "?number", "dir": "text", "at": "?number"},
    "stop": {"job": "text", "run": "?number", "reason": "text"},
    "checkpoint": {"job": "text", "run": "?number"},
    "end": {"job": "text", "run": "?number", "state": "text", "reason": "text"},
    "stat": {},
}


class Ticket:
    """One request and who waits for its answer."""

    __slots__ = ("connection", "id", "op", "job", "worker", "gen", "spec", "how", "clock", "name", "first", "token", "guest")

    def __init__(self, connection: int, number: Any, op: str) -> None:
        self.connection = connection
        self.id = number
        self.op = op
        self.job: Job | None = None
        self.worker = 0
        self.gen = 0
        self.spec: JobSpec | None = None
        self.how = ""
        self.clock: int | None = None
        self.name = ""  # join: of the job
        self.first = 0  # and the number of the first of the workers
        self.token = 0  # and the version of the map that knows of them
        self.guest = False  # its launcher has joined a job that another one began


def yes(ticket: Ticket, fields: dict[str, Any]) -> list[Any]:
    return [e.Tell(ticket.connection, {"id": ticket.id, "ok": True, **fields})]


def no(ticket: Ticket, code: int, text: str) -> list[Any]:
    return [e.Tell(ticket.connection, {"id": ticket.id, "ok": False, "code": code_of(code).name, "text": text})]


def checked(document: dict[str, Any]) -> dict[str, Any]:
    """The fields of a request, each of its kind.  Raises `UsageError`.

    >>> checked({"op": "attach", "id": 1, "job": "digits", "worker": 0})
    {'job': 'digits', 'worker': 0}
    """
    op = document.get("op")
    if not isinstance(op, str) or op not in FIELDS:
        raise UsageError(f"unknown op {shown(op)}; known are {', '.join(FIELDS)}")
    if not isinstance(document.get("id"), (int, str)):
        raise UsageError(f"{op}: id {shown(document.get('id'))} is neither a number nor a text")
    known = FIELDS[op]
    for key in document:
        if key not in known and key not in ("op", "id"):
            raise UsageError(f"{op}: unknown field {shown(key)}; known are {', '.join(known) or 'none'}")
    fields = {}
    for key, kind in known.items():
        if key not in document:
            if kind.startswith("?"):
                continue
            raise UsageError(f"{op}: the field {key} is missing")
        value = document[key]
        if not _is_kind(value, kind.lstrip("?")):
            raise UsageError(f"{op}: {key} {shown(value)} is no {kind.lstrip('?')}")
        fields[key] = value
    return fields


def _is_unicode(text: str) -> bool:
    """JSON may hold halves of a surrogate pair, which no message can."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _is_kind(value: object, kind: str) -> bool:
    if kind == "number":
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _NUMBER_MAX
    if kind == "text":
        return isinstance(value, str) and len(value) <= TEXT_MAX and "\0" not in value and _is_unicode(value)
    return isinstance(value, dict)


def without(table: dict[K, list[Ticket]], connection: int) -> dict[K, list[Ticket]]:
    """The tickets of all other connections."""
    kept = {key: [ticket for ticket in tickets if ticket.connection != connection] for key, tickets in table.items()}
    return {key: tickets for key, tickets in kept.items() if tickets}
