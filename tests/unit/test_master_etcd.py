"""The state store in an etcd, judged against gateways that say odd things: every answer is ok, conflict, unknown or the end."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import socketserver
import tempfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from plugml.core.errors import UsageError, WorldError
from plugml.master.etcd import Endpoint, EtcdStore, Unsure, endpoints_of

TRY_S = 0.3
Answer = tuple[int, bytes] | None  # None = no answer: the connection is closed


def document(status: int = 200, **fields: Any) -> Answer:
    return status, json.dumps(fields).encode()


def error(status: int, text: str, code: int) -> Answer:
    return document(status, error=text, message=text, code=code)


def stored(revision: int) -> Answer:
    return document(header={"revision": str(revision)}, succeeded=True, responses=[{"response_put": {"header": {"revision": str(revision)}}}])


def standing(value: bytes, revision: int) -> Answer:
    pair = {"key": "eA==", "create_revision": "2", "mod_revision": str(revision), "version": "9", "value": base64.b64encode(value).decode()}
    if not value:
        del pair["value"]
    found = {"header": {"revision": "99"}, "kvs": [pair], "count": "1"}
    return document(header={"revision": "99"}, responses=[{"response_range": found}])


NOTHING = document(header={"revision": "99"}, responses=[{"response_range": {"header": {"revision": "99"}}}])


class Gateway(socketserver.ThreadingUnixStreamServer):
    """Listens at a socket and answers as it is told; `asked` are the questions that came."""

    daemon_threads = True

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), _Handler)
        self.path = str(path)
        self.answer: Callable[[], Answer] = lambda: stored(7)
        self.asked: list[tuple[str, Any]] = []
        self.connections = 0
        self.hang = threading.Event()  # set: answers come
        self.hang.set()
        self.closes = False  # after each answer
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def get_request(self) -> Any:
        self.connections += 1
        return super().get_request()[0], ("etcd", 0)

    def end(self) -> None:
        self.hang.set()
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Gateway

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append((self.path, json.loads(body)))
        answer = self.server.answer()
        self.server.hang.wait()
        self.close_connection = self.server.closes or answer is None
        if answer is not None:
            self.send_response(answer[0])
            self.send_header("Content-Length", str(len(answer[1])))
            self.end_headers()
            self.wfile.write(answer[1])

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:
            return  # whoever asked has gone

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def place() -> Iterator[Path]:
    """Short: a unix socket's path has at most 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="plugml-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def gateways(place: Path) -> Iterator[list[Gateway]]:
    made = [Gateway(place / f"e{number}") for number in range(3)]
    yield made
    for gateway in made:
        gateway.end()


@pytest.fixture
def store(gateways: list[Gateway]) -> Iterator[EtcdStore]:
    made = EtcdStore("etcd://" + ",".join(gateway.path for gateway in gateways), "/plugml/lab/", TRY_S)
    yield made
    made.close()


def all_say(gateways: list[Gateway], answer: Answer) -> None:
    for gateway in gateways:
        gateway.answer = lambda: answer


# -- what is asked


def test_a_swap_is_one_transaction_that_compares_the_revision(gateways: list[Gateway], store: EtcdStore) -> None:
    assert store.cas("state", 41, b"\xff\0new") == ("ok", 7, b"\xff\0new", "")
    ((path, asked),) = gateways[0].asked
    key = base64.b64encode(b"/plugml/lab/state").decode()
    assert path == "/v3/kv/txn"
    assert asked == {
        "compare": [{"key": key, "target": "MOD", "result": "EQUAL", "mod_revision": "41"}],
        "success": [{"request_put": {"key": key, "value": base64.b64encode(b"\xff\0new").decode()}}],
        "failure": [{"request_range": {"key": key}}],
    }


