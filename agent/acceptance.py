"""How one request is answered before it is carried out: async=1, and t= when its time is over.

    keep a copy in pend.<slot> -> answer -> (those before it) -> carried out -> the copy goes

Owns the request's slot and how it comes to be accepted.  The walk itself is the operation's, the row of accepted
requests the channel's (`Behind`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..core.errors import Code
from . import effects as e
from .behind import Behind, Failure

if TYPE_CHECKING:
    from .operation import Operation

FAR_US = 1 << 62


class Acceptance:
    """Of one request that wants to be accepted, or has others before it that were."""

    __slots__ = ("operation", "behind", "slot", "keeping")

    def __init__(self, operation: Operation, behind: Behind, slot: int = -1) -> None:
        self.operation = operation
        self.behind = behind
        self.slot = slot  # of its copy, -1 = there is none
        self.keeping = False  # the copy is being made

    # -- those before it

    def held_back(self) -> bool:
        """Must what was accepted before be carried out, or told, first?  (`init` gives values that it may be waiting for.)"""
        behind, operation = self.behind, self.operation
        request, delivery = operation.request, operation.delivery
        if operation.accepted:
            return bool(behind.queue) and behind.queue[0] is not operation
        if request.unwaited:
            return bool(behind.failures) or operation.channel.owed or (self.slot < 0 and not behind.free)
        if request.verb == "init":
            return bool(behind.queue) and operation.job.ready
        if delivery.leaving:
            return bool(behind.queue)
        return delivery.pushing or delivery.ticking or request.pulls

    def tell_failures(self) -> list[Any]:
        """What was accepted has failed: this request is refused in its place, and nothing of it is applied."""
        behind = self.behind
        if self.operation.accepted or behind.queue or not behind.failures:
            return []
        failures = behind.forget_failures()
        text = "; ".join(failure.told() for failure in failures)
        effects = self.operation.fail(failures[0].code, text, told=True)
        return effects + [e.DropPush(self.operation.channel.name, failure.slot) for failure in failures]

    # -- being accepted

    def keep(self) -> list[Any]:
        """Copy what it brings: then nobody need wait for it."""
        if self.slot < 0:
            self.slot = self.behind.take()
        self.keeping = True
        return [e.KeepPush(self.operation.channel.name, self.slot, self.operation.request)]

    def on_kept(self, kept: e.PushKept) -> list[Any]:
        operation = self.operation
        if operation.over or not self.keeping or kept.slot != self.slot:
            return []
        self.keeping = False
        if not kept.code:
            return self._give()
        self.behind.release(self.slot)
        self.slot = -1
        return [] if operation.delivery.begun else operation.fail(kept.code, kept.text)  # what was begun is waited for all the same

    def _give(self) -> list[Any]:
        """The program has its answer; from here on the request is nobody's but ours."""
        operation = self.operation
        request, delivery, channel = operation.request, operation.delivery, operation.channel
        operation.accepted = delivery.counted = True
        operation.limit_us = FAR_US
        operation.let_go()
        if request.unwaited:
            return channel.accept(operation.answer(), "", ticking=False)
        text = f"no answer within t={request.timeout_ms} ms; it was accepted and is carried out later: do not send it again, pull"
        return channel.accept(None, text, ticking=delivery.ticking)

    def time_out(self) -> list[Any]:
        """t= is over.  A pull has done nothing; anything else is accepted, if there is room for it."""
        operation = self.operation
        operation.limit_us = FAR_US
        request, delivery = operation.request, operation.delivery
        late = f"no answer within t={request.timeout_ms} ms"
        if not delivery.pushing and not delivery.ticking:
            return operation.fail(Code.TIMEOUT, f"{late}; nothing was done")
        if delivery.carried:
            return operation.fail(Code.TIMEOUT, f"{late}; it is carried out, only its values are not there yet: pull")
        if delivery.begun or (self.behind.free and not operation.channel.owed):
            self.slot = self.behind.take()
            return self.keep() if operation.read else operation.read_data()
        operation.close()
        return operation.channel.again(f"{late}, since requests that were accepted before are still under way: ring again in a moment")

    # -- its end

    def end(self) -> list[Any]:
        """It is where it belongs: its copy may go."""
        delivery = self.operation.delivery
        self.operation.close()
        self.operation.channel.carried(delivery.crc, ticking=delivery.ticking)
        return self.drop_copy()

    def fail(self, code: Code, text: str) -> None:
        """The program is told with its next request."""
        operation, delivery = self.operation, self.operation.delivery
        ticking = delivery.ticking and not delivery.ticked
        self.behind.failures.append(Failure(operation.request, self.slot, code, text, ticking, delivery.pushed, delivery.held()))
        operation.close()

    def forget(self) -> None:
        """It was accepted and is given up, since nobody is left who could be told: it does not count."""
        operation, delivery = self.operation, self.operation.delivery
        operation.channel.undo(operation.request, ticking=delivery.ticking and not delivery.ticked, pushed=delivery.pushed)
        self._free()

    def _free(self) -> int:
        """The slot is anybody's again."""
        slot, self.slot, self.keeping = self.slot, -1, False
        if slot >= 0:
            self.behind.release(slot)
        return slot

    def drop_copy(self) -> list[Any]:
        if self.slot < 0:
            return []
        slot = self._free()
        return [e.DropPush(self.operation.channel.name, slot)]
