"""One of several masters: when it leads, when it stops, and what it says meanwhile.  (All at once: tests/fuzz/test_fuzz_rivals.)"""

from __future__ import annotations

from typing import Any

import pytest

from plugml.core.effects import Log, Send, Stop
from plugml.core.limits import Limits
from plugml.master import catalog
from plugml.master.effects import LEADER_KEY, STATE_KEY, StoreCas, StoreDone, StoreRead
from plugml.master.leadership import Word, unpack
from plugml.master.rival import RivalMaster
from plugml.master.store import MemoryStore
from plugml.wire import messages as m
from tests.fuzz.master_world import spec

LIMITS = Limits()
BEAT, DEAD = LIMITS.leader_beat_us, LIMITS.leader_dead_us
S0 = "s0.00000001"


class Master:
    """One process at one store; its answers come at once unless `hold`."""

    def __init__(self, store: MemoryStore, name: str = "m0", incarnation: str = "1") -> None:
        self.store = store
        self.name = name
        self.now_us = 10 * DEAD
        self.machine = RivalMaster(name, incarnation, f"ipc://{name}", "test", LIMITS)
        self.sent: list[Any] = []
        self.logs: list[Log] = []
        self.held: list[StoreDone] = []
        self.hold = False
        self.stopped: Stop | None = None
        self.run_for(0)

    @property
    def leads(self) -> int:
        return self.machine.leadership.reign

    def run_for(self, us: int) -> None:
        end_us = self.now_us + us
        while self.stopped is None:
            due_us = self.machine.deadline_us()
            if due_us is None or due_us > end_us:
                break
            self.now_us = max(self.now_us, due_us)
            self.perform(self.machine.on_time(self.now_us))
        self.now_us = end_us

    def say(self, message: Any, sender: str = S0) -> list[Any]:
        """The answers to this."""
        self.sent.clear()
        self.perform(self.machine.on_message(sender, message, self.now_us))
        return list(self.sent)

    def perform(self, effects: list[Any]) -> None:
        self.machine.check()
        for effect in effects:
            if isinstance(effect, StoreCas):
                outcome, version, value, text = self.store.cas(effect.key, effect.version, effect.value)
                self.held.append(StoreDone(effect.key, outcome, version, value, text, effect.number))
            elif isinstance(effect, StoreRead):
                value, version = self.store.read(effect.key)
                self.held.append(StoreDone(effect.key, "ok", version, value, "", effect.number))
            elif isinstance(effect, Send):
                self.sent.append(effect.message)
            elif isinstance(effect, Log):
                self.logs.append(effect)
            else:
                self.stopped = effect
        if not self.hold:
            self.release()

    def release(self) -> None:
        while self.held and self.stopped is None:
            self.perform(self.machine.on_message("", self.held.pop(0), self.now_us))

    def why(self) -> str:
        """Why the last reign ended."""
        return str([log.fields["why"] for log in self.logs if log.event == "deposed"][-1])


def register() -> m.Register:
    return m.Register("server", "h0", "ipc://s0", 1, "build")


def word(store: MemoryStore) -> Word:
    found = unpack(store.read(LEADER_KEY)[0])
    assert found is not None
    return found


