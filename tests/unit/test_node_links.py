"""Servers and agents with several masters: whoever leads is found, and hears every question that the one before left open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from plugml.agent import link as agent_link
from plugml.agent.machine import AgentMachine
from plugml.core.effects import Connect, Send
from plugml.core.errors import Code
from plugml.core.limits import Limits
from plugml.server import link as server_link
from plugml.wire import messages as m
from tests.scenario.kit import job, make_map

LIMITS = Limits()
MASTERS = {"m0": "ipc://m0", "m1": "ipc://m1", "m2": "ipc://m2"}


class Server:
    """What is the same of both links, by one surface."""

    def __init__(self) -> None:
        self.link = server_link.MasterLink(server_link.Identity("s0.1", "here", "ipc://s0.1", 1, "test", MASTERS), LIMITS)
        self.questions: list[type[Any]] = [m.MapAsk, m.JobEnd, m.SeatAsk]

    def ask(self, now_us: int) -> list[Any]:
        return [
            *self.link.job_failed(1, "no room", now_us),
            *self.link.ask_seat(2, 3, 4, "drop", "s1.1", "slow", now_us),
            *self.link.ask_map(2, 9, now_us),
        ]

    def time(self, now_us: int) -> list[Any]:
        return self.link.on_time(now_us, {})

    def not_leader(self, sender: str, term: int, leader: str, now_us: int) -> list[Any]:
        effects = self.link.on_not_leader(sender, m.NotLeader(term, leader), now_us, {})
        return [*effects, *(self.time(now_us) if self.link.deadline_us() <= now_us else [])]


class Agent:
    def __init__(self) -> None:
        self.link = agent_link.MasterLink(agent_link.Identity("a0.1", "here", 1, "test", "test", "boot", MASTERS), LIMITS)
        self.questions: list[type[Any]] = [m.JobEnd, m.AttachAsk, m.MapAsk]

    def ask(self, now_us: int) -> list[Any]:
        return [
            *self.link.ask(lambda number: m.JobEnd(number, 1, "stopped", "told to"), now_us)[1],
            *self.link.ask(lambda number: m.AttachAsk(number, 1, 0, 0), now_us)[1],
            *self.link.ask_map(2, 9, now_us),
        ]

    def time(self, now_us: int) -> list[Any]:
        return self.link.on_time(now_us, 0, dict)

    def not_leader(self, sender: str, term: int, leader: str, now_us: int) -> list[Any]:
        effects = self.link.on_not_leader(sender, m.NotLeader(term, leader), now_us)
        return [*effects, *(self.time(now_us) if self.link.deadline_us() <= now_us else [])]


Node = Any


@pytest.fixture(params=[Server, Agent])
def node(request: pytest.FixtureRequest) -> Node:
    return request.param()


def sent(effects: list[Any], to: str) -> list[type[Any]]:
    """Kinds of what goes to that master; nothing goes to any other."""
    sends = [effect for effect in effects if isinstance(effect, Send)]
    assert {send.to for send in sends} <= {to}, sends
    return [type(send.message) for send in sends]


def registered(node: Node, by: str = "m0", term: int = 1) -> None:
    node.time(0)
    node.link.on_registered(by, m.Registered(term, 0, "test", True, ""), 0)


def until(node: Node, end_us: int, start_us: int = 0) -> list[Any]:
    effects: list[Any] = []
    now_us = start_us
    while node.link.deadline_us() <= end_us:
        now_us = max(now_us, node.link.deadline_us())
        effects += node.time(now_us)
    return effects


def test_a_node_connects_to_every_master_and_knocks_at_the_first(node: Node) -> None:
    effects = node.time(0)
    assert {(effect.node, effect.endpoint) for effect in effects if isinstance(effect, Connect)} == set(MASTERS.items())
    assert sent(effects, "m0") == [m.Register]


def test_a_registration_follows_to_the_one_that_leads_at_once(node: Node) -> None:
    node.time(0)
    assert sent(node.not_leader("m0", 3, "m2", 10), "m2") == [m.Register]
    node.link.on_registered("m2", m.Registered(3, 0, "test", True, ""), 20)
    assert set(sent(until(node, 2 * LIMITS.beat_us), "m2")) == {m.Beat}


def test_no_question_is_lost_when_another_master_leads(node: Node) -> None:
    registered(node)
    node.ask(100)
    again = sent(node.not_leader("m0", 2, "m1", 200), "m1")
    assert m.Beat in again
    assert [kind for kind in again if kind is not m.Beat] == node.questions


@pytest.mark.parametrize("word", [m.Registered(2, 0, "test", True, ""), m.BeatAck(2, 0, True)])
def test_no_question_is_lost_when_the_new_leader_speaks_first(node: Node, word: Any) -> None:
    registered(node)
    node.ask(100)
    on_word: Callable[..., list[Any]] = node.link.on_registered if isinstance(word, m.Registered) else node.link.on_beat_ack
    assert sent(on_word("m1", word, 200), "m1") == node.questions
    assert on_word("m1", word, 300) == [], "once is enough, then it is asked again in turn"


def test_a_silent_leader_is_left_and_its_successor_asked_everything(node: Node) -> None:
    registered(node)
    node.ask(100)
    heard = {send.to for send in until(node, LIMITS.suspect_us + LIMITS.beat_us) if isinstance(send, Send)}
    assert heard == {"m0", "m1"}
    assert [kind for kind in sent(node.not_leader("m1", 2, "m2", 4_000_000), "m2") if kind is not m.Beat] == node.questions


def test_an_answered_question_is_not_asked_the_next_leader(node: Node) -> None:
    registered(node)
    asked = [send.message for send in node.ask(100) if isinstance(send, Send)]
    if isinstance(node, Server):
        for message in asked[:2]:
            assert node.link.on_done(m.Done(message.request, 0, ""), 110) == []
        node.link.map_came(2)
    else:
        assert node.link.answered(m.Done(asked[0].request, 0, ""))
        assert node.link.answered(m.AttachTold(asked[1].request, 0, "", 1, 0, 1))
        node.link.map_came(2, 9)
    assert sent(node.not_leader("m0", 2, "m1", 200), "m1") == [m.Beat]


@pytest.mark.parametrize("word", [m.Registered(1, 99, "test", False, "go away"), m.BeatAck(1, 99, False)])
def test_words_of_a_deposed_master_do_nothing(node: Node, word: Any) -> None:
    registered(node, "m1", 2)
    on_word: Callable[..., list[Any]] = node.link.on_registered if isinstance(word, m.Registered) else node.link.on_beat_ack
    assert on_word("m0", word, 100) == []
    assert node.link.token == 0 and node.link.lead.master == "m1"


def test_a_node_that_the_new_leader_does_not_know_registers_again(node: Node) -> None:
    registered(node)
    assert m.Register in sent(node.link.on_beat_ack("m1", m.BeatAck(2, 0, False), 100), "m1")


def test_a_seat_is_asked_for_once_and_again_in_a_new_epoch() -> None:
    link = Server().link
    assert len(link.ask_seat(1, 2, 3, "add", "s1.1", "", 0)) == 1
    assert link.ask_seat(1, 2, 3, "add", "s1.1", "", 10) == []
    assert len(link.ask_seat(1, 2, 4, "add", "s1.1", "", 20)) == 1
    link.seat_settled(1, 2, 5)
    assert len(link.ask_seat(1, 2, 5, "add", "s1.1", "", 30)) == 1
    link.job_ended(1)
    assert [send for send in link.on_time(9_000_000, {}) if isinstance(send, Send) and isinstance(send.message, m.SeatAsk)] == []


def test_a_refused_request_is_told_once() -> None:
    link = Server().link
    (ask,) = link.ask_seat(1, 2, 3, "add", "s1.1", "", 0)
    (log,) = link.on_done(m.Done(ask.message.request, 3, "no such range"), 10)
    assert log.event == "seat_refused" and log.fields["text"] == "no such range"
    assert link.on_done(m.Done(ask.message.request, 3, "no such range"), 10) == []


def test_a_retiring_server_asks_again_until_nothing_is_its_own() -> None:
    link = Server().link
    (ask,) = link.retire(0)
    assert ask.message == m.Retire(1) and link.on_done(m.Done(1, Code.AGAIN, "2 ranges left"), 100) == [] and not link.retired
    again = [send.message for send in link.on_time(100 + LIMITS.resend_us, {}) if isinstance(send, Send)]
    assert m.Retire(1) in again
    assert link.on_done(m.Done(1, 0, ""), 200) == [] and link.retired
    assert m.Retire(1) not in [send.message for send in link.on_time(9_000_000, {}) if isinstance(send, Send)]
    assert len(link.retire(300)) == 1 and not link.retired, "another master has to be asked anew"


def test_an_agent_that_hears_an_old_map_late_goes_on_asking_for_the_newest() -> None:
    agent = AgentMachine(agent_link.Identity("a0.1", "here", 1, "test", "test", "boot", {"m0": "ipc://m0"}), LIMITS)
    agent.on_time(0)
    agent.house.job(1, "story")
    told = make_map(job())

    def asked(effects: list[Any]) -> int:
        return sum(isinstance(effect, Send) and isinstance(effect.message, m.MapAsk) for effect in effects)

    def the_map(token: int) -> m.MapTold:
        return m.MapTold(1, token, told._replace(token=token).to_document())

    agent.on_message("m0", m.Registered(1, 10, "test", True, ""), 0)
    agent.on_message("m0", the_map(10), 0)
    assert asked(agent.on_message("m0", m.BeatAck(1, 12, True), 0)) == 1  # it is lost, or its answer
    agent.on_message("m0", the_map(11), 0)  # was on its way for long, and settles the question
    assert asked(agent.on_message("m0", m.BeatAck(1, 12, True), LIMITS.beat_us)) == 1
    agent.on_message("m0", the_map(12), LIMITS.beat_us)
    assert asked(agent.on_message("m0", m.BeatAck(1, 12, True), 2 * LIMITS.beat_us)) == 0
