"""A cluster over TCP as its user sees it: keys are made, needed, told apart and renewed, and their secrets are nowhere but in their files."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from plugml.runtime.keys import read_pair, read_roster
from plugml.runtime.sockets import call_with_keys
from plugml.wire import codec
from plugml.wire import messages as m
from tests.system.test_cluster_up import HANG_S, Desk

TRAINER = """
import sys
import numpy as np
from plugml.client import attach
plug = attach()
w = np.zeros(4, dtype=np.float32)
plug.pull(w)
for _ in plug.clocks(int(sys.argv[1])):
    plug.step(np.full(4, 1.0, dtype=np.float32), w)
print("first", float(w[0]))
"""


class Lab(Desk):
    """A user with a cluster of nodes started by hand, over TCP, and one directory of keys."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.keys = directory / "lab-keys"
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.prefix: list[str] = []  # another command in front of ours

    def keygen(self, *words: str) -> str:
        return self.ok("keygen", "--out", str(self.keys), *words)

    def node(self, role: str, id_: str, *words: str, root: str = "lab", cluster: str = "", prefix: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
        """Start it, and wait until it is ready."""
        argv = [*prefix, sys.executable, "-m", "plugml", role, "--id", id_, "--cluster", cluster or self.name("lab"), "--root", str(self.root(root))]
        errors = (self.directory / f"{id_}.err").open("ab")
        with errors:
            process = subprocess.Popen([*argv, "--log", str(self.log(id_)), *words], env=self.environ, stdout=subprocess.DEVNULL, stderr=errors)
        self.running[id_] = process
        self.until(lambda: "event=ready" in self.said(id_) or process.poll() is not None)
        assert process.poll() is None, (self.directory / f"{id_}.err").read_text()
        return process

    def refused(self, role: str, id_: str, *words: str, code: int = 77) -> str:
        found, _, err = self.run(role, "--id", id_, "--cluster", self.name("lab"), "--root", str(self.root("lab")), *words)
        assert found == code and "Traceback" not in err, err
        return err

    def log(self, id_: str) -> Path:
        return self.directory / f"{id_}.log"

    def said(self, id_: str) -> str:
        return self.log(id_).read_text() if self.log(id_).exists() else ""

    def end(self, id_: str) -> None:
        process = self.running.pop(id_)
        process.terminate()
        assert process.wait(HANG_S) == 0

    def start_all(self, *words: str) -> None:
        self.keygen()
        keys = ["--keys", str(self.keys)]
        self.node("master", "m0", "--interface", "lo", *keys, *words)
        for id_, role in (("s0", "server"), ("s1", "server"), ("a0", "agent")):
            self.node(role, id_, *words)

    def file(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.state("lab") / "cluster.json").read_text())
        return document

    def train(self, cluster: str = "", clocks: int = 20) -> str:
        (self.directory / "t.py").write_text(TRAINER)
        words = ["run", "--cluster", cluster or self.name("lab"), "-n", "2", "--table", "w=4:f32,lr=-1", "--result", str(self.directory / "result")]
        code, out, err = self.run(*words, "--", sys.executable, str(self.directory / "t.py"), str(clocks))
        assert code == 0, err
        return out

    def counters(self, id_: str) -> dict[str, int]:
        found: dict[str, int] = self.nodes(self.name("lab"))[id_]["counters"]
        return found


@pytest.fixture
def lab(tmp_path: Path, no_leaks: None) -> Iterator[Lab]:
    lab = Lab(tmp_path)
    lab.environ["PYTHONPATH"] = str(Path(__file__).parents[2])
    yield lab
    for process in reversed(lab.running.values()):
        process.terminate()
        process.wait(HANG_S)
    shutil.rmtree(lab.roots, ignore_errors=True)


# -- plugml keygen ----------------------------------------------------------------------------------------------------


def test_keygen_makes_private_files_and_says_nothing_secret(lab: Lab) -> None:
    before = os.umask(0)
    try:
        out = lab.keygen("--servers", "3", "--agents", "1", "--admin", "ann")
    finally:
        os.umask(before)
    assert out.splitlines() == [f"made in {lab.keys}: m0, s0 to s2, a0, admin, admin-ann"]
    for path in lab.keys.glob("*.key"):
        assert path.stat().st_mode & 0o777 == 0o600
        assert read_pair(lab.keys, path.stem).secret not in out
    assert lab.keys.stat().st_mode & 0o777 == 0o700
    before_again = {path: path.read_bytes() for path in lab.keys.iterdir()}
    assert "has them all: nothing was made" in lab.keygen("--servers", "3", "--agents", "1")
    assert {path: path.read_bytes() for path in lab.keys.iterdir()} == before_again


