"""What the launcher knows of the job's clock and of its programs, and when a wait explains itself.  Pure.

A stall is a time in which nothing moved for `explain_us`, or for twice the longest clock so far where clocks are
slower than that.  It is explained once, then again after ever longer pauses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.jobmap import FAILED
from ..core.limits import Limits
from . import effects as e
from . import words
from .crew import EX_WORLD, Crew, Verdict
from .worker import RUNNING

AGAIN = 4  # each explanation of one stall comes after four times the wait of the one before
NAMED_MAX = 4  # workers that one explanation speaks of, a line each


class Watch:
    """`closed` clocks, and those that the `slowest` member has finished; `waiting` are the members that hold the clock back.

    Each worker's clock is the crew's.
    """

    def __init__(self, crew: Crew, limits: Limits, now_us: int) -> None:
        self.closed = self.slowest = 0
        self.waiting: list[int] = []
        self.staleness: list[dict[str, Any]] = []
        self._crew = crew
        self._limits = limits
        self._since_us = now_us
        self._longest_us = 0
        self._due_us = now_us + limits.explain_us
        self._said = ""  # the agent's last words on a wait, and when
        self._said_us = 0
        self._save_problem = ""  # why a checkpoint could not be made, as it was heard last
        self._pairs: set[tuple[int, int]] = set()  # that push the same numbers

    @property
    def due_us(self) -> int:
        return self._due_us

    def stood(self, fields: Mapping[str, Any], now_us: int) -> list[Any]:
        """Take an answer to `standing`; what of it has to be told."""
        moved = False
        for word, finished in dict(fields.get("clocks") or {}).items():
            if int(word) in self._crew.plan.numbers:
                worker = self._crew.worker(int(word))
                if finished > worker.clocks:
                    worker.clocks, worker.moved_us, moved = finished, now_us, True
        closed = max(self.closed, int(fields.get("closed") or 0))
        if moved or closed > self.closed:
            self.moved(now_us)
        self.closed = closed
        self.slowest = max(self.slowest, int(fields.get("slowest") or 0))
        self._crew.members = int(fields.get("members") or 0)
        self.waiting = [int(worker) for worker in fields.get("waiting") or ()]
        self.staleness = list(fields.get("staleness") or self.staleness)
        return self._unsaved(str(fields.get("save_problem") or ""))

    def _unsaved(self, problem: str) -> list[Any]:
        """Whoever relies on checkpoints should know that none are made, and hear it once, until one is."""
        before, self._save_problem = self._save_problem, problem
        if not problem or before:
            return []
        return self._crew.warn(f"a checkpoint could not be made: {problem}; training goes on, and the last one that is whole stays")

    def picture(self) -> e.Picture:
        workers = self._crew.workers
        clocks = {worker.number: worker.clocks for worker in workers}
        return e.Picture(clocks, self.closed, sum(worker.restarts for worker in workers), len(self._crew.which(RUNNING)))

    def moved(self, now_us: int) -> None:
        """Something went on: a new wait begins."""
        if max(worker.clocks for worker in self._crew.workers) > 1:
            self._longest_us = max(self._longest_us, now_us - self._since_us)
        self._since_us = now_us
        self._due_us = now_us + max(self._limits.explain_us, 2 * self._longest_us)

    def due(self, now_us: int) -> bool:
        """Is it time to explain?  True once per due time."""
        if now_us < self._due_us:
            return False
        self._due_us = now_us + (AGAIN - 1) * max(now_us - self._since_us, self._limits.explain_us)
        return True

    def heard(self, news: Mapping[str, Any], now_us: int) -> list[Any]:
        """What the agent says of a channel or a worker, or of a job that cannot go on while its values can still be saved."""
        event, worker, text = news.get("event"), news.get("worker"), str(news.get("text"))
        if event == "waiting":
            return self._overheard(text, now_us)
        if event == "failing":
            return [Verdict(FAILED, f"the job has failed: {text}", EX_WORLD)]
        if event == "twins":
            return self._twins(int(news.get("worker") or 0), int(news.get("other") or 0))
        if event == "channel" and news.get("state") == "broken":
            return [e.Tell("warn", f"the channel of worker {worker} is broken: {text}")]
        if event == "channel" and news.get("state") == "refused":
            return [e.Tell("warn", f"worker {worker} was refused: {text}")]
        return []

    def _overheard(self, text: str, now_us: int) -> list[Any]:
        """What a request waits for.  Waits for workers we explain ourselves: we see the programs."""
        if "waiting for worker" in text or (text == self._said and now_us < self._said_us + self._limits.explain_us):
            return []
        self._said, self._said_us = text, now_us
        return [e.Tell("info", text)]

    def _twins(self, one: int, other: int) -> list[Any]:
        """Once for each pair: the agents of both say it, and again as it goes on."""
        pair = (min(one, other), max(one, other))
        if pair in self._pairs:
            return []
        self._pairs.add(pair)
        text = f"workers {pair[0]} and {pair[1]} push the same numbers, clock after clock: same shard and seed?"
        self._crew.warnings.append(text)
        return [e.Tell("warn", text)]

    def explain(self, up: bool, ops: set[str], training: bool, now_us: int) -> list[Any]:
        """What everybody waits for.  `ops` are the questions that the agent has not answered."""
        waited = words.span(now_us - self._since_us)
        if not up:
            return [e.Tell("info", f"waiting for the agent since {waited}")]
        running = self._crew.which(RUNNING)
        named = {words.WAITS[op] for op in ops if op in words.WAITS}
        if named:
            return [e.Tell("info", f"{text} since {waited}") for text in sorted(named)]
        if not training:
            return [e.Tell("info", f"waiting for {words.names([worker.number for worker in running])} to end")] if running else []
        awaited = [worker for worker in running if worker.number in self.waiting] or running
        slowest = min((worker.clocks for worker in awaited), default=0)
        job = self._crew.plan.spec.name
        lines = [
            words.wait_line(job, worker.clocks, worker.number, now_us - worker.moved_us, worker.spoke, worker.state, worker.pid)
            for worker in awaited
            if worker.clocks == slowest
        ]
        return [e.Tell("info", line) for line in lines[:NAMED_MAX]]
