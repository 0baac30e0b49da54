"""Sparse tables in a range: what a pull shows is what a plain dictionary of rows says, to the bit; what is wrong leaves no trace."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugml.core.errors import Code
from plugml.core.keys import name_hash
from plugml.core.limits import Limits
from plugml.core.table import TableSpec
from plugml.server import firsts
from plugml.server.effects import Turn
from plugml.server.log import Entry
from plugml.server.optimizers import KERNELS, Mix, Scratch, advance
from plugml.wire import messages as m
from plugml.wire.codec import U8, U64
from tests.scenario.kit import Box, job, table
from tests.scenario.sparse import Name, bucket_of, group, joined, read_scanned, sparse_table

#: Two names with one hash (FNV-1a of 64 bits).
ONE, TWO = "8yn0iYCKYHlIj4-BwPqk", "GReLUrM4wMqfg9yzV3KQ"


def box(*tables: TableSpec, **rest: Any) -> Box:
    ring, servers = rest.pop("ring", 1), rest.pop("servers", ("s0.1",))
    room = {"room": rest.pop("room")} if "room" in rest else {}
    made = Box(job(*tables, **rest), servers, ring, **room)
    made.take()
    return made


def refused(there: Box) -> list[tuple[str, str]]:
    return [(Code(refusal.code).name, refusal.text) for refusal in there.take(m.Refuse)]


def store(there: Box, name: str = "e") -> Any:
    """The bucket of a table that has one."""
    (held,) = there.servers["s0.1"].jobs[1].ranges.values()
    return held.contents.buckets.held[there.spec.table_number(name), 0]


class Model:
    """Rows as a dictionary, each stepped as a dense block of one row."""

    def __init__(self, spec: TableSpec, seed: int) -> None:
        self.spec, self.seed = spec, seed
        self.kernel = KERNELS[spec.optimizer]
        self.scratch = Scratch(spec.storage_dtype)
        self.rows: dict[Name, tuple[np.ndarray, list[np.ndarray], int]] = {}

    def first(self, row: Name) -> np.ndarray:
        out = np.empty((1, self.spec.width), self.spec.storage_dtype)
        firsts.fill_rows(self.spec, self.seed, np.array([name_hash(row) if isinstance(row, str) else row], np.uint64), out)
        return out[0]

    def read(self, row: Name) -> np.ndarray:
        return self.rows[row][0] if row in self.rows else self.first(row)

    def step(self, row: Name, mix: Mix, scalars: tuple[float, ...]) -> None:
        empty = [np.zeros(self.spec.width, self.scratch.work) for _ in range(self.kernel.slots)]
        old, slots, count = self.rows.get(row, (self.first(row), empty, 0))
        new, new_slots = old.copy(), [slot.copy() for slot in slots]
        assert advance(self.kernel, old, mix, slots, new, new_slots, count + 1, scalars, self.scratch)
        self.rows[row] = (new, new_slots, count + 1)


ROW = st.one_of(st.integers(0, 9), st.integers(0, (1 << 64) - 1))
PUSH = st.dictionaries(ROW, st.integers(-8, 8), min_size=1, max_size=8)
OPTIMIZER = st.sampled_from(("sgd", "momentum", "adagrad", "adam", "adamw", "add", "assign"))


# -- steps


@given(st.lists(PUSH, min_size=1, max_size=8), OPTIMIZER, st.sampled_from(("f32", "f64", "f16")), st.sampled_from(("zeros", "uniform", "normal")))
@settings(max_examples=120, deadline=None)
def test_rows_that_step_at_once_are_a_dictionary(pushes: list[dict[int, int]], optimizer: str, storage: str, init: str) -> None:
    dtype = "f32" if storage == "f16" else storage
    spec = sparse_table(width=3, dtype=dtype, storage=storage, optimizer=optimizer, init=init, buckets=4)
    there = box(spec, consistency="asp", ring=4, servers=("s0.1", "s1.1"), seed=5)
    model = Model(spec, 5)
    scalars = model.kernel.scalars(spec, 1.0, 1.0)
    for seq, push in enumerate(pushes, 1):
        rows = {row: np.array([number, number / 4, -number], spec.storage_dtype) for row, number in push.items()}
        there.push({}, seq=seq, rows={"e": rows})
        for row, update in rows.items():
            model.step(row, Mix.sum_of([update]), scalars)
    assert not there.take(m.Refuse)
    for row in {*model.rows, 77, (1 << 63) + 5}:
        np.testing.assert_array_equal(there.row(row), model.read(row))
    held = sum(held.contents.buckets.count for s in there.servers.values() for held in s.jobs[1].ranges.values())
    assert held == len(model.rows), "reading has created a row"


@given(st.data(), st.sampled_from(("mean", "sum")), st.sampled_from(("f32", "f16")))
@settings(max_examples=120, deadline=None)
def test_a_close_adds_up_each_row_in_order_of_worker_and_seq(data: st.DataObject, combine: str, storage: str) -> None:
    """Bit for bit what numpy makes of it in the working kind of number, whatever order the pushes came in."""
    workers = data.draw(st.integers(1, 3))
    spec = sparse_table(width=2, optimizer="momentum", combine=combine, init="uniform", storage=storage)
    there = box(spec, workers=workers, seed=2)
    model = Model(spec, 2)
    equal = data.draw(st.booleans())
    seqs = [0] * workers
    for clock in range(data.draw(st.integers(1, 4))):
        sent: list[tuple[int, int, float, dict[int, np.ndarray]]] = []
        for worker in data.draw(st.permutations([w for w in range(workers) for _ in range(data.draw(st.integers(0, 2)))])):
            seqs[worker] += 1
            push = data.draw(PUSH)
            rows = {row: np.array([number / 3, number * 0.1], "f4").astype(spec.storage_dtype) for row, number in push.items()}
            weight = 1.0 if equal else data.draw(st.sampled_from((1.0, 3.0, 0.5)))
            there.push({}, worker, seq=seqs[worker], clock=clock, weight=weight, rows={"e": rows})
            sent.append((worker, seqs[worker], weight, rows))
        sent.sort(key=lambda item: item[:2])
        total = 0.0
        for worker in range(workers):
            weight = sum(item[2] for item in sent if item[0] == worker)
            total += weight
            there.tick(clock, worker, weight=weight)
        arrays: dict[int, list[np.ndarray]] = {}
        weights: dict[int, list[float]] = {}
        for _, _, weight, rows in sent:
            for row, update in rows.items():
                arrays.setdefault(row, []).append(update.astype("f4"))
                weights.setdefault(row, []).append(weight)
        same = len({item[2] for item in sent}) == 1
        for row in arrays:
            mixed = arrays[row][0] if combine == "sum" or same else arrays[row][0] * np.float32(weights[row][0])
            for update, weight in zip(arrays[row][1:], weights[row][1:]):
                mixed = mixed + (update if combine == "sum" or same else update * np.float32(weight))
            if combine == "mean":
                mixed = mixed / np.float32(total / sent[0][2] if same else total)
            model.step(row, Mix.sum_of([mixed]), model.kernel.scalars(spec, 1.0, 1.0))
    assert not there.take(m.Refuse)
    for row in {*model.rows, 5}:
        np.testing.assert_array_equal(there.row(row), model.read(row))


def test_one_worker_under_bsp_gets_the_bits_of_a_serial_program() -> None:
    rng = np.random.default_rng(4)
    there = box(sparse_table(width=5, lr=0.3))
    serial = np.zeros((40, 5), "f4")
    for clock in range(20):
        rows = np.sort(rng.permutation(40)[: rng.integers(1, 30)])
        grads = rng.standard_normal((len(rows), 5)).astype("f4")
        there.push({}, seq=clock + 1, clock=clock, rows={"e": dict(zip(rows.tolist(), grads))})
        there.tick(clock)
        serial[rows] -= np.float32(0.3) * grads
    for row in range(40):
        np.testing.assert_array_equal(there.row(row), serial[row])


def test_rows_nobody_pushed_are_not_stepped_and_each_counts_its_own_steps() -> None:
    """Adam's first step is lr x sign(g), whenever a row makes it."""
    there = box(sparse_table(width=1, dtype="f64", optimizer="adam", lr=0.5, eps=1e-12))
    for clock in range(3):
        there.push({}, seq=clock + 1, clock=clock, rows={"e": {1: [7.0]} if clock < 2 else {2: [-3.0]}})
        there.tick(clock)
    np.testing.assert_allclose(there.row(1), [-1.0], rtol=1e-9)
    np.testing.assert_allclose(there.row(2), [0.5], rtol=1e-9)
    held = store(there)
    slots = held.names.find(np.array([1, 2], np.uint64))
    assert held.state(slots)[1].tolist() == [2, 1]


