"""What the clock decides beside closes: where all workers end, who gets which piece of input, who is told of a twin."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugml.core.errors import Code
from plugml.core.job import JobSpec
from plugml.wire import messages as m
from tests.scenario.kit import Box, job
from tests.unit.test_server_clock import COUNT, Tower, kinds, refused

MODELS = ("bsp", "ssp:0", "ssp:2", "asp")


def spec_of(workers: int = 1, consistency: str = "bsp", **more: int) -> JobSpec:
    return replace(job(COUNT, workers=workers, consistency=consistency), **more)  # type: ignore[arg-type]


def stop(tower: Tower, reason: str = "patience", agent: str = "a9.1") -> list[Any]:
    return tower.hear(agent, m.StopAsk(1, 1, 1, reason))


def ends_at(found: list[Any]) -> set[int]:
    return {message.stop_clock for _, message in found if isinstance(message, m.Standing)}


# -- stop


def test_nothing_stops_until_somebody_asks() -> None:
    tower = Tower(spec_of())
    assert ends_at(tower.tick(0)) == {-1} and ends_at(tower.tick(1)) == {-1}


@pytest.mark.parametrize("model", MODELS)
def test_a_stop_clock_of_the_job_is_known_from_the_start(model: str) -> None:
    tower = Tower(spec_of(consistency=model, stop_clock=2))
    assert ends_at(tower.say(m.Join)) == {2}
    for clock in (0, 1):
        assert "Refuse" not in kinds(tower.tick(clock))
    assert refused(tower.tick(2)) == "STOP"
    assert kinds(tower.tick(1)) == ["Standing"]  # a repeat counts as ever
    assert tower.clock.members.rows[0].finished == 2


def test_a_rule_ends_all_behind_the_farthest_clock_that_anybody_is_in() -> None:
    tower = Tower(spec_of(3, "asp"))
    for worker in range(3):
        tower.say(m.Join, worker=worker, agent=f"a{worker}.1")
    for clock in range(5):
        tower.tick(clock, 1, agent="a1.1")
    found = stop(tower, agent="a0.1")
    assert [to for to, _ in found] == ["a0.1", "a1.1", "a2.1"] and ends_at(found) == {6}
    assert [log.fields["reason"] for log in tower.logs] == ["patience"] and tower.logs[0].fields["clock"] == 6
    assert "Refuse" not in kinds(tower.tick(5, 1, agent="a1.1"))
    assert refused(tower.tick(6, 1, agent="a1.1")) == "STOP"
    for clock in range(6):
        tower.tick(clock, 0)
    assert refused(tower.tick(6, 0)) == "STOP"


def test_the_first_rule_decides() -> None:
    tower = Tower(spec_of(2, "asp"))
    assert ends_at(stop(tower)) == {1}
    tower.tick(0, 0)
    for reason in ("max_clocks", "patience"):
        found = stop(tower, reason)
        assert kinds(found) == ["Standing"] and ends_at(found) == {1}
    assert len(tower.logs) == 1


@pytest.mark.parametrize(("planned", "ticked", "found"), ((10, 3, 4), (4, 3, 4), (3, 3, 3)))
def test_a_rule_only_brings_the_planned_end_nearer(planned: int, ticked: int, found: int) -> None:
    tower = Tower(spec_of(stop_clock=planned))
    for clock in range(ticked):
        tower.tick(clock)
    assert ends_at(stop(tower)) == {found}
    assert ends_at(stop(tower)) == {found}


def test_nobody_is_there_when_the_rule_fires() -> None:
    tower = Tower(spec_of())
    tower.tick(0)
    tower.say(m.Leave, 1, "bye")
    assert ends_at(stop(tower)) == {2}


def test_a_farther_worker_that_has_left_does_not_count() -> None:
    tower = Tower(spec_of(2, "asp"))
    for clock in range(50):
        tower.tick(clock, 1)
    tower.say(m.Leave, 50, "bye", worker=1)
    assert ends_at(stop(tower)) == {1}
    assert kinds(tower.say(m.Leave, 50, "bye", worker=1)) == ["Standing"]


@given(st.sampled_from(MODELS), st.integers(1, 4), st.data())
@settings(max_examples=100, deadline=None)
def test_all_workers_end_at_one_clock(model: str, workers: int, data: st.DataObject) -> None:
    """A rule fires at any moment: everybody who stays ends with exactly stop_clock finished, which nobody had finished
    when it fired, and every clock below it is closed."""
    tower = Tower(spec_of(workers, model))
    finished = dict.fromkeys(range(workers), 0)
    for _ in range(data.draw(st.integers(0, 30))):
        worker = data.draw(st.integers(0, workers - 1))
        if model != "bsp" or finished[worker] <= min(finished.values()):
            tower.tick(finished[worker], worker)
            finished[worker] += 1
    (end,) = ends_at(stop(tower))
    assert end == max(finished.values()) + 1
    while any(clock < end for clock in finished.values()):
        worker = data.draw(st.sampled_from([worker for worker in finished if finished[worker] < end]))
        assert ends_at(tower.tick(finished[worker], worker)) == {end}
        finished[worker] += 1
    assert all(refused(tower.tick(end, worker)) == "STOP" for worker in finished)
    assert tower.clock.members.slowest == end and tower.clock.closed == (end if model == "bsp" else 0)


# -- input


def ask(tower: Tower, request: int, worker: int = 0, gen: int = 1) -> Any:
    found = tower.say(m.NextAsk, request, worker=worker, gen=gen)
    told = found[-1][1]
    return (told.piece, told.turn) if isinstance(told, m.NextTold) else Code(told.code).name


def test_pieces_go_round_and_a_repeat_is_answered_the_same() -> None:
    tower = Tower(spec_of(2, pieces=3, passes=2))
    assert [ask(tower, 4), ask(tower, 1, worker=1), ask(tower, 4), ask(tower, 6)] == [(0, 0), (1, 0), (0, 0), (2, 0)]
    assert [ask(tower, request) for request in (7, 8, 9, 10)] == [(0, 1), (1, 1), (2, 1), (m.NO_PIECE, 2)]
    assert tower.say(m.NextAsk, 8) == []  # late
    assert ask(tower, 10) == (m.NO_PIECE, 2)


@pytest.mark.parametrize(("reason", "back"), (("bye", False), ("finished", False), ("lost", True), ("killed", True), ("", True)))
def test_a_lost_worker_gives_its_piece_back_and_a_finished_one_does_not(reason: str, back: bool) -> None:
    tower = Tower(spec_of(2, pieces=5))
    assert ask(tower, 1, worker=1) == (0, 0)
    tower.say(m.Leave, 0, reason, worker=1)
    assert ask(tower, 1) == ((0, 0) if back else (1, 0))


def test_a_new_incarnation_gives_back_what_the_old_one_held() -> None:
    tower = Tower(spec_of(2, pieces=5))
    assert ask(tower, 1, worker=1) == (0, 0)
    tower.say(m.Join, worker=1, gen=2)
    assert ask(tower, 1) == (0, 0)  # whoever asks first
    assert ask(tower, 2, worker=1, gen=1) == "FENCED"
    assert ask(tower, 1, worker=1, gen=2) == (1, 0)


def test_a_new_incarnation_may_speak_first_by_asking() -> None:
    tower = Tower(spec_of(pieces=5))
    assert ask(tower, 3) == (0, 0)
    assert ask(tower, 1, gen=2) == (0, 0)
    assert tower.clock.members.rows[0].gen == 2


def test_who_has_left_gets_no_piece() -> None:
    tower = Tower(spec_of(2, pieces=5))
    ask(tower, 1, worker=1)
    tower.say(m.Leave, 0, "bye", worker=1)
    before = tower.clock.digest()
    assert ask(tower, 2, worker=1) == "SEQ"
    assert tower.clock.digest() == before and ask(tower, 1) == (1, 0)


def test_a_job_without_pieces_says_so_and_a_stranger_is_refused() -> None:
    assert ask(Tower(spec_of()), 1) == "FORMAT"
    assert ask(Tower(spec_of(pieces=5)), 1, worker=9) == "RANGE"


def test_pieces_are_handed_out_behind_the_stop_clock() -> None:
    tower = Tower(spec_of(pieces=2, stop_clock=1))
    tower.tick(0)
    assert [ask(tower, 1), ask(tower, 2), ask(tower, 3)] == [(0, 0), (1, 0), (m.NO_PIECE, 1)]


def test_the_digest_sees_pieces_and_the_stop_clock() -> None:
    tower = Tower(spec_of(pieces=2))
    tower.say(m.Join)
    found = [tower.clock.digest()]
    for change in (lambda: ask(tower, 1), lambda: ask(tower, 2), lambda: stop(tower)):
        change()
        found.append(tower.clock.digest())
    assert len(set(found)) == 4


# -- twins


def twins(found: list[Any]) -> list[tuple[str, m.Twins]]:
    return [(to, message) for to, message in found if isinstance(message, m.Twins)]


@pytest.mark.parametrize("model", MODELS)
def test_the_agents_of_twins_are_told(model: str) -> None:
    tower = Tower(job(workers=3, consistency=model))
    told: list[tuple[str, m.Twins]] = []
    for clock in range(20):
        for worker in range(3):
            crc = clock + 1 if worker < 2 else 1_000 + clock
            told += twins(tower.tick(clock, worker, agent=f"a{worker}.1", crc=crc))
    assert [(to, message.worker, message.other, message.clocks) for to, message in told] == [
        ("a1.1", 1, 0, 10), ("a0.1", 1, 0, 10), ("a1.1", 1, 0, 20), ("a0.1", 1, 0, 20),
    ]  # fmt: skip


def test_one_agent_of_both_is_told_once_and_repeats_say_nothing() -> None:
    tower = Tower(job(workers=2, consistency="asp"))
    told = []
    for clock in range(10):
        for worker in (0, 1, 1, 0):
            told += twins(tower.tick(clock, worker, crc=5))
    assert [to for to, _ in told] == ["a0.1"]


def test_a_worker_that_has_left_is_nobodys_twin() -> None:
    tower = Tower(job(workers=2, consistency="asp"))
    for clock in range(15):
        tower.tick(clock, 0, crc=clock + 1)
    tower.say(m.Leave, 15, "bye", worker=0)
    told = [twins(tower.tick(clock, 1, crc=clock + 1)) for clock in range(20)]
    assert not any(told)


def test_a_question_for_input_that_comes_again_after_the_bye_is_no_refusal_of_the_bye() -> None:
    tower = Tower(spec_of(pieces=1))
    tower.say(m.Join)
    assert [kinds(tower.say(m.NextAsk, request)) for request in (1, 2)] == [["NextTold"]] * 2
    tower.say(m.Leave, 0, "bye")
    assert tower.say(m.NextAsk, 2) == tower.say(m.NextAsk, 1) == []
    assert refused(tower.say(m.NextAsk, 3)) == refused(tower.say(m.NextAsk, m.SAME_PIECE)) == "SEQ"


# -- through a whole server


def test_a_server_hands_these_messages_to_the_clock_and_counts_them() -> None:
    box = Box(spec_of(pieces=2))
    box.clock(m.Join)
    box.take()
    box.clock(m.NextAsk, 1)
    assert box.take(m.NextTold) == [m.NextTold(1, 1, 1, 0, 1, 1, 0, 0)]
    item = box.map.ranges[box.map.clock_range]
    box.feed(item.primary, "a9.1", m.StopAsk(1, item.epoch, 1, "done"))
    assert {standing.stop_clock for standing in box.take(m.Standing)} == {1}
    assert [log.event for _, log in box.logs][-1] == "stopping"
    box.feed(item.primary, "a9.1", m.StopAsk(1, item.epoch + 1, 1, "done"))
    box.feed(item.primary, "a9.1", m.NextAsk(1, item.epoch + 1, 1, 0, 1, 2))
    assert [type(message) for message in box.take()] == [m.Nack, m.Nack]
    assert box.servers["s0.1"].counters["nexts"] == 1  # what is not taken is not counted
