"""Exports of jobs with rows: every row once, of one clock, newest or snapshot, whatever the network does."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugml.agent import effects as e
from plugml.core.limits import Limits
from plugml.core.table import TableSpec
from plugml.wire import messages as m

from .agent_rows import ONES, E, F, G, Rows, W, begin, do, spec
from .test_agent_harness import Program, World
from .test_agent_network import Weather


def plugged(*tables: TableSpec, servers: int = 3, limits: Limits = Limits(), **fields: Any) -> tuple[World, Program]:
    world = World(servers=servers, limits=limits)
    world.register(spec(*tables, **fields))
    return world, world.plug("rows", 0)


def numbered(world: World, table: TableSpec) -> dict[int, list[float]]:
    """Rows by number."""
    ids = np.frombuffer(world.exported[f"{table.name}.idx"], "<u4" if table.index_name == "u32" else "<u8").tolist()
    values = np.frombuffer(world.exported[f"{table.name}.bin"], table.numpy_dtype).reshape(-1, table.width).tolist()
    assert len(ids) == len(set(ids)) == len(values)
    return dict(zip(ids, values, strict=True))


def named(world: World, table: TableSpec) -> dict[str, list[float]]:
    keys = world.exported[f"{table.name}.keys"].decode().splitlines()
    values = np.frombuffer(world.exported[f"{table.name}.bin"], table.numpy_dtype).reshape(-1, table.width).tolist()
    assert len(keys) == len(set(keys)) == len(values)
    return dict(zip(keys, values, strict=True))


def test_every_table_has_its_files() -> None:
    world, program = plugged()
    keys = ["ä", "b" * 255, "c", "日本"]
    assert do(program, "step", Rows(E, [5, 900], [[1, 2, 3], [4, 5, 6]]), Rows(F, keys, np.arange(8).reshape(4, 2)), dense=ONES).ok
    answer = world.ask("export", job="rows", dir="/out")
    assert answer["ok"] and answer["clock"] == 1
    assert answer["files"] == ["w.bin", "e.bin", "e.idx", "g.bin", "g.idx", "f.bin", "f.keys"] and set(world.exported) == set(answer["files"])
    assert answer["bytes"] == sum(map(len, world.exported.values()))
    assert numbered(world, E) == {5: [1, 2, 3], 900: [4, 5, 6]}
    assert numbered(world, G) == {}
    assert named(world, F) == dict(zip(keys, np.arange(8).reshape(4, 2).tolist(), strict=True))
    np.testing.assert_array_equal(np.frombuffer(world.exported["w.bin"], "<f4"), ONES)
    assert world.agent.house.by_request == {}


@pytest.mark.parametrize("servers", [1, 3])
def test_many_rows_come_in_many_answers(servers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plugml.server.buckets.SCAN_BYTES", 100)
    table = TableSpec("e", (5000, 3), kind="sparse", optimizer="add", combine="sum", index="u64", batch=5000)
    world, program = plugged(table, servers=servers, limits=Limits(window_bytes=1000))
    ids = Random(1).sample(range(5000), 2000)
    assert do(program, "step", Rows(table, ids, np.arange(6000).reshape(2000, 3))).ok
    assert world.ask("export", job="rows", dir="/out")["ok"]
    assert numbered(world, table) == dict(zip(ids, np.arange(6000).reshape(2000, 3).tolist(), strict=True))
    scans = [message.cursor for _to, message in world.sent if isinstance(message, m.Scan)]
    assert len(scans) > 100 and max(scans) > 0


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_bad_weather_doubles_no_row_and_loses_none(seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("plugml.server.buckets.SCAN_BYTES", 200)
        world, program = plugged(E, F)
        assert do(program, "step", Rows(E, list(range(60)), np.arange(180).reshape(60, 3)), Rows(F, ["x", "y"], np.ones((2, 2)))).ok
        Weather(world, seed, lose=0.2, double=0.2, shuffle=0.3)
        world.feed("", e.Asked(1, {"op": "export", "id": 1, "job": "rows", "dir": "/out"}))
        assert world.run(300.0, lambda: any(document.get("id") == 1 for document in world.told))
        assert next(document for document in world.told if document.get("id") == 1)["ok"]
        assert numbered(world, E) == dict(zip(range(60), np.arange(180).reshape(60, 3).tolist(), strict=True))
        assert set(named(world, F)) == {"x", "y"}


def test_what_is_written_while_training_goes_on_is_one_clock() -> None:
    world, program = plugged(W, E)
    for number in range(1, 25):
        begin(program, "step", Rows(E, list(range(30)), np.ones((30, 3))), dense=ONES)
        world.feed("", e.Asked(1, {"op": "export", "id": number, "job": "rows", "dir": "/out"}))
        for _ in range(number):
            if world.queue:
                world.deliver_one()
        assert program.answer().ok
        world.run(0.3)
        (answer,) = [document for document in world.told if document.get("id") == number]
        assert answer["ok"], answer
        found = {value for row in numbered(world, E).values() for value in row} | set(np.frombuffer(world.exported["w.bin"], "<f4").tolist())
        assert found in ({answer["clock"]}, {0.0} - {answer["clock"]}), (found, answer)


def test_a_snapshot_is_what_the_clock_was() -> None:
    dense = TableSpec("w", (40,), optimizer="add", combine="sum", storage="f64")
    world, program = plugged(dense, E, F, snapshot_every=2)
    for number in range(1, 8):
        assert do(program, "step", Rows(E, [number], [[number] * 3]), Rows(F, ["k"], np.ones((1, 2))), dense=ONES).ok
    for at in (4, 6):
        answer = world.ask("export", job="rows", dir="/out", at=at)
        assert answer["ok"] and answer["clock"] == at
        np.testing.assert_array_equal(np.frombuffer(world.exported["w.bin"], "<f4"), at * ONES)
        assert numbered(world, E) == {row: [row] * 3 for row in range(1, at + 1)}
        assert named(world, F) == {"k": [at, at]}
    for at, code in ((2, "RANGE"), (8, "AGAIN"), (3, "FORMAT")):
        assert world.ask("export", job="rows", dir="/out", at=at)["code"] == code
    assert world.ask("export", job="rows", dir="/out")["clock"] == 7
    assert world.agent.house.by_request == {}


def test_a_job_without_snapshots_has_none() -> None:
    world, _program = plugged(W, E)
    answer = world.ask("export", job="rows", dir="/out", at=4)
    assert answer["code"] == "FORMAT" and "keeps no snapshots" in answer["text"]


def test_storage_is_brought_back_to_the_programs_kind() -> None:
    table = TableSpec("e", (100, 2), kind="sparse", optimizer="add", combine="sum", storage="f16", batch=64)
    world, program = plugged(table)
    assert do(program, "step", Rows(table, [7], [[0.5, 0.25]])).ok
    assert world.ask("export", job="rows", dir="/out")["ok"]
    assert numbered(world, table) == {7: [0.5, 0.25]}


def test_the_last_export_is_made_when_all_workers_are_gone() -> None:
    world, program = plugged(W, E)
    assert do(program, "step", Rows(E, [7], [[1, 2, 3]]), dense=ONES).ok
    assert world.ask("exited", job="rows", worker=0, gen=1, how="finished")["ok"]
    assert world.ask("export", job="rows", dir="/out")["ok"]
    assert numbered(world, E) == {7: [1, 2, 3]}


def test_an_export_that_nobody_waits_for_is_forgotten() -> None:
    world, _program = plugged(E)
    world.interfere = lambda sender, to, message: () if isinstance(message, m.Scan) else (message,)
    world.feed("", e.Asked(1, {"op": "export", "id": 1, "job": "rows", "dir": "/out"}))
    world.run(1.0)
    world.feed("", e.Hung(1))
    assert world.agent.house.by_request == {} and world.exports == {} and world.exported == {}
