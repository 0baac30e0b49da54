"""A dump on its way: parts cut as they come best, in any order, and nothing believed of them before it is checked."""

from __future__ import annotations

from contextlib import suppress
from copy import deepcopy
from random import Random
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugml.core.errors import Code, PeerError, RequestError
from plugml.server import dump as dumps
from plugml.server.dump import HEAD_MAX, JOINED, Dump, Filling, Layout, Shape, Stream, without
from plugml.server.pool import SPARE_BYTES
from tests.unit.dump_history import Copy, copied, lived

U8 = np.dtype(np.uint8)


def of_sizes(*sizes: int) -> tuple[Dump, Layout]:
    draw = np.random.default_rng(len(sizes))
    arrays = {f"a{number:03}": draw.integers(0, 256, size, np.uint8) for number, size in enumerate(sizes)}
    return Dump({"sizes": sizes}, arrays), {name: Shape(U8, array.shape) for name, array in arrays.items()}


@given(st.lists(st.one_of(st.integers(1, 300), st.integers(JOINED - 3, JOINED + 3), st.just(3 * JOINED)), max_size=8), st.data())
@settings(max_examples=150, deadline=None)
def test_parts_in_any_order_make_it_again(sizes: list[int], data: st.DataObject) -> None:
    dump, layout = of_sizes(*sizes)
    stream = Stream(dump)
    part = data.draw(st.sampled_from((1 if stream.total < 900 else 999, 70, 4096, 1 << 17, 1 << 20)))
    draw = Random(data.draw(st.integers(0, 99)))
    filling = Filling(stream.total, len(stream.head), part, lambda meta: layout)
    asked: set[int] = set()
    while not filling.complete:
        missing = filling.missing(draw.randrange(1, 6))
        cursor = draw.choice(missing)
        assert cursor not in asked, "a part that came is asked for again"
        asked.add(cursor)
        filling.put(cursor, stream.part(cursor, part))
        odd = draw.randrange(stream.total)  # of somebody who cuts otherwise, or late
        if stream.total > 900 and draw.random() < 0.1 and odd < len(stream.head):
            filling.put(odd, stream.part(odd, 50))
    taken = filling.taken()
    assert taken.meta == {"sizes": tuple(sizes)} and taken.arrays.keys() == dump.arrays.keys()
    for name, array in dump.arrays.items():
        np.testing.assert_array_equal(taken.arrays[name], array)


def test_any_cut_of_the_bytes_will_do() -> None:
    dump, layout = of_sizes(5, 100_000, 7, 9)
    stream = Stream(dump)
    whole = b"".join([stream.head, *(array.tobytes() for array in dump.arrays.values())])
    draw = Random(3)
    filling = Filling(stream.total, len(stream.head), 1000, lambda meta: layout)
    while not filling.complete:
        start = draw.randrange(stream.total)
        stop = draw.randrange(start, stream.total) + 1
        filling.put(start, whole[start:stop])
    assert all(np.array_equal(filling.taken().arrays[name], array) for name, array in dump.arrays.items())


def test_a_large_array_is_sent_as_it_lies_and_small_ones_together() -> None:
    dump, _ = of_sizes(10, 1 << 20, 20, 30, 40, 1 << 20)
    stream = Stream(dump)
    cursor, parts = 0, []
    while cursor < stream.total:
        parts.append(stream.part(cursor, 1 << 20))
        cursor += parts[-1].nbytes
    assert [part.nbytes for part in parts] == [len(stream.head) + 10, 1 << 20, 90, 1 << 20]
    for part, name in ((parts[1], "a001"), (parts[3], "a005")):
        assert np.shares_memory(np.frombuffer(part, U8), dump.arrays[name])
    for cursor, nbytes in ((-1, 5), (stream.total, 5), (0, 0)):
        with pytest.raises(PeerError):
            stream.part(cursor, nbytes)


def test_nothing_is_allocated_before_the_head_is_good(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Shape] = []
    blank = dumps.blank
    monkeypatch.setattr(dumps, "blank", lambda shape: made.append(shape) or blank(shape))
    dump, layout = of_sizes(50, 60)
    stream = Stream(dump)
    head = len(stream.head)

    def filling(total: int = stream.total, of: Any = lambda meta: layout) -> Filling:
        return Filling(total, head, 1000, of)

    def refuse(meta: Any) -> Layout:
        raise PeerError("no")

    def full(meta: Any) -> Layout:
        raise RequestError(Code.NOSPC, "no room")

    for total, size in ((0, 0), (5, 6), (10, 0), (HEAD_MAX * 2, HEAD_MAX + 1)):
        with pytest.raises(PeerError):
            Filling(total, size, 1000, lambda meta: layout)
    for number, spoiled in enumerate((filling(stream.total + 1), filling(of=refuse), filling(1 << 60))):
        with pytest.raises(PeerError):
            spoiled.put(0, stream.head)
        assert not spoiled.complete and spoiled.missing(9) == [0], number
    with pytest.raises(RequestError):
        filling(of=full).put(0, stream.head)
    for data in (b"\xc1" * head, msgpack.packb([1] * (head - 1)), b"\x81" * head, b"\xff" * head):
        with pytest.raises(PeerError):
            filling().put(0, data[:head])
    for cursor, data in ((-1, b"x"), (stream.total, b"x"), (stream.total - 1, b"xx"), (0, b"")):
        with pytest.raises(PeerError):
            filling().put(cursor, data)
    assert not made
    good = filling()
    good.put(0, stream.head)
    assert len(made) == 2 and not good.complete


