"""One job run twice in different weathers: under BSP both end with the same bits, whoever came first."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from plugml.core.clock import BSP

from .cluster import Cluster
from .exports import names_of
from .weather import Plan
from .world import Violation, World

ELSEWHERE = 1_000_003  # the other world's seed is so far away


class Twice:
    """Two runs of one plan.  Everything that is pushed depends on the first world's seed alone."""

    def __init__(self, world: World, plan: Plan) -> None:
        self.plan = plan
        other = World(world.seed + ELSEWHERE, events_max=world.events_max)
        self.clusters = (Cluster(world, deepcopy(plan)), Cluster(other, plan, world.seed))

    def run(self) -> str:
        outcomes = [cluster.run() for cluster in self.clusters]
        if outcomes != ["finished", "finished"]:
            return "+".join(outcomes)
        one, two = (self._result(cluster) for cluster in self.clusters)
        for table, values in one.items():
            if values != two[table]:
                raise Violation(f"table {table} has other bits when its pushes come in another order")
        return "finished"

    def _result(self, cluster: Cluster) -> dict[str, Any]:
        """The exact tables; rows by name, since they come in any order."""
        ledger, found = cluster.runs[0].ledger, {}
        files = cluster.hosts[0].exported[f"/{self.plan.job}/result"]
        for table in ledger.spec.tables:
            if ledger.models[table.name].model != BSP or table.name not in ("exact", "summed"):
                continue
            data = files[f"{table.name}.bin"]
            if table.kind == "dense":
                found[table.name] = data
            else:
                rows = [data[at : at + table.row_bytes] for at in range(0, len(data), table.row_bytes)]
                found[table.name] = dict(zip(names_of(table, files), rows))
        return found