def test_keygen_refuses_in_words(lab: Lab) -> None:
    (lab.directory / "file").write_text("")
    code, _, err = lab.run("keygen", "--out", str(lab.directory / "file"))
    assert code == 77 and f"cannot make {lab.directory / 'file'}: File exists; give another --out" in err
    code, _, err = lab.run("keygen", "--out", str(lab.keys), "--renew", "s0.9f3a01c2")
    assert code == 77 and "'s0.9f3a01c2' names no key: use m0, s0, a0 ..., admin or admin-NAME" in err and not lab.keys.exists()
    lab.keygen()
    lab.keys.chmod(0o777)
    code, _, err = lab.run("keygen", "--out", str(lab.keys))
    assert code == 77 and "can be written by others (mode 0777): chmod 700" in err


# -- a cluster over TCP -----------------------------------------------------------------------------------------------


def test_over_tcp_with_keys_a_job_trains_as_within_one_host_and_no_secret_leaves_its_file(lab: Lab) -> None:
    lab.start_all()
    said = lab.train()
    assert said.count("first 20.0") == 2
    file = lab.file()
    assert file["security"] == "keys" and file["public"] == {"m0": read_roster(lab.keys)["m0"]}
    assert re.fullmatch(r"tcp://127\.0\.0\.1:\d+", file["masters"]["m0"])
    for node in lab.nodes(lab.name("lab")).values():
        assert node["role"] != "server" or node["endpoint"].startswith("tcp://127.0.0.1:")

    secrets = {id_: read_pair(lab.keys, id_).secret for id_ in read_roster(lab.keys)}
    status = lab.ok("status", "--cluster", lab.name("lab"), "--json")
    places = [path for top in (lab.directory, lab.roots) for path in top.rglob("*") if path.is_file() and lab.keys not in path.parents]
    texts = {str(path): path.read_bytes() for path in places} | {"status": status.encode(), "run": said.encode()}
    for id_, process in lab.running.items():
        for what in ("cmdline", "environ"):
            texts[f"{what} of {id_}"] = Path(f"/proc/{process.pid}/{what}").read_bytes()
    assert any(path.endswith("m0.log") for path in texts) and any(path.endswith("cluster.json") for path in texts)
    assert any(secrets["s0"].encode() in path.read_bytes() for path in lab.keys.iterdir()), "the search itself finds what is there"
    assert [(where, id_) for where, text in texts.items() for id_, secret in secrets.items() if secret.encode() in text] == []


def test_strangers_are_refused_counted_and_told_once_by_master_and_server(lab: Lab) -> None:
    lab.start_all()
    public, secret = (word.decode() for word in zmq.curve_keypair())
    endpoints = {"m0": lab.file()["masters"]["m0"], "s0": lab.nodes(lab.name("lab"))["s0"]["endpoint"]}
    context: zmq.Context[Any] = zmq.Context()
    try:
        for id_, endpoint in endpoints.items():
            ask = codec.encode(m.Admin(1, "status", {}) if id_ == "m0" else m.MapAsk(1, 0))
            for key in ((public, secret), None):
                for _ in range(3):
                    dealer = context.socket(zmq.DEALER)
                    dealer.set(zmq.LINGER, 0)
                    if key is not None:
                        call_with_keys(dealer, "c0.00000001", *key, read_roster(lab.keys)[id_])
                    dealer.connect(endpoint)
                    dealer.send_multipart([bytes(frame) for frame in ask])
                    assert not dealer.poll(300), "it is answered"
                    dealer.close()
            lab.until(lambda id_=id_: f"event=key_refused key={public}" in lab.said(id_).replace('"', "") and "event=handshake_failed" in lab.said(id_))
            assert lab.said(id_).count("event=key_refused") == 1
    finally:
        context.destroy(linger=0)
    lab.until(lambda: lab.counters("s0").get("keys_refused", 0) == 3 and lab.counters("s0").get("handshakes_failed", 0) >= 3)
    assert lab.train().count("first 20.0") == 2


