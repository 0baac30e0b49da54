"""The blocks of one range: reads payloads into them, makes steps beside the visible values, shows them to pulls.

Whatever cannot be taken raises `RequestError` and leaves no trace.  Knows neither streams nor clocks nor the log.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from ..core.errors import Code, RequestError
from ..core.job import JobSpec
from ..core.jobmap import Piece
from ..core.table import DTYPE_NAMES
from ..wire.messages import BLOCK, BY_VALUE, Segment
from . import plain
from .dump import Layout
from .memory import Memory
from .optimizers import Mix
from .place import Items, News, Parts, Place, State, smaller_steps

Array = np.ndarray[Any, np.dtype[Any]]
T = TypeVar("T")
#: Work that may be interrupted: it tells after each slice how many bytes that was.  Nobody may look at the range meanwhile.
Slices = Generator[int, None, T]
Scalars = dict[int, tuple[float, ...]]  # of one entry's steps, by table
Shown = dict[Place, tuple[Array, ...]]


def whole(work: Slices[T]) -> T:
    """All slices at once."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            made: T = end.value
            return made


class Blocks:
    def __init__(self, job: JobSpec, number: int, pieces: Sequence[Piece], memory: Memory) -> None:
        self.number = number
        self.places = {(piece.table, piece.block.number): Place(job, piece) for piece in pieces}
        self.nbytes = sum(place.nbytes for place in self.places.values())
        self.values_bytes = sum(place.wire_bytes for place in self.places.values())
        self._memory = memory
        self._kept: list[dict[Place, Array]] = []  # values that snapshots hold
        self._dumped: list[Shown] = []  # values and state that dumps hold

    # -- messages

    def read(self, segments: Sequence[Segment], payload: Sequence[Any]) -> Items:
        """Blocks and the numbers for them, as views of the received frames."""
        if len(payload) != len(segments):
            raise RequestError(Code.SIZE, f"{len(payload)} payloads for {len(segments)} segments")
        items: Items = []
        for segment, buffer in zip(segments, payload):
            place = self.place(segment)
            if segment != place.segment:
                raise RequestError(Code.SIZE, _mismatch(place, segment))
            if memoryview(buffer).nbytes != place.wire_bytes:
                raise RequestError(Code.SIZE, f"a payload of {memoryview(buffer).nbytes} bytes for {place}, which has {place.wire_bytes}")
            items.append((place, np.frombuffer(buffer, place.dtype)))
        if len(items) > 1 and len({(place.table, place.block.number) for place, _ in items}) != len(items):
            raise RequestError(Code.RANGE, "a block comes twice in one message")
        return items

    def show(self, segments: Sequence[Segment], kept: Mapping[Place, Array] | None = None) -> tuple[tuple[Segment, ...], tuple[Array, ...]]:
        """The visible values, or those of a snapshot, by reference: whoever replaces them leaves these arrays alone until they are sent."""
        places = [self.place(segment) for segment in segments]
        memory = self._memory
        try:
            payload = tuple([memory.show(place.current(memory) if kept is None else kept[place]) for place in places])
        except MemoryError:
            raise _no_memory(places) from None
        return tuple([place.segment for place in places]), payload

    def place(self, segment: Segment) -> Place:
        place = self.places.get((segment.table, segment.block))
        if place is None:
            raise RequestError(Code.RANGE, f"range {self.number} has no block {segment.block} of table {segment.table}")
        return place

    # -- steps, beside the visible values

    def stepped(self, items: Items, scalars: Scalars) -> Slices[News]:
        """What the blocks will hold after one push."""
        new: News = []
        for place, array in items:
            values = self._step(place, Mix.sum_of((array,)), scalars[place.table], new)
            if values is None:
                self.take_back(new)
                raise RequestError(Code.NONFINITE, f"the step of {place} leaves the range of {place.spec.storage_name}")
            new.append((place, values))
            yield place.nbytes
        return new

    def closed(self, plan: Mapping[Place, Parts], totals: Mapping[int, float], scalars: Scalars) -> Slices[News]:
        """What the blocks will hold after a close; `totals` are the weights of all members, by table."""
        new: News = []
        for place, parts in plan.items():
            mix = _mix(place, parts, totals)
            if mix is None:
                continue  # nobody weighs anything
            values = self._step(place, mix, scalars[place.table], new)
            if values is None:
                self.take_back(new)
                raise RequestError(Code.NONFINITE, _overflow(place, parts))
            new.append((place, values))
            yield place.nbytes
        return new

    def check_offer(self, items: Items) -> None:
        """Whether an offer of first values may be taken: it has to name every block that waits for them.  Raises `RequestError`."""
        named = {(place.table, place.block.number) for place, _ in items}
        for key, place in self.places.items():
            if place.spec.init == "program" and key not in named:
                raise RequestError(Code.SIZE, f"{place} is missing among the first values")
        for place, array in items:
            if place.spec.init not in ("program", "file"):
                raise RequestError(Code.RANGE, f"table {place.spec.name!r} has init={place.spec.init} and takes no first values")
            if place.dtype.kind == "f" and not np.isfinite(array).all():
                raise RequestError(Code.NONFINITE, f"the first values of {place} hold NaN or infinity")

    def offered(self, items: Items) -> News:
        """What the blocks will hold after an offer of first values."""
        new: News = []
        for place, array in items:
            try:
                new.append((place, place.offered(array, self._memory)))
            except MemoryError:
                self.take_back(new)
                raise _no_memory((place,)) from None
        return new

    def replace(self, items: News, change: int) -> None:
        """Make new values visible.  Those that a snapshot or a dump holds stay as they are, for it alone."""
        for place, state in items:
            if self._kept or self._dumped:
                self._part(place, place.state)
                place.state = None
            place.replace(state, self._memory)
            place.changed = change

    def _part(self, place: Place, old: State | None) -> None:
        """The block holds this no more."""
        for array in (old.values, *old.slots) if old is not None else ():
            if not self._held(place, array):
                self._memory.give(array)

    def _held(self, place: Place, array: Array) -> bool:
        """Whether a snapshot or a dump holds this array of a block."""
        if any([kept.get(place) is array for kept in self._kept]):
            return True
        return any([array is other for dumped in self._dumped for other in dumped.get(place, ())])

    def take_back(self, items: News) -> None:
        """They will never be visible."""
        for place, state in items:
            place.take_back(state, self._memory)

    # -- snapshots

    def keep(self) -> dict[Place, Array]:
        """The values of all blocks, which nobody changes while a snapshot holds them.  Raises MemoryError."""
        kept = {place: place.current(self._memory) for place in self.places.values()}
        self._kept.append(kept)
        return kept

    def let_go(self, kept: dict[Place, Array]) -> None:
        """A snapshot is over."""
        self._kept = [other for other in self._kept if other is not kept]
        for place, values in kept.items():
            if place.values is not values and not self._held(place, values):
                self._memory.give(values)

    # -- copies

    def dump(self) -> tuple[list[tuple[int, ...]], dict[str, Array], Shown]:
        """What entries have made of the blocks, by reference; nobody changes these arrays before `let_go_of_dump`."""
        rows, arrays, shown = [], {}, {}
        for key in sorted(self.places):
            place = self.places[key]
            found = place.dump()
            if found is not None and place.state is not None:
                rows.append(found[0])
                arrays.update(found[1])
                shown[place] = (place.state.values, *place.state.slots)
        self._dumped.append(shown)
        return rows, arrays, shown

    def let_go_of_dump(self, shown: Shown) -> None:
        """A dump is over, if it was not before.  Parts of its arrays may lie in messages that this event has made."""
        if all([other is not shown for other in self._dumped]):
            return
        self._dumped = [other for other in self._dumped if other is not shown]
        for place, arrays in shown.items():
            own = (place.state.values, *place.state.slots) if place.state is not None else ()
            for array in arrays:
                self._memory.show(array)
                if not self._held(place, array) and all([array is not other for other in own]):
                    self._memory.give(array)

    def layout(self, meta: Any) -> Layout:
        """The arrays of a dump.  Raises `PeerError`."""
        return {name: shape for place, row in plain.placed(meta, self.places, self.number, "block") for name, shape in place.layout(row).items()}

    def load(self, meta: Any, arrays: dict[str, Array]) -> None:
        """What a dump has, in place of what is here; takes the arrays out.  Raises `PeerError`."""
        self.forget()
        for place, row in plain.placed(meta, self.places, self.number, "block"):
            place.load(row, arrays)

    def forget(self) -> None:
        """Nothing has touched the blocks, and no snapshot is kept."""
        for kept in list(self._kept):
            self.let_go(kept)
        for place in self.places.values():
            self._part(place, place.forget())

    def _step(self, place: Place, mix: Mix, scalars: tuple[float, ...], done: News) -> State | None:
        try:
            return place.stepped(mix, scalars, self._memory)
        except MemoryError:
            self.take_back(done)
            raise _no_memory((place,)) from None

    def digest(self) -> int:
        total = 0
        for key in sorted(self.places):
            total = self.places[key].digest(total)
        return total