def test_warm_up_of_the_learning_rate_follows_the_clock() -> None:
    there = box(sparse_table(width=1, dtype="f64", lr=1.0), workers=4, lr_scale="linear", lr_warmup=4, combine="sum")
    for clock, lr in ((0, 1.0), (1, 1.75), (2, 2.5)):
        before = there.row(3)[0]
        there.push({}, seq=clock + 1, clock=clock, rows={"e": {3: [1.0]}})
        for worker in range(4):
            there.tick(clock, worker)
        assert before - there.row(3)[0] == lr


def test_the_share_of_a_push_that_steps_at_once_is_its_weights() -> None:
    there = box(sparse_table(width=1, dtype="f64", optimizer="add"), workers=2, consistency="asp")
    there.push({}, 0, weight=1.0, rows={"e": {1: [8.0]}})
    there.push({}, 1, weight=3.0, rows={"e": {2: [8.0]}})
    assert (there.row(1)[0], there.row(2)[0]) == (4.0, 6.0)


def test_who_weighs_nothing_creates_nothing() -> None:
    there = box(sparse_table(width=1, dtype="f64", optimizer="add"), consistency="asp")
    there.push({}, weight=0.0, rows={"e": {1: [8.0]}})
    assert len(there.take(m.PushAck)) == 1
    assert store(there).count == 0 and there.row(1)[0] == 0.0


