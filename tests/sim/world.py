"""Simulated time: one heap of events, one source of chance, the trace and its digest.

Knows nothing of clusters.  Time is integer microseconds; events of one instant run in the order in which they were
planned.  Everything that happens is folded into the digest, so that two runs of a seed can be compared.
"""

from __future__ import annotations

import heapq
import struct
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any
from zlib import crc32

TRACE_LINES = 400  # kept for the report of a failure when the whole trace was not asked for


class Violation(Exception):
    """Something happened that must never happen."""


class World:
    """The event loop of one run."""

    def __init__(self, seed: int, trace: bool = False, events_max: int = 2_000_000) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.now_us = 0
        self.events = 0
        self.events_max = events_max
        self.digest = 0
        self.faults: dict[str, int] = {}
        self.marks: dict[str, int] = {}
        self.print_trace = trace
        self.lines: deque[str] = deque(maxlen=TRACE_LINES)
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0

    # -- chance: the seed decides everything

    def draw(self, low: int, high: int) -> int:
        """A whole number of the closed range."""
        return low + int(self.random.random() * (high - low + 1))

    def happens(self, rate: float) -> bool:
        """True at this rate; draws nothing when the rate is zero."""
        return rate > 0 and self.random.random() < rate

    # -- time

    def after(self, delay_us: int, call: Callable[..., None], *arguments: Any) -> None:
        self._number += 1
        heapq.heappush(self._heap, (self.now_us + delay_us, self._number, call, arguments))

    def step(self) -> bool:
        """Run the next event; False when there is none."""
        if not self._heap:
            return False
        self.now_us, number, call, arguments = heapq.heappop(self._heap)
        self.events += 1
        if self.events > self.events_max:
            raise Violation(f"more than {self.events_max} events: the cluster runs in circles")
        self.fold(self.now_us, number)
        call(*arguments)
        return True

    def forget(self) -> None:
        """Whatever was to come never comes."""
        self._heap.clear()

    def run_until(self, done: Callable[[], bool], limit_us: int) -> bool:
        """Run until `done()` or simulated time passes `limit_us`; tells whether it was done."""
        while not done():
            if not self._heap or self._heap[0][0] > limit_us:
                self.now_us = max(self.now_us, limit_us)
                return False
            self.step()
        return True

    # -- what is remembered

    def fold(self, *numbers: int) -> None:
        """Make these numbers part of the run's digest."""
        self.digest = crc32(struct.pack(f"<{len(numbers)}Q", *(n & 0xFFFFFFFFFFFFFFFF for n in numbers)), self.digest)

    def fold_bytes(self, data: Any) -> None:
        self.digest = crc32(data, self.digest)

    def fault(self, kind: str, text: str = "") -> None:
        """Count an injected fault."""
        self.faults[kind] = self.faults.get(kind, 0) + 1
        self.note("FAULT", kind, text)

    def reached(self, mark: str) -> None:
        """Count a rare place that a good run passes."""
        self.marks[mark] = self.marks.get(mark, 0) + 1

    def note(self, who: str, what: str, text: Any = "") -> None:
        """One line of the trace.  `text` may be any value; it is only rendered for a reader."""
        if self.print_trace:
            print(f"{self.now_us / 1e6:11.6f} {who:<14} {what} {short(text)}")
        else:
            self.lines.append((self.now_us, who, what, text))  # type: ignore[arg-type]

    def story(self, lines: int = 60) -> str:
        """The last lines of the trace, rendered."""
        kept: list[Any] = list(self.lines)[-lines:]
        return "\n".join(f"{at / 1e6:11.6f} {who:<14} {what} {short(text)}" for at, who, what, text in kept)


def short(value: Any, limit: int = 260) -> str:
    """A value for the reader: payloads by their size, long texts cut."""
    if isinstance(value, str):
        text = value
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        parts = []
        for name, item in zip(value._fields, value):
            if name == "payload":
                parts.append(f"payload={len(item)}x{sum(memoryview(view).nbytes for view in item)}B")
            elif name == "document":
                parts.append("document=..")
            elif name == "segments":
                parts.append(f"segments={len(item)}")
            elif isinstance(item, (memoryview, bytes, bytearray)) and len(item) > 40 or hasattr(item, "nbytes"):
                parts.append(f"{name}={memoryview(item).nbytes}B")
            elif isinstance(item, tuple) and hasattr(item, "_fields"):
                parts.append(f"{name}={short(item)}")
            else:
                parts.append(f"{name}={item!r}")
        text = f"{type(value).__name__}({', '.join(parts)})"
    else:
        text = repr(value)
    return text if len(text) <= limit else text[:limit] + ".."
