"""What the agent was asked and has not answered yet.  Pure: an answer finds its question by number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import effects as e


class Questions:
    """`run` is the number of our job: another run may have its name before we have gone."""

    def __init__(self, job: Callable[[], str]) -> None:
        self.run = 0
        self._job = job
        self._number = 0
        self._open: dict[int, tuple[str, int]] = {}  # number -> key, worker or -1

    def ask(self, op: str, worker: int = -1, key: str = "", **fields: Any) -> e.Ask:
        """`key`: whose answer it is, where one op is asked for by several."""
        self._number += 1
        self._open[self._number] = (key or op, worker)
        named: dict[str, Any] = {} if op == "register" else {"job": self._job()}
        if op not in ("register", "opened"):  # a channel tells its run itself
            named["run"] = self.run
        if worker >= 0:
            named["worker"] = worker
        return e.Ask(self._number, op, {**named, **fields})

    def answered(self, number: int) -> tuple[str, int] | None:
        """Whose question it was; None for one that is not waited for any more."""
        return self._open.pop(number, None)

    def keys(self) -> set[str]:
        return {key for key, _ in self._open.values()}

    def forget(self) -> None:
        """Nobody will answer any more, or nobody waits for it."""
        self._open.clear()

    def story(self) -> list[tuple[int, tuple[str, int]]]:
        return sorted(self._open.items())
