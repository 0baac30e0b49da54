"""`plugml drain` and `plugml scale` with real processes: copies move under load, and no push is lost, doubled or refused."""

from __future__ import annotations

import json
import os
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
from tests.system.run_kit import Place, Running, place, wait_for  # noqa: F401


def counts(place: Place, id_: str) -> tuple[int, int]:  # noqa: F811
    """Ranges that the server leads and backs."""
    nodes: list[dict[str, Any]] = json.loads(place.run("status", "--json").stdout)["nodes"]
    (node,) = [node for node in nodes if node["node"].startswith(f"{id_}.") and node["state"] != "dead"]
    return node.get("leads", 0), node.get("backs", 0)


def stopped_exact(place: Place, process: Running, consistency: str) -> None:  # noqa: F811
    """Ctrl-C: every push of the two workers counts once, and none was refused."""
    process.send(signal.SIGINT)
    process.ended(130)
    result = place.result("count")
    clocks = [worker["clocks"] for worker in result["workers"]]
    assert [worker["pushes"] for worker in result["workers"]] == clocks
    assert [worker["last_error"] for worker in result["workers"]] == ["", ""]
    assert sums(place) == counted([result["closed"]] * 2 if consistency == "bsp" else clocks, BIG)


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
    stopped_exact(place, process, consistency)


@pytest.mark.parametrize(("consistency", "copies"), [("bsp", 1), ("asp", 2)])
def test_a_server_hands_over_what_it_holds_before_sigterm_ends_it(place: Place, consistency: str, copies: int) -> None:  # noqa: F811
    words = ["--servers", "3", "--copies", str(copies), "--consistency", consistency, "--name", "count", "--table", f"w={BIG}:i64,optimizer=add"]
    process = place.start("run", "-n", "2", *words, "--", *commands(place, 1_000_000, 0, ["c"])[0])
    await_channel(process, place.root, "count.1.1")
    root = root_of(place)
    for id_ in ("s0", "s1"):  # one of them keeps the clock, perhaps
        await_clock(process, root, 0, clock_of(root, 0) + 3)
        assert sum(counts(place, id_)) > 0
        os.kill(node_pid(process, id_), signal.SIGTERM)
        wait_for(lambda id_=id_: f"server {id_} is back" in process.stderr, f"{id_} is back")
        await_clock(process, root, 0, clock_of(root, 0) + 3)
    status = json.loads(place.run("status", "--json").stdout)
    assert status["drained"] == [] and [node["why"] for node in status["nodes"] if node["state"] == "dead"] == ["exit code 0"] * 2
    stopped_exact(place, process, consistency)


def test_a_cluster_grows_and_shrinks_under_a_running_job(place: Place) -> None:  # noqa: F811
    place.environ["PLUGML_ROOT"] = str(place.root / "c")
    place.run("up", "-d", "--name", "scaled", "--servers", "2", "--copies", "2")
    try:
        words = ["--cluster", "scaled", "--consistency", "asp", "--name", "count", "--table", f"w={BIG}:i64,optimizer=add"]
        process = place.start("run", "-n", "2", *words, "--", *commands(place, 1_000_000, 0, ["c"])[0])
        root = place.root / "c"
        await_channel(process, place.root, "count.1.1")
        await_clock(process, root, 0, 3)

        assert place.run("scale", "4").stdout.startswith("4 servers: s0, s1, s2, s3. ")
        assert all(sum(counts(place, f"s{number}")) > 0 for number in range(4))
        assert "job count keeps 2 copies of each range, which needs 2 servers" in place.run("scale", "1", code=1).stderr
        assert place.run("scale", "servers=2").stdout.startswith("2 servers: s0, s1; ended: s2, s3. ")
        status = json.loads(place.run("status", "--json").stdout)
        assert {node["node"].split(".")[0] for node in status["nodes"] if node["state"] == "alive"} == {"s0", "s1", "a0"}
        assert status["drained"] == [] and all(job["missing"] == 0 for job in status["jobs"])

        assert place.run("scale", "3").stdout.startswith("3 servers: s0, s1, s2. ")
        assert sum(counts(place, "s2")) > 0
        await_clock(process, root, 0, clock_of(root, 0) + 3)
        process.send(signal.SIGINT)
        process.ended(130)
        workers = place.result("count")["workers"]
        assert [worker["last_error"] for worker in workers] == ["", ""]
        assert sums(place) == counted([worker["clocks"] for worker in workers], BIG)
    finally:
        place.run("down", "scaled", "--purge")


def test_servers_that_nobody_supervises_are_not_counted_by_scale(place: Place) -> None:  # noqa: F811
    """A cluster by hand: who started its servers ends them."""
    root = ["--root", str(place.root / "hand")]
    master = place.start("master", "--cluster", "hand", *root)
    master.heard("event=ready")
    said = place.run("scale", "3", "--cluster", "hand", code=2).stderr
    assert "the servers of cluster hand are not kept by a `plugml up` of this host" in said
    assert "is no number of servers" in place.run("scale", "many", "--cluster", "hand", code=2).stderr
    assert "does not go together" in place.run("scale", "3", "--no-wait", "--cluster", "hand", code=2).stderr
    master.send(signal.SIGTERM)
    master.ended(0)
