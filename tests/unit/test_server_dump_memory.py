"""What a dump holds stays what it was, costs nothing before it is stepped again, and is given back."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from plugml.core.job import JobSpec
from plugml.core.table import DTYPE_CODES, TableSpec
from plugml.server.dump import Dump, Stream
from plugml.server.pool import SPARE_BYTES
from plugml.wire import messages as m
from tests.scenario.sparse import by_range, joined, sparse_table
from tests.unit.dump_history import Copy, copied, lived

BLOCKS = 4


def dense(**rest: Any) -> tuple[JobSpec, Copy]:
    spec = JobSpec("story", 1, (TableSpec("w", (40,), dtype="f64", optimizer="momentum", block_bytes=80, consistency="asp"),), **rest)
    return spec, Copy(spec)


def step(spec: JobSpec, copy: Copy, seq: int, rows: dict[str, dict[Any, Any]] | None = None, blocks: tuple[int, ...] = ()) -> None:
    groups = [found for name, wanted in (rows or {}).items() for found in by_range(spec, 1, {name: wanted})[0]]
    for block in blocks:
        groups.append(((m.Segment(spec.table_number("w"), block, 10, DTYPE_CODES["f64"]),), (np.full(10, float(seq)),)))
    segments, payload = joined(groups)
    said = copy.take(m.Push(1, 0, 1, 1, 0, (m.Component(0, 1, seq, seq - 1, 0, 1.0),), segments, payload))
    assert isinstance(said[0].message, m.PushAck), said


def held(copy: Copy) -> list[Any]:
    return [array for place in copy.range.blocks.places.values() if place.state for array in (place.state.values, *place.state.slots)]


def free(copy: Copy) -> list[Any]:
    return [array for arrays in copy.memory._free.values() for array in arrays] + [a for arrays in copy.memory._lent.values() for a in arrays]


def alike(one: Any, some: list[Any]) -> bool:
    return any(np.shares_memory(one, other) for other in some)


def test_blocks_are_in_a_dump_by_reference_and_nobody_can_write_them() -> None:
    spec, copy = dense()
    step(spec, copy, 1, blocks=(0, 1, 2, 3))
    dump = copy.dump()
    assert len(dump.arrays) == 2 * BLOCKS
    for array in dump.arrays.values():
        assert alike(array, held(copy)) and not array.flags.writeable
    assert all(alike(np.frombuffer(Stream(dump)._bytes(number), np.uint8), held(copy)) for number in range(2 * BLOCKS))


def test_a_block_that_nobody_has_changed_is_in_no_dump() -> None:
    """Its first values are computed anew wherever it is."""
    spec, copy = dense()
    copy.range.blocks.places[0, 2].current(copy.memory)
    step(spec, copy, 1, blocks=(1,))
    dump = copy.dump()
    assert sorted(dump.arrays) == ["w/1/slot0", "w/1/values"]
    assert Copy(spec).whole() != copy.whole()


@pytest.mark.parametrize("seed", range(20))
def test_what_is_dumped_kept_or_sent_is_never_written(seed: int) -> None:
    """Dumps, snapshots, and parts in messages that are still being sent, at random: each stays what it was; memory does not grow."""
    draw = Random(seed)
    tables = (
        TableSpec("w", (40,), dtype="f64", optimizer=draw.choice(("momentum", "adam", "sgd")), block_bytes=80, consistency="asp"),
        TableSpec("b", (3,), optimizer="sgd", block_bytes=80),
    )
    spec = JobSpec("story", 1, tables, snapshot_every=1)
    sent: list[tuple[memoryview, bytes]] = []
    copy = Copy(spec, lent=lambda array: any(np.shares_memory(array, np.frombuffer(part, np.uint8)) for part, _ in sent))
    dumps: list[tuple[Dump, list[bytes]]] = []
    snapshots: dict[int, bytes] = {}
    seq = 0
    for _ in range(120):
        what = draw.choice(("step", "step", "step", "dump", "part", "arrives", "let go", "close"))
        if what == "step":
            seq += 1
            step(spec, copy, seq, blocks=tuple(sorted(draw.sample(range(BLOCKS), draw.randrange(1, 4)))))
        elif what == "close":
            clock = copy.range.closed
            copy.take(m.Close(1, 1, 1, clock, ((0, 1),), ((1, 1.0),)))
            kept = copy.range.contents.kept
            snapshots[clock + 1] = b"".join(array.tobytes() for array in kept[clock + 1].blocks.values())  # type: ignore[union-attr]
            assert len(kept) <= 2
        elif what == "dump" and len(dumps) < 3:
            dump = copy.dump()
            dumps.append((dump, [array.tobytes() for array in dump.arrays.values()]))
        elif what == "part" and dumps:
            dump, _ = draw.choice(dumps)
            stream = Stream(dump)
            part = stream.part(draw.randrange(stream.total), draw.choice((20, 200)))
            sent.append((part, bytes(part)))
        elif what == "arrives" and sent:
            sent.pop(0)
        elif what == "let go" and dumps:
            copy.memory.begin_event()
            copy.holding.contents.let_go(dumps.pop(draw.randrange(len(dumps)))[0])
        for dump, were in dumps:
            assert [array.tobytes() for array in dump.arrays.values()] == were
            for array in dump.arrays.values():
                assert not alike(array, free(copy)), "what a dump holds is given out"
        for part, was in sent:
            assert bytes(part) == was, "what is being sent was written"
        for at, snapshot in copy.range.contents.kept.items():
            assert b"".join(array.tobytes() for array in snapshot.blocks.values()) == snapshots[at]  # type: ignore[union-attr]
        loose = free(copy)
        assert len({array.__array_interface__["data"][0] for array in loose}) == len(loose), "an array was given back twice"
        assert not any(alike(array, loose) for array in held(copy)), "what is shown was given back"
    sent.clear()
    for dump, _ in dumps:
        copy.memory.begin_event()
        copy.holding.contents.let_go(dump)
    copy.memory.begin_event()
    most = 5 * (BLOCKS + 1) * 3 + 12
    assert len(free(copy)) <= most, "memory grows"


def test_dumps_one_after_the_other_take_the_same_memory() -> None:
    spec, copy = dense()
    seen = set()
    for seq in range(1, 80, 2):
        step(spec, copy, seq, blocks=(0, 1, 2, 3))
        dump = copy.dump()
        seen |= {array.__array_interface__["data"][0] for array in dump.arrays.values()}
        if seq % 3:
            step(spec, copy, seq + 1, blocks=(0, 1))
        copy.memory.begin_event()
        copy.holding.contents.let_go(dump)
        if not seq % 3:
            step(spec, copy, seq + 1, blocks=(0, 1))
    assert len(seen) <= 3 * 2 * BLOCKS


def test_what_a_part_shows_is_not_written_in_the_event_that_lets_go_of_it() -> None:
    """The message is sent when the event is over: until then nobody knows of it but the range."""
    spec, copy = dense()
    step(spec, copy, 1, blocks=(0,))
    dump = copy.dump()
    part = Stream(dump).part(Stream(dump).total - 80, 80)
    was = bytes(part)
    copy.memory.begin_event()
    copy.holding.contents.let_go(dump)
    begin = copy.memory.begin_event
    copy.memory.begin_event = lambda: None  # type: ignore[method-assign]
    for seq in (2, 3, 4):
        step(spec, copy, seq, blocks=(0,))
    assert bytes(part) == was
    copy.memory.begin_event = begin  # type: ignore[method-assign]


def test_rows_in_a_dump_are_copies() -> None:
    spec = JobSpec("story", 1, (sparse_table("e", width=2, optimizer="momentum", consistency="asp"),))
    copy = Copy(spec)
    step(spec, copy, 1, {"e": {1: [1, 2], 2: [3, 4]}})
    dump = copy.dump()
    was = [array.tobytes() for array in dump.arrays.values()]
    step(spec, copy, 2, {"e": {1: [5, 5], 9: [1, 1]}})
    assert [array.tobytes() for array in dump.arrays.values()] == was


def test_no_memory_for_a_dump_is_said_before_anything_is_copied() -> None:
    spec = JobSpec("story", 1, (sparse_table("e", width=64, optimizer="adam", consistency="asp"),))
    copy = Copy(spec, room=SPARE_BYTES + 100_000)
    step(spec, copy, 1, {"e": {row: np.ones(64) for row in range(60)}})
    copy.pool._granted = 0
    copy.room = SPARE_BYTES + 1_000
    with pytest.raises(MemoryError):
        copy.dump()
    copy.room = SPARE_BYTES + (1 << 20)
    copy.dump()


def test_what_a_range_forgets_is_given_back() -> None:
    spec, copy, _ = lived(Random(2), 80)
    whole = copy.whole()
    dump = copy.dump()
    count = len(held(copy))
    copy.holding.forget()
    assert copy.pool.used == copy.pool.taken == 0 and not copy.range.contents.kept and not held(copy)
    assert copy.range.contents.digest() == Copy(spec).range.contents.digest()
    assert not any(alike(array, free(copy)) for name, array in dump.arrays.items() if "values" in name or "slot" in name)
    copy.holding.contents.let_go(dump)
    given = len(free(copy))
    copy.holding.contents.let_go(dump)
    assert len(free(copy)) == given >= count
    copy.load(dump)
    assert copy.whole() == whole


def test_a_load_that_fails_leaves_nothing() -> None:
    from plugml.core.errors import PeerError

    spec, copy, _ = lived(Random(2), 80)
    other = Copy(spec)
    dump = copy.dump()
    arrays = copied(dump)
    last = [name for name in arrays if name.endswith("/ids")][-1]
    arrays[last][:] = arrays[last][0]
    with pytest.raises(PeerError):
        other.holding.contents.load(dump.meta["contents"], arrays)
    assert other.pool.used == other.pool.taken == 0 and not held(other)


def test_each_block_and_bucket_knows_its_last_change() -> None:
    tables = (TableSpec("w", (40,), dtype="f64", block_bytes=80, consistency="asp"), sparse_table("e", buckets=4, consistency="asp"))
    spec = JobSpec("story", 1, tables)
    copy = Copy(spec)

    def changes() -> dict[tuple[int, int], int]:
        inside = copy.dump().meta["contents"]
        return {row[:2]: row[3] for row in inside["blocks"]} | {row[:2]: row[4] for row in inside["buckets"]}

    step(spec, copy, 1, blocks=(0, 1, 2, 3))
    step(spec, copy, 2, {"e": {row: [1, 1] for row in range(20)}})
    before = changes()
    assert len(before) == 8
    step(spec, copy, 3, {"e": {5: [1, 1]}}, blocks=(2,))
    copy.take(m.Roster(1, 1, 1, 1, ((0, 1, 0, -1),)))
    after = changes()
    changed = {key for key in after if after[key] != before[key]}
    assert len(changed) == 2 and (0, 2) in changed
    assert all(after[key] > max(before.values()) for key in changed)
