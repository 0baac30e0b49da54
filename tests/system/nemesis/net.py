"""A network of hosts on this one: a namespace for each, all on one bridge, and packets that are dropped on request.

    with Net(["m0", "s0", "a0"]) as net:
        net.cut("s0", "m0")            what m0 sends does not reach s0; the other way is open
        net.slow("s0", 200)            no more than 200 KiB/s reach s0
        net.heal()

Needs root, `ip` and `nft`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from types import TracebackType

TOOLS = ("ip", "nft", "unshare", "hostname")
TABLE = "nemesis"


def why_not() -> str:
    """Why this place has no such network, "" if it has."""
    if os.geteuid():
        return "only root can make network namespaces"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    return f"{', '.join(missing)} not installed" if missing else ""


class Net:
    def __init__(self, hosts: Sequence[str]) -> None:
        self.hosts = list(hosts)
        self._word = f"nem{os.getpid()}"

    def __enter__(self) -> Net:
        try:
            self._lay()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._remove()

    def _lay(self) -> None:
        switch = self._name("switch")
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "bridge0", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge0", "up")
        for host in self.hosts:
            name = self._name(host)
            _ip("netns", "add", name)
            _ip("link", "add", "wire0", "netns", name, "type", "veth", "peer", "name", f"to-{host}", "netns", switch)
            _ip("-n", switch, "link", "set", f"to-{host}", "master", "bridge0", "up")
            _ip("-n", name, "addr", "add", f"{self.address(host)}/24", "dev", "wire0")
            for link in ("lo", "wire0"):
                _ip("-n", name, "link", "set", link, "up")
            self._nft(host, f"add table inet {TABLE}; add chain inet {TABLE} in {{ type filter hook input priority 0; }}")

    def _remove(self) -> None:
        for host in [*self.hosts, "switch"]:
            subprocess.run(["ip", "netns", "del", self._name(host)], check=False, stderr=subprocess.DEVNULL)

    def address(self, host: str) -> str:
        return f"10.81.0.{self.hosts.index(host) + 1}"

    def prefix(self, host: str) -> list[str]:
        """What stands in front of a command of the host, which has its own network and name."""
        return ["ip", "netns", "exec", self._name(host), "unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', host]

    # -- what is done to it

    def cut(self, host: str, *others: str) -> None:
        """Nothing that these send reaches the host."""
        self._rule(host, f"ip saddr {{ {', '.join(self.address(other) for other in others)} }} drop")

    def slow(self, host: str, kib_s: int) -> None:
        """Of what comes faster, packets are lost."""
        self._rule(host, f"limit rate over {kib_s} kbytes/second burst {kib_s} kbytes drop")

    def heal(self) -> None:
        for host in self.hosts:
            self._nft(host, f"flush chain inet {TABLE} in")

    def _rule(self, host: str, rule: str) -> None:
        self._nft(host, f"add rule inet {TABLE} in {rule}")

    def _nft(self, host: str, words: str) -> None:
        subprocess.run(["ip", "netns", "exec", self._name(host), "nft", words], check=True)

    def _name(self, host: str) -> str:
        return f"{self._word}-{host}"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
