"""Where measurements work: a directory of their own, and clusters that no other cluster of the user's is mistaken for."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def place() -> Iterator[Path]:
    """A directory that is there as long as it is used."""
    work = Path(tempfile.mkdtemp(prefix="plugml-bench-"))
    os.environ |= {"XDG_STATE_HOME": str(work / "state"), "PLUGML_ROOT": str(root(work))}
    try:
        yield work
    finally:
        for number in range(2):
            shutil.rmtree(root(work, number), ignore_errors=True)
        shutil.rmtree(work, ignore_errors=True)


def root(work: Path, number: int = 0) -> Path:
    """The directory in memory of one of two hosts, if there are two."""
    return Path("/dev/shm") / f"{work.name}-{number}"
