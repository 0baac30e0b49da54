"""Masters that were started by hand: one more joins, any may die and come back, and none begins a cluster of its own by mistake."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plugml.core.errors import UsageError
from plugml.launch import byhand
from plugml.launch.clusterfile import ELSEWHERE, ClusterFile
from tests.conftest import require
from tests.system.etcd_kit import Etcd
from tests.system.run_kit import Place, Running, place, wait_for  # noqa: F401

ETCD = "etcd://127.0.0.1:1"


# -- what is asked for


def file_of(tmp_path: Path, *masters: str, **fields: Any) -> ClusterFile:
    root = tmp_path / "ram"
    return ClusterFile("lab", root, tmp_path / "state", {id_: f"ipc://{root}/ipc/{id_}" for id_ in masters or ("m0",)}, 0, **fields)


def test_the_masters_of_a_new_cluster_are_those_that_were_asked_for(tmp_path: Path) -> None:
    found = byhand.with_masters(file_of(tmp_path), "m1", 3, ETCD)
    assert list(found.masters) == ["m0", "m1", "m2"] and found.store == ETCD
    assert found.masters["m2"] == f"ipc://{tmp_path}/ram/ipc/m2"
    assert ClusterFile.from_text(found.to_text(), tmp_path) == found


def test_a_lone_master_is_one_whatever_its_number(tmp_path: Path) -> None:
    found = byhand.with_masters(file_of(tmp_path), "m4", 0, "")
    assert list(found.masters) == ["m4"] and found.store == ""
    assert byhand.with_masters(file_of(tmp_path), "m0", 0, "sqlite").store == ""


def test_what_the_file_says_needs_not_be_said_again(tmp_path: Path) -> None:
    known = file_of(tmp_path, "m0", "m1", "m2", keeper="master", store=ETCD)
    assert byhand.with_masters(known, "m2", 0, "") == known


@pytest.mark.parametrize(
    ("id_", "count", "store", "text"),
    [
        ("m0", 3, "", "3 masters need a state that they share"),
        ("m0", 3, "sqlite", "3 masters need a state that they share"),
        ("m3", 3, ETCD, "m3 is none of them"),
    ],
)
def test_what_would_make_masters_that_know_nothing_of_each_other_is_refused(tmp_path: Path, id_: str, count: int, store: str, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        byhand.with_masters(file_of(tmp_path), id_, count, store)


def test_masters_of_several_hosts_are_named_by_their_addresses(tmp_path: Path) -> None:
    spread = file_of(tmp_path, keeper=ELSEWHERE)._replace(masters={"m0": "tcp://a:7000", "m1": "tcp://b:7000"})
    assert byhand.with_masters(spread, "m1", 0, ETCD).masters == spread.masters
    with pytest.raises(UsageError, match="--cluster HOST:PORT,HOST:PORT"):
        byhand.with_masters(spread, "m1", 3, ETCD)


# -- what becomes of it


class Lab:
    """Cluster `lab` by hand, with an etcd beside it."""

    def __init__(self, place: Place, etcd: Etcd) -> None:  # noqa: F811
        self.place = place
        self.etcd = etcd
        self.root = place.root / "c"
        place.environ["PLUGML_ROOT"] = str(self.root)
        self.running: dict[str, Running] = {}

    def start(self, id_: str, *words: str) -> Running:
        role = {"m": "master", "s": "server", "a": "agent"}[id_[0]]
        self.running[id_] = self.place.start(role, "--id", id_, "--cluster", "lab", *words)
        self.running[id_].heard("event=ready")
        return self.running[id_]

    def refused(self, id_: str, *words: str) -> str:
        return self.place.run("master", "--id", id_, "--cluster", "lab", *words, code=2).stderr

    def kill(self, id_: str, number: int = signal.SIGKILL) -> None:
        process = self.running.pop(id_)
        process.send(number)
        process.ended(0 if number == signal.SIGTERM else -number)

    def status(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.place.run("status", "--json", "--cluster", "lab").stdout)
        return document


@pytest.fixture
def lab(place: Place, tmp_path: Path) -> Iterator[Lab]:  # noqa: F811
    require("etcd")
    etcd = Etcd(tmp_path / "etcd", count=1)
    etcd.start()
    made = Lab(place, etcd)
    try:
        yield made
        for id_ in list(made.running):
            made.kill(id_, signal.SIGTERM)
        place.run("status", code=69)  # whoever looks removes what the last of them left
    finally:
        for process in made.running.values():
            process.process.kill()
            process.process.wait()
        etcd.end()


def test_masters_join_die_and_come_back_and_the_cluster_stays(lab: Lab) -> None:
    lab.start("m0", "--masters", "3", "--store", lab.etcd.url)
    assert "runs with masters m0, m1, m2: leave --masters away" in lab.refused("m1", "--masters", "2")
    assert "m7 is none of them" in lab.place.run("master", "--id", "m7", "--cluster", "lab", code=1).stderr
    assert "keeps its state in etcd" in lab.refused("m1", "--store", "sqlite")
    lab.start("m1")
    lab.start("m2", "--masters", "3", "--store", lab.etcd.url)
    lab.start("s0")
    lab.start("a0")
    first = lab.status()
    assert {node["node"].split(".")[0] for node in first["nodes"]} == {"s0", "a0"}

    assert "is node m1 of cluster lab" in lab.place.run("master", "--id", "m1", "--cluster", "lab", code=1).stderr

    lab.kill("m0")  # the one that has written cluster.json
    wait_for(lambda: lab.status()["term"] >= first["term"], "somebody leads")
    assert lab.root.is_dir() and (lab.root / "ipc" / "m1").exists()
    lab.start("m0")
    lab.kill(lab.status()["master"], signal.SIGTERM)
    assert {node["state"] for node in lab.status()["nodes"]} <= {"alive", "unheard"}
    assert lab.place.run("run", "-n", "2", "--cluster", "lab", "--table", "w=4", "--", *lab.place.trainer(3)).code == 0


def test_several_masters_of_one_host_end_and_nothing_is_left(lab: Lab) -> None:
    for id_ in ("m0", "m1"):
        lab.start(id_, "--masters", "2", "--store", lab.etcd.url)
    lab.kill("m0", signal.SIGTERM)
    assert lab.root.is_dir() and lab.status()["master"] == "m1"
    lab.kill("m1", signal.SIGTERM)
    lab.place.run("status", code=69)
    assert not lab.root.exists()


def test_masters_of_several_hosts_know_each_other_by_their_addresses(place: Place, tmp_path: Path) -> None:  # noqa: F811
    """Each host has a state and a root of its own: here they are directories."""
    require("etcd")
    etcd = Etcd(tmp_path / "etcd", count=1)
    etcd.start()
    with contextlib.ExitStack() as stack:
        stack.callback(etcd.end)
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        addresses = ",".join(f"127.0.0.1:{port.getsockname()[1]}" for port in sockets)
        for port in sockets:
            port.close()
        hosts = [Place(tmp_path / f"h{number}", place.root / f"h{number}") for number in range(2) if (tmp_path / f"h{number}").mkdir() is None]
        where = ["--cluster", addresses, "--insecure-trusted-network"]
        masters = [host.start("master", "--id", f"m{number}", "--store", etcd.url, *where) for number, host in enumerate(hosts)]
        for master in masters:
            stack.callback(master.process.wait)
            stack.callback(master.process.kill)
        wait_for(lambda: all("event=ready" in master.stderr for master in masters), "both are there")
        server = hosts[1].start("server", "--id", "s0", *where)
        stack.callback(server.process.wait)
        stack.callback(server.process.kill)
        server.heard("event=registered")
        leads = next(number for number, master in enumerate(masters) if "event=leads" in master.stderr)
        masters[leads].send(signal.SIGTERM)
        masters[leads].ended()
        masters[1 - leads].heard("event=leads term=2")
        for process in (masters[1 - leads], server):
            process.send(signal.SIGTERM)
            process.ended()
