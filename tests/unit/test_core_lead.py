"""Whom a node asks: the leader as far as it can know, the next in turn when nobody answers, never one of an old term."""

from __future__ import annotations

from plugml.core.lead import FORGOTTEN, Lead
from plugml.core.limits import Limits

LIMITS = Limits()
THREE = {"m2": "ipc://m2", "m0": "ipc://m0", "m1": "ipc://m1"}
SUSPECT, DEAD = LIMITS.suspect_us, LIMITS.dead_us


def led(by: str, term: int) -> Lead:
    lead = Lead(THREE, LIMITS)
    assert lead.heard(by, term, 0)
    return lead


def test_the_first_by_name_is_asked_first() -> None:
    lead = Lead(THREE, LIMITS)
    assert lead.master == "m0" and lead.knows("m2") and not lead.knows("m3")


def test_a_silent_master_is_left_for_the_next_in_turn_and_the_last_for_the_first() -> None:
    lead = Lead(THREE, LIMITS)
    asked = []
    for now_us in range(0, 4 * SUSPECT, SUSPECT // 2):
        lead.asked(now_us)
        asked.append(lead.master)
    assert asked == ["m0", "m0", "m1", "m1", "m2", "m2", "m0", "m0"]


def test_one_that_answers_is_never_left() -> None:
    lead = Lead(THREE, LIMITS)
    for now_us in range(0, 20 * SUSPECT, SUSPECT // 2):
        assert not lead.asked(now_us)
        assert lead.heard("m0", 3, now_us + 1)
    assert lead.master == "m0" and lead.term == 3


def test_time_without_a_question_is_nobodys_silence() -> None:
    lead = led("m0", 1)
    assert not lead.asked(100 * SUSPECT)
    assert lead.asked(101 * SUSPECT)


def test_a_lone_master_is_asked_for_ever_whatever_it_says() -> None:
    lead = Lead({"m0": "ipc://m0"}, LIMITS)
    assert not lead.asked(0) and not lead.asked(100 * SUSPECT)
    assert lead.heard("m0", 7, 0) and lead.heard("m0", 1, 0)  # its store was lost
    assert not lead.refused("m0", 7, "m1") and lead.master == "m0"


def test_the_leader_of_a_newer_term_is_asked_at_once() -> None:
    lead = led("m0", 5)
    assert lead.refused("m1", 6, "m2")  # even from one that was not asked
    assert (lead.master, lead.term) == ("m2", 6)
    assert not lead.refused("m1", 6, "m2"), "only once"


def test_of_two_that_name_different_leaders_the_higher_term_counts() -> None:
    lead = Lead(THREE, LIMITS)
    assert lead.refused("m0", 5, "m1")
    assert not lead.refused("m1", 4, "m0"), "it has not heard yet that it was deposed, or leads: it is asked no more"
    assert (lead.master, lead.term) == ("m2", 5)


def test_a_leader_that_was_left_for_its_silence_is_not_gone_back_to_on_anybodys_word() -> None:
    lead = led("m0", 5)
    lead.asked(0)
    assert lead.asked(SUSPECT) and lead.master == "m1"
    assert not lead.refused("m1", 5, "m0")
    assert lead.master == "m2"
    assert lead.refused("m2", 6, "m1") and lead.master == "m1"


def test_a_leader_that_was_only_slow_is_found_again_in_turn() -> None:
    lead = led("m0", 5)
    lead.asked(0)
    assert lead.asked(SUSPECT)
    lead.refused("m1", 5, "m0")
    lead.refused("m2", 5, "m0")
    assert lead.master == "m0"
    assert lead.heard("m0", 5, SUSPECT) and not lead.asked(2 * SUSPECT)


def test_two_that_name_each_other_are_not_asked_in_a_circle() -> None:
    lead = led("m0", 4)
    assert lead.refused("m0", 5, "m1")
    at_once = [lead.refused(lead.master, 5, {"m0": "m1", "m1": "m0", "m2": "m1"}[lead.master]) for _ in range(30)]
    assert sum(at_once) <= 10, "the others are asked when something is due again"


def test_masters_that_know_no_leader_are_asked_in_turn_but_not_at_once() -> None:
    lead = Lead(THREE, LIMITS)
    asked = []
    for _ in range(4):
        asked.append(lead.master)
        assert not lead.refused(lead.master, 0, "")
    assert asked == ["m0", "m1", "m2", "m0"]


def test_a_late_refusal_of_one_that_is_asked_no_more_changes_nothing() -> None:
    lead = led("m1", 5)
    assert not lead.refused("m0", 5, "") and not lead.refused("m2", 5, "m0")
    assert lead.master == "m1"


def test_a_leader_that_nobody_knows_here_is_no_leader() -> None:
    lead = led("m0", 5)
    assert not lead.refused("m0", 6, "m9")
    assert (lead.master, lead.term) == ("m1", 5)


def test_words_of_a_deposed_master_are_not_heeded_and_count_as_silence() -> None:
    lead = led("m1", 6)
    lead.asked(0)
    assert not lead.heard("m0", 5, 1)
    assert lead.master == "m1" and lead.asked(SUSPECT)


def test_masters_whose_store_was_lost_are_heeded_after_a_while() -> None:
    lead = led("m1", 6)
    assert not lead.heard("m0", 1, 0) and not lead.heard("m0", 1, FORGOTTEN * DEAD - 1)
    assert lead.heard("m0", 1, FORGOTTEN * DEAD)
    assert (lead.master, lead.term) == ("m0", 1)


def test_one_word_of_the_newest_term_and_the_while_begins_anew() -> None:
    lead = led("m1", 6)
    assert not lead.heard("m0", 5, 0)
    assert lead.heard("m1", 6, 10)
    assert not lead.heard("m0", 5, FORGOTTEN * DEAD)
