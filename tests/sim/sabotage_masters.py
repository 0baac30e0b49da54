"""Sabotages of the masters' rules: leading, following, blaming, and who may hold what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from plugml.core.effects import Send, Stop
from plugml.master.catalog import Seat
from plugml.master.effects import CONFLICT, OK, UNKNOWN, StoreDone
from plugml.master.leadership import Leadership, Phase, unpack
from plugml.master.ledger import Ledger
from plugml.master.membership import Membership
from plugml.server.node import ServerMachine

Original = Callable[..., Any]


# -- who leads


def lead_unconfirmed(original: Original) -> Original:
    """A leader whose beats are not stored goes on leading."""

    def on_time(self: Leadership, now_us: int) -> Any:
        if self.phase is Phase.LEAD:
            self._confirmed_us = now_us
        return original(self, now_us)

    return on_time


def wait_for_nobody(original: Original) -> Original:
    """A silent server is dead, whatever it may hold."""
    return lambda *asked: ""


def set_all_aside(original: Original) -> Original:
    """A silent server leaves all ranges, also those that nobody else has."""
    return lambda job, name, is_heard: []


def end_at_once(original: Original) -> Original:
    """A server that is told to end does so, whatever it holds."""

    def retire(self: ServerMachine) -> Any:
        self.link.retired = True
        return [Stop(0, "")]

    return retire


def nothing_is_held(original: Original) -> Original:
    """Who is about to end is told that no range is its own."""

    def retire(*asked: Any) -> Any:
        outcome = original(*asked)
        told = [send._replace(message=send.message._replace(code=0)) if type(send) is Send else send for send in outcome.effects]
        return outcome._replace(effects=tuple(told))

    return retire


def claim_the_same_term(original: Original) -> Original:
    def claim(self: Leadership, now_us: int) -> Any:
        effect = original(self, now_us)
        if self.term:
            effect = effect._replace(value=_word(effect)._replace(term=self.term).pack())
            self._flying = effect
        return effect

    return claim


def _word(effect: Any) -> Any:
    word = unpack(effect.value)
    assert word is not None
    return word


def never_take_over(original: Original) -> Original:
    """A follower waits for whoever led, though it beats no more."""

    def saw(self: Leadership, done: StoreDone, now_us: int) -> Any:
        self._watched_us = now_us
        if self._seen is not None and done.version:
            self._seen = self._seen._replace(beat=-1)  # whatever stands there is news
        return original(self, done, now_us)

    return saw


def unknown_is_stored(original: Original) -> Original:
    def on_done(self: Ledger, done: StoreDone, now_us: int) -> Any:
        if done.outcome == UNKNOWN and self.flying is not None and self.state is not None:
            done = done._replace(outcome=OK, version=self.version + 1, value=self.flying.value)
        return original(self, done, now_us)

    return on_done


def unknown_is_not_stored(original: Original) -> Original:
    """One's own value that stands there already is taken for another master's."""

    def on_done(self: Ledger, done: StoreDone, now_us: int) -> Any:
        if done.outcome == CONFLICT and self.flying is not None:
            done = done._replace(value=done.value + b" ") if self.state is None else done._replace(value=b"\x80")
        return original(self, done, now_us)

    return on_done


# -- whom they blame


def blame_at_once(original: Original) -> Original:
    """Silence counts from before this master led."""

    def silent(self: Membership, now_us: int) -> Any:
        start_us, self.start_us = self.start_us, now_us - 3 * self.limits.dead_us
        found = original(self, now_us)
        self.start_us = start_us
        return found

    return silent


def blame_after_sleep(original: Original) -> Original:
    return lambda self, now_us: None


def blame_the_majority(original: Original) -> Original:
    return lambda self, now_us: []


# -- who holds what


def keep_the_dead(original: Original) -> Original:
    return lambda job, name: (job, 0)


def promote_the_learner(original: Original) -> Original:
    """When the last copy dies, whoever was being filled leads."""

    def without(job: Any, name: str) -> Any:
        after, lost = original(job, name)
        seats = dict(after.seats)
        for number, seat in after.seats.items():
            before = job.seats[number]
            if not seat.replicas and before.learner and before.learner != name:
                seats[number] = seat._replace(replicas=(before.learner,), learner="", born=0)
                lost -= 1
        return after._replace(seats=seats, endpoints=job.endpoints), lost

    return without


def same_epoch(original: Original) -> Original:
    def following(self: Seat, **changes: Any) -> Seat:
        after: Seat = original(self, **changes)
        return after._replace(epoch=self.epoch)

    return following


def change_seats_of_any_epoch(original: Original) -> Original:
    def reseated(job: Any, sender: str, number: int, epoch: int, *rest: Any) -> Any:
        seat = job.seats.get(number)
        return original(job, seat.replicas[0] if seat is not None and seat.replicas else sender, number, seat.epoch if seat is not None else epoch, *rest)

    return reseated


def drain_at_once(original: Original) -> Original:
    """Whoever is to leave leaves, whether or not enough others have a copy."""

    def settled(seat: Seat, copies: int, gone: Any) -> Any:
        stay = tuple(name for name in seat.replicas if name not in gone)
        return stay or original(seat, copies, gone)

    return settled


def never_refill(original: Original) -> Original:
    return lambda self: []


def two_on_one_server(original: Original) -> Original:
    """A learner may be a copy already."""

    def named(self: Any, ring: Any, number: int, avoid: Any) -> str:
        seat = self.seats[number]
        return str(seat.replicas[0]) if seat.replicas else str(original(self, ring, number, avoid))

    return named


def add_who_is_not_needed(original: Original) -> Original:
    """A learner is added although whom it should have replaced stays."""

    def added(job: Any, number: int, drained: Any) -> Any:
        seat = job.seats[number]
        after = original(job, number, drained)
        if seat.learner in after.seats[number].replicas:
            return after
        whole = seat.next(replicas=(*seat.replicas, seat.learner), learner="")
        return after._replace(seats={**job.seats, number: whole}, endpoints=job.endpoints)

    return added
