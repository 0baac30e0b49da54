"""The server as a process: what a machine may not know by itself (names, sockets, how much memory the host has left)."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from importlib import import_module
from pathlib import Path

import numpy as np

from ..core.limits import Limits
from ..runtime.keys import NO_TCP, Trust
from ..runtime.log import LogFile
from ..runtime.node import Node, node_name, run_node, tell
from . import savedisk
from .effects import Retiring, Turn, Warm, WarmUp
from .link import Identity
from .node import ServerMachine

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")
ALONE_S = 3.0  # one that was told to end and holds nothing waits so long for a master's word that nobody relies on it
RETIRE_S = 30.0  # a server that was told to end waits so long for others


def run_server(
    id_: str,
    *,
    endpoint: str,
    masters: dict[str, str],
    log: LogFile | None = None,
    limits: Limits = Limits(),
    trust: Trust = NO_TCP,
) -> int:
    """Run server `id_` at `endpoint` until it is told to end; gives the exit code.

    `masters` are id -> endpoint, as in cluster.json; they need not be there yet.
    """

    def make(node: Node) -> ServerMachine:
        node.performers[Turn] = lambda effect: node.loop.call_soon(node.feed, "", effect)  # behind what has come meanwhile
        node.performers[WarmUp] = lambda effect: warm_up(node)
        savedisk.attach(node)
        identity = Identity(node.name, socket.gethostname(), node.network.endpoint, os.getpid(), f"numpy {np.__version__}", masters)
        machine = ServerMachine(identity, limits, node.is_lent, free_bytes)
        node.on_term = lambda: retire(node, machine)
        return machine

    return run_node(make, node_name(id_), endpoint, limits=limits, log=log, ready_on="registered", trust=trust)


def retire(node: Node, machine: ServerMachine) -> bool:
    """Told to end: first others are to have what only this process holds."""
    node.loop.call_later(RETIRE_S, node.stop, 0, f"told to end, and others could not take over what it holds within {RETIRE_S:.0f} s")

    def alone() -> None:
        if not machine.copies():
            node.stop(0, "told to end; it holds nothing, and no master has answered")

    node.loop.call_later(ALONE_S, alone)
    node.feed("", Retiring())
    if machine.copies():
        tell(f"{node.name} ends as soon as others have what it holds, at the latest in {RETIRE_S:.0f} s; a second SIGTERM, or Ctrl-C, ends it at once")
    return True


def warm_up(node: Node) -> None:
    """Import what numba compiles in a thread of its own: the loop goes on beating meanwhile."""

    def done(problem: str | None) -> None:
        assert problem is not None, "the compiled part for rows broke down: its thread has written why"
        node.feed("", Warm(problem))

    def work() -> None:
        problem = None
        try:
            problem = rows_problem()
        finally:
            with contextlib.suppress(RuntimeError):  # the loop is closed: this process ends
                node.loop.call_soon_threadsafe(done, problem)

    threading.Thread(target=work, name="warm-up", daemon=True).start()


def rows_problem() -> str:
    """Compile and import what rows need; the sentence why that cannot be, or ""."""
    try:
        import_module(".rowindex", __package__)
    except (ImportError, OSError) as error:
        return f"numba cannot be used here ({error}); install plugml with its dependencies on this host"
    return ""


def free_bytes(proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """Memory that this process could still get: of the host, and of every control group that it lies in."""
    free = 1 << 62
    for line in _lines(proc / "meminfo"):
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
    for line in _lines(proc / "self" / "cgroup"):
        number, controllers, path = line.split(":", 2)
        if number == "0":
            free = min(free, _left_in(cgroup, path, "memory.max", "memory.current"))
        elif "memory" in controllers.split(","):
            free = min(free, _left_in(cgroup / "memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes"))
    return free


def _left_in(root: Path, path: str, limit_name: str, usage_name: str) -> int:
    """The tightest room on the way from a control group up to its root.  A container sees its own group as the root."""
    left = 1 << 62
    group = root / path.strip("/")
    while True:
        limit, usage = _number(group / limit_name), _number(group / usage_name)
        if limit is not None and usage is not None:
            left = min(left, max(0, limit - usage + _reclaimable(group)))
        if group == root or root not in group.parents:
            return left
        group = group.parent


def _reclaimable(group: Path) -> int:
    """Pages of files that nobody has looked at lately: charged to the group, and given back when they are needed."""
    for line in _lines(group / "memory.stat"):
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file") and value.isdigit():
            return int(value)
    return 0


def _number(path: Path) -> int | None:
    """The number in a small file; None for `max`, or where there is no such file."""
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []  # another kernel, or not for us to read
