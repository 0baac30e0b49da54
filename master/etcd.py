"""The state store of several masters: keys of an etcd cluster, through its v3 JSON gateway and the standard library alone.

Owns connections, timeouts, the turn of endpoints and the classing of every answer.  Refuses to know what a value means,
and to agree about anything: that is etcd's part.

    version    the key's mod_revision, 0 = absent: it never comes back, also when a key was deleted and made again
    ok         etcd says that the compare held, so a majority has the write on its disks
    conflict   etcd says that it did not, and what stands there instead
    unknown    anything else: no endpoint answered in time, or it said that it does not know (no leader, timeout, full)

One question is put to each endpoint at most once; whichever answers is asked first the next time.  That is harmless,
since the very same compare-and-swap may be repeated: if an earlier try was stored, a later one meets its own value.
What would be the same at every endpoint and can never get better (no etcd there, a password wanted) raises `WorldError`.
"""

from __future__ import annotations

import base64
import http.client
import json
import socket
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from ..core.errors import UsageError, WorldError
from .effects import CONFLICT, OK, UNKNOWN
from .store import Swapped

T = TypeVar("T")

SCHEME = "etcd://"
TRY_S = 1.0  # for one endpoint: a leading master must find another one before it gives up its reign
ANSWER_BYTES_MAX = 8 << 20  # a value of 1 MiB has 1.4 MB in base64
PATHS = {"txn": "/v3/kv/txn", "range": "/v3/kv/range"}
#: Of etcd's errors (gRPC codes) those that another try, or another endpoint, may not meet.
INVALID, EXHAUSTED, UNAUTHENTICATED, DENIED = 3, 8, 16, 7


class Endpoint(NamedTuple):
    """Where a member of the etcd cluster listens: a path of a unix socket, or host and port."""

    path: str
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        return self.path or (f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}")


def endpoints_of(url: str) -> tuple[Endpoint, ...]:
    """The endpoints in `etcd://host:port,host:port,/path/of/socket`.  Raises `UsageError`.

    >>> endpoints_of("etcd://127.0.0.1:2379,[::1]:2379,/run/etcd.sock")[1:]
    (Endpoint(path='', host='::1', port=2379), Endpoint(path='/run/etcd.sock', host='', port=0))
    """
    found = []
    for part in url.removeprefix(SCHEME).split(","):
        host, colon, port = part.rpartition(":")
        if part.startswith("/"):
            found.append(Endpoint(part))
        elif url.startswith(SCHEME) and host and colon and port.isdecimal() and 0 < int(port) < 65536:
            found.append(Endpoint("", host.removeprefix("[").removesuffix("]"), int(port)))
        else:
            raise UsageError(f"{part!r} in {url!r} is no place of an etcd: give etcd://HOST:PORT,HOST:PORT or etcd:///PATH/OF/SOCKET")
    return tuple(found)


class EtcdStore:
    """`prefix` goes before every key, so that several clusters may share an etcd.  One key is asked for by one thread."""

    def __init__(self, url: str, prefix: str, try_s: float = TRY_S) -> None:
        self.endpoints = endpoints_of(url)
        self.prefix = prefix
        self._try_s = try_s
        self._lines: dict[str, _Line] = {}  # by key

    def read(self, key: str) -> tuple[bytes, int]:
        """Value and version; (b"", 0) if there is none.  Raises `Unsure` if no endpoint says."""
        return self._ask(key, "range", {"key": self._key(key)}, _standing)

    def cas(self, key: str, version: int, value: bytes) -> Swapped:
        name = self._key(key)
        question = {
            "compare": [{"key": name, "target": "MOD", "result": "EQUAL", "mod_revision": str(version)}],
            "success": [{"request_put": {"key": name, "value": base64.b64encode(value).decode()}}],
            "failure": [{"request_range": {"key": name}}],
        }  # fmt: skip

        def outcome(answer: dict[str, Any]) -> Swapped:
            if answer.get("succeeded") is True:
                return Swapped(OK, _number(answer["header"]["revision"]), value)
            stored, stored_version = _standing(answer["responses"][0]["response_range"])
            return Swapped(CONFLICT, stored_version, stored)

        try:
            return self._ask(key, "txn", question, outcome)
        except Unsure as error:
            return Swapped(UNKNOWN, 0, b"", str(error))

    def close(self) -> None:
        for line in self._lines.values():
            line.close()

    def _key(self, key: str) -> str:
        return base64.b64encode(f"{self.prefix}{key}".encode()).decode()

    def _ask(self, key: str, kind: str, question: dict[str, Any], read: Callable[[Any], T]) -> T:
        """Ask one endpoint after the other.  What the answer means is `read`'s; an answer that has none is no answer."""
        line = self._lines.setdefault(key, _Line(self.endpoints, self._try_s))
        body = json.dumps(question).encode()
        troubles: list[str] = []
        hopeless = 0
        for _ in self.endpoints:
            try:
                return read(line.post(PATHS[kind], body))
            except _Hopeless as error:
                hopeless += 1
                troubles.append(f"{line.endpoint}: {error}")
            except (_Trouble, OSError, http.client.HTTPException) as error:
                troubles.append(f"{line.endpoint}: {_words(error)}")
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                troubles.append(f"{line.endpoint}: answers what no etcd does ({error!r})")
            line.turn()
        text = f"etcd does not say what it has stored: {'; '.join(troubles)}"
        if hopeless == len(self.endpoints):
            raise WorldError(f"the state store cannot be used: {'; '.join(troubles)}")
        raise Unsure(text)