# -- first values


@pytest.mark.parametrize("init", ["normal", "uniform", "zeros"])
def test_a_row_begins_as_the_dense_table_of_its_name(init: str) -> None:
    sparse = sparse_table(rows=200, width=7, init=init, optimizer="add", buckets=4)
    there = box(sparse, consistency="asp", ring=4, seed=9)
    dense = np.empty(200 * 7, "f4")
    firsts.fill(table("e", 1400, init=init), 9, 0, 1400, dense)
    dense = dense.reshape(200, 7)
    there.push({}, rows={"e": {3: np.ones(7), 199: np.ones(7)}})
    for row in (0, 3, 50, 199):
        np.testing.assert_array_equal(there.row(row), dense[row] + np.float32(row in (3, 199)))


def test_a_wide_row_and_many_rows_begin_alike() -> None:
    """First values are drawn by chunks: rows wider than a chunk, and more of them than one holds."""
    for rows, width in ((3, 70_000), (70_000, 1), (1_000, 100)):
        spec = sparse_table(width=width, init="uniform")
        out = np.empty((rows, width), "f4")
        firsts.fill_rows(spec, 1, np.arange(rows, dtype=np.uint64), out)
        dense = np.empty(rows * width, "f4")
        firsts.fill(table("e", rows * width, init="uniform"), 1, 0, rows * width, dense)
        np.testing.assert_array_equal(out.reshape(-1), dense)


# -- pulls