def test_a_refused_swap_tells_what_stands_there(gateways: list[Gateway], store: EtcdStore) -> None:
    gateways[0].answer = lambda: standing(b"theirs", 77)
    assert store.cas("state", 41, b"mine") == ("conflict", 77, b"theirs", "")
    gateways[0].answer = lambda: standing(b"", 78)
    assert store.cas("state", 41, b"mine") == ("conflict", 78, b"", "")
    gateways[0].answer = lambda: NOTHING
    assert store.cas("state", 41, b"mine") == ("conflict", 0, b"", "")


def test_a_read_gives_value_and_version(gateways: list[Gateway], store: EtcdStore) -> None:
    gateways[0].answer = lambda: document(header={"revision": "99"}, kvs=[{"mod_revision": "5", "value": "YQ=="}], count="1")
    assert store.read("leader") == (b"a", 5)
    gateways[0].answer = lambda: document(header={"revision": "99"})
    assert store.read("leader") == (b"", 0)
    assert gateways[0].asked[0] == ("/v3/kv/range", {"key": base64.b64encode(b"/plugml/lab/leader").decode()})


def test_one_connection_serves_many_questions_of_a_key(gateways: list[Gateway], store: EtcdStore) -> None:
    for _ in range(5):
        store.cas("state", 1, b"x")
    store.cas("leader", 1, b"x")
    assert gateways[0].connections == 2 and not gateways[1].asked


# -- which endpoint is asked


def test_the_next_endpoint_is_asked_where_one_is_gone_and_from_then_on(gateways: list[Gateway], place: Path) -> None:
    store = EtcdStore(f"etcd://{place}/nobody,{gateways[1].path},{gateways[2].path}", "/p/", TRY_S)
    assert [store.cas("state", 1, b"x").outcome for _ in range(3)] == ["ok"] * 3
    assert len(gateways[1].asked) == 3 and not gateways[2].asked
    store.close()


def test_an_endpoint_that_hangs_is_left_after_a_while(gateways: list[Gateway], store: EtcdStore) -> None:
    gateways[0].hang.clear()
    assert store.cas("state", 1, b"x").outcome == "ok"
    assert store.cas("state", 7, b"y").outcome == "ok"
    assert len(gateways[0].asked) == 1 and len(gateways[1].asked) == 2


@pytest.mark.parametrize(
    "answer",
    [
        error(503, "etcdserver: no leader", 14),
        error(503, "etcdserver: request timed out, possibly due to previous leader failure", 14),
        (500, b"oops"), (502, b"<html>"), (200, b"{"), (200, b"[]"), (200, b"null"), (200, b"{}"), None,
        document(header={"revision": "0"}, succeeded=True),
        document(header={"revision": "x"}, succeeded=True),
        document(succeeded=True),
        document(header={"revision": "9"}, responses=[]),
        document(header={"revision": "9"}, responses=[{"response_range": {"kvs": [{"value": "YQ=="}]}}]),
        document(header={"revision": "9"}, responses=[{"response_range": {"kvs": [{"mod_revision": "5", "value": "!"}]}}]),
        document(header={"revision": "9"}, responses=[{"response_range": {}}]),
        document(header={"revision": "9"}, succeeded="yes"),
        document(200, error="odd", code=2),
    ],
    ids=lambda answer: repr(answer)[:60],
)  # fmt: skip
def test_what_is_no_answer_is_asked_of_the_next_and_is_unknown_in_the_end(gateways: list[Gateway], store: EtcdStore, answer: Answer) -> None:
    gateways[0].answer = lambda: answer
    assert store.cas("state", 1, b"x") == ("ok", 7, b"x", "")
    all_say(gateways, answer)
    swapped = store.cas("state", 1, b"x")
    assert swapped[:3] == ("unknown", 0, b"") and all(gateway.path in swapped.text for gateway in gateways)


def test_a_read_that_nobody_answers_is_unsure(gateways: list[Gateway], store: EtcdStore) -> None:
    all_say(gateways, error(503, "etcdserver: no leader", 14))
    with pytest.raises(Unsure, match="no leader"):
        store.read("state")


