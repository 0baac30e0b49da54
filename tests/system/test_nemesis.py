"""A minute of the nemesis: whatever is done to the cluster, nothing is lost, doubled or too old, and everybody goes on.

`python -m tests.system.nemesis --minutes 10` does it longer, and draws what the faults cost (docs/nemesis.md).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.conftest import require
from tests.system.nemesis import program
from tests.system.nemesis.__main__ import nemesis
from tests.system.nemesis.chart import chart
from tests.system.nemesis.jobs import WORKERS, row_sums, sums
from tests.system.nemesis.net import TOOLS, Net

SECONDS = 60.0
SEED = 7


@pytest.mark.usefixtures("no_leaks")
def test_nothing_is_lost_and_nobody_hangs_whatever_is_done_for_a_minute(tmp_path: Path, does_not_apply: Callable[[str], None]) -> None:
    if os.geteuid():
        does_not_apply("only root can make network namespaces")
    for tool in ("etcd", *TOOLS):
        require(tool)
    try:
        with Net(["a", "b"]) as net:
            net.cut("a", "b")
    except subprocess.CalledProcessError as error:
        does_not_apply(f"this place gives no network namespaces, or none with nft: {error}")
    picture = tmp_path / "throughput.svg"
    assert nemesis(SECONDS, SEED, picture) == []
    assert len(ElementTree.parse(picture).getroot()) > 10


def test_the_picture_shows_each_job_and_each_fault() -> None:
    samples = [(0.1 * i, [i, 2 * i]) for i in range(100)]
    root = ElementTree.fromstring(chart(["bsp", "asp"], samples, [(1.0, 2.0, "a server", "kill -9 of s0 & <others>")]))
    words = [element.text for element in root.iter() if element.text]
    assert any("bsp: steps per second, at most 10" in word for word in words) and "kill -9 of s0 & <others>" in words
    assert sum(element.tag.endswith("polyline") for element in root) == 2


def test_the_sums_are_what_the_program_pushes() -> None:
    clocks = [7, 5]
    counted = np.zeros(WORKERS + program.MIXED, np.int64)
    rows = np.zeros((WORKERS * program.ROWS, 2), np.int64)
    for worker, count in enumerate(clocks):
        for clock in range(count):
            counted[worker] += 1
            counted[WORKERS:] += program.mixed(worker, clock)
            for key, value in zip(*program.rows(worker, clock)):
                rows[int(key)] += value
    assert np.array_equal(sums(clocks), counted)
    table = row_sums(clocks)
    assert np.array_equal(table[:, 1:], rows[table[:, 0]]) and rows.any(axis=1).sum() <= len(table) and not np.delete(rows, table[:, 0], axis=0).any()
