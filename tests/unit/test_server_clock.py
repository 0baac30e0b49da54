"""The clock of a job: ticks, closes that are resent, membership, notices, the claim on first values."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugml.core.effects import Log, Send
from plugml.core.errors import Code, PeerError
from plugml.core.job import JobSpec
from plugml.core.limits import Limits
from plugml.server.clock import ClockMachine
from plugml.server.replica_clock import consider
from plugml.wire import messages as m
from tests.scenario.kit import job, table

LIMITS = Limits()
COUNT = table("n", 3, "f64", "add", combine="sum")
OFFERED = table("p", 3, "f64", init="program")


class Tower:
    """A clock and nothing else: ranges 0 and 1 on server s0.1, range 2 on s1.1."""

    def __init__(self, spec: JobSpec, limits: Limits = LIMITS) -> None:
        self.clock = ClockMachine(1, 0, spec, limits, 1, 1)
        self.clock.place({0: "s0.1", 1: "s0.1", 2: "s1.1"}, 1, 1)
        self.now_us = 0
        self.logs: list[Log] = []

    def say(self, kind: type[Any], *rest: Any, worker: int = 0, gen: int = 1, agent: str = "a0.1") -> list[Any]:
        return self.hear(agent, kind(1, 1, 1, worker, gen, *rest))

    def hear(self, sender: str, message: Any) -> list[Any]:
        effects = self.clock.on_message(sender, message, self.now_us)
        self.clock.check()
        self.logs += [effect for effect in effects if isinstance(effect, Log)]
        return [(effect.to, effect.message) for effect in effects if isinstance(effect, Send)]

    def tick(self, clock: int, worker: int = 0, gen: int = 1, weight: float = 1.0, agent: str = "a0.1", crc: int = 0) -> list[Any]:
        return self.say(m.Tick, clock, ((0, weight),), 0, (), crc, worker=worker, gen=gen, agent=agent)

    def ack(self, closed: int, server: str = "s0.1", ranges: tuple[int, ...] = (0, 1)) -> list[Any]:
        return self.hear(server, m.CloseAck(1, 1, 1, closed, ranges))

    def ack_rosters(self) -> list[Any]:
        """Every range has the newest one that was sent to it; what follows from that."""
        number = self.clock.members.number
        found = []
        for server, ranges in (("s0.1", (0, 1)), ("s1.1", (2,))):
            carried = self.clock.outbox._carried.get(server, number)
            found += self.hear(server, m.RosterAck(1, 1, 1, carried, ranges))
        return found

    def later(self, passed_us: int) -> list[Any]:
        self.now_us += passed_us
        effects = self.clock.on_time(self.now_us)
        self.clock.check()
        due = self.clock.deadline_us()
        assert due is None or due > self.now_us
        return [(effect.to, effect.message) for effect in effects]


def kinds(found: list[Any]) -> list[str]:
    return [type(message).__name__ for _, message in found]


def closes(found: list[Any]) -> list[tuple[str, int]]:
    return [(to, message.clock) for to, message in found if isinstance(message, m.Close)]


def refused(found: list[Any]) -> str:
    assert kinds(found) == ["Refuse"], found
    return Code(found[0][1].code).name


def test_the_last_tick_closes_the_clock_for_every_server() -> None:
    tower = Tower(job(COUNT, workers=2))
    assert closes(tower.tick(0, 1, weight=3.0)) == []
    found = tower.tick(0, 0, weight=2.0)
    assert closes(found) == [("s0.1", 0), ("s1.1", 0)]
    assert found[0][1].members == ((0, 1), (1, 1)) and found[0][1].totals == ((0, 5.0),)
    assert found[-1][1].closed == 1 and found[-1][1].finished == 1


def test_a_close_is_sent_again_to_whoever_has_not_acked_it() -> None:
    tower = Tower(job(COUNT))
    tower.tick(0)
    tower.ack(1, "s0.1", (0,))
    found = tower.later(LIMITS.resend_us)
    assert closes(found) == [("s0.1", 0), ("s1.1", 0)]
    tower.ack(1)
    tower.hear("s0.1", m.RosterAck(1, 1, 1, 1, (0, 1)))
    found = tower.later(2 * LIMITS.resend_us)
    assert [to for to, _ in found] == ["s1.1", "s1.1"]
    tower.ack(1, "s1.1", (2,))
    tower.hear("s1.1", m.RosterAck(1, 1, 1, 1, (2,)))
    assert tower.clock.deadline_us() is None and tower.clock.outbox.floor == 1


def test_acks_count_only_for_ranges_of_the_sender() -> None:
    tower = Tower(job(COUNT))
    tower.tick(0)
    tower.ack(1, "s9.9", (0, 1, 2))
    tower.ack(1, "s1.1", (0, 1, 77))
    assert tower.clock.outbox.floor == 0


def test_a_server_that_missed_several_closes_gets_them_in_order() -> None:
    tower = Tower(job(COUNT))
    for clock in range(3):
        tower.tick(clock)
        tower.ack(clock + 1)
    assert closes(tower.later(LIMITS.resend_us)) == [("s1.1", 0), ("s1.1", 1), ("s1.1", 2)]


def test_resends_become_rarer() -> None:
    tower = Tower(job(COUNT))
    tower.tick(0)
    gaps = []
    for _ in range(6):
        due = tower.clock.deadline_us()
        assert due is not None
        gaps.append(due - tower.now_us)
        tower.later(gaps[-1])
    assert gaps == sorted(gaps) and gaps[0] == LIMITS.resend_us and gaps[-1] == LIMITS.resend_us_max


def test_repeats_change_nothing() -> None:
    tower = Tower(job(COUNT, workers=2))
    tower.say(m.Join)
    first = tower.tick(0)
    before = tower.clock.digest()
    again = tower.tick(0)
    assert again[-1] == first[-1] and kinds(again) == ["Standing"]
    assert kinds(tower.say(m.Join)) == ["Standing"]
    assert tower.clock.digest() == before


def test_acks_of_what_was_never_sent_count_nothing() -> None:
    tower = Tower(job(COUNT))
    tower.say(m.Join)
    tower.tick(0)
    for server, ranges in (("s0.1", (0, 1)), ("s1.1", (2,))):
        with pytest.raises(PeerError):
            tower.ack(1 << 60, server, ranges)
        tower.hear(server, m.RosterAck(1, 1, 1, 1 << 60, ranges))
    assert tower.clock.outbox.floor == 0
    again = tower.later(LIMITS.resend_us)
    assert sorted(kinds(again)) == ["Close", "Close", "Roster", "Roster"]


def test_a_tick_ahead_of_its_clock_names_the_one_it_is_in() -> None:
    tower = Tower(job(COUNT))
    found = tower.tick(3)
    assert refused([found[-1]]) == "SEQ" and "clock 0" in found[-1][1].text and found[-1][1].seq == 0


def test_a_lower_generation_is_fenced_whatever_it_says() -> None:
    tower = Tower(job(COUNT, OFFERED))
    tower.say(m.Join, gen=3)
    for found in (
        tower.say(m.Join, gen=2), tower.tick(0, gen=2), tower.say(m.Leave, 0, "", gen=2), tower.say(m.StandingAsk, gen=2),
        tower.say(m.ClaimAsk, gen=2), tower.say(m.InitDone, 1, gen=2),
    ):  # fmt: skip
        assert refused(found) == "FENCED"
    assert tower.clock.members.rows[0].gen == 3


def test_a_stream_of_which_the_join_was_lost_joins_by_speaking() -> None:
    tower = Tower(job(COUNT))
    found = tower.tick(0, gen=4)
    assert "Roster" in kinds(found) and tower.clock.members.rows[0].gen == 4 and tower.clock.closed == 1


def test_a_restarted_worker_goes_on_where_it_stood() -> None:
    tower = Tower(job(COUNT, workers=2))
    tower.tick(0)
    tower.tick(1)
    found = tower.say(m.Join, gen=2)
    assert found[-1][1].finished == 2 and found[-1][1].gen == 2


def test_notices_go_to_every_other_agent_once() -> None:
    tower = Tower(job(COUNT, workers=3))
    for worker, agent in ((0, "a0.1"), (1, "a1.1"), (2, "a1.1")):
        tower.say(m.Join, worker=worker, agent=agent)
    assert kinds(tower.tick(0, 0)) == ["Standing"]
    tower.tick(0, 1, agent="a1.1")
    found = [item for item in tower.tick(0, 2, agent="a1.1") if isinstance(item[1], m.Standing)]
    assert [(to, standing.worker) for to, standing in found] == [("a1.1", 2), ("a0.1", m.NOBODY)]
    assert found[1][1].closed == 1 and found[1][1].slowest == 1


def test_an_agent_that_was_restarted_gets_the_notices() -> None:
    tower = Tower(job(COUNT, workers=2))
    tower.say(m.Join, worker=0, agent="a0.1")
    tower.say(m.Join, worker=1, agent="a1.1")
    tower.say(m.StandingAsk, worker=0, agent="a0.2")
    tower.tick(0, 0, agent="a0.2")
    found = tower.tick(0, 1, agent="a1.1")
    assert [to for to, message in found if isinstance(message, m.Standing)] == ["a1.1", "a0.2"]


def test_who_holds_the_clock_back_is_named() -> None:
    tower = Tower(job(COUNT, workers=40))
    assert tower.say(m.StandingAsk)[-1][1].waiting == tuple(range(16))
    for worker in range(40):
        if worker not in (7, 33):
            tower.tick(0, worker)
    assert tower.say(m.StandingAsk)[-1][1].waiting == (7, 33)


# -- membership


def test_a_worker_that_leaves_holds_nobody() -> None:
    tower = Tower(job(COUNT, workers=2))
    tower.tick(0, 0)
    tower.ack_rosters()
    found = tower.say(m.Leave, 0, "killed", worker=1)
    assert closes(found) == [("s0.1", 0), ("s1.1", 0)] and found[0][1].members == ((0, 1),)
    assert [message.members for _, message in found if isinstance(message, m.Roster)][-1] == ((0, 1, 0, -1), (1, 1, 0, 0))


def test_what_a_leaver_has_finished_stands() -> None:
    """Worker 1 is two clocks ahead when it leaves: both are its own, the third is not."""
    tower = Tower(job(COUNT, workers=2))
    tower.tick(0, 1)
    tower.tick(1, 1)
    tower.say(m.Leave, 0, "bye", worker=1)
    members = [message.members for clock in range(3) for to, message in tower.tick(clock, 0) if isinstance(message, m.Close) and to == "s1.1"]
    assert members == [((0, 1), (1, 1)), ((0, 1), (1, 1)), ((0, 1),)]


def test_leaving_twice_and_ticking_afterwards() -> None:
    tower = Tower(job(COUNT, workers=2))
    tower.tick(0, 1)
    tower.say(m.Leave, 1, "bye", worker=1)
    before = tower.clock.digest()
    assert kinds(tower.say(m.Leave, 1, "bye", worker=1)) == ["Standing"]
    assert kinds(tower.say(m.Join, worker=1)) == ["Standing"]  # a late repeat brings nobody back
    assert kinds(tower.tick(0, 1)) == ["Standing"]
    assert refused(tower.tick(1, 1)) == "SEQ"
    assert tower.clock.digest() == before and not tower.clock.members.rows[1].here


def test_a_standing_says_when_its_worker_takes_part_no_more() -> None:
    tower = Tower(job(COUNT, workers=2))
    assert tower.tick(0, 1)[-1][1].end == -1
    assert tower.say(m.Leave, 0, "bye", worker=1)[-1][1].end == 1
    assert tower.say(m.StandingAsk, worker=1)[-1][1].end == 1


def test_anybody_may_ask_how_the_clock_stands() -> None:
    tower = Tower(job(COUNT, workers=2))
    found = tower.say(m.StandingAsk, worker=m.NOBODY, gen=0, agent="a7.1")
    assert [(to, standing.worker, standing.waiting) for to, standing in found] == [("a7.1", m.NOBODY, (0, 1))]


def test_all_leave_and_every_finished_clock_is_closed() -> None:
    tower = Tower(job(COUNT, workers=2))
    for clock in range(3):
        tower.tick(clock, 0)
    tower.tick(0, 1)
    tower.say(m.Leave, 3, "bye", worker=0)
    tower.say(m.Leave, 1, "bye", worker=1)
    assert tower.clock.closed == 3 and tower.clock.members.count == 0


@pytest.mark.parametrize(("model", "first"), (("bsp", 3), ("ssp:1", 2), ("asp", 2)))
def test_a_new_worker_begins_where_nothing_is_under_way(model: str, first: int) -> None:
    tower = Tower(job(COUNT, workers=2, consistency=model))
    for clock in range(2):
        tower.tick(clock, 0)
        tower.tick(clock, 1)
    tower.tick(2, 0)
    assert tower.say(m.Join, worker=5)[-1][1].finished == first
    tower.say(m.Leave, 2, "killed", worker=1)
    assert tower.say(m.Join, worker=1, gen=2)[-1][1].finished >= first


def test_a_clock_of_which_nobody_is_left_is_closed_empty() -> None:
    """A newcomer waits in clock 1; the only member of clock 0 goes away without ticking it."""
    tower = Tower(job(COUNT))
    tower.say(m.Join, worker=1)
    found = tower.say(m.Leave, 0, "killed", worker=0)
    assert [message.members for to, message in found if isinstance(message, m.Close)] == [(), ()]
    assert closes(tower.tick(1, 1)) == [("s0.1", 1), ("s1.1", 1)]


def test_who_never_joined_is_refused() -> None:
    tower = Tower(job(COUNT))
    assert refused(tower.tick(0, 9)) == "RANGE"
    assert refused(tower.say(m.Join, worker=5000)) == "RANGE"


def test_a_worker_far_ahead_of_the_ranges_is_kept_waiting() -> None:
    tower = Tower(job(COUNT), Limits(closes_max=3))
    for clock in range(3):
        assert closes(tower.tick(clock))
    late = m.Tick(1, 1, 1, 0, 1, 3, ())
    assert consider(tower.clock, "a0.1", late, 0) == []
    tower.ack(3)
    tower.ack(3, "s1.1", (2,))
    assert consider(tower.clock, "a0.1", late, 0) is late
    assert closes(tower.tick(3))


def test_of_many_changes_in_a_row_a_server_gets_the_last_roster() -> None:
    tower = Tower(job(COUNT, workers=9))
    first = [message.number for worker in range(9) for to, message in tower.say(m.Join, worker=worker) if isinstance(message, m.Roster)]
    assert first == [1, 1], "the next one waits until that is acked"
    then = [(to, message.number) for to, message in tower.ack_rosters() if isinstance(message, m.Roster)]
    assert then == [("s0.1", 9), ("s1.1", 9)]
    assert tower.ack_rosters() == [] and tower.clock.deadline_us() is None


def test_the_successor_of_a_keeper_asks_how_far_the_ranges_are_and_brings_what_they_lack() -> None:
    """Nobody has acked anything to it: it shows the newest close, hears where each server stands, and goes on from there."""
    tower = Tower(job(COUNT))
    for clock in range(40):
        tower.tick(clock)
    found = [(effect.to, effect.message) for effect in tower.clock.lead(0)]
    tower.clock.check()
    assert closes(found) == [("s0.1", 39), ("s1.1", 39)] and found[0][1].closed == 40
    assert closes(tower.ack(38)) == [("s0.1", 38), ("s0.1", 39)]
    assert closes(tower.ack(40, "s1.1", (2,))) == []
    assert tower.clock.outbox.floor == 38
    assert closes(tower.ack(40)) == [] and tower.clock.outbox.floor == 40


def test_which_messages_become_entries() -> None:
    """What changes the clock does; what only asks is answered from what is applied."""
    tower = Tower(job(COUNT, workers=2))
    join = m.Join(1, 1, 1, 0, 1)
    assert consider(tower.clock, "a0.1", join, 0) is join
    tower.hear("a0.1", join)
    ask = m.StandingAsk(1, 1, 1, 0, 1)
    assert [type(effect.message).__name__ for effect in consider(tower.clock, "a0.1", ask, 0)] == ["Standing"]
    assert consider(tower.clock, "a0.2", ask, 0) == join, "another agent speaks for it"
    assert consider(tower.clock, "a0.1", ask._replace(gen=2), 0) == join._replace(gen=2), "by speaking an incarnation joins"
    assert consider(tower.clock, "a0.1", ask._replace(worker=m.NOBODY), 0)[0].message.worker == m.NOBODY
    tick = m.Tick(1, 1, 1, 0, 1, 0, ((0, 1.0),))
    assert consider(tower.clock, "a0.1", tick, 0) is tick
    tower.hear("a0.1", tick)
    assert [effect.message.finished for effect in consider(tower.clock, "a0.1", tick, 0)] == [1]
    with pytest.raises(PeerError, match="a weight in a Tick"):
        consider(tower.clock, "a0.1", tick._replace(clock=1, weights=((9, 1.0),)), 0)

@pytest.mark.parametrize("model", ("asp", "ssp:2"))
def test_without_bsp_nothing_is_closed(model: str) -> None:
    tower = Tower(job(COUNT, consistency=model))
    for clock in range(3000):
        found = tower.tick(clock)
        assert not closes(found)
    assert found[-1][1].slowest == 3000 and found[-1][1].closed == 0


@pytest.mark.parametrize("weights", ((1,), ((0,),), ((5, 1.0),), ((0, -1.0),), ((0, float("nan")),), (("w", 1.0),), ((0, 1.0), (0, 1.0))))
def test_weights_that_are_none_change_nothing(weights: Any) -> None:
    tower = Tower(job(COUNT))
    before = tower.clock.digest()
    with pytest.raises(PeerError, match="a weight in a Tick"):
        consider(tower.clock, "a0.1", m.Tick(1, 1, 1, 0, 2, 0, weights), 0)
    assert tower.clock.digest() == before


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_closes_come_in_order_and_wait_for_nobody_who_left(data: st.DataObject) -> None:
    """Whatever joins, ticks and leaves: closes count up from 0, their members ticked them, the slowest never falls, and
    what is not closed waits for somebody who is here and has not finished it."""
    workers = data.draw(st.integers(1, 4))
    tower = Tower(job(COUNT, workers=workers))
    gens = dict.fromkeys(range(workers + 2), 0)
    finished: dict[int, int] = {}
    ticked: set[tuple[int, int, int]] = set()
    closed = slowest = 0
    for _ in range(data.draw(st.integers(1, 80))):
        worker = data.draw(st.integers(0, workers + 1))
        what = data.draw(st.sampled_from(("tick", "tick", "tick", "repeat", "leave", "join")))
        if what == "join":
            gens[worker] += 1
        elif worker >= workers and not gens[worker]:
            continue
        gen = max(1, gens[worker])
        gens[worker] = gen
        if what == "join":
            found = tower.say(m.Join, worker=worker, gen=gen)
        elif what == "leave":
            found = tower.say(m.Leave, 0, "", worker=worker, gen=gen)
        else:
            clock = max(0, finished.get(worker, 0) - (what == "repeat"))
            member = tower.clock.members.rows.get(worker)
            if member is not None and member.finished == clock and member.here:
                ticked.add((clock, worker, gen))
            found = tower.tick(clock, worker, gen)
        for to, message in found:
            if isinstance(message, m.Close) and to == "s1.1":
                assert message.clock == closed
                closed += 1
                assert all((message.clock, *pair) in ticked for pair in message.members)
                assert len({pair[0] for pair in message.members}) == len(message.members)
            if isinstance(message, m.Standing):
                assert message.slowest >= slowest
                slowest = message.slowest
                if message.worker != m.NOBODY:
                    finished[message.worker] = message.finished
        here = [member for member in tower.clock.members.rows.values() if member.here]
        assert tower.clock.closed == closed
        assert not here or min(member.finished for member in here) == closed


# -- first values


def claim(tower: Tower, worker: int, gen: int = 1) -> int:
    found = tower.say(m.ClaimAsk, worker=worker, gen=gen)
    return int(found[-1][1].claim)


def test_one_stream_at_a_time_may_give_the_first_values() -> None:
    tower = Tower(job(OFFERED, workers=3))
    assert (claim(tower, 1), claim(tower, 0), claim(tower, 1)) == (1, 0, 1)
    assert refused(tower.say(m.InitDone, 1, worker=0)[-1:]) == "FENCED"
    tower.say(m.Join, worker=2, agent="a1.1")
    found = tower.say(m.InitDone, 1, worker=1)
    assert [(to, standing.initialised) for to, standing in found] == [("a0.1", 1), ("a1.1", 1)]
    assert kinds(tower.say(m.InitDone, 1, worker=1)) == ["Standing"]
    assert claim(tower, 1) == 0 and claim(tower, 2) == 0


@pytest.mark.parametrize("how", ("leave", "fence"))
def test_the_claim_falls_with_its_stream_and_the_next_is_higher(how: str) -> None:
    tower = Tower(job(OFFERED, workers=2))
    assert claim(tower, 0) == 1
    if how == "leave":
        tower.say(m.Leave, 0, "killed", worker=0)
    else:
        tower.say(m.Join, worker=0, gen=2)
    assert refused(tower.say(m.InitDone, 1, worker=0, gen=1 if how == "leave" else 2)) == "FENCED"
    assert claim(tower, 1) == 2
    tower.say(m.InitDone, 2, worker=1)
    assert tower.clock.claims.initialised == 2


def test_without_offered_tables_there_is_no_claim() -> None:
    tower = Tower(job(COUNT))
    assert claim(tower, 0) == 0
