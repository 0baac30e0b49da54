"""Weathers that favour one fault of servers or masters each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .weather import Plan
from .weathers import under
from .world import World

Bias = Callable[[World, Plan], None]


def copied(consistency: str = "asp", copies: int = 2, servers: int = 3, min_insync: int = 1, **rates: Any) -> Bias:
    """A calm plan with copies on so many servers.  Programs have much to do in little time."""

    def bias(world: World, plan: Plan) -> None:
        masters = rates.get("masters", 1)
        rest = {name: value for name, value in rates.items() if name not in ("masters", "clocks", "replicate_us", "behind_us_max", "careful", "delay_us")}
        under(consistency, **{"think_us": (100, 5_000), "shuffled_start": False, "supervised": True, **rest})(world, plan)
        plan.servers, plan.server_hosts, plan.masters, plan.rivals = servers, 0, masters, masters > 1
        plan.careful = rates.get("careful", True)
        plan.clocks = rates.get("clocks", 20)
        plan.weather_us = 2_500_000
        assert plan.spec is not None
        plan.spec = replace(plan.spec, copies=copies, min_insync=min_insync, stop_clock=0)
        named = {name: rates[name] for name in ("replicate_us", "behind_us_max") if name in rates}
        plan.limits = replace(
            plan.limits, behind_bytes_max=1 << 20, settle_us=1_000_000, dead_us=1_500_000, suspect_us=600_000, beat_us=200_000,
            copy_part_bytes=512, copy_bytes_a_second=64 << 10, copy_parts=2, **named,
        )  # fmt: skip
        plan.network.delay_us = rates.get("delay_us", (20, 2_000))

    return bias


def dying(consistency: str = "asp", **rates: Any) -> Bias:
    """Servers die one after the other; copies are filled, and lead."""
    return copied(consistency, **{"server_crash_us": 200_000, **rates})


def cut(consistency: str = "asp", **rates: Any) -> Bias:
    """Servers that go on while others have taken their place."""
    return copied(
        consistency, **{"cut_us": 120_000, "long_cut": True, "pause_us": 300_000, "long_pause": True, "suspicion_us": 400_000, "servers": 3, **rates}
    )


def mixed(consistency: str = "asp", **rates: Any) -> Bias:
    """Messages are lost, come twice, late, in any order; and servers die."""
    return dying(consistency, **{"net_drop": 0.03, "net_double": 0.1, "net_straggle": 0.1, **rates})


def ruled(**rates: Any) -> Bias:
    """Three masters that fall asleep, lose their store, and are started again; workers that need them often."""
    return copied("asp", masters=3, **{"master_pause_us": 700_000, "store_cut_us": 700_000, "program_kill_us": 100_000, "master_crash_us": 2_000_000, **rates})