def test_rows_come_in_the_order_in_which_they_were_asked_for_between_the_blocks() -> None:
    there = box(table("a", 2, "f64", "add"), sparse_table(width=1, dtype="f64", optimizer="add"), table("b", 1, "f64", "add"), consistency="asp")
    there.push({"a": [1, 2], "b": [9]}, rows={"e": {4: [4.0], 6: [6.0]}})
    there.take()
    ids, frames = joined([group(1, 0, [6, 5, 4], None, "f64")])
    absent = [m.Segment(t, 0, n, 2, m.BLOCK, m.ABSENT) for t, n in ((2, 1), (0, 2))]
    there.feed("s0.1", "a0.1", m.Pull(1, 0, 1, 1, 3, 0, 1, 1, 0, (absent[0], *ids, absent[1]), frames))
    (values,) = there.take(m.Values)
    assert [(segment.table, segment.kind) for segment in values.segments] == [(2, m.BLOCK), (1, m.ROWS), (0, m.BLOCK)]
    assert [np.frombuffer(frame, "f8").tolist() for frame in values.payload] == [[9], [6, 0, 4], [1, 2]]


def test_an_answer_does_not_change_when_the_row_does() -> None:
    there = box(sparse_table(width=1, dtype="f64", optimizer="add"), consistency="asp")
    there.push({}, seq=1, rows={"e": {1: [1.0]}})
    machine = there.servers["s0.1"]
    segments, payload = joined([group(0, 0, [1], None, "f64")])
    (effect,) = machine.on_message("a0.1", m.Pull(1, 0, 1, 1, 1, 0, 1, 1, 0, segments, payload), 0)
    there.push({}, seq=2, rows={"e": {1: [1.0]}})
    assert effect.message.payload[0].tolist() == [[1.0]] and there.row(1)[0] == 2.0


def test_a_pull_that_waits_for_a_close_shows_the_rows_after_it() -> None:
    there = box(sparse_table(width=1, dtype="f64", optimizer="add"))
    there.push({}, rows={"e": {1: [1.0]}})
    there.pull(after=1, closed=1, rows={"e": [1, 2]})
    assert not there.take(m.Values)
    there.tick(0)
    (values,) = there.take(m.Values)
    assert np.frombuffer(values.payload[0], "f8").tolist() == [1.0, 0.0]


# -- what is wrong leaves no trace


def bad_pushes() -> list[Any]:
    row = np.ones((1, 2), "f4")
    two = np.ones((2, 2), "f4")
    good, frames = group(0, 0, [1, 2], two, "f32")
    ids, rows = good
    return [
        ("rows of another bucket", group(0, 1, [1], row, "f32"), "RANGE", "has no bucket 1 of table 0"),
        ("a table that there is not", group(7, 0, [1], row, "f32"), "RANGE", "no bucket 0 of table 7"),
        ("a row beyond the table", group(0, 0, [1, 50], two, "f32"), "RANGE", "row 50 of table 'e', of 0 to 49"),
        ("a row twice", group(0, 0, [3, 3], two, "f32"), "RANGE", "row 3 of bucket 0 of table 'e' comes twice"),
        ("a row in two groups", joined([group(0, 0, [3, 5], two, "f32"), group(0, 0, [4, 3], two, "f32")]), "RANGE", "row 3"),
        ("numbers without rows", ((ids,), frames[:1]), "SIZE", "is not row numbers and rows"),
        ("rows before numbers", ((rows, ids), frames[::-1]), "SIZE", "is not row numbers and rows"),
        ("keys in a table of numbers", group(0, 0, [1], row, "f32", ["x"]), "SIZE", "is not row numbers and rows"),
        ("too few numbers", group(0, 0, [1, 2], row, "f32"), "SIZE", "2 numbers for 2 rows"),
        ("another kind of number", group(0, 0, [1], np.ones((1, 2)), "f64"), "SIZE", "rows of bucket 0 of table 'e' come as f64"),
        ("row numbers of another kind", ((ids._replace(dtype=2), rows), frames), "SIZE", "row numbers of bucket 0 of table 'e' come as f64"),
        ("a block of a sparse table", ((m.Segment(0, 0, 4, 1),), (np.ones(4, "f4"),)), "RANGE", "no block 0 of table 0"),
        ("no rows", ((ids._replace(elements=0), rows._replace(elements=0)), (b"", b"")), "SIZE", "0 bytes for 0 row numbers"),
    ]


