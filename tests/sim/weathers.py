"""Weathers that favour one fault each: what a mutant needs, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from plugml.core.job import JobSpec

from .weather import Plan, draw_spec
from .workload import WORKERS_TOP
from .world import World


def calm(world: World, plan: Plan) -> None:
    """No fault but the one that the mutant needs."""
    network = plan.network
    network.drop = network.double = network.corrupt = network.straggle = network.replay = 0.0
    plan.agent_crash_us = plan.master_crash_us = plan.program_kill_us = plan.launcher_kill_us = 0
    plan.pause_us = plan.cut_us = plan.slow_us = plan.server_crash_at_us = plan.stop_at_us = plan.host_loss_us = 0
    plan.server_crash_us = plan.suspicion_us = plan.order_us = plan.retire_us = plan.master_pause_us = plan.store_cut_us = plan.late_servers = 0
    plan.timeouts = plan.unwaited = plan.gone = plan.rejoins = plan.server_effect_crash = 0.0
    plan.long_pause = plan.long_cut = plan.lonely = plan.whole = False
    plan.effect_crash = plan.linger = plan.store_unknown = plan.mischief = plan.stale_bells = plan.param_full = 0.0
    plan.write_error = plan.read_error = plan.sync_error = plan.power_loss = plan.flips = 0.0
    plan.overflow_clock, plan.rounds, plan.others, plan.joins, plan.resumes = -1, 1, [], (), 0


def under(consistency: str, workers: int = 2, **rates: Any) -> Callable[[World, Plan], None]:
    """A calm plan under one consistency with these rates; those of the network have the prefix `net_`."""

    def bias(world: World, plan: Plan) -> None:
        calm(world, plan)
        plan.workers = max(workers, plan.workers)
        plan.spec = draw_spec(world, plan, consistency)
        for name, rate in rates.items():
            if name.startswith("net_"):
                setattr(plan.network, name[4:], rate)
            else:
                setattr(plan, name, rate)

    return bias


def joined(consistency: str, *joins: int, **rates: Any) -> Callable[[World, Plan], None]:
    """Workers that come to a running job, with a launcher for each number of them."""

    def bias(world: World, plan: Plan) -> None:
        under(consistency, 1 + sum(joins), **{"think_us": (2_000, 20_000), **rates})(world, plan)
        plan.joins, plan.clocks, plan.ends_early = joins, 40, 0.0
        assert plan.spec is not None
        plan.spec = replace(plan.spec, stop_clock=0)

    return bias


def offered(world: World, plan: Plan) -> None:
    """A job whose first values a program gives: who gives them dies when some are on their way, and they come after others'."""
    under("bsp", workers=3, net_straggle=0.5, net_double=0.4, program_kill_us=120_000)(world, plan)
    while plan.spec is None or all(table.init != "program" for table in plan.spec.tables):
        plan.spec = draw_spec(world, plan, "bsp")


def alone(world: World, plan: Plan) -> None:
    """One server, so that ticks ride behind their pushes, and a network that mixes them up."""
    under("bsp", net_straggle=0.4, net_drop=0.05, servers=1)(world, plan)


def narrow(world: World, plan: Plan) -> None:
    """Workers of one host that run ahead of each other, and windows of one push."""
    under("bsp", workers=3, servers=1, agents=1)(world, plan)
    plan.limits, plan.clocks = replace(plan.limits, window_bytes=512), 30


def haunted(world: World, plan: Plan) -> None:
    """Agents that repeat themselves late, and whose last words arrive after their successors have begun."""
    under("bsp", net_straggle=0.1, net_straggle_us=(800_000, 2_500_000), launcher_kill_us=600_000, think_us=(100, 2_000))(world, plan)
    plan.limits = replace(plan.limits, resend_us=300_000, resend_us_max=600_000)
    plan.clocks, plan.weather_us = 60, 8_000_000


def belated(world: World, plan: Plan) -> None:
    """Short jobs, and questions that arrive after their end."""
    under("asp", net_straggle=0.3, net_straggle_us=(300_000, 3_000_000), think_us=(100, 1_000), launcher_kill_us=300_000)(world, plan)
    plan.clocks = 3


def weighed(world: World, plan: Plan) -> None:
    """Means of several pushes in a clock, and agents that die within it."""
    under("bsp", effect_crash=0.03, agent_crash_us=100_000)(world, plan)
    while all(plan.spec.combine_of(table) != "mean" for table in plan.spec.tables) if plan.spec is not None else True:
        plan.spec = draw_spec(world, plan, "bsp")


def unstable(world: World, plan: Plan) -> None:
    """A master that dies now and then, over a store that seldom says what it did; workers that need it often."""
    under("asp", store_unknown=0.5, master_crash_us=300_000, program_kill_us=50_000)(world, plan)
    plan.clocks, plan.shuffled_start = 40, False


