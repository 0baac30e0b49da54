"""The compiled part and the names of rows: found is what was added, whatever the numbers; keys are kept byte for byte."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugml.core.keys import buckets_of, key_hashes, row_hashes
from plugml.server import growing, rowindex
from plugml.server.growing import Column
from plugml.server.rownames import Keys, Names

#: Numbers that lie close together, far apart, at the ends; those near each other make runs in the cells.
NUMBERS = st.one_of(st.integers(0, 40), st.integers(0, (1 << 64) - 1), st.integers((1 << 64) - 20, (1 << 64) - 1))


def u64(numbers: list[int]) -> np.ndarray:
    return np.array(numbers, np.uint64)


def add(names: Names, ids: np.ndarray, keys: Keys | None = None) -> np.ndarray:
    slots = names.find(ids)
    names.reserve(int((slots < 0).sum()), len(keys.text) if keys is not None else 0)
    return names.add(ids, slots, keys)


def keys_of(words: list[bytes]) -> Keys:
    return Keys(np.frombuffer(b"".join(words), np.uint8), np.cumsum([len(word) for word in words]))


@given(st.lists(st.lists(NUMBERS, min_size=1, max_size=60, unique=True), min_size=1, max_size=12), st.integers(0, 5))
@settings(max_examples=150, deadline=None)
def test_an_index_is_a_dict(batches: list[list[int]], start: int) -> None:
    names = Names(start, 0, False)
    model: dict[int, int] = {}
    for batch in batches:
        want = [model.get(number, -1) for number in batch]
        assert names.find(u64(batch)).tolist() == want
        for number in batch:
            model.setdefault(number, len(model))
        assert add(names, u64(batch)).tolist() == [model[number] for number in batch]
        assert names.count == len(model)
    assert names.ids.tolist() == list(model)
    assert names.find(u64([*model, 12345])).tolist() == [*model.values(), model.get(12345, -1)]


def test_a_large_index_survives_its_growth() -> None:
    names = Names(7, 0, False)
    ids = np.random.default_rng(1).permutation(np.arange(300_000, dtype=np.uint64) * np.uint64(3))
    for part in np.array_split(ids, 11):
        add(names, part)
    np.testing.assert_array_equal(names.find(ids), np.arange(len(ids)))
    assert (names.find(ids + np.uint64(1)) == -1).all()


def test_the_same_rows_again_are_not_looked_up_again_and_other_rows_are() -> None:
    """A look-up is remembered; a row that was missing then is found now."""
    names = Names(7, 0, False)
    ids = np.arange(5_000, dtype=np.uint64)
    assert (names.find(ids) == -1).all()
    add(names, ids)
    first = names.find(ids)
    assert names.find(ids.copy()) is first
    other = ids.copy()
    other[17] = 99_999
    assert names.find(other)[17] == -1 and names.find(ids)[17] == 17


@given(st.lists(NUMBERS, min_size=1, max_size=50), st.integers(0, (1 << 64) - 1), st.sampled_from((1, 2, 8, 4096)))
@settings(max_examples=100, deadline=None)
def test_rows_of_another_bucket_are_seen_as_core_keys_cuts_them(numbers: list[int], start: int, buckets: int) -> None:
    ids = u64(numbers)
    homes = buckets_of(row_hashes(ids, start), buckets)
    bucket = int(homes[0])
    names = Names(start, buckets.bit_length() - 1, False)
    strangers = np.flatnonzero(homes != bucket)
    state = names.checked(ids, 0, bucket)
    if len(strangers):
        assert state == strangers[0]
    else:
        rising = all(one < two for one, two in zip(numbers, numbers[1:]))
        assert state == (rowindex.ASCENDING if rising else rowindex.UNORDERED)


def test_rows_above_the_tables_are_seen() -> None:
    names = Names(3, 0, False)
    assert names.checked(u64([0, 9, 10, 11]), 10, 0) == 2
    assert names.checked(u64([0, 9]), 10, 0) == rowindex.ASCENDING
    assert names.checked(u64([5, (1 << 64) - 1]), 0, 0) == rowindex.ASCENDING
    assert names.checked(u64([5, 5]), 10, 0) == rowindex.UNORDERED


@given(st.lists(st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=20, unique=True), min_size=1, max_size=6))
@settings(max_examples=100, deadline=None)
def test_keys_are_kept_by_slot(batches: list[list[bytes]]) -> None:
    names = Names(3, 0, True)
    kept: dict[bytes, int] = {}
    for words in batches:
        keys = keys_of(words)
        ids = key_hashes(keys.text, keys.ends)
        assert rowindex.wrong_key(keys.text, keys.ends, ids) == -1
        slots = add(names, ids, keys)
        for word in words:
            kept.setdefault(word, len(kept))
        assert slots.tolist() == [kept[word] for word in words]
        assert names.clash(keys, slots) == -1
    every = names.keys(0, names.count)
    assert [every.key(slot) for slot in range(names.count)] == list(kept)
    middle = names.keys(1, names.count)
    assert [middle.key(i) for i in range(names.count - 1)] == list(kept)[1:]
    picked = every.some(np.arange(0, names.count, 2))
    assert [picked.key(i) for i in range(len(picked.ends))] == list(kept)[::2]


def test_another_key_in_a_slot_and_a_number_that_is_no_hash_are_seen() -> None:
    names = Names(3, 0, True)
    keys = keys_of([b"one", b"two", b"three"])
    slots = add(names, key_hashes(keys.text, keys.ends), keys)
    for words, at in (([b"one", b"twp", b"three"], 1), ([b"one", b"two", b"thre"], 2), ([b"o", b"ne", b"x"], 0)):
        assert names.clash(keys_of(words), slots) == at
    assert names.clash(keys_of([b"one", b"other", b"three"]), np.array([0, -1, 2])) == -1
    ids = key_hashes(keys.text, keys.ends)
    ids[2] += 1
    assert rowindex.wrong_key(keys.text, keys.ends, ids) == 2


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.uint64])
@pytest.mark.parametrize("width", [1, 3])
def test_gather_and_scatter_are_numpys(dtype: type, width: int) -> None:
    rng = np.random.default_rng(0)
    kept = rng.integers(0, 60_000, (50, width)).astype(dtype)
    slots = rng.permutation(50)[:20].astype(np.int64)
    out = np.empty((20, width), dtype)
    rowindex.gather(kept, slots, out)
    np.testing.assert_array_equal(out, kept[slots])
    slots[3] = -1
    out[3] = 7
    rowindex.gather(kept, slots, out)
    assert (out[3] == 7).all(), "a row that is not here is left alone"
    slots[3] = 49 if 49 not in slots else slots[3]
    want = kept.copy()
    good = slots >= 0
    want[slots[good]] = out[good] + 1
    rowindex.scatter(kept, slots[good], out[good] + dtype(1))
    np.testing.assert_array_equal(kept, want)


def test_slots_are_united_in_order_of_their_coming() -> None:
    place_of = np.full(10, -1, np.int32)
    union, first, second = np.empty(7, np.int64), np.empty(3, np.int64), np.empty(4, np.int64)
    count = rowindex.unite(np.array([5, 2, 9]), place_of, union, first, 0)
    count = rowindex.unite(np.array([2, 7, 5, 0]), place_of, union, second, count)
    assert union[:count].tolist() == [5, 2, 9, 7, 0]
    assert first.tolist() == [0, 1, 2] and second.tolist() == [1, 3, 0, 4]


# -- arrays that grow


@pytest.mark.parametrize("width", [1, 3])
def test_what_is_in_a_column_stays_when_it_grows(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """Through both kinds of memory; what is new is zero."""
    monkeypatch.setattr(growing, "MAPPED_BYTES", 3 * mmap.PAGESIZE)
    column = Column(np.dtype(np.float32), width)
    kept = 0
    for rows in (1, 5, 1000, 1001, 20_000, 300_000):
        column.reserve(rows)
        assert len(column.array) >= rows and column.array.shape[1] == width
        assert not column.array[kept:].any(), "new rows are not zero"
        np.testing.assert_array_equal(column.array[:kept, 0], np.arange(kept, dtype=np.float32))
        column.array[:rows] = np.arange(rows, dtype=np.float32)[:, None]
        kept = rows


def test_growing_by_one_row_at_a_time_does_not_move_all_each_time() -> None:
    column = Column(np.dtype(np.float64), 1)
    moves = 0
    for rows in range(1, 5_000):
        before = column.array
        column.reserve(rows)
        moves += column.array is not before
    assert moves < 12


def test_a_column_that_cannot_grow_is_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing, "MAPPED_BYTES", mmap.PAGESIZE)
    column = Column(np.dtype(np.float64), 1)
    column.reserve(2000)
    column.array[:] = 5
    with pytest.raises(MemoryError):
        column.reserve(1 << 58)
    assert len(column.array) >= 2000 and (column.array == 5).all()
    column.reserve(5000)
    assert (column.array[:2000] == 5).all()


# -- numba itself


def test_what_cannot_be_cached_is_compiled_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def njit(signatures: object, cache: bool = False, **options: object) -> object:
        asked.append(cache)
        if cache:
            raise RuntimeError("cannot cache function 'find': no locator available for file 'rowindex.py'")
        return lambda function: function

    monkeypatch.setattr(rowindex.numba, "njit", njit)
    assert rowindex._compiled("void()")(len) is len
    assert asked == [True, False]


def test_another_failure_of_the_compiler_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def njit(*signatures: object, **options: object) -> object:
        raise RuntimeError("something else")

    monkeypatch.setattr(rowindex.numba, "njit", njit)
    with pytest.raises(RuntimeError, match="something else"):
        rowindex._compiled("void()")(len)


def test_where_twice_the_room_is_too_much_what_is_needed_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing, "MAPPED_BYTES", mmap.PAGESIZE)
    column = Column(np.dtype(np.float64), 1)
    column.reserve(10_000)
    column.array[:] = 3
    room = len(column.array)
    original = Column._map

    def tight(self: Column, nbytes: int) -> bool:
        return nbytes <= 8 * (room + 600) and original(self, nbytes)

    monkeypatch.setattr(Column, "_map", tight)
    column.reserve(room + 5)
    assert room + 5 <= len(column.array) < room + 600 and (column.array[:room] == 3).all()


def test_somebody_who_still_looks_keeps_what_he_looks_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing, "MAPPED_BYTES", mmap.PAGESIZE)
    column = Column(np.dtype(np.float64), 1)
    column.reserve(10_000)
    column.array[:] = 3
    look = column.array[:5]
    column.reserve(100_000)
    assert (column.array[:10_000] == 3).all() and not column.array[20_000:].any()
    column.array[:5] = 4
    assert (look == 3).all()
