"""One job from its registration to its end: its launchers, its ledger, and whether it ended as it had to.

    finished   every worker has done its clocks, the exported tables hold what they must
    lost       a server died that held the (only|last) copy of something: said by name, to every program
    failed     a step left the range of its numbers: said by name, to every program
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .exports import judge_export, judge_rescued
from .host import Host
from .joiner import Joiner
from .launcher import Launcher
from .ledger import Ledger
from .process import Process
from .weather import Plan
from .world import Violation, World

if TYPE_CHECKING:
    from .cluster import Cluster

LOST_BY_NAME = re.compile(r"server s\d+ held the (only|last) copy of \d+ range")
FAILED_BY_NAME = re.compile(r"table '?exact'?.*(range|finite|infinity)")
UNREADABLE = re.compile(r"range \d+ cannot be restored from /checkpoints/")


class JobRun:
    """`cluster` says whether anything happened that excuses a lost job, and what its copies lack."""

    def __init__(
        self, world: World, plan: Plan, seed: int, hosts: list[tuple[Host, Process]], connection: Callable[[], int],
        cluster: Cluster, ledger: Ledger | None = None, absent: Iterable[int] = (),
    ) -> None:  # fmt: skip
        """`ledger`: of a job that goes on, with what there is of it; `absent`: workers that had left by then."""
        self.world = world
        self.plan = plan
        if plan.joining:  # the last ones of its workers are not there at the start
            assert plan.spec is not None
            plan.spec = replace(plan.spec, workers=plan.workers - sum(plan.joining))
        self.ledger = Ledger(seed, plan) if ledger is None else ledger
        self.outcome = ""
        self._cluster = cluster
        self._asked_export = False
        self._saving: tuple[Launcher, int] | None = None  # who was asked for the values of a job that cannot go on, in which life
        self._saved = False
        self.others_done: Callable[[], bool] = lambda: True  # workers that have no launcher
        self.launchers = [
            Launcher(world, host, agent, plan, self.ledger, [w for w in range(plan.workers - sum(plan.joining)) if w % len(hosts) == number], connection)
            for number, (host, agent) in enumerate(hosts)
        ]
        self.joiners = [
            Joiner(world, *hosts[world.draw(0, len(hosts) - 1)], plan, self.ledger, number, count, connection, self._may_come)
            for number, count in enumerate(plan.joining)
        ]
        for launcher in self.launchers:
            launcher.finished += [worker for worker in absent if worker in launcher.workers]

    def _may_come(self) -> bool:
        return not self._asked_export and not self.outcome

    def start(self) -> None:
        for joiner in self.joiners:
            self.world.after(self.world.draw(100_000, 1_000_000), joiner.begin)
        for launcher in self.launchers:
            self.world.after(self.world.draw(0, 300_000), launcher.start)
        for _ in range(2 if self.plan.stop_at_us else 0):  # two rules, or one that is said again
            self.world.after(self.plan.stop_at_us + self.world.draw(0, 200_000), self._stop)

    def _stop(self) -> None:
        if not self.outcome and not self._asked_export:
            self.launchers[self.world.draw(0, len(self.launchers) - 1)].stop()

    def over(self) -> bool:
        """One look, and the next step of the end: all finished, values exported and judged, the job ended."""
        if self.outcome:
            return True
        states = {launcher.job_state: launcher for launcher in (*self.launchers, *self.joiners) if launcher.job_state in ("lost", "failed")}
        if states:
            return self._broken(*next(iter(states.items())))
        if self._asked_export or not self.others_done() or not all(launcher.alive and launcher.done and launcher.job_number for launcher in self.launchers):
            return False
        if not all(joiner.settled for joiner in self.joiners):
            return False
        if self._cluster.may_show_the_end(self.launchers[0].job_number, self.plan.whole):
            self._asked_export = True
            self.launchers[0].export(f"/{self.plan.job}/result", self._judge)
        return False

    def _judge(self, answer: dict[str, Any]) -> None:
        files = self.launchers[0].host.exported[f"/{self.plan.job}/result"]
        judge_export(self.ledger, files, int(answer["clock"]), final=True)
        self.launchers[0].end_job(self._ended)

    def _ended(self, answer: dict[str, Any]) -> None:
        if self.ledger.doomed:
            raise Violation(f"job {self.plan.job} finished although a step must have left the range of its numbers")
        self._conclude("finished")

    def _broken(self, state: str, launcher: Launcher) -> bool:
        """The job must say why by name, and every program must have been told."""
        reason = launcher.reason
        if state == "lost" and not (LOST_BY_NAME.search(reason) and self._cluster.may_be_lost()):
            raise Violation(f"job {self.plan.job} is lost without a cause or a name: {reason!r}")
        unreadable = state == "failed" and UNREADABLE.search(reason) and self._cluster.saves.unreadable
        if state == "failed" and not unreadable and not (FAILED_BY_NAME.search(reason) and self.ledger.doomed):
            raise Violation(f"job {self.plan.job} has failed without a cause or a name: {reason!r}")
        for other in (*self.launchers, *self.joiners):
            if other.job_number != launcher.job_number:
                other.kill()  # it came to register when the first run was over: its user gives up
        if any(program.alive for other in (*self.launchers, *self.joiners) for program in other.programs.values()):
            return False
        if state == "failed" and not self._saved and not unreadable:
            self._save(launcher)
            return False
        self.world.reached(f"job {state}, by name")
        self._conclude(state)
        return True

    def _save(self, launcher: Launcher) -> None:
        """Numbers of a job that cannot go on are all finite, and stand where the last close left them."""
        if not launcher.alive or self._saving == (launcher, launcher.life):
            return
        self._saving = (launcher, launcher.life)
        place = f"/{self.plan.job}/failed"

        def ended(answer: dict[str, Any]) -> None:
            self._saved = True

        def exported(answer: dict[str, Any]) -> None:
            judge_rescued(self.ledger, launcher.host.exported[place])
            self.world.reached("values of a job that cannot go on")
            launcher.end_job(ended)

        launcher.export(place, exported)

    def _conclude(self, outcome: str) -> None:
        self.outcome = outcome
        self.ledger.judge()

    def close(self) -> None:
        """The launchers go home; whatever they still keep is let go."""
        for launcher in (*self.launchers, *self.joiners):
            launcher.kill()

    def waits(self) -> list[str]:
        return [line for launcher in (*self.launchers, *self.joiners) for line in launcher.waits()]
