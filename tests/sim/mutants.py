"""Sabotage the rules one by one.  Each mutant must be caught within some seeds under a weather that favours it.

A mutant is a small change of one method, a bias of the plan, and what it breaks.  A rule that no run can catch is kept
in AIDS with the reason: it helps, or it is for what is still to come; it carries no safety today.  Whoever adds a rule
adds its mutant here; a survivor is a missing fault or a missing check.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from plugml.agent import operation, sparse
from plugml.agent.acceptance import Acceptance
from plugml.agent.channel import Channel
from plugml.agent.delivery import Delivery
from plugml.agent.plan import Gate
from plugml.agent.programs import Programs
from plugml.agent.router import Job
from plugml.agent.sparse import Wanted
from plugml.agent.transfer import Scatter
from plugml.core.errors import WorldError
from plugml.core.job import JobSpec
from plugml.master import decisions
from plugml.master.ledger import Ledger
from plugml.server.buckets import Buckets
from plugml.server.claims import Claims
from plugml.server.clock import ClockMachine
from plugml.server.contents import Contents
from plugml.server.hosted import Hosted
from plugml.server.memory import Memory
from plugml.server.node import ServerMachine
from plugml.server.range import RangeMachine
from plugml.server.rownames import Names
from plugml.server.rows import Rows
from plugml.server.staging import Staging
from plugml.server.worklist import Worklist
from plugml.shm_protocol import kept as kept_heads
from plugml.shm_protocol import numbers, reading
from plugml.wire import codec

from . import sabotage as act
from . import sabotage_channel as talk
from . import sabotage_rows as rows_act
from .mutant import Mutant, installed
from .mutants_copies import AIDS_OF_COPIES, MUTANTS_OF_COPIES
from .mutants_joins import MUTANTS_OF_JOINS
from .mutants_saves import MUTANTS_OF_SAVES
from .ordered import registered
from .repeats import Twice
from .summing import Summed
from .weather import draw_plan
from .weathers import (
    accepting,
    alone,
    belated,
    dying,
    fed,
    haunted,
    kept,
    narrow,
    of_fractions,
    offered,
    rows,
    rows_like,
    stopping,
    summed,
    under,
    unstable,
    weighed,
)  # fmt: skip
from .world import Violation, World

SEEDS = 50
#: What counts as caught.  Anything else that is raised is a fault of the sabotage itself.
CAUGHT = (AssertionError, Violation, WorldError)


def has_keys(spec: JobSpec) -> bool:
    return any(table.index_name == "str" and table.name == "tally" for table in spec.tables if table.kind == "sparse")


def has_mean_rows(spec: JobSpec) -> bool:
    return any(spec.combine_of(table) == "mean" for table in spec.tables if table.kind == "sparse")


def has_rows_with(*optimizers: str) -> Callable[[JobSpec], bool]:
    return lambda spec: any(table.optimizer in optimizers for table in spec.tables if table.kind == "sparse")


def has_mixed_storage(spec: JobSpec) -> bool:
    return {bool(table.storage) for table in spec.tables if table.kind == "dense"} == {False, True}


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
    Mutant("server: close twice", ServerMachine, "_on_close", act.close_twice, under("bsp", net_double=0.3)),
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
    Mutant("clock: a dead worker keeps its claim", Claims, "drop", act.keep_a_claim_of_the_dead, offered),
    Mutant("clock: hear dead generations", ClockMachine, "_stream", act.hear_dead_generations, haunted),
    Mutant("master: follow any generation", decisions, "attach", act.follow_any_generation, under("asp", agent_crash_us=80_000, net_replay=0.3)),
    Mutant("master: begin a run for any question", decisions, "register", act.begin_for_any_question, belated),
    Mutant("master: answer before the store", Ledger, "advance", act.answer_before_the_store, unstable),
    # -- rows
    Mutant("agent: number pushes without gaps", Scatter, "on_ack", rows_act.number_without_gaps, rows("asp", "tally", servers=2)),
    Mutant("agent: of twins the first row counts", sparse, "add_up", rows_act.first_of_twins, rows("asp", "tally")),
    Mutant("agent: rows in any order", Wanted, "ask", rows_act.any_order, rows("asp", "tally")),
    Mutant("agent: weigh dense tables alone", Channel, "_weigh", talk.weigh_dense_only, rows_like("bsp", has_mean_rows)),
    Mutant("agent: forget weights of rows over a restart", Channel, "__init__", talk.forget_sums_of_rows, rows_like("bsp", has_mean_rows, effect_crash=0.03, agent_crash_us=100_000)),
    Mutant("agent: keys with one hash, in one request", reading.Reader, "_check_keys", rows_act.forget_keys, rows_like("asp", has_keys, mischief=0.5)),
    Mutant("server: keys with one hash are one row", Names, "clash", rows_act.any_key, rows_like("asp", has_keys, mischief=0.5)),
    Mutant("server: reads create rows", Buckets, "show", rows_act.read_creates, rows("asp", "tally")),
    Mutant("server: a scan shows what waits for its close", Rows, "scan", rows_act.show_what_waits, rows("bsp", "tally", talk_us=20_000)),
    Mutant("server: a scan begins anew", Rows, "scan", rows_act.scan_from_the_start, rows("asp", "tally")),
    Mutant("server: snapshots of blocks are live", Contents, "show_kept", rows_act.live_blocks, kept),
    Mutant("server: snapshots of rows are live", Contents, "scan", rows_act.live_rows, kept),
    Mutant("server: rows forget their state", Rows, "_read_state", rows_act.forget_state, rows_like("bsp", has_rows_with("momentum", "nesterov"))),
    Mutant("server: rows count their steps together", Rows, "_read_steps", rows_act.count_together, rows_like("bsp", has_rows_with("adam", "adamw"))),
    Mutant("server: a close steps all rows", Buckets, "_combined", rows_act.step_unpushed_rows, rows_like("bsp", has_rows_with("assign", "fold31", "adamw"))),
    Mutant("channel: convert only what differs", numbers, "store", rows_act.convert_only_what_differs, rows_like("asp", has_mixed_storage)),
    Mutant("server: sum pushes as they come", Staging, "_of", rows_act.by_arrival, of_fractions, Twice),
    # -- sums of several workers
    Mutant("server: what is partly seen is acked", RangeMachine, "_not_next", rows_act.ack_what_is_partly_seen, summed, Summed),
    Mutant("server: count a component again", RangeMachine, "_on_push", rows_act.count_a_component_again, summed, Summed),
    # -- accepted requests
    Mutant("agent: forget what was accepted", Programs, "_take_over", talk.forget_what_was_accepted, accepting(effect_crash=0.01)),
    Mutant("agent: drop the copy with the answer", Acceptance, "_give", talk.drop_at_once, accepting(effect_crash=0.01)),
    Mutant("agent: carry out twice what was accepted", Acceptance, "drop_copy", talk.never_drop, accepting("bsp", effect_crash=0.02, timeouts=1.0, unwaited=0.3)),
    Mutant("agent: turn round what was accepted", Programs, "_take_over", talk.turn_round_what_was_accepted, accepting(effect_crash=0.02, net_straggle=0.2)),
    Mutant("agent: a pull waits for nothing accepted", Acceptance, "held_back", talk.wait_for_nobody, accepting(net_straggle=0.3)),
    Mutant("agent: lose the tick that came late", Acceptance, "_give", talk.lose_the_late_tick, accepting("bsp", timeouts=1.0, net_straggle=0.3)),
    Mutant("agent: an orphan keeps its time limit", operation.orphan, "abandon", talk.wait_for_an_orphan, accepting("bsp", workers=3, timeouts=1.0, program_kill_us=50_000, net_straggle=0.3)),
    Mutant("channel: lose a kept text that outgrew its slot", kept_heads, "read_kept", talk.forget_the_head, accepting(texts=1.0)),
    # -- staleness, stop rules, input
    Mutant("agent: SSP lets one clock more pass", Gate, "slowest", talk.one_clock_more, under("ssp:1", workers=3, think_us=(100, 50_000))),
    Mutant("agent: reply before the clock has counted", Delivery, "carried", talk.answer_before_the_standing, stopping),
    Mutant("agent: never say stop=1", Job, "ends_before", talk.never_say_stop, stopping),
    Mutant("clock: decide the end anew", ClockMachine, "_on_stop_ask", talk.decide_anew, stopping),
    Mutant("clock: end where others have been", ClockMachine, "_on_stop_ask", talk.stop_behind, stopping),
    Mutant("clock: bye keeps holding", ClockMachine, "_on_leave", talk.bye_holds, under("bsp", workers=3, ends_early=1.0)),
    Mutant("clock: a lost piece is done", Worklist, "lose", talk.lose_the_piece, fed(program_kill_us=50_000)),
    Mutant("agent: forget the piece that had no room", Channel, "__init__", talk.forget_the_piece, fed(param_full=0.2, effect_crash=0.02)),
    Mutant("agent: what had no room is done at bye", Delivery, "_leave", talk.done_at_bye, fed(param_full=0.15, ends_early=1.0)),
    Mutant("clock: another piece for a repeat", Worklist, "ask", talk.another_piece_for_a_repeat, fed(net_double=0.3)),
    Mutant("clock: a lost worker's piece is done", ClockMachine, "_on_leave", talk.finish_at_the_question, fed(program_kill_us=50_000, gone=1.0)),
    Mutant("clock: input for dead incarnations", ClockMachine, "_on_next_ask", talk.give_to_the_dead, fed(net_straggle=0.3, net_straggle_us=(100_000, 900_000), net_double=0.4, program_kill_us=60_000)),
    *MUTANTS_OF_COPIES,
    *MUTANTS_OF_SAVES, *MUTANTS_OF_JOINS,
)  # fmt: skip

#: Rules that no run can break today, and why.
AIDS: tuple[tuple[str, str], ...] = (
    ("a range takes only the next push of a stream (prev == last)", "an agent has one push per stream under way; parts that are given up and come late are rare (unit tests)"),
    ("a restarted agent asks a range for its last push (LAST)", "it saves a push in vain: whose prev is too low is told the last one"),
    ("the clock refuses ticks beyond the stop clock", "whoever finishes the clock before it is told so with the Standing that counts it; an agent that has not heard cannot be further"),
    ("a sum also weighs what its workers weigh that did not tick", "the sender of sums speaks for workers that all end their clocks (unit tests)"),
    ("twins", "a warning: nothing depends on it (unit tests)"),
    ("staleness", "counted and told, never acted upon: the gate is what bounds it (unit tests)"),
)


# -- the hunt ---------------------------------------------------------------------------------------------------------


class Caught(NamedTuple):
    seed: int  # 0 = by its story
    how: str


def hunt(mutant: Mutant, seeds: int = SEEDS) -> Caught | None:
    """The first seed, or the story, that catches the mutant: the very same run is clean without it."""
    if mutant.story is not None:
        with installed(mutant):
            how = _told(mutant.story)
        if how and (honest := _told(mutant.story)):
            raise Violation(f"{mutant.title}: its story fails without the sabotage: {honest}")
        return Caught(0, f"{mutant.story.__name__}: {how}") if how else None
    for seed in range(1, seeds + 1):
        with installed(mutant):
            how = _run(mutant, seed)
        if how:
            honest = _run(mutant, seed)
            if honest:
                raise Violation(f"{mutant.title}: seed {seed} fails without the sabotage: {honest}")
            return Caught(seed, how)
    return None


def _told(story: Callable[[], None]) -> str:
    """What was seen to be wrong, "" = nothing."""
    try:
        story()
    except AssertionError as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return ""


def _run(mutant: Mutant, seed: int) -> str:
    """What was seen to be wrong, "" = nothing."""
    world = World(seed, events_max=400_000)
    with registered():
        plan = draw_plan(world)
        mutant.bias(world, plan)
        try:
            mutant.cluster(world, plan).run()
        except CAUGHT as error:
            return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return ""


def hunt_all(say: Callable[[str], None]) -> bool:
    """Every mutant; tells whether all were caught."""
    survivors = []
    for mutant in MUTANTS:
        began = time.monotonic()
        try:
            caught = hunt(mutant)
        except Violation as error:  # a finding of its own: go on with the others
            survivors.append(mutant.title)
            say(f"DIRTY    {error}")
            continue
        except (AttributeError, TypeError) as error:  # what it spoils has another shape by now
            survivors.append(mutant.title)
            say(f"UNFIT    {mutant.title}: {error}")
            continue
        seconds = time.monotonic() - began
        if caught is None:
            survivors.append(mutant.title)
            say(f"SURVIVED {mutant.title} ({SEEDS} seeds, {seconds:.1f} s)")
        else:
            by = f"seed {caught.seed}" if caught.seed else "story"
            say(f"caught   {mutant.title}: {by}, {seconds:.1f} s: {caught.how[:150]}")
    for rule, reason in AIDS + AIDS_OF_COPIES:
        say(f"aid      {rule}: {reason}")
    say(f"{len(MUTANTS) - len(survivors)} of {len(MUTANTS)} mutants caught" + (f"; survivors: {survivors}" if survivors else ""))
    return not survivors
