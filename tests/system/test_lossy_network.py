"""Messages between agent and servers that are lost, doubled and late: every push counts once all the same."""

from __future__ import annotations

import signal
from contextlib import ExitStack

import pytest

from tests.system.counting import commands, counted, job_file, sums
from tests.system.fault_proxy import FaultProxy
from tests.system.run_kit import Place, place  # noqa: F401

ODDS = {"drop": 0.1, "double": 0.1, "delay": 0.1}


@pytest.mark.parametrize("consistency", ["bsp", "asp"])
def test_a_count_is_exact_behind_a_lossy_proxy(place: Place, consistency: str) -> None:  # noqa: F811
    """Three languages, two servers, 10 % of all messages each way lost, 10 % doubled, 10 % late."""
    steps = 25
    up = place.start("up", "--servers", "2", "--name", "lossy")
    with ExitStack() as stack:
        stack.callback(up.ended, code=None)
        stack.callback(up.send, signal.SIGTERM)
        up.heard("is up")
        paths = [place.root / "ipc" / server for server in ("s0", "s1")]
        proxies = [stack.enter_context(FaultProxy(path, seed, **ODDS)) for seed, path in enumerate(paths)]
        file = job_file(place, commands(place, steps), consistency=consistency)
        place.run("run", "--cluster", "lossy", "-f", str(file))
    counts = {kind: sum(proxy.counts[kind] for proxy in proxies) for kind in proxies[0].counts}
    assert min(counts.values()) > 10, f"the proxy was not in the way: {counts}"
    assert sums(place) == counted([steps] * 3)
