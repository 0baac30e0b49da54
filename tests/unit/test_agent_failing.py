"""A job that cannot go on: what programs, launchers and exports are told, and that its values are read before it is ended."""

from __future__ import annotations

import numpy as np
import pytest

from plugml.agent import effects as e
from plugml.core.errors import Code
from plugml.wire import messages as m

from .test_agent_harness import World, job

BIG = np.full(40, 2e38, "<f4")
TEXT = "clock 1 cannot be closed: the step of block 0 of table 'w' leaves the range of f32"


def values(world: World) -> list[float]:
    answer = world.ask("export", job="digits", dir="/out")
    assert answer["ok"], answer
    assert answer["clock"] == 1
    return list(np.frombuffer(world.exported["w.bin"], "<f4"))


def news(world: World) -> list[str]:
    return [told["text"] for told in world.told if told.get("event") == "failing"]


@pytest.mark.parametrize("servers", [1, 2])
def test_a_step_that_overflows_is_told_and_the_values_before_it_are_exported(servers: int) -> None:
    world = World(servers=servers)
    world.register(job())
    program = world.plug("digits", 0)
    assert program.do("step", BIG).ok
    reply = program.do("step", BIG)
    assert (reply.code, reply.clock) == (Code.NONFINITE, 2) and "cannot be closed" in program.err()
    assert [text[:26] for text in news(world)] == ["clock 1 cannot be closed: "]
    for verb in ("push", "step", "pull", "clock"):
        assert program.do(verb, BIG).code is Code.NONFINITE
    attach = world.ask("attach", job="digits", worker=0)
    assert not attach["ok"] and attach["code"] == "NONFINITE"
    assert program.do("bye").ok
    assert values(world) == pytest.approx(BIG)
    world.kill_agent()
    world.register(job())
    assert values(world) == pytest.approx(BIG), "the next agent hears of it with its first question"
    assert world.ask("end", job="digits", state="failed", reason="an overflow")["ok"]


def test_who_waits_elsewhere_is_told_too_and_a_server_that_is_not_the_clocks_is_not_believed() -> None:
    world = World(servers=2)
    world.register(job())
    program = world.plug("digits", 0)
    assert program.do("step", BIG).ok
    refusal = m.Refuse(1, 0, 1, 1, 0, m.NOBODY, 0, 0, int(Code.NONFINITE), TEXT)
    clock = world.agent.house.jobs[1].clock_route.server
    (other,) = set(world.servers) - {clock}
    world.feed(other, refusal)
    assert not news(world) and program.do("step", -BIG).ok
    world.interfere = lambda sender, to, message: () if isinstance(message, m.Values) else (message,)
    program.begin("pull")
    world.settle()
    assert not program.replies()
    world.feed(clock, refusal)
    world.feed(clock, refusal)
    assert [reply.code for reply in program.replies()] == [Code.NONFINITE] and TEXT in program.err()
    assert news(world) == [TEXT], "launchers are told once"


def test_an_export_that_waits_for_the_close_is_refused() -> None:
    world = World(servers=1)
    world.register(job())
    program = world.plug("digits", 0)
    assert program.do("step", BIG).ok
    world.interfere = lambda sender, to, message: () if isinstance(message, m.Values) else (message,)
    asked = len(world.told)
    world.feed("", e.Asked(1, {"op": "export", "id": 77, "job": "digits", "dir": "/out"}))
    world.run(0.1)
    assert len(world.told) == asked
    world.feed(world.agent.house.jobs[1].clock_route.server, m.Refuse(1, 0, 1, 1, 0, m.NOBODY, 0, 0, int(Code.NONFINITE), TEXT))
    assert [(told.get("event"), told.get("code")) for told in world.told[asked:]] == [("failing", None), (None, "NONFINITE")]
