"""The master calls each server back once: what it cannot reach, agents cannot reach either, and both ends are named."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plugml.core.effects import Log, Send
from plugml.core.limits import Limits
from plugml.master.effects import STATE_KEY, Reach, StoreCas, StoreDone, Unreached
from plugml.master.machine import MasterMachine
from plugml.master.reach import cannot_reach
from plugml.master.store import MemoryStore
from plugml.runtime.keys import Keys, Trust, make_keys
from plugml.runtime.network import Network
from plugml.wire import messages as m

from .network_host import S0, Host, opened

TCP = "tcp://10.0.0.5:7001"


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    make_keys(tmp_path / "keys", ["m0", "s0", "s1"])
    with opened(tmp_path) as host:
        yield host


def trust(host: Host, id_: str, directory: str = "keys", **more: Any) -> Trust:
    return Trust(Keys(host.directory / directory, id_), **more)


def called_back(host: Host, server: Network, of: Trust, wait_ms: int = 20_000) -> str:
    """What the master says of it, while the server's loop runs."""
    return host.loop.run_until_complete(asyncio.to_thread(cannot_reach, "m0", S0, server.endpoint, of, wait_ms))


@pytest.mark.parametrize("plain_data", [False, True])
def test_a_server_that_can_be_reached_notices_nothing(host: Host, plain_data: bool) -> None:
    server = host.open(S0, "tcp://127.0.0.1:0", trust=trust(host, "s0", plain_data=plain_data))
    assert called_back(host, server, trust(host, "m0", plain_data=plain_data)) == ""
    host.run(0.1)
    assert host.logged == [] and host.got[S0] == []
    if not plain_data:
        assert server.counters()["handshakes_failed"] == server.counters()["keys_refused"] == 0


def test_without_keys_it_is_tried_too_where_that_was_said(host: Host) -> None:
    server = host.open(S0, "tcp://127.0.0.1:0", trust=Trust(insecure=True))
    assert called_back(host, server, Trust(insecure=True)) == ""
    assert "m0 cannot reach it" in called_back(host, server, Trust()) and "has no keys" in called_back(host, server, Trust())


def test_a_closed_port_is_told_with_both_ends() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        endpoint = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    text = cannot_reach("m0", S0, endpoint, Trust(insecure=True), wait_ms=200)
    assert text == f"m0 at 127.0.0.1 cannot reach it at {endpoint}: is the port open to other hosts?"


def test_a_server_with_another_key_than_the_rosters_is_not_reached(host: Host) -> None:
    make_keys(host.directory / "other", ["m0", "s0"])
    server = host.open(S0, "tcp://127.0.0.1:0", trust=trust(host, "s0", "other"))
    text = called_back(host, server, trust(host, "m0"), wait_ms=500)
    assert text.startswith("m0 at 127.0.0.1 cannot reach it at tcp://127.0.0.1:") and text.endswith("and has it the key of the roster?")


# -- in the machine ---------------------------------------------------------------------------------------------------


def machine() -> MasterMachine:
    """One that has read its store."""
    made, store = MasterMachine("m0", "1", "test", Limits()), MemoryStore()
    effects = made.on_time(0)
    while any(isinstance(effect, StoreCas) for effect in effects):
        asked = next(effect for effect in effects if isinstance(effect, StoreCas))
        assert asked.key == STATE_KEY
        effects = made.on_message("", StoreDone(asked.key, *store.cas(asked.key, asked.version, asked.value), asked.number), 0)
    return made


def told(made: MasterMachine) -> str:
    effects = made.on_message("c0.00000001", m.Admin(1, "status", {}), 1)
    document = next(effect.message.document for effect in effects if isinstance(effect, Send))
    return str(document["nodes"][0]["why"])


@pytest.mark.parametrize(("endpoint", "role"), [("ipc:///x", "server"), (TCP, "server"), ("", "agent")])
def test_servers_on_tcp_are_called_back_and_nobody_else(endpoint: str, role: str) -> None:
    made = machine()
    effects = made.on_message("s0.00000001", m.Register(role, "h", endpoint, 1, ""), 1)
    assert [effect for effect in effects if isinstance(effect, Reach)] == ([Reach("s0.00000001", TCP)] if endpoint == TCP else [])


def test_who_cannot_be_reached_stands_in_status_until_it_is_another() -> None:
    made, store_like = machine(), m.Register("server", "h", TCP, 1, "")
    made.on_message("s0.00000001", store_like, 1)
    trouble = "m0 at 10.0.0.1 cannot reach it at tcp://10.0.0.5:7001: is the port open to other hosts?"
    assert made.on_message("", Unreached("s0.00000009", trouble), 1) == [] and told(made) == ""
    effects = made.on_message("", Unreached("s0.00000001", trouble), 1)
    assert effects == [Log("unreached", {"node": "s0.00000001", "why": trouble})]
    made.on_message("s0.00000001", m.Beat(0, {}), 2)
    assert told(made) == trouble
