"""How the real machines are built here: the one place that knows their constructors."""

from __future__ import annotations

from typing import Any

from plugml.agent.effects import Found
from plugml.agent.link import Identity as AgentIdentity
from plugml.agent.machine import AgentMachine
from plugml.core.limits import Limits
from plugml.master.machine import MasterMachine
from plugml.master.rival import RivalMaster
from plugml.server.effects import Turn, Warm, WarmUp
from plugml.server.link import Identity as ServerIdentity
from plugml.server.node import ServerMachine

from .host import Host
from .process import Process

CLUSTER = "sim"
BUILD = "numpy simulated"
BOOT_ID = "0123456789abcdef0123456789abcdef"


def masters(count: int) -> dict[str, str]:
    """Ids and endpoints of so many masters."""
    return {f"m{number}": f"ipc://m{number}" for number in range(count)}


def make_server(process: Process, limits: Limits, known: dict[str, str], host: str) -> Any:
    identity = ServerIdentity(process.name, host, process.endpoint, 1, BUILD, known)
    return ServerMachine(identity, limits, lambda array: process.network.is_lent(process, array))


def server_performers() -> dict[type[Any], Any]:
    """Answers are fed back once what was given before has been performed."""
    return {Turn: lambda effect: effect, WarmUp: lambda effect: Warm()}


def make_agent(process: Process, limits: Limits, host: Host, known: dict[str, str]) -> Any:
    identity = AgentIdentity(process.name, host.name, 1, BUILD, CLUSTER, BOOT_ID, known)
    for channel in host.found():
        process.feed_later("", Found(channel))
    return AgentMachine(identity, limits)


def make_master(process: Process, limits: Limits, servers: int, alone: bool) -> Any:
    """`alone`: the store is its own, nobody else ever leads."""
    incarnation = f"{process.world.draw(0, 0xFFFFFFFF):08x}"
    if alone:
        return MasterMachine(process.node_id, incarnation, CLUSTER, limits, servers)
    return RivalMaster(process.node_id, incarnation, process.endpoint, CLUSTER, limits, servers)


def reign_of(machine: Any) -> Any:
    """The master machine that decides in this process, None = it follows, or has not read its store."""
    deciding = machine.reigning if isinstance(machine, RivalMaster) else machine
    return deciding if deciding is not None and deciding.ledger.state is not None else None
