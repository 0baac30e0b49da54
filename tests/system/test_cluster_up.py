"""A standing cluster as its user sees it: it comes up, survives the death of its parts, is found, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from tests.leaks import own_root

HANG_S = 120.0
LOOK_S = 0.05


class Desk:
    """A user with a state directory and roots of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.roots = own_root()
        self.roots.mkdir(mode=0o700)
        self.environ = {key: value for key, value in os.environ.items() if not key.startswith("PLUGML_")}
        self.environ |= {"XDG_STATE_HOME": str(directory / "state"), "PLUGML_CHECK": "1", "NO_COLOR": "1"}
        mark = os.environ.get("PLUGML_TEST_MARK")
        if mark:
            self.environ["PLUGML_TEST_MARK"] = mark

    def name(self, word: str) -> str:
        return f"{word}-{self.roots.name[-8:]}"

    def root(self, word: str) -> Path:
        return self.roots / word

    def state(self, word: str) -> Path:
        return self.directory / "state" / "plugml" / self.name(word)

    def start(self, *words: str, **options: Any) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "plugml", *words]
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        return subprocess.Popen(argv, env=self.environ, cwd=options.pop("cwd", None), **options)

    def run(self, *words: str) -> tuple[int, str, str]:
        process = self.start(*words)
        out, err = process.communicate(timeout=HANG_S)
        return process.returncode, out.decode(), err.decode()

    def ok(self, *words: str) -> str:
        code, out, err = self.run(*words)
        assert code == 0, f"plugml {' '.join(words)}: exit code {code}\n{out}\n{err}"
        return out

    def up(self, word: str, servers: int = 2) -> str:
        name = self.name(word)
        self.ok("up", "-d", "--name", name, "--servers", str(servers), "--root", str(self.root(word)))
        return name

    def status(self, name: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.ok("status", "--cluster", name, "--json"))
        return document

    def nodes(self, name: str, state: str = "alive") -> dict[str, dict[str, Any]]:
        """Nodes in that state by id."""
        return {node["node"].partition(".")[0]: node for node in self.status(name)["nodes"] if node["state"] == state}

    def until(self, holds: Callable[[], Any]) -> Any:
        end = time.monotonic() + HANG_S
        while not (value := holds()):
            assert time.monotonic() < end, "hangs"
            time.sleep(LOOK_S)
        return value

    def close(self) -> None:
        for file in self.directory.glob("state/plugml/*/cluster.json"):
            self.run("down", str(file.parent))
        shutil.rmtree(self.roots, ignore_errors=True)


@pytest.fixture
def desk(tmp_path: Path, no_leaks: None) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.close()


def children(pid: int) -> dict[str, int]:
    """Ids and pids of the daemons that the keeper `pid` has."""
    found = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        words = Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0")
        if "--id" in words:
            found[words[words.index("--id") + 1]] = int(child)
    return found


