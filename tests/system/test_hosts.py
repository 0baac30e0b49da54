"""A cluster that `plugml up` opens to other hosts: what it says is what another host does, and a server's death is no matter."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import require
from tests.leaks import own_root
from tests.system.nemesis.net import TOOLS, Net

TOP = Path(__file__).resolve().parents[2]
HANG_S = 120.0
TRAINER = """
import sys, time
import numpy as np
from plugml.client import attach
plug = attach()
w = np.zeros(200_000, dtype=np.float32)
plug.pull(w)
for clock in plug.clocks(int(sys.argv[1])):
    time.sleep(0.02)
    plug.step(np.full(200_000, 1.0, dtype=np.float32), w)
print("first", float(w[0]), "last", float(w[-1]))
"""


class Host:
    """One of two hosts: a network, a state, a directory and a root in memory of its own."""

    def __init__(self, name: str, directory: Path, memory: Path, net: Net) -> None:
        self.name = name
        self.directory = directory
        self.net = net
        self.directory.mkdir()
        (self.directory / "t.py").write_text(TRAINER)
        kept = {key: value for key, value in os.environ.items() if not key.startswith("PLUGML_") or key == "PLUGML_TEST_MARK"}
        self.environ = {**kept, "PYTHONPATH": str(TOP), "XDG_STATE_HOME": str(directory / "state"), "PLUGML_ROOT": str(memory / name)}
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """In the background; what it says goes to files."""
        number = len(self.running)
        with (self.directory / f"out{number}").open("wb") as out, (self.directory / f"err{number}").open("wb") as err:
            command = [*self.net.prefix(self.name), sys.executable, "-m", "plugml", *words]
            process = subprocess.Popen(command, env=self.environ, cwd=self.directory, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        self.running.append(process)
        return process

    def said(self, number: int, stream: str = "out") -> str:
        return (self.directory / f"{stream}{number}").read_text(errors="replace")

    def run(self, *words: str, code: int = 0) -> str:
        process = self.start(*words)
        number = len(self.running) - 1
        assert process.wait(HANG_S) == code, self.said(number) + self.said(number, "err")
        return self.said(number) if code == 0 else self.said(number, "err")

    def status(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.run("status", "--json"))
        return document

    def end(self) -> None:
        for process in reversed(self.running):
            if process.poll() is None:
                process.terminate()
                process.wait(HANG_S)


@pytest.fixture
def hosts(tmp_path: Path, no_leaks: None, does_not_apply: Callable[[str], None]) -> Iterator[tuple[Host, Host]]:
    if os.geteuid():
        does_not_apply("only root can make network namespaces")
    for tool in TOOLS:
        require(tool)
    memory = own_root()
    memory.mkdir(mode=0o700)
    try:
        with Net(["here", "there"]) as net:
            made = Host("here", tmp_path / "here", memory, net), Host("there", tmp_path / "there", memory, net)
            try:
                yield made
            finally:
                for host in reversed(made):
                    host.end()
    except subprocess.CalledProcessError as error:
        does_not_apply(f"this place gives no network namespaces, or none with nft: {error}")
    finally:
        shutil.rmtree(memory, ignore_errors=True)


def until(holds: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + HANG_S
    while not holds():
        assert time.monotonic() < end, f"it never came true: {what}"
        time.sleep(0.1)


def joined(here: Host, there: Host) -> list[str]:
    """Bring up the cluster here and do there what it says; gives its lines."""
    up = here.start("up", "--name", "lab", "--servers", "2", "--copies", "2", "--interface", "wire0", "--port", "7000")
    until(lambda: "Ctrl-C takes it down" in here.said(0) or up.poll() is not None, "the cluster is up")
    lines = here.said(0).splitlines()
    assert up.poll() is None, here.said(0, "err")
    keys = there.directory / "plugml-keys"
    keys.mkdir(mode=0o700)
    place, names = re.fullmatch(r"  scp -p (\S+)/\{(\S+)\} HOST:plugml-keys/ .*", lines[2]).groups()  # type: ignore[union-attr]
    for name in names.split(","):
        shutil.copy2(f"{place}/{name}", keys / name)
    for line in lines[3:5]:
        words = shlex.split(line)
        assert words[0] == "plugml"
        there.start(*words[1:])
    variable, command, *_ = shlex.split(lines[5])
    assert command == "plugml"
    name, value = variable.split("=")
    there.environ |= {name: str(there.directory / value), "PLUGML_CLUSTER": f"{here.net.address('here')}:7000"}
    until(lambda: {node["node"].split(".")[0] for node in there.status()["nodes"]} == {"s0", "s1", "s2", "a0", "a1"}, "all nodes are there")
    return lines


def test_another_host_joins_by_what_up_says_and_a_lost_server_is_no_matter(hosts: tuple[Host, Host]) -> None:
    here, there = hosts
    lines = joined(here, there)
    assert lines[0] == "cluster lab is up: master m0, 2 servers, agent a0 (plugml status)" and f"{here.net.address('here')}:7000" in lines[3]
    run = there.start("run", "-n", "2", "--name", "far", "--table", "w=200000:f32,lr=-1", "--", sys.executable, "t.py", "150")
    number = len(there.running) - 1
    until(lambda: any(job["name"] == "far" and job["state"] == "running" for job in here.status()["jobs"]), "the job runs")
    job = json.loads(here.run("status", "far", "--json"))
    assert all("s2." in " ".join(range_["replicas"]) for range_ in job["ranges"]), "copies lie on both hosts"
    os.kill(next(node["pid"] for node in here.status()["nodes"] if node["node"].startswith("s1.")), signal.SIGKILL)
    assert run.wait(HANG_S) == 0, there.said(number, "err")
    assert there.said(number).count("first 150.0 last 150.0") == 2
    assert here.run("scale", "3").startswith("3 servers: s0, s1, s3. "), "s2 is another host's"


def test_who_has_no_key_is_told_so_and_refused(hosts: tuple[Host, Host]) -> None:
    here, there = hosts
    joined(here, there)
    assert "s3.key is not there" in there.run("server", "--keys", "plugml-keys", "--id", "s3", code=77)
    there.environ["PLUGML_KEYS"] = str(there.directory)
    assert "admin.key is not there: copy it from where `plugml keygen` made it" in there.run("status", code=77)
    stranger = here.directory / "other-keys"
    here.run("keygen", "--out", str(stranger))
    there.environ["PLUGML_KEYS"] = str(stranger)
    there.start("status")  # it waits, and nobody answers
    log = here.directory / "state" / "plugml" / "lab" / "logs" / "m0.log"
    until(lambda: "event=handshake_failed" in log.read_text() or "event=key_refused" in log.read_text(), "the master has refused somebody")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--port", "7000"], "say at which address others reach this node, by --interface: "),
        (["--interface", "eth77"], "'eth77' is neither an interface nor an address of this host; there are "),
        (["--interface", "lo", "--port", "99999"], "'99999' is no port"),
    ],
)
def test_an_address_that_cannot_be_is_refused_before_anything_starts(tmp_path: Path, words: list[str], text: str) -> None:
    environ = {**os.environ, "PYTHONPATH": str(TOP), "XDG_STATE_HOME": str(tmp_path), "PLUGML_ROOT": str(tmp_path / "root")}
    for detached in ([], ["-d"]):
        done = subprocess.run([sys.executable, "-m", "plugml", "up", *detached, *words], env=environ, capture_output=True, text=True, timeout=HANG_S, check=False)
        assert done.returncode == 2 and text in done.stderr and not (tmp_path / "root").exists()


def test_three_masters_have_three_ports_in_a_row(tmp_path: Path, no_leaks: None) -> None:
    require("etcd")
    root = own_root()
    environ = {**os.environ, "PYTHONPATH": str(TOP), "XDG_STATE_HOME": str(tmp_path), "PLUGML_ROOT": str(root)}

    def plugml(*words: str) -> str:
        return subprocess.run([sys.executable, "-m", "plugml", *words], env=environ, capture_output=True, text=True, timeout=HANG_S, check=True).stdout

    said = plugml("up", "-d", "--name", "row", "--masters", "3", "--servers", "1", "--interface", "lo")
    try:
        addresses = re.search(r"plugml agent  --cluster (\S+) ", said).group(1).split(",")  # type: ignore[union-attr]
        assert len(set(addresses)) == 3 and all(address.startswith("127.0.0.1:") for address in addresses)
        status = json.loads(plugml("status", "--cluster", "row", "--json"))
        assert all(node["endpoint"].startswith("tcp://127.0.0.1:") for node in status["nodes"] if node["role"] == "server")
    finally:
        plugml("down", "row", "--purge")
    assert not root.exists()


def test_keys_may_be_named_from_where_one_is_and_one_that_runs_is_refused_as_ever(tmp_path: Path, no_leaks: None) -> None:
    root = own_root()
    environ = {**os.environ, "PYTHONPATH": str(TOP), "XDG_STATE_HOME": str(tmp_path / "state"), "PLUGML_ROOT": str(root)}

    def plugml(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "plugml", *words], env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_S, check=False)

    words = ["up", "-d", "--name", "own", "--servers", "1", "--interface", "lo", "--keys", "our-keys"]
    first = plugml(*words)
    try:
        assert first.returncode == 0, first.stderr
        assert f"scp -p {tmp_path}/our-keys/" in first.stdout and (tmp_path / "our-keys" / "s0.key").exists()
        again = plugml(*words)
        assert again.returncode == 1 and "cluster own runs already" in again.stderr
    finally:
        plugml("down", "own", "--purge")
    assert not root.exists()
