"""The gate of each consistency model, by the arithmetic of `Consistency` and what the clock tells, under random schedules.

Workers know of the clock only what reached them, and words are delayed and lost.  Nobody reads beyond the slack, whoever
is slowest can always go on, and nobody waits for a worker that has left.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugml.core.clock import Consistency
from plugml.core.job import JobSpec
from plugml.wire import messages as m
from tests.scenario.kit import job
from tests.unit.test_server_clock import COUNT, Tower

SLACKS = (0, 1, 3, 1 << 30)


class Runner:
    """A worker as its agent sees it: `known` are slowest and closed as it was told last."""

    def __init__(self, number: int, gen: int = 1, clock: int = 0) -> None:
        self.number = number
        self.gen = gen
        self.clock = clock  # that it is in
        self.reads = False  # it has passed the gate of this clock
        self.known = (0, 0)
        self.inbox: list[m.Standing] = []


class Race:
    """Workers on one clock; each turn somebody hears, tries the gate, or ends its clock."""

    def __init__(self, model: str, workers: int, seed: int) -> None:
        self.model = Consistency.parse(model)
        self.tower = Tower(job(COUNT, workers=workers, consistency=model))
        self.draw = random.Random(seed)
        self.here = {number: Runner(number) for number in range(workers)}
        self.read: dict[int, int] = {}  # worker -> clock in which it has read last
        for number in range(workers):
            self.tell(self.tower.say(m.Join, worker=number, agent=f"a{number}.1"))

    def tell(self, found: list[Any]) -> None:
        """Half of the notices are lost; the others wait in line."""
        for to, message in found:
            number = int(to[1:].split(".")[0]) if to.startswith("a") else -1
            if isinstance(message, m.Standing) and number in self.here and self.draw.random() < 0.5:
                self.here[number].inbox.append(message)

    def hear(self, runner: Runner) -> None:
        """An agent takes what has come, or asks."""
        if runner.inbox:
            standing = runner.inbox.pop(self.draw.randrange(len(runner.inbox)))  # in any order
        else:
            standing = self.tower.say(m.StandingAsk, worker=runner.number, gen=runner.gen, agent=f"a{runner.number}.1")[-1][1]
        runner.known = (max(runner.known[0], standing.slowest), max(runner.known[1], standing.closed))

    def gate(self, runner: Runner) -> bool:
        slowest, closed = runner.known
        if slowest < self.model.slowest_needed(runner.clock) or closed < self.model.closed_needed(runner.clock):
            return False
        runner.reads = True
        self.on_read(runner)
        return True

    def on_read(self, runner: Runner) -> None:
        """Nobody passes the bound: all who take part have finished what this one may see."""
        assert self.model.slack is not None
        behind = min(other.clock for other in self.here.values())
        assert behind >= runner.clock - self.model.slack, f"worker {runner.number} reads in clock {runner.clock}, one is in {behind}"
        assert runner.clock > self.read.get(runner.number, -1)
        self.read[runner.number] = runner.clock

    def end_clock(self, runner: Runner) -> None:
        found = self.tower.tick(runner.clock, runner.number, runner.gen, agent=f"a{runner.number}.1")
        answers = [message for _, message in found if isinstance(message, m.Standing) and message.worker == runner.number]
        assert [answer.finished for answer in answers] == [runner.clock + 1]
        runner.clock += 1
        runner.reads = False
        self.tell(found)

    def turn(self, runner: Runner) -> None:
        if runner.reads:
            self.end_clock(runner)
        elif not self.gate(runner):
            self.hear(runner)

    def leave(self, runner: Runner, reason: str) -> None:
        del self.here[runner.number]
        self.tell(self.tower.say(m.Leave, runner.clock, reason, worker=runner.number, gen=runner.gen, agent=f"a{runner.number}.1"))

    def join(self, number: int, gen: int = 1) -> Runner:
        runner = self.here[number] = Runner(number, gen)
        found = self.tower.say(m.Join, worker=number, gen=gen, agent=f"a{number}.1")
        standing = next(message for _, message in found if isinstance(message, m.Standing) and message.worker == number)
        runner.clock = standing.finished
        return runner

    def run_to(self, clock: int) -> None:
        """All who are left reach the clock; the hang limit is far above what a fair draw needs."""
        for _ in range(400 * (clock + 5) * (len(self.here) + 1)):
            left = [runner for runner in self.here.values() if runner.clock < clock]
            if not left:
                return
            self.turn(self.draw.choice(left))
        raise AssertionError(f"somebody waits for ever: {[(r.number, r.clock, r.known) for r in self.here.values()]}")


@pytest.mark.parametrize("slack", SLACKS)
@given(workers=st.integers(1, 8), seed=st.integers(0, 1 << 30), turns=st.integers(0, 400))
@settings(max_examples=30, deadline=None)
def test_nobody_passes_the_bound_and_all_arrive(slack: int, workers: int, seed: int, turns: int) -> None:
    race = Race(f"ssp:{slack}", workers, seed)
    speeds = [race.draw.choice([1, 1, 1, 30]) for _ in range(workers)]
    for _ in range(turns):
        number = race.draw.choices(range(workers), speeds)[0]
        race.turn(race.here[number])
    race.run_to(max(runner.clock for runner in race.here.values()) + 3)


@pytest.mark.parametrize("model", ("bsp", *(f"ssp:{slack}" for slack in SLACKS)))
@given(seed=st.integers(0, 1 << 30))
@settings(max_examples=20, deadline=None)
def test_nobody_waits_for_one_that_said_bye(model: str, seed: int) -> None:
    """Workers end with a word, or are lost (shrink), one after the other, at any moment; the rest goes on."""
    race = Race(model, 6, seed)
    for reason in ("bye", "lost", "finished", "bye", "lost"):
        for _ in range(race.draw.randrange(60)):
            race.turn(race.draw.choice(list(race.here.values())))
        race.leave(race.draw.choice(list(race.here.values())), reason)
        race.run_to(max(runner.clock for runner in race.here.values()) + 2)
    assert len(race.here) == 1


@pytest.mark.parametrize("slack", SLACKS)
def test_with_slack_s_a_worker_gets_s_clocks_ahead_and_no_further(slack: int) -> None:
    """The bound is reached, not only kept: worker 1 stands still in clock 0."""
    race = Race(f"ssp:{slack}", 2, 1)
    runner = race.here[0]
    for _ in range(200):
        race.turn(runner)
    if slack > 99:
        assert runner.clock > 60
    else:
        assert runner.clock == slack + 1 and not runner.reads
        race.leave(race.here[1], "bye")
        race.run_to(slack + 20)


@pytest.mark.parametrize("model", ("bsp", "ssp:0", "ssp:3"))
@given(seed=st.integers(0, 1 << 30))
@settings(max_examples=30, deadline=None)
def test_workers_that_come_and_go_keep_the_bound(model: str, seed: int) -> None:
    """New workers begin with the slowest (SSP) or in the next clock (BSP); restarted ones where they stood."""
    race = Race(model, 3, seed)
    gens = dict.fromkeys(range(8), 1)
    for _ in range(25):
        for _ in range(race.draw.randrange(30)):
            race.turn(race.draw.choice(list(race.here.values())))
        number = race.draw.randrange(8)
        if number not in race.here:
            gens[number] += 1
            clocks = [runner.clock for runner in race.here.values()]
            runner = race.join(number, gens[number])
            stood = race.tower.clock.members.rows[number].first
            assert runner.clock == stood
            if model == "bsp":
                assert runner.clock >= min(clocks) + 1  # the clock that the others are in goes on without it
            else:
                assert runner.clock >= min(clocks)
            race.read.pop(number, None)
        elif len(race.here) > 1:
            if race.draw.random() < 0.5:
                race.leave(race.here[number], "lost")
            else:  # restarted
                stood = race.here[number].clock
                gens[number] += 1
                assert race.join(number, gens[number]).clock == stood
                race.read.pop(number, None)
    race.run_to(max(runner.clock for runner in race.here.values()) + 2)


def test_a_newcomer_begins_with_the_slowest_or_in_the_next_clock() -> None:
    for model, first in (("ssp:0", 4), ("ssp:3", 4), ("asp", 4), ("bsp", 5)):
        tower = Tower(job(COUNT, workers=2, consistency=model))
        for clock in range(4):
            tower.tick(clock, 0)
            tower.tick(clock, 1)
        found = tower.say(m.Join, worker=7)
        assert found[-1][1].finished == first, model
        assert tower.clock.members.rows[7].first == first


def test_a_close_waits_for_a_newcomer_from_its_first_clock_on() -> None:
    tower = Tower(job(COUNT, workers=1))
    tower.say(m.Join, worker=3)
    assert tower.clock.members.rows[3].first == 1
    tower.tick(0)
    assert tower.clock.closed == 1
    tower.tick(1)
    assert tower.clock.closed == 1
    found = tower.tick(1, 3)
    assert [message.members for _, message in found if isinstance(message, m.Close)][0] == ((0, 1), (3, 1))


@pytest.mark.parametrize("model", ("bsp", "ssp:0"))
def test_after_a_shrink_the_mean_divides_by_those_who_are_left(model: str) -> None:
    spec: JobSpec = replace(job(COUNT, workers=3, consistency=model), on_worker_loss="shrink")
    tower = Tower(spec)
    tower.tick(0, 0, weight=2.0)
    tower.tick(0, 1, weight=3.0)
    for _ in range(2):  # the first one and, behind it, the newest
        tower.ack_rosters()
    found = tower.say(m.Leave, 0, "lost", worker=2)
    closes = [message for _, message in found if isinstance(message, m.Close)]
    assert [close.totals for close in closes[:1]] == ([((0, 5.0),)] if model == "bsp" else [])
    assert tower.clock.members.slowest == 1 and tower.clock.members.count == 2
    rosters = [message for _, message in found if isinstance(message, m.Roster)]
    assert rosters[-1].members[-1] == (2, rosters[-1].members[-1][1], 0, 0)
