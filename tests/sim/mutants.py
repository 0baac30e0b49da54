"""Sabotage the rules one by one.  Each mutant must be caught within some seeds under a weather that favours it.

A mutant is a small change of one method, a bias of the plan, and what it breaks.  A rule that no run can catch is kept
in AIDS with the reason: it helps, or it is for what is still to come; it carries no safety today.  Whoever adds a rule
adds its mutant here; a survivor is a missing fault or a missing check.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from plugml.agent.channel import Channel
from plugml.agent.delivery import Delivery
from plugml.agent.router import Job
from plugml.agent.transfer import Scatter
from plugml.master import decisions
from plugml.master.ledger import Ledger
from plugml.server.clock import ClockMachine
from plugml.server.hosted import Hosted
from plugml.server.memory import Memory
from plugml.server.node import ServerMachine
from plugml.server.range import RangeMachine
from plugml.server.staging import Staging
from plugml.wire import codec

from . import sabotage as act
from .cluster import Cluster
from .ordered import registered
from .weather import Plan, draw_plan, draw_spec
from .world import Violation, World

SEEDS = 50
#: What counts as caught.  Anything else that is raised is a fault of the sabotage itself.
CAUGHT = (AssertionError, Violation)


class Mutant(NamedTuple):
    """`sabotage(original)` gives the method that takes the place of `owner.name`."""

    title: str
    owner: Any
    name: str
    sabotage: Callable[[Callable[..., Any]], Callable[..., Any]]
    bias: Callable[[World, Plan], None]


@contextmanager
def installed(mutant: Mutant) -> Iterator[None]:
    """The mutant is in force within the block.  Handler tables name methods themselves, so they are changed too."""
    original = getattr(mutant.owner, mutant.name)
    changed = mutant.sabotage(original)
    tables = [value for value in vars(_module(mutant.owner)).values() if isinstance(value, dict)]
    entries = [(table, key) for table in tables for key, value in table.items() if value is original]
    setattr(mutant.owner, mutant.name, changed)
    for table, key in entries:
        table[key] = changed
    try:
        yield
    finally:
        setattr(mutant.owner, mutant.name, original)
        for table, key in entries:
            table[key] = original


def _module(owner: Any) -> Any:
    return sys.modules[owner.__module__] if isinstance(owner, type) else owner


# -- weathers ---------------------------------------------------------------------------------------------------------


def calm(world: World, plan: Plan) -> None:
    """No fault but the one that the mutant needs."""
    network = plan.network
    network.drop = network.double = network.corrupt = network.straggle = network.replay = 0.0
    plan.agent_crash_us = plan.master_crash_us = plan.program_kill_us = plan.launcher_kill_us = 0
    plan.pause_us = plan.cut_us = plan.slow_us = plan.server_crash_at_us = plan.stop_at_us = plan.host_loss_us = 0
    plan.timeouts = plan.unwaited = plan.gone = plan.rejoins = 0.0
    plan.effect_crash = plan.linger = plan.store_unknown = plan.mischief = plan.stale_bells = plan.param_full = 0.0
    plan.overflow_clock, plan.rounds, plan.others = -1, 1, []


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


def offered(world: World, plan: Plan) -> None:
    """A job whose first values a program gives."""
    under("bsp", workers=3, net_straggle=0.5, program_kill_us=30_000)(world, plan)
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
    plan.clocks, plan.server_crash_at_us, plan.supervised = 40, world.draw(300_000, 1_500_000), False
    plan.shuffled_start, plan.think_us = False, (500, 20_000)


#: The quickest and most telling ones first.
MUTANTS: tuple[Mutant, ...] = (
    Mutant("server: forget repeats", RangeMachine, "_on_push", act.forget_repeats, under("asp", net_double=0.3, net_straggle=0.2)),
    Mutant("agent: reply before done_seq", Channel, "finish", act.reply_before_done, under("bsp")),
    Mutant("server: write into a lent array", Memory, "_in_use", act.write_into_lent, under("asp", net_lend=1.0, net_lent_us=(1_000, 60_000))),
    Mutant("agent: tick before the acks", Delivery, "pump", act.tick_before_the_acks, under("bsp", net_straggle=0.3)),
    Mutant("clock: close without the slowest", ClockMachine, "_done", act.close_without_the_slowest, under("bsp", workers=3)),
    Mutant("server: answer a pull before the close", RangeMachine, "_answer", act.answer_before_the_close, under("bsp")),
    Mutant("agent: act on an answered line", Channel, "_was_answered", act.answer_an_old_line_again, under("asp", agent_crash_us=100_000, effect_crash=0.02)),
    Mutant("agent: forget weights over a restart", Channel, "__init__", act.forget_earlier_weights, weighed),
    Mutant("server: forget repeats, BSP", RangeMachine, "_on_push", act.forget_repeats, under("bsp", net_double=0.3, net_straggle=0.2)),
    Mutant("server: ack what is not taken", RangeMachine, "_on_push", act.ack_what_is_not_taken, under("asp")),
    Mutant("server: answer a pull before the own push", RangeMachine, "_answer", act.answer_before_own_push, under("asp", net_straggle=0.3)),
    Mutant("server: close twice", RangeMachine, "_on_close", act.close_twice, under("bsp", net_double=0.3)),
    Mutant("server: sum dead generations", Staging, "plan", act.sum_dead_generations, under("bsp", program_kill_us=60_000)),
    Mutant("agent: one ack for all ranges", Scatter, "on_ack", act.one_ack_for_all, under("asp", net_drop=0.3)),
    Mutant("agent: never resend a push", Scatter, "resend", act.no_resend, under("bsp", net_drop=0.1)),
    Mutant("agent: push further ahead than ranges keep", Job, "takes_pushes_of", act.push_any_clock, narrow),
    Mutant("server: count a riding tick without its push", Hosted, "holds", act.count_a_tick_without_its_push, alone),
    Mutant("clock: count repeated ticks", ClockMachine, "_on_tick", act.count_repeated_ticks, under("bsp", net_double=0.3)),
    Mutant("server: lead for the dead", ServerMachine, "_on_map", act.lead_for_the_dead, dying),
    Mutant("codec: no checksum", codec, "crc32", act.no_checksum, under("asp", net_corrupt=0.3)),
    Mutant("server: no fence", RangeMachine, "_on_push", act.no_fence, under("asp", net_double=0.3, net_straggle=0.4, program_kill_us=60_000)),
    Mutant("server: take lower claims", RangeMachine, "_on_init", act.take_lower_claims, offered),
    Mutant("clock: a dead worker keeps its claim", ClockMachine, "_drop_claim_of", act.keep_a_claim_of_the_dead, offered),
    Mutant("clock: hear dead generations", ClockMachine, "_stream", act.hear_dead_generations, haunted),
    Mutant("master: follow any generation", decisions, "attach", act.follow_any_generation, under("asp", agent_crash_us=80_000, net_replay=0.3)),
    Mutant("master: begin a run for any question", decisions, "register", act.begin_for_any_question, belated),
    Mutant("master: answer before the store", Ledger, "advance", act.answer_before_the_store, unstable),
)  # fmt: skip

#: Rules that no run can break today, and why.
AIDS: tuple[tuple[str, str], ...] = (
    ("a range takes only the next push of a stream (prev == last)", "an agent has one push per stream under way; parts that are given up and come late are rare (unit tests)"),
    ("a restarted agent asks a range for its last push (LAST)", "it saves a push in vain: whose prev is too low is told the last one"),
    ("epochs of ranges", "with one copy no range ever changes its primary"),
    ("the order of sums by worker", "integers: every order gives the same sum; the unit tests of the server look at the bits"),
)


# -- the hunt ---------------------------------------------------------------------------------------------------------


class Caught(NamedTuple):
    seed: int
    how: str


def hunt(mutant: Mutant, seeds: int = SEEDS) -> Caught | None:
    """The first seed that catches the mutant."""
    with installed(mutant), registered():
        for seed in range(1, seeds + 1):
            world = World(seed, events_max=400_000)
            plan = draw_plan(world)
            mutant.bias(world, plan)
            try:
                Cluster(world, plan).run()
            except CAUGHT as error:
                return Caught(seed, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
    return None


def hunt_all(say: Callable[[str], None]) -> bool:
    """Every mutant; tells whether all were caught."""
    survivors = []
    for mutant in MUTANTS:
        began = time.monotonic()
        caught = hunt(mutant)
        seconds = time.monotonic() - began
        if caught is None:
            survivors.append(mutant.title)
            say(f"SURVIVED {mutant.title} ({SEEDS} seeds, {seconds:.1f} s)")
        else:
            say(f"caught   {mutant.title}: seed {caught.seed}, {seconds:.1f} s: {caught.how[:150]}")
    for rule, reason in AIDS:
        say(f"aid      {rule}: {reason}")
    say(f"{len(MUTANTS) - len(survivors)} of {len(MUTANTS)} mutants caught" + (f"; survivors: {survivors}" if survivors else ""))
    return not survivors
