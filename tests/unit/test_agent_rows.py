"""Requests that move rows of sparse tables, through the real agent and servers: each row where it belongs, exactly once."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from plugml.core.errors import Code
from plugml.core.limits import Limits
from plugml.core.table import TableSpec
from plugml.wire import messages as m

from .agent_rows import ONES, E, F, G, Rows, W, begin, do, pull, read, spec
from .test_agent_harness import Program, World


def plugged(*tables: TableSpec, servers: int = 2, limits: Limits = Limits(), **fields: Any) -> tuple[World, Program]:
    world = World(servers=servers, limits=limits)
    world.register(spec(*tables, **fields))
    return world, world.plug("rows", 0)


def pushes(world: World) -> list[m.Push]:
    return [message for _to, message in world.sent if isinstance(message, m.Push)]


@pytest.mark.parametrize("consistency", ["bsp", "asp", "ssp:1"])
@pytest.mark.parametrize("servers", [1, 3])
def test_two_tables_and_the_dense_one_travel_in_one_request(servers: int, consistency: str) -> None:
    world, program = plugged(servers=servers, consistency=consistency)
    sections = [
        Rows(E, [7, 999, 0], [[1, 2, 3], [4, 5, 6], [7, 8, 9]], [999, 0, 7, 500]),
        Rows(F, ["hund", "katze"], [[1, 2], [3, 4]], ["katze", "maus"]),
        Rows(G, [1 << 63], [[5]], [1 << 63, 3]),
    ]
    for clock in range(1, 4):
        reply = do(program, "step", *sections, dense=ONES)
        assert (reply.ok, reply.clock, reply.n, reply.rows) == (True, clock, 40, 8), program.err()
        e, f, g = read(program, *sections, dense=W)
        np.testing.assert_array_equal(e, np.array([[4, 5, 6], [7, 8, 9], [1, 2, 3], [0, 0, 0]]) * clock)
        np.testing.assert_array_equal(f, np.array([[3, 4], [0, 0]]) * clock)
        np.testing.assert_array_equal(g, [[5 * clock], [0]])
        np.testing.assert_array_equal(program.param()[:40], ONES * clock)


def test_a_range_gets_one_message_with_all_that_is_its_own_and_others_get_none() -> None:
    world, program = plugged(E, F)
    world.sent.clear()
    assert do(program, "step", Rows(E, [3], [[1, 1, 1]])).ok
    assert len(pushes(world)) == 1 and [segment.kind for segment in pushes(world)[0].segments] == [m.IDS, m.ROWS]
    world.sent.clear()
    assert do(program, "step", Rows(E, list(range(60)), np.ones((60, 3))), Rows(F, ["a", "b"], np.ones((2, 2)))).ok
    ranges = [push.range for push in pushes(world)]
    assert len(ranges) == len(set(ranges)) > 1


def test_rows_that_come_twice_are_added_up_in_the_order_of_their_coming() -> None:
    world, program = plugged(E)
    ids = [5, 1, 5, 5, 1, 9]
    values = np.array([[1e8], [1], [1], [-1e8], [2], [4]], "<f4").repeat(3, 1)
    expected = {row: np.zeros(3, "<f4") for row in (1, 5, 9)}
    for row, value in zip(ids, values, strict=True):
        expected[row] = expected[row] + value
    assert do(program, "step", Rows(E, ids, values, [1, 5, 9])).ok
    np.testing.assert_array_equal(read(program, Rows(E, want=[1, 5, 9]))[0], [expected[1], expected[5], expected[9]])
    for push in pushes(world):
        assert len(set(np.frombuffer(push.payload[0], "<u8").tolist())) == push.segments[0].elements


def test_wanted_rows_are_given_in_their_order_and_twice_if_they_are_wanted_twice() -> None:
    world, program = plugged(E)
    ids = list(range(0, 60))
    assert do(program, "step", Rows(E, ids, np.arange(180).reshape(60, 3))).ok
    random = Random(3)
    for _ in range(5):
        want = [random.randrange(60) for _ in range(40)]
        np.testing.assert_array_equal(pull(program, E, want), np.arange(180).reshape(60, 3)[want])
    world.sent.clear()
    pull(program, E, [4, 4, 4, 2])
    asked = [np.frombuffer(message.payload[0], "<u8").tolist() for _to, message in world.sent if isinstance(message, m.Pull)]
    assert sorted(sum(asked, [])) == [2, 4], "each row is asked for once"


def test_sections_without_rows_take_no_room_and_a_request_that_pushes_nothing_just_ticks() -> None:
    world, program = plugged(E, G)
    assert do(program, "step", Rows(E), Rows(G, [4], [[6]], [4])).ok
    np.testing.assert_array_equal(read(program, Rows(E), Rows(G, want=[4]))[0], [[6]])
    world.sent.clear()
    reply = do(program, "step", Rows(E), Rows(G))
    assert (reply.ok, reply.clock, reply.n, reply.rows) == (True, 2, None, None)
    assert not pushes(world) and [message.seq for _to, message in world.sent if isinstance(message, m.Tick)] == [0]
    assert do(program, "clock").clock == 3
    assert do(program, "pull").ok, "no dense table, no section: nothing is wanted"


def test_a_tick_rides_behind_a_push_of_rows_and_names_its_ranges_only() -> None:
    world, program = plugged(W, E, servers=1)
    assert do(program, "step", Rows(E, [1], [[1, 2, 3]], [1])).ok
    (tick,) = [message for _to, message in world.sent if isinstance(message, m.Tick)]
    assert tick.seq == 1 and tick.ranges == tuple(push.range for push in pushes(world)) and len(tick.ranges) == 1
    np.testing.assert_array_equal(read(program, Rows(E, want=[1]))[0], [[1, 2, 3]])


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("step 1 0 table=x", Code.RANGE, "no such table, only w, e, g, f"),
        ("step 1 0 table=w k=1", Code.FORMAT, "it is dense"),
        ("step 1 0 table=e k=65", Code.RANGE, "at most 64 rows"),
        ("pull 1 0 table=e want=65", Code.RANGE, "at most 64 rows"),
        ("pull 1 0 table=e k=1", Code.FORMAT, "pushes nothing"),
        ("push 1 0 table=e want=1", Code.FORMAT, "pulls nothing"),
        ("clock 1 0 table=e", Code.FORMAT, "moves no rows"),
        ("init 1 0 table=e", Code.FORMAT, "moves no rows"),
    ],
)
def test_sections_that_cannot_be_are_refused(line: str, code: Code, words: str) -> None:
    world, program = plugged()
    program.seq = 1
    world.sent.clear()
    program.say(line)
    assert program.answer().code is code and words in program.err()
    assert not pushes(world)


@pytest.mark.parametrize(
    ("sections", "code", "words"),
    [
        ([Rows(E, [5, 1000], np.ones((2, 3)))], Code.RANGE, "row 1000"),
        ([Rows(E, want=[1000])], Code.RANGE, "row 1000"),
        ([Rows(E, [5, 6], [[1, 1, 1], [1, np.nan, 1]])], Code.NONFINITE, "e"),
        ([Rows(E, [5, 5], np.full((2, 3), 3e38))], Code.RANGE, "row 5 of table e comes several times"),
        ([Rows(G, [5, 5], [[1 << 62], [1 << 62]])], Code.RANGE, "row 5 of table g comes several times"),
        ([Rows(G, [5, 5, 5], [[-(1 << 63)], [-1], [-1]])], Code.RANGE, "row 5 of table g"),
        ([Rows(F, ["8yn0iYCKYHlIj4-BwPqk", "GReLUrM4wMqfg9yzV3KQ"], np.ones((2, 2)))], Code.COLLIDE, "8yn0iYCKYHlIj4-BwPqk"),
        ([Rows(F, ["8yn0iYCKYHlIj4-BwPqk"], np.ones((1, 2)), ["GReLUrM4wMqfg9yzV3KQ"])], Code.COLLIDE, "GReLUrM4wMqfg9yzV3KQ"),
    ],
)
def test_nothing_of_a_request_with_one_bad_row_is_sent(sections: list[Rows], code: Code, words: str) -> None:
    world, program = plugged()
    world.sent.clear()
    reply = do(program, "step", *sections, dense=ONES)
    assert (reply.code, reply.clock) == (code, 0) and words in program.err(), program.err()
    assert not any(isinstance(message, (m.Push, m.Tick)) for _to, message in world.sent)
    assert do(program, "step", Rows(E, [5], np.ones((1, 3)), [5]), dense=ONES).ok
    np.testing.assert_array_equal(read(program, Rows(E, want=[5]), dense=W)[0], [[1, 1, 1]])


def test_whole_numbers_that_come_twice_are_exact_up_to_their_ends() -> None:
    world, program = plugged(G)
    top = (1 << 63) - 1
    values = [[top - 5], [5], [-top], [top], [-(1 << 62)], [-(1 << 62)]]
    assert do(program, "step", Rows(G, [1, 1, 2, 2, 3, 3], values, [1, 2, 3])).ok, program.err()
    assert read(program, Rows(G, want=[1, 2, 3]))[0].tolist() == [[top], [0], [-(1 << 63)]]


def test_two_keys_of_one_hash_in_two_requests_are_named_by_the_range() -> None:
    world, program = plugged(F)
    assert do(program, "step", Rows(F, ["8yn0iYCKYHlIj4-BwPqk"], np.ones((1, 2)))).ok
    reply = do(program, "push", Rows(F, ["GReLUrM4wMqfg9yzV3KQ"], np.ones((1, 2))))
    assert reply.code is Code.COLLIDE
    assert "8yn0iYCKYHlIj4-BwPqk" in program.err() and "GReLUrM4wMqfg9yzV3KQ" in program.err()
    assert do(program, "pull", Rows(F, want=["GReLUrM4wMqfg9yzV3KQ"])).code is Code.COLLIDE
    np.testing.assert_array_equal(pull(program, F, ["8yn0iYCKYHlIj4-BwPqk"]), [[1, 1]])


def test_text_brings_rows_and_takes_them_back() -> None:
    world, program = plugged(W, E, F)
    contents = program.files.contents
    contents["grad.txt"] = bytearray("".join(f"{x}\n" for x in [*range(40), 1.5, 2, 3, -4, 5, 6]).encode())
    contents["gidx.txt"], contents["want.txt"] = bytearray(b"9\n"), bytearray(b"9\n8\n9\n")
    contents["gkey"][:], contents["wkey"][:] = "ä\n".encode(), "ä\n".encode()
    # e: 1 row of 3, f: 1 row of 2, so one number too many
    program.begin("step", None, "n=40 fmt=text table=e k=1 want=3 table=f k=1 want=1")
    assert program.answer().code is Code.SIZE
    contents["grad.txt"] = bytearray("".join(f"{x}\n" for x in [*range(40), 1.5, 2, 3, -4, 5]).encode())
    program.begin("step", None, "n=40 fmt=text table=e k=1 want=3 table=f k=1 want=1")
    assert program.answer().ok, program.err()
    numbers = [float(word) for word in bytes(contents["param.txt"]).split()]
    assert numbers == [*range(40), 1.5, 2, 3, 0, 0, 0, 1.5, 2, 3, -4, 5]


@pytest.mark.parametrize("storage", ["f16", "f64"])
def test_servers_keep_another_kind_of_number_and_the_agent_converts(storage: str) -> None:
    dense = TableSpec("w", (40,), optimizer="add", combine="sum", storage=storage)
    rows = TableSpec("e", (100, 3), kind="sparse", optimizer="add", combine="sum", batch=64, storage=storage)
    world, program = plugged(dense, rows)
    grad, want = np.linspace(-2, 2, 40, dtype="<f4"), [3, 5, 3]
    assert do(program, "step", Rows(rows, [3, 4], [[0.1, 0.2, 0.3], [1, 2, 3]], want), dense=grad).ok, program.err()
    kind = np.dtype({"f16": "<f2", "f64": "<f8"}[storage])
    np.testing.assert_array_equal(program.param()[:40], grad.astype(kind).astype("<f4"))
    near = np.array([0.1, 0.2, 0.3], "<f4").astype(kind).astype("<f4")
    np.testing.assert_array_equal(read(program, Rows(rows, want=want), dense=dense)[0], [near, [0, 0, 0], near])
    assert all({s.dtype for s in push.segments if s.kind in (m.BLOCK, m.ROWS)} == {4 if storage == "f16" else 2} for push in pushes(world))
    program.files.contents["grad.txt"] = bytearray("".join(f"{x:.9g}\n" for x in grad).encode())
    assert do(program, "step", more="fmt=text").ok, program.err()
    text = np.array(bytes(program.files.contents["param.txt"]).decode().split(), "<f4")
    np.testing.assert_array_equal(text, (2 * grad.astype(kind)).astype("<f4"))


def test_halves_that_come_twice_are_rounded_once() -> None:
    rows = TableSpec("e", (100, 1), kind="sparse", optimizer="add", combine="sum", batch=64, storage="f16")
    world, program = plugged(rows)
    assert do(program, "step", Rows(rows, [1] * 5, [[2048], [1], [1], [1], [1]], [1])).ok
    assert read(program, Rows(rows, want=[1]))[0].tolist() == [[2052]]
    assert do(program, "step", Rows(rows, [1, 1], [[60000], [60000]])).code is Code.RANGE, "a sum beyond the halves"


def test_bytes_of_rows_are_counted_by_the_window() -> None:
    world, program = plugged(E, servers=1, limits=Limits(window_bytes=100))
    highest = 0

    def watch(sender: str, to: str, message: Any) -> tuple[Any, ...]:
        nonlocal highest
        highest = max(highest, sum(world.agent.house.credits.used.values()))
        return (message,)

    world.interfere = watch
    for _ in range(3):
        assert do(program, "step", Rows(E, list(range(64)), np.ones((64, 3)), list(range(64)))).ok
    assert highest == 64 * (8 + 12), "one message goes into an empty window, whatever its size"
    assert world.agent.house.credits.used == {}


@pytest.mark.parametrize("mean", [True, False])
def test_weights_count_for_the_tables_that_take_part(mean: bool) -> None:
    """A worker that pushes rows in one request and the dense table in another is weighed once for each."""
    combine = "mean" if mean else "sum"
    dense = TableSpec("w", (40,), optimizer="add", combine=combine)
    rows = TableSpec("e", (1000, 3), kind="sparse", optimizer="add", combine=combine, batch=64)
    world = World()
    world.register(spec(dense, rows, workers=2))
    first, second = (world.plug("rows", worker) for worker in range(2))
    assert do(first, "push", Rows(rows, [1, 2], np.full((2, 3), 8.0)), more="w=3").ok
    begin(first, "step", dense=np.full(40, 4.0, "<f4"), more="w=3")
    begin(second, "step", Rows(rows, [2], np.full((1, 3), 16.0), [1, 2]), dense=np.full(40, 8.0, "<f4"))
    assert first.answer().ok and second.answer().ok
    e = read(second, Rows(rows, want=[1, 2]), dense=dense)[0]
    if mean:
        np.testing.assert_array_equal(second.param()[:40], (3 * 4 + 8) / 4 * ONES)
        np.testing.assert_array_equal(e, [[6] * 3, [10] * 3])
    else:
        np.testing.assert_array_equal(second.param()[:40], 12 * ONES)
        np.testing.assert_array_equal(e, [[8] * 3, [24] * 3])
