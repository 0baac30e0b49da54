"""Large pushes and closes are done in slices, so that beats travel between them; nobody sees a range in the middle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from plugml.core.effects import Send
from plugml.core.jobmap import FINISHED
from plugml.core.limits import Limits
from plugml.server.effects import Turn
from plugml.server.turns import Turns
from plugml.wire import messages as m
from tests.scenario.kit import Box, job, table
from tests.scenario.sparse import sparse_table

ROWS = {"e": {row: np.arange(8.0) + row for row in range(64)}}  # 2 KiB
SLOW = Limits(turn_bytes=256)


class Slow(Box):
    """Its turns come back when the test says so."""

    def __init__(self, *tables: Any, **fields: Any) -> None:
        self.turns: list[str] = []
        super().__init__(job(*(tables or (sparse_table(width=8, optimizer="adam"), table("w", 4))), **fields), limits=SLOW)
        self.take()

    def _perform(self, server: str, effects: list[Any]) -> None:
        self.turns += [server for effect in effects if isinstance(effect, Turn)]
        super()._perform(server, [effect for effect in effects if not isinstance(effect, Turn)])

    def turn(self) -> None:
        self.feed(self.turns.pop(0), "", Turn())

    def go_on(self) -> int:
        count = 0
        while self.turns:
            self.turn()
            count += 1
        return count


@pytest.mark.parametrize("consistency", ["asp", "bsp"])
def test_what_comes_while_a_large_push_is_taken_is_done_after_it_in_order(consistency: str) -> None:
    there = Slow(consistency=consistency)
    there.push({"w": np.ones(4)}, rows=ROWS)
    assert there.turns and not there.take()
    there.pull()
    there.push({"w": np.ones(4)}, seq=2, prev=1, rows={"e": {3: np.ones(8)}})
    there.last()
    assert not there.take(), "nobody is answered by a range in the middle of a push"
    assert there.go_on() >= 1
    kinds = [type(message) for message in there.take()]
    assert kinds == [m.PushAck, m.Values, m.PushAck, m.LastTold]

    whole = Box(there.spec)
    whole.push({"w": np.ones(4)}, rows=ROWS)
    whole.pull()
    whole.push({"w": np.ones(4)}, seq=2, rows={"e": {3: np.ones(8)}})
    for one in (there, whole):
        one.tick(0)
        one.take()
    there.go_on()
    assert there.servers["s0.1"].digest() == whole.servers["s0.1"].digest()


def test_beats_come_between_the_slices() -> None:
    there = Slow(consistency="asp")
    there.push({}, rows=ROWS)
    beats = 0
    while there.turns:
        there.now_us += SLOW.beat_us
        there.turn()
        beats += sum(isinstance(message, m.Beat) for message in there.take())
    assert beats >= 2


def test_what_the_clock_says_to_its_own_server_waits_for_the_slice() -> None:
    """The tick closes the clock, and its worker joins with it: the roster comes when the range is in the middle of its close."""
    there = Slow()
    there.push({"w": np.ones(4)}, rows=ROWS)
    there.go_on()
    there.tick(0)
    assert there.turns and there.servers["s0.1"].jobs[1].ranges[0].closed == 0
    there.pull(closed=1)
    there.go_on()
    held = there.servers["s0.1"].jobs[1].ranges[0]
    assert held.closed == 1 and held.shares.number > 0
    assert m.Values in [type(message) for message in there.take()]


def test_a_job_that_ends_within_a_large_push_is_forgotten() -> None:
    """A map waits for nobody: the rest of the push is done at once."""
    there = Slow(consistency="asp")
    there.push({}, rows=ROWS)
    there.pull()
    there.tell_map(there.map._replace(token=2, state=FINISHED))
    there.go_on()
    assert not there.servers["s0.1"].jobs
    assert [type(message) for message in there.take()] == [m.PushAck, m.Nack], "the pull that came meanwhile"


def test_a_push_that_breaks_the_protocol_leaves_nothing_begun() -> None:
    there = Slow(consistency="asp")
    number = there.map.clock_range
    twice = (m.Component(0, 1, 1, 0, 0, 1.0), m.Component(0, 1, 1, 0, 0, 1.0))
    there.feed("s0.1", "a0.1", m.Push(1, number, 1, 1, 0, twice, (), ()))
    assert not there.turns and [log.event for _, log in there.logs if log.event == "peer_dropped"]
    there.pull()
    assert [type(message) for message in there.take()] == [m.Values]


def test_more_than_may_wait_is_as_if_lost() -> None:
    there = Slow(consistency="asp")
    machine = there.servers["s0.1"]
    machine._limits = SLOW.__class__(turn_bytes=256, parked_max=2)
    there.push({}, rows=ROWS)
    for request in (1, 2, 3):
        there.pull(request=request)
    there.go_on()
    assert [message.request for message in there.take(m.Values)] == [1, 2]


def test_a_step_that_overflows_in_a_later_slice_changes_nothing() -> None:
    there = Slow(sparse_table(width=8, optimizer="add", buckets=2), consistency="asp")
    there.push({}, rows={"e": {row: np.full(8, 3e38) for row in range(64)}})
    there.go_on()
    held = there.servers["s0.1"].jobs[1].ranges[0]
    before = held.contents.digest()
    there.push({}, seq=2, rows={"e": {row: np.full(8, 3e38 if row == 63 else 1) for row in range(64)}})
    there.go_on()
    assert [type(message) for message in there.take()] == [m.PushAck, m.Refuse]
    assert held.contents.digest() == before


def test_a_beat_that_is_due_goes_out_with_the_next_slice() -> None:
    there = Slow(consistency="asp")
    there.push({}, rows=ROWS)
    machine = there.servers["s0.1"]
    effects = machine.on_message("", Turn(), SLOW.beat_us * 10)
    assert [type(effect.message) for effect in effects if isinstance(effect, Send)] == [m.Beat]


class Fake:
    """A copy with one entry, which is applied in one go, or is applied in part already."""

    def __init__(self, suspended: bool) -> None:
        self.suspended = suspended
        self.queued = self.gone = False
        self.ready = True
        self.applied = 0

    def apply(self, left_bytes: int, most: int, now_us: int) -> tuple[int, list[Any]]:
        self.applied += 1
        self.suspended = self.ready = False
        return left_bytes, []


def test_no_other_entry_is_applied_while_one_is_applied_in_part() -> None:
    """What the master says comes in between, and may make entries of its own."""
    turns = Turns(100, lambda effects: None)
    large, other = Fake(True), Fake(False)
    turns.later(large)  # type: ignore[arg-type]
    turns.apply(other, 0)  # type: ignore[arg-type]
    assert turns.busy and not other.applied and other.queued
    assert turns.wants_turn() and turns.on_turn(0) == [large, other]
    turns.check()
