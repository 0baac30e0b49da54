"""Copies on several servers, with real processes: servers are killed in the midst of training, and nothing is lost, doubled or changed."""

from __future__ import annotations

import json
import random
import signal
import time
from typing import Any

import pytest

from tests.conftest import require
from tests.system.counting import (
    BIG,
    await_channel,
    await_clock,
    clock_of,
    commands,
    counted,
    is_on,
    kill,
    node_pid,
    root_of,
    sums,
)
from tests.system.digits_kit import TABLE, prepared
from tests.system.run_kit import Place, Running, place, wait_for  # noqa: F401

CLOCKS = 1_500  # of the digits: enough for two deaths and what comes after them


def status(place: Place) -> dict[str, Any]:  # noqa: F811
    """Of the only cluster there is."""
    document: dict[str, Any] = json.loads(place.run("status", "--json").stdout)
    return document


def whole(place: Place) -> bool:  # noqa: F811
    """Every range has all its copies, on servers that are there."""
    return all(not job["missing"] and not job["learners"] for job in status(place)["jobs"])


def leader(place: Place) -> str:  # noqa: F811
    """The server that leads the most ranges."""
    nodes = [node for node in status(place)["nodes"] if node["role"] == "server" and node["state"] == "alive"]
    return str(max(nodes, key=lambda node: node.get("leads", 0))["node"]).partition(".")[0]


def kill_server(place: Place, run: Running, id_: str) -> None:  # noqa: F811
    """kill -9, and wait until it is back and all copies are there again."""
    backs = run.stderr.count(f"server {id_} is back")
    kill(node_pid(run, id_))
    wait_for(lambda: run.stderr.count(f"server {id_} is back") > backs or not is_on(run), f"{id_} is back")
    assert is_on(run), run.stderr
    wait_for(lambda: whole(place), "copies are whole again")


@pytest.mark.parametrize("consistency", ["bsp", "ssp:2", "asp"])
def test_servers_killed_in_turn_lose_nothing_and_double_nothing(place: Place, consistency: str) -> None:  # noqa: F811
    """A table that lies on all three servers; each of them dies once, at any moment of a push."""
    draw = random.Random(consistency)
    words = ["--servers", "3", "--copies", "2", "--consistency", consistency, "--name", "count", "--table", f"w={BIG}:i64,optimizer=add"]
    process = place.start("run", "-n", "2", *words, "--", *commands(place, 1_000_000, 0, ["c"])[0])
    await_channel(process, place.root, "count.1.1")
    root = root_of(place)
    for id_ in draw.sample(["s0", "s1", "s2"], 3):
        await_clock(process, root, 0, clock_of(root, 0) + 3)
        time.sleep(draw.uniform(0, 0.03))
        kill_server(place, process, id_)
    await_clock(process, root, 0, clock_of(root, 0) + 3)
    process.send(signal.SIGINT)
    said = process.ended(130).stderr
    assert "2 copies of each range: any one server may die" in said
    assert said.count("ended (killed by signal 9 (SIGKILL)); its ") == 3 and said.count(" ranges are served by other copies") == 3
    result = place.result("count")
    clocks = [worker["clocks"] for worker in result["workers"]]
    assert [worker["pushes"] for worker in result["workers"]] == clocks
    assert sums(place) == counted([result["closed"]] * 2 if consistency == "bsp" else clocks, BIG)
    assert [worker["last_error"] for worker in result["workers"]] == ["", ""]


def test_a_model_is_bit_for_bit_the_same_though_who_leads_it_dies_twice(place: Place) -> None:  # noqa: F811
    require("cc")
    require("module:sklearn")
    digits = prepared(place.directory / "digits")
    words = ["--table", TABLE, "--servers", "3", "--copies", "2"]
    workers = digits.words(place.directory, CLOCKS)
    place.run("run", "--name", "calm", *words, *workers)
    process = place.start("run", "--name", "stormy", *words, *workers)
    await_channel(process, place.root, "stormy.3.1")
    root = root_of(place)
    for clock in (30, 60):
        await_clock(process, root, 0, max(clock, clock_of(root, 0, "stormy") + 30), "stormy")
        kill_server(place, process, leader(place))
    assert is_on(process), "it was over before the second death had been mended"
    process.ended()
    results = [place.directory / "plugml-runs" / name / "w.bin" for name in ("calm", "stormy")]
    assert results[0].read_bytes() == results[1].read_bytes()
    assert place.result("stormy")["closed"] == CLOCKS
