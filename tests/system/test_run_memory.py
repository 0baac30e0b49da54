"""What a job may take of the servers' memory: rows beyond it are refused by name, and a model that cannot fit is refused before the start."""

from __future__ import annotations

import json
import re
import sys

import numpy as np
import pytest

from plugml.launch.host import free_memory
from tests.system.run_kit import Place, place  # noqa: F401

ROWS = 1_000
TRAINER = f"""
import sys
import numpy as np
from plugml.client import ChannelError, attach
plug = attach()
try:
    for clock in plug.clocks(1_000):
        plug.step({{"deep": (np.arange(clock * {ROWS}, (clock + 1) * {ROWS}), np.full(({ROWS}, 16), clock + 1, "f4"))}})
except ChannelError as error:
    print("refused", error.code.name, error)
    got = plug.pull(want={{"deep": np.array([0, {ROWS} * clock])}})["deep"]
    print("still", got[0, 0] != 0, got[1, 0] == 0)
    sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize("servers", [1, 2])
def test_rows_beyond_the_jobs_memory_are_refused_with_table_and_limit(place: Place, servers: int) -> None:  # noqa: F811
    """1 MiB holds 5 pushes of 1,000 rows of 16 f32 with the state of adam (192 bytes a row) on one server."""
    place.write("t.py", TRAINER)
    limit = 1 << 20
    words = ["--memory", "1MiB", "--optimizer", "adam", "--servers", str(servers), "--copies", "1", "--table", "deep=sparse,width=16", "--name", "deep"]
    done = place.run("run", *words, "--", sys.executable, "t.py", "0")
    (line,) = re.findall(r"refused NOSPC .*", done.stdout)
    assert "table 'deep'" in line and f"share of {limit // servers}" in line, line
    assert "still True True" in done.stdout  # the channel serves on, and nothing of that push was applied
    assert "refused: NOSPC at clock" in done.stderr and "table 'deep'" in done.stderr
    result = place.directory / "plugml-runs" / "deep"
    rows = np.fromfile(result / "deep.idx", "<u8")
    clocks = json.loads((result / "result.json").read_text())["workers"][0]["clocks"]
    assert np.array_equal(rows, np.arange(clocks * ROWS)) and 1 <= clocks <= limit // (ROWS * 192)


def test_a_job_that_ends_for_want_of_memory_keeps_what_it_has(place: Place) -> None:  # noqa: F811
    place.write("t.py", TRAINER)
    words = ["--memory", "1MiB", "--optimizer", "adam", "--table", "deep=sparse,width=16", "--name", "deep"]
    done = place.run("run", *words, "--", sys.executable, "t.py", "9", code=9)
    assert "its last error from plugml: NOSPC" in done.stderr and "exit code 9 is that of worker 0" in done.stderr
    assert len(np.fromfile(place.directory / "plugml-runs" / "deep" / "failed" / "deep.idx", "<u8")) == 5 * ROWS


def test_a_dense_model_beyond_the_jobs_memory_starts_nothing(place: Place) -> None:  # noqa: F811
    done = place.run("run", "--memory", "1MiB", "--optimizer", "adam", "--table", "w=100000", "--", sys.executable, "t.py", code=2)
    assert "memory = 1.0 MiB, and the dense tables need 1.1 MiB for values and optimizers" in done.stderr
    assert not (place.directory / "plugml-runs").exists()


def test_a_dense_model_beyond_this_hosts_memory_starts_nothing(place: Place) -> None:  # noqa: F811
    """Adam in f64 takes 24 bytes a number, and a worker's channel 8: together more than there is."""
    count = free_memory() // 28
    done = place.run("run", "--export", "raw", "--table", f"w={count},optimizer=adam,storage=f64", "--", sys.executable, "t.py", code=1)
    found = re.search(r"servers need ([\d.]+ [KMGT]iB) for values and optimizers, channels ([\d.]+ [KMGT]iB), and this host has ([\d.]+ [KMGT]iB) of memory free", done.stderr)
    assert found and "[w0]" not in done.stdout, done.stderr
    assert not (place.directory / "plugml-runs").exists()
    told = place.run("run", "--check", "--export", "raw", "--table", f"w={count // 100},optimizer=adam,storage=f64", "--", "true").stdout
    assert "needed for values and optimizers" in told