@pytest.mark.parametrize(("made", "code", "text"), [case[1:] for case in bad_pushes()], ids=[case[0] for case in bad_pushes()])
def test_a_group_that_is_wrong_is_refused(made: Any, code: str, text: str) -> None:
    there = box(sparse_table(rows=50), consistency="asp")
    before = there.servers["s0.1"].digest()
    there.send_push(0, (m.Component(0, 1, 1, 0, 0, 1.0),), *made)
    ((found, why),) = refused(there)
    assert found == code and text in why
    assert there.servers["s0.1"].digest() == before and store(there).count == 0


def test_a_row_of_another_bucket_is_refused() -> None:
    there = box(sparse_table(buckets=4), consistency="asp", ring=4)
    stranger = next(row for row in range(100) if bucket_of(there.spec, there.spec.tables[0], row) != 2)
    home = next(n for n, held in there.servers["s0.1"].jobs[1].ranges.items() if (0, 2) in held.contents.buckets.held)
    there.send_push(home, (m.Component(0, 1, 1, 0, 0, 1.0),), *group(0, 2, [stranger], np.ones((1, 2), "f4"), "f32"))
    ((code, why),) = refused(there)
    assert code == "RANGE" and f"row {stranger} of table 'e', which does not belong to bucket 2" in why


@pytest.mark.parametrize(
    ("segments", "payload", "text"),
    [
        (*group(0, 0, [1], np.ones((1, 2), "f4"), "f32"), "is not row numbers"),
        ((m.Segment(1, 0, 3, 1, m.BLOCK, m.BY_VALUE),), (np.ones(3, "f4"),), "a pull names blocks without numbers"),
        ((m.Segment(0, 0, 1, U64, m.IDS, m.ABSENT),), (), "a pull names blocks without numbers"),
    ],
)
def test_a_pull_that_is_wrong_is_refused(segments: Any, payload: Any, text: str) -> None:
    there = box(sparse_table(), table("w", 3))
    there.feed("s0.1", "a0.1", m.Pull(1, 0, 1, 1, 4, 0, 1, 0, 0, segments, payload))
    (refusal,) = there.take(m.Refuse)
    assert Code(refusal.code) is Code.SIZE and text in refusal.text and refusal.request == 4


def test_more_rows_than_a_frame_holds_are_not_answered_at_once() -> None:
    there = box(sparse_table(width=1 << 19))
    segments, payload = group(0, 0, [1, 2, 3], None, "f32")
    there.feed("s0.1", "a0.1", m.Pull(1, 0, 1, 1, 4, 0, 1, 0, 0, segments, payload))
    ((code, text),) = refused(there)
    assert code == "SIZE" and "at most 2" in text


def test_frames_that_lie_askew_in_memory_are_read_all_the_same() -> None:
    there = box(sparse_table(width=1, dtype="f64", optimizer="add"), consistency="asp")
    machine = there.servers["s0.1"]
    segments, payload = group(0, 0, [3, 9], np.array([[1.0], [2.0]]), "f64")
    askew = tuple(memoryview(b"x" + array.tobytes())[1:] for array in payload)
    machine.on_message("a0.1", m.Push(1, 0, 1, 1, 0, (m.Component(0, 1, 1, 0, 0, 1.0),), segments, askew), 0)
    assert (there.row(3)[0], there.row(9)[0]) == (1.0, 2.0)