def test_each_endpoint_is_asked_once_and_no_more(gateways: list[Gateway], store: EtcdStore) -> None:
    all_say(gateways, error(503, "etcdserver: no leader", 14))
    store.cas("state", 1, b"x")
    assert [len(gateway.asked) for gateway in gateways] == [1, 1, 1]


def test_nobody_there_is_unknown_in_words(place: Path) -> None:
    store = EtcdStore(f"etcd://{place}/nobody", "/p/", TRY_S)
    swapped = store.cas("state", 0, b"x")
    assert swapped.outcome == "unknown" and "No such file" in swapped.text


def test_a_kept_connection_that_was_closed_meanwhile_is_no_trouble(gateways: list[Gateway], store: EtcdStore) -> None:
    gateways[0].closes = True
    for _ in range(3):
        assert store.cas("state", 1, b"x").outcome == "ok"
    assert gateways[0].connections >= 3 and not gateways[1].asked


def test_an_answer_without_end_is_none(gateways: list[Gateway], store: EtcdStore) -> None:
    gateways[0].answer = lambda: (200, b" " * (9 << 20))
    assert store.cas("state", 1, b"x").outcome == "ok" and len(gateways[1].asked) == 1


# -- what can never get better


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ((404, b"404 page not found"), "no etcd with the v3 gateway"),
        (error(400, "etcdserver: user name is empty", 3), "asks for a password"),
        (error(401, "etcdserver: invalid auth token", 16), "asks for a password"),
        (error(403, "etcdserver: permission denied", 7), "asks for a password"),
        (error(400, "etcdserver: request is too large", 3), "--max-request-bytes"),
    ],
)
def test_a_store_that_can_never_be_used_ends_the_master_with_a_sentence(
    gateways: list[Gateway], store: EtcdStore, answer: Answer, text: str
) -> None:
    gateways[1].answer = lambda: answer
    gateways[0].answer = lambda: None
    assert store.cas("state", 1, b"x").outcome == "ok", "another endpoint may be better"
    all_say(gateways, answer)
    with pytest.raises(WorldError, match=text) as caught:
        store.cas("state", 1, b"x")
    assert not isinstance(caught.value, Unsure)


def test_a_full_etcd_is_worth_another_try_and_says_what_to_do(gateways: list[Gateway], store: EtcdStore) -> None:
    all_say(gateways, error(429, "etcdserver: mvcc: database space exceeded", 8))
    swapped = store.cas("state", 1, b"x")
    assert swapped.outcome == "unknown" and "etcdctl defrag" in swapped.text
    all_say(gateways, stored(8))
    assert store.cas("state", 1, b"x").outcome == "ok"


# -- addresses


def test_addresses_over_tcp_are_read_and_reached() -> None:
    found = endpoints_of("etcd://10.0.0.1:2379,node7:23790,[fe80::1]:2379,/run/a b/e0:1")
    assert found == (Endpoint("", "10.0.0.1", 2379), Endpoint("", "node7", 23790), Endpoint("", "fe80::1", 2379), Endpoint("/run/a b/e0:1"))
    assert [str(endpoint) for endpoint in found] == ["10.0.0.1:2379", "node7:23790", "[fe80::1]:2379", "/run/a b/e0:1"]
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    store = EtcdStore(f"etcd://127.0.0.1:{port}", "/p/", TRY_S)
    assert "refused" in store.cas("state", 0, b"x").text


@pytest.mark.parametrize("url", ["etcd://", "etcd://host", "etcd://:2379", "etcd://host:0", "etcd://host:65536", "etcd://a:1,,b:2", "http://a:1", "sqlit", "etcd://a:1,rel/path"])
def test_an_address_that_is_none_is_refused_with_a_sentence(url: str) -> None:
    with pytest.raises(UsageError, match="etcd://HOST:PORT"):
        endpoints_of(url)
