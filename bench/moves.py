"""`python -m bench.moves [--times N]`: what it costs a running job that a server is emptied, and that a host is lost.

A server of four is drained and then filled again under the steps of a program: the longest step bounds the pause of any
range, and the copies that came to other servers are counted against those that the drained one held.  A host is lost when
the wire to its network namespace falls: nobody hears of it, so the masters wait as long as they do for silence.  Needs
root for the second; without, it is not measured.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .failover import HANG_S, TABLE, Figure, usual_steps
from .place import place, root
from .stepper import Stepper

NAME = "bench-hosts"
PLUGML = [sys.executable, "-m", "plugml"]


def drain_figures(work: Path, times: int) -> Iterator[Figure]:
    stepper = Stepper(work, "stepper", TABLE, "asp", "--servers", "4", "--copies", "2")
    usual, count = usual_steps(stepper)
    emptied, filled, moved, ideal = [], [], [], []
    for turn in range(times):
        victim = f"s{turn % 4}"
        before = _copies()
        emptied.append(_longest(stepper, count, lambda victim=victim: _plugml("drain", victim)))  # type: ignore[misc]
        moved.append(float(len(_copies() - before)))
        ideal.append(float(sum(server.startswith(f"{victim}.") for _range, server in before)))
        _plugml("drain", victim, "--cancel")
        filled.append(_longest(stepper, count, lambda: _plugml("scale")))
    stepper.close()
    yield f"longest step while a server is drained, worst of {times} / usual step", 0, "ms", [max(emptied)], usual
    yield f"longest step while it is filled again, worst of {times} / usual step", 0, "ms", [max(filled)], usual
    yield f"copies moved by {times} drains / copies that the drained servers held", 0, "copies", [sum(moved)], [sum(ideal)]


def host_figures(work: Path, times: int) -> Iterator[Figure]:
    ip = shutil.which("ip")
    if os.geteuid() or ip is None or shutil.which("unshare") is None:
        print("(no root, `ip` or `unshare` here: the loss of a host is not measured)")
        return
    with Hosts(work, ip) as hosts:
        stepper = Stepper(work, "stepper", TABLE, "asp", "--cluster", NAME, "--copies", "2", prefix=hosts.prefix(0))
        usual, count = usual_steps(stepper)
        count = 3 * count  # the silence lasts longer than a death
        stalls = []
        for _ in range(times):
            stalls.append(_longest(stepper, count, hosts.lose))
            hosts.find_again()
        stepper.close()
        yield f"longest step when a host with 2 of 4 servers is lost, median of {times} / usual step", 0, "ms", stalls, usual
        yield f"longest step when a host with 2 of 4 servers is lost, worst of {times} / usual step", 0, "ms", [max(stalls)], usual


def figures(work: Path, times: int) -> Iterator[Figure]:
    """Needs the program `stepper` in the directory."""
    yield from drain_figures(work, times)
    yield from host_figures(work, times)


class Hosts:
    """A master, an agent and two servers in one network namespace, two servers in another, with keys, and a wire between."""

    def __init__(self, work: Path, ip: str) -> None:
        self.work, self.ip = work, ip
        self.names = [f"plugml-bench-{os.getpid()}-{end}" for end in "ab"]
        self.keys = work / "keys"
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Hosts:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        for name in self.names:
            self._ip("netns", "add", name)
        self._ip("link", "add", "wire0", "netns", self.names[0], "type", "veth", "peer", "name", "wire0", "netns", self.names[1])
        for number, name in enumerate(self.names, 1):
            self._ip("-n", name, "addr", "add", f"10.79.0.{number}/24", "dev", "wire0")
            for link in ("lo", "wire0"):
                self._ip("-n", name, "link", "set", link, "up")
        _plugml("keygen", "--out", str(self.keys), "--servers", "4")
        self._node(0, "master", "m0", NAME, "--interface", "wire0", "--port", "7000")
        for number, role, id_ in ((0, "server", "s0"), (0, "server", "s1"), (0, "agent", "a0")):
            self._node(number, role, id_, NAME)
        self._lost()

    def __exit__(self, *_: object) -> None:
        for process in reversed(self.running.values()):
            process.send_signal(signal.SIGINT)  # a server that is cut off would wait for others at SIGTERM
            process.wait(HANG_S)
        for name in self.names:
            subprocess.run([self.ip, "netns", "del", name], check=False)

    def prefix(self, number: int) -> tuple[str, ...]:
        """What makes a command one of the host, which has a name of its own."""
        return (self.ip, "netns", "exec", self.names[number], "unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', f"bench-{'ab'[number]}")

    def lose(self) -> None:
        """Nothing comes or goes any more; nobody is told."""
        time.sleep(0.3)
        self._ip("-n", self.names[1], "link", "set", "wire0", "down")

    def find_again(self) -> None:
        for id_ in ("s2", "s3"):
            process = self.running.pop(id_)
            process.kill()
            process.wait(HANG_S)
        self._ip("-n", self.names[1], "link", "set", "wire0", "up")
        self._lost()

    def _lost(self) -> None:
        """The servers of the host that will be lost, and copies on them."""
        for id_ in ("s2", "s3"):
            self._node(1, "server", id_, "10.79.0.1:7000")
        _plugml("scale", "--cluster", NAME, prefix=self.prefix(0))

    def _node(self, number: int, role: str, id_: str, cluster: str, *words: str) -> None:
        log = self.work / f"{id_}.log"
        log.unlink(missing_ok=True)
        argv = [*self.prefix(number), *PLUGML, role, "--id", id_, "--cluster", cluster, "--keys", str(self.keys), "--log", str(log), *words]
        process = subprocess.Popen([*argv, "--root", str(root(self.work, number))])
        self.running[id_] = process
        end = time.monotonic() + HANG_S
        while not (log.exists() and "event=ready" in log.read_text()):
            if process.poll() is not None or time.monotonic() > end:
                sys.exit(f"bench: {role} {id_} is not ready:\n{log.read_text() if log.exists() else ''}")
            time.sleep(0.05)

    def _ip(self, *words: str) -> None:
        subprocess.run([self.ip, *words], check=True)


def _longest(stepper: Stepper, count: int, meanwhile: Callable[[], None]) -> float:
    """Milliseconds of the longest of so many steps."""
    return max(stepper.rounds(f"step {count}", meanwhile)) / 1e3


def _plugml(*words: str, prefix: tuple[str, ...] = ()) -> None:
    subprocess.run([*prefix, *PLUGML, *words], check=True, stdout=subprocess.DEVNULL, timeout=HANG_S)


def _copies() -> set[tuple[int, str]]:
    """Which range of the job has a whole copy on which server, in the only cluster here."""
    done = subprocess.run([*PLUGML, "status", "bench-stepper", "--json"], capture_output=True, text=True, check=True)
    job: dict[str, Any] = json.loads(done.stdout)
    return {(range_["range"], server) for range_ in job["ranges"] for server in range_["replicas"]}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.moves", description=__doc__)
    parser.add_argument("--times", type=int, default=4)
    arguments = parser.parse_args()
    from .__main__ import built, row, show

    with place() as work:
        built(work, parser)
        for figure in figures(work, arguments.times):
            show(row(*figure))


if __name__ == "__main__":
    main()