def test_no_result_that_is_no_number_is_ever_visible() -> None:
    there = box(sparse_table(width=1, optimizer="add"), table("w", 1, optimizer="add"), consistency="asp")
    there.push({"w": [1.0]}, seq=1, rows={"e": {1: [3e38]}})
    there.take()
    contents = there.servers["s0.1"].jobs[1].ranges[0].contents
    before = contents.digest()
    there.push({"w": [1.0]}, seq=2, rows={"e": {0: [1.0], 1: [3e38], 2: [1.0]}})
    ((code, text),) = refused(there)
    assert code == "NONFINITE" and "bucket 0 of table 'e' leaves the range of f32" in text
    assert contents.digest() == before and store(there).count == 1
    there.push({"w": [np.inf]}, seq=3, rows={"e": {2: [1.0]}})
    assert [code for code, _ in refused(there)] == ["NONFINITE"]
    assert store(there).count == 1, "a push whose block is refused has created a row"


def test_a_close_that_overflows_ends_the_job_and_shows_nothing() -> None:
    there = box(sparse_table(width=1, optimizer="add", combine="sum"), table("w", 1, optimizer="add"), workers=2)
    for worker in (0, 1):
        there.push({"w": [1.0]}, worker, rows={"e": {1: [3e38], 2: [1.0]}})
    there.take()
    there.tick(0, 0)
    there.tick(0, 1)
    assert any(message.worker == m.NOBODY and "the step of bucket 0 of table 'e'" in message.text for message in there.take(m.Refuse))
    assert there.row(1)[0] == there.row(2)[0] == there.values("w")[0] == 0.0


def test_a_push_that_overflows_by_its_share_ends_the_job_without_a_word_of_numpy() -> None:
    there = box(sparse_table(width=1), workers=1)
    there.push({}, weight=0.5, rows={"e": {1: [3e38]}})
    there.tick(0, weight=0.25)
    assert any(message.worker == m.NOBODY and "the step of bucket 0" in message.text for message in there.take(m.Refuse))


def test_whole_numbers_that_do_not_fit_are_refused_and_end_a_close() -> None:
    big = (1 << 63) - 1
    there = box(sparse_table(width=1, dtype="i64", optimizer="add"), consistency="asp")
    there.push({}, seq=1, rows={"e": {1: [big]}})
    there.push({}, seq=2, rows={"e": {1: [1]}})
    assert [code for code, _ in refused(there)] == ["NONFINITE"] and there.row(1)[0] == big
    there = box(sparse_table(width=1, dtype="i64", optimizer="add"), workers=3)
    for worker, number in enumerate((big, 1, -5)):
        there.push({}, worker, rows={"e": {1: [number]}})
    for worker in range(3):
        there.tick(0, worker)
    assert any(message.worker == m.NOBODY for message in there.take(m.Refuse)) and there.row(1)[0] == 0


def test_whole_numbers_are_counted_exactly() -> None:
    there = box(sparse_table(width=1, dtype="i64", optimizer="add"), workers=3)
    for worker, number in enumerate((1 << 60, -1, 7)):
        there.push({}, worker, rows={"e": {1: [number], 2 + worker: [1]}})
    for worker in range(3):
        there.tick(0, worker)
    assert [int(there.row(row)[0]) for row in range(5)] == [0, (1 << 60) + 6, 1, 1, 1]


# -- keys


def words(count: int) -> list[str]:
    return [f"kéy {number}" for number in range(count)]


@given(st.lists(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), min_size=1, max_size=9), st.integers(-9, 9), min_size=1, max_size=6), min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_rows_by_key_are_a_dictionary(pushes: list[dict[str, int]]) -> None:
    there = box(sparse_table(width=1, dtype="f64", optimizer="add", index="str", buckets=2), consistency="asp", ring=4)
    model: dict[str, float] = {}
    for seq, push in enumerate(pushes, 1):
        there.push({}, seq=seq, rows={"e": {key: [number] for key, number in push.items()}})
        for key, number in push.items():
            model[key] = model.get(key, 0.0) + number
    assert not there.take(m.Refuse)
    found: dict[Name, float] = {}
    for bucket in (0, 1):
        there.scan(bucket=bucket)
        (scanned,) = there.take(m.Scanned)
        found.update({key: float(row[0]) for key, row in read_scanned(there.spec, scanned).items()})
    assert found == model