def both_for(us: int, *masters: Master) -> None:
    for _ in range(us // (BEAT // 2)):
        for master in masters:
            master.run_for(BEAT // 2)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


# -- taking over


def test_the_first_one_leads_at_once_and_stores_its_state_under_its_term(store: MemoryStore) -> None:
    master = Master(store)
    assert master.leads == 1
    assert word(store) == Word("m0", "m0.1", 1, "ipc://m0", 0)
    assert catalog.unpack(store.read(STATE_KEY)[0]).term == 1
    assert master.say(register()) == [m.Registered(1, 0, "test", True, "")]


def test_a_leader_raises_its_beat_as_often_as_it_should(store: MemoryStore) -> None:
    master = Master(store)
    master.run_for(10 * BEAT)
    assert word(store).beat == 10 and master.leads == 1


def test_the_second_one_follows_and_says_who_leads(store: MemoryStore) -> None:
    Master(store)
    second = Master(store, "m1")
    assert second.leads == 0
    for message in (register(), m.Beat(0, {}), m.JobAsk(1, {}), m.AttachAsk(1, 1, 0, 0), m.MapAsk(1, 0), m.JobEnd(1, 1, "x", ""),
                    m.NodeExit(1, S0, 0), m.SeatAsk(1, 1, 0, 1, "add", S0, ""), m.Admin(1, "status", {})):  # fmt: skip
        assert second.say(message) == [m.NotLeader(1, "m0")]
    assert second.say(m.Done(1, 0, "")) == [], "nothing for a master"
    assert [log.event for log in second.logs] == ["follows", "ready"]


def test_a_leader_that_beats_is_never_followed(store: MemoryStore) -> None:
    first, second = Master(store), Master(store, "m1")
    both_for(20 * DEAD, first, second)
    assert (first.leads, second.leads) == (1, 0) and word(store).term == 1


def test_a_silent_leader_is_followed_by_another_with_everything_that_it_stored(store: MemoryStore) -> None:
    first, second = Master(store), Master(store, "m1")
    first.say(register())
    second.run_for(DEAD - 1)
    assert second.leads == 0
    second.run_for(BEAT)
    assert second.leads == 2 and word(store)[:3] == ("m1", "m1.1", 2)
    state = catalog.unpack(store.read(STATE_KEY)[0])
    assert (state.term, state.writer) == (2, "m1.1") and state.nodes["s0"].name == S0
    assert second.say(m.Beat(0, {})) == [m.BeatAck(2, 0, True)], "no node has to register again"


def test_a_leader_that_resigns_is_followed_at_the_next_look(store: MemoryStore) -> None:
    first, second = Master(store), Master(store, "m1")
    value, version = store.read(LEADER_KEY)
    store.cas(LEADER_KEY, version, first.machine.last_word(value))
    assert word(store).resigned
    second.run_for(BEAT)
    assert second.leads == 2
    assert second.machine.last_word(value) == b"" and first.machine.last_word(store.read(LEADER_KEY)[0]) == b""


def test_of_two_that_claim_one_leads_and_the_other_follows_it(store: MemoryStore) -> None:
    Master(store)
    second, third = Master(store, "m1"), Master(store, "m2")
    both_for(DEAD - BEAT, second, third)
    third.hold = True
    third.run_for(BEAT)  # what it sees is old by the time it claims
    second.run_for(BEAT)
    assert second.leads == 2
    third.hold = False
    third.release()
    assert third.leads == 0 and [log.event for log in third.logs][-2:] == ["follows", "ready"]
    assert third.say(register()) == [m.NotLeader(2, "m1")]


def test_a_restarted_leader_waits_like_any_other(store: MemoryStore) -> None:
    Master(store)
    again = Master(store, "m0", "2")
    assert again.leads == 0
    assert again.say(register()) == [m.NotLeader(1, "")], "the one that led is itself, and it does not"
    again.run_for(DEAD + BEAT)
    assert again.leads == 2


# -- losing it


def test_one_that_was_followed_while_it_slept_does_not_speak_as_the_leader_when_it_wakes(store: MemoryStore) -> None:
    first, second = Master(store), Master(store, "m1")
    second.run_for(DEAD + BEAT)
    assert second.leads == 2
    first.now_us += DEAD + BEAT
    (told,) = first.say(m.Beat(0, {}))
    assert told == m.NotLeader(1, "")
    first.run_for(BEAT)
    assert first.say(m.Beat(0, {})) == [m.NotLeader(2, "m1")]


def test_one_whose_beats_cannot_be_stored_stops_before_another_may_begin(store: MemoryStore) -> None:
    first, second = Master(store), Master(store, "m1")
    both_for(DEAD, first, second)
    store.weather = lambda: "lost"
    first.run_for(DEAD - 2 * BEAT)
    assert first.leads == 1
    first.run_for(2 * BEAT)
    assert first.leads == 0 and "could be stored" in first.why()
    assert first.say(register()) == [m.NotLeader(1, "")]


def test_a_deposed_one_takes_nothing_of_its_reign_into_the_next(store: MemoryStore) -> None:
    first = Master(store)
    first.say(register())
    store.weather = lambda: "lost"
    assert first.say(m.JobAsk(1, spec().to_document()), "a0.1") == []
    first.run_for(DEAD)
    assert first.leads == 0
    store.weather = lambda: ""
    first.run_for(2 * DEAD)
    assert first.leads == 2 and first.machine.reigning is not None
    assert first.machine.reigning.waiting == {} and first.machine.reigning.members.lives["s0"].state == "unheard"


def test_a_write_that_meets_a_higher_term_ends_the_reign_and_answers_nothing(store: MemoryStore) -> None:
    first = Master(store)
    value, version = store.read(STATE_KEY)
    store.cas(STATE_KEY, version, catalog.pack(catalog.unpack(value)._replace(term=2, writer="m1.1")))
    assert first.say(register()) == []
    assert first.leads == 0 and "term 2" in first.why()


def test_a_key_that_was_taken_by_another_ends_the_reign(store: MemoryStore) -> None:
    first = Master(store)
    _, version = store.read(LEADER_KEY)
    store.cas(LEADER_KEY, version, Word("m1", "m1.1", 2, "ipc://m1", 0).pack())
    first.run_for(BEAT)
    assert first.leads == 0 and "m1.1 leads in term 2" in first.why()
    assert first.say(register()) == [m.NotLeader(2, "m1")]


def test_a_key_that_was_lost_is_claimed_above_the_term_of_the_state(store: MemoryStore) -> None:
    master = Master(store)
    value, version = store.read(STATE_KEY)
    store.cas(STATE_KEY, version, catalog.pack(catalog.unpack(value)._replace(term=41, writer="m7.1")))
    del store.values[LEADER_KEY]
    other = Master(store, "m1")
    other.run_for(2 * DEAD)
    assert other.leads == 42 and catalog.unpack(store.read(STATE_KEY)[0]).term == 42
    master.run_for(BEAT)
    assert master.leads == 0


# -- answers that say nothing


def test_a_claim_of_which_nobody_knows_is_made_again_until_it_is_known(store: MemoryStore) -> None:
    weather = iter(["landed", "lost"])
    store.weather = lambda: next(weather, "")
    master = Master(store)
    assert master.leads == 0 and master.say(register()) == [m.NotLeader(0, "")]
    master.run_for(2 * BEAT)
    assert master.leads == 1 and word(store)[:3] == ("m0", "m0.1", 1)


def test_a_claim_that_landed_too_long_ago_is_no_claim_any_more(store: MemoryStore) -> None:
    store.weather = lambda: "landed"
    master = Master(store)
    master.hold = True
    master.run_for(2 * DEAD)
    store.weather = lambda: ""
    master.hold = False
    master.release()
    master.run_for(BEAT)
    assert master.leads == 2, "it was made again, under a new term, before it was believed"


def test_a_beat_that_landed_unseen_is_one(store: MemoryStore) -> None:
    master = Master(store)
    weather = iter(["landed"])
    store.weather = lambda: next(weather, "")
    master.run_for(4 * BEAT)
    assert master.leads == 1 and word(store).beat >= 3


def test_an_outage_is_not_the_leaders_silence(store: MemoryStore) -> None:
    """Who could not look for a while looks for as long as ever before it claims."""
    Master(store)
    second = Master(store, "m1")
    second.hold = True
    second.run_for(BEAT)
    (look,) = second.held
    second.held[:] = [look._replace(outcome="unknown", value=b"", version=0)]
    second.now_us += 3 * DEAD
    second.hold = False
    second.release()
    assert second.say(register()) == [m.NotLeader(1, "")], "it cannot see who leads"
    second.run_for(DEAD - BEAT)
    assert second.leads == 0
    second.run_for(3 * BEAT)
    assert second.leads == 2


def test_one_that_has_slept_looks_for_as_long_as_ever_before_it_claims(store: MemoryStore) -> None:
    Master(store)
    second = Master(store, "m1")
    second.now_us += 3 * DEAD
    second.run_for(0)
    assert second.leads == 0
    second.run_for(DEAD + BEAT)
    assert second.leads == 2


def test_an_answer_to_a_question_of_an_earlier_reign_is_passed_over(store: MemoryStore) -> None:
    master = Master(store)
    before = master.machine.digest()
    for key in (LEADER_KEY, STATE_KEY, "other"):
        master.perform(master.machine.on_message("", StoreDone(key, "ok", 99, b"x", "", 1), master.now_us))
        master.perform(master.machine.on_message("", StoreDone(key, "unknown", 0, b"", "", 1), master.now_us))
    assert master.machine.digest() == before and master.leads == 1


@pytest.mark.parametrize("value", [b"x", b"\xc0", b"\x81\xa1a\x01", Word("m0", "m0.1", 0, "", 0).pack(), Word("m0", "m0.1", True, "", 0).pack(), b"\x93\x01\x02\x03"])
def test_a_key_that_another_program_has_written_ends_the_master_with_a_sentence(store: MemoryStore, value: bytes) -> None:
    store.cas(LEADER_KEY, 0, value)
    master = Master(store)
    assert master.stopped is not None and master.stopped.exit_code == 1 and "of its own" in master.stopped.text


def test_the_log_says_what_the_store_says_once(store: MemoryStore) -> None:
    master = Master(store)
    store.weather = lambda: "lost"
    master.run_for(DEAD // 2)
    store.weather = lambda: ""
    master.run_for(2 * BEAT)
    events = [log.event for log in master.logs if log.event.startswith("store_")]
    assert events == ["store_unsure", "store_well"]
