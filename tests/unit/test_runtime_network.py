"""The network over real sockets: whatever a peer does, it costs that peer's messages and nothing else."""

from __future__ import annotations

import os
import random
import select
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from plugml.core.errors import WorldError
from plugml.core.limits import Limits
from plugml.runtime.keys import Trust
from plugml.runtime.lent import Lent, Queue
from plugml.runtime.network import MESSAGES_A_TURN, Network
from plugml.wire import codec
from plugml.wire import messages as m

from .network_host import A0, A0_AGAIN, ACK, HANG_S, S0, S0_AGAIN, Host, opened

INSECURE = Trust(insecure=True)


def push(*arrays: np.ndarray[Any, Any], seq: int = 1) -> m.Push:
    segments = tuple(m.Segment(0, number, array.size, 1) for number, array in enumerate(arrays))
    return m.Push(1, 2, 3, 4, 0, (m.Component(0, 1, seq, seq - 1, 0, 1.0),), segments, arrays)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with opened(tmp_path) as host:
        yield host


def pair(host: Host, limits: Limits = Limits()) -> tuple[Network, Network]:
    server = host.open(S0, host.endpoint("s0"), limits)
    agent = host.open(A0, None, limits)
    agent.connect(S0, host.endpoint("s0"))
    agent.send(S0, ACK)
    host.until(lambda: host.got[S0])
    return server, agent


def stranger(endpoint: str, identity: bytes = A0_AGAIN.encode()) -> tuple[zmq.Context[Any], zmq.Socket[Any]]:
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    if identity:
        dealer.set(zmq.IDENTITY, identity)
    dealer.set(zmq.LINGER, 5_000)
    dealer.connect(endpoint)
    return context, dealer


# -- the good day -----------------------------------------------------------------------------------------------------


def test_a_message_goes_out_by_our_connection_and_its_answer_by_their_router(host: Host) -> None:
    server, agent = pair(host)
    assert host.got[S0] == [(A0, ACK)]
    server.send(A0, ACK._replace(seq=8))
    host.until(lambda: host.got[A0])
    assert host.got[A0] == [(S0, ACK._replace(seq=8))]


def test_start_order_does_not_matter(host: Host) -> None:
    agent = host.open(A0)
    agent.connect(S0, host.endpoint("s0"))
    for seq in range(3):
        agent.send(S0, ACK._replace(seq=seq))
    host.run(0.1)
    host.open(S0, host.endpoint("s0"))
    host.until(lambda: len(host.got[S0]) == 3)
    assert [message.seq for _, message in host.got[S0]] == [0, 1, 2]
    assert agent.away == 0 and not host.events(A0)


def test_who_says_only_long_things_finds_a_peer_that_came_later(host: Host) -> None:
    """No short word has shown that the connection is up."""
    agent = host.open(A0)
    agent.connect(S0, host.endpoint("s0"))
    block = np.zeros(1 << 18, "<f4")
    agent.send(S0, push(block))
    assert agent.away == 1 and not host.events(A0), "a long message does not wait, and that is no news"
    host.open(S0, host.endpoint("s0"))
    host.until(lambda: agent.send(S0, push(block)) or host.got[S0])
    assert not host.events(A0)


def test_a_message_to_itself_arrives_on_a_later_turn(host: Host) -> None:
    server = host.open(S0, host.endpoint("s0"))
    server.send(S0, ACK)
    assert host.got[S0] == []
    host.until(lambda: host.got[S0])
    assert host.got[S0] == [(S0, ACK)]


def test_a_burst_longer_than_a_turn_arrives_whole_and_in_order(host: Host) -> None:
    _, agent = pair(host)
    count = 10 * MESSAGES_A_TURN
    for seq in range(count):
        agent.send(S0, ACK._replace(seq=seq))
    host.until(lambda: len(host.got[S0]) == count + 1)
    assert [message.seq for _, message in host.got[S0][1:]] == list(range(count))


def test_no_wake_is_lost_when_both_ends_send_at_once(host: Host) -> None:
    """Each send may swallow the signal of what has come meanwhile; whoever waits for that message must still get it."""
    server, agent = pair(host)
    for turn in range(300):
        agent.send(S0, ACK._replace(seq=turn))
        server.send(A0, ACK._replace(seq=turn))
        host.until(lambda turn=turn: (len(host.got[S0]), len(host.got[A0])) == (turn + 2, turn + 1))


