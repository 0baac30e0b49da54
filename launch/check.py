"""What `plugml run --check` prints: everything that would happen, in sentences.  Pure."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, NamedTuple

from . import data, modelfile, words
from .plan import RunPlan
from .rules import rule_lines


class Room(NamedTuple):
    """Bytes needed and bytes there: for the channels in `root`, for the result, and (private cluster) for the servers' values."""

    root: str
    channels: int
    root_free: int
    result: int
    result_free: int
    values: int = 0
    memory_free: int = 0


def check_lines(plan: RunPlan, room: Room, threads: str) -> list[str]:
    """The whole report; the last line is `ok`."""
    spec = plan.spec
    where = f"cluster {plan.cluster}" if plan.cluster else f"a private cluster with {words.count(plan.servers, 'server')}"
    lines = [f"job {spec.name}: {words.step_line(plan)}", f"on {where}", words.planned_copies(plan), words.reproducible_line(plan)]
    lines += [words.owner_line(table, spec.combine_of(table)) for table in spec.tables]
    lines += modelfile.lines_of(plan.model, plan.workers) if plan.model else []
    lines += [f"worker {number}: {words.command_line(plan.arguments(number))}" for number in shown(plan)]
    if len(shown(plan)) < plan.workers:
        lines.append(f"... {plan.workers} workers in all")
    lines += data.lines(plan.data, plan.workers, plan.result, plan.first)[: words.NAMED_MAX]
    lines += rule_lines(plan.rules, words.command_line(plan.rules.command))
    if plan.private_dir:
        lines.append(f"each worker starts in a directory of its own, {plan.start_of(plan.first)} and so on, with links to what is here")
    lines.append(loss_line(plan))
    if threads:
        lines.append(threads)
    lines.append(f"channels: {words.amount(room.channels)} needed in {room.root}, {words.amount(room.root_free)} free")
    lines.append(f"result: {words.amount(room.result)} needed in {plan.result}, {words.amount(room.result_free)} free")
    if room.values:
        limit = f", at most {words.amount(plan.spec.memory_bytes)} with their rows" if plan.spec.memory_bytes else ""
        lines.append(f"servers: {words.amount(room.values)} needed for values and optimizers{limit}, {words.amount(room.memory_free)} of memory free")
    lines.append(f"formats: {', '.join(plan.formats)}")
    return [*lines, *plan.notes, "ok"]


def shown(plan: RunPlan) -> list[int]:
    return list(plan.numbers[: words.NAMED_MAX])


def loss_line(plan: RunPlan) -> str:
    """What happens when a worker dies."""
    spec = plan.spec
    after = {"wait": "then the others wait", "shrink": "then the others go on without it", "stop": "then the run stops"}
    restarts = words.count(spec.max_restarts, "restart")
    return f"a worker that fails by itself stops the run; one killed by a signal gets {restarts}, {after[spec.on_worker_loss]}"


def check_document(plan: RunPlan, room: Room) -> dict[str, Any]:
    """The same for `--json`."""
    return {
        "job": plan.spec.to_document(), "commands": [list(plan.arguments(number)) for number in plan.numbers],
        "cluster": plan.cluster, "servers": plan.servers, "result": plan.result, "step": words.step_line(plan), "copies": words.planned_copies(plan), "room": room._asdict(),
        "notes": list(plan.notes), "data": data.document(plan.data, plan.workers, plan.result), "formats": list(plan.formats),
        "model": asdict(plan.model) if plan.model else None, "evaluate": list(plan.rules.command), "rules": rule_lines(plan.rules, words.command_line(plan.rules.command)),
    }  # fmt: skip
