"""Well-formed messages that nobody honest would send, to servers and to an agent at work: no process ends by one.

Numbers are drawn near the ones that are in use (small clocks, seqs, generations), since wild ones are refused at the
first look; a few are wild all the same.  Whatever is answered must fit into the codec.
"""

from __future__ import annotations

from random import Random
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import pytest

from plugml.agent import effects as e
from plugml.core.errors import Code
from plugml.core.jobmap import JobMap
from plugml.core.table import DTYPE_NAMES, DTYPES
from plugml.wire import messages as m
from plugml.wire.codec import SHAPES, Shape, decode, encode
from plugml.wire.fields import LOWEST
from tests.scenario import kit
from tests.unit.test_agent_harness import World, job

STORIES = 40
WEIGHTS = (0.0, 1.0, 2.5, 1e300, 5e-324)
NODES = ("a0.1", "a1.1", "s0.1", "s1.1", "m0", "")
TEXTS = ("", "x", "running", "failed", "y" * 50)


class Liar:
    """Makes messages that fit the codec and hit what is there: a job's ranges, segments, map and token."""

    def __init__(self, seed: int, found: JobMap, segments: list[m.Segment]) -> None:
        self.random = Random(seed)
        self.map = found
        self.ranges = tuple(found.ranges)
        self.segments = segments

    def message(self) -> Any:
        return decode([bytes(frame) for frame in encode(self._message(self.random.choice(SHAPES)))])

    def _message(self, shape: Shape) -> Any:
        cls, body = shape.cls, [name for name, _ in shape.body]
        hints = get_type_hints(cls)
        fields: dict[str, Any] = {}
        for name in cls._fields:
            if name == "components":
                fields[name] = tuple(self._component() for _ in range(self.random.choice((1, 1, 1, 0, 2))))
            elif name == "segments":
                fields[name], payload = self._segments("payload" in cls._fields)
                if "payload" in cls._fields:
                    fields["payload"] = payload
            elif name == "entry":
                shapes = [shape for shape in SHAPES if shape.cls in m.ENTRIES]
                fields[name] = self._message(self.random.choice(shapes)) if fields["version"] else None
            elif name != "payload":
                fields[name] = self._field(cls, name, hints[name], name not in body)
        if cls is m.Registered:
            fields["known"] = True  # False is a definite end, and no lie of a peer's
        return cls(**fields)

    def _often(self, usual: Any, most: int, bits: int) -> Any:
        return usual if self.random.random() < 0.95 else self._number(most, bits)

    def _number(self, most: int, bits: int) -> int:
        chance = self.random.random()
        if chance < 0.9:
            return self.random.randint(0, most)
        return self.random.choice((1 << 20, 1 << 31, (1 << 32) - 1)) if chance < 0.96 else (1 << bits) - self.random.randint(1, 2)

    def _field(self, cls: type[Any], name: str, hint: Any, in_head: bool) -> Any:
        plain = {
            "job": lambda: self._often(1, 3, 32), "range": lambda: self._often(self.random.choice(self.ranges), 20, 32),
            "epoch": lambda: self._often(1, 3, 32), "token": lambda: self._often(self.map.token, 5, 64),
            "worker": lambda: self._number(3, 32), "gen": lambda: self._number(3, 32), "request": lambda: self._number(6, 64),
            "code": lambda: int(self.random.choice(list(Code))), "ranges": lambda: self.ranges,
            "origin": lambda: self.random.choice(NODES), "node": lambda: self.random.choice(NODES),
        }  # fmt: skip
        if name in plain:
            return plain[name]()
        if in_head:
            return self._number(6, 64)
        if hint is int:
            return self.random.choice((LOWEST.get((cls.__name__, name), 0), self._number(6, 63)))
        if hint in (float, bool, str):
            return self.random.choice({float: WEIGHTS, bool: (True, False), str: TEXTS}[hint])
        arguments = get_args(hint)
        if get_origin(hint) is dict:
            return self.map._replace(token=self.random.randint(1, 4)).to_document() if cls is m.MapTold else {}
        if arguments[-1] is Ellipsis:
            return tuple(self._field(cls, "", arguments[0], False) for _ in range(self.random.randint(0, 3)))
        return tuple(self._field(cls, "", argument, False) for argument in arguments)

    def _component(self) -> m.Component:
        numbers = [self._number(3, 32), self._number(3, 32), self._number(6, 64), self._number(6, 64), self._number(3, 63)]
        return m.Component(*numbers, self.random.choice(WEIGHTS))

    def _segments(self, carried: bool) -> tuple[tuple[m.Segment, ...], tuple[Any, ...]]:
        segments, payload = [], []
        for _ in range(self.random.randint(0, 3)):
            segment = self.random.choice(self.segments)
            if self.random.random() < 0.1:
                kind, carry, elements = self.random.choice((0, 1, m.RAW)), self.random.choice((0, 1, 2)), self.random.randint(0, 30)
                segment = segment._replace(block=self._number(5, 64), kind=kind, carry=carry, elements=elements)
            segments.append(segment)
            if carried and segment.carry == m.BY_VALUE:
                nbytes = segment.elements * DTYPES[DTYPE_NAMES[segment.dtype]].itemsize
                payload.append(self.random.randbytes(nbytes) if self.random.random() < 0.3 else bytes(nbytes))
        return tuple(segments), tuple(payload)


