"""What people who do this job ran into elsewhere, about sizes: more bytes than 32 bits count, and none at all."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.system.counting import agent_pid, await_channel, node_pid, root_of
from tests.system.run_kit import Place, place, wait_for  # noqa: F401

ROWS, WIDTH = 14_262_238, 128

HUGE = """
import os, sys, time
import numpy as np
from plugml.client import attach
plug = attach()
rows = np.array([0, 8388607, 8388608, 14262237], "<u4")  # the third begins at byte 2^32
beside = np.array([1, 8388606, 8388609, 14262236], "<u4")
got = plug.step({"e": (rows, np.ones((4, 128), "<f4"))}, want={"e": np.concatenate([rows, beside])})["e"]
assert got.shape == (8, 128) and (got[:4] == 1).all() and (got[4:] == 0).all(), got
open("ready", "w").close()
while not os.path.exists("go"):
    time.sleep(0.02)
try:
    plug.pull(want={"e": np.array([14262238], "<u4")})
except Exception as error:
    print(error)
"""


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_table_of_more_than_4_gib_takes_the_room_of_its_rows(place: Place) -> None:  # noqa: F811
    """Four rows on both sides of byte 2^32: they and only they change, and the result keeps their numbers."""
    place.write("huge.py", HUGE)
    words = ["--name", "count", "--table", f"e=sparse:f32,width={WIDTH},rows={ROWS},optimizer=add"]
    running = place.start("run", *words, "--", sys.executable, "huge.py")
    await_channel(running, place.root, "count.0.1")
    root = root_of(place)
    wait_for(lambda: (place.directory / "ready").exists() or running.process.poll() is not None, "it has pushed")
    assert running.process.poll() is None, running.stdout + running.stderr
    taken = {name: resident(pid) for name, pid in (("server", node_pid(running, "server")), ("agent", agent_pid(root)))}
    place.write("go", "")
    done = running.ended()
    assert all(nbytes < 400 << 20 for nbytes in taken.values()), taken
    assert "RANGE" in done.stdout and "14262238" in done.stdout
    runs = place.directory / "plugml-runs" / "count"
    assert np.fromfile(runs / "e.idx", "<u4").tolist() == [0, 8388607, 8388608, 14262237]
    assert np.fromfile(runs / "e.bin", "<f4").tolist() == [1.0] * (4 * WIDTH)


@pytest.mark.parametrize("check", [True, False])
def test_the_same_table_dense_is_refused_with_bytes_needed_and_there(place: Place, check: bool) -> None:  # noqa: F811
    """4,000 workers of it fit nowhere: nothing is started, nothing wraps around."""
    words = ["-n", "4000", "--name", "dense", "--table", f"w={ROWS},{WIDTH}", *["--check"] * check]
    done = place.run("run", *words, "--", sys.executable, "t.py", "1", "0", "1", code=73)
    found = re.search(r"the channels of 4,?000 workers need ([\d.]+) TiB, and \S+ has [\d.]+ \w+ free", done.stderr)
    assert found and float(found.group(1)) == round(2 * 4 * ROWS * WIDTH * 4000 / (1 << 40), 1), done.stderr
    assert place.is_clean() and not (place.directory / "plugml-runs").exists()


NONE = """
import numpy as np
from plugml.client import attach
plug = attach()
none = np.zeros(0, "<u4")
got = plug.step({"a": (none, np.zeros((0, 3), "<f4")), "b": (np.array([5, 9], "<u4"), np.array([[1, 2], [3, 4]], "<f4"))}, want={"a": none, "b": np.array([9], "<u4")})
assert got["a"].shape == (0, 3) and got["b"].tolist() == [[3, 4]], got
got = plug.step({"a": (none, np.zeros((0, 3), "<f4")), "b": (none, np.zeros((0, 2), "<f4"))}, want={"a": none, "b": none})
assert got["a"].shape == (0, 3) and got["b"].shape == (0, 2), got
print("fine")
"""


def test_no_rows_at_all_shift_nobody(place: Place) -> None:  # noqa: F811
    place.write("none.py", NONE)
    words = ["--table", "a=sparse,width=3,rows=10,optimizer=add", "--table", "b=sparse,width=2,rows=10,optimizer=add", "--name", "none"]
    assert "fine" in place.run("run", *words, "--", sys.executable, "none.py").stdout
    runs = place.directory / "plugml-runs" / "none"
    assert np.fromfile(runs / "b.idx", "<u4").tolist() == [5, 9] and np.fromfile(runs / "b.bin", "<f4").tolist() == [1, 2, 3, 4]
    assert (runs / "a.bin").stat().st_size == (runs / "a.idx").stat().st_size == 0


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("e=sparse,width=4,rows=0", "table 'e': rows = 0; from 1 on"),
        ("e=sparse,width=0", "table 'e': width = 0; from 1 on"),
        ("w=0", "table 'w': shape [0] must be"),
        ("w=3,0", "table 'w': shape [3, 0] must be"),
    ],
)
def test_a_table_of_nothing_is_refused_by_its_name(place: Place, table: str, says: str) -> None:  # noqa: F811
    assert says in place.run("run", "--table", table, "--check", "--", "true", code=2).stderr
