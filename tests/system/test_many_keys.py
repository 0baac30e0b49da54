"""Ten thousand random u64 keys, fifty pushes each from C, Python and R at once: every push counts exactly once.

The check of ps-lite's test_kv_app, in several languages, and behind a proxy that loses, doubles and delays messages.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import ExitStack

import numpy as np
import pytest

from tests.conftest import require
from tests.system.fault_proxy import FaultProxy
from tests.system.run_kit import ROOT, Place, place  # noqa: F401

HERE = ROOT / "tests" / "system" / "keys"
KEYS, PUSHES = 10_000, 50


def commands(place: Place, keys: str, pushes: int) -> list[list[str]]:  # noqa: F811
    """Four workers: C twice, Python, R."""
    require("cc")
    require("Rscript")
    client = ROOT / "clients" / "c"
    program = str(place.directory / "keys")
    subprocess.run(["cc", "-O2", "-I", str(client), str(HERE / "keys.c"), str(client / "plugml.c"), "-o", program], check=True)
    place.environ["PLUGML_R"] = str(ROOT / "clients/r/plugml.R")
    words = [keys, str(pushes)]
    return [[program, *words], [sys.executable, str(HERE / "keys.py"), *words], ["Rscript", str(HERE / "keys.R"), *words], [program, *words]]


@pytest.mark.parametrize(("lossy", "consistency"), [(False, "bsp"), (False, "asp"), (True, "ssp:2")])
def test_every_push_to_every_key_counts_once(place: Place, lossy: bool, consistency: str) -> None:  # noqa: F811
    keys = np.unique(np.random.default_rng(7).integers(0, 1 << 64, KEYS, np.uint64, endpoint=False))
    np.random.default_rng(8).shuffle(keys)
    file = place.directory / "keys.txt"
    file.write_text("".join(f"{key}\n" for key in keys.tolist()))
    lines = ["[job]", 'name = "keys"', f'consistency = "{consistency}"', 'combine = "sum"', "[[table]]", 'name = "e"', "width = 1"]
    lines += ['dtype = "f64"', 'optimizer = "add"']
    for command in commands(place, str(file), PUSHES):
        lines += ["[[worker]]", f"command = {json.dumps(command)}"]
    place.write("job.toml", "\n".join(lines) + "\n")

    up = place.start("up", "--servers", "2", "--name", "keys")
    with ExitStack() as stack:
        stack.callback(up.ended, code=None)
        stack.callback(up.send, signal.SIGTERM)
        up.heard("is up")
        paths = [place.root / "ipc" / server for server in ("s0", "s1")] if lossy else []
        proxies = [stack.enter_context(FaultProxy(path, seed, 0.1, 0.1, 0.1)) for seed, path in enumerate(paths)]
        place.run("run", "--cluster", "keys", "-f", "job.toml")
    for proxy in proxies:
        assert min(proxy.counts.values()) > 10, f"the proxy was not in the way: {proxy.counts}"

    result = place.directory / "plugml-runs" / "keys"
    with np.load(result / "tables.npz") as tables:
        rows, values = tables["e/rows"], tables["e"]
    order = np.argsort(keys)
    assert (rows == keys[order]).all()
    assert (values[:, 0] == (order + 1) * float(PUSHES * 4)).all()
