"""Rows by bucket: each once and ascending, whatever came; cuts are remembered, few of them, and only for the very same rows."""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugml.agent import cuts
from plugml.agent.cuts import Cuts, cut, sorting
from plugml.agent.plan import Sparse
from plugml.core.keys import buckets_of, row_hashes
from plugml.shm_protocol.rows import Rows, hashed
from plugml.wire import messages as m

from . import agent_rows
from .agent_rows import E, F, W, do, pull, spec
from .test_agent_harness import World

TOP = (1 << 64) - 1
F4 = np.dtype("<f4")


def table(buckets: int = 4, index: str = "u64", number: int = 0) -> Sparse:
    return Sparse(number, "e", 12345, tuple(range(buckets)), 1, 1 << 20, index, F4, F4, 1)


def rows(*ids: int, number: int = 0) -> Rows:
    return Rows(number, np.array(ids, np.uint64))


def keyed(*keys: str) -> Rows:
    text = "".join(keys).encode()
    return hashed(0, np.frombuffer(text, np.uint8), np.cumsum([len(key.encode()) for key in keys]))


IDS = st.one_of(st.lists(st.integers(0, 20), max_size=40), st.lists(st.integers(0, TOP), max_size=40), st.lists(st.sampled_from([0, 1, TOP - 1, TOP]), max_size=9))


@given(ids=IDS)
def test_sorting_is_stable_for_any_numbers(ids: list[int]) -> None:
    assert sorting(np.array(ids, np.uint64)).tolist() == sorted(range(len(ids)), key=lambda at: ids[at])


@given(ids=IDS, buckets=st.sampled_from([1, 2, 64]))
def test_each_row_is_sent_once_ascending_in_its_bucket_and_found_again(ids: list[int], buckets: int) -> None:
    made = cut(rows(*ids), table(buckets))
    sent = made.sent.ids
    assert sorted(sent.tolist()) == sorted(set(ids))
    at = buckets_of(row_hashes(sent, 12345), buckets).astype(int)
    start = 0
    for bucket, end in enumerate(made.ends.tolist()):
        assert (at[start:end] == bucket).all() and (np.diff(sent[start:end].astype(object)) > 0).all()
        start = end
    assert start == len(sent)
    assert (sent if made.home is None else sent[made.home]).tolist() == ids
    assert made.twins == (len(set(ids)) < len(ids))
    base = np.array(sorted(set(ids)), np.uint64) if made.twins else np.array(ids, np.uint64)
    assert (base if made.order is None else base[made.order]).tolist() == sent.tolist()


@given(keys=st.lists(st.text("abé", min_size=1, max_size=4), min_size=1, max_size=20))
def test_keys_go_with_their_rows(keys: list[str]) -> None:
    came = keyed(*keys)
    made = cut(came, table(4, "str"))
    assert made.sent.keys is not None and made.sent.ends is not None
    ends = made.sent.ends.tolist()
    sent = [made.sent.keys[low:end].tobytes().decode() for low, end in zip([0, *ends], ends)]
    assert sorted(sent) == sorted(set(keys))
    assert keyed(*sent).ids.tolist() == made.sent.ids.tolist()


def test_the_same_rows_are_cut_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    real = cuts.cut
    monkeypatch.setattr(cuts, "cut", lambda came, where: made.append(came) or real(came, where))
    known = Cuts()
    push, want = rows(5, 3, 5), rows(9, 3)
    for _ in range(3):
        assert known.of(rows(5, 3, 5), table()).sent.ids.tolist() == real(push, table()).sent.ids.tolist()
        assert known.of(rows(9, 3), table()).home is not None
    assert len(made) == 2, "what is pushed and what is wanted are remembered side by side"
    for other in (rows(5, 3), rows(5, 3, 4), rows(3, 5, 5), want):
        assert known.of(other, table()).came.ids.tolist() == other.ids.tolist()
    assert len(made) == 6, "others in between, the oldest is forgotten"
    assert known.of(rows(9, 3, number=1), table(number=1)).sent.table == 1


