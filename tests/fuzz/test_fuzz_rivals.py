"""Several masters in bad weather: never two that write in one term, never a term that falls, and always one in the end."""

from __future__ import annotations

import os
from typing import Any

import pytest

from plugml.master.leadership import Leadership, Word
from plugml.master.ledger import Ledger
from plugml.master.rival import RivalMaster
from tests.fuzz.rivals_world import LIMITS, SECOND, Violation, World

SEEDS = int(os.environ.get("PLUGML_SEEDS", "200"))
STORM_US = 12 * SECOND
#: Everybody sees again: one dead leader's time, a few beats, and a term below the state's is noticed once.
LEADS_US = 3 * LIMITS.leader_dead_us
SETTLED_US = 3 * len("012") * LIMITS.suspect_us
ATTACHED_US = 10 * SECOND


def story(seed: int, make: Any = RivalMaster) -> World:
    world = World(seed, make)
    world.storm(STORM_US)
    world.heal()
    slow = 2 if world.skewed else 1
    if not world.run_until(lambda: bool(world.leader()), slow * LEADS_US):
        raise Violation("nobody leads")
    if not world.run_until(world.settled, slow * SETTLED_US):
        raise Violation("nodes do not find the leader")
    agent = world.agent.machine
    attached = agent.attached
    if not world.run_until(lambda: agent.attached >= attached + 5, ATTACHED_US):
        raise Violation(f"questions are lost: job {agent.job}, {agent.attached - attached} of 5 attachments")
    return world


@pytest.mark.parametrize("block", range(10))
def test_one_leads_and_no_question_is_lost(block: int) -> None:
    for seed in range(block, SEEDS, 10):
        try:
            story(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_the_weather_brings_everything_about() -> None:
    """Otherwise the stories would prove nothing."""
    events: dict[str, int] = {}
    terms = writes = gens = 0
    worlds = [story(seed) for seed in range(60)]
    for world in worlds:
        terms = max(terms, world.spoken)
        writes += world.store.writes
        gens += world.agent.machine.attached
        for _, _, log in world.logs:
            events[log.event] = events.get(log.event, 0) + 1
    assert {"leads", "follows", "deposed", "state_opened", "store_unsure", "store_well"} <= set(events), events
    assert any(log.fields["why"].startswith("the state was written in term") for world in worlds for _, _, log in world.logs if log.event == "deposed")
    assert terms >= 5 and writes > 1_000 and gens > 300


def test_one_seed_is_one_story() -> None:
    first, second = story(7), story(7)
    assert first.logs == second.logs and first.store.values == second.store.values


# -- the checks themselves: a rule left out is found


def caught(monkeypatch: pytest.MonkeyPatch, match: str) -> None:
    with pytest.raises(AssertionError, match=match):
        for seed in range(200):
            story(seed)


def test_a_claim_that_does_not_raise_the_term_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def claim(self: Any, now_us: int) -> Any:
        return self._write(Word(self.name, self.writer, max(1, self.term), self.endpoint, 0), now_us)

    monkeypatch.setattr(Leadership, "_claim", claim)
    caught(monkeypatch, "both write in term")


def test_a_leader_that_never_gives_up_by_itself_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def on_time(self: Any, now_us: int, real: Any = Leadership.on_time) -> Any:
        self._confirmed_us = now_us
        return real(self, now_us)

    monkeypatch.setattr(Leadership, "on_time", on_time)
    caught(monkeypatch, "speaks as the leader")


def test_a_ledger_that_overwrites_a_higher_term_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def contradicted(self: Any, done: Any) -> Any:
        self._settle()
        self.version = done.version
        from plugml.master.catalog import unpack
        from plugml.master.ledger import Released

        return Released([self._fly(done.version, unpack(done.value)._replace(term=self.term, writer=self.writer))], [])

    monkeypatch.setattr(Ledger, "_contradicted", contradicted)
    caught(monkeypatch, "term falls")


def test_an_unknown_beat_that_counts_as_stored_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def unsure(self: Any, flying: Any, done: Any, now_us: int, real: Any = Leadership._unsure) -> Any:
        self._confirmed_us = now_us
        return real(self, flying, done, now_us)

    monkeypatch.setattr(Leadership, "_unsure", unsure)
    caught(monkeypatch, "speaks as the leader")
