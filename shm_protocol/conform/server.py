"""The server behind the scripted agent: tables in numpy, clocks in plain lists, each push taken once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.job import JobSpec
from .. import numbers
from ..info import Info


class PlainServer:
    """Tables in numpy, BSP or ASP over the workers, each push taken once."""

    def __init__(self, spec: JobSpec, info: Info) -> None:
        self.spec = spec
        self.info = info
        self.values = numbers.aligned(info.cap_param)
        self.last = [0] * spec.workers
        self.finished = [0] * spec.workers
        self.ticked = [0] * spec.workers  # seq of the last tick
        self.left: set[int] = set()
        self.staged: dict[int, list[tuple[int, int, float, NDArray[np.uint8]]]] = {}
        self.closed = 0
        self.version = 0
        self.pushes = [0] * spec.workers
        self.initialised = False

    def push(self, worker: int, seq: int, clock: int, weight: float, buffer: NDArray[np.uint8]) -> None:
        if seq <= self.last[worker]:
            return  # a repeat after the agent's death
        self.last[worker] = seq
        self.pushes[worker] += 1
        self.version += 1
        self.staged.setdefault(clock, []).append((worker, seq, weight, buffer.copy()))
        if self.spec.consistency == "asp":
            self._apply(self.staged.pop(clock))

    def init(self, worker: int, seq: int, buffer: NDArray[np.uint8]) -> None:
        if not self.initialised:
            self.initialised = True
            self.values[:] = buffer
        self.last[worker] = max(self.last[worker], seq)

    def tick(self, worker: int, seq: int, clock: int) -> None:
        self.ticked[worker] = seq
        self.finished[worker] = max(self.finished[worker], clock + 1)
        self.close()

    def leave(self, worker: int) -> None:
        """Nobody waits for this worker any more."""
        self.left.add(worker)
        self.close()

    def close(self) -> None:
        members = [n for n in range(self.spec.workers) if n not in self.left]
        slowest = min((self.finished[n] for n in members), default=self.closed)
        while self.closed < slowest:
            self._apply(self.staged.pop(self.closed, []))
            self.closed += 1

    def ready(self, clock: int) -> bool:
        return self.spec.consistency == "asp" or self.closed >= clock

    def _apply(self, pushes: list[tuple[int, int, float, NDArray[np.uint8]]]) -> None:
        """Sum in order of worker and seq, divide by the weights (mean), one step of the optimizer."""
        pushes.sort(key=lambda push: push[:2])
        for table, of_info in zip(self.spec.tables, self.info.dense):
            into = numbers.view(self.values, of_info)
            parts = [(weight, numbers.view(buffer, of_info)) for _worker, _seq, weight, buffer in pushes]
            if not parts:
                continue
            total: Any
            if len(parts) == 1:
                total = parts[0][1]
            elif self.spec.combine_of(table) == "sum":
                total = sum(part for _weight, part in parts)
            else:
                dtype = into.dtype.type
                total = sum(dtype(weight) * part for weight, part in parts) / dtype(sum(weight for weight, _part in parts))
            if table.optimizer == "sgd":
                into -= into.dtype.type(table.setting("lr")) * total
            elif table.optimizer == "add":
                into += total
            else:
                into[:] = total