def test_a_host_with_its_own_keys_alone_joins_by_the_masters_address(lab: Lab) -> None:
    lab.keygen()
    lab.node("master", "m0", "--interface", "lo", "--port", free_port(), "--keys", str(lab.keys))
    address = lab.file()["masters"]["m0"].removeprefix("tcp://")
    theirs = lab.directory / "their-keys"
    theirs.mkdir(mode=0o700)
    for name in ("roster.json", "s2.key", "a1.key", "admin.key"):
        shutil.copy2(lab.keys / name, theirs / name)
    for role, id_ in (("server", "s2"), ("agent", "a1")):
        lab.node(role, id_, "--keys", str(theirs), cluster=address, root="there")
    lab.until(lambda: set(lab.nodes(lab.name("lab"))) == {"s2", "a1"})
    code, _, err = lab.run("server", "--id", "s0", "--cluster", address, "--root", str(lab.root("there")), "--keys", str(theirs))
    assert code == 77 and f"{theirs}/s0.key is not there: copy it from where `plugml keygen` made it" in err

    lab.environ["PLUGML_KEYS"] = str(theirs)
    assert set(json.loads(lab.ok("status", "--cluster", address, "--json"))["cluster"]) == set(lab.name("lab"))
    lab.environ["PLUGML_KEYS"] = str(lab.directory)
    code, _, err = lab.run("status", "--cluster", address)
    assert code == 77 and "admin.key is not there" in err


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


SUPERVISOR = """
import os, sys, uvloop
from pathlib import Path
from plugml.launch import discovery, reach
from plugml.launch.cluster import LocalCluster

name, root, state = sys.argv[1:]
loop = uvloop.new_event_loop()
file, _ = discovery.places(name, Path(root), Path(state), os.environ)
file = reach.master_at(file, "m0", reach.Wish(interface="lo"), {})
reach.make_cluster_keys(file, ["m0", "s0", "s1", "a0"])
file = reach.with_public_keys(file)
cluster = LocalCluster(loop, file, os.environ, servers=2, say=lambda text: print(text, flush=True))

async def life():
    cluster.start()
    await cluster.wait_ready()
    print("ready", flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)
    await cluster.stop()

loop.run_until_complete(life())
loop.close()
"""


