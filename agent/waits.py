"""What a request waits for, as one sentence for people: every wait that lasts says it."""

from __future__ import annotations

from collections.abc import Iterable

from .channel import Channel
from .operation import Operation

NAMED_MAX = 4


def explain(operation: Operation, channels: Iterable[Channel], now_us: int) -> str:
    """"clock 41: waiting for worker 3, last seen 12 s ago".  `channels` are those of this host."""
    job, clock = operation.job, operation.request.clock
    first = operation.behind.queue[0] if operation.behind.queue else operation
    if first is not operation and operation.acceptance.held_back():
        return f"{first.request.verb} seq={first.request.seq}, accepted before, goes first; {explain(first, channels, now_us)}"
    if job.map is None:
        return f"clock {clock}: waiting for the map of job {job.name} from the master"
    if not job.ready and (operation.offer is None or not operation.offer.claim):
        assert job.plan is not None
        whose = "" if operation.offer is None else ", which another worker gives"
        return f"clock {clock}: waiting for initial values of table {job.spec.tables[min(job.plan.first_tables)].name}{whose}; a program gives them by `init`"
    owing = operation.owed.ranges()
    if owing:
        servers = sorted({job.routes[number].server.partition(".")[0] or "a lost server" for number in owing})
        ranges = "1 range" if len(owing) == 1 else f"{len(owing)} ranges"
        return f"clock {clock}: waiting for server {', '.join(servers[:NAMED_MAX])}, {ranges} unanswered"
    if operation.owed.by_clock():
        return f"clock {clock}: waiting for server {job.clock_route.server.partition('.')[0]}, which keeps the job's clock"
    return f"clock {clock}: waiting for {_workers(operation, channels, now_us)}"


def _workers(operation: Operation, channels: Iterable[Channel], now_us: int) -> str:
    """Who holds the clock back, and since when: a worker of this host was seen, of others we know how long they are awaited."""
    job = operation.job
    seen_us = {channel.worker: channel.seen_us for channel in channels if channel.number == job.number}
    words = []
    for worker in job.waiting[:NAMED_MAX]:
        if worker in seen_us:
            words.append(f"worker {worker}, last seen {(now_us - seen_us[worker]) // 1_000_000} s ago")
        else:
            words.append(f"worker {worker}, for {(now_us - job.waiting_since_us.get(worker, now_us)) // 1_000_000} s already")
    if len(job.waiting) > NAMED_MAX:
        words.append(f"and {len(job.waiting) - NAMED_MAX} more")
    return "; ".join(words) or "the other workers"
