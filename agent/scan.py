"""All rows of a job's sparse tables, bucket by bucket, for an export.

A bucket is read by Scan from a cursor on until there is no next one; some buckets are read at once, so many that their
answers fit into the window.  Rows are written as they come, in any order: a row keeps its place in its bucket, so none
comes twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from ..core.effects import Send
from ..core.limits import MIB, Limits
from ..wire import messages as m
from . import effects as e
from .plan import Sparse
from .router import Job

ANSWER_BYTES = 2 * MIB  # of one answer, about
AT_ONCE_MAX = 64


class SparseFile:
    """The files of one table, and how long they are so far."""

    __slots__ = ("table", "export", "rows", "key_bytes")

    def __init__(self, table: Sparse, export: int) -> None:
        self.table = table
        self.export = export
        self.rows = 0
        self.key_bytes = 0

    @staticmethod
    def names(table: Sparse) -> tuple[str, str]:
        """Of the values, and of the row numbers or keys."""
        return f"{table.name}.bin", f"{table.name}.keys" if table.index_name == "str" else f"{table.name}.idx"

    def add(self, segments: tuple[m.Segment, ...], payload: tuple[Any, ...]) -> list[Any]:
        """The rows of one answer behind those that are there."""
        table, effects = self.table, []
        values, names = self.names(table)
        row_bytes = table.width * table.dtype.itemsize
        count = 0
        for segment, frame in zip(segments, payload):
            if segment.kind == m.IDS:
                count = segment.elements
            if segment.kind == m.IDS and table.index_name != "str":
                kind = "<u4" if table.index_name == "u32" else "<u8"
                data = np.frombuffer(frame, "<u8").astype(kind)
                effects.append(e.WriteExport(self.export, names, self.rows * data.itemsize, data))
            elif segment.kind == m.KEYS:
                lines = _lines(frame, count)
                effects.append(e.WriteExport(self.export, names, self.key_bytes, lines))
                self.key_bytes += len(lines)
            elif segment.kind == m.ROWS:
                with np.errstate(over="ignore"):
                    data = np.frombuffer(frame, table.storage).astype(table.dtype)
                effects.append(e.WriteExport(self.export, values, self.rows * row_bytes, data))
                self.rows += segment.elements // table.width
        return [effect for effect in effects if len(effect.buffer)]

    def sizes(self) -> list[tuple[str, int]]:
        table = self.table
        values, names = self.names(table)
        name_bytes = self.key_bytes if table.index_name == "str" else self.rows * (4 if table.index_name == "u32" else 8)
        return [(values, self.rows * table.width * table.dtype.itemsize), (names, name_bytes)]


def _lines(frame: Any, count: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Keys as they travel (their lengths, then their bytes) as lines.

    >>> _lines(np.concatenate([np.array([2, 1], "<u4").view("u1"), np.frombuffer(b"abc", "u1")]), 2).tobytes()
    b'ab\\nc\\n'
    """
    raw = np.frombuffer(frame, np.uint8)
    lengths = raw[: 4 * count].view("<u4").astype(np.int64)
    lines = np.full(len(raw) - 3 * count, 10, np.uint8)
    is_key = np.ones(len(lines), bool)
    is_key[np.cumsum(lengths + 1) - 1] = False
    lines[is_key] = raw[4 * count :]
    return lines


class _Bucket:
    """One bucket, and where its next rows begin."""

    __slots__ = ("number", "range", "cursor", "file")

    def __init__(self, number: int, home: int, file: SparseFile) -> None:
        self.number = number
        self.range = home
        self.cursor = 0
        self.file = file


class Scans:
    """One read of every bucket, of the snapshot `at` or (0) as they are once `closed` clocks are closed.

    Each question has a number of its own, by which its answer is known: `draw` gives one.
    """

    def __init__(self, job: Job, export: int, at: int, closed: int, limits: Limits, draw: Callable[[], int]) -> None:
        assert job.plan is not None
        self.job = job
        self.at = at
        self.closed = closed
        self.at_once = max(1, min(AT_ONCE_MAX, limits.window_bytes // ANSWER_BYTES))
        self.files = [SparseFile(table, export) for table in job.plan.sparse.values()]
        self.unsent = deque(_Bucket(number, home, file) for file in self.files for number, home in enumerate(file.table.ranges))
        self.open: dict[int, _Bucket] = {}  # by request
        self._draw = draw

    @property
    def done(self) -> bool:
        return not self.unsent and not self.open

    def pump(self) -> list[Send]:
        effects = []
        blocked: deque[_Bucket] = deque()
        while self.unsent and len(self.open) < self.at_once:
            bucket = self.unsent.popleft()
            if self.job.routes[bucket.range].server:
                effects.append(self._ask(bucket))
            else:
                blocked.append(bucket)
        self.unsent.extendleft(reversed(blocked))
        return effects

    def resend(self, moved: frozenset[int] | None = None) -> list[Send]:
        return [
            self._message(request, bucket)
            for request, bucket in self.open.items()
            if (moved is None or bucket.range in moved) and self.job.routes[bucket.range].server
        ]

    def on_scanned(self, scanned: m.Scanned) -> list[Any] | None:
        """What is to be written; None for an answer that is no news, or from before the clock that was asked for."""
        bucket = self.open.get(scanned.request)
        if bucket is None or scanned.closed < self.closed:
            return None
        del self.open[scanned.request]
        effects = bucket.file.add(scanned.segments, scanned.payload)
        if scanned.next:
            bucket.cursor = scanned.next
            self.unsent.appendleft(bucket)
        return effects

    def sizes(self) -> list[tuple[str, int]]:
        """How long the files are in the end."""
        return [size for file in self.files for size in file.sizes()]

    def _ask(self, bucket: _Bucket) -> Send:
        request = self._draw()
        self.open[request] = bucket
        return self._message(request, bucket)

    def _message(self, request: int, bucket: _Bucket) -> Send:
        job = self.job
        server, epoch = job.routes[bucket.range]
        table = bucket.file.table.number
        return Send(server, m.Scan(job.number, bucket.range, epoch, job.token, request, self.at, bucket.cursor, table, bucket.number))
