"""The agent's shell: root, lock, sweep, adoption, socket, beats, statistics; the machine decides, this acts.

    check root -> agent.lock -> sweep -> agent.sock -> adopt what is kept -> serve until told to end
"""

from __future__ import annotations

import asyncio
import os
import platform
import socket
import time
from pathlib import Path
from typing import Any

import numpy

from ..core.limits import Limits
from ..runtime.keys import NO_TCP, Trust
from ..runtime.log import LogFile
from ..runtime.node import Node, node_name, run_node
from ..shm_protocol.channel import agent_number
from ..shm_protocol.root import boot_id, lock_agent, prepare_root, sweep
from ..shm_protocol.semaphore import sweep as sweep_semaphores
from . import effects as e
from .disk import Disk
from .door import Door
from .link import Identity
from .machine import AgentMachine

STAT_S = 1.0
BEAT_S = 0.5


class AgentShell:
    """Everything of one agent process that is not its machine."""

    def __init__(self, node: Node, root: Path, root_fd: int, identity: Identity) -> None:
        self.node = node
        self.root = root
        self.started_ns = time.monotonic_ns()
        self.machine = AgentMachine(identity, node.limits)
        self.disk = Disk(node.loop, root_fd, agent_number(), self.feed, node.is_lent)
        self.door = Door(node.loop, root, self._from_door, node.log)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._stat_lost = False
        node.performers.update(self.disk.performers())
        node.performers[e.Tell] = self.door.tell
        self._reply = node.performers[e.Reply]
        node.performers[e.Reply] = self._first_reply
        node.counted.append(self._counted)
        node.at_end(self.close)

    def feed(self, event: Any) -> None:
        self.node.feed("", event)

    def _from_door(self, event: Any) -> None:
        self.feed(event)
        if isinstance(event, e.Hung):  # perhaps a launcher that has died: its channels say so by their keepers
            self.disk.look_for_keepers()

    def _first_reply(self, effect: e.Reply) -> None:
        """The first of this process is news for the supervisor; the others go straight to their channels."""
        self.node.performers[e.Reply] = self._reply
        self._reply(effect)
        self.node.served()

    def start(self, channels: tuple[str, ...]) -> None:
        """The loop runs: adopt what an earlier agent left, then beat."""
        for name in channels:
            self.feed(e.Found(name))
        self._beat()
        self._stat()

    def _counted(self) -> dict[str, int]:
        return {"garbage": self.door.garbage}

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self.door.close()
        self.disk.abandon()

    def _beat(self) -> None:
        self.disk.beat(time.monotonic_ns())
        self._timers["beat"] = self.node.loop.call_later(BEAT_S, self._beat)

    def _stat(self) -> None:
        self._write_stat()
        self._timers["stat"] = self.node.loop.call_later(STAT_S, self._stat)

    def _write_stat(self) -> None:
        """Counters as text, whole at any time.  A full root costs only news."""
        counters = {**self.machine.counters(), **self.node.network.counters(), **self._counted()}
        lines = [f"node={self.node.name}", f"pid={os.getpid()}", f"up_s={(time.monotonic_ns() - self.started_ns) // 1_000_000_000}"]
        lines += [f"{name}={value}" for name, value in sorted(counters.items())]
        temporary = self.root / ".agent.stat"
        try:
            temporary.write_text("\n".join(lines) + "\n")
            os.rename(temporary, self.root / "agent.stat")
            self._stat_lost = False
        except OSError as error:
            if not self._stat_lost:
                self._stat_lost = True
                self.node.log("stat_lost", why=error.strerror)


def run_agent(
    agent_id: str,
    cluster: str,
    root: Path,
    masters: dict[str, str],
    *,
    log: str = "",
    allow_disk: bool = False,
    verbose: bool = False,
    limits: Limits = Limits(),
    trust: Trust = NO_TCP,
) -> int:
    """Serve the channels of `root` until SIGTERM or SIGINT; gives the exit code.  Raises `PlugmlError` if it cannot start.

    `masters` are id -> endpoint, as in cluster.json.
    """
    name = node_name(agent_id)
    warnings = prepare_root(root, allow_disk=allow_disk)
    lock_fd = lock_agent(root)
    root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        lines = LogFile(name, log, verbose)
        this_boot = boot_id()
        swept = sweep(root, this_boot)
        for warning in warnings:
            lines("warning", text=warning)
        for channel, reason in swept.removed:
            lines("swept", channel=channel, reason=reason)
        for name_left in sweep_semaphores():
            lines("swept", semaphore=name_left, reason="nobody keeps it: its launcher is gone")
        build = f"python {platform.python_version()} numpy {numpy.__version__}"
        identity = Identity(name, socket.gethostname(), os.getpid(), build, cluster, this_boot, masters)

        def make(node: Node) -> AgentMachine:
            shell = AgentShell(node, root, root_fd, identity)
            node.loop.call_soon(shell.start, swept.channels)
            return shell.machine

        return run_node(make, name, None, limits=limits, log=lines, ready_on="registered", trust=trust)
    finally:
        os.close(root_fd)
        os.close(lock_fd)
