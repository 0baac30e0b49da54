"""The network between hosts: without a key, with a wrong one, or under another's name nobody is heard, and it is told once."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from plugml.core.errors import KeysError, WorldError
from plugml.core.limits import Limits
from plugml.runtime import gate, sockets
from plugml.runtime.keys import Keys, Trust, make_keys, read_roster
from plugml.runtime.network import Network
from plugml.runtime.sockets import call_with_keys
from plugml.wire import codec
from plugml.wire import messages as m
from plugml.wire.roles import ADMIN

from .network_host import A0, ACK, S0, Host, opened

ASK = m.LastAsk(1, 2, 3, 4, 5, 6)
A1, S1, M0, C0 = "a1.00000005", "s1.00000006", "m0", "c0.00000007"
ANY = "tcp://127.0.0.1:0"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    monkeypatch.setattr(gate, "ROSTER_S", 0.05)
    monkeypatch.setattr(gate, "REDIAL_S", 0.1)
    make_keys(tmp_path / "keys", ["m0", "s0", "s1", "a0", "a1", "admin"])
    with opened(tmp_path) as host:
        yield host


def trust(host: Host, id_: str, plain_data: bool = False) -> Trust:
    return Trust(Keys(host.directory / "keys", id_), plain_data=plain_data)


def open_keyed(host: Host, name: str, bind: str | None = None, key: str = "", **options: Any) -> Network:
    plain_data = options.pop("plain_data", False)
    return host.open(name, bind, trust=trust(host, key or name.partition(".")[0], plain_data), **options)


def pair(host: Host, **options: Any) -> tuple[Network, Network]:
    server = open_keyed(host, S0, ANY, **options)
    agent = open_keyed(host, A0, **options)
    agent.connect(S0, server.endpoint)
    agent.send(S0, ASK)
    host.until(lambda: host.got[S0])
    return server, agent


class Caller:
    """Somebody else's dealer, with whatever key and identity it likes, in a context of its own."""

    def __init__(self, endpoint: str) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self.socket: zmq.Socket[Any] = self.context.socket(zmq.DEALER)
        self.socket.set(zmq.LINGER, 0)
        self.endpoint = endpoint

    def with_keys(self, name: str, public: str, secret: str, server: str) -> Caller:
        call_with_keys(self.socket, name, public, secret, server)
        return self

    def call(self, *frames: bytes) -> None:
        self.socket.connect(self.endpoint)
        self.socket.send_multipart(frames or [bytes(frame) for frame in codec.encode(ASK)])

    def close(self) -> None:
        self.socket.close()
        self.context.destroy(linger=0)


@pytest.fixture
def caller() -> Iterator[Callable[[str], Caller]]:
    callers: list[Caller] = []

    def make(endpoint: str) -> Caller:
        callers.append(Caller(endpoint))
        return callers[-1]

    yield make
    for one in callers:
        one.close()


def still_served(host: Host, agent: Network) -> None:
    before = len(host.got[S0])
    agent.send(S0, ASK)
    host.until(lambda: len(host.got[S0]) > before)
    assert {sender for sender, _ in host.got[S0][before:]} == {A0}


# -- the good day -----------------------------------------------------------------------------------------------------


