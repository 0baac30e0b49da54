"""Death at every point, one after the other, until a run gets through: after effect 1, 2, 3, ... and after store 1, 2, 3, ...

The loop is SQLite's: the run itself says when there is no further point.  Each run ends with every program finished,
every push counted exactly once, the exact values exported, and every reply given once.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .cluster import Cluster
from .programs import Program
from .weather import Plan, calm_plan, full_plan
from .world import World

POINTS_MAX = 3_000  # a run that has more points than this goes in circles


FULL = 22  # a seed whose programs push several times in a clock


def run_with(plan: Plan, prepare: Callable[[Cluster], None], seed: int = 7) -> Cluster:
    """A calm run with one planned death; raises what went wrong."""
    world = World(seed)
    cluster = Cluster(world, plan)
    prepare(cluster)
    assert cluster.run() == "finished"
    return cluster


def accepted(cluster: Cluster) -> int:
    """Requests that were answered before they were carried out."""
    return sum(count for mark, count in cluster.world.marks.items() if mark == "accepted push" or mark.endswith("timed out"))


KINDS = ("crash between effects", "program killed between stores", "agent killed between stores")


def full(workers: int = 2, servers: int = 2, consistency: str = "bsp", **rates: object) -> Plan:
    """Every kind of request in a few clocks: rows of all indexes, accepted pushes, limits, input, a stop clock."""
    plan = full_plan(workers, servers, consistency=consistency)
    for name, rate in rates.items():
        setattr(plan, name, rate)
    return plan


def died(cluster: Cluster) -> int:
    """How often somebody died as planned."""
    return sum(cluster.world.faults.get(kind, 0) for kind in KINDS)


@pytest.mark.parametrize("consistency", ["bsp", "asp"])
def test_the_agent_may_die_after_each_of_its_effects(consistency: str) -> None:
    for point in range(POINTS_MAX):
        plan = calm_plan(workers=2, servers=2, clocks=2, consistency=consistency)

        def prepare(cluster: Cluster, point: int = point) -> None:
            cluster.agents[0].crash_at = [point]

        cluster = run_with(plan, prepare)
        if not died(cluster):
            assert point > 50, "the agent performed hardly anything"
            return
        assert cluster.agents[0].incarnation == 2 or not cluster.agents[0].alive  # its last effects come when all is over
    pytest.fail(f"no run got through {POINTS_MAX} points")


def test_the_adopting_agent_may_die_again() -> None:
    """A second death within the adoption that follows the first, each time at another point of it."""
    for point in range(0, POINTS_MAX, 5):

        def prepare(cluster: Cluster, point: int = point) -> None:
            cluster.agents[0].crash_at = [point, point + 1 + point % 17, point + 30]

        cluster = run_with(calm_plan(workers=2, servers=2, clocks=2), prepare)
        if died(cluster) < 3:
            assert point > 50, "the agent performed hardly anything"
            return
    pytest.fail(f"no run got through {POINTS_MAX} points")


def test_the_agent_may_die_before_each_of_its_stores_into_the_channel() -> None:
    for point in range(POINTS_MAX):

        def prepare(cluster: Cluster, point: int = point) -> None:
            cluster.hosts[0].die_at_store = point

        cluster = run_with(calm_plan(workers=2, servers=1, clocks=2), prepare)
        if not died(cluster):
            assert point > 50, "the agent stored hardly anything"
            return
    pytest.fail(f"no run got through {POINTS_MAX} points")


def test_the_master_may_die_after_each_of_its_effects() -> None:
    for point in range(POINTS_MAX):

        def prepare(cluster: Cluster, point: int = point) -> None:
            cluster.master.crash_at = [point]

        cluster = run_with(calm_plan(workers=1, servers=2, clocks=1), prepare)
        if not died(cluster):
            assert point > 10, "the master performed hardly anything"
            return
    pytest.fail(f"no run got through {POINTS_MAX} points")


def _server_dies(name: int, consistency: str, step: int, *before: int) -> None:
    """One of two servers dies after effect `point`, with `before` it dies at these, too; the other one keeps all."""
    for point in range(0, POINTS_MAX, step):
        plan = calm_plan(workers=2, servers=2, clocks=2, consistency=consistency)
        plan.supervised, plan.whole = True, True

        def prepare(cluster: Cluster, point: int = point) -> None:
            cluster.servers[name].crash_at = [*before, max((point, *(last + 1 for last in before)))]

        cluster = run_with(plan, prepare)
        if died(cluster) <= len(before):
            assert point > 50, "the server performed hardly anything"
            return
    pytest.fail(f"no run got through {POINTS_MAX} points")


@pytest.mark.parametrize("consistency", ["bsp", "asp"])
@pytest.mark.parametrize("server", [0, 1])
def test_a_server_may_die_after_some_of_its_effects(server: int, consistency: str) -> None:
    _server_dies(server, consistency, 11)


@pytest.mark.slow
@pytest.mark.parametrize("consistency", ["bsp", "asp"])
@pytest.mark.parametrize("server", [0, 1])
def test_a_server_may_die_after_each_of_its_effects(server: int, consistency: str) -> None:
    _server_dies(server, consistency, 1)


@pytest.mark.slow
@pytest.mark.parametrize("consistency", ["bsp", "asp"])
def test_a_server_may_die_again_while_it_is_filled_after_each_of_its_effects(consistency: str) -> None:
    _server_dies(1, consistency, 1, 60)


@pytest.mark.parametrize("consistency", ["bsp", "asp"])
def test_the_program_may_die_after_each_of_its_stores(consistency: str) -> None:
    for point in range(POINTS_MAX):
        plan = calm_plan(workers=2, servers=1, clocks=2, consistency=consistency)
        plan.write_pieces = 2

        def arm(program: Program, point: int = point) -> None:
            if program.stream == (0, 1):
                program.die_at_store = point

        def prepare(cluster: Cluster, arm: Callable[[Program], None] = arm) -> None:
            cluster.launchers[0].arm = arm

        cluster = run_with(plan, prepare)
        if not died(cluster):
            assert point > 10, "the program stored hardly anything"
            return
        assert cluster.launchers[0].restarts == 1
    pytest.fail(f"no run got through {POINTS_MAX} points")


@pytest.mark.parametrize(
    ("consistency", "rates"),
    [("asp", {"unwaited": 1.0}), ("bsp", {"timeouts": 1.0}), pytest.param("bsp", {}, marks=pytest.mark.slow), pytest.param("ssp:1", {}, marks=pytest.mark.slow)],
)
def test_the_agent_may_die_after_each_effect_of_rows_accepted_pushes_input_and_the_end(consistency: str, rates: dict[str, float]) -> None:
    for point in range(POINTS_MAX):

        def prepare(cluster: Cluster, point: int = point) -> None:
            cluster.agents[0].crash_at = [point]

        cluster = run_with(full(consistency=consistency, **rates), prepare, FULL)
        assert cluster.runs[0].ledger.stopping.decided == 2
        if not died(cluster):
            assert point > 200, "the agent performed hardly anything"
            assert accepted(cluster) >= 3 or not rates
            assert cluster.runs[0].ledger.input.total == len(cluster.runs[0].ledger.input.state), "pieces are left"
            return
    pytest.fail(f"no run got through {POINTS_MAX} points")


@pytest.mark.parametrize("rates", [{"unwaited": 1.0}, {"timeouts": 1.0, "unwaited": 0.5}])
def test_the_agent_may_die_before_each_store_of_rows_and_accepted_pushes(rates: dict[str, float]) -> None:
    for point in range(POINTS_MAX):

        def prepare(cluster: Cluster, point: int = point) -> None:
            cluster.hosts[0].die_at_store = point

        cluster = run_with(full(servers=1, **rates), prepare, FULL)
        if not died(cluster):
            assert point > 100, "the agent stored hardly anything"
            assert accepted(cluster) > 3
            return
    pytest.fail(f"no run got through {POINTS_MAX} points")


@pytest.mark.parametrize("consistency", ["bsp", "asp"])
def test_the_program_may_die_after_each_store_of_rows_and_accepted_pushes(consistency: str) -> None:
    for point in range(POINTS_MAX):
        plan = full(servers=1, consistency=consistency, unwaited=0.5)

        def arm(program: Program, point: int = point) -> None:
            if program.stream == (0, 1):
                program.die_at_store = point

        def prepare(cluster: Cluster, arm: Callable[[Program], None] = arm) -> None:
            cluster.launchers[0].arm = arm

        cluster = run_with(plan, prepare, FULL)
        if not died(cluster):
            assert point > 40, "the program stored hardly anything"
            assert cluster.world.marks["accepted push"] > 1
            return
    pytest.fail(f"no run got through {POINTS_MAX} points")
