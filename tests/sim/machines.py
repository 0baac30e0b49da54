"""How the real machines are built here: the one place that knows their constructors."""

from __future__ import annotations

from typing import Any

from plugml.agent.effects import Found
from plugml.agent.link import Identity as AgentIdentity
from plugml.agent.machine import AgentMachine
from plugml.core.limits import Limits
from plugml.master.machine import MasterMachine
from plugml.server.effects import Turn, Warm, WarmUp
from plugml.server.link import Identity as ServerIdentity
from plugml.server.node import ServerMachine

from .host import Host
from .process import Process

CLUSTER = "sim"
MASTER = "m0"
BUILD = "numpy simulated"
BOOT_ID = "0123456789abcdef0123456789abcdef"


def make_server(process: Process, limits: Limits) -> Any:
    identity = ServerIdentity(process.name, f"host-{process.node_id}", process.endpoint, 1, BUILD, {MASTER: f"ipc://{MASTER}"})
    return ServerMachine(identity, limits, lambda array: process.network.is_lent(process, array))


def server_performers() -> dict[type[Any], Any]:
    """Answers are fed back once what was given before has been performed."""
    return {Turn: lambda effect: effect, WarmUp: lambda effect: Warm()}


def make_agent(process: Process, limits: Limits, host: Host) -> Any:
    identity = AgentIdentity(process.name, host.name, 1, BUILD, CLUSTER, BOOT_ID, {MASTER: f"ipc://{MASTER}"})
    for channel in host.found():
        process.feed_later("", Found(channel))
    return AgentMachine(identity, limits)


def make_master(process: Process, limits: Limits, servers: int) -> Any:
    return MasterMachine(MASTER, f"{process.world.draw(0, 0xFFFFFFFF):08x}", CLUSTER, limits, servers)
