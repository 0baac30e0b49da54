"""Where one copy of a range stands: its names and fences, shared by whatever speaks for it."""

from __future__ import annotations

from ..core.limits import Limits


class Seat:
    """`primary` is the node that leads in `epoch`; `token` the version of the map that says so, or of a later one."""

    __slots__ = ("name", "job", "range", "epoch", "token", "primary", "limits")

    def __init__(self, name: str, job: int, number: int, limits: Limits) -> None:
        self.name = name  # of this node
        self.job = job
        self.range = number
        self.epoch = 0
        self.token = 0
        self.primary = ""
        self.limits = limits