def test_64_mib_in_flight_are_lent_until_they_have_left(host: Host) -> None:
    blocks = [np.full(1 << 18, number, "<f4") for number in range(64)]
    sums: list[float] = []
    server = host.open(S0, host.endpoint("s0"), deliver=lambda sender, message: sums.append(take(message)))
    agent = host.open(A0)
    agent.connect(S0, host.endpoint("s0"))

    def take(message: Any) -> float:
        return float(np.frombuffer(message.payload[0], "<f4").sum()) if message.payload else -1.0

    agent.send(S0, push(np.zeros(2, "<f4")))
    host.until(lambda: sums)
    for number, block in enumerate(blocks):
        agent.send(S0, push(block, seq=number + 1))
    # Nothing ran since: the kernel's buffers take a little, everything else is still read from our memory.
    assert agent.is_lent(blocks[-1]) and agent.is_lent(blocks[-1][5:7])
    assert not agent.is_lent(np.zeros(100, "<f4"))
    host.until(lambda: len(sums) == 65)
    assert sums[1:] == [float(number) * (1 << 18) for number in range(64)]
    host.until(lambda: not any(agent.is_lent(block) for block in blocks))
    assert server.received == 65 and agent.sent == 65


def test_small_payloads_are_copied_at_once(host: Host) -> None:
    _, agent = pair(host)
    block = np.zeros(100, "<f4")
    agent.send(S0, push(block))
    assert not agent.is_lent(block)
    block[:] = 7
    host.until(lambda: len(host.got[S0]) == 2)
    assert not np.frombuffer(host.got[S0][1][1].payload[0], "<f4").any()


# -- peers that go and come -------------------------------------------------------------------------------------------


def test_sends_to_the_dead_and_to_nobody_are_counted_and_told_once(host: Host) -> None:
    server, agent = pair(host)
    host.close(A0)
    host.until(lambda: server.send(A0, ACK) or server.away)
    before = server.away
    for _ in range(100):
        server.send(A0, ACK)
    host.until(lambda: server.away >= before + 100)
    assert host.events(S0).count("peer_away") == 1
    before = server.away
    server.send("s9.00000009", ACK)
    host.until(lambda: server.away == before + 1)
    lonely = host.open("c0.00000001")
    lonely.send("s9.00000009", ACK)
    assert lonely.away == 1


def test_a_server_that_died_takes_nothing_and_its_memory_is_given_back(host: Host) -> None:
    _, agent = pair(host)
    host.close(S0)
    block = np.zeros(1 << 18, "<f4")
    host.until(lambda: agent.send(S0, push(block)) or agent.away)
    for _ in range(50):
        agent.send(S0, push(block))
    host.until(lambda: not agent.is_lent(block))
    assert host.events(A0) == ["peer_away"]


def test_who_answers_at_the_old_endpoint_after_a_restart_is_another_node(host: Host) -> None:
    _, agent = pair(host)
    host.close(S0)
    again = host.open(S0_AGAIN, host.endpoint("s0"))
    host.until(lambda: agent.send(S0, ACK) or host.got[S0_AGAIN])  # our connection leads to whoever listens there
    again.send(A0, ACK)
    host.until(lambda: agent.strangers)
    assert host.got[A0] == []

    agent.disconnect(S0)
    agent.connect(S0_AGAIN, host.endpoint("s0"))
    agent.send(S0_AGAIN, ACK)
    host.until(lambda: again.send(A0, ACK) or host.got[A0])
    assert host.got[A0][0] == (S0_AGAIN, ACK)


