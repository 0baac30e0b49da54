"""Addresses by which hosts reach each other: how an endpoint is written, and which of a host's addresses is told to others.

Owns the rules.  Refuses to look at the host: its interfaces and the way to the master are handed in (`runtime.hosts`).

    ipc://PATH                 within this host, in a directory that is ours alone
    tcp://HOST:PORT            port 0 = any free one
    tcp://HOST:FIRST-LAST      the first free one of these
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .errors import UsageError

PORT_MAX = 65_535


class TcpAddress(NamedTuple):
    """One host's end: a name or number, and the ports of which the first free one is taken (0, 0: any)."""

    host: str
    first: int
    last: int

    @property
    def endpoint(self) -> str:
        ports = str(self.first) if self.first == self.last else f"{self.first}-{self.last}"
        return f"tcp://{f'[{self.host}]' if ':' in self.host else self.host}:{ports}"


def is_tcp(endpoint: str) -> bool:
    return endpoint.startswith("tcp://")


def parse_tcp(text: str) -> TcpAddress:
    """`tcp://HOST:PORTS` or `HOST:PORTS`.

    >>> parse_tcp("tcp://10.0.0.5:7000-7009")
    TcpAddress(host='10.0.0.5', first=7000, last=7009)
    >>> parse_tcp("[fe80::1]:7000").endpoint
    'tcp://[fe80::1]:7000'
    """
    host, colon, ports = text.removeprefix("tcp://").rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not bare or (":" in bare and bare == host):
        raise UsageError(f"{text!r} is no address: write HOST:PORT, a number of IPv6 as [NUMBER]:PORT")
    return TcpAddress(bare, *parse_ports(ports))


def parse_ports(text: str) -> tuple[int, int]:
    """One port, or the first and the last of a range.

    >>> parse_ports("7000"), parse_ports("7000-7099")
    ((7000, 7000), (7000, 7099))
    """
    words = text.split("-")
    if len(words) > 2 or not all(word.isascii() and word.isdecimal() and len(word) <= 5 for word in words):
        raise UsageError(f"{text!r} is no port: write a number up to {PORT_MAX}, or two as 7000-7099")
    first, last = int(words[0]), int(words[-1])
    if not first <= last <= PORT_MAX or (first == 0 and last):
        raise UsageError(f"{text!r} is no port: the first is at least 1 and at most the last, that at most {PORT_MAX}")
    return first, last


def is_loopback(host: str) -> bool:
    """Whether only this very host is reached by it.

    >>> [is_loopback(host) for host in ("127.0.1.1", "::1", "localhost", "10.0.0.5", "node7")]
    [True, True, True, False, False]
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def is_wildcard(host: str) -> bool:
    """Every address of a host at once: nobody can be told to call there.

    >>> [is_wildcard(host) for host in ("0.0.0.0", "::", "*", "10.0.0.5")]
    [True, True, True, False]
    """
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return host == "*"


def choose_address(interfaces: Mapping[str, Sequence[str]], wanted: str, route: str, master: str) -> str:
    """The address at which a node listens, which is the one that others are told.

    `wanted` is an interface's name or an address of this host, "" = the local end of the way to the master (`route`,
    "" = there is no master to be reached).  `master` is the host that the master has told, "" = we are the master.
    """
    found = _wanted(interfaces, wanted) if wanted else route
    if not found:
        raise UsageError(f"say at which address others reach this node, by --interface: {shown_interfaces(interfaces)}")
    if is_loopback(found) and master and not is_loopback(master):
        raise UsageError(
            f"{found} is reached from this host alone, and the master is at {master}: "
            f"give another --interface ({shown_interfaces(interfaces)})"
        )
    return found


def _wanted(interfaces: Mapping[str, Sequence[str]], wanted: str) -> str:
    if wanted in interfaces:
        if not interfaces[wanted]:
            raise UsageError(f"interface {wanted} has no address; there are {shown_interfaces(interfaces)}")
        return interfaces[wanted][0]
    bare = wanted.strip("[]")
    if is_wildcard(bare):
        raise UsageError(f"{wanted} stands for every address of this host, and others must be told one: {shown_interfaces(interfaces)}")
    if not any(bare in addresses for addresses in interfaces.values()):
        raise UsageError(f"{wanted!r} is neither an interface nor an address of this host; there are {shown_interfaces(interfaces)}")
    return bare


def shown_interfaces(interfaces: Mapping[str, Sequence[str]]) -> str:
    """
    >>> shown_interfaces({"lo": ["127.0.0.1"], "eth0": ["10.0.0.5", "fd00::5"]})
    'lo (127.0.0.1), eth0 (10.0.0.5, fd00::5)'
    """
    return ", ".join(f"{name} ({', '.join(addresses)})" for name, addresses in interfaces.items() if addresses) or "none"
