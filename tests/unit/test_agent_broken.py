"""Channels that are given up while accepted requests wait, and slots that hold what no agent has written."""

from __future__ import annotations

import pytest

from plugml.agent import effects as e
from plugml.core.errors import Code
from plugml.shm_protocol import kept
from plugml.wire import messages as m

from .agent_rows import ONES
from .test_agent_accepted import hold, let_go, plugged
from .test_agent_harness import World, job


@pytest.mark.parametrize("how", ["restarting", "finished"])
def test_what_was_accepted_and_never_begun_counts_for_nothing_once_the_channel_is_broken(how: str) -> None:
    """Its launcher is told the clocks and pushes that the servers have, not those that were promised."""
    world, program = plugged(consistency="asp")
    hold(world, m.PushAck)
    assert program.do("push", ONES, "async=1").ok
    assert program.do("step", ONES, "t=100").clock == 1, "accepted, behind the push"
    world.feed("", e.ChannelFailed(program.name, Code.PERM, "req has been replaced"))
    let_go(world)
    world.run(3.0)
    answer = world.ask("exited", job="digits", worker=0, gen=1, how=how)
    assert (answer["pushes"], answer["clocks"]) == (1, 0)


def test_an_accepted_push_that_can_never_be_carried_out_goes_with_its_program() -> None:
    world = World()
    world.register(job(workers=2, table={"init": "program"}))
    program = world.plug("digits", 0)
    world.run(1.0)
    assert program.do("push", ONES, "async=1").ok
    assert program.do("step", ONES, "t=100").clock == 1
    answer = world.ask("exited", job="digits", worker=0, gen=1, how="restarting")
    assert (answer["pushes"], answer["clocks"]) == (0, 0)


@pytest.mark.parametrize(
    "line", [b"", b"hello 0 0", b"\xff", b"pull 1 0", b"bye 1 0", b"push 99999999999999999999 0", b"push 1 0 table=nothing k=1", b"init 1 0", b"next 1 0", b"push 1"]
)
def test_a_slot_that_holds_no_push_of_ours_is_free(line: bytes) -> None:
    """A program may write anywhere in its channel; the agent serves others, too."""
    world, program = plugged(consistency="asp")
    assert program.do("step", ONES).ok
    pend = program.files.contents["pend.1"]
    pend[: kept.HEAD_BYTES] = kept.Kept(line, (0, 0, 0, 0, 0)).pack()
    world.kill_agent()
    world.run(1.0)
    while program.do("push", ONES, "async=1").code is Code.FORMAT:  # of table=nothing: told once
        pass
    assert program.do("push", ONES, "async=1").ok
    assert program.do("step", ONES).ok, program.err()
