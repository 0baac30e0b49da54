"""What one seed draws: the cluster's size, the job, the limits, and how bad the weather is (half of the rates are zero).

A swarm: each run has a few faults of its own, because a run with all of them at once hides what each one alone shows.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from plugml.core.job import JobSpec
from plugml.core.limits import KIB, Limits, drawn
from plugml.core.table import TableSpec

from .checkers import SLOT
from .network import Weather
from .ordered import FOLD
from .world import World

GENS = 12  # generations of a worker that the counting table has room for
GENS_WORN = 7  # from here on nobody is killed any more: each death may cost a generation
JOB = "train"


@dataclass(slots=True)
class Plan:
    """Everything that a run has decided beforehand."""

    job: str = JOB
    masters: int = 1
    rivals: bool = False  # the only master behaves as one of several
    servers: int = 2
    late_servers: int = 0  # that join while training goes on
    server_hosts: int = 0  # so many hosts for all servers, 0 = one each
    agents: int = 1
    workers: int = 2
    replicas: int = 2  # copies of the counting slots, so that they lie in several blocks and ranges
    clocks: int = 6
    spec: JobSpec | None = None
    limits: Limits = field(default_factory=Limits)
    network: Weather = field(default_factory=Weather)
    weather_us: int = 4_000_000  # end of phase 1 at the latest
    # -- processes: mean time between faults, 0 = never
    agent_crash_us: int = 0
    master_crash_us: int = 0
    program_kill_us: int = 0
    launcher_kill_us: int = 0
    pause_us: int = 0
    cut_us: int = 0
    slow_us: int = 0
    server_crash_at_us: int = 0  # a server dies then, 0 = none
    server_crash_us: int = 0
    suspicion_us: int = 0  # a server that lives is said to have ended
    order_us: int = 0  # people drain servers, take them back, and spread what there is
    master_pause_us: int = 0
    store_cut_us: int = 0  # a master does not reach its store
    effect_crash: float = 0.0  # chance of an agent or master to die before an effect
    server_effect_crash: float = 0.0
    careful: bool = True  # the last copy in health of anything is spared
    linger: float = 0.0
    store_unknown: float = 0.0
    talk_us: int = 0  # mean time between questions of tools
    supervised: bool = False  # somebody tells the master of dead processes
    long_pause: bool = False  # a server may be silent for so long that it counts as dead
    long_cut: bool = False  # the same of a way between two
    retire_us: int = 0  # a server is told to end, in order
    lonely: bool = False  # also the last copy of something is silent for so long
    whole: bool = False  # the job ends only when every range has all its copies again
    # -- programs
    think_us: tuple[int, int] = (500, 20_000)
    mischief: float = 0.0  # chance of a request that must be refused
    write_pieces: int = 1  # stores into which a program's write of `grad` is cut
    ends_early: float = 0.0  # chance that a worker has fewer clocks than the others
    shuffled_start: bool = False  # processes start in any order
    texts: float = 0.0  # chance of a program to speak in text
    stale_bells: float = 0.0  # chance of a bell without a request
    param_full: float = 0.0  # chance that `param` cannot be written
    timeouts: float = 0.0  # chance of a request that says t=
    limit_ms: int = 60  # the longest of them
    unwaited: float = 0.0  # chance of a push that says async=1
    gone: float = 0.0  # chance that a killed program does not come back at once: its worker leaves
    rejoins: float = 0.0  # chance that such a worker joins again later
    joins: tuple[int, ...] = ()  # of the workers so many come later, each with a launcher of its own
    grouped: tuple[int, ...] = ()  # workers for whom a sender of sums speaks
    group_crash_us: int = 0
    stop_at_us: int = 0  # a stop rule fires then; 0 = never
    host_loss_us: int = 0
    disk_full: float = 0.0  # chance that a part of a checkpoint cannot be written
    write_us: tuple[int, int] = (100, 20_000)  # what it takes to write one
    write_error: float = 0.0  # chance that one of its writes, reads or syncs fails
    read_error: float = 0.0
    sync_error: float = 0.0
    power_loss: float = 0.0  # chance that with a server its host fails: what it had not synced is lost
    resumes: int = 0  # so many checkpoints are kept, then the whole cluster ends, and another one goes on
    flips: float = 0.0  # chance that a bit flips in a stored file, by piece of work
    overflow_clock: int = -1  # clock whose pushes together leave the range of their numbers
    rounds: int = 1  # runs of the first job's name, one after the other
    others: list[Plan] = field(default_factory=list)  # further jobs at the same time

    @property
    def joining(self) -> tuple[int, ...]:
        """Those for whom the rest of the plan has room."""
        fits = sum(self.joins) < self.workers and self.rounds == 1 and self.overflow_clock < 0 and not self.grouped
        return self.joins if fits and not self.launcher_kill_us and not self.host_loss_us else ()

    @property
    def may_be_replaced(self) -> bool:
        """A range may get another primary while the one before it goes on."""
        return self.order_us > 0 or (self.servers > 1 and self.spec is not None and self.spec.copies != 1)


def draw_plan(world: World) -> Plan:
    """The plan of this world's seed."""
    draw = world.draw
    plan = Plan(
        servers=(1, 2, 2, 3, 3, 4, 5, 6)[draw(0, 7)], masters=(1, 1, 2, 3)[draw(0, 3)], agents=draw(1, 2), workers=draw(1, 4), replicas=draw(1, 5), clocks=draw(2, (6, 20, 60)[draw(0, 2)]),
        limits=drawn(draw), weather_us=draw(1_500_000, 8_000_000),
    )  # fmt: skip
    plan.spec = draw_spec(world, plan)
    plan.network = Weather(
        drop=_rate(world, 0.06), double=_rate(world, 0.1), corrupt=_rate(world, 0.02), straggle=_rate(world, 0.1),
        replay=_rate(world, 0.05), lend=(0.0, 0.5, 1.0)[draw(0, 2)], delay_us=(20, (100, 2_000, 20_000)[draw(0, 2)]),
        lent_us=(0, (100, 2_000, 60_000)[draw(0, 2)]),
    )  # fmt: skip
    for name, often in (
        ("agent_crash_us", 700_000), ("master_crash_us", 900_000), ("program_kill_us", 900_000),
        ("launcher_kill_us", 4_000_000), ("pause_us", 600_000), ("cut_us", 500_000), ("slow_us", 500_000), ("talk_us", 400_000), ("host_loss_us", 4_000_000),
    ):  # fmt: skip
        setattr(plan, name, draw(often // 3, often * 2) if world.happens(0.5) else 0)
    _draw_copies(world, plan)
    plan.effect_crash = _rate(world, 0.004)
    plan.linger = _rate(world, 0.3)
    plan.store_unknown = _rate(world, 0.3)
    plan.mischief = _rate(world, 0.15)
    plan.write_pieces = draw(1, 3)
    plan.supervised = world.happens(0.5)
    plan.ends_early = _rate(world, 0.5)
    plan.shuffled_start = world.happens(0.5)
    plan.think_us = (500, (2_000, 20_000, 200_000)[draw(0, 2)])
    plan.texts = _rate(world, 0.5)
    plan.stale_bells = _rate(world, 0.2)
    plan.param_full = _rate(world, 0.01)
    plan.timeouts = _rate(world, 0.3)
    plan.unwaited = _rate(world, 0.8)
    plan.gone = _rate(world, 1.0)
    plan.rejoins = _rate(world, 1.0)
    if world.happens(0.3):
        plan.stop_at_us = draw(300_000, plan.weather_us)
    if world.happens(0.06):
        plan.server_crash_at_us, plan.careful = draw(200_000, plan.weather_us), False
    if world.happens(0.15):
        plan.rounds = 2
    if world.happens(0.2):
        other = replace(plan, job="other", joins=(), workers=draw(1, 3), clocks=draw(2, 10), replicas=draw(1, 3), rounds=1)
        other.spec = draw_spec(world, other)
        plan.others = [other]
    if world.happens(0.06):
        _doom(world, plan)
    _draw_saves(world, plan)
    apart = random.Random(f"silence {world.seed}")
    joins = random.Random(f"joins {world.seed}")
    if joins.random() < 0.3 and plan.workers > 1:
        plan.joins = joins.choice([some for some in ((1,), (2,), (1, 1), (1, 2)) if sum(some) < plan.workers])
        plan.launcher_kill_us = plan.host_loss_us = 0
    plan.lonely = apart.random() < 0.3
    plan.retire_us = apart.randint(500_000, 3_000_000) if apart.random() < 0.3 else 0
    return plan


def _draw_saves(world: World, plan: Plan) -> None:
    """Checkpoints of jobs that run once: two runs of a name would have one place.  Drawn apart, so that all else is as it was."""
    draw = random.Random(f"checkpoints {world.seed}")
    plan.disk_full = draw.random() * 0.3 if draw.random() < 0.5 else 0.0
    plan.write_us = (100, draw.choice((1_000, 20_000, 300_000)))
    for each in (plan, *plan.others):
        if draw.random() < 0.6 and each.rounds == 1 and each.spec is not None:
            each.spec = saved(each.spec, draw.randint(1, 6), draw.randint(1, 3))
    draw = random.Random(f"medium {world.seed}")
    for name, most in (("write_error", 0.2), ("read_error", 0.2), ("sync_error", 0.05), ("power_loss", 1.0), ("flips", 0.05)):
        setattr(plan, name, draw.random() * most if draw.random() < 0.5 else 0.0)
    draw = random.Random(f"resume {world.seed}")
    if plan.spec is not None and plan.spec.checkpoint_dir and draw.random() < 0.7:
        plan.resumes, plan.clocks = draw.randint(1, 3), max(12, plan.clocks)


def saved(spec: JobSpec, every: int, keep: int = 2) -> JobSpec:
    """The job with a checkpoint each so many clocks."""
    return replace(spec, checkpoint_every=every, checkpoint_dir=f"/checkpoints/{spec.name}", checkpoint_keep=keep)


def _draw_copies(world: World, plan: Plan) -> None:
    """What befalls servers and masters."""
    draw = world.draw
    assert plan.spec is not None
    if plan.servers > 1 and world.happens(0.2):
        plan.late_servers = draw(1, plan.servers - 1)
    least = plan.spec.min_insync
    plan.late_servers = min(plan.late_servers, plan.servers - least)
    plan.rivals = plan.masters > 1 or world.happens(0.3)
    plan.server_hosts = draw(1, plan.servers) if world.happens(0.3) else 0
    for name, often in (("server_crash_us", 900_000), ("suspicion_us", 2_000_000), ("order_us", 700_000)):
        setattr(plan, name, draw(often // 3, often * 2) if world.happens(0.4) else 0)
    plan.master_pause_us = draw(500_000, 3_000_000) if world.happens(0.4) else 0
    if plan.rivals:
        plan.store_cut_us = draw(500_000, 3_000_000) if world.happens(0.5) else 0
    plan.server_effect_crash = _rate(world, 0.002)
    plan.long_pause = world.happens(0.3)
    plan.long_cut = world.happens(0.3)
    plan.careful = world.happens(0.9)
    plan.whole = world.happens(0.3)


def _doom(world: World, plan: Plan) -> None:
    """Two workers push so much in one clock that their sum is no number any more."""
    plan.workers, plan.ends_early, plan.gone, plan.stop_at_us = max(2, plan.workers), 0.0, 0.0, 0
    plan.spec = draw_spec(world, plan, "bsp")
    tables = tuple(
        replace(table, optimizer="add", settings={}, dtype="f64", storage="", combine="sum", init="zeros", init_settings={}, consistency="")
        if table.name == "exact" else table
        for table in plan.spec.tables
    )  # fmt: skip
    plan.spec = replace(plan.spec, tables=tables, stop_clock=0)
    plan.overflow_clock = world.draw(0, plan.clocks - 1)


def _rate(world: World, most: float) -> float:
    """Zero in half of the runs."""
    return world.random.random() * most if world.happens(0.5) else 0.0


def draw_spec(world: World, plan: Plan, consistency: str = "", sparse: bool | None = None) -> JobSpec:
    """A job of a table for counting, one for exact values, perhaps one that a program initialises, and perhaps sparse ones of both kinds."""
    draw = world.draw
    consistency = consistency or ("bsp", "asp", f"ssp:{draw(0, 3)}")[draw(0, 2)]

    def model() -> str:
        return ("bsp", "asp", f"ssp:{draw(0, 2)}")[draw(0, 2)] if world.happens(0.1) else ""

    tables = [_counting_table(world, plan, model()), _exact_table(world, consistency, model())]
    if world.happens(0.3):
        tables.append(TableSpec("offered", (draw(1, 200),), dtype="f64", optimizer="add", init="program", combine="sum"))
    if world.happens(0.2):
        tables.append(
            TableSpec("filed", (draw(1, 100),), dtype="f64", optimizer="add", init="file", init_settings={"path": "/first/filed.bin"}, combine="sum")
        )
    scale = ("none", "linear", "sqrt")[draw(0, 2)] if world.happens(0.3) else "none"
    if world.happens(0.6) if sparse is None else sparse:
        tables += _sparse_tables(world, consistency, model, scale == "none")
    if world.happens(0.3):
        tables.reverse()
    pieces = draw(1, 20) if world.happens(0.3) else 0
    copies = (0, 0, 1, 2, 2, 3)[draw(0, 5)]
    enough = 2 if copies != 1 and plan.servers > 1 and world.happens(0.25) else 1
    return JobSpec(
        plan.job, plan.workers, tuple(tables), seed=draw(0, 1000), consistency=consistency,
        combine=("mean", "sum")[draw(0, 1)], max_restarts=GENS, bell="sem" if world.happens(0.3) else "fifo",
        pieces=pieces, passes=draw(1, 3) if pieces else 0, settings={"pieces_file": "/input/pieces.txt"} if pieces else {},
        snapshot_every=draw(1, 5) if world.happens(0.4) else 0, stop_clock=draw(1, plan.clocks + 2) if world.happens(0.15) else 0,
        lr_scale=scale, lr_warmup=draw(0, 5), on_worker_loss="shrink", copies=copies, min_insync=enough,
    )  # fmt: skip


def _bsp(consistency: str, own: str) -> bool:
    return (own or consistency) == "bsp"


def _counting_table(world: World, plan: Plan, model: str) -> TableSpec:
    """`add` of (1, n, n^2): exact in every dtype."""
    shape = (plan.replicas, plan.workers, GENS, SLOT)
    dtype = ("f32", "f64", "i64")[world.draw(0, 2)]
    return TableSpec("count", shape, dtype=dtype, optimizer="add", combine="sum", consistency=model, storage=_storage(world, dtype))


def _storage(world: World, dtype: str) -> str:
    """Another kind of number on the servers; both hold what is pushed."""
    return {"f32": "f64", "f64": "f32"}.get(dtype, "") if world.happens(0.2) else ""


def _exact_table(world: World, consistency: str, model: str) -> TableSpec:
    draw = world.draw
    shape = (draw(1, 40), draw(1, 12))
    if not _bsp(consistency, model):
        dtype = ("f32", "f64")[draw(0, 1)]
        return TableSpec("exact", shape, dtype=dtype, optimizer="assign", combine="sum", consistency=model, storage=_storage(world, dtype))
    return TableSpec("exact", shape, consistency=model, **_stepped(world))


def _stepped(world: World) -> dict[str, Any]:
    """How a table of exact values is kept and stepped."""
    draw = world.draw
    dtype = ("f32", "f64", "i64")[draw(0, 2)]
    if dtype == "i64":
        return {"dtype": dtype, "optimizer": ("add", "assign")[draw(0, 1)], "combine": "sum"}
    optimizer = ("add", "sgd", "assign", "momentum", "nesterov", "adagrad", "rmsprop", "adam", "adamw", FOLD)[draw(0, 9)]
    if optimizer == FOLD:
        return {"dtype": "f64", "optimizer": FOLD, "combine": "sum"}
    storage = "f16" if optimizer == "assign" and world.happens(0.3) else _storage(world, dtype)
    settings = {} if optimizer in ("add", "assign") else {"lr": 0.25 if optimizer == "sgd" else 0.03125}
    init, init_settings = ("zeros", {}) if world.happens(0.5) else ("normal", {"scale": 0.5})
    return {
        "dtype": dtype, "optimizer": optimizer, "settings": settings, "init": init, "init_settings": init_settings,
        "combine": ("mean", "sum")[draw(0, 1)], "storage": storage,
    }  # fmt: skip


def _sparse_tables(world: World, consistency: str, model: Callable[[], str], steady: bool) -> list[TableSpec]:
    """Rows for counting, and rows with exact values (BSP) or such as show the order of a stream's pushes."""
    draw = world.draw

    def common() -> dict[str, Any]:
        index = ("u32", "u64", "str")[draw(0, 2)]
        return {"kind": "sparse", "index": index, "batch": draw(4, 12)}

    own = model()
    dtype = ("f32", "f64", "i64")[draw(0, 2)]
    optimizer = ("add", "sgd")[draw(0, 1)] if dtype != "i64" and steady else "add"
    tables = [
        TableSpec("tally", (_rows(world, own_rows := common()), draw(3, 6)), dtype=dtype, optimizer=optimizer, combine="sum", consistency=own,
                  settings={"lr": 0.5} if optimizer == "sgd" else {}, storage=_storage(world, dtype), **own_rows)
    ]  # fmt: skip
    own = model()
    if _bsp(consistency, own):
        tables.append(TableSpec("summed", (_rows(world, shared := common()), draw(1, 5)), consistency=own, **_stepped(world), **shared))
        return tables
    if world.happens(0.7):
        tables.append(TableSpec("order", (0, draw(1, 3)), dtype="f64", optimizer=FOLD, combine="sum", consistency=own, **common()))
    if world.happens(0.5):
        tables.append(TableSpec("written", (_rows(world, shared := common()), draw(1, 4)), dtype="f64", optimizer="assign", combine="sum", consistency=own, **shared))
    return tables


def _rows(world: World, common: dict[str, Any]) -> int:
    """Of a table whose rows are numbers: sometimes a bounded number of them."""
    return 4_000 if common["index"] != "str" and world.happens(0.3) else 0


def calm_plan(workers: int = 2, servers: int = 2, clocks: int = 3, consistency: str = "bsp", agents: int = 1) -> Plan:
    """A small run without weather, for scenarios that bring their own faults."""
    plan = Plan(servers=servers, agents=agents, workers=workers, clocks=clocks, replicas=3)
    plan.limits = Limits(ranges=8, points=8, block_bytes_min=64, block_bytes_max=4 * KIB)
    shape = (plan.replicas, workers, GENS, SLOT)
    optimizer = "assign" if consistency == "asp" else "sgd"
    exact = TableSpec(
        "exact", (12, 5), dtype="f64", optimizer=optimizer, settings={"lr": 0.25} if optimizer == "sgd" else {}, combine="sum"
    )
    plan.spec = JobSpec(
        JOB, workers, (TableSpec("count", shape, dtype="f64", optimizer="add", combine="sum"), exact), consistency=consistency,
        max_restarts=GENS,
    )  # fmt: skip
    plan.weather_us = 60_000_000
    return plan


def full_plan(workers: int = 2, servers: int = 2, consistency: str = "bsp") -> Plan:
    """A small run without weather that asks for everything: rows of all indexes, input, a stop clock before the programs' own end."""
    plan = calm_plan(workers, servers, clocks=3, consistency=consistency)
    assert plan.spec is not None
    dense = [table for table in plan.spec.tables if table.name == "count" or consistency == "bsp"]
    tables = [
        *dense,
        TableSpec("tally", (0, 4), kind="sparse", index="str", batch=8, dtype="i64", optimizer="add", combine="sum"),
    ]
    if consistency == "bsp":
        tables.append(
            TableSpec("summed", (4_000, 2), kind="sparse", index="u32", batch=8, dtype="f64", storage="f32", optimizer="momentum", settings={"lr": 0.125}, combine="mean")
        )
    else:
        tables.append(TableSpec("order", (0, 2), kind="sparse", index="u64", batch=8, dtype="f64", optimizer=FOLD, combine="sum"))
    plan.spec = replace(
        plan.spec, tables=tuple(tables), stop_clock=2, pieces=3, passes=1, settings={"pieces_file": "/input/pieces.txt"},
        snapshot_every=1 if consistency == "bsp" else 0, bell="sem",
    )  # fmt: skip
    plan.limit_ms = 1
    return plan