def _mix(place: Place, parts: Parts, totals: Mapping[int, float]) -> Mix | None:
    if not place.mean:
        return Mix.sum_of(parts.arrays)
    return Mix.mean_of(parts.arrays, parts.weights, parts.total(totals, place.table))


def _mismatch(place: Place, segment: Segment) -> str:
    if segment.kind != BLOCK or segment.carry != BY_VALUE:
        return f"{place} is dense and comes by value (kind {segment.kind}, carry {segment.carry})"
    own = place.segment
    found = f"{segment.elements} of {DTYPE_NAMES.get(segment.dtype, '?')}"
    return f"{place} has {own.elements} elements of {place.spec.storage_name}, not {found}"


def _overflow(place: Place, parts: Parts) -> str:
    bad = sum(1 for array in parts.arrays if place.dtype.kind == "f" and not np.isfinite(array).all())
    if bad:
        return f"{bad} of {len(parts.arrays)} pushes to {place} hold NaN or infinity"
    return f"the step of {place} leaves the range of {place.spec.storage_name}; {smaller_steps(place.spec)}"


def _no_memory(places: Iterable[Place]) -> RequestError:
    names = ", ".join(sorted({repr(place.spec.name) for place in places}))
    return RequestError(Code.NOSPC, f"the server has no memory left for table {names}; add servers or make it smaller")