@pytest.mark.parametrize("model", ["asp", "bsp"])
def test_two_keys_with_one_hash(model: str) -> None:
    """Known from a push that is visible, from one that waits, from the same message; and to a pull."""
    assert name_hash(ONE) == name_hash(TWO)
    there = box(sparse_table(width=1, index="str"), consistency=model, workers=2)
    there.push({}, 0, rows={"e": {"other": [1.0], ONE: [1.0]}})
    there.take()
    before = there.servers["s0.1"].digest()
    there.push({}, 1, rows={"e": {"new": [1.0], TWO: [1.0]}})
    ((code, text),) = refused(there)
    assert code == "COLLIDE" and repr(ONE) in text and repr(TWO) in text
    there.pull(rows={"e": [TWO]})
    assert refused(there) == [("COLLIDE", text)]
    assert there.servers["s0.1"].digest() == before
    there.push({}, 1, rows={"e": {ONE: [1.0]}})
    assert there.take(m.PushAck)


@pytest.mark.parametrize(("one", "two"), [(ONE, TWO), (ONE, ONE)])
def test_two_keys_in_one_message(one: str, two: str) -> None:
    there = box(sparse_table(width=1, index="str"), consistency="asp")
    number = name_hash(one)
    made = joined([group(0, 0, [5 if word == "x" else number], np.ones((1, 1), "f4"), "f32", [word]) for word in (one, two)])
    there.send_push(0, (m.Component(0, 1, 1, 0, 0, 1.0),), *made)
    ((code, text),) = refused(there)
    assert code == ("COLLIDE" if one != two else "RANGE") and store(there).count == 0


@pytest.mark.parametrize(
    ("keys", "change"),
    [
        (["a"], lambda data: data[:2]),
        (["a"], lambda data: data + b"x"),
        (["ab"], lambda data: b"\0\0\0\0" + data[4:]),
        (["ab"], lambda data: b"\xff\xff\xff\xff" + data[4:]),
        (["x" * 256], lambda data: data),
        (["ab"], lambda data: data[:4] + b"ac"),
    ],
    ids=["no room for lengths", "text too long", "an empty key", "a huge length", "256 bytes", "not its hash"],
)
def test_keys_that_are_wrong_are_refused(keys: list[str], change: Any) -> None:
    there = box(sparse_table(width=1, index="str"), consistency="asp")
    segments, payload = group(0, 0, [name_hash(key) for key in keys], np.ones((len(keys), 1), "f4"), "f32", keys)
    data = change(bytes(payload[1]))
    segments = (segments[0], segments[1]._replace(elements=len(data), dtype=U8), segments[2])
    there.send_push(0, (m.Component(0, 1, 1, 0, 0, 1.0),), segments, (payload[0], np.frombuffer(data, np.uint8), payload[2]))
    ((code, _),) = refused(there)
    assert code in ("SIZE", "RANGE") and store(there).count == 0


# -- rows that wait for a close


def test_a_row_that_waits_is_not_there_yet() -> None:
    there = box(sparse_table(width=1, dtype="f64", optimizer="add", init="uniform"), seed=3)
    first = there.row(8)[0]
    assert first != 0.0
    there.push({}, rows={"e": {8: [1.0]}})
    there.take()
    there.scan()
    (scanned,) = there.take(m.Scanned)
    assert not scanned.segments and scanned.next == 0
    assert there.row(8)[0] == first
    there.tick(0)
    there.take()
    there.scan()
    (scanned,) = there.take(m.Scanned)
    assert {row: float(values[0]) for row, values in read_scanned(there.spec, scanned).items()} == {8: first + 1.0}


def test_what_a_worker_pushed_that_did_not_live_to_tick_never_was() -> None:
    there = box(sparse_table(width=1, dtype="f64", optimizer="add", init="uniform", combine="sum"), workers=2)
    first = there.row(8)[0]
    there.push({}, 1, rows={"e": {8: [1.0], 9: [1.0]}})
    there.push({}, 0, rows={"e": {9: [5.0]}})
    there.clock(m.Leave, 0, "lost", worker=1)
    there.tick(0, 0)
    assert there.row(8)[0] == first and there.row(9)[0] != first
    there.take()
    there.scan()
    (scanned,) = there.take(m.Scanned)
    assert list(read_scanned(there.spec, scanned)) == [9]