def test_with_keys_messages_go_both_ways_and_long_ones_are_lent(host: Host) -> None:
    server, agent = pair(host)
    server.send(A0, ACK)
    host.until(lambda: host.got[A0])
    assert (host.got[S0], host.got[A0]) == ([(A0, ASK)], [(S0, ACK)])
    block = np.arange(Limits().frame_bytes_max // 4, dtype="<f4")  # with the seal it is longer than a frame without keys may be
    agent.send(S0, m.Push(1, 2, 3, 4, 0, (m.Component(0, 1, 1, 0, 0, 1.0),), (m.Segment(0, 0, block.size, 1),), (block,)))
    host.until(lambda: len(host.got[S0]) == 2)
    np.testing.assert_array_equal(np.frombuffer(host.got[S0][1][1].payload[0], "<f4"), block)
    host.until(lambda: not agent.is_lent(block))
    assert set(server.counters().items()) >= {("keys_refused", 0), ("names_refused", 0), ("handshakes_failed", 0)}


def test_nothing_of_what_is_said_can_be_read_on_the_way(host: Host) -> None:
    server = open_keyed(host, S0, ANY)
    wire = Wire(host, server.endpoint)
    agent = open_keyed(host, A0)
    agent.connect(S0, wire.endpoint)
    secret = np.frombuffer(b"plainly visible!" * 100, "<f4")
    agent.send(S0, m.Push(1, 2, 3, 4, 0, (m.Component(0, 1, 1, 0, 0, 1.0),), (m.Segment(0, 0, secret.size, 1),), (secret,)))
    host.until(lambda: host.got[S0])
    assert len(wire.sent) > 1600 and b"plainly visible!" not in wire.sent and b"PLGM" not in wire.sent and A0.encode() not in wire.sent
    wire.close()


def test_a_node_that_calls_again_from_elsewhere_is_answered_there(host: Host) -> None:
    server, agent = pair(host)
    for turn in (1, 2):
        server.send(A0, ACK)
        host.until(lambda turn=turn: len(host.got[A0]) == turn)
        agent.disconnect(S0)
        agent.connect(S0, server.endpoint)
        agent.send(S0, ASK)
        host.until(lambda turn=turn: len(host.got[S0]) == turn + 1)


def test_an_admin_may_take_any_name_of_its_kind(host: Host) -> None:
    master = open_keyed(host, M0, ANY)
    for name, message in ((C0, m.Admin(1, "status", {})), ("u0.00000008", m.NodeExit(1, S0, -9))):
        admin = open_keyed(host, name, key=ADMIN)
        admin.connect(M0, master.endpoint)
        admin.send(M0, message)
        host.until(lambda name=name, message=message: (name, message) in host.got[M0])


# -- who is not let in ------------------------------------------------------------------------------------------------


def test_a_stranger_with_a_fresh_key_is_refused_counted_and_told_once(host: Host, caller: Callable[[str], Caller]) -> None:
    server, agent = pair(host)
    public, secret = (word.decode() for word in zmq.curve_keypair())
    for count in (1, 2, 3):
        caller(server.endpoint).with_keys(A1, public, secret, read_roster(host.directory / "keys")["s0"]).call()
        host.until(lambda count=count: server.counters()["keys_refused"] == count)
    told = [fields for node, event, fields in host.logged if (node, event) == (S0, "key_refused")]
    assert told == [{"key": public, "address": "127.0.0.1", "why": "nobody of the roster has this key"}]
    still_served(host, agent)


def test_a_key_of_the_wrong_role_does_not_get_in(host: Host) -> None:
    server, agent = pair(host)
    admin = open_keyed(host, C0, key=ADMIN)
    admin.connect(S0, server.endpoint)
    admin.send(S0, m.Admin(1, "stop", {"job": "x"}))
    host.until(lambda: server.counters()["keys_refused"] >= 1)
    assert host.events(S0) == ["key_refused"]
    host.until(lambda: "refused_by" in host.events(C0))
    still_served(host, agent)


def test_a_name_under_anothers_key_is_not_heard_and_takes_nobodys_place(host: Host) -> None:
    """a1 holds a good key of its own, and calls itself a0."""
    server, agent = pair(host)
    thief = open_keyed(host, A0, key="a1", deliver=lambda sender, message: stolen.append(message))
    stolen: list[Any] = []
    host.networks["thief"] = thief
    host.networks[A0] = agent
    thief.connect(S0, server.endpoint)
    for count in (1, 2):
        thief.send(S0, ASK)
        host.until(lambda count=count: server.counters()["names_refused"] == count)
    assert [fields for node, event, fields in host.logged if (node, event) == (S0, "name_refused")] == [{"name": A0, "key": "a1"}]
    server.send(A0, ACK)
    host.until(lambda: host.got[A0])
    assert stolen == [] and len(host.got[S0]) == 1


def test_the_identity_of_a_connection_cannot_be_guessed_so_its_place_cannot_be_taken(host: Host, caller: Callable[[str], Caller]) -> None:
    """With the bare name as its identity a caller would be given the place, and so the answers, of the real one."""
    server, agent = pair(host)
    keys = Keys(host.directory / "keys", "a1")
    for identity in (A0.encode(), A0.encode() + b"/" + b"0" * 32):
        thief = caller(server.endpoint).with_keys(A0, keys.pair.public, keys.pair.secret, keys.public_of(S0))
        thief.socket.set(zmq.IDENTITY, identity)
        thief.call()
        before = server.counters()["names_refused"]
        host.until(lambda before=before: server.counters()["names_refused"] > before)
        server.send(A0, ACK)
        assert not thief.socket.poll(200)
    host.until(lambda: len(host.got[A0]) == 2)
    identities = {bytes(identity) for identity in server._gate.routes.values()}  # type: ignore[union-attr]
    assert all(len(identity) == len(A0) + 33 for identity in identities)


@pytest.mark.parametrize("identity", [b"", b"\xff\xfe/" + b"0" * 32, b"a1", b"a1.0000000g/x", b"s1.00000006", b"m0/0", b"x" * 200])
def test_who_gives_no_name_of_its_own_is_nobody(host: Host, caller: Callable[[str], Caller], identity: bytes) -> None:
    server, agent = pair(host)
    keys = Keys(host.directory / "keys", "a1")
    nobody = caller(server.endpoint).with_keys(A1, keys.pair.public, keys.pair.secret, keys.public_of(S0))
    nobody.socket.set(zmq.IDENTITY, identity or b"\x01")
    nobody.call()
    if identity == b"a1":  # the id without an incarnation is a name too, if an odd one: it is its own
        host.until(lambda: ("a1", ASK) in host.got[S0])
        return
    host.until(lambda: server.counters()["names_refused"] == 1)
    still_served(host, agent)


def test_a_plain_peer_is_refused_counted_and_told_once(host: Host, caller: Callable[[str], Caller]) -> None:
    server, agent = pair(host)
    for count in (1, 2, 3):
        plain = caller(server.endpoint)
        plain.socket.set(zmq.IDENTITY, A1.encode())
        plain.call()
        host.until(lambda count=count: server.counters()["handshakes_failed"] >= count)
    told = [fields["why"] for node, event, fields in host.logged if (node, event) == (S0, "handshake_failed")]
    assert told and len(set(told)) == len(told), "each reason once, however many knock"
    still_served(host, agent)


def test_bytes_that_are_no_zmq_cost_their_own_connection_only(host: Host) -> None:
    server, agent = pair(host)
    port = int(server.endpoint.rpartition(":")[2])
    calls = []
    for raw in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" + bytes(8) + b"\x7f\x03\x00CURVE" + bytes(200), b"\xff" + bytes(8) + b"\x7f", b"\x16\x03\x01" * 100):
        call = socket.create_connection(("127.0.0.1", port))
        call.sendall(raw)
        calls.append(call)
    host.until(lambda: server.counters()["handshakes_failed"] >= 2)
    for _ in range(5):
        still_served(host, agent)
    for call in calls:
        call.close()


def test_a_server_with_another_key_than_the_rosters_is_not_spoken_to(host: Host) -> None:
    """Who takes a server's address cannot take its place."""
    make_keys(host.directory / "other", ["s0", "a0"])
    false = host.open(S0, ANY, trust=Trust(Keys(host.directory / "other", "s0")))
    agent = open_keyed(host, A0)
    agent.connect(S0, false.endpoint)
    agent.send(S0, ASK)
    host.until(lambda: agent.counters()["handshakes_failed"] >= 2 and false.counters()["handshakes_failed"] >= 2)
    assert host.got[S0] == [] and set(host.events(A0)) == {"refused_by"} and set(host.events(S0)) == {"handshake_failed"}


def test_a_plain_server_is_not_spoken_to_either(host: Host) -> None:
    false = host.open(S0, ANY, trust=Trust(insecure=True))
    agent = open_keyed(host, A0)
    agent.connect(S0, false.endpoint)
    agent.send(S0, ASK)
    host.until(lambda: agent.counters()["handshakes_failed"] >= 1)
    assert host.got[S0] == []


def test_what_a_role_has_not_to_say_is_refused(host: Host) -> None:
    """An agent's key is good for an agent's words: it moves no range and ends no node."""
    server, agent = pair(host)
    for forged in (m.MapTold(1, 99, {}), m.Registered(9, 9, "lab", False, "go away"), m.BeatAck(9, 9, False)):
        before = server.refused
        agent.send(S0, forged)
        host.until(lambda before=before: server.refused > before)
    told = [fields["why"] for node, event, fields in host.logged if (node, event) == (S0, "peer_refused")]
    assert told == ["a node of its role has no MapTold to say"]
    still_served(host, agent)


# -- replays ----------------------------------------------------------------------------------------------------------


class Wire:
    """Stands between two ends and keeps every byte that the caller sends."""

    def __init__(self, host: Host, endpoint: str) -> None:
        self.sent = bytearray()
        self.spoil = False  # one bit of what passes
        self.calls = 0
        self._port = int(endpoint.rpartition(":")[2])
        self._writers: list[asyncio.StreamWriter] = []
        self._server = host.loop.run_until_complete(asyncio.start_server(self._called, "127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self._loop = host.loop

    async def _called(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self.calls += 1
        self._writers += [writer, there_writer]

        async def forward(source: asyncio.StreamReader, target: asyncio.StreamWriter, kept: bytearray | None) -> None:
            while data := await source.read(65_536):
                if kept is not None:
                    kept += data
                if target.is_closing():
                    return
                target.write(data[:-1] + bytes([data[-1] ^ 1]) if self.spoil else data)
            target.close()

        await asyncio.gather(forward(reader, there_writer, self.sent), forward(there_reader, writer, None))

    def close(self) -> None:
        for writer in self._writers:
            writer.close()
        self._server.close()
        self._loop.run_until_complete(asyncio.sleep(0.05))


def test_a_recorded_session_that_is_played_again_does_nothing(host: Host) -> None:
    server = open_keyed(host, S0, ANY)
    wire = Wire(host, server.endpoint)
    agent = open_keyed(host, A0)
    agent.connect(S0, wire.endpoint)
    for _ in range(3):
        agent.send(S0, ASK)
    host.until(lambda: len(host.got[S0]) == 3)
    host.close(A0)
    wire.close()

    async def replay(pace: int) -> bytes:
        answer = b""
        with socket.create_connection(("127.0.0.1", int(server.endpoint.rpartition(":")[2]))) as call:
            call.setblocking(False)
            try:
                for at in range(0, len(wire.sent), pace):
                    await host.loop.sock_sendall(call, bytes(wire.sent[at : at + pace]))
                while data := await host.loop.sock_recv(call, 65_536):  # until it hangs up
                    answer += data
            except ConnectionError:
                return answer  # it has hung up while we spoke
        return answer

    for turn, pace in enumerate((len(wire.sent), 64)):
        answer = host.loop.run_until_complete(asyncio.wait_for(replay(pace), 60))
        assert b"READY" not in answer
        host.until(lambda turn=turn: server.counters()["handshakes_failed"] > turn)
    assert server.received == 3 and len(host.got[S0]) == 3


# -- keys that come and go while nodes run ----------------------------------------------------------------------------


def test_a_key_made_later_is_let_in_without_a_restart(host: Host) -> None:
    server, _ = pair(host)
    make_keys(host.directory / "keys", ["a7"])
    late = open_keyed(host, "a7.00000009")
    late.connect(S0, server.endpoint)
    late.send(S0, ASK)
    host.until(lambda: ("a7.00000009", ASK) in host.got[S0])
    assert "roster_changed" in host.events(S0) and server.counters()["keys_refused"] == 0


def test_a_node_whose_key_comes_later_is_called_as_soon_as_it_is_there(host: Host) -> None:
    agent = open_keyed(host, A0)
    agent.connect("s7.00000009", "tcp://127.0.0.1:1")
    told = [fields["why"] for node, event, fields in host.logged if (node, event) == (A0, "endpoint_unusable")]
    assert len(told) == 1 and told[0].startswith("there is no key of s7.00000009 in ")
    agent.disconnect("s7.00000009")
    make_keys(host.directory / "elsewhere", ["m0", "s0", "s1", "s7", "a0", "a1", "admin"])  # a roster that is not yet here
    server = host.open("s7.00000009", ANY, trust=Trust(Keys(host.directory / "elsewhere", "s7")))
    agent.connect("s7.00000009", server.endpoint)
    agent.send("s7.00000009", ASK)
    roster = read_roster(host.directory / "keys")
    roster["s7"] = read_roster(host.directory / "elsewhere")["s7"]
    write_roster(host.directory / "elsewhere", {**roster})
    write_roster(host.directory / "keys", roster)
    host.until(lambda: agent.send("s7.00000009", ASK) or host.got["s7.00000009"])


def write_roster(directory: Path, roster: dict[str, str]) -> None:
    (directory / "new").write_text(json.dumps({"version": 1, "keys": roster}))
    (directory / "new").replace(directory / "roster.json")


def test_a_key_that_is_taken_away_is_heard_no_more_and_told_nothing(host: Host) -> None:
    server, agent = pair(host)
    server.send(A0, ACK)
    host.until(lambda: host.got[A0])
    host.got[A0].clear()
    roster = read_roster(host.directory / "keys")
    del roster["a0"]
    write_roster(host.directory / "keys", roster)
    host.until(lambda: "roster_changed" in host.events(S0))
    before = server.counters()["names_refused"]
    agent.send(S0, ASK)
    host.until(lambda: server.counters()["names_refused"] > before)
    away = server.away
    server.send(A0, ACK)
    assert server.away == away + 1
    host.run(0.1)
    assert len(host.got[S0]) == 1 and host.got[A0] == []


def test_a_server_with_a_new_key_is_reached_by_those_who_were_connected_to_the_old(host: Host) -> None:
    """How keys are renewed: make them anew, restart the node; the others read the roster by themselves."""
    server, agent = pair(host)
    endpoint = server.endpoint
    make_keys(host.directory / "keys", [], renew=["s0"])
    host.close(S0)
    host.got[S0] = []
    open_keyed(host, S0, endpoint)
    host.until(lambda: agent.send(S0, ASK) or host.got[S0])


def test_a_spoiled_roster_is_told_and_everybody_is_served_on(host: Host) -> None:
    server, agent = pair(host)
    (host.directory / "keys" / "roster.json").write_text("{")
    host.until(lambda: "roster_unusable" in host.events(S0))
    still_served(host, agent)
    assert host.events(S0).count("roster_unusable") == 1


def test_a_node_that_was_refused_knocks_again_until_it_is_let_in(host: Host) -> None:
    """zmq gives up for good whom it was refused by; the roster may come after the node."""
    make_keys(host.directory / "elsewhere", ["s0", "a7"])
    roster = read_roster(host.directory / "keys")
    write_roster(host.directory / "elsewhere", {**roster, "a7": read_roster(host.directory / "elsewhere")["a7"]})
    server = open_keyed(host, S0, ANY)
    late = host.open("a7.00000009", trust=Trust(Keys(host.directory / "elsewhere", "a7")))
    late.connect(S0, server.endpoint)
    late.send(S0, ASK)
    host.until(lambda: server.counters()["keys_refused"] >= 3)
    assert host.events(S0) == ["key_refused"] and host.events("a7.00000009") == ["refused_by"]
    write_roster(host.directory / "keys", read_roster(host.directory / "elsewhere"))
    host.until(lambda: host.got[S0])
    assert host.got[S0] == [("a7.00000009", ASK)], "what waited for the connection has waited on"


def test_who_tampers_with_a_connection_costs_it_and_it_is_made_again(host: Host) -> None:
    server = open_keyed(host, S0, ANY)
    wire = Wire(host, server.endpoint)
    agent = open_keyed(host, A0)
    agent.connect(S0, wire.endpoint)
    agent.send(S0, ASK)
    host.until(lambda: host.got[S0])
    wire.spoil = True
    server.send(A0, ACK)
    agent.send(S0, ASK)
    host.until(lambda: wire.calls > 1)
    wire.spoil = False
    host.until(lambda: agent.send(S0, ASK) or len(host.got[S0]) > 1)
    assert all(message == ASK for _, message in host.got[S0]) and host.got[A0] == []
    wire.close()


# -- what may listen and call over TCP --------------------------------------------------------------------------------


def test_without_keys_nobody_listens_on_tcp_or_calls_there(host: Host) -> None:
    with pytest.raises(KeysError, match=r"s0\.00000001 would listen at tcp://127\.0\.0\.1:0, where anybody .* `plugml keygen`, or say --insecure-trusted-network"):
        Network(host.loop, S0, ANY, lambda sender, message: None)
    agent = host.open(A0)
    agent.connect(S0, "tcp://127.0.0.1:9")
    agent.send(S0, ASK)
    assert host.logged == [(A0, "endpoint_unusable", {
        "peer": S0, "endpoint": "tcp://127.0.0.1:9",
        "why": "s0.00000001 is called over TCP, and this node has no keys: make keys by `plugml keygen`, or say --insecure-trusted-network",
    })]  # fmt: skip


def test_within_the_host_no_key_is_needed_even_where_there_are_some(host: Host) -> None:
    server = open_keyed(host, S0, host.endpoint("s0"))
    agent = open_keyed(host, A0)
    agent.connect(S0, host.endpoint("s0"))
    agent.send(S0, ASK)
    host.until(lambda: host.got[S0])
    server.send(A0, ACK)
    host.until(lambda: host.got[A0])


def test_the_first_free_port_of_a_range_is_taken(host: Host) -> None:
    taken = [socket.socket() for _ in range(2)]
    taken[0].bind(("127.0.0.1", 0))
    first = taken[0].getsockname()[1]
    if first > 65_000:
        first = 65_000
    taken[0].listen()
    server = open_keyed(host, S0, f"tcp://127.0.0.1:{first}-{first + 50}")
    port = int(server.endpoint.rpartition(":")[2])
    assert first < port <= first + 50
    other = f"tcp://127.0.0.1:{port}"
    with pytest.raises(WorldError, match=f"cannot listen on {other}: Address already in use"):
        open_keyed(host, S1, other)
    for one in taken:
        one.close()


def test_ipv6_works_too(host: Host) -> None:
    if not Path("/proc/net/if_inet6").exists() or " lo" not in Path("/proc/net/if_inet6").read_text():
        pytest.skip("does not apply here: this host has no IPv6")
    server = open_keyed(host, S0, "tcp://[::1]:0")
    agent = open_keyed(host, A0)
    agent.connect(S0, server.endpoint)
    agent.send(S0, ASK)
    host.until(lambda: host.got[S0])


# -- plain data -------------------------------------------------------------------------------------------------------


def test_with_plain_data_servers_speak_in_the_clear_and_masters_never(host: Host) -> None:
    server, agent = pair(host, plain_data=True)
    server.send(A0, ACK)
    host.until(lambda: host.got[A0])
    master = open_keyed(host, M0, ANY, plain_data=True)
    wire = Wire(host, master.endpoint)
    agent.connect(M0, wire.endpoint)
    agent.send(M0, m.MapAsk(1, 7))
    host.until(lambda: host.got[M0])
    assert b"PLGM" not in wire.sent and b"CURVE" in wire.sent
    wire.close()


def test_with_plain_data_nobody_can_call_himself_a_master_to_a_server(host: Host, caller: Callable[[str], Caller]) -> None:
    """Whoever is on the network may forge pushes then; he may not say who owns what."""
    server, agent = pair(host, plain_data=True)
    for name in (M0, C0, "u0.00000001", "x0"):
        liar = caller(server.endpoint)
        liar.socket.set(zmq.IDENTITY, name.encode())
        liar.call(*codec.encode(m.MapTold(1, 99, {})))  # type: ignore[arg-type]
        before = server.strangers
        host.until(lambda before=before: server.strangers > before)
    still_served(host, agent)


def test_a_gate_watches_as_many_peers_as_there_may_be(host: Host) -> None:
    """Each keyed connection needs sockets of its own for what watches its handshake."""
    make_keys(host.directory / "keys", [f"s{number}" for number in range(2, 42)])
    agent = open_keyed(host, A0, limits=Limits(nodes_max=42))
    for number in range(42):
        agent.connect(f"s{number}.00000001", f"tcp://127.0.0.1:{number + 1}")
    assert host.events(A0) == []


def test_who_connects_and_says_nothing_is_hung_up_on(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the connections of strangers would pile up for as long as they like."""
    monkeypatch.setattr(sockets, "HANDSHAKE_MS", 300)
    server, agent = pair(host)
    call = socket.create_connection(("127.0.0.1", int(server.endpoint.rpartition(":")[2])))
    call.settimeout(60)
    with call:
        while data := call.recv(4096):  # zmq greets, and then waits
            assert len(data) <= 64
    still_served(host, agent)


def test_an_oversized_frame_costs_its_sender_the_connection_with_a_good_key_too(host: Host, caller: Callable[[str], Caller]) -> None:
    server, agent = pair(host)
    keys = Keys(host.directory / "keys", "a1")
    huge = caller(server.endpoint).with_keys(A1, keys.pair.public, keys.pair.secret, keys.public_of(S0))
    huge.call()
    host.until(lambda: (A1, ASK) in host.got[S0])
    head = bytes(codec.encode(ASK)[0])
    huge.socket.send_multipart([head, bytes(Limits().frame_bytes_max + sockets.SEALED_BYTES + 1)])
    huge.socket.send_multipart([head])
    agent.send(S0, ASK)
    host.until(lambda: len(host.got[S0]) == 3)
    host.run(0.1)
    assert [sender for sender, _ in host.got[S0]] == [A0, A1, A0]
    many = caller(server.endpoint).with_keys(A1, keys.pair.public, keys.pair.secret, keys.public_of(S0))
    many.call(b"", *[b""] * 5_000)
    host.until(lambda: server.refused == 1)
    before = len(host.got[S0])
    agent.send(S0, ASK)
    host.until(lambda: (A0, ASK) in host.got[S0][before:])


def test_the_holder_of_one_key_cannot_fill_the_memory_with_names(host: Host, caller: Callable[[str], Caller], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "ROUTES_MAX", 4)
    server, agent = pair(host)
    keys = Keys(host.directory / "keys", "a1")
    for number in range(20):
        caller(server.endpoint).with_keys(f"a1.{number:08x}", keys.pair.public, keys.pair.secret, keys.public_of(S0)).call()
    host.until(lambda: len(host.got[S0]) == 21)
    assert server._gate is not None and len(server._gate.routes) <= 4
    agent.send(S0, ASK)
    host.until(lambda: len(host.got[S0]) == 22)
    server.send(A0, ACK)
    host.until(lambda: host.got[A0])
