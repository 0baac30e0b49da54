"""Small changes of one method each, that break a rule: the other half of `mutants.py`.

Every function takes the method and gives the one that takes its place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from plugml.agent.channel import Channel
from plugml.agent.delivery import Delivery
from plugml.agent.effects import Reply, SetDone
from plugml.agent.transfer import Scatter
from plugml.core.effects import Send
from plugml.master.ledger import Ledger, Released
from plugml.server.clock import ClockMachine
from plugml.server.node import ServerMachine
from plugml.server.parking import Parked
from plugml.server.range import RangeMachine
from plugml.server.staging import Staging
from plugml.wire import messages as m

Original = Callable[..., Any]


def forget_repeats(original: Original) -> Original:
    def on_push(self: RangeMachine, sender: str, push: m.Push) -> Any:
        worker, gen, seq, prev, _clock, _weight = push.components[0]
        row_gen, last = self.rows.get(worker, (0, 0))
        if gen == row_gen and seq <= last:
            self.rows[worker] = (gen, prev)
        return original(self, sender, push)

    return on_push


def no_fence(original: Original) -> Original:
    def on_push(self: RangeMachine, sender: str, push: m.Push) -> Any:
        worker, gen = push.components[0][:2]
        if gen < self.rows.get(worker, (0, 0))[0]:
            self.rows[worker] = (gen, push.components[0].prev)
        return original(self, sender, push)

    return on_push


def ack_what_is_not_taken(original: Original) -> Original:
    def on_push(self: RangeMachine, sender: str, push: m.Push) -> Any:
        worker, gen, seq, _prev, clock, _weight = push.components[0]
        if clock % 3 == 2 and seq > self.rows.get(worker, (0, 0))[1]:
            return [Send(sender, self._ack(worker, gen, seq))]
        return original(self, sender, push)

    return on_push


def answer_before_the_close(original: Original) -> Original:
    """The range says that it stands where it was asked to stand.  (An honest early answer the agent would not take.)"""

    def answer(self: RangeMachine, asked: Any) -> Any:
        effects = []
        for sender, pull in asked:
            for effect in original(self, [Parked(sender, pull._replace(closed=min(pull.closed, self.closed)))]):
                told = effect.message
                effects.append(Send(sender, told._replace(closed=pull.closed)) if isinstance(told, m.Values) else effect)
        return effects

    return answer


def answer_before_own_push(original: Original) -> Original:
    def answer(self: RangeMachine, asked: Any) -> Any:
        return original(self, [Parked(sender, pull._replace(after=0)) for sender, pull in asked])

    return answer


def close_without_the_slowest(original: Original) -> Original:
    def done(self: ClockMachine, clock: int) -> bool:
        return bool(original(self, clock)) or len(self._ticks.get(clock, ())) >= max(1, self.members.count - 1)

    return done


def close_twice(original: Original) -> Original:
    """A repeat closes the next clock."""

    def on_close(self: ServerMachine, sender: str, close: m.Close) -> None:
        hosted = self.jobs.get(close.job)
        stand = [held.closed for held in hosted.ranges.values()] if hosted is not None else []
        original(self, sender, close._replace(clock=max([close.clock, *stand])))

    return on_close


def sum_dead_generations(original: Original) -> Original:
    def plan(self: Staging, clock: int, members: Any) -> Any:
        every = [component[:2] for staged in self._of(clock) for component in staged.components]
        return original(self, clock, sorted({*members, *every}))

    return plan


def write_into_lent(original: Original) -> Original:
    return lambda self, array: False


def tick_before_the_acks(original: Original) -> Original:
    def pump(self: Delivery, owner: Any) -> Any:
        effects = original(self, owner)
        if self.ticking and not self.clock_told and self.scatter is not None and not self.scatter.unsent and not self.scatter.asking:
            self.clock_told = True
            effects += [send._replace(message=send.message._replace(seq=0, ranges=())) for send in self._tick()]
        return effects

    return pump


def one_ack_for_all(original: Original) -> Original:
    def on_ack(self: Scatter, ack: Any) -> bool:
        news = bool(original(self, ack))
        if news and not self.unsent and not self.asking:
            for part, server in self.unacked.values():
                self.credits.give(server, part.nbytes)
            self.unacked.clear()
        return news

    return on_ack


def reply_before_done(original: Original) -> Original:
    def finish(self: Channel, *arguments: Any, **named: Any) -> Any:
        effects = original(self, *arguments, **named)
        replies = [effect for effect in effects if isinstance(effect, Reply)]
        at = next((number for number, effect in enumerate(effects) if isinstance(effect, SetDone)), len(effects))
        return [*effects[:at], *replies, *(effect for effect in effects[at:] if not isinstance(effect, Reply))]

    return finish


def answer_an_old_line_again(original: Original) -> Original:
    """An adopting agent that does not look at done_seq acts on the line once more."""

    def was_answered(self: Channel, line: bytes) -> bool:
        if original(self, line):
            self.done_seq -= 1
        return False

    return was_answered


def take_lower_claims(original: Original) -> Original:
    def on_init(self: RangeMachine, sender: str, init: m.Init) -> Any:
        if init.claim < self.claim:
            self.claim = self.underway.claim = init.claim - 1
        return original(self, sender, init)

    return on_init


def keep_a_claim_of_the_dead(original: Original) -> Original:
    return lambda self, worker: None


def no_resend(original: Original) -> Original:
    return lambda self, *arguments: []


def no_checksum(original: Original) -> Original:
    return lambda data, value=0: 0


def hear_dead_generations(original: Original) -> Original:
    """The clock takes whoever speaks for the worker's newest generation."""

    def stream(self: ClockMachine, sender: str, message: Any) -> Any:
        member = self.members.get(message.worker)
        return member if member is not None and message.gen < member.gen else original(self, sender, message)

    return stream


