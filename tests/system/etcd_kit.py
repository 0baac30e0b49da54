"""A real etcd of three members on this host, at unix sockets in a directory of the test's own: started, killed, stopped."""

from __future__ import annotations

import http.client
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from plugml.runtime.lifeline import dying_with_us

HANG_S = 120.0


class Etcd:
    """Members e0, e1, e2.  `url` is what a master is given as --store; `data` is a place on a disk."""

    def __init__(self, data: Path, count: int = 3) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="plugml-etcd-"))  # short: the path of a unix socket has at most 107 bytes
        self.data = data
        self.names = [f"e{number}" for number in range(count)]
        self.url = "etcd://" + ",".join(str(self.socket(name)) for name in self.names)
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._ready = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._ready.bind(str(self.home / "notify"))
        self._ready.settimeout(HANG_S)

    def socket(self, name: str) -> Path:
        return self.home / f"{name}:1"

    def start(self, *names: str, wait: bool = True) -> None:
        """Members say that they are ready when they have a leader: for that most of them must run."""
        for name in names or self.names:
            for left in (f"{name}:1", f"{name}:2"):
                (self.home / left).unlink(missing_ok=True)  # of one that was killed: it would not listen there again
            with (self.home / f"{name}.log").open("ab") as log:
                self.running[name] = subprocess.Popen(
                    self._command(name), cwd=self.home, stdout=log, stderr=log,
                    env={**os.environ, "NOTIFY_SOCKET": str(self.home / "notify")},
                    preexec_fn=dying_with_us(),
                )  # fmt: skip
        if wait:
            self.wait(len(names or self.names))

    def wait(self, count: int) -> None:
        """So many members get ready."""
        try:
            while count:
                count -= b"READY=1" in self._ready.recv(4096)
        except TimeoutError:
            pytest.fail("\n".join(self.log(name) for name in self.names))

    def _command(self, name: str) -> list[str]:
        words = ["etcd", "--name", name, "--data-dir", str(self.data / name), "--initial-cluster-state", "new", "--max-request-bytes", "2097152"]
        words += ["--listen-client-urls", f"unix://{name}:1", "--advertise-client-urls", f"unix://{name}:1"]
        words += ["--listen-peer-urls", f"unix://{name}:2", "--initial-advertise-peer-urls", f"unix://{name}:2"]
        return [*words, "--initial-cluster", ",".join(f"{other}=unix://{other}:2" for other in self.names)]

    # -- what is done to it

    def leader(self) -> str:
        """The member that leads the others."""
        status = {name: self.ask(name, "maintenance/status") for name in self.running}
        ids = {found["header"]["member_id"]: name for name, found in status.items()}
        return ids[next(iter(status.values()))["leader"]]

    def ask(self, name: str, what: str, **question: Any) -> Any:
        connection = http.client.HTTPConnection("etcd", timeout=HANG_S)
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.sock.connect(str(self.socket(name)))
            connection.request("POST", f"/v3/{what}", json.dumps(question))
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def kill(self, *names: str) -> None:
        for name in names:
            self.running[name].kill()
        for name in names:
            self.running.pop(name).wait()

    def stop(self, name: str) -> None:
        self.running[name].send_signal(signal.SIGSTOP)

    def go_on(self, name: str) -> None:
        self.running[name].send_signal(signal.SIGCONT)

    def fill_disk(self, name: str) -> int:
        """From here on the member can write nothing.  Waits for its end; gives its exit code."""
        process = self.running.pop(name)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, 0))
        return process.wait(HANG_S)

    def log(self, name: str) -> str:
        return (self.home / f"{name}.log").read_text(errors="replace")[-2_000:]

    def end(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()
        self._ready.close()
        shutil.rmtree(self.home)
