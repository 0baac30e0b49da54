"""What people are told: complete, in pages that fit into a message, with a reason for each thing."""

from __future__ import annotations

from typing import Any

import pytest

from plugml.core.errors import Code
from plugml.core.job import JobSpec
from plugml.core.limits import Limits
from plugml.core.table import TableSpec
from plugml.wire import messages as m
from tests.fuzz.master_world import LIMITS, MasterWorld, spec

S0, S1, A0 = "s0.00000001", "s1.00000002", "a0.00000003"


@pytest.fixture
def world() -> MasterWorld:
    made = MasterWorld()
    for name in (S0, S1, A0):
        made.register(name)
    return made


def pages(world: MasterWorld, verb: str, **arguments: Any) -> list[dict[str, Any]]:
    """Every page of an answer (the world checks that each fits into a message)."""
    found, after = [], 0
    while after >= 0:
        told = world.admin(verb, after=after, **arguments)
        assert told.code == Code.OK, told
        found.append(told.document)
        assert told.document["next"] > after or told.document["next"] == -1
        after = told.document["next"]
    return found


def test_status_names_every_node_with_its_last_sign_of_life(world: MasterWorld) -> None:
    world.beats_for(3 * LIMITS.dead_us, S0, A0)
    (page,) = pages(world, "status")
    rows = {row["node"]: row for row in page["nodes"]}
    assert rows.keys() == {S0, S1, A0}
    assert (rows[S0]["state"], rows[S1]["state"]) == ("alive", "dead")
    assert rows[S0]["role"] == "server" and rows[S0]["host"] == "h0" and rows[S0]["pid"] == 1000
    assert rows[S0]["counters"] == {"pushes": 3} and rows[S1]["counters"] == {}
    assert rows[S0]["age_us"] <= LIMITS.beat_us < rows[S1]["age_us"]
    assert rows[S1]["why"].startswith("no beat for 6.")
    assert (page["cluster"], page["master"], page["term"], page["store"]) == ("test", "m0", 1, "ok")


def test_status_says_of_each_job_where_its_tables_are(world: MasterWorld) -> None:
    world.job(A0, JobSpec("job", 3, (TableSpec("w", (1 << 20,)), TableSpec("b", (10,))), consistency="asp", copies=1))
    world.attach(A0, 1, 2)
    (row,) = pages(world, "status")[0]["jobs"]
    assert (row["name"], row["state"], row["workers"], row["attached"], row["consistency"]) == ("job", "running", 3, 1, "asp")
    assert row["placement"][0] == "table w: 8 blocks on 2 servers"
    assert row["placement"][1] == "table b: 1 block on 1 server"
    assert row["servers"] == [S0, S1] and row["agents"] == [A0] and "ranges on 2 servers" in row["why"]


def test_sparse_tables_storage_and_optimizers_are_described(world: MasterWorld) -> None:
    tables = (
        TableSpec("e", (0, 16), "sparse", optimizer="adam", settings={"lr": 0.5, "beta1": 0.8}, storage="f16"),
        TableSpec("s", (0, 3), "sparse", "f64", index="str", batch=100),
        TableSpec("c", (1 << 20, 2), "sparse", "i64", optimizer="add"),
        TableSpec("w", (4, 5), optimizer="assign", storage="f64"),
    )
    world.job(A0, JobSpec("job", 2, tables, copies=1))
    (page,) = pages(world, "job", job="job")
    assert page["tables"] == [
        "table e: sparse, any number of rows of 16 f32 (index u64), up to 65536 rows a request, kept as f16, adam (beta1 0.8, lr 0.5); 8 buckets on 1 server",
        "table s: sparse, rows of 3 f64 named by strings, up to 100 rows a request, sgd; 8 buckets on 2 servers",
        "table c: sparse, 1,048,576 rows of 2 i64 (index u32), up to 65536 rows a request, add; 8 buckets on 2 servers",
        "table w: 4 x 5 f32, kept as f64, assign; 1 block on 1 server",
    ]
    (row,) = pages(world, "jobs")[0]["jobs"]
    assert row["placement"][1] == "table s: sparse, 8 buckets on 2 servers" and row["bytes"] == 80


def test_a_lost_range_is_told_by_table(world: MasterWorld) -> None:
    world.job(A0, spec())
    world.feed("x.1", m.NodeExit(1, S0, 1))
    (row,) = pages(world, "jobs")[0]["jobs"]
    assert row["state"] == "lost" and "held the only copy" in row["reason"]
    assert "on 1 server, " in row["placement"][0] and row["placement"][0].endswith("lost")