def dying(world: World, plan: Plan) -> None:
    """One server dies in the middle of the training, and nobody says so to the master."""
    under("asp", program_kill_us=60_000)(world, plan)
    plan.clocks, plan.server_crash_at_us, plan.supervised, plan.careful = 40, world.draw(300_000, 1_500_000), False, False
    plan.shuffled_start, plan.think_us = False, (500, 20_000)
    plan.spec = single(plan.spec)


def single(spec: JobSpec | None) -> JobSpec:
    """The job with one copy of everything."""
    assert spec is not None
    return replace(spec, copies=1, min_insync=1)


def rows(consistency: str, *tables: str, workers: int = 2, **rates: Any) -> Callable[[World, Plan], None]:
    """A calm plan with these sparse tables, all of them under the job's consistency."""

    def bias(world: World, plan: Plan) -> None:
        under(consistency, workers, **rates)(world, plan)
        while True:
            spec = draw_spec(world, plan, consistency, sparse=True)
            named = {table.name: table for table in spec.tables}
            if all(name in named for name in tables) and not any(table.consistency for table in spec.tables):
                break
        plan.spec = spec

    return bias


def rows_like(consistency: str, like: Callable[[Any], bool], **rates: Any) -> Callable[[World, Plan], None]:
    """The same, with a sparse table of a kind: `like` looks at the job."""

    def bias(world: World, plan: Plan) -> None:
        while True:
            rows(consistency, **rates)(world, plan)
            if plan.spec is not None and like(plan.spec):
                return

    return bias


def accepting(consistency: str = "asp", workers: int = 2, **rates: Any) -> Callable[[World, Plan], None]:
    """Programs that wait for little."""

    def bias(world: World, plan: Plan) -> None:
        under(consistency, workers, **{"unwaited": 1.0, "timeouts": 0.3, "think_us": (100, 2_000), **rates})(world, plan)
        plan.clocks = 40

    return bias


def stopping(world: World, plan: Plan) -> None:
    """A rule fires, and another one a moment later, while all go on at their own pace."""
    under("asp", workers=3, think_us=(1_000, 60_000))(world, plan)
    plan.clocks, plan.ends_early, plan.shuffled_start = 60, 0.0, False
    plan.stop_at_us = world.draw(800_000, 1_500_000)
    assert plan.spec is not None
    plan.spec = replace(plan.spec, stop_clock=0)


def fed(**rates: Any) -> Callable[[World, Plan], None]:
    """A job that hands out its input."""

    def bias(world: World, plan: Plan) -> None:
        under("asp", workers=3, **rates)(world, plan)
        plan.clocks = 20
        assert plan.spec is not None
        plan.spec = replace(plan.spec, pieces=12, passes=2, settings={"pieces_file": "/input/pieces.txt"}, stop_clock=0)

    return bias


def kept(world: World, plan: Plan) -> None:
    """Snapshots that are asked for while training goes on."""
    rows("bsp", "summed", talk_us=30_000, think_us=(2_000, 20_000))(world, plan)
    plan.clocks, plan.ends_early = 60, 0.0
    assert plan.spec is not None
    plan.spec = replace(plan.spec, snapshot_every=2, stop_clock=0)


def summed(world: World, plan: Plan) -> None:
    """Two workers for whom a sender of sums speaks, which dies now and then; nobody else does."""
    under("bsp", workers=1, net_straggle=0.3, net_drop=0.05, net_double=0.1)(world, plan)
    plan.workers = min(plan.workers, WORKERS_TOP - 2)
    plan.grouped, plan.group_crash_us = (plan.workers, plan.workers + 1), 200_000
    plan.ends_early = 0.0
    while True:
        spec = draw_spec(world, replace(plan, workers=plan.workers + 2), ("bsp", "asp")[world.draw(0, 1)], sparse=True)
        if not any(table.consistency for table in spec.tables):
            break
    names = ("count", "exact", "tally", "summed") if spec.consistency == "bsp" else ("count", "tally", "order")
    plan.spec = replace(
        spec, tables=tuple(table for table in spec.tables if table.name in names), stop_clock=0, pieces=0, passes=0, copies=1, min_insync=1
    )  # fmt: skip


def of_fractions(world: World, plan: Plan) -> None:
    """Means of several workers' pushes to rows, in single precision: their last bits depend on the order of the sums."""

    def like(spec: Any) -> bool:
        return any(table.name == "summed" and table.storage_name == "f32" and table.combine == "mean" for table in spec.tables)

    rows_like("bsp", like, workers=4, think_us=(100, 20_000))(world, plan)
    plan.clocks, plan.ends_early = 10, 0.0
