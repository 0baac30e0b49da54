"""The rules of copies and masters, broken one by one: `docs/internals.md` 4d and 4e."""

from __future__ import annotations

from plugml.master import decisions, orders, seats, words
from plugml.master.catalog import Seat
from plugml.master.leadership import Leadership
from plugml.master.ledger import Ledger
from plugml.master.machine import MasterMachine
from plugml.master.membership import Membership
from plugml.master.mending import _Work
from plugml.server.clock import ClockMachine
from plugml.server.hosted import Hosted
from plugml.server.node import ServerMachine
from plugml.server.range import RangeMachine
from plugml.server.replica import Replica
from plugml.server.replica_follow import Follow
from plugml.server.replica_lead import Lead
from plugml.server.replica_learn import Learn

from . import sabotage_copies as act
from . import sabotage_masters as rule
from . import stories
from .mutant import Mutant
from .weathers_copies import copied, cut, dying, mixed, ruled

MUTANTS_OF_COPIES: tuple[Mutant, ...] = (
    # -- primary
    Mutant("primary: commit at once", Lead, "commit_point", act.commit_at_once, dying()),
    Mutant("primary: wait for one copy of three", Lead, "commit_point", act.wait_for_one_copy, mixed(copies=3, servers=4)),
    Mutant("primary: any number of copies is enough", Lead, "__init__", act.any_number_is_enough, dying(min_insync=2)),
    Mutant("primary: believe that copies are full", Lead, "__init__", act.believe_in_full_copies, mixed()),
    Mutant("primary: learners count when the map says so", Lead, "on_held", act.count_learners_by_the_map, mixed()),
    Mutant("primary: add a learner before all is known to be committed", Lead, "__init__", act.add_a_learner_early, mixed(min_insync=2)),
    Mutant("primary: add an empty learner", Lead, "on_copy_ask", act.add_an_empty_learner, dying()),
    Mutant("primary: go on without the slow", Lead, "_remind", act.go_on_without_the_slow, cut(behind_us_max=200_000, cut_us=50_000)),
    Mutant("primary: send once", Lead, "_remind", act.send_once, mixed(net_drop=0.1)),
    Mutant("primary: sync nobody", Lead, "_sync", act.sync_nobody, dying(whole=True)),
    Mutant("primary: stamp a copy late", Lead, "on_copy_ask", act.stamp_the_copy_late, dying("bsp")),
    Mutant("primary: keep leading", Replica, "_step_down", act.keep_leading, dying()),
    Mutant("primary: forget streams at promotion", Replica, "_take_over", act.forget_streams_at_promotion, dying()),
    # -- backup
    Mutant("backup: take gaps", Follow, "on_replicate", act.take_gaps, mixed()),
    Mutant("backup: say too much", Follow, "on_replicate", act.say_too_much, mixed()),
    Mutant("backup: a Sync cuts again", Follow, "on_sync", act.cut_again, mixed(net_double=0.3)),
    Mutant("backup: a Sync cuts what both hold", Follow, "on_sync", act.cut_all, mixed(copies=3, servers=4, delay_us=(20, 20_000))),
    Mutant("backup: keep what was never committed", Follow, "on_sync", act.keep_what_was_never_committed, cut()),
    Mutant("backup: take entries before the Sync", Follow, "__init__", act.take_before_the_sync, cut()),
    Mutant("backup: answer too", RangeMachine, "apply", act.backups_answer, copied()),
    # -- learner
    Mutant("learner: a copy without streams", RangeMachine, "load", act.copy_without_streams, dying()),
    Mutant("learner: a copy without staged pushes", RangeMachine, "load", act.copy_without_staged, dying("bsp")),
    Mutant("learner: keep an old copy", Hosted, "_replica", act.keep_an_old_copy, mixed(copies=3, servers=4)),
    Mutant("learner: begin further on", Learn, "on_replicate", act.begin_further_on, mixed()),
    # -- masters
    Mutant("master: lead unconfirmed", Leadership, "on_time", rule.lead_unconfirmed, ruled()),
    Mutant("master: claim the same term", Leadership, "_claim", rule.claim_the_same_term, ruled()),
    Mutant("master: never take over", Leadership, "_saw", rule.never_take_over, ruled()),
    Mutant("master: unknown is stored", Ledger, "on_done", rule.unknown_is_stored, ruled(store_unknown=0.3)),
    Mutant("master: unknown is not stored", Ledger, "on_done", rule.unknown_is_not_stored, ruled(store_unknown=0.3)),
    Mutant("master: blame at once", Membership, "silent", rule.blame_at_once, ruled(server_crash_us=300_000, supervised=False)),
    Mutant("master: wait for nobody", words, "waits_for", rule.wait_for_nobody, copied(copies=1, servers=2, pause_us=300_000, long_pause=True, lonely=True, clocks=60)),
    Mutant("master: set all aside", decisions, "held_alone", rule.set_all_aside, copied(copies=1, servers=2, pause_us=300_000, long_pause=True, lonely=True, clocks=60)),
    Mutant("server: end at once when told to", ServerMachine, "_retire", rule.end_at_once, copied(copies=1, servers=3, retire_us=300_000)),
    Mutant("master: who ends holds nothing", orders, "retire", rule.nothing_is_held, copied(copies=1, servers=4, retire_us=60_000, net_straggle=0.5, net_straggle_us=(50_000, 600_000))),
    Mutant("master: blame after sleep", Membership, "forgive", rule.blame_after_sleep, copied(copies=1, servers=1, master_pause_us=500_000, clocks=60)),
    Mutant("master: keep the dead", decisions, "without", rule.keep_the_dead, dying()),
    Mutant("master: promote the learner", decisions, "without", rule.promote_the_learner, dying(careful=False)),
    Mutant("master: change seats without a new epoch", Seat, "next", rule.same_epoch, dying()),
    Mutant("master: drain at once", seats, "settled", rule.drain_at_once, copied(order_us=200_000, servers=4)),
    Mutant("master: never refill", _Work, "short", rule.never_refill, dying(whole=True)),
    Mutant("master: two copies on one server", _Work, "named", rule.two_on_one_server, dying()),
    # -- in rarer weather
    Mutant("clock: forget closes at promotion", ClockMachine, "lead", act.forget_closes_at_promotion, cut(delay_us=(20, 40_000))),
    Mutant("server: hear copies of any epoch", ServerMachine, "_on_copy", act.hear_any_epoch, mixed()),
    Mutant("backup: no seal", ServerMachine, "_on_copy", act.no_seal, cut(copies=3, servers=4)),
    Mutant("backup: apply at once", Follow, "on_replicate", act.apply_at_once, cut(copies=3, servers=4)),
    Mutant("master: blame the majority", MasterMachine, "_strand", rule.blame_the_majority, cut(net_double=0.3, net_straggle=0.4, net_straggle_us=(50_000, 900_000))),
    Mutant("master: change seats of any epoch", decisions, "reseated", rule.change_seats_of_any_epoch, mixed(copies=3, servers=4, delay_us=(20, 40_000), server_crash_us=80_000)),
    Mutant("master: add who is not needed", seats, "_added", rule.add_who_is_not_needed, copied(copies=2, servers=4, order_us=50_000, net_double=0.3, net_straggle=0.3)),
    # -- that chance shows too rarely
    Mutant("primary: serve before all is committed", Replica, "_lead", act.serve_at_once, story=stories.a_new_primary_is_asked_before_all_is_committed),
    Mutant("server: answer whoever has seen a newer map", ServerMachine, "_on_range", act.ignore_tokens, story=stories.a_deposed_primary_is_asked),
)  # fmt: skip

#: Rules of copies that no run can break today, and why.
AIDS_OF_COPIES: tuple[tuple[str, str], ...] = (
    ("the log keeps what a learner lacks", "one that lacks what was forgotten is silent, is dropped as too slow, and begins again"),
    ("a slow backup is dropped", "it bounds a wait: in the simulator every cut is healed, and whoever is silent for long is dead"),
    ("a write of the state that meets a higher term ends the reign", "a leader stops by its own clock before another one leads, and here all clocks run at one rate"),
    ("epochs on what agents send", "a quick no; what makes it safe are the seal and the token"),
    ("what is under way is looked at before more is appended", "what comes twice into the log is passed over when it is applied"),
    ("only the primary or the copy itself asks for a change of seats", "nobody else does"),
    ("digests are compared", "copies never differ here without another rule broken: the simulator compares them itself"),
)