def test_a_supervisor_makes_the_keys_and_tells_the_master_of_a_death_by_its_own(lab: Lab) -> None:
    """What `plugml up` needs: the keys in the cluster's state, children that find them in cluster.json, an admin's word to the master."""
    argv = [sys.executable, "-c", SUPERVISOR, lab.name("lab"), str(lab.root("lab")), str(lab.state("lab"))]
    keeper = subprocess.Popen(argv, env=lab.environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert keeper.stdin is not None and keeper.stdout is not None
    with keeper.stdin, keeper.stdout:
        try:
            assert keeper.stdout.readline() == "ready\n"
            assert sorted(path.name for path in (lab.state("lab") / "keys").glob("*.key")) == ["a0.key", "admin.key", "m0.key", "s0.key", "s1.key"]
            before = lab.nodes(lab.name("lab"))
            assert all(node["endpoint"].startswith("tcp://127.0.0.1:") for id_, node in before.items() if id_ != "a0")
            os.kill(before["s1"]["pid"], 9)
            lab.until(lambda: lab.nodes(lab.name("lab")).get("s1", before["s1"])["node"] != before["s1"]["node"])
            dead = lab.nodes(lab.name("lab"), "dead")["s1"]
            assert dead["node"] == before["s1"]["node"] and "signal 9" in dead["why"], "its supervisor has told, no timer"
            assert lab.train().count("first 20.0") == 2
            keeper.stdin.write("end\n")
            keeper.stdin.flush()
            assert keeper.wait(HANG_S) == 0
        finally:
            keeper.kill()
            keeper.wait()


# -- what is refused --------------------------------------------------------------------------------------------------


def test_without_keys_nothing_is_on_tcp_unless_it_is_said_and_then_it_says_so_itself(lab: Lab) -> None:
    err = lab.refused("master", "m0", "--interface", "lo")
    assert f"there are no keys in {lab.state('lab') / 'keys'}" in err and "plugml keygen --out" in err
    assert not (lab.state("lab") / "cluster.json").exists()
    err = lab.refused("master", "m0", "--interface", "lo", "--insecure-trusted-network", "--keys", str(lab.keys), code=2)
    assert "--insecure-trusted-network means no keys at all" in err

    lab.node("master", "m0", "--interface", "lo", "--insecure-trusted-network")
    for id_, role in (("s0", "server"), ("a0", "agent")):
        lab.node(role, id_)
    for id_ in ("m0", "s0", "a0"):
        assert "speaks over TCP without keys (--insecure-trusted-network): whoever reaches its port" in (lab.directory / f"{id_}.err").read_text()
        assert "event=insecure" in lab.said(id_)
    assert "between hosts: TCP WITHOUT KEYS" in lab.ok("status", "--cluster", lab.name("lab"))
    assert lab.file()["security"] == "insecure" and lab.train().count("first 20.0") == 2

    address = lab.file()["masters"]["m0"].removeprefix("tcp://")  # from another host there is only that to know it by
    code, _, err = lab.run("status", "--cluster", address)
    assert code == 77 and "or say PLUGML_KEYS=none if that cluster has none" in err
    lab.environ["PLUGML_KEYS"] = "none"
    assert "alive" in lab.ok("status", "--cluster", address)


def test_keys_that_are_not_in_order_end_a_node_at_once_with_77(lab: Lab) -> None:
    lab.keygen()
    lab.node("master", "m0", "--interface", "lo", "--keys", str(lab.keys))
    (lab.keys / "s0.key").chmod(0o644)
    err = lab.refused("server", "s0")
    assert "s0.key has mode 0644; whoever can read it can be s0: chmod 600" in err
    other = lab.directory / "other"
    lab.ok("keygen", "--out", str(other))
    err = lab.refused("server", "s1", "--keys", str(other))
    assert f"the keys in {other} are not those of cluster {lab.name('lab')}: its master m0 has another one" in err
    err = lab.refused("server", "s1", "--insecure-trusted-network", code=2)
    assert f"cluster {lab.name('lab')} uses keys: a node without them is let in nowhere" in err


@pytest.mark.parametrize(("words", "sentence"), [
    (["--port", "7000"], "say at which address others reach this node, by --interface: "),
    (["--interface", "0.0.0.0"], "0.0.0.0 stands for every address of this host, and others must be told one: "),
    (["--interface", "eth77"], "'eth77' is neither an interface nor an address of this host; there are "),
    (["--interface", "lo", "--port", "99999"], "'99999' is no port"),
])  # fmt: skip
def test_an_address_that_nobody_could_call_is_a_usage_error(lab: Lab, words: list[str], sentence: str) -> None:
    assert sentence in lab.refused("master", "m0", *words, code=2)


# -- keys are renewed -------------------------------------------------------------------------------------------------


def test_a_renewed_key_works_after_a_restart_of_its_node_alone_and_the_old_one_not(lab: Lab) -> None:
    lab.start_all()
    old = shutil.copytree(lab.keys, lab.directory / "old-keys")
    lab.keygen("--renew", "s1")
    lab.end("s1")
    lab.node("server", "s1")
    lab.until(lambda: set(lab.nodes(lab.name("lab"))) == {"s0", "s1", "a0"})
    assert lab.train().count("first 20.0") == 2
    lab.end("s1")
    lab.log("s1").unlink()
    words = ["server", "--id", "s1", "--cluster", lab.name("lab"), "--root", str(lab.root("lab")), "--keys", str(old), "--log", str(lab.log("s1"))]
    lab.running["s1"] = lab.start(*words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    lab.until(lambda: "event=refused_by peer=m0" in lab.said("s1"))
    assert "event=registered" not in lab.said("s1")


def test_a_revoked_admin_is_asked_away(lab: Lab) -> None:
    lab.start_all()
    lab.ok("status", "--cluster", lab.name("lab"))
    theirs = shutil.copytree(lab.keys, lab.directory / "their-keys")
    lab.keygen("--admin", "ann")
    lab.keygen("--revoke", "admin")
    lab.until(lambda: re.search(r'event=roster_changed keys="?(\S+ )*admin["\s]', lab.said("m0")))  # it looks every other second
    lab.ok("status", "--cluster", lab.name("lab"))
    lab.environ["PLUGML_KEYS"] = str(theirs)
    process = lab.start("status", "--cluster", lab.name("lab"))
    try:
        lab.until(lambda: "event=key_refused" in lab.said("m0"))
    finally:
        process.terminate()
        process.communicate(timeout=HANG_S)


def test_with_plain_data_it_says_so_and_the_master_still_wants_keys(lab: Lab) -> None:
    lab.start_all("--data-security", "plain")
    assert lab.train().count("first 20.0") == 2
    assert "leaves pushes and values plain (--data-security plain)" in (lab.directory / "s0.err").read_text()
    assert lab.file()["security"] == "plain-data" and "PUSHES AND VALUES PLAIN" in lab.ok("status", "--cluster", lab.name("lab"))
    context: zmq.Context[Any] = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.set(zmq.LINGER, 0)
    dealer.set(zmq.IDENTITY, b"c0.00000001")
    dealer.connect(lab.file()["masters"]["m0"])
    dealer.send_multipart([bytes(frame) for frame in codec.encode(m.Admin(1, "status", {}))])
    assert not dealer.poll(500)
    dealer.close()
    context.destroy(linger=0)


# -- two hosts --------------------------------------------------------------------------------------------------------


@pytest.fixture
def hosts(lab: Lab, does_not_apply: Callable[[str], None]) -> Iterator[tuple[str, str]]:
    """Two network namespaces with a wire between them: 10.77.0.1 and 10.77.0.2."""
    ip = shutil.which("ip")
    if os.geteuid() or ip is None:
        does_not_apply("only root can lay a wire between two network namespaces")
    names = [f"plugml-{lab.roots.name[-8:]}-{end}" for end in "ab"]

    def run(*words: str) -> int:
        return subprocess.run(["ip", *words], capture_output=True, check=False).returncode

    if run("netns", "add", names[0]):
        does_not_apply("this place gives no network namespaces")
    try:
        run("netns", "add", names[1])
        run("link", "add", "wire0", "netns", names[0], "type", "veth", "peer", "name", "wire0", "netns", names[1])
        for number, name in enumerate(names, 1):
            run("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", "wire0")
            for link in ("lo", "wire0"):
                assert run("-n", name, "link", "set", link, "up") == 0
        yield names[0], names[1]
    finally:
        for name in names:
            run("netns", "del", name)


def test_between_two_hosts_each_node_tells_the_address_at_which_the_others_reach_it(lab: Lab, hosts: tuple[str, str]) -> None:
    here, there = ([shutil.which("ip") or "ip", "netns", "exec", name] for name in hosts)
    lab.keygen()
    keys = ["--keys", str(lab.keys)]
    lab.node("master", "m0", "--interface", "wire0", "--port", "7000", *keys, prefix=tuple(here))
    lab.node("server", "s0", *keys, root="there", cluster="10.77.0.1:7000", prefix=tuple(there))
    lab.node("server", "s1", prefix=tuple(here))
    lab.node("agent", "a0", prefix=tuple(here))
    argv = [*here, sys.executable, "-m", "plugml"]
    done = subprocess.run([*argv, "status", "--cluster", lab.name("lab"), "--json"], env=lab.environ, capture_output=True, timeout=HANG_S, check=True)
    nodes = {node["node"][:2]: node for node in json.loads(done.stdout)["nodes"]}
    assert re.fullmatch(r"tcp://10\.77\.0\.2:\d+", nodes["s0"]["endpoint"]) and re.fullmatch(r"tcp://10\.77\.0\.1:\d+", nodes["s1"]["endpoint"])
    done = subprocess.run(
        [*there, sys.executable, "-m", "plugml", "server", "--id", "s2", "--cluster", "10.77.0.1:7000", "--interface", "lo", *keys,
         "--root", str(lab.root("there"))],
        env=lab.environ, capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and "127.0.0.1 is reached from this host alone, and the master is at 10.77.0.1" in done.stderr
    subprocess.run([*there[:1], "-n", hosts[1], "addr", "add", "10.78.0.2/32", "dev", "wire0"], check=True)
    lab.node("server", "s3", *keys, "--interface", "10.78.0.2", root="there", cluster="10.77.0.1:7000", prefix=tuple(there))
    lab.until(lambda: "event=unreached" in lab.said("m0"))
    shown = subprocess.run([*argv, "status", "--cluster", lab.name("lab")], env=lab.environ, capture_output=True, text=True, timeout=HANG_S, check=True).stdout
    assert re.search(r"m0 cannot reach it at tcp://10\.78\.0\.2:\d+: there is no way from here to 10\.78\.0\.2", shown), shown
    assert lab.said("m0").count("event=unreached") == 1, "the others it has reached"
    lab.end("s3")
    (lab.directory / "t.py").write_text(TRAINER)
    words = ["run", "--cluster", lab.name("lab"), "-n", "2", "--table", "w=4:f32,lr=-1", "--result", str(lab.directory / "result")]
    run = subprocess.run(
        [*argv, *words, "--", sys.executable, str(lab.directory / "t.py"), "20"], env=lab.environ, capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert run.returncode == 0 and run.stdout.count("first 20.0") == 2, run.stderr
