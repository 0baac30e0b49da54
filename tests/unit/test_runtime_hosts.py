"""What the host says of itself: its interfaces, its end of a way, ports that are free."""

from __future__ import annotations

import shutil
import socket
import subprocess

import pytest

from plugml.core.errors import UsageError, WorldError
from plugml.runtime import hosts


def test_every_host_has_a_loopback_and_names_it() -> None:
    found = hosts.interfaces()
    assert "127.0.0.1" in found["lo"]
    assert set(found) == {name for _, name in socket.if_nameindex()}


def test_the_local_end_of_the_way_to_ourselves_is_ourselves() -> None:
    assert hosts.local_end("127.0.0.1", 1) == "127.0.0.1"
    assert hosts.local_end("localhost", 1) in ("127.0.0.1", "::1")


def test_a_host_that_nobody_knows_is_a_sentence() -> None:
    with pytest.raises(WorldError, match=r"there is no way from here to no-such-host\.invalid: "):
        hosts.local_end("no-such-host.invalid", 7000)


def test_a_node_listens_at_its_end_of_the_way_to_the_master() -> None:
    assert hosts.listening("", (0, 0), "tcp://127.0.0.1:7000") == "tcp://127.0.0.1:0"
    assert hosts.listening("lo", (7000, 7009), "") == "tcp://127.0.0.1:7000-7009"
    with pytest.raises(UsageError, match="say at which address"):
        hosts.listening("", (0, 0), "")


def test_a_free_port_is_found_behind_those_that_are_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(WorldError, match=f"cannot listen on tcp://127.0.0.1:{port}: Address already in use"):
            hosts.free_endpoint(f"tcp://127.0.0.1:{port}")
        last = min(65_535, port + 20)
        if last > port:
            found = hosts.free_endpoint(f"tcp://127.0.0.1:{port}-{last}")
            assert port < int(found.rpartition(":")[2]) <= last
    found = hosts.free_endpoint("tcp://127.0.0.1:0")
    with socket.socket() as ours:
        ours.bind(("127.0.0.1", int(found.rpartition(":")[2])))


def test_every_address_of_an_interface_is_known_not_only_its_first() -> None:
    """As the system itself lists them, where it has a list."""
    ip = shutil.which("ip")
    if ip is None:
        pytest.skip("does not apply here: there is no ip command to compare with")
    lines = subprocess.run([ip, "-o", "-4", "addr"], capture_output=True, text=True, check=True).stdout.splitlines()
    listed = {(line.split()[1], line.split()[3].partition("/")[0]) for line in lines}
    found = hosts.interfaces()
    assert listed == {(name, address) for name, addresses in found.items() for address in addresses if ":" not in address}
