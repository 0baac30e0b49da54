"""`plugml drain` and `plugml scale` with real processes: copies move under load, and no push is lost, doubled or refused."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from tests.system.counting import (
    BIG,
    await_channel,
    await_clock,
    clock_of,
    commands,
    counted,
    kill,
    node_pid,
    root_of,
    sums,
)  # fmt: skip
from tests.system.run_kit import Place, place, wait_for  # noqa: F401


def counts(place: Place, id_: str) -> tuple[int, int]:  # noqa: F811
    """Ranges that the server leads and backs."""
    nodes: list[dict[str, Any]] = json.loads(place.run("status", "--json").stdout)["nodes"]
    (node,) = [node for node in nodes if node["node"].startswith(f"{id_}.") and node["state"] != "dead"]
    return node.get("leads", 0), node.get("backs", 0)


@pytest.mark.parametrize(("consistency", "copies"), [("bsp", 1), ("bsp", 2), ("ssp:2", 2), ("asp", 1)])
def test_a_server_is_emptied_ended_and_filled_again_under_a_running_job(place: Place, consistency: str, copies: int) -> None:  # noqa: F811
    words = ["--servers", "3", "--copies", str(copies), "--consistency", consistency, "--name", "count", "--table", f"w={BIG}:i64,optimizer=add"]
    process = place.start("run", "-n", "2", *words, "--", *commands(place, 1_000_000, 0, ["c"])[0])
    await_channel(process, place.root, "count.1.1")
    root = root_of(place)
    await_clock(process, root, 0, clock_of(root, 0) + 3)
    assert sum(counts(place, "s1")) > 0

    done = place.run("drain", "s1")
    assert done.stdout == "server s1 is drained: it holds nothing, and may be ended\n"
    assert counts(place, "s1") == (0, 0)
    kill(node_pid(process, "s1"))  # with one copy of everything, too
    wait_for(lambda: "server s1 is back" in process.stderr, "s1 is back")
    await_clock(process, root, 0, clock_of(root, 0) + 3)
    assert counts(place, "s1") == (0, 0)

    place.run("drain", "s1", "--cancel")
    place.run("scale")
    wait_for(lambda: min(counts(place, "s1")[: 1 if copies == 1 else 2]) > 0, "s1 has its share")
    await_clock(process, root, 0, clock_of(root, 0) + 3)
    process.send(signal.SIGINT)
    process.ended(130)
    result = place.result("count")
    clocks = [worker["clocks"] for worker in result["workers"]]
    assert [worker["pushes"] for worker in result["workers"]] == clocks
    assert [worker["last_error"] for worker in result["workers"]] == ["", ""]
    assert sums(place) == counted([result["closed"]] * 2 if consistency == "bsp" else clocks, BIG)