def test_an_answer_that_comes_while_what_waited_for_the_connection_leaves_is_read(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    server = host.open(S0, host.endpoint("s0"))
    agent = host.open(A0)
    flush = agent._flush

    def late(line: Any) -> bool:
        """The server has called back between our last look and our first send, which swallows the signal."""
        if agent._reading is None:
            return False  # not up yet: what waits leaves when the socket is looked at
        while not server.sent:
            line.socket.get(zmq.EVENTS)  # takes note of the connection, and of its signal
            server.send(A0, ACK)
            server._send_batches()
        assert select.select([line.socket.fileno()], [], [], HANG_S)[0]
        return flush(line)

    monkeypatch.setattr(agent, "_flush", late)
    agent.connect(S0, host.endpoint("s0"))
    agent.send(S0, ACK._replace(seq=99))
    host.until(lambda: host.got[S0] and host.got[A0])


def test_a_caller_that_comes_back_under_its_name_takes_over(host: Host) -> None:
    server, agent = pair(host)
    twin = host.open("c9.00000009")
    twin._sockets.name = A0  # the same node after its connection broke without a word
    twin.connect(S0, host.endpoint("s0"))
    twin.send(S0, ACK._replace(seq=99))
    host.until(lambda: len(host.got[S0]) == 2)
    server.send(A0, ACK._replace(seq=100))
    host.until(lambda: host.got["c9.00000009"])
    assert host.got["c9.00000009"] == [(S0, ACK._replace(seq=100))] and host.got[A0] == []


def test_after_disconnect_nothing_goes_out_or_comes_in(host: Host) -> None:
    server, agent = pair(host)
    server.send(A0, ACK)
    agent.disconnect(S0)
    agent.disconnect(S0)
    agent.send(S0, ACK)
    host.run(0.1)
    assert host.got[A0] == [] and len(host.got[S0]) == 1 and agent.away == 1


def test_a_peer_that_reads_nothing_gets_no_more_than_its_share(host: Host) -> None:
    limits = Limits(queue_bytes_max=8 << 20)
    server = host.open(S0, host.endpoint("s0"), limits)
    context, deaf = stranger(host.endpoint("s0"))
    deaf.set(zmq.RCVHWM, 1)
    deaf.set(zmq.RCVBUF, 4096)
    deaf.send_multipart(codec.encode(ACK))
    host.until(lambda: host.got[S0])
    block = np.zeros(1 << 17, "<f4")
    for _ in range(200):
        server.send(A0_AGAIN, push(block))
    for _ in range(20_000):
        server.send(A0_AGAIN, push(np.zeros(1000, "<f4")))
    assert server.full and server.bytes_sent < limits.queue_bytes_max + (2 << 20)
    assert host.events(S0).count("peer_full") == 1
    deaf.close(linger=0)
    context.destroy(linger=0)
    host.until(lambda: not server.is_lent(block))


# -- nonsense ---------------------------------------------------------------------------------------------------------


def garbage(seed: int) -> list[list[bytes]]:
    draw = random.Random(seed)
    good = [bytes(frame) for frame in codec.encode(push(np.ones(8, "<f4")))]
    frames: list[list[bytes]] = [[b""], [b"PLGM"], [b"x" * 100_000], [b""] * 50, [good[0]], [b"more", *good], [good[0], b"short"]]
    for _ in range(200):
        head = bytearray(good[0])
        for _ in range(draw.randint(1, 4)):
            head[draw.randrange(len(head))] = draw.randrange(256)
        if bytes(head) != good[0]:
            frames.append([bytes(head), good[1]])
        frames.append([draw.randbytes(draw.randint(0, 300)) for _ in range(draw.randint(1, 5))])
    return frames


def test_garbage_is_counted_told_once_and_everybody_else_is_served(host: Host) -> None:
    server, agent = pair(host)
    sent = garbage(1)
    context, dealer = stranger(host.endpoint("s0"))
    for frames in sent:
        dealer.send_multipart(frames)
    host.until(lambda: server.refused == len(sent))
    assert host.events(S0).count("peer_refused") == 1
    agent.send(S0, ACK)
    host.until(lambda: len(host.got[S0]) == 2)

    dealer.send_multipart(codec.encode(ACK))  # and whoever comes to reason is heard
    host.until(lambda: len(host.got[S0]) == 3)
    dealer.close()
    context.destroy(linger=0)


def test_garbage_from_the_router_that_we_called_is_survived_too(host: Host) -> None:
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.set(zmq.IDENTITY, S0.encode())
    router.bind(host.endpoint("s0"))
    agent = host.open(A0)
    agent.connect(S0, host.endpoint("s0"))
    agent.send(S0, ACK)
    host.until(lambda: router.poll(0))
    router.recv_multipart()
    sent = garbage(2)
    for frames in sent:
        router.send_multipart([A0.encode(), *frames])
    router.send_multipart([A0.encode(), *codec.encode(ACK)])
    host.until(lambda: host.got[A0])
    assert agent.refused == len(sent) and host.events(A0).count("peer_refused") == 1
    router.close(linger=0)
    context.destroy(linger=0)


@pytest.mark.parametrize("identity", [b"", b"m0.NOTHEX00", b"\xff\xfe", b"a0 a0", b"x" * 200])
def test_who_gives_no_name_is_nobody(host: Host, identity: bytes) -> None:
    server, _ = pair(host)
    context, dealer = stranger(host.endpoint("s0"), identity)
    dealer.send_multipart(codec.encode(ACK))
    host.until(lambda: server.strangers == 1)
    assert len(host.got[S0]) == 1
    dealer.close()
    context.destroy(linger=0)


def test_an_oversized_frame_costs_its_sender_the_connection(host: Host) -> None:
    limits = Limits(frame_bytes_max=1 << 20)
    server, agent = pair(host, limits)
    context, dealer = stranger(host.endpoint("s0"))
    dealer.send_multipart(codec.encode(ACK))
    host.until(lambda: len(host.got[S0]) == 2)
    dealer.send_multipart([*codec.encode(ACK), bytes(2 << 20)])
    agent.send(S0, ACK)
    host.until(lambda: len(host.got[S0]) == 3)
    host.run(0.1)
    assert host.got[S0][2][0] == A0 and server.received == 3
    dealer.close(linger=0)
    context.destroy(linger=0)


def test_too_many_frames_are_one_bad_message(host: Host) -> None:
    server, _ = pair(host)
    context, dealer = stranger(host.endpoint("s0"))
    dealer.send_multipart([*codec.encode(ACK), *[b""] * 10_000])
    host.until(lambda: server.refused == 1)
    dealer.close()
    context.destroy(linger=0)


def test_bytes_that_are_no_zmq_close_their_own_connection_only(host: Host) -> None:
    server, agent = pair(host)
    path = str(host.directory / "s0")
    calls = []
    for raw in (os.urandom(1000), b"GET / HTTP/1.1\r\n\r\n", b"\xff" + bytes(8) + b"\x7f", b""):
        call = socket.socket(socket.AF_UNIX)
        call.connect(path)
        call.sendall(raw)
        calls.append(call)
    # A greeting of zmq's own, then a frame that claims 2^62 bytes.
    call = socket.socket(socket.AF_UNIX)
    call.connect(path)
    call.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48) + b"\x02" + struct.pack(">Q", 1 << 62))
    calls.append(call)
    for turn in range(20):
        agent.send(S0, ACK)
        host.until(lambda turn=turn: len(host.got[S0]) == turn + 2)
    for call in calls:
        call.close()
    assert server.received == 21


