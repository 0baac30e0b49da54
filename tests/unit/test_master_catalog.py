"""The stored state and the weights of ranges: small, complete, and the same as what agents compute."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugml.core.errors import WorldError
from plugml.core.job import JobSpec
from plugml.core.jobmap import RUNNING, pieces, ranges_used
from plugml.core.jobmap import buckets as buckets_of
from plugml.core.kinds import STATE_ARRAYS
from plugml.core.table import DTYPES, TableSpec
from plugml.master.catalog import CAUSES, Attachment, Job, Move, NodeRecord, Packer, Seat, State, pack, unpack
from plugml.master.decisions import lose, prune
from plugml.master.placement import place, table_places, too_many_blocks, weights_of
from plugml.server.optimizers.base import working
from plugml.server.optimizers.registry import KERNELS
from tests.fuzz.master_world import LIMITS

SPARSE = (
    TableSpec("e", (0, 16), "sparse", optimizer="adam", settings={"lr": 0.5}, storage="f16"),
    TableSpec("s", (0, 3), "sparse", index="str", batch=100, init="normal"),
    TableSpec("w", (100, 7)),
)


def a_state(jobs: int = 2, servers: int = 3, copies: int = 1, **more: Any) -> State:
    nodes = [NodeRecord(f"s{n}.0000000{n}", "server", f"h{n}", f"ipc:///s{n}", 7, "b") for n in range(servers)]
    made = {}
    for number in range(1, jobs + 1):
        spec = JobSpec(f"job{number}", 4, (TableSpec("w", (100, 100)),), copies=copies).with_blocks(servers, LIMITS)
        seats, why = place(spec, nodes, 256, LIMITS)
        endpoints = {node.name: node.endpoint for node in nodes if any(node.name in seat.replicas for seat in seats.values())}
        attached = {2: Attachment(3, "a0.1", 99), 0: Attachment(1, "a1.1", 5)}
        made[number] = Job(number, spec, RUNNING, "", why, "a0.1", seats, endpoints, attached)
    return State(3, 17, jobs, 256, "m0.1", {node.name.split(".")[0]: node for node in nodes}, made, {1: "old"})._replace(**more)


def test_a_state_comes_back_from_its_bytes_and_equal_states_have_equal_bytes() -> None:
    state = a_state()
    assert unpack(pack(state)) == state
    turned = state._replace(jobs=dict(reversed(state.jobs.items())), nodes=dict(reversed(state.nodes.items())))
    assert pack(turned) == pack(state)
    packer = Packer()
    other = state._replace(jobs={**state.jobs, 1: state.jobs[1]._replace(state="finished")})
    for item in (state, other, state, other._replace(jobs={}), other):
        assert packer.pack(item) == pack(item)


def test_a_state_of_another_format_names_both() -> None:
    packed = pack(a_state()).replace(b"\xa6format\x02", b"\xa6format\x03")
    with pytest.raises(WorldError, match="format 3 and this plugml reads 2"):
        unpack(packed)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_damaged_state_is_read_or_refused_but_never_breaks_the_master(data: st.DataObject) -> None:
    packed = bytearray(pack(a_state(jobs=1)))
    for _ in range(data.draw(st.integers(1, 3))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    try:
        unpack(bytes(packed[: data.draw(st.integers(0, len(packed)))] if data.draw(st.booleans()) else packed))
    except WorldError:
        pass


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_a_full_cluster_fits_into_the_store(copies: int) -> None:
    assert len(pack(a_state(jobs=200, servers=64, copies=copies))) < LIMITS.state_bytes_max
    assert len(pack(a_state(jobs=LIMITS.jobs_max, servers=8, copies=copies))) < LIMITS.state_bytes_max


def test_a_range_costs_the_store_a_few_bytes_whatever_has_become_of_it() -> None:
    """Two copies of each of 256 ranges, each with an epoch of its own, some of them being filled, and moves to be done."""
    state = a_state(jobs=1, servers=6, copies=2)
    names = sorted(node.name for node in state.nodes.values())
    pairs = [(a, b) for a in names for b in names if a != b]
    seats = {n: Seat(1_000 + n, pairs[n % len(pairs)], n % 5, "", 0, CAUSES[n % len(CAUSES)]) for n in range(256)}
    for n in range(0, 256, 50):
        seats[n] = seats[n]._replace(learner=next(name for name in names if name not in seats[n].replicas), born=999)
    moves = {n: (Move(seats[n].replicas[0], seats[n].learner),) for n in range(0, 256, 50)}
    endpoints = {node.name: node.endpoint for node in state.nodes.values()}
    job = state.jobs[1]._replace(seats=seats, endpoints=endpoints, moves=moves)
    after = state._replace(jobs={1: job}, drained=("s1", "s9"))
    assert unpack(pack(after)) == after
    assert len(pack(after)) - len(pack(a_state(jobs=1, servers=6, copies=2))) < 256 * 12


@settings(max_examples=100, deadline=None)
@given(
    shapes=st.lists(st.tuples(st.integers(1, 3000), st.sampled_from(sorted(DTYPES))), min_size=1, max_size=4),
    block_bytes=st.sampled_from([4, 24, 64, 1000]),
    power=st.integers(0, 8),
)
def test_ranges_and_bytes_are_those_that_agents_compute(shapes: list[tuple[int, str]], block_bytes: int, power: int) -> None:
    tables = tuple(
        TableSpec(f"t{n}", (count,), dtype=dtype, optimizer="add", block_bytes=block_bytes) for n, (count, dtype) in enumerate(shapes)
    )
    spec, ranges = JobSpec("job", 1, tables), 1 << power
    weights: dict[int, int] = dict.fromkeys(ranges_used(spec, ranges), 0)
    blocks: dict[int, int] = {}
    for piece in pieces(spec, ranges):
        weights[piece.range] += piece.stored_nbytes
        blocks[piece.range] = blocks.get(piece.range, 0) + 1
    assert weights_of(spec, ranges) == weights
    assert sum(sum(place.blocks.values()) for place in table_places(spec, ranges)) == sum(blocks.values())
    few = dataclasses.replace(LIMITS, segments_max=max(blocks.values()))
    assert too_many_blocks(spec, ranges, few) == ""
    assert too_many_blocks(spec, ranges, dataclasses.replace(few, segments_max=few.segments_max - 1)) != ""


@settings(max_examples=100, deadline=None)
@given(
    tables=st.lists(
        st.tuples(
            st.sampled_from([0, 1, 1000, 1 << 30, (1 << 64) - 1]), st.integers(1, 300), st.sampled_from(["f32", "f64"]),
            st.sampled_from(["", "f16"]), st.sampled_from(["sgd", "momentum", "adam"]), st.integers(0, 8),
        ),
        min_size=1, max_size=4,
    ),
    power=st.integers(0, 8),
)  # fmt: skip
def test_buckets_lie_and_weigh_as_agents_and_servers_see_them(tables: list[tuple[int, int, str, str, str, int]], power: int) -> None:
    made = [TableSpec("d", (64, 3), optimizer="adam", block_bytes=64)]
    for n, (rows, width, dtype, storage, optimizer, buckets) in enumerate(tables):
        made.append(
            TableSpec(f"e{n}", (rows, width), "sparse", dtype, storage=storage, optimizer=optimizer, buckets=1 << buckets)
        )  # fmt: skip
    spec, ranges = JobSpec("job", 1, tuple(made)), 1 << power
    weights: dict[int, int] = dict.fromkeys(ranges_used(spec, ranges), 0)
    counts: dict[int, int] = {}
    for piece in pieces(spec, ranges):
        weights[piece.range] += 3 * piece.stored_nbytes  # adam: two numbers beside each
        counts[piece.range] = counts.get(piece.range, 0) + 1
    for bucket in buckets_of(spec, ranges):
        table = spec.tables[bucket.table]
        values = (table.rows or table.batch_rows) * table.width
        state = {"sgd": 0, "momentum": 1, "adam": 2}[table.optimizer] * values * (8 if table.storage_name == "f64" else 4)
        weights[bucket.range] += min(1 << 40, -(-(values * table.storage_dtype.itemsize + state) // table.buckets))
        counts[bucket.range] = counts.get(bucket.range, 0) + 1
    assert weights_of(spec, ranges) == weights
    few = dataclasses.replace(LIMITS, segments_max=max(counts.values()))
    assert too_many_blocks(spec, ranges, few) == ""
    assert "buckets" in too_many_blocks(spec, ranges, dataclasses.replace(few, segments_max=few.segments_max - 1))


def test_a_state_with_sparse_tables_comes_back() -> None:
    spec = JobSpec("deep", 2, SPARSE, lr_scale="sqrt", lr_warmup=3, bell="sem", pieces=7, copies=2).with_blocks(3, LIMITS)
    state = a_state(jobs=1)
    nodes = list(state.nodes.values())
    seats, why = place(spec, nodes, 256, LIMITS)
    assert set(seats) == set(ranges_used(spec, 256))
    endpoints = {node.name: node.endpoint for node in nodes if any(node.name in seat.replicas for seat in seats.values())}
    state = state._replace(jobs={**state.jobs, 9: Job(9, spec, RUNNING, "", why, "a0.1", seats, endpoints, {})}, last=9)
    assert unpack(pack(state)) == state


def test_an_optimizers_state_is_counted_as_servers_keep_it() -> None:
    for name, kernel in KERNELS.items():
        assert kernel.slots == STATE_ARRAYS.get(name, 0), name
        for storage in ("f16", "f32", "f64"):
            table = TableSpec("w", (4,), dtype="f64", storage=storage, optimizer=name)
            assert table.held_itemsize == table.storage_dtype.itemsize + kernel.slots * working(table.storage_dtype).itemsize


def test_losing_a_node_touches_only_what_it_had() -> None:
    state = a_state()
    victim = state.jobs[1].servers()[0]
    outcome = lose(state, victim, "why")
    assert victim.split(".")[0] not in outcome.state.nodes
    for number, job in outcome.state.jobs.items():
        for n, seat in job.seats.items():
            before = state.jobs[number].seats[n]
            assert seat == before if victim not in before.replicas else seat.replicas == () and seat.epoch == before.epoch + 1
    assert lose(outcome.state, victim, "why").state == outcome.state


def test_the_oldest_ended_jobs_are_forgotten_first_and_running_ones_never() -> None:
    state = a_state(jobs=10)
    ended = {n: job if n % 2 else job._replace(state="finished") for n, job in state.jobs.items()}
    size = Packer().size
    after = prune(state._replace(jobs=ended), size, dataclasses.replace(LIMITS, jobs_kept=2))
    assert sorted(after.jobs) == [1, 3, 5, 7, 8, 9, 10]
    tight = prune(state._replace(jobs=ended), size, dataclasses.replace(LIMITS, state_bytes_max=2000))
    assert sorted(tight.jobs) == [1, 3, 5, 7, 9]
