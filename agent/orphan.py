"""What becomes of a request whose program has ended: what was begun is brought to an end, the rest is forgotten.

What has reached some ranges reaches all of them, and its tick the clock: no half of it stays behind.  What was accepted
counts as begun.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .acceptance import FAR_US

if TYPE_CHECKING:
    from .operation import Operation


def abandon(operation: Operation) -> bool:
    """Nobody waits for the answer any more.  True while what was begun of it is still on its way."""
    if operation.over:
        return False
    operation.orphan = True
    operation.limit_us = FAR_US  # nobody is left who would be told TIMEOUT
    delivery = operation.delivery
    if operation.accepted:
        return not _is_vain(operation)
    if (delivery.pushing or delivery.ticking) and (operation.taken_up or delivery.begun):
        _bury(operation)
    else:
        operation.drop()
    return not operation.over


def pump(operation: Operation) -> list[Any]:
    """Everything that has become possible."""
    if not operation.job.ready:
        if _is_vain(operation):
            operation.drop()
        return []
    if not operation.read:
        return operation.read_data()
    operation.pulling = False
    if not operation.prepared and (error := operation.prepare()) is not None:
        return operation.fail(error.code, error.text)
    effects = operation.delivery.pump(operation)
    return effects + _bury(operation)


def _is_vain(operation: Operation) -> bool:
    """There are no first values, as the clock says too: nothing was ever pushed, and perhaps never can be."""
    job = operation.job
    return job.plan is not None and not job.ready and operation.channel.worker in job.gens


def _bury(operation: Operation) -> list[Any]:
    """Once it has been carried out it counts, although nobody is told."""
    delivery = operation.delivery
    if not delivery.carried:
        return []
    if operation.accepted:
        return operation.acceptance.end()
    operation.channel.bury(operation.request, pushed=delivery.pushing, ticked=delivery.ticking)
    operation.drop()
    return []