def test_memory_that_is_not_there_leaves_a_filling_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    dump, layout = of_sizes(50)
    stream = Stream(dump)
    filling = Filling(stream.total, len(stream.head), 1000, lambda meta: layout)

    def none(shape: Shape) -> Any:
        raise MemoryError

    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(dumps, "blank", none)
        filling.put(0, stream.part(0, 1000))
    assert filling.missing(3) == [0]
    filling.put(0, stream.part(0, 1000))
    assert filling.complete


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8))
def test_gaps_are_what_no_part_has_covered(parts: list[tuple[int, int]]) -> None:
    gaps, left = [(0, 25)], set(range(25))
    for start, stop in parts:
        gaps = without(gaps, start, max(start, stop))
        left -= set(range(start, stop))
        assert [number for low, high in gaps for number in range(low, high)] == sorted(left)


# -- a peer that lies


def mutated(value: Any, draw: Random) -> Any:
    """The document with one value in it that is another."""
    spots: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key in node if isinstance(node, dict) else range(len(node)):
            spots.append((node, key))
            if isinstance(node[key], (dict, list)):
                walk(node[key])

    whole = msgpack.unpackb(msgpack.packb(value))
    walk(whole)
    node, key = draw.choice(spots)
    others = [-1, 0, 1, 2, 3, 1 << 40, 1 << 62, (1 << 63) - 1, 0.5, float("nan"), "x", None, True, [], {}, [[1, 2]], [[0, 0, 0, 0, 0]]]
    old = node[key]
    if isinstance(old, int):
        others += [old + 1, max(0, old - 1)] * 4
    if isinstance(old, list) and old:
        others += [old[:-1], old + old[-1:], old[::-1]] * 3
    if isinstance(old, dict) and draw.random() < 0.2:
        del node[key]
    else:
        node[key] = deepcopy(draw.choice(others))
    return whole


@pytest.mark.parametrize("seed", range(8))
def test_whatever_a_document_says_it_is_taken_or_refused(seed: int) -> None:
    """What is taken keeps every rule that the range and its clock have; what is refused leaves nothing behind."""
    draw = Random(seed)
    spec, first, history = lived(draw)
    dump = first.dump()
    taken = 0
    for _ in range(150):
        second = Copy(spec)
        meta = dump.meta
        for _ in range(draw.choice((1, 1, 2))):
            meta = mutated(meta, draw)
        try:
            layout = second.holding.layout(meta)
            arrays = {name: dump.arrays.get(name, np.zeros(0)) for name in layout}
            arrays = {name: array.copy() if (array.dtype, array.shape) == layout[name] else _other(layout[name]) for name, array in arrays.items()}
            second.load(Dump(meta, arrays))
        except (PeerError, RequestError):
            second.holding.forget()
            assert second.pool.used == second.pool.taken == 0
            continue
        taken += 1
        second.range.digest()
        second.whole()
        history.watched, history.sent = second, []
        for _ in range(10):
            with suppress(PeerError):
                second.take(history.next())
    assert 0 < taken < 150


def _other(shape: Shape) -> Any:
    return np.ones(shape.sizes, shape.dtype) if shape.nbytes < 1 << 20 else np.zeros(1, shape.dtype).repeat(1 << 10)


@pytest.mark.parametrize(("name", "text"), [("ids", "row|key"), ("keys", "key"), ("ends", "keys|key"), ("values", "NaN|infinity"), ("slots", "rows")])
def test_no_wrong_number_gets_into_an_array(name: str, text: str) -> None:
    """Rows of other buckets, keys of other rows, lengths that do not fit, what is no number."""
    draw = Random(4)
    spec, first, _ = lived(draw, 70)
    dump = first.dump()
    spoiled = 0
    for array_name, array in dump.arrays.items():
        if array_name.rsplit("/", 1)[1] != name or (name == "values" and array.dtype.kind != "f"):
            continue
        spoiled += 1
        arrays = copied(dump)
        flat = arrays[array_name].reshape(-1)
        elsewhere = arrays["e/1/ids" if array_name == "e/0/ids" else "e/0/ids"][0]
        flat[draw.randrange(flat.size)] = {"values": np.nan, "slots": 1 << 33, "ids": elsewhere}.get(name, 250)
        with pytest.raises(PeerError, match=text):
            Copy(spec).load(Dump(dump.meta, arrays))
    assert spoiled


def test_a_row_twice_is_refused() -> None:
    spec, first, _ = lived(Random(4), 60)
    dump = first.dump()
    names = [name for name in dump.arrays if name.startswith("e/") and name.endswith("/ids") and dump.arrays[name].size > 1]
    assert names
    for name in names:
        arrays = copied(dump)
        arrays[name][-1] = arrays[name][0]
        with pytest.raises(PeerError, match="a row twice"):
            Copy(spec).load(Dump(dump.meta, arrays))


def test_rows_that_have_no_room_are_refused_before_they_come() -> None:
    spec, first, _ = lived(Random(4), 40)
    dump = first.dump()
    small, shared = Copy(spec, room=SPARE_BYTES + 10), Copy(spec)
    shared.pool.share = first.pool.used - 1
    for copy in (small, shared):
        with pytest.raises(RequestError, match="NOSPC"):
            copy.holding.layout(dump.meta)
        with pytest.raises(RequestError, match="NOSPC"):
            copy.load(Dump(dump.meta, copied(dump)))
        copy.holding.forget()
        assert copy.pool.used == copy.pool.taken == 0
    shared.pool.share = first.pool.used
    shared.load(Dump(dump.meta, copied(dump)))
    assert shared.pool.used == first.pool.used and shared.pool.taken == first.pool.taken
