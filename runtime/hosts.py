"""This host among others: addresses of its interfaces, its end of the way to another host, a port that is free.

Owns the questions to the kernel.  Which address is told to others is decided in `core.addresses`.
"""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from array import array
from pathlib import Path

from ..core.addresses import TcpAddress, choose_address, is_tcp, parse_tcp
from ..core.errors import WorldError

SIOCGIFCONF = 0x8912
ENTRY_BYTES, TABLE_BYTES = 40, 40 << 10  # struct ifreq, and a table of 1,024 of them
IF_INET6 = Path("/proc/net/if_inet6")
LINK_LOCAL = "20"  # good on one wire only, and only with the interface's name behind it


def interfaces() -> dict[str, list[str]]:
    """Name of each interface -> its addresses, the one of IPv4 first."""
    found: dict[str, list[str]] = {name: [] for _, name in socket.if_nameindex()}
    table = array("B", bytes(TABLE_BYTES))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as asker:
        answer = fcntl.ioctl(asker.fileno(), SIOCGIFCONF, struct.pack("iL", len(table), table.buffer_info()[0]))
    filled = struct.unpack("iL", answer)[0]
    for at in range(0, filled, ENTRY_BYTES):  # a name of 16 bytes (an alias has a ":" in it), a socket address
        name = bytes(table[at : at + 16]).partition(b"\0")[0].decode(errors="replace").partition(":")[0]
        found.setdefault(name, []).append(socket.inet_ntoa(bytes(table[at + 20 : at + 24])))
    for line in _lines(IF_INET6):
        digits, _, _, scope, _, name = line.split()
        if scope != LINK_LOCAL and name in found:
            found[name].append(str(ipaddress.ip_address(bytes.fromhex(digits))))
    return found


def local_end(host: str, port: int) -> str:
    """Our address on the way to `host`.  Nothing is sent."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind | socket.SOCK_CLOEXEC) as way:
            way.connect(address)
            return str(way.getsockname()[0])
    except OSError as error:
        raise WorldError(f"there is no way from here to {host}: {error.strerror or error}; see that the name and the network are right") from error


def listening(wanted: str, ports: tuple[int, int], master: str) -> str:
    """Endpoint at which a node listens for others: `wanted` as in `choose_address`, `master` an endpoint, "" = we are it."""
    there = parse_tcp(master) if is_tcp(master) else None
    route = local_end(there.host, there.first) if there is not None and not wanted else ""
    host = choose_address(interfaces(), wanted, route, there.host if there is not None else "")
    return TcpAddress(host, *ports).endpoint


def free_endpoint(endpoint: str) -> str:
    """The first of the endpoint's ports that is free now: for who must tell it before the node that listens there starts."""
    address = parse_tcp(endpoint)
    trouble: OSError | None = None
    for port in range(address.first, address.last + 1):
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address.host, port))
            except OSError as error:
                trouble = error
                continue
            taken = probe.getsockname()[1]
            return TcpAddress(address.host, taken, taken).endpoint
    assert trouble is not None
    raise WorldError(f"cannot listen on {endpoint}: {trouble.strerror}") from trouble


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []  # a kernel without IPv6