def test_two_keys_of_one_hash_are_not_the_same_rows() -> None:
    one, other = "8yn0iYCKYHlIj4-BwPqk", "GReLUrM4wMqfg9yzV3KQ"
    known = Cuts()
    for key in (one, other, one):
        sent = known.of(keyed(key), table(4, "str")).sent
        assert sent.keys is not None and sent.keys.tobytes().decode() == key
    ab, ba = keyed("ab", "c"), keyed("a", "bc")._replace(ids=keyed("ab", "c").ids)
    known.of(ab, table(4, "str"))
    assert known.of(ba, table(4, "str")).came.ends is not None
    assert known.of(ba, table(4, "str")).came.ends.tolist() == [1, 3]  # type: ignore[union-attr]


def test_what_is_remembered_is_bounded() -> None:
    one = cut(rows(*range(100, 0, -1)), table()).nbytes
    known = Cuts(4 * one)
    for turn in range(20):
        for number in range(10):
            found = known.of(rows(*range(100 + turn, turn, -1), number=number), table(number=number))
            assert found.came.ids[0] == 100 + turn and known.nbytes <= 4 * one
    assert known.of(rows(*range(1000, 0, -1)), table()).sent.size == 1000, "one that is too large is made anew"
    assert known.nbytes <= 4 * one


def test_messages_ascend_and_repeated_steps_keep_their_values() -> None:
    world = World(servers=2)
    world.register(spec(W, E, F, consistency="asp"))
    program = world.plug("rows", 0)
    ids, keys = [900, 5, 700, 5, 0, 999], ["z", "a", "z"]
    for number in range(1, 6):
        e = agent_rows.Rows(E, ids, np.full((6, 3), number), want=ids)
        f = agent_rows.Rows(F, keys, np.full((3, 2), number), want=keys)
        assert do(program, "step", e, f).ok, program.err()
        got_e, got_f = agent_rows.read(program, e, f)
        total = number * (number + 1) // 2
        np.testing.assert_array_equal(got_e, np.array([1, 2, 1, 2, 1, 1])[:, None] * np.full((6, 3), total))
        np.testing.assert_array_equal(got_f, np.array([2, 1, 2])[:, None] * np.full((3, 2), total))
    assert pull(program, E, [999, 5, 1]).tolist() == [[15] * 3, [30] * 3, [0] * 3]
    sent = 0
    for _to, message in world.sent:
        if isinstance(message, (m.Push, m.Pull)):
            segments = [segment for segment in message.segments if segment.kind == m.IDS]
            frames = [frame for segment, frame in zip([s for s in message.segments if s.carry == m.BY_VALUE], message.payload) if segment.kind == m.IDS]
            for _segment, frame in zip(segments, frames):
                assert (np.diff(np.frombuffer(frame, np.uint64).astype(object)) > 0).all()
                sent += 1
    assert sent > 10


@pytest.mark.parametrize("same", [True, False])
def test_memory_does_not_grow_over_many_sparse_steps(same: bool) -> None:
    world = World(servers=1)
    world.register(spec(E, F, consistency="asp"))
    program = world.plug("rows", 0)

    def steps(start: int, count: int) -> None:
        for number in range(start, start + count):
            ids = [7, 3, 7] if same else [number % 997, 3, number % 31]
            e = agent_rows.Rows(E, ids, np.ones((3, 3)), want=ids)
            assert do(program, "step", e, agent_rows.Rows(F, ["a"], np.ones((1, 2)), want=["a"])).ok
            world.sent.clear()
            world.logs.clear()

    def held() -> int:
        """Bytes that the agent's own lines have allocated; servers remember some hundred steps for good reason."""
        gc.collect()
        own = [tracemalloc.Filter(True, f"*/{part}/*.py") for part in ("agent", "shm_protocol")]
        return sum(line.size for line in tracemalloc.take_snapshot().filter_traces(own).statistics("filename"))

    steps(0, 100)
    tracemalloc.start()
    try:
        steps(0, 200)
        before = held()
        steps(200, 600)
        after = held()
    finally:
        tracemalloc.stop()
    assert after - before < 20 * 1024, f"{after - before} bytes for 600 steps"
