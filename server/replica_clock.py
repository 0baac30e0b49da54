"""Which messages to a job's clock become entries of its range's log, and which are answered from what is applied.

Whatever changes the clock is an entry: `ClockMachine` meets it on every copy, in the same order.  Knows neither copies nor
the log.
"""

from __future__ import annotations

from typing import Any, Union

from ..core.effects import Effects
from ..wire import messages as m
from .clock import ClockMachine

#: An entry, or what is answered at once (silence too).
Verdict = Union[tuple[Any, ...], Effects]


def consider(clock: ClockMachine, sender: str, message: Any, now_us: int) -> Verdict:
    """A message of a stream to the clock.  Raises `PeerError`, and then nothing has changed."""
    if type(message) is m.Refuse:  # of a range that cannot close
        return message if clock.failure is None and clock.outbox.owns(sender, message.range) else []
    if type(message) is m.StandingAsk:
        if message.worker == m.NOBODY or not _news(clock, sender, message):
            return clock.on_message(sender, message, now_us)
        return m.Join(*message)  # by speaking an incarnation joins, and an agent says that it speaks for it
    if type(message) is m.ClaimAsk:
        member = clock.members.get(message.worker)
        known = member is not None and message.gen <= member.gen and not _news(clock, sender, message)
        return clock.on_message(sender, message, now_us) if known and not clock.claims.is_free else message
    if type(message) is m.SaveAsk:
        asked = message._replace(held=0)
        return clock.on_message(sender, asked, now_us) if asked.after < clock.saves.begun or clock.saves.asked else asked
    if type(message) is m.Tick:
        clock.weights(message.weights)
        member = clock.members.get(message.worker)
        if member is not None and message.clock < member.finished and not _news(clock, sender, message):
            return clock.on_message(sender, message, now_us)
        if clock.too_far(message.clock):
            return []  # the agent asks again
        if clock.saves.stops(sender, message):
            held = clock.saves.all_held(clock.members.rows.values())
            return m.SaveAsk(*message[:3], clock.saves.begun, clock.saves.holding) if held else []
    return message  # type: ignore[no-any-return]


def _news(clock: ClockMachine, sender: str, message: Any) -> bool:
    """Whether the clock would know the stream otherwise after this message."""
    member = clock.members.get(message.worker)
    return member is not None and message.gen >= member.gen and (message.gen, sender) != (member.gen, member.agent)