def count_a_tick_without_its_push(original: Original) -> Original:
    return lambda self, ranges, worker, gen, seq: True


def count_repeated_ticks(original: Original) -> Original:
    def on_tick(self: ClockMachine, sender: str, tick: m.Tick) -> Any:
        member = self.members.get(tick.worker)
        return original(self, sender, tick._replace(clock=max(tick.clock, member.finished)) if member is not None else tick)

    return on_tick


def forget_earlier_weights(original: Original) -> Original:
    def init(self: Channel, opened: Any, *rest: Any) -> None:
        original(self, opened._replace(weight=0.0), *rest)

    return init


def follow_any_generation(original: Original) -> Original:
    def attach(state: Any, sender: str, ask: m.AttachAsk) -> Any:
        job = state.jobs.get(ask.job)
        last = job.attached.get(ask.worker) if job is not None else None
        return original(state, sender, ask._replace(after=last.gen if last is not None else 0))

    return attach


def begin_for_any_question(original: Original) -> Original:
    def register(state: Any, sender: str, ask: m.JobAsk, *rest: Any) -> Any:
        named = state.job_named(str(ask.document.get("name")))
        return original(state, sender, ask._replace(after=named.number if named is not None else 0), *rest)

    return register


def answer_before_the_store(original: Original) -> Original:
    """The state is told as soon as it is on its way to the store."""

    def advance(self: Ledger) -> Any:
        released = original(self)
        held, self._held = self._held, Released([], [])
        return Released([*held.effects, *released.effects], [*held.maps, *released.maps])

    return advance


def lead_for_the_dead(original: Original) -> Original:
    """A restarted server takes the ranges of the incarnation before it, with nothing in them."""

    def on_map(self: ServerMachine, sender: str, told: m.MapTold) -> None:
        node_id = self.name.split(".")[0] + "."

        def own(name: str) -> str:
            return self.name if name.startswith(node_id) else name

        document = dict(told.document)
        document["ranges"] = [[number, epoch, [own(name) for name in names], own(learner), born] for number, epoch, names, learner, born in document["ranges"]]
        document["endpoints"] = {own(name): endpoint for name, endpoint in document["endpoints"].items()}
        original(self, sender, told._replace(document=document))

    return on_map


def push_any_clock(original: Original) -> Original:
    return lambda self, clock, gate: True
