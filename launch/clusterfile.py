"""`cluster.json`: what a cluster is called, where it lies, and how its masters are reached.

Owns the document.  Refuses to look for one, and to touch a disk.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from ..core.addresses import is_tcp
from ..core.errors import UsageError

VERSION = 1
ELSEWHERE = "elsewhere"  # the keeper of a cluster whose master runs on another host
#: What goes between hosts: nothing; all of it encrypted and proven; pushes and values plain; all of it plain.
SECURITY = ("", "keys", "plain-data", "insecure")


class ClusterFile(NamedTuple):
    """What `cluster.json` says.  `pid` is that of the process that keeps the cluster (0: not started), `keeper` what it
    is: up, run, or a master started by hand; `host` is where it runs.  `keys` is the directory of keys on that host, and
    `public` the public keys of the masters: whoever has other keys is told at once, instead of being refused.  `store` is
    the etcd that masters started by hand share, "" = none, or that of their supervisor."""

    name: str
    root: Path
    state: Path
    masters: dict[str, str]
    pid: int
    keeper: str = "up"
    host: str = ""
    security: str = ""
    keys: str = ""
    public: dict[str, str] = {}
    store: str = ""

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def is_spread(self) -> bool:
        """Whether its masters can be reached from other hosts."""
        return any(is_tcp(endpoint) for endpoint in self.masters.values())

    def endpoint(self, id_: str) -> str:
        """Where node `id_` of this host listens for others of this host."""
        return f"ipc://{self.root}/ipc/{id_}"

    def to_text(self) -> str:
        document: dict[str, Any] = {
            "version": VERSION, "name": self.name, "root": str(self.root), "masters": self.masters,
            "state": str(self.state), "pid": self.pid, "keeper": self.keeper, "host": self.host,
        }  # fmt: skip
        if self.security:
            document |= {"security": self.security, "keys": self.keys, "public": self.public}
        if self.store:
            document["store"] = self.store
        return json.dumps(document, indent=1) + "\n"

    @classmethod
    def from_text(cls, text: str, where: Path) -> ClusterFile:
        try:
            found = json.loads(text)
            if found["version"] != VERSION:
                raise UsageError(f"{where} is of version {found['version']}, this plugml reads {VERSION}")
            security = str(found.get("security", ""))
            if security not in SECURITY:
                raise UsageError(f"{where}: security {security!r} is not known here; this plugml is older than the cluster's")
            return cls(
                str(found["name"]), Path(found["root"]), Path(found["state"]), _texts(found["masters"]), int(found["pid"]),
                str(found.get("keeper", "up")), str(found.get("host", "")), security, str(found.get("keys", "")),
                _texts(found.get("public", {})), str(found.get("store", "")),
            )  # fmt: skip
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UsageError(f"{where} is no cluster.json: {error!r}") from error


def _texts(found: Any) -> dict[str, str]:
    return {str(key): str(value) for key, value in found.items()}
