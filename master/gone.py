"""The map that answers questions about a job which nobody remembers: an ended one, so that nodes drop what they have."""

from __future__ import annotations

from ..core.job import JobSpec
from ..core.jobmap import STOPPED, JobMap
from ..core.table import TableSpec

_TABLES = (TableSpec("removed", (1,), block_bytes=64),)


def removed_map(number: int, name: str, token: int, ring_ranges: int) -> JobMap:
    """A job that ended long ago and was removed: it has no ranges and no tables that anybody could ask for."""
    reason = f"job {number} has ended, and the master remembers it no more"
    return JobMap(number, token, JobSpec(name, 1, _TABLES), STOPPED, reason, ring_ranges, {}, {}, {})
