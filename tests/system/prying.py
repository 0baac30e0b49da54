"""What a stranger tries on a cluster: run as another user, it prints what became of each try as JSON.

    python prying.py ROOT STATE CHANNEL SEMAPHORE
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path


def main(root: Path, state: Path, channel: Path, semaphore: str) -> None:
    tries: dict[str, Callable[[], object]] = {
        "list the root": lambda: os.listdir(root),
        "list a channel": lambda: os.listdir(channel),
        "read grad": lambda: (channel / "grad").read_bytes(),
        "write grad": lambda: (channel / "grad").write_bytes(b"x"),
        "read info": lambda: (channel / "info").read_bytes(),
        "ring": lambda: os.open(channel / "req", os.O_WRONLY | os.O_NONBLOCK),
        "take replies": lambda: os.open(channel / "rep", os.O_RDONLY | os.O_NONBLOCK),
        "remove the channel": lambda: os.rename(channel, channel.with_name("gone")),
        "make a channel": lambda: os.mkdir(root / "evil.0.1"),
        "remove the root": lambda: os.rename(root, root.with_name("gone")),
        "agent.sock": lambda: connect(root / "agent.sock"),
        "master": lambda: connect(root / "ipc" / "m0"),
        "server": lambda: connect(root / "ipc" / "s0"),
        "cluster.json": lambda: (state / "cluster.json").read_text(),
        "its copy": lambda: (root / "cluster.json").read_text(),
        "logs": lambda: os.listdir(state / "logs"),
        "the master's store": lambda: (state / "master.sqlite").read_bytes(),
    }
    if semaphore:
        name = Path("/dev/shm") / f"sem.{semaphore.lstrip('/')}"
        tries["read the semaphore"] = lambda: name.read_bytes()
        tries["post the semaphore"] = lambda: os.open(name, os.O_RDWR)
        tries["remove the semaphore"] = lambda: name.unlink()
    print(json.dumps({what: outcome(attempt) for what, attempt in tries.items()}))


def outcome(attempt: Callable[[], object]) -> str:
    try:
        return f"done: {attempt()!r}"[:200]
    except OSError as error:
        return error.strerror or type(error).__name__


def connect(path: Path) -> str:
    """Connect and ask; what comes back."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(20)
        peer.connect(str(path))
        peer.sendall(b'{"op": "hello", "id": 1, "version": 1}\n')
        return peer.recv(1000).decode() or "closed"


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