# -- endpoints --------------------------------------------------------------------------------------------------------


def test_a_taken_port_and_too_long_a_path_are_sentences(host: Host, no_leaks: None) -> None:
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    with pytest.raises(WorldError, match=r"cannot listen on tcp://127\.0\.0\.1:\d+: Address already in use"):
        Network(host.loop, S0, f"tcp://127.0.0.1:{taken.getsockname()[1]}", lambda sender, message: None, trust=INSECURE)
    taken.close()
    with pytest.raises(WorldError, match="longer than the 107 bytes"):
        Network(host.loop, S0, f"ipc:///tmp/{'x' * 110}", lambda sender, message: None)
    with pytest.raises(WorldError, match="cannot listen on ipc:///no/such/directory/s0"):
        Network(host.loop, S0, "ipc:///no/such/directory/s0", lambda sender, message: None)


def test_tcp_works_too_and_a_free_port_is_told(host: Host) -> None:
    server = host.open(S0, "tcp://127.0.0.1:0", trust=INSECURE)
    agent = host.open(A0, trust=INSECURE)
    agent.connect(S0, server.endpoint)
    agent.send(S0, ACK)
    host.until(lambda: host.got[S0])


@pytest.mark.parametrize("endpoint", ["", "nonsense", "tcp://", f"ipc:///tmp/{'x' * 200}"])
def test_an_unusable_endpoint_is_told_and_costs_nothing(host: Host, endpoint: str) -> None:
    agent = host.open(A0)
    agent.connect(S0, endpoint)
    agent.send(S0, ACK)
    assert host.events(A0) == ["endpoint_unusable"] and agent.away == 1