def wait_end(pid: int) -> None:
    """Until the process has ended; it need not be a child of ours."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended = select.select([descriptor], [], [], HANG_S)[0]
    os.close(descriptor)
    assert ended, f"process {pid} does not end"


# -- up, down, and what dies in between -------------------------------------------------------------------------------


def test_a_cluster_comes_up_and_down_leaves_nothing(desk: Desk) -> None:
    name = desk.up("lab")
    document = desk.status(name)
    assert document["cluster"] == name and document["root"] == str(desk.root("lab"))
    assert sorted((node["node"].partition(".")[0], node["state"]) for node in document["nodes"]) == [
        ("a0", "alive"), ("s0", "alive"), ("s1", "alive")
    ]  # fmt: skip
    file = desk.state("lab") / "cluster.json"
    assert file.stat().st_mode & 0o777 == 0o600 and json.loads(file.read_text())["name"] == name
    assert file.read_text() == (desk.root("lab") / "cluster.json").read_text()

    pids = [document["pid"], *children(document["pid"]).values()]
    assert len(pids) == 5
    assert f"cluster {name} is down" in desk.ok("down", name)
    for pid in pids:
        wait_end(pid)
    assert not desk.root("lab").exists() and not file.exists()
    assert (desk.state("lab") / "master.sqlite").exists()

    code, _, err = desk.run("status", "--cluster", name)
    assert code == 69 and f"no cluster '{name}' runs here" in err and "plugml up" in err


def test_a_killed_master_is_back_and_remembers(desk: Desk) -> None:
    name = desk.up("lab")
    before = desk.status(name)
    master = children(before["pid"])["m0"]
    os.kill(master, signal.SIGKILL)
    after = desk.until(lambda: (found := desk.status(name))["term"] > before["term"] and len(found["nodes"]) == 3 and found)
    assert {node["node"] for node in after["nodes"]} == {node["node"] for node in before["nodes"]}
    assert children(before["pid"])["m0"] != master


def test_a_killed_server_is_dead_at_once_and_its_successor_is_another_node(desk: Desk) -> None:
    name = desk.up("lab")
    before = desk.nodes(name)
    os.kill(before["s1"]["pid"], signal.SIGKILL)
    after = desk.until(lambda: (found := desk.nodes(name)).get("s1", before["s1"])["node"] != before["s1"]["node"] and found)
    assert after["s0"]["node"] == before["s0"]["node"]
    dead = desk.nodes(name, "dead")["s1"]
    assert dead["node"] == before["s1"]["node"] and "signal 9" in dead["why"].replace("SIGKILL", "signal 9")


def test_a_killed_agent_is_back(desk: Desk) -> None:
    name = desk.up("lab", 1)
    before = desk.nodes(name)["a0"]
    os.kill(before["pid"], signal.SIGKILL)
    desk.until(lambda: (found := desk.nodes(name).get("a0")) and found["node"] != before["node"])
    with socket.socket(socket.AF_UNIX) as call:
        call.connect(str(desk.root("lab") / "agent.sock"))


def test_when_the_keeper_is_killed_nothing_of_it_stays_and_the_name_is_free(desk: Desk) -> None:
    name = desk.up("lab")
    keeper = desk.status(name)["pid"]
    pids = [keeper, *children(keeper).values()]
    os.kill(keeper, signal.SIGKILL)
    for pid in pids:
        wait_end(pid)
    assert desk.run("status", "--cluster", name)[0] == 69
    desk.run("status")  # looking for any cluster cleans up after those that were killed
    assert not desk.root("lab").exists() and not (desk.state("lab") / "cluster.json").exists()
    assert desk.up("lab") == name
    assert len(desk.nodes(name)) == 3


def test_in_the_foreground_ctrl_c_takes_all_of_it_down(desk: Desk) -> None:
    name = desk.name("fore")
    process = desk.start("up", "--name", name, "--servers", "1", "--root", str(desk.root("fore")))
    assert process.stdout is not None
    assert process.stdout.readline() == f"cluster {name} is up: master m0, 1 server, agent a0 (plugml status)\n".encode()
    pids = children(process.pid).values()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 0 and b"Traceback" not in err
    for pid in pids:
        wait_end(pid)
    assert not desk.root("fore").exists()


def test_a_name_that_runs_is_not_taken_twice(desk: Desk) -> None:
    name = desk.up("lab", 1)
    code, out, err = desk.run("up", "-d", "--name", name)
    assert code == 1 and not out and f"cluster {name} runs already (process {desk.status(name)['pid']})" in err
    assert len(desk.nodes(name)) == 2


def test_a_daemon_that_cannot_start_is_named_with_its_reason(desk: Desk) -> None:
    desk.state("lab").mkdir(parents=True)
    (desk.state("lab") / "master.sqlite").write_bytes(b"no database at all, but long enough to be looked at" * 100)
    code, _, err = desk.run("up", "-d", "--name", desk.name("lab"), "--root", str(desk.root("lab")))
    assert code == 1 and "cannot go on: master m0 ended (exit code" in err and "master.sqlite" in err
    assert "Traceback" not in err and not desk.root("lab").exists()


def test_down_purge_lists_what_it_removes(desk: Desk) -> None:
    name = desk.up("lab", 1)
    out = desk.ok("down", name, "--purge")
    assert f"remove {desk.state('lab') / 'master.sqlite'}" in out and not desk.state("lab").exists()
    name = desk.up("lab", 1)
    desk.ok("down", name)
    assert desk.state("lab").exists()
    desk.ok("down", name, "--purge")
    assert not desk.state("lab").exists()
    assert desk.run("down", name)[0] == 69


# -- which one is meant -----------------------------------------------------------------------------------------------


def test_two_clusters_and_no_name_is_an_error_that_lists_them(desk: Desk) -> None:
    one, two = desk.up("one", 1), desk.up("two", 1)
    code, _, err = desk.run("status")
    assert code == 69 and one in err and two in err and "--cluster NAME or PLUGML_CLUSTER" in err
    desk.environ["PLUGML_CLUSTER"] = two
    assert json.loads(desk.ok("status", "--json"))["cluster"] == two
    assert json.loads(desk.ok("status", "--json", "--cluster", one))["cluster"] == one
    assert json.loads(desk.ok("status", "--json", "--cluster", str(desk.state("one") / "cluster.json")))["cluster"] == one
    assert json.loads(desk.ok("status", "--json", "--cluster", str(desk.root("one"))))["cluster"] == one


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 99}', '{"version": 1, "masters": 3}'])
def test_a_broken_cluster_file_is_a_sentence(desk: Desk, text: str) -> None:
    path = desk.directory / "cluster.json"
    path.write_text(text)
    code, _, err = desk.run("status", "--cluster", str(path))
    assert code == 2 and str(path) in err and "Traceback" not in err
    assert desk.run("status", "--cluster", str(desk.directory / "none.json"))[0] == 69


# -- by hand ----------------------------------------------------------------------------------------------------------


def test_nodes_started_by_hand_in_any_order_find_each_other(desk: Desk) -> None:
    name = desk.name("hand")
    where = ["--cluster", name, "--root", str(desk.root("hand"))]
    logs = {id_: desk.directory / f"{id_}.log" for id_ in ("a0", "s0", "m0")}
    nodes = {
        id_: desk.start(role, *where, "--id", id_, "--log", str(logs[id_]), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for id_, role in (("a0", "agent"), ("s0", "server"))
    }
    desk.until(lambda: (desk.root("hand") / "agent.sock").exists() and (desk.root("hand") / "ipc" / "s0").exists())
    nodes["m0"] = desk.start("master", *where, "--log", str(logs["m0"]), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    desk.until(lambda: (desk.state("hand") / "cluster.json").exists())
    desk.until(lambda: set(desk.nodes(name)) == {"a0", "s0"})
    for log in logs.values():
        desk.until(lambda log=log: "event=ready" in log.read_text())

    code, _, err = desk.run("server", *where, "--id", "s0")
    assert code == 1 and f"another process ({nodes['s0'].pid}) is node s0 of cluster {name} on this host: end that one" in err
    code, _, err = desk.run("master", *where, "--id", "m1")
    assert code == 1 and f"cluster {name} runs already" in err
    code, _, err = desk.run("down", name)
    assert code == 1 and "started by hand" in err

    for id_ in ("m0", "a0", "s0"):
        nodes[id_].terminate()
        assert nodes[id_].wait(HANG_S) == 0
    # The agent was still there when the master ended, so its root stayed, and the file that leads to it: the next look removes both.
    assert (desk.state("hand") / "cluster.json").exists()
    _, out, err = desk.run("status")
    assert name not in out + err
    assert not (desk.state("hand") / "cluster.json").exists() and not desk.root("hand").exists()


@pytest.mark.parametrize("id_", ["s", "0", "m0", "s00000", "s-1", "s0.9f3a01c2", "../s0"])
def test_a_node_id_is_a_letter_and_a_number(desk: Desk, id_: str) -> None:
    code, _, err = desk.run("server", "--cluster", desk.name("x"), "--root", str(desk.root("x")), "--id", id_)
    assert code == 2 and "use s0, s1" in err


def test_a_root_on_disk_is_refused(desk: Desk, does_not_apply: Callable[[str], None]) -> None:
    if os.stat(desk.directory).st_dev == os.stat("/dev/shm").st_dev:
        does_not_apply("temporary files are in memory here")
    code, _, err = desk.run("up", "-d", "--name", desk.name("disk"), "--root", str(desk.directory / "root"))
    assert code == 73 and "not in memory" in err and "--allow-disk" in err


# -- nonsense ---------------------------------------------------------------------------------------------------------


def test_garbage_on_every_socket_changes_nothing(desk: Desk) -> None:
    name = desk.up("lab")
    before = desk.nodes(name)
    pids = children(desk.status(name)["pid"])
    draw = random.Random(7)
    root = desk.root("lab")
    sockets = [path for path in (*root.iterdir(), *(root / "ipc").iterdir()) if path.is_socket()]
    assert {path.name for path in sockets} == {"agent.sock", "m0", "s0", "s1", "notify"}
    for path in sockets:
        _raw_garbage(path, draw)
        if path.name in ("m0", "s0", "s1"):
            _framed_garbage(path, draw)
    assert "alive" in desk.ok("status", "--cluster", name)
    assert desk.nodes(name) .keys() == before.keys()
    assert {id_: node["node"] for id_, node in desk.nodes(name).items()} == {id_: node["node"] for id_, node in before.items()}
    assert children(desk.status(name)["pid"]) == pids


def _raw_garbage(path: Path, draw: random.Random) -> None:
    for _ in range(20):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            with socket.socket(socket.AF_UNIX, kind) as call:
                try:
                    call.connect(str(path))
                    call.send(draw.randbytes(draw.randint(1, 2000)) + b"\n" * draw.randint(0, 1))
                except OSError:
                    continue  # of the other kind, or thrown out


def _framed_garbage(path: Path, draw: random.Random) -> None:
    context = zmq.Context()
    for identity in (b"a0.00000001", b"s0.00000001", b"m0", b"nobody at all"):
        dealer = context.socket(zmq.DEALER)
        dealer.set(zmq.IDENTITY, identity)
        dealer.set(zmq.LINGER, 5_000)
        dealer.connect(f"ipc://{path}")
        for _ in range(50):
            dealer.send_multipart([b"PLGM" * draw.randint(0, 1) + draw.randbytes(draw.randint(0, 400)) for _ in range(draw.randint(1, 4))])
        dealer.send_multipart([bytes(8 << 20)])
        dealer.close()
    context.term()


# -- the command line -------------------------------------------------------------------------------------------------


def test_listings_into_a_closed_pipe_end_without_a_traceback(desk: Desk) -> None:
    name = desk.up("lab", 1)
    for words in (["status"], ["status", "-w"], ["jobs", "--json"], ["logs"], ["logs", "-f"], ["--help"]):
        which = ["--cluster", name] if words != ["--help"] else []
        process = desk.start(*words, *which)
        assert process.stdout is not None and process.stderr is not None
        if words != ["jobs", "--json"]:
            process.stdout.readline()
        process.stdout.close()
        if words == ["logs", "-f"]:
            os.kill(children(desk.status(name)["pid"])["a0"], signal.SIGKILL)  # so that something new is said
        err = process.stderr.read()
        process.stderr.close()
        assert process.wait(HANG_S) in (0, 141), words
        assert b"Traceback" not in err and b"Exception" not in err, err


def test_logs_show_nodes_in_the_order_of_time(desk: Desk) -> None:
    name = desk.up("lab", 1)
    lines = desk.ok("logs", "--cluster", name).splitlines()
    assert {word for line in lines for word in line.split() if word.startswith("node=")} >= {"node=m0"}
    stamps = [line.split()[0] for line in lines]
    assert stamps == sorted(stamps) and any("event=ready" in line for line in lines)
    assert all("node=s0." in line for line in desk.ok("logs", "--cluster", name, "s0").splitlines())
    code, _, err = desk.run("logs", "--cluster", name, "s7")
    assert code == 2 and "there are a0, m0, s0" in err


def test_logs_of_a_job_are_found_from_anywhere(desk: Desk) -> None:
    name = desk.up("lab", 1)
    trainer = Path(__file__).parents[2] / "examples" / "hello" / "hello.sh"
    words = ["run", "--cluster", name, "-n", "2", "--name", "greet", "--table", "w=4", "--", "sh", str(trainer), "3"]
    process = desk.start(*words, cwd=desk.directory)
    _, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, err
    lines = desk.ok("logs", "--cluster", name, "greet").splitlines()
    assert [line.split("=")[0] for line in lines] == ["[w0] clock", "[w1] clock"]
    assert "greet" in desk.ok("jobs", "--cluster", name)
    assert json.loads(desk.ok("rm", "greet", "--cluster", name, "--json"))["state"] == "removed"
    code, _, err_text = desk.run("stop", "greet", "--cluster", name)
    assert code == 1 and err_text == "plugml: there is no job 'greet'; known are none at all\n"


def test_two_clusters_never_share_a_root(desk: Desk) -> None:
    name = desk.up("lab", 1)
    code, _, err = desk.run("up", "-d", "--name", desk.name("other"), "--root", str(desk.root("lab")))
    assert code == 1 and f"the root {desk.root('lab')} is in use by another cluster" in err
    assert len(desk.nodes(name)) == 2 and desk.status(name)["cluster"] == name
