"""What the master tells people: nodes, jobs and ranges as plain documents, cut into pages that fit into a message.

Reads, never changes.  Every page has `next`, the argument `after` that asks for the page behind it, -1 = there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack

from ..core.limits import KIB
from . import saves
from .catalog import Job, State, is_drained
from .membership import DEAD, Life, Membership
from .placement import table_lines, weights_of
from .words import held_by, seat_reason

PAGE_BYTES = 48 * KIB  # of items; head fields and the envelope fit beside them
LINES_MAX = 16  # tables that `status` names of one job

Render = Callable[[str, Any], Any]


def status(
    state: State, members: Membership, who: tuple[str, str, str], alarms: list[str], after: int, now_us: int
) -> dict[str, Any]:
    """Everybody and everything: `nodes` and `jobs`, page by page, and on the first what should be known at once."""
    cluster, master, trouble = who
    lives = [life for _, life in sorted(members.lives.items())] + list(members.dead.values())
    items: list[tuple[str, Any]] = [("nodes", life) for life in lives]
    items += [("jobs", job) for _, job in sorted(state.jobs.items())]
    held = held_by(state)

    def render(kind: str, item: Any) -> dict[str, Any]:
        if kind == "jobs":
            return job_row(item, state.ring_ranges)
        drained = is_drained(item.record.name, state.drained)
        return node_row(item, now_us) | {"drained": drained} | held.get(item.record.name, {})

    head = {
        "cluster": cluster, "master": master, "term": state.term, "token": state.token, "ring_ranges": state.ring_ranges,
        "up_us": now_us - members.start_us, "store": trouble or "ok", "drained": state.drained_ids,
        "alarms": alarms if after == 0 else [],
    }  # fmt: skip
    return {**head, **_page(("nodes", "jobs"), items, render, after)}


def jobs(state: State, after: int) -> dict[str, Any]:
    """Every job, page by page."""
    items = [("jobs", job) for _, job in sorted(state.jobs.items())]
    return _page(("jobs",), items, lambda _, item: job_row(item, state.ring_ranges), after)


def job(state: State, found: Job, after: int) -> dict[str, Any]:
    """One job to the last range: `tables`, `ranges`, `workers`, page by page; `job` on the first."""
    weights = weights_of(found.spec, state.ring_ranges)
    items: list[tuple[str, Any]] = [("tables", line) for line in table_lines(found, state.ring_ranges, whole=True)]
    for number, seat in sorted(found.seats.items()):
        row = {
            "range": number, "epoch": seat.epoch, "replicas": list(seat.replicas), "learner": seat.learner,
            "missing": max(0, found.spec.copies - len(seat.replicas)), "bytes": weights.get(number, 0),
            "why": seat_reason(found, number, state.drained),
        }  # fmt: skip
        items.append(("ranges", row))
    for worker, item in sorted(found.attached.items()):
        items.append(("workers", {"worker": worker, "gen": item.gen, "agent": item.agent}))
    page = _page(("tables", "ranges", "workers"), items, lambda _, item: item, after)
    return {"job": job_row(found, state.ring_ranges), **page} if after == 0 else page


def node_row(life: Life, now_us: int) -> dict[str, Any]:
    """One node.  `age_us` is the time since its last sign of life; `counters` came with its last beat."""
    record = life.record
    return {
        "node": record.name, "role": record.role, "host": record.host, "pid": record.pid, "endpoint": record.endpoint,
        "build": record.build, "state": life.state, "why": life.why or life.unreached, "age_us": now_us - life.last_us,
        "known_us": now_us - life.since_us, "token": life.token, "counters": {} if life.state == DEAD else dict(life.counters),
    }  # fmt: skip


def job_row(found: Job, ring_ranges: int) -> dict[str, Any]:
    """One job and where its tables are, in sentences."""
    lines = table_lines(found, ring_ranges)
    if len(lines) > LINES_MAX:
        lines = [*lines[:LINES_MAX], f"... and {len(lines) - LINES_MAX} tables more: plugml status {found.spec.name}"]
    return {
        "job": found.number, "name": found.spec.name, "state": found.state, "reason": found.reason,
        "workers": found.workers, "joined": found.workers - found.spec.workers, "attached": len(found.attached), "consistency": found.spec.consistency,
        "combine": found.spec.combine, "copies": found.spec.copies, "min_insync": found.spec.min_insync,
        "missing": sum(len(seat.replicas) < found.spec.copies for seat in found.seats.values()),
        "learners": sum(bool(seat.learner) for seat in found.seats.values()),
        "moves": sum(map(len, found.moves.values())), "tables": [table.name for table in found.spec.tables[:LINES_MAX]],
        "bytes": sum(table.nbytes for table in found.spec.tables if table.kind == "dense"), "ranges": len(found.seats),
        "servers": found.servers(), "agents": found.agents()[:LINES_MAX], "placement": lines, "why": found.why,
        "checkpoint": saves.document(found),
        "logs": str(found.spec.settings.get("logs", "")),  # where its launcher keeps what the workers print
    }  # fmt: skip


def _page(kinds: tuple[str, ...], items: list[tuple[str, Any]], render: Render, after: int) -> dict[str, Any]:
    """Rows from position `after` on, by kind, as many as fit; every kind is there, if only as an empty list."""
    page: dict[str, Any] = {kind: [] for kind in kinds}
    room = PAGE_BYTES
    for position in range(after, len(items)):
        kind, item = items[position]
        row = render(kind, item)
        room -= len(msgpack.packb(row))
        if room < 0 and position > after:
            return {**page, "next": position}
        page[kind].append(row)
    return {**page, "next": -1}