# -- bookkeeping ------------------------------------------------------------------------------------------------------


class Mark:
    def __init__(self) -> None:
        self.done = False


def test_lent_knows_overlaps_of_any_kind() -> None:
    lent, memory = Lent(), np.zeros(1000, np.uint8)
    marks = [Mark() for _ in range(3)]
    lent.add(memory[100:200], marks[0])
    lent.add(memory[150:400], marks[1])
    lent.add(memory[100:120], marks[2])
    assert [lent.covers(memory[a:b]) for a, b in ((0, 100), (0, 101), (199, 210), (399, 401), (400, 500))] == [
        False, True, True, True, False
    ]  # fmt: skip
    marks[1].done = True
    assert lent.covers(memory[180:190]) and not lent.covers(memory[200:300])
    marks[0].done = True
    assert lent.covers(memory[110:115]) and not lent.covers(memory[120:1000])
    marks[2].done = True
    assert not lent.covers(memory) and len(lent) == 0


def test_lent_does_not_grow_when_nobody_asks() -> None:
    lent, memory = Lent(), np.zeros(1 << 16, np.uint8)
    for _ in range(20):
        for at in range(0, 1 << 16, 64):
            mark = Mark()
            lent.add(memory[at : at + 64], mark)
            mark.done = True
    assert len(lent) < 2048


def test_the_queue_is_exact_at_its_marks() -> None:
    queue, mark = Queue(), Mark()
    queue.note(1000, None)
    assert queue.nbytes() == 1000 and not queue.wants_tracker(1000) and queue.wants_tracker(Queue.MARK_BYTES)
    queue.note(500, mark)
    queue.note(10, None)
    assert queue.nbytes() == 1510
    mark.done = True
    assert queue.nbytes() == 10


def test_small_messages_of_one_turn_travel_together_and_are_delivered_one_by_one(host: Host) -> None:
    server, agent = pair(host)
    before = len(host.got[S0])
    small, block = np.arange(8, dtype="<f4"), np.ones(1 << 17, "<f4")
    agent.send(S0, push(small))
    small[:] = 0  # whoever has sent a small payload may change it at once
    for seq in range(1, 100):
        agent.send(S0, ACK._replace(seq=seq))
    agent.send(S0, push(block))
    agent.send(S0, ACK._replace(seq=100))
    host.until(lambda: len(host.got[S0]) == before + 102)
    kinds = [type(message).__name__ for _sender, message in host.got[S0][before:]]
    assert kinds == ["Push", *["PushAck"] * 99, "Push", "PushAck"], "in the order in which they were sent"
    first = host.got[S0][before][1]
    np.testing.assert_array_equal(np.frombuffer(first.payload[0], "<f4"), np.arange(8))


def test_messages_of_many_frames_are_not_put_together_beyond_what_a_peer_takes(host: Host) -> None:
    _, agent = pair(host)
    tiny = [np.full(1, number, "<f4") for number in range(1500)]
    for seq in range(1, 8):
        agent.send(S0, push(*tiny, seq=seq))
    host.until(lambda: len(host.got[S0]) == 8)
    assert [message.components[0].seq for _, message in host.got[S0][1:]] == list(range(1, 8))
    assert host.networks[S0].refused == 0


def test_a_message_that_ends_its_own_connection_holds_back_nobody_elses(host: Host) -> None:
    server, agent = pair(host)
    other = host.open("s1.00000002", host.endpoint("s1"))
    agent.connect(other.name, host.endpoint("s1"))
    agent.send(other.name, ACK)
    host.until(lambda: len(host.got[other.name]) == 1)

    def part(sender: str, message: Any) -> None:
        agent.disconnect(S0)
        agent.send(other.name, ACK._replace(seq=2))

    agent._deliver = part
    server.send(A0, ACK)
    host.until(lambda: len(host.got[other.name]) == 2)
    agent.send(other.name, ACK._replace(seq=3))
    host.until(lambda: len(host.got[other.name]) == 3)
