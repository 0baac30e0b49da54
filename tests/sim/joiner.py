"""A simulated launcher that brings workers to a running job: it asks for their numbers first, and ends when they have ended.

It is not killed: when such a launcher dies is known to nobody but its agent, and the ledger would have to guess which clocks count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .host import Host
from .launcher import RETRY_US, Launcher
from .ledger import Ledger
from .process import Process
from .weather import Plan
from .world import Violation, World

NOT_YET = ("RANGE", "AGAIN")  # the job is not registered
OVER = ("STOP", "GONE", "NOSERVER")


class Joiner(Launcher):
    """`number` of the launchers that join, with `count` workers.  `may_come`: the job's own launcher has not begun to save what came of it."""

    def __init__(
        self, world: World, host: Host, agent: Process, plan: Plan, ledger: Ledger, number: int, count: int, connection: Callable[[], int],
        may_come: Callable[[], bool],
    ) -> None:  # fmt: skip
        super().__init__(world, host, agent, plan, ledger, [], connection)
        self._name = f"joiner-{number}"
        self._count = count
        self._may_come = may_come
        self._asked = False
        self._refused_for_good = False

    @property
    def settled(self) -> bool:
        """Nobody need wait for it: it has not come yet, or its workers have ended."""
        return not self._asked or self._refused_for_good or (bool(self.workers) and self.done)

    def begin(self) -> None:
        if self._may_come():
            self.start()

    def _greet(self) -> None:
        if self.job_number:
            self.ask("register", {"spec": self.spec.to_document(), "job": self.job_number, "joined": 1}, self._greeted)
        elif self._may_come():
            self._asked = True
            self.ask("join", {"job": self.spec.name, "workers": self._count, "launcher": self._name}, self._numbered)

    def _numbered(self, answer: dict[str, Any]) -> None:
        first, own = int(answer["first"]), self.ledger.spec.workers
        if not own <= first <= self.plan.workers - self._count or int(answer["workers"]) < first + self._count:
            raise Violation(f"{self._name} got {self._count} workers from {first} on, of {answer['workers']}, in a job of {own} to {self.plan.workers}")
        self.world.reached("workers join")
        self.workers = list(range(first, first + self._count))
        self.job_number = int(answer["job"])
        self._greet()

    def _refused(self, asked: dict[str, Any], answer: dict[str, Any], then: Callable[[dict[str, Any]], None]) -> None:
        if asked["op"] != "join":
            super()._refused(asked, answer, then)
        elif answer["code"] in OVER or not self._may_come():
            self._refused_for_good = True
        elif answer["code"] in NOT_YET:
            self._pending[asked["id"]] = (asked, then)
            self.world.after(RETRY_US, self._write, asked)
        else:
            raise Violation(f"the agent refused {asked}: {answer}")
