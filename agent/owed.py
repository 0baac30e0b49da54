"""What a request still waits for, and when it is asked for again.

Ranges and the clock owe answers that depend on nobody else: those are asked for again.  For other workers one waits, and
asks now and then how the clock stands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..shm_protocol.page import PARKED
from ..wire import messages as m
from . import effects as e

if TYPE_CHECKING:
    from .operation import Operation


class Owed:
    """Of one request; made whenever somebody asks."""

    __slots__ = ("operation",)

    def __init__(self, operation: Operation) -> None:
        self.operation = operation

    def on_time(self, now_us: int) -> list[Any]:
        """Ask again for what a server owes us; ask how the clock stands when we wait for other workers."""
        operation = self.operation
        patience, limits = operation.patience, operation.limits
        if operation.over:
            return []
        if now_us >= operation.limit_us and not operation.orphan:
            return operation.acceptance.time_out()
        if now_us < patience.due_us:
            return []
        effects: list[Any] = []
        if not operation.started or not operation.read:
            patience.look_again(now_us + limits.resend_us)
        elif self.by_clock() or self.ranges():
            if patience.is_over(now_us):
                effects += [*self.resend(), *self.resend_to_clock()]
        else:
            effects += self._ask_standing(now_us)
            patience.look_again(now_us + limits.poll_us)
        if not operation.parked and not operation.orphan and not operation.accepted:
            operation.parked = True
            effects.append(e.SetState(operation.channel.name, PARKED))
        return effects

    def ranges(self) -> list[int]:
        """Ranges that owe us an answer which depends on nobody else."""
        operation = self.operation
        delivery, offer, fetch = operation.delivery, operation.offer, operation.fetch
        scatter = delivery.scatter if delivery.scatter is not None or offer is None else offer.scatter
        owing = scatter.owing() if scatter is not None else []
        if not owing and not operation.orphan and fetch is not None and fetch.gate_open:
            owing = fetch.gather.owing()
        return owing

    def by_clock(self) -> bool:
        """The clock owes us an answer which depends on nobody else."""
        operation = self.operation
        if operation.delivery.owed_by_clock or (operation.piece is not None and operation.piece.owed_by_clock):
            return True
        return operation.offer is not None and not operation.orphan and operation.offer.owed_by_clock()

    def resend(self, moved: frozenset[int] | None = None) -> list[Any]:
        """To ranges: all of them, or those that have moved."""
        operation = self.operation
        effects = operation.delivery.resend(moved)
        if operation.delivery.scatter is None and operation.offer is not None and operation.offer.scatter is not None:
            effects += operation.offer.scatter.resend(moved)
        if operation.fetch is not None and not operation.orphan:
            effects += operation.fetch.resend(moved)
        return effects

    def resend_to_clock(self) -> list[Any]:
        operation = self.operation
        if operation.piece is not None:
            return list(operation.piece.resend_to_clock())
        return operation.delivery.resend_to_clock() or ([] if operation.offer is None else list(operation.offer.resend_to_clock()))

    def _ask_standing(self, now_us: int) -> list[Any]:
        """In case a notice was lost.  One question per job and period serves all its channels."""
        operation = self.operation
        job, channel = operation.job, operation.channel
        effects: list[Any] = [] if operation.offer is None else list(operation.offer.poll())
        if now_us - job.asked_us >= operation.limits.poll_us // 2:
            job.asked_us = now_us
            effects += job.to_clock(m.StandingAsk, channel.worker, channel.gen)
        return effects
