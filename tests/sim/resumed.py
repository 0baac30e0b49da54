"""A job, the end of its whole cluster, and the same job on another one, from what the disk has kept.

The launcher's own code looks for the checkpoint and says what the job is then.  Everything that was counted is counted
on: what is read shows the pushes of the clocks before the cut and nothing else, and each later clock is that of a job
that nothing had happened to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

from plugml.launch import resume, start
from plugml.launch.plan import RunPlan
from plugml.launch.saves import AUTO, Saves
from plugml.runtime import checkpoints
from plugml.server.saves import FUZZY, cut_of

from .cluster import Cluster, Left
from .ledger import Ledger
from .medium import Medium
from .ordered import registered
from .roll import FAR, Roll
from .weather import GENS_WORN, Plan
from .world import Violation, World


class Resumed:
    """Two clusters, one after the other, in one world."""

    def __init__(self, world: World, plan: Plan) -> None:
        self.world = world
        self.plan = plan
        self._draw = Random(f"resumed {world.seed}")

    def run(self) -> str:
        first = Cluster(self.world, self.plan)
        with registered():
            try:
                return self._second(first) if first.run_until(self._moment()) and may_go_on(first) else first.run()
            finally:
                first.saves.close()

    def _moment(self) -> Callable[[], bool]:
        """A while after the last of so many checkpoints is kept."""
        late_us = self._draw.randrange(1, self._draw.choice((1_000, 20_000, 300_000)))
        since: list[int] = []

        def come() -> bool:
            if self.world.marks.get("a checkpoint is kept", 0) >= self.plan.resumes and not since:
                since.append(self.world.now_us)
            return bool(since) and self.world.now_us >= since[0] + late_us

        return come

    def _second(self, first: Cluster) -> str:
        run = first.runs[0]
        for server in first.servers:
            if server.alive:
                first.saves.died(server)
        left, plan = self._look(first.saves.medium, run.ledger, first.saves.kept(run.launchers[0].job_number))
        self.world.fault("the whole cluster ends")
        self.world.forget()
        if left is not None:
            first.saves.leave()
        second = Cluster(self.world, plan, run.ledger.seed, left)
        for _ in range(self._draw.randrange(1 + int(500 * plan.flips))):  # when somebody has looked at the directory
            self.world.after(self._draw.randrange(1, 600_000), second.saves.flip)
        return second.run()

    def _look(self, medium: Medium, ledger: Ledger, kept: int) -> tuple[Left | None, Plan]:
        """What `plugml run --resume auto` makes of the directory."""
        draw, spec = self._draw, self.plan.spec
        assert spec is not None
        servers = draw.choice((max(1, spec.min_insync), 2, 3, 5))
        plan = replace(
            self.plan, servers=servers, late_servers=0, server_hosts=0, agents=draw.randint(1, 2), others=[], resumes=0,
            weather_us=self.world.now_us + self.plan.weather_us // 2,
        )  # fmt: skip
        root = medium.path(spec.checkpoint_dir)
        mine = replace(spec, copies=draw.choice((0, spec.copies, max(2, spec.min_insync))))
        saves = Saves(spec.checkpoint_every, spec.checkpoint_keep, str(root), AUTO)
        asked = RunPlan(mine, (("program",),) * spec.workers, True, "/", servers=servers, saves=saves)
        resolved, told = resume.resolve(asked)
        resolved, _ = start.with_checkpoints(resolved)
        home = str(medium.home)
        plan.spec = replace(resolved.spec, checkpoint_dir=spec.checkpoint_dir, resume=resolved.spec.resume.removeprefix(home))
        place = Path(resolved.spec.resume)
        if not medium.flipped and (not plan.spec.resume or int(place.name) < kept):
            raise Violation(f"checkpoint {kept} is kept, and the job would go on from {plan.spec.resume or 'nothing'}: {told}")
        if not plan.spec.resume:
            self.world.reached("no checkpoint is left")
            return None, replace(plan, spec=replace(plan.spec, checkpoint_dir="", checkpoint_every=0))
        found = checkpoints.whole(place)
        self.world.reached("a job goes on from a checkpoint")
        absent = dict(resolved.saves.absent)
        return Left(medium, gone_on(ledger, plan, found.clock, absent), tuple(absent)), plan


def may_go_on(cluster: Cluster) -> bool:
    """What it would go on with is known: not which pieces were done at the cut, what was under way in a fuzzy one, who had joined by then."""
    run, spec = cluster.runs[0], cluster.plan.spec
    assert spec is not None
    roll, number = run.ledger.roll, run.launchers[0].job_number
    fit = cut_of(spec) != FUZZY and not spec.pieces and not run.joiners and not run.ledger.doomed and not run.ledger.stopping.stopped
    return fit and not run.outcome and roll.newest_gen < GENS_WORN and cluster.saves.kept(number) > 0


def gone_on(before: Ledger, plan: Plan, cut: int, absent: dict[int, int]) -> Ledger:
    """What is known of a job at a cut: so many clocks are closed, or all members were held there."""
    ledger = Ledger(before.seed, plan)
    ledger.roll = gone_on_with(before.roll, ledger.roll, cut, absent)
    for key, cell in before.cells.items():
        ledger.cells[key] = cell.until(cut, before.roll.lives((key[1], key[2])))
    ledger.offers, ledger.assigned = dict(before.offers), dict(before.assigned)
    ledger.first_values = dict(before.first_values)
    for name, known in before.equal.items():
        ledger.equal[name] = {clock: seen for clock, seen in known.items() if clock <= cut}
    return ledger


def gone_on_with(before: Roll, roll: Roll, cut: int, absent: dict[int, int]) -> Roll:
    """Who took part until the cut, and who is there behind it: whoever left later has not left."""
    roll.earlier, roll.cut = before.newest_gen, cut
    roll.asked = dict.fromkeys(range(roll.workers), before.newest_gen)
    for worker in range(roll.workers):
        lives = [*before.spans.get(worker, ()), *([(before.first[worker], FAR)] if worker in before.first else [])]
        end = absent.get(worker, FAR)
        lives = [(first, min(last, end)) for first, last in lives if first < min(cut, end)]
        here = [first for first, last in lives if last >= cut]
        roll.spans[worker] = [(first, last) for first, last in lives if last < cut]
        if worker in absent:
            del roll.first[worker]
        else:
            roll.first[worker] = here[0] if here else cut
    return roll
