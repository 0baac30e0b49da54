"""Every timeout, size and count: the unit in the name, the reason in the comment.

A machine takes its `Limits` as an argument, so that the simulator can draw them anew for every seed; the second
half of each line (`simulated`) is the range it draws from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields

MS = 1_000
SECOND = 1_000_000
KIB = 1 << 10
MIB = 1 << 20

CACHE_LINE_BYTES = 64


def _limit(default: int, low: int, high: int) -> int:
    value: int = field(default=default, metadata={"simulated": (low, high)})
    return value


@dataclass(slots=True, frozen=True)
class Limits:
    """Bounds of one node.  Times are microseconds of the monotonic clock."""

    # -- liveness: a beat comes from the main loop, so that a hung process is seen although its sockets still answer
    beat_us: int = _limit(500 * MS, 100 * MS, 1 * SECOND)
    suspect_us: int = _limit(1_500 * MS, 500 * MS, 3 * SECOND)
    dead_us: int = _limit(3 * SECOND, 1 * SECOND, 6 * SECOND)
    # a master whose own loop was this late blames itself and restarts its timers
    late_us: int = _limit(500 * MS, 500 * MS, 500 * MS)
    # -- wire
    resend_us: int = _limit(250 * MS, 20 * MS, 500 * MS)  # above the time of a 4 MiB block on a busy host
    resend_us_max: int = _limit(2 * SECOND, 500 * MS, 4 * SECOND)
    poll_us: int = _limit(200 * MS, 50 * MS, 400 * MS)  # an agent asks for the clock in case a notice was lost
    frame_bytes_max: int = _limit(4 * MIB + 4 * KIB, 4 * MIB + 4 * KIB, 4 * MIB + 4 * KIB)  # a block and room for none
    frames_max: int = _limit(4_096, 4_096, 4_096)  # MAXMSGSIZE bounds one frame only, so the count is bounded here
    control_bytes_max: int = _limit(64 * KIB, 64 * KIB, 64 * KIB)  # msgpack of many tiny arrays is slow to decode
    window_bytes: int = _limit(64 * MIB, 512, 1 * MIB)  # unanswered bytes per server and agent
    queue_bytes_max: int = _limit(256 * MIB, 2 * MIB, 256 * MIB)  # unsent bytes per peer: a stopped one gets no more
    components_max: int = _limit(1_024, 1_024, 1_024)
    segments_max: int = _limit(4_095, 4_095, 4_095)
    # -- server
    parked_max: int = _limit(4_096, 2, 64)  # pulls of one range that wait; the oldest is dropped, agents ask again
    staged_max: int = _limit(1_024, 1_024, 1_024)  # pushes of one worker in one clock (BSP), each kept until the close
    closes_max: int = _limit(1_024, 2, 64)  # clocks that a worker may be ahead of the last one all ranges closed
    turn_bytes: int = _limit(2 * MIB, 256, 64 * KIB)  # of values that one event may step, so that answers flow meanwhile
    # -- copies
    replicate_us: int = _limit(50 * MS, 10 * MS, 100 * MS)  # what a backup has not acked is sent again after this
    replicate_bytes: int = _limit(4 * MIB, 512, 64 * KIB)  # of entries sent again to one backup at once
    behind_bytes_max: int = _limit(64 * MIB, 4 * KIB, 1 * MIB)  # of entries that a backup has not acked: then it is dropped
    behind_us_max: int = _limit(3 * SECOND, 1 * SECOND, 6 * SECOND)  # the same for the oldest of them
    copy_part_bytes: int = _limit(1 * MIB, 128, 4 * KIB)  # of a copy in one message
    copy_parts: int = _limit(4, 1, 4)  # of a copy asked for at once
    copy_bytes_a_second: int = _limit(200 * MIB, 64 * KIB, 16 * MIB)  # that one learner asks for
    marks_us: int = _limit(1 * SECOND, 50 * MS, 200 * MS)  # digests of copies are compared as often as this
    learners_max: int = _limit(2, 1, 2)  # ranges that one server is filled with at a time
    refill_us: int = _limit(5 * SECOND, 200 * MS, 1 * SECOND)  # a server that was dropped from a range is left alone for so long
    # -- ring
    ranges: int = _limit(256, 4, 16)  # Q: a power of two, fixed for the life of a cluster
    points: int = _limit(64, 4, 16)  # V: positions of one server on the ring
    # -- dense blocks
    block_bytes_max: int = _limit(1 * MIB, 256, 4 * KIB)  # blocks of 1 MiB in flight together reach a raw socket's speed
    block_bytes_min: int = _limit(64 * KIB, 64, 256)
    # -- channel
    explain_us: int = _limit(10 * SECOND, 10 * SECOND, 10 * SECOND)  # a wait says after this what it waits for
    # -- launcher
    watch_us: int = _limit(1 * SECOND, 200 * MS, 1 * SECOND)  # it asks the agent how the clock stands
    gone_us: int = _limit(30 * SECOND, 10 * SECOND, 30 * SECOND)  # an agent that is away so long is given up
    # -- jobs
    workers_max: int = _limit(4_096, 4_096, 4_096)
    tables_max: int = _limit(1_024, 1_024, 1_024)
    jobs_max: int = _limit(1_024, 1_024, 1_024)
    nodes_max: int = _limit(1_024, 1_024, 1_024)
    # -- master
    leader_beat_us: int = _limit(500 * MS, 100 * MS, 500 * MS)  # the leading master writes its beat as often as this
    leader_dead_us: int = _limit(2_500 * MS, 1 * SECOND, 2_500 * MS)  # no change of it for so long: another takes over
    state_bytes_max: int = _limit(1 * MIB, 1 * MIB, 1 * MIB)  # the stored document: written whole at each change
    jobs_kept: int = _limit(64, 2, 8)  # ended jobs that are remembered, beside those that run
    dead_kept: int = _limit(64, 2, 8)  # dead nodes that are remembered, for `status`
    changes_max: int = _limit(4_096, 64, 256)  # changes of state that wait to be stored; more are asked again later
    settle_us: int = _limit(10 * SECOND, 1 * SECOND, 2 * SECOND)  # the first job waits so long for the servers that were promised


def drawn(draw: Callable[[int, int], int]) -> Limits:
    """Limits for one simulated run; `draw(low, high)` gives an integer of that closed range."""
    values = {}
    for item in fields(Limits):
        low, high = item.metadata["simulated"]
        values[item.name] = draw(low, high)
    for power in ("ranges", "block_bytes_max", "block_bytes_min"):
        values[power] = 1 << (values[power].bit_length() - 1)
    values["suspect_us"] = max(values["suspect_us"], 2 * values["beat_us"])
    values["leader_dead_us"] = max(values["leader_dead_us"], 4 * values["leader_beat_us"])
    values["dead_us"] = max(values["dead_us"], 2 * values["suspect_us"])
    return Limits(**values)
