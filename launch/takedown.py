"""What is left of a cluster when its keeper has ended: channels that runs still hold, its root, and its state if nobody wants it.

`clear` returns when all of it is gone, or says what is not.  Ends nobody: a run sees by itself that its cluster is gone.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ..shm_protocol.root import channel_parts
from .discovery import ClusterFile, Hold

SAID_S = 10.0


def clear(cluster: ClusterFile, root_is_its: bool, purge: bool, wait_s: float, say: Callable[[str], None], tell: Callable[[str], None]) -> str:
    """Remove the root if that is surely the cluster's own (`PLUGML_ROOT` may name anything), and with `purge` the state.  `tell` gets a line for each file of it that goes, `say` what is waited for.

    Gives a sentence when something stays, "" when all is gone.  Raises `PlugmlError` where the cluster runs again.
    """
    if root_is_its:
        await_runs(cluster.root, wait_s, say)
    hold = Hold(cluster)
    try:
        if root_is_its and cluster.root.is_dir():
            hold.publish()
        if purge:
            directories = {cluster.state, *[cluster.root] * root_is_its}
            for path in sorted({path for directory in directories for path in directory.rglob("*")}):
                tell(f"remove {path}")
        hold.withdraw(purge=purge)
    finally:
        hold.close()
    if purge and cluster.state.exists():
        return f"{cluster.state} could not be removed whole"
    if purge:
        tell(f"removed {cluster.state}")
    return left_in(cluster) if root_is_its else ""


def left_in(cluster: ClusterFile) -> str:
    """Why the root of a cluster that is down is still there, "" when it is not."""
    root = cluster.root
    if not root.is_dir():
        return ""
    jobs = _jobs(root)
    who = f"channels of job {', '.join(jobs)} are kept there by `plugml run`" if jobs else "somebody's agent serves it, or writes into it"
    return f"{root} stays: {who}; when that has ended, `plugml down {cluster.name} --purge` removes it"


def await_runs(root: Path, wait_s: float, say: Callable[[str], None]) -> None:
    """Until nobody holds a channel in the root, or the time is over.

    A run whose cluster is gone needs a moment to see it, and then gives its programs their grace.
    """
    end = time.monotonic() + wait_s
    for keeper in sorted(root.glob("*/keeper")):
        while not _is_released(keeper, min(SAID_S, end - time.monotonic())):
            if time.monotonic() >= end:
                return
            say(f"still waiting for the run of job {', '.join(_jobs(root))}, which ends its programs")


def _is_released(keeper: Path, limit_s: float) -> bool:
    """Whether the channel's launcher has let go of it before the limit is over.  The lock itself tells, in a thread that may be left behind."""
    try:
        descriptor = os.open(keeper, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:  # it has gone with its channel
        return True
    taken = threading.Event()

    def take() -> None:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        os.close(descriptor)
        taken.set()

    threading.Thread(target=take, daemon=True).start()
    return taken.wait(max(0.0, limit_s))


def _jobs(root: Path) -> list[str]:
    try:
        return sorted({parts[0] for name in os.listdir(root) if (parts := channel_parts(name))})
    except OSError:
        return []
