"""How old the values were that workers computed on: per worker and table, in clocks and in versions.

A pull counts the clocks that the slowest member is behind its worker; a push counts the pushes of others that its
ranges had applied since the values that it was computed on.  Kept as long as the agent knows the job.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

#: Rows of one answer: a line of agent.sock has 64 KiB.
SHOWN_MAX = 256


class Stale:
    """Sums and maxima of one worker and table.  `pulls` counts the samples in clocks, `pushes` those in versions."""

    __slots__ = ("clocks", "clocks_max", "versions", "versions_max", "pulls", "pushes")

    def __init__(self) -> None:
        self.clocks = self.clocks_max = self.versions = self.versions_max = self.pulls = self.pushes = 0


class Staleness:
    """Of all workers of one job that this agent serves."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, int], Stale] = {}  # (worker, table)

    def pulled(self, worker: int, tables: Iterable[int], clocks: int) -> None:
        for table in tables:
            row = self._row(worker, table)
            row.pulls += 1
            row.clocks += clocks
            row.clocks_max = max(row.clocks_max, clocks)

    def pushed(self, worker: int, tables: Iterable[int], behind: dict[int, int]) -> None:
        """`behind` has the tables that were behind at all: the most of any range."""
        for table in tables:
            versions = behind.get(table, 0)
            row = self._row(worker, table)
            row.pushes += 1
            row.versions += versions
            row.versions_max = max(row.versions_max, versions)

    def _row(self, worker: int, table: int) -> Stale:
        row = self.rows.get((worker, table))
        if row is None:
            row = self.rows[worker, table] = Stale()
        return row

    def to_document(self, names: list[str]) -> list[dict[str, Any]]:
        """A mapping for each worker and table, of the stalest first if there are too many."""
        rows = sorted(self.rows.items())
        if len(rows) > SHOWN_MAX:
            rows = sorted(rows, key=lambda item: (-item[1].clocks_max, -item[1].versions_max, item[0]))[:SHOWN_MAX]
        return [
            {
                "worker": worker, "table": names[table], "clocks": row.clocks, "clocks_max": row.clocks_max, "versions": row.versions,
                "versions_max": row.versions_max, "count": row.pulls, "pushes": row.pushes,
            }
            for (worker, table), row in rows
        ]  # fmt: skip

    def worst(self) -> dict[str, int]:
        """Over all workers and tables."""
        rows = self.rows.values()
        return {
            "pulls": sum(row.pulls for row in rows), "clocks": sum(row.clocks for row in rows), "clocks_max": max(row.clocks_max for row in rows),
            "pushes": sum(row.pushes for row in rows), "versions": sum(row.versions for row in rows),
            "versions_max": max(row.versions_max for row in rows),
        }  # fmt: skip
