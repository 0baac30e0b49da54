"""Where one request's values go: `param` as they come, `param.txt` when all of them are there.

Converts from the servers' kinds of numbers to the program's; where they are the same, nothing is copied.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.limits import CACHE_LINE_BYTES
from . import effects as e
from .plan import Part, Plan
from .sparse import Wanted

SECTION_BYTES = 8  # each section of rows begins at a multiple of it

Buffer = Any


def section_offsets(dense_nbytes: int, wanted: tuple[Wanted, ...]) -> tuple[int, ...]:
    """Where the rows of each section begin in `param`."""
    offsets = []
    at = -(-dense_nbytes // CACHE_LINE_BYTES) * CACHE_LINE_BYTES
    for one in wanted:
        at = -(-at // SECTION_BYTES) * SECTION_BYTES
        offsets.append(at)
        at += one.count * one.row_bytes
    return tuple(offsets)


class Landing:
    """`dense`: the dense tables take part."""

    __slots__ = ("channel", "plan", "dense", "wanted", "offsets", "text", "buffer", "plain")

    def __init__(self, channel: str, plan: Plan, dense: bool, wanted: tuple[Wanted, ...], text: bool) -> None:
        self.channel = channel
        self.plan = plan
        self.dense = dense
        self.wanted = wanted
        self.offsets = section_offsets(plan.nbytes if dense else 0, wanted) if wanted else ()
        self.text = text
        self.plain = not wanted and not text and not plan.converts  # bytes go from messages to the file
        self.buffer: bytearray | None = bytearray(plan.nbytes) if text and dense else None  # laid out like `param`

    def take(self, part: Part, payload: tuple[Buffer, ...]) -> list[Any]:
        """The answer of one range."""
        if self.plain:
            name = self.channel
            return [e.WriteParam(name, place.offset, frame) for place, frame in zip(part.slices, payload)]
        effects: list[Any] = []
        for place, frame in zip(part.slices, payload):
            if self.plan.converts:
                frame = converted(self.plan, place.table, frame)
            if self.buffer is None:
                effects.append(e.WriteParam(self.channel, place.offset, frame))
            else:
                self.buffer[place.offset : place.stop] = frame
        for spot, frame in zip(part.spots, payload[len(part.slices) :]):
            one = self.wanted[spot.want]
            if one.plain and not self.text:
                effects.append(e.WriteParam(self.channel, self.offsets[spot.want] + spot.start * one.row_bytes, frame))
            else:
                one.put(spot, frame)
        return effects

    def finish(self) -> list[Any]:
        """All of them are here."""
        if self.plain:
            return []
        if self.text:
            return [e.WriteText(self.channel, self.buffer, tuple(one.laid_out() for one in self.wanted))]
        return [
            e.WriteParam(self.channel, offset, one.laid_out().data.cast("B"))
            for offset, one in zip(self.offsets, self.wanted)
            if one.count and not one.plain
        ]


def converted(plan: Plan, table: int, frame: Buffer) -> Buffer:
    """A block's numbers as the program has them."""
    mine, stored = plan.dtypes[table]
    if mine == stored:
        return frame
    with np.errstate(over="ignore"):
        return np.frombuffer(frame, stored).astype(mine).data.cast("B")