def test_a_job_is_told_to_the_last_range_and_why_each_is_there(world: MasterWorld) -> None:
    world.job(A0, spec())
    world.attach(A0, 1, 1)
    (page,) = pages(world, "job", job="job")
    assert page["job"]["name"] == "job"
    assert sum(row["bytes"] for row in page["ranges"]) == 4 << 20
    assert {row["why"] for row in page["ranges"]} <= {
        "the first server clockwise on the ring", "balanced: 1 server before it on the ring had a full share",
    }  # fmt: skip
    assert {row["epoch"] for row in page["ranges"]} == {1}
    assert page["workers"] == [{"worker": 1, "gen": 1, "agent": A0}]
    assert world.admin("job", job=1).document["job"]["job"] == world.admin("job", job="1").document["job"]["job"] == 1
    world.feed("x.1", m.NodeExit(1, S0, 1))
    reasons = {row["why"] for row in pages(world, "job", job="job")[0]["ranges"] if not row["replicas"]}
    assert reasons == {"its only copy is lost"}


def test_a_large_cluster_is_told_in_pages() -> None:
    world = MasterWorld(Limits(jobs_kept=200))
    servers = [f"s{number}.{number:08x}" for number in range(64)]
    agents = [f"a{number}.{number:08x}" for number in range(64)]
    for name in (*servers, *agents):
        world.register(name, host=f"a-host-with-a-long-name-{name}.cluster.example.org")
    counters = {f"a_long_name_of_counter_{number}": 1 << 60 for number in range(100)}
    for name in (*servers, *agents):
        world.feed(name, m.Beat(0, counters))
    tables = tuple(TableSpec(f"layer{number}.weight", (1 << 18,)) for number in range(12))
    for number in range(100):
        told = world.job(agents[number % 64], JobSpec(f"job-number-{number}", 64, tables))
        assert told.code == Code.OK, told.text
    assert {name for _, job in world.state.jobs.items() for name in job.servers()} == set(servers)

    found = pages(world, "status")
    assert len(found) > 3
    assert [row["node"] for page in found for row in page["nodes"]] == sorted(agents + servers, key=lambda name: name.split(".")[0])
    assert [row["job"] for page in found for row in page["jobs"]] == list(range(1, 101))
    assert [row["job"] for page in pages(world, "jobs") for row in page["jobs"]] == list(range(1, 101))
    ranges = [row["range"] for page in pages(world, "job", job="job-number-7") for row in page["ranges"]]
    assert ranges == sorted(world.state.jobs[8].seats)
    for worker in range(64):
        world.attach(agents[0], 8, worker)
    workers = [row["worker"] for page in pages(world, "job", job="job-number-7") for row in page["workers"]]
    assert workers == list(range(64))
    world.feed(agents[0], m.MapAsk(8, 0))  # the world checks that the map fits


def test_the_largest_map_fits_into_a_message() -> None:
    world = MasterWorld()
    for number in range(256):
        world.register(f"s{number}.{number:08x}")
    world.register(A0)
    tables = tuple(TableSpec(f"t{number}", (1 << 20,)) for number in range(100))
    assert world.job(A0, JobSpec("wide", 1000, tables)).code == Code.OK
    for worker in range(1000):
        world.attach(A0, 1, worker)
    assert len(world.state.jobs[1].seats) == 256
    world.feed(A0, m.MapAsk(1, 0))
    assert world.take(A0, m.MapTold)


def test_stop_ends_a_job_and_rm_forgets_it(world: MasterWorld) -> None:
    world.job(A0, spec())
    told = world.admin("rm", job="job")
    assert told.code == Code.AGAIN and "plugml stop job" in told.text
    told = world.admin("stop", job="job")
    assert told.code == Code.OK and told.document == {"job": 1, "name": "job", "state": "stopped"}
    assert world.admin("stop", job="job").code == Code.OK
    assert world.state.jobs[1].reason == "stopped by `plugml stop`"
    assert world.admin("rm", job="job").document["state"] == "removed"
    assert world.state.jobs == {}
    told = world.admin("rm", job="job")
    assert told.code == Code.RANGE and "there is no job 'job'" in told.text


def test_of_two_jobs_of_one_name_the_newest_is_meant(world: MasterWorld) -> None:
    world.job(A0, spec())
    world.admin("stop", job="job")
    world.job(A0, spec())
    assert world.admin("job", job="job").document["job"]["job"] == 2


@pytest.mark.parametrize(
    ("verb", "arguments", "text"),
    [
        ("dance", {}, "unknown verb 'dance'; known are status"),
        ("job", {}, "no job"),
        ("job", {"job": []}, "no job"),
        ("job", {"job": "9" * 5000}, "no job"),
        ("status", {"after": "x"}, "after"),
        ("status", {"after": -1}, "after"),
        ("stop", {"job": 7}, "no job"),
    ],
)
def test_a_question_that_makes_no_sense_is_answered_with_a_sentence(
    world: MasterWorld, verb: str, arguments: dict[str, Any], text: str
) -> None:
    told = world.admin(verb, **arguments)
    assert told.code == Code.RANGE and text in told.text and len(told.text) < 500


def test_a_page_behind_the_last_is_empty(world: MasterWorld) -> None:
    document = world.admin("status", after=99).document
    assert document["nodes"] == [] and document["next"] == -1
