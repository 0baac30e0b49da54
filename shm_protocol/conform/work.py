"""One request carried out on the plain server: data read and checked, pushes kept and applied, values written.

Knows no bells and no replies.  A wait for others, for room or for a slow script is a generator's yield, as in `talk.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...core.errors import Code, RequestError
from .. import numbers
from ..channel import AgentChannel
from ..kept import SLOTS
from ..reading import Data
from ..request import Request, parse_request
from .faults import Fault, Script
from .server import PlainServer
from .tables import Pushed
from .watch import Watch

SCRIPTED = "the script says so"

Waits = Iterator[float | None]


class Answer(NamedTuple):
    """What the reply says of `param` or `data`."""

    n: int | None = None
    rows: int | None = None


class Accepted(NamedTuple):
    """A push that was answered and is still to be carried out."""

    slot: int
    request: Request
    due: float


class Work:
    """The requests of one worker."""

    def __init__(self, worker: int, channel: AgentChannel, server: PlainServer, script: Script) -> None:
        self.worker = worker
        self.watch = Watch()
        self.server = server
        self.script = script
        self._channel = channel
        self._buffer = numbers.aligned(channel.reader.stored_bytes)
        self._kept_buffer = numbers.aligned(channel.reader.stored_bytes)  # a later request may lie in the other one already
        self._accepted: list[Accepted] = []
        self._failed: tuple[int, RequestError] | None = None
        self.as_scripted = False  # what was refused last failed because the script says so
        self._offsets = [(self.server.spec.table_number(place.table.name), place) for place in server.spec.stored_layout.places]

    def adopted(self, channel: AgentChannel) -> None:
        """Another agent: pushes that the dead one accepted are found in their slots."""
        self._channel = channel
        self._accepted = [Accepted(slot, parse_request(line), 0.0) for slot, line in channel.kept_pushes()]

    def carry_out(self, request: Request) -> Generator[float | None, None, Answer]:
        """Raises `RequestError`: refused, nothing was applied; except TIMEOUT of what pushes or ticks."""
        worker, server, channel = self.worker, self.server, self._channel
        if request.verb == "next":
            return self._next(request)
        if request.verb in ("push", "pull", "pushpull", "step", "clock", "init") and not request.unwaited:
            yield from self._settle()
        data = channel.read_data(request, self._buffer) if request.pushes or request.sections else None
        if data is not None:
            self.watch.read(request, data)
        for rows in (*data.rows, *data.wants) if data is not None else ():
            server.check_names(rows)
        kept = None
        if request.unwaited or (request.timeout_ms is not None and request.verb not in ("pull", "clock")):
            kept = yield from self._keep(request)
        if request.unwaited:
            assert kept is not None
            self._accepted.append(Accepted(kept, request, self._due(request.seq)))
            return Answer()
        if data is not None and request.pushes:
            self._push(request, data)
        self._store(request.seq, lambda: None)  # an effect of its own: the servers have it
        if kept is not None:
            self._drop(request.seq, kept)
        if request.verb in ("step", "clock"):
            server.tick(worker, request.seq, request.clock)
        yield from self._wait_for_others(request)
        return self._write_values(request, data) if request.pulls else Answer()

    def _wait_for_others(self, request: Request) -> Waits:
        """Until the values may be read; a slow script counts against `t=`.  Raises `RequestError` TIMEOUT."""
        limit = None if request.timeout_ms is None else time.monotonic() + request.timeout_ms / 1000
        late = self.script.fault("late", self.worker, request.seq)
        ready_at = time.monotonic() + float(late.argument or 0.0) if late else 0.0
        waits_for_values = request.verb in ("step", "pull", "pushpull")
        while time.monotonic() < ready_at or (waits_for_values and not self.server.ready(self.server.finished[self.worker])):
            if limit is not None and time.monotonic() >= limit:
                raise RequestError(Code.TIMEOUT, f"no answer within {request.timeout_ms} ms")
            ends = [at for at in (limit, ready_at if late else None) if at is not None]
            yield min(ends) if ends else None

    # -- pushes

    def _push(self, request: Request, data: Data) -> None:
        """The numbers to the server.  Raises `RequestError` COLLIDE."""
        dense = {}
        if data.buffer is not None:
            for number, place in self._offsets:
                table = place.table
                dense[number] = np.frombuffer(data.buffer, table.storage_dtype, table.count, place.offset).copy()
        if request.verb == "init":
            self.server.init(self.worker, request.seq, dense)
            return
        named = frozenset(self.server.spec.table_number(section.table) for section in request.sections)
        pushed = Pushed(self.worker, request.seq, request.weight, dense, {rows.table: rows for rows in data.rows}, named)
        self.server.push(request.clock, pushed)

    def _keep(self, request: Request) -> Generator[float | None, None, int]:
        """Into a free slot; waits for room.  Raises `RequestError` AGAIN when `t=` is over before."""
        limit = None if request.timeout_ms is None else time.monotonic() + request.timeout_ms / 1000
        while len(self._accepted) >= len(SLOTS):
            if limit is not None and time.monotonic() >= limit:
                raise RequestError(Code.AGAIN, "no room to accept the push")
            self.carry_out_due()
            if len(self._accepted) >= len(SLOTS):
                yield min(at for at in (limit, self._accepted[0].due) if at is not None)
        slot = next(slot for slot in range(len(SLOTS)) if slot not in {item.slot for item in self._accepted})
        self._store(request.seq, lambda: self._channel.keep(slot, request))
        return slot

    def _settle(self) -> Waits:
        """Wait for what was accepted before.  Raises `RequestError` with the code of one that has failed meanwhile."""
        while self._accepted:
            self.carry_out_due()
            if self._accepted:
                yield self._accepted[0].due
        if self._failed is not None:
            (seq, error), self._failed = self._failed, None
            self.as_scripted = error.text == SCRIPTED
            raise RequestError(error.code, f"push seq={seq}, accepted before, failed: {error.text}")

    @property
    def due_at(self) -> float | None:
        """When the next accepted push is carried out."""
        return self._accepted[0].due if self._accepted else None

    def carry_out_due(self) -> None:
        """Accepted pushes whose time has come, in their order.  May raise `Killed`."""
        while self._accepted and self._accepted[0].due <= time.monotonic():
            slot, request, _due = self._accepted[0]
            try:
                failure = self.script.fault("fail", self.worker, request.seq)
                if failure:
                    raise RequestError(Code[failure.argument or "INTERNAL"], SCRIPTED)
                self._push(request, self._channel.read_kept(slot, request, self._kept_buffer))
            except RequestError as error:
                self._failed = self._failed or (request.seq, error)
            self._drop(request.seq, slot)
            self._accepted.pop(0)

    def _due(self, seq: int) -> float:
        late: Fault | None = self.script.fault("late", self.worker, seq)
        return time.monotonic() + float(late.argument or 0.0) if late else 0.0

    def _drop(self, seq: int, slot: int) -> None:
        self._store(seq, lambda: self._channel.drop(slot))

    def touched(self, request: Request) -> list[str]:
        """The push must still lie there as it was read: until the reply its files are ours."""
        if not request.pushes:
            return []
        before = self._buffer.copy()
        try:
            self._channel.reader.read(request, self._channel.files, self._buffer)
            same = np.array_equal(before, self._buffer)
        except RequestError:
            same = False
        self._buffer[:] = before
        return [] if same else [f"worker {self.worker}: grad was touched between the ring and the reply of request {request.seq}"]

    # -- answers

    def _write_values(self, request: Request, data: Data | None) -> Answer:
        channel, server, seq = self._channel, self.server, request.seq
        layout = channel.reader.places.param(request)
        values = server.values if layout.dense else None
        rows = [server.wanted(wanted) for wanted in data.wants] if data is not None else []
        if request.text:
            self._store(seq, lambda: channel.write_text(values, [part.reshape(-1) for part in rows]))
        else:
            if values is not None:
                self._write_dense(seq, values[: channel.info.dense_bytes])
            for place, part in zip(layout.places, rows):
                self._write_rows(seq, place.at, part)
        wanted = sum(section.want for section in request.sections)
        return Answer(channel.info.elements if layout.dense else None, wanted or None)

    def _write_dense(self, seq: int, values: NDArray[np.uint8]) -> None:
        """In two stores, so that an agent may die between them."""
        half = values.nbytes // 2 // 64 * 64
        self._store(seq, lambda: self._channel.write_param(0, values[:half]))
        self._store(seq, lambda: self._channel.write_param(half, values[half:]))

    def _write_rows(self, seq: int, at: int, rows: NDArray[Any]) -> None:
        self._store(seq, lambda: self._channel.write_param(at, np.ascontiguousarray(rows)))

    def _next(self, request: Request) -> Answer:
        spec = self.server.spec
        if not spec.pieces:
            raise RequestError(Code.FORMAT, "next: this job has no list of pieces to hand out")
        found = self.server.next_piece(self.worker, request.seq)
        line = b""
        if found is not None:
            turn, piece = found
            line = f"{turn} {piece} {self._piece(piece)}\n".encode()
        self._store(request.seq, lambda: self._channel.write_data(line))
        return Answer(len(line))

    def _piece(self, piece: int) -> str:
        """What a piece is: its line in the job's list."""
        path = self.server.spec.settings.get("pieces_file")
        if not path:
            return f"piece-{piece}"
        with open(str(path), encoding="utf-8") as lines:
            return lines.read().splitlines()[piece]

    def _store(self, seq: int, action: Callable[[], object]) -> None:
        self.script.store(self.worker, seq, action)