@pytest.mark.parametrize("seed", range(STORIES))
def test_no_message_ends_a_server(seed: int) -> None:
    random = Random(seed)
    tables = (
        kit.table("n", 24, "f64", "add", block_bytes=64, combine=random.choice(("sum", "mean")), consistency=random.choice(("", "asp"))),
        kit.table("p", 8, init=random.choice(("program", "zeros")), block_bytes=16),
    )
    there = kit.Box(kit.job(*tables, workers=2, consistency=random.choice(("bsp", "asp", "ssp:1"))), servers=("s0.1", "s1.1"), ring=4)
    there.on_heard = lambda heard: [bytes(frame) for frame in encode(heard.message)]  # type: ignore[func-returns-value]
    held = [held for machine in there.servers.values() for held in machine.jobs[1].ranges.values()]
    liar = Liar(seed, there.map, [place.segment for item in held for place in item.blocks.places.values()])
    for _ in range(120):
        there.feed(random.choice(("s0.1", "s1.1")), random.choice(("a0.1", "a0.1", "a1.1", "s0.1", "s1.1", "m0")), liar.message())
        if random.random() < 0.1:
            there.time(random.choice((1_000, 300_000, 3_000_000)))


@pytest.mark.parametrize("seed", range(STORIES))
def test_no_message_ends_an_agent(seed: int) -> None:
    random = Random(seed)
    world = World(servers=2)
    world.register(job(workers=2, consistency=random.choice(("bsp", "asp", "ssp:1")), table={"init": random.choice(("zeros", "program"))}))
    programs = [world.plug("digits", worker) for worker in range(2)]
    plan = world.agent.house.jobs[1].plan
    assert plan is not None
    liar = Liar(seed, world.master.jobs[1], [segment for part in plan.parts for segment in part.segments])
    world.interfere = lambda sender, to, message: () if random.random() < 0.5 else (message,)
    for _ in range(60):
        program = random.choice(programs)
        channel = world.agent.house.channels[program.name]
        if channel.request is None and random.random() < 0.3:
            program.replies()
            program.seq, program.clock = channel.done_seq, channel.clock
            program.begin(random.choice(("step", "push", "pull", "clock", "init")), np.ones(40, "<f4"))
        if random.random() < 0.15:
            world.feed("", e.Asked(1, {"op": "attach", "id": 1, "job": "digits", "worker": random.randint(0, 2)}))
        world.feed(random.choice((*world.servers, "m0")), liar.message())
        world.run(random.choice((0.0, 0.0, 0.01, 0.3)))
