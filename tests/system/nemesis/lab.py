"""The cluster that is tormented: each daemon on a host of its own, over TCP with keys, on an etcd of three members.

Dead daemons are started again after a while, as a supervisor would.  `poll` must be called often: nothing here waits
but `start`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.system.etcd_kit import Etcd

from .net import Net

MASTERS, SERVERS, AGENTS = ("m0", "m1", "m2"), ("s0", "s1", "s2", "s3"), ("a0", "a1")
ROLES = {"m": "master", "s": "server", "a": "agent"}
PORT = 7000
START_S = 60.0  # a hang limit
LOOK_S = 0.05
BACK_S = (0.1, 2.0)  # after so long the dead are started again
TOP = Path(__file__).resolve().parents[3]


class Lab:
    def __init__(self, directory: Path, memory: Path, net: Net, draw: random.Random) -> None:
        self.directory = directory
        self.memory = memory
        self.net = net
        self.etcd = Etcd(directory / "etcd")
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.stopped: set[str] = set()
        self.masters = ",".join(f"{net.address(id_)}:{PORT}" for id_ in MASTERS)
        self.meanwhile: Callable[[], object] = lambda: None  # called again and again while a command runs
        self._draw = draw
        self._back: dict[str, float] = {}  # the dead, and when they come back
        self._keys = directory / "keys"

    def environ(self, host: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PLUGML_") or name == "PLUGML_TEST_MARK"}
        return {
            **kept, "PYTHONPATH": str(TOP), "XDG_STATE_HOME": str(self.directory / "state" / host), "PLUGML_ROOT": str(self.root(host)),
            "PLUGML_KEYS": str(self._keys), "PLUGML_CLUSTER": self.masters,
        }  # fmt: skip

    def root(self, host: str) -> Path:
        return self.memory / host

    def command(self, host: str, *words: str) -> list[str]:
        return [*self.net.prefix(host), sys.executable, "-m", "plugml", *words]

    def start(self) -> None:
        counts = [word for flag, ids in (("masters", MASTERS), ("servers", SERVERS), ("agents", AGENTS)) for word in (f"--{flag}", str(len(ids)))]
        subprocess.run([sys.executable, "-m", "plugml", "keygen", "--out", str(self._keys), *counts], check=True, stdout=subprocess.DEVNULL, env=self.environ("m0"))
        self.etcd.start()
        for id_ in (*MASTERS, *SERVERS, *AGENTS):
            self._start(id_)
        end = time.monotonic() + START_S
        for id_ in self.running:
            while "event=ready" not in self._log(id_).read_text():
                if self.running[id_].poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"{id_} does not get ready:\n{self._log(id_).read_text()}")
                time.sleep(0.05)

    def _start(self, id_: str) -> None:
        words = [ROLES[id_[0]], "--id", id_, "--root", str(self.root(id_))]
        if id_ in MASTERS:
            words += ["--interface", "wire0", "--port", str(PORT), "--store", self.etcd.url]
        with self._log(id_).open("ab") as log:
            self.running[id_] = subprocess.Popen(
                self.command(id_, *words), env=self.environ(id_), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def _log(self, id_: str) -> Path:
        return self.directory / f"{id_}.log"

    def poll(self) -> list[str]:
        """Start again whose time has come; gives those."""
        now = time.monotonic()
        dead = [id_ for id_, process in self.running.items() if process.poll() is not None]
        dead += [name for name, process in self.etcd.running.items() if process.poll() is not None]
        for id_ in dead:
            self._back.setdefault(id_, now + self._draw.uniform(*BACK_S))
        back = [id_ for id_, at in self._back.items() if at <= now]
        for id_ in back:
            del self._back[id_]
            if id_.startswith("e"):
                self.etcd.start(id_, wait=False)
            else:
                self._start(id_)
        return back

    # -- what is done to it

    def kill(self, id_: str) -> None:
        self._process(id_).kill()
        self.stopped.discard(id_)

    def retire(self, id_: str) -> None:
        """Tell a server to end when others have what it holds."""
        self._process(id_).terminate()

    def stop(self, id_: str) -> None:
        self._process(id_).send_signal(signal.SIGSTOP)
        self.stopped.add(id_)

    def go_on(self) -> None:
        for id_ in sorted(self.stopped):
            self._process(id_).send_signal(signal.SIGCONT)
        self.stopped.clear()

    def _process(self, id_: str) -> subprocess.Popen[bytes]:
        return self.etcd.running[id_] if id_.startswith("e") else self.running[id_]

    # -- what it says

    def plugml(self, *words: str, limit_s: float = START_S) -> subprocess.CompletedProcess[str]:
        """A command of the user's, on the host of the first agent; code 124 when it does not end."""
        argv = self.command(AGENTS[0], *words)
        with subprocess.Popen(argv, env=self.environ(AGENTS[0]), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            end = time.monotonic() + limit_s
            while True:
                try:
                    out, err = process.communicate(timeout=LOOK_S)
                    break
                except subprocess.TimeoutExpired:
                    self.meanwhile()
                if time.monotonic() > end:
                    process.kill()
                    out, err = process.communicate()
                    return subprocess.CompletedProcess(words, 124, out, err)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def status(self) -> dict[str, Any]:
        """{} where nobody can say."""
        done = self.plugml("status", "--json")
        document: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
        return document

    def is_whole(self) -> bool:
        """Everybody is there, and every range has all its copies."""
        status = self.status()
        alive = {node["node"].split(".")[0] for node in status.get("nodes", ()) if node["state"] == "alive"}
        return alive >= {*SERVERS, *AGENTS} and all(not job["missing"] for job in status["jobs"] if job["state"] == "running")

    def end(self) -> None:
        self.go_on()
        for ids in (AGENTS, SERVERS, MASTERS):
            processes = [self.running[id_] for id_ in ids if id_ in self.running]
            for process in processes:
                process.terminate()
            for process in processes:
                try:
                    process.wait(START_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        self.etcd.end()