# -- scans


def test_a_scan_goes_through_all_rows_once_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plugml.server.buckets.SCAN_BYTES", 100)
    there = box(sparse_table(width=2, dtype="f64", optimizer="add", index="str"), consistency="asp")
    rows = {f"key {number}": [number, -number] for number in range(50)}
    there.push({}, rows={"e": rows})
    there.take()
    found: dict[Name, Any] = {}
    cursor = pieces = 0
    while pieces == 0 or cursor:
        there.scan(cursor=cursor)
        (scanned,) = there.take(m.Scanned)
        part = read_scanned(there.spec, scanned)
        assert 1 <= len(part) <= 100 // 24 and not found.keys() & part.keys()
        found.update(part)
        cursor, pieces = scanned.next, pieces + 1
        if pieces == 3:  # what comes meanwhile lies behind
            there.push({}, seq=2, rows={"e": {"late": [1, 1]}})
            there.take()
    assert pieces > 10 and found.keys() == {*rows, "late"}
    assert all(found[key].tolist() == values for key, values in rows.items())


def test_a_scan_of_what_is_not_there_is_refused_or_empty() -> None:
    there = box(sparse_table())
    there.scan(cursor=10_000)
    (scanned,) = there.take(m.Scanned)
    assert not scanned.segments and scanned.next == 0
    item = there.map.ranges[0]
    there.feed("s0.1", "a0.1", m.Scan(1, 0, item.epoch, 1, 6, 0, 0, 0, 3))
    (refusal,) = there.take(m.Refuse)
    assert (Code(refusal.code), refusal.request) == (Code.RANGE, 6)
    there.scan(at=2)
    assert [code for code, _ in refused(there)] == ["AGAIN"]


# -- copies


def test_the_same_log_gives_the_same_digest_and_another_one_does_not() -> None:
    def digest(*pushes: dict[int, float]) -> int:
        there = box(sparse_table(width=1, optimizer="adam"), consistency="asp")
        for seq, push in enumerate(pushes, 1):
            there.push({}, seq=seq, rows={"e": {row: [number] for row, number in push.items()}})
        return there.servers["s0.1"].digest()

    same = digest({1: 1.0, 5: 2.0}, {5: 1.0})
    assert same == digest({1: 1.0, 5: 2.0}, {5: 1.0})
    others = {digest({1: 1.0, 5: 2.0}, {5: 2.0}), digest({1: 1.0, 6: 2.0}, {6: 1.0}), digest({1: 1.0}, {5: 2.0}), digest({1: 1.0, 5: 2.0}, {1: 1.0})}
    assert len(others) == 4 and same not in others


# -- turns


def test_a_close_of_many_rows_is_done_in_turns() -> None:
    """Each range's rows count against what one event may step, though it has no dense block."""
    there = Box(job(sparse_table(width=8, buckets=16)), ring=16, limits=Limits(turn_bytes=64))
    there.push({}, rows={"e": {row: np.ones(8) for row in range(64)}})
    there.take()
    held = there.servers["s0.1"].jobs[1].ranges.values()
    costs = [sum(one.cost(Entry(1, "", m.Close(1, 1, 1, clock, (), ()), 0, 0)) for one in held) for clock in (0, 1)]
    assert costs == [64 * 32, 0]
    machine = there.servers["s0.1"]
    effects = machine.on_message("a0.1", m.Tick(1, there.map.epoch(there.map.clock_range), 1, 0, 1, 0, ((0, 1.0),)), 0)
    turns = 0
    while any(isinstance(effect, Turn) for effect in effects):
        turns += 1
        effects = machine.on_message("", Turn(), 0)
        machine.check()
    assert turns >= 4 and all(one.closed == 1 for one in held)