class Unsure(WorldError):
    """No endpoint has said what stands there; it may be asked again."""


class _Trouble(Exception):
    """This endpoint has not carried it out, or does not know; another one may."""


class _Hopeless(_Trouble):
    """This endpoint will say the same for ever."""


class _Line:
    """One connection at a time, to the endpoint whose turn it is."""

    def __init__(self, endpoints: tuple[Endpoint, ...], try_s: float) -> None:
        self._endpoints = endpoints
        self._try_s = try_s
        self._at = 0
        self._connection: http.client.HTTPConnection | None = None

    @property
    def endpoint(self) -> Endpoint:
        return self._endpoints[self._at]

    def turn(self) -> None:
        self.close()
        self._at = (self._at + 1) % len(self._endpoints)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def post(self, path: str, body: bytes) -> Any:
        """The answer's document.  A kept connection that was closed meanwhile is opened anew, once."""
        kept = self._connection is not None
        try:
            return self._post(path, body)
        except TimeoutError:
            raise
        except (OSError, http.client.HTTPException):
            self.close()
            if not kept:
                raise
            return self._post(path, body)

    def _post(self, path: str, body: bytes) -> Any:
        if self._connection is None:
            self._connection = _Connection(self.endpoint, self._try_s)
        self._connection.request("POST", path, body, {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        text = answer.read(ANSWER_BYTES_MAX + 1)
        if len(text) > ANSWER_BYTES_MAX:
            raise _Trouble(f"an answer of more than {ANSWER_BYTES_MAX} bytes")
        return _document(answer.status, text)


class _Connection(http.client.HTTPConnection):
    """HTTP to an endpoint, over TCP or a unix socket."""

    def __init__(self, endpoint: Endpoint, try_s: float) -> None:
        super().__init__(endpoint.host or "etcd", endpoint.port or None, timeout=try_s)
        self._endpoint = endpoint

    def connect(self) -> None:
        if not self._endpoint.path:
            super().connect()
            return
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._endpoint.path)


def _document(status: int, text: bytes) -> Any:
    """What etcd says, or what is wrong with it."""
    try:
        document = json.loads(text)
    except ValueError:
        if status == http.client.NOT_FOUND:
            raise _Hopeless("no etcd with the v3 gateway listens there (3.4 or later is needed)") from None
        raise _Trouble(f"HTTP {status} without a document") from None
    if status == http.client.OK and isinstance(document, dict) and "error" not in document:
        return document
    said, code = "", None
    if isinstance(document, dict):
        said, code = str(document.get("error") or document.get("message") or ""), document.get("code")
    said = (said or f"HTTP {status}")[:300]
    if code in (UNAUTHENTICATED, DENIED) or "user name is empty" in said:
        raise _Hopeless(f"{said}: it asks for a password, which plugml does not have; give it an etcd without --auth")
    if code == INVALID:
        raise _Hopeless(f"{said}: start it with --max-request-bytes 2097152 or more" if "too large" in said else said)
    if code == EXHAUSTED:
        raise _Trouble(f"{said}: compact and defragment it (etcdctl compact, etcdctl defrag, etcdctl alarm disarm)")
    raise _Trouble(said)


def _standing(found: dict[str, Any]) -> tuple[bytes, int]:
    """Value and version in the answer to a range; zeros and empty strings are left out of it."""
    pairs = found.get("kvs", [])
    if not pairs:
        _number(found["header"]["revision"])  # an answer that has neither is none
        return b"", 0
    return base64.b64decode(pairs[0].get("value", ""), validate=True), _number(pairs[0]["mod_revision"])


def _number(value: Any) -> int:
    """A positive 64-bit number, which JSON carries as a string."""
    number = int(value)
    if number < 1:
        raise ValueError(f"{value!r} is no revision")
    return number


def _words(error: Exception) -> str:
    """An error of the socket in words that a person knows."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
