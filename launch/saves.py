"""When a run makes checkpoints, where, and from which it goes on, as its user wrote it.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..core.errors import UsageError

AUTO, NEVER = "auto", "never"
FOLDER = "checkpoints"  # in the result's place, where nothing else is said


class Saves(NamedTuple):
    """`resume`: auto, never, or a directory.  `absent`: workers that had ended before the checkpoint, with their clocks."""

    every: int = 0
    keep: int = 2
    dir: str = ""
    resume: str = NEVER
    absent: tuple[tuple[int, int], ...] = ()

    def root(self, result: str, directory: str) -> str:
        """Directory of the checkpoints, absolute."""
        if not self.dir:
            return f"{result}/{FOLDER}"
        return self.dir if self.dir.startswith("/") else f"{directory}/{self.dir}"


def parse_saves(said: Mapping[str, Any]) -> Saves:
    """[checkpoint] and its flags.  Raises `UsageError`."""
    every, keep = said.get("every", 0), said.get("keep", 2)
    if not 0 <= every < 1 << 31:
        raise UsageError(f"checkpoint every = {every} clocks; at least 1, or 0 for none but those that are asked for")
    if not 1 <= keep <= 1000:
        raise UsageError(f"checkpoint keep = {keep}; from 1 to 1000")
    resume = said.get("resume", NEVER)
    if not resume:
        raise UsageError("resume: write auto, never or the directory of a checkpoint")
    return Saves(every, keep, said.get("dir", ""), resume)
