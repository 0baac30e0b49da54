"""Workers that have joined a job, and whose agent is gone with their whole host: nobody there can say that they have left.

Owns since when each is missed, by this master's own clock.  What becomes of it is a decision (`decisions.leave_behind`): the next map names
them, and the job's other agents say their Leave.  A job's own workers are never strays: with their launcher the job ends.
"""

from __future__ import annotations

from collections.abc import Container

from .catalog import State, node_id

Stray = tuple[int, int, int]  # job, worker, gen


class Strays:
    def __init__(self, gone_us: int) -> None:
        self._gone_us = gone_us
        self._since_us: dict[Stray, int] = {}

    def look(self, state: State, lives: Container[str], now_us: int) -> tuple[Stray, ...]:
        """Who is given up now.  `lives`: ids of nodes that are not dead."""
        missed = [
            (job.number, worker, item.gen)
            for job in state.jobs.values() if job.running and job.joins
            for worker, item in job.attached.items()
            if worker >= job.spec.workers and node_id(item.agent) not in lives and (worker, item.gen) not in job.gone
        ]  # fmt: skip
        self._since_us = {stray: self._since_us.get(stray, now_us) for stray in missed}
        return tuple(stray for stray in missed if now_us - self._since_us[stray] >= self._gone_us)
