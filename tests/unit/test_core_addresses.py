"""Endpoints are read and written as they are meant, and the address that others are told is one that they can reach."""

from __future__ import annotations

import doctest

import pytest

from plugml.core import addresses
from plugml.core.addresses import TcpAddress, choose_address, parse_ports, parse_tcp
from plugml.core.errors import UsageError
from plugml.wire import roles

HERE = {"lo": ["127.0.0.1", "::1"], "eth0": ["10.0.0.5", "fd00::5"], "ib0": ["192.168.7.5"], "down0": []}


@pytest.mark.parametrize("module", [addresses, roles])
def test_the_examples_hold(module: object) -> None:
    failed, tried = doctest.testmod(module)  # type: ignore[arg-type]
    assert tried and not failed


@pytest.mark.parametrize("endpoint", ["tcp://10.0.0.5:7000", "tcp://10.0.0.5:7000-7099", "tcp://node7.lab:0", "tcp://[fd00::5]:1-65535"])
def test_what_is_read_is_written_the_same(endpoint: str) -> None:
    assert parse_tcp(endpoint).endpoint == endpoint


@pytest.mark.parametrize("text", ["", ":", "host", "host:", ":7000", "fd00::5:7000", "[fd00::5]", "host:70000", "host:-1", "host:1-2-3", "host:٣", "h:0-5"])
def test_what_is_no_address_is_refused_in_words(text: str) -> None:
    with pytest.raises(UsageError, match="is no (address|port)"):
        parse_tcp(text)


@pytest.mark.parametrize("text", ["9-7", "0-9", "x", "", "-", "7-", "99999", "1e3", " 7"])
def test_ports_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="is no port"):
        parse_ports(text)


@pytest.mark.parametrize(("wanted", "route", "master", "chosen"), [
    ("", "10.0.0.5", "10.0.0.1", "10.0.0.5"),  # our end of the way to the master
    ("", "127.0.0.1", "127.0.0.1", "127.0.0.1"),  # it is on this host, and so are we
    ("ib0", "", "10.0.0.1", "192.168.7.5"),
    ("eth0", "", "", "10.0.0.5"),
    ("fd00::5", "", "10.0.0.1", "fd00::5"),
    ("[fd00::5]", "", "10.0.0.1", "fd00::5"),
    ("lo", "", "", "127.0.0.1"),  # a master for this host alone
    ("lo", "", "localhost", "127.0.0.1"),
])  # fmt: skip
def test_the_address_that_others_are_told(wanted: str, route: str, master: str, chosen: str) -> None:
    assert choose_address(HERE, wanted, route, master) == chosen


@pytest.mark.parametrize(("wanted", "route", "master", "words"), [
    ("", "", "", r"say at which address others reach this node, by --interface: lo \(127\.0\.0\.1, ::1\), eth0"),
    ("0.0.0.0", "", "", "0.0.0.0 stands for every address of this host"),
    ("::", "", "10.0.0.1", "stands for every address"),
    ("*", "", "10.0.0.1", "stands for every address"),
    ("lo", "", "10.0.0.1", r"127\.0\.0\.1 is reached from this host alone, and the master is at 10\.0\.0\.1: give another --interface"),
    ("127.0.0.1", "", "node7", "is reached from this host alone"),
    ("", "127.0.0.1", "10.0.0.1", "is reached from this host alone"),
    ("eth9", "", "", "'eth9' is neither an interface nor an address of this host; there are lo"),
    ("10.0.0.6", "", "", "'10.0.0.6' is neither an interface nor an address"),
    ("down0", "", "", "interface down0 has no address"),
])  # fmt: skip
def test_an_address_that_others_cannot_reach_is_refused(wanted: str, route: str, master: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        choose_address(HERE, wanted, route, master)


def test_loopback_and_wildcard_in_every_form() -> None:
    assert TcpAddress("::1", 7, 9).endpoint == "tcp://[::1]:7-9"
    assert addresses.is_loopback("127.255.0.1") and not addresses.is_loopback("128.0.0.1")
    assert addresses.is_wildcard("0.0.0.0") and addresses.is_wildcard("0::0") and not addresses.is_wildcard("::1")
