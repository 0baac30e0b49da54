"""The server behind the scripted agent: tables in numpy, clocks in plain lists, each push taken once, pieces of input.

Refuses to know files and channels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.clock import ASP, BSP, Consistency
from ...core.errors import Code, RequestError
from ...core.job import JobSpec
from ...core.limits import Limits
from .. import numbers
from ..info import Info
from ..rows import Rows
from .tables import PlainTable, Pushed


class PlainServer:
    """BSP, SSP or ASP over the workers of one job."""

    def __init__(self, spec: JobSpec, info: Info) -> None:
        self.spec = spec
        self.info = info
        self.consistency = Consistency.parse(spec.consistency)
        self.tables = [PlainTable(number, table, spec.combine_of(table)) for number, table in enumerate(spec.tables)]
        self.last = [0] * spec.workers
        self.finished = [0] * spec.workers
        self.ticked = [0] * spec.workers  # seq of the last tick
        self.left: set[int] = set()
        self.staged: dict[int, list[Pushed]] = {}
        self.closed = 0
        self.version = 0
        self.pushes = [0] * spec.workers
        self.initialised = False
        self.stop_clock = spec.stop_clock
        self._pieces = [(turn, piece) for turn in range(spec.passes or 1) for piece in range(spec.pieces)]
        self._handed: dict[int, tuple[int, tuple[int, int] | None]] = {}  # worker -> seq of its last `next`, its piece

    @property
    def values(self) -> NDArray[np.uint8]:
        """All dense tables as the program sees them: laid out like `param`, in its kinds of numbers."""
        buffer = numbers.aligned(self.info.cap_param)
        for table, of_info in zip(self.tables, self.info.tables):
            if of_info.kind == "dense":
                numbers.view(buffer, of_info)[:] = table.values
        return buffer

    # -- pushes and clocks

    def init(self, worker: int, seq: int, dense: dict[int, Any]) -> None:
        """The first offer is taken, for the tables whose first values the programs give."""
        if not self.initialised:
            self.initialised = True
            for number, values in dense.items():
                self.tables[number].values = values.copy()
        self.last[worker] = max(self.last[worker], seq)

    def push(self, clock: int, pushed: Pushed) -> None:
        if pushed.seq <= self.last[pushed.worker]:
            return  # a repeat after the agent's death
        for rows in pushed.rows.values():
            self.check_names(rows)
        if sum(other.worker == pushed.worker for other in self.staged.get(clock, ())) >= Limits().staged_max:
            raise RequestError(Code.RANGE, f"worker {pushed.worker} pushes more than {Limits().staged_max} times in clock {clock}")
        for number, rows in pushed.rows.items():
            self.tables[number].keep_names(rows)
        self.last[pushed.worker] = pushed.seq
        self.pushes[pushed.worker] += 1
        self.version += 1
        self.staged.setdefault(clock, []).append(pushed)
        if self.consistency.model != BSP:
            self._apply(clock)

    def tick(self, worker: int, seq: int, clock: int) -> None:
        self.ticked[worker] = seq
        self.finished[worker] = max(self.finished[worker], clock + 1)
        self.close()

    def leave(self, worker: int) -> None:
        """Nobody waits for this worker any more."""
        self.left.add(worker)
        self.close()

    def close(self) -> None:
        slowest = self.slowest
        while self.closed < slowest:
            self._apply(self.closed)
            self.closed += 1

    @property
    def slowest(self) -> int:
        """Clocks that every member has finished."""
        members = [n for n in range(self.spec.workers) if n not in self.left]
        return min((self.finished[n] for n in members), default=self.closed)

    def lag(self, worker: int) -> int:
        return max(0, self.finished[worker] - self.slowest)

    def ready(self, clock: int) -> bool:
        """Whether a worker in this clock may read."""
        if self.consistency.model == ASP:
            return True
        return self.closed >= self.consistency.slowest_needed(clock)

    def stops(self, worker: int) -> bool:
        """Whether the worker has reached the stop clock."""
        return bool(self.stop_clock) and self.finished[worker] >= self.stop_clock

    def check_names(self, rows: Rows) -> None:
        """Raises `RequestError` COLLIDE where a key has the hash of another one."""
        self.tables[rows.table].check_names(rows)

    def wanted(self, rows: Rows) -> NDArray[Any]:
        """Rows as they are asked for."""
        return self.tables[rows.table].wanted(rows)

    def _apply(self, clock: int) -> None:
        pushes = sorted(self.staged.pop(clock, []), key=lambda push: push[:2])
        factor = self.spec.lr_factor(clock)
        for table in self.tables:
            table.apply(pushes, factor)

    # -- pieces of input

    def next_piece(self, worker: int, seq: int) -> tuple[int, int] | None:
        """Turn and piece; the same request is answered the same.  None: nothing is left."""
        known = self._handed.get(worker)
        if known is None or known[0] != seq:
            self._handed[worker] = seq, self._pieces.pop(0) if self._pieces else None
        return self._handed[worker][1]
