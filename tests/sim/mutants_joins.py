"""Sabotage of what holds for workers that join a running job: their numbers, where they begin, who waits for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from plugml.agent.desk import Desk
from plugml.master import catalog, decisions
from plugml.server.clock import ClockMachine
from plugml.server.members import Member, Members

from .mutant import Mutant
from .weathers import joined

Original = Callable[..., Any]


def begin_at_the_first_clock(original: Original) -> Original:
    """The newcomer is to do all clocks from the first one on."""

    def join(self: Members, worker: int, gen: int, agent: str, first: int) -> Member:
        self.slowest = 0 if worker not in self.rows else self.slowest
        member: Member = original(self, worker, gen, agent, 0 if worker not in self.rows else first)
        return member

    return join


def close_without_those_who_joined(original: Original) -> Original:
    """The gate waits for the workers that the job began with."""

    def done(self: ClockMachine, clock: int) -> bool:
        own = [row.finished for row in self.members.rows.values() if row.here and row.worker < self._spec.workers]
        return min(own) > clock if own else bool(original(self, clock))

    return done


def give_numbers_twice(original: Original) -> Original:
    """Two launchers that join get the same numbers."""

    def more(state: Any, sender: str, ask: Any, *rest: Any) -> Any:
        job = state.job_named(ask.name)
        joins = () if job is None else job.joins
        if joins and ask.workers <= joins[0].workers:
            ask = ask._replace(launcher=joins[0].launcher)
        return original(state, sender, ask, *rest)

    return more


def a_new_number_for_each_question(original: Original) -> Original:
    """The launcher is not known again: what is asked twice is given twice."""

    def more(state: Any, sender: str, ask: Any, *rest: Any) -> Any:
        return original(state, sender, ask._replace(launcher=f"{ask.launcher}-{state.token}"), *rest)

    return more


def forget_joins(original: Original) -> Original:
    """They are not stored with the job: the next master knows nothing of them."""
    return lambda job: original(job._replace(joins=()))


def answer_before_the_map(original: Original) -> Original:
    """The launcher is told its numbers while the agent's map knows nothing of them."""

    def with_map(self: Desk, ticket: Any, now_us: int) -> Any:
        ticket.token = 0
        return original(self, ticket, now_us)

    return with_map


MUTANTS_OF_JOINS: tuple[Mutant, ...] = (
    Mutant("clock: a newcomer begins at the first clock", Members, "join", begin_at_the_first_clock, joined("bsp", 1)),
    Mutant("clock: close without those who joined", ClockMachine, "_done", close_without_those_who_joined, joined("bsp", 1)),
    Mutant("master: give numbers twice", decisions, "more", give_numbers_twice, joined("asp", 1, 1)),
    Mutant("master: a new number for each question", decisions, "more", a_new_number_for_each_question, joined("asp", 1, 1, agent_crash_us=100_000, net_straggle=0.3)),
    Mutant("master: forget joins", catalog, "_pack_job", forget_joins, joined("asp", 1, master_crash_us=200_000, program_kill_us=60_000)),
    Mutant("agent: answer a join before the map", Desk, "_with_map", answer_before_the_map, joined("asp", 1, net_straggle=0.3)),
)
