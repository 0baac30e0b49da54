"""Sabotages of the rules of accepted requests, input, stop rules and staleness: see `mutants.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from plugml.agent.acceptance import Acceptance
from plugml.agent.channel import DENSE, Channel
from plugml.agent.delivery import Delivery
from plugml.agent.effects import ChannelOpened, DropPush
from plugml.agent.programs import Programs
from plugml.agent.router import Job
from plugml.server.clock import ClockMachine
from plugml.server.worklist import Worklist
from plugml.shm_protocol.page import FLAG_PIECE
from plugml.wire import messages as m

Original = Callable[..., Any]


# -- stop rules


def decide_anew(original: Original) -> Original:
    def on_stop_ask(self: ClockMachine, sender: str, ask: m.StopAsk) -> Any:
        self._asked_to_stop, self.stop_clock = False, -1
        return original(self, sender, ask)

    return on_stop_ask


def stop_behind(original: Original) -> Original:
    """The end is where the slowest one is, which others have passed."""

    def on_stop_ask(self: ClockMachine, sender: str, ask: m.StopAsk) -> Any:
        if not self._asked_to_stop:
            self._asked_to_stop, self.stop_clock = True, self.members.slowest + 1
        return original(self, sender, ask)

    return on_stop_ask


def never_say_stop(original: Original) -> Original:
    return lambda self, clock: False


def answer_before_the_standing(original: Any) -> Any:
    """The end of a clock is answered as soon as it was told."""
    return property(lambda self: (self.pushed or not self.pushing) and (self.clock_told or not self.ticking))


def bye_holds(original: Original) -> Original:
    """Who says bye is waited for all the same."""

    def on_leave(self: ClockMachine, sender: str, leave: m.Leave) -> Any:
        member = self._stream(sender, leave)
        return self._standing(member)._replace(end=member.finished) if not isinstance(member, m.Refuse) else member

    return on_leave


# -- input


def lose_the_piece(original: Original) -> Original:
    return lambda self, worker: self.finish(worker)


def another_piece_for_a_repeat(original: Original) -> Original:
    def ask(self: Worklist, worker: int, gen: int, request: int, clocks: int = 0) -> Any:
        hand = self._hands.get(worker)
        if hand is not None and (hand.gen, hand.request) == (gen, request):
            self.finish(worker, clocks)
            self._hands[worker] = self._hands[worker]._replace(request=request - 1)
        return original(self, worker, gen, request, clocks)

    return ask


def give_to_the_dead(original: Original) -> Original:
    """Input goes to whatever incarnation asks."""

    def on_next_ask(self: ClockMachine, sender: str, ask: m.NextAsk) -> Any:
        told = self.work.ask(ask.worker, ask.gen, ask.request)
        return m.NextTold(self.job, self.epoch, self.token, ask.worker, ask.gen, ask.request, *told) if told is not None else None

    return on_next_ask


def finish_at_the_question(original: Original) -> Original:
    """A worker that is lost has done what it held."""

    def on_leave(self: ClockMachine, sender: str, leave: m.Leave) -> Any:
        return original(self, sender, leave._replace(reason="finished"))

    return on_leave


def forget_the_piece(original: Original) -> Original:
    """An adopting agent does not know that a piece could not be written."""

    def init(self: Channel, opened: ChannelOpened, *rest: Any) -> None:
        original(self, opened._replace(flags=opened.flags & ~FLAG_PIECE), *rest)

    return init


def done_at_bye(original: Original) -> Original:
    """A worker that leaves has done its piece, seen or not."""

    def leave(self: Delivery) -> Any:
        self.channel.piece_owed = False
        return original(self)

    return leave


# -- accepted requests


def forget_what_was_accepted(original: Original) -> Original:
    def take_over(self: Programs, channel: Channel, job: Job, opened: ChannelOpened, now_us: int) -> Any:
        return [DropPush(channel.name, slot) for slot, _ in opened.kept] + original(self, channel, job, opened._replace(kept=()), now_us)

    return take_over


def turn_round_what_was_accepted(original: Original) -> Original:
    def take_over(self: Programs, channel: Channel, job: Job, opened: ChannelOpened, now_us: int) -> Any:
        return original(self, channel, job, opened._replace(kept=opened.kept[::-1]), now_us)

    return take_over


def never_drop(original: Original) -> Original:
    """The copy stays when its push has been carried out: the next agent does so once more."""

    def drop_copy(self: Acceptance) -> Any:
        original(self)
        return []

    return drop_copy


def drop_at_once(original: Original) -> Original:
    """The copy goes with the answer, before it is carried out.  (It was read already.)"""

    def give(self: Acceptance) -> Any:
        operation = self.operation
        data = operation.data
        effects = original(self)
        if data is not None and not operation.delivery.begun:
            operation.data, operation.read = data, True
        return [*effects, DropPush(operation.channel.name, self.slot)]

    return give


def wait_for_nobody(original: Original) -> Original:
    """A pull does not wait for what was accepted before."""

    def held_back(self: Acceptance) -> bool:
        request = self.operation.request
        return False if request.verb == "pull" else bool(original(self))

    return held_back


def lose_the_late_tick(original: Original) -> Original:
    """A step that is answered by TIMEOUT is carried out without its tick."""

    def give(self: Acceptance) -> Any:
        effects = original(self)
        delivery = self.operation.delivery
        if delivery.ticking and not delivery.clock_told:
            delivery.ticked = True
        return effects

    return give


def wait_for_an_orphan(original: Original) -> Original:
    """A request keeps its time limit when its program has ended."""

    def abandon(operation: Any) -> bool:
        limit_us = operation.limit_us
        busy = bool(original(operation))
        if operation.orphan:
            operation.limit_us = limit_us
        return busy

    return abandon


def forget_the_head(original: Original) -> Original:
    """A text that outgrew its slot was not found again: the empty parts behind it lie outside."""

    def read_kept(head: bytes, file_bytes: int) -> Any:
        found = original(head, file_bytes)
        if found is None or max(offset + size for offset, size in zip(found.offsets, found.sizes)) <= file_bytes:
            return found
        return None

    return read_kept


# -- weights, staleness


def weigh_dense_only(original: Original) -> Original:
    def weigh(self: Channel, request: Any, weight: float) -> None:
        original(self, request, weight)
        self.sums = {name: found for name, found in self.sums.items() if name == DENSE}

    return weigh


def forget_sums_of_rows(original: Original) -> Original:
    """An adopting agent knows the weights of the dense tables alone."""

    def init(self: Channel, opened: ChannelOpened, *rest: Any) -> None:
        original(self, opened._replace(sums=()), *rest)

    return init


def one_clock_more(original: Original) -> Original:
    """The gate of SSP opens a clock early."""
    return lambda self, clock: max(0, original(self, clock) - 1)
