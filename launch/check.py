"""What `plugml run --check` prints: everything that would happen, in sentences.  Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

from . import words
from .plan import RunPlan


class Room(NamedTuple):
    """Bytes needed and bytes there, for the channels in `root` and for the result."""

    root: str
    channels: int
    root_free: int
    result: int
    result_free: int


def check_lines(plan: RunPlan, room: Room, threads: str) -> list[str]:
    """The whole report; the last line is `ok`."""
    spec = plan.spec
    where = f"cluster {plan.cluster}" if plan.cluster else f"a private cluster with {words.count(plan.servers, 'server')}"
    lines = [f"job {spec.name}: {words.step_line(plan)}", f"on {where}", words.reproducible_line(plan)]
    lines += [words.owner_line(table, spec.combine_of(table)) for table in spec.tables]
    lines += [f"worker {number}: {words.command_line(plan.arguments(number))}" for number in shown(plan)]
    if len(shown(plan)) < plan.workers:
        lines.append(f"... {plan.workers} workers in all")
    lines.append(loss_line(plan))
    if threads:
        lines.append(threads)
    lines.append(f"channels: {words.amount(room.channels)} needed in {room.root}, {words.amount(room.root_free)} free")
    lines.append(f"result: {words.amount(room.result)} needed in {plan.result}, {words.amount(room.result_free)} free")
    return [*lines, *plan.notes, "ok"]


def shown(plan: RunPlan) -> list[int]:
    return list(range(min(plan.workers, words.NAMED_MAX)))


def loss_line(plan: RunPlan) -> str:
    """What happens when a worker dies."""
    spec = plan.spec
    after = {"wait": "then the others wait", "shrink": "then the others go on without it", "stop": "then the run stops"}
    restarts = words.count(spec.max_restarts, "restart")
    return f"a worker that fails by itself stops the run; one killed by a signal gets {restarts}, {after[spec.on_worker_loss]}"


def check_document(plan: RunPlan, room: Room) -> dict[str, Any]:
    """The same for `--json`."""
    return {
        "job": plan.spec.to_document(), "commands": [list(plan.arguments(number)) for number in range(plan.workers)],
        "cluster": plan.cluster, "servers": plan.servers, "result": plan.result, "step": words.step_line(plan), "room": room._asdict(),
        "notes": list(plan.notes),
    }  # fmt: skip
