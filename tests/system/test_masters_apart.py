"""Three master processes at a real etcd, asked by a node's socket alone: what was acknowledged is there whoever dies."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from plugml.core.errors import Code
from plugml.core.jobmap import RUNNING, JobMap
from plugml.core.lead import Lead
from plugml.core.limits import Limits
from plugml.master.effects import LEADER_KEY
from plugml.master.etcd import EtcdStore
from plugml.master.leadership import unpack
from plugml.master.main import prefix_of
from plugml.runtime.node import now_us
from plugml.wire import messages as m
from plugml.wire.codec import encode
from tests.conftest import require
from tests.fuzz.master_world import spec
from tests.system.etcd_kit import HANG_S, Etcd
from tests.unit.test_master_main import messages

LIMITS = Limits()
PROGRAM = """
import sys
from pathlib import Path
from plugml.core.errors import PlugmlError
from plugml.master.main import run_master
id_, endpoint, state, store = sys.argv[1:]
try:
    sys.exit(run_master(id_, cluster="test", endpoint=endpoint, state=Path(state), store=store))
except PlugmlError as error:
    sys.exit(str(error))
"""


class Masters:
    """m0, m1, m2 as processes, each with a log."""

    def __init__(self, etcd: Etcd, place: Path) -> None:
        self.etcd = etcd
        self.place = place
        self.endpoints = {name: f"ipc://{etcd.home}/{name}" for name in ("m0", "m1", "m2")}
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, *names: str) -> None:
        for name in names or self.endpoints:
            command = [sys.executable, "-c", PROGRAM, name, self.endpoints[name], str(self.place), self.etcd.url]
            with (self.place / f"{name}.log").open("ab") as log:
                self.running[name] = subprocess.Popen(command, stderr=log)

    def kill(self, name: str) -> None:
        self.running[name].kill()
        self.running.pop(name).wait()

    def told_to_end(self, name: str) -> int:
        process = self.running.pop(name)
        process.terminate()
        return process.wait(HANG_S)

    def stop(self, name: str) -> None:
        self.running[name].send_signal(signal.SIGSTOP)

    def go_on(self, name: str) -> None:
        self.running[name].send_signal(signal.SIGCONT)

    def log(self, name: str) -> str:
        return (self.place / f"{name}.log").read_text()

    def end(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()


class Node:
    """A node by its sockets, one to each master, and its belief in who leads."""

    def __init__(self, context: zmq.Context[Any], name: str, endpoints: dict[str, str]) -> None:
        self.lead = Lead(endpoints, LIMITS)
        self.sockets: dict[str, zmq.Socket[Any]] = {}
        self.poller = zmq.Poller()
        for master, endpoint in endpoints.items():
            socket = self.sockets[master] = context.socket(zmq.DEALER)
            socket.setsockopt(zmq.IDENTITY, name.encode())
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.RECONNECT_IVL, 10)
            socket.connect(endpoint)
            self.poller.register(socket, zmq.POLLIN)

    def ask(self, message: Any, kind: type[Any]) -> Any:
        """Until an answer of this kind comes, from whichever master leads by then."""
        end_us = now_us() + int(HANG_S * 1e6)
        while now_us() < end_us:
            self.lead.asked(now_us())
            self.sockets[self.lead.master].send_multipart(encode(message))
            for answer in self._answers(200):
                if type(answer) is kind:
                    return answer
        pytest.fail(f"no {kind.__name__} came")

    def _answers(self, wait_ms: int) -> Iterator[Any]:
        names = {socket: master for master, socket in self.sockets.items()}
        for socket, _ in self.poller.poll(wait_ms):
            for answer in messages(socket.recv_multipart()):
                if isinstance(answer, m.NotLeader):
                    self.lead.refused(names[socket], answer.term, answer.leader)
                elif not isinstance(answer, (m.Registered, m.BeatAck)) or self.lead.heard(names[socket], answer.term, now_us()):
                    yield answer

    def close(self) -> None:
        for socket in self.sockets.values():
            socket.close()


@pytest.fixture
def masters(tmp_path: Path) -> Iterator[Masters]:
    require("etcd")
    etcd = Etcd(tmp_path)
    etcd.start()
    made = Masters(etcd, tmp_path)
    made.start()
    yield made
    made.end()
    etcd.end()


@pytest.fixture
def server(masters: Masters) -> Iterator[Node]:
    context: zmq.Context[Any] = zmq.Context()
    made = Node(context, "s0.00000001", masters.endpoints)
    register(made)
    yield made
    made.close()
    context.destroy(linger=0)


def register(node: Node) -> None:
    told = node.ask(m.Register("server", "h0", "ipc:///somewhere", 7, "build"), m.Registered)
    assert told.known


def job(node: Node) -> int:
    told = node.ask(m.JobAsk(1, spec(copies=1).to_document()), m.JobTold)
    assert told.code == Code.OK
    return int(told.job)


def beat(node: Node) -> m.BeatAck:
    ack: m.BeatAck = node.ask(m.Beat(0, {}), m.BeatAck)
    return ack


def attach(node: Node, number: int, gen: int) -> None:
    """The next generation, once, however often it had to be asked for."""
    assert node.ask(m.AttachAsk(100 + gen, number, 0, gen), m.AttachTold) == m.AttachTold(100 + gen, 0, "", number, 0, gen + 1)


def test_no_acknowledged_change_is_lost_when_a_master_or_a_member_dies(masters: Masters, server: Node) -> None:
    number = job(server)
    attach(server, number, 0)
    terms = [beat(server).term]
    for gen, trouble in enumerate(("master", "member", "master", "both"), 1):
        master, member = server.lead.master, masters.etcd.leader()
        if trouble != "member":
            masters.kill(master)
        if trouble != "master":
            masters.etcd.kill(member)
        attach(server, number, gen)
        ack = beat(server)
        assert ack.known, "no node has to register again"
        terms.append(ack.term)
        if trouble != "member":
            masters.start(master)
        if trouble != "master":
            masters.etcd.start(member)
    assert terms == sorted(terms) and len(set(terms)) >= 4, "each time a master died another one led"
    found = JobMap.from_document(server.ask(m.MapAsk(number, 0), m.MapTold).document)
    assert found.state == RUNNING and found.gens == {0: 5}


def test_a_master_that_slept_is_not_the_leader_when_it_wakes(masters: Masters, server: Node) -> None:
    before = beat(server)
    slept = server.lead.master
    masters.stop(slept)
    after = beat(server)
    assert after.term > before.term and after.known and server.lead.master != slept
    masters.go_on(slept)
    server.lead.master = slept
    again = beat(server)
    assert again.term == after.term and server.lead.master != slept
    assert "event=deposed" in masters.log(slept)


def test_a_master_that_ends_in_order_hands_over_at_once(masters: Masters, server: Node) -> None:
    first = beat(server)
    ended = server.lead.master
    others = [name for name in masters.running if name != ended]
    for name in others:
        masters.stop(name)  # so that its last word can be seen
    assert masters.told_to_end(ended) == 0
    store = EtcdStore(masters.etcd.url, prefix_of("test"))
    word = unpack(store.read(LEADER_KEY)[0])
    store.close()
    assert word is not None and (word.master, word.term, word.resigned) == (ended, first.term, True)
    for name in others:
        masters.go_on(name)
    assert beat(server).term == first.term + 1


def test_without_the_etcd_nobody_leads_and_with_it_everything_is_there_again(masters: Masters, server: Node) -> None:
    number = job(server)
    attach(server, number, 0)
    before = beat(server)
    masters.etcd.kill(*masters.etcd.names)
    for name in ("m0", "m1", "m2"):
        while True:  # the one that led stops by itself
            server.sockets[name].send_multipart(encode(m.Beat(0, {})))
            assert server.sockets[name].poll(int(HANG_S * 1000))
            if all(isinstance(answer, m.NotLeader) for answer in messages(server.sockets[name].recv_multipart())):
                break
    masters.etcd.start()
    attach(server, number, 1)
    after = beat(server)
    assert after.term > before.term and after.known
    assert all(process.poll() is None for process in masters.running.values()), "no master ends by an outage"


def test_a_master_without_an_etcd_waits_and_says_what_is_missing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, "m0", f"ipc://{tmp_path}/m0", str(tmp_path), f"etcd://{tmp_path}/nobody"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as master:
        assert master.stderr is not None
        line = next(line for line in master.stderr if "store_unsure" in line)
        assert "nobody: No such file" in line
        master.terminate()
        master.stderr.read()
    assert master.returncode == 0
