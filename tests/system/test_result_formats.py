"""A result reads back in numpy, R and C as docs/result.md says: its examples are run on one, as they stand."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plugml.launch.export import FORMATS
from plugml.launch.plan import make_plan
from plugml.launch.result import publish
from tests.system import reading
from tests.system.reading import Tables
from tests.system.run_kit import Place, place  # noqa: F401

IDS = [5, 0, 999_999]
KEYS = ["zebra", "b,c", "apfel", "äpfel", "NA", "a"]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tables]:
    """One result in all formats, from raw files as an agent leaves them, and what is in it."""
    top = tmp_path_factory.mktemp("result")
    scratch, directory = top / ".saving", top / "r"
    scratch.mkdir()
    directory.mkdir()
    rng = np.random.default_rng(0)
    w, m = rng.standard_normal((2, 3)), rng.standard_normal((2, 3)).astype("<f4")
    e, s = (rng.standard_normal((count, 2)).astype("<f4") for count in (len(IDS), len(KEYS)))
    (scratch / "w.bin").write_bytes(w.tobytes())
    (scratch / "m.bin").write_bytes(m.tobytes(order="F"))
    (scratch / "e.bin").write_bytes(e.tobytes())
    (scratch / "e.idx").write_bytes(np.array(IDS, "<u4").tobytes())
    (scratch / "s.bin").write_bytes(s.tobytes())
    (scratch / "s.keys").write_bytes("".join(f"{key}\n" for key in KEYS).encode())
    plan = make_plan({}, "job.toml", {"tables": reading.OPTIONS, "argv": ["true"]}, str(top))
    publish(plan.spec.tables, scratch, directory, {}, FORMATS)
    by_key = dict(sorted(zip(KEYS, s), key=lambda pair: pair[0].encode()))
    return directory, Tables(w, m, dict(sorted(zip(IDS, e))), by_key)


def test_in_numpy(result: tuple[Path, Tables], monkeypatch: pytest.MonkeyPatch) -> None:
    reading.check_numpy(*result, monkeypatch)


def test_in_r(result: tuple[Path, Tables], require: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    require("Rscript")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    reading.check_r(*result)


def test_in_c(result: tuple[Path, Tables], require: Callable[[str], None], tmp_path: Path) -> None:
    require("gcc")
    reading.check_c(result[0], tmp_path, result[1])


def test_the_example_names_every_format_and_table() -> None:
    assert len(reading.OPTIONS) == 4
    for name in FORMATS:
        assert f"| `{name}` |" in reading.DOCUMENT


# -- a whole run ------------------------------------------------------------------------------------------------------

TRAINER = """
import sys, time
import numpy as np
from plugml.client import attach
from pushes import pushes
plug = attach()
for clock in plug.clocks(100_000):
    plug.step(pushes(int(sys.argv[1]), clock))
    time.sleep(0.01)
"""
PUSHES = """
import numpy as np
IDS, KEYS = [5, 0, 999_999], ["zebra", "b,c", "apfel", "\\u00e4pfel", "a"]
def pushes(worker, clock):
    rng = np.random.default_rng([worker, clock])
    rows, keys = rng.choice(3, 2, replace=False), rng.choice(5, 3, replace=False)
    return {
        "w": rng.standard_normal((2, 3)), "m": np.asfortranarray(rng.standard_normal((2, 3)).astype("f4")),
        "e": (np.array(IDS)[rows], rng.standard_normal((2, 2)).astype("f4")),
        "s": ([KEYS[n] for n in keys], rng.standard_normal((3, 2)).astype("f4")),
    }
"""


def modelled(pushes: Callable[[int, int], dict[str, Any]], clocks: int) -> Tables:
    """The tables after so many clocks of two workers: the pushes of a clock are added up in order, then to the values."""
    w, m = np.zeros((2, 3)), np.zeros((2, 3), "f4")
    rows: dict[str, dict[Any, Any]] = {"e": {}, "s": {}}
    for clock in range(clocks):
        both = [pushes(worker, clock) for worker in (0, 1)]
        w = w + (both[0]["w"] + both[1]["w"])
        m = m + (both[0]["m"] + both[1]["m"])
        for name, table in rows.items():
            sums: dict[Any, Any] = {}
            for push in both:
                for row, values in zip(np.asarray(push[name][0]).tolist(), push[name][1]):
                    sums[row] = sums[row] + values if row in sums else values
            for row, values in sums.items():
                table[row] = table.get(row, np.zeros(2, "f4")) + values
    by_key = dict(sorted(rows["s"].items(), key=lambda pair: pair[0].encode()))
    return Tables(w, m, dict(sorted(rows["e"].items())), by_key)


def test_the_best_model_that_a_stop_rule_kept_reads_back(
    place: Place, require: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path  # noqa: F811
) -> None:  # fmt: skip
    """An evaluation prints a metric that is best near clock 20; patience ends both workers at one clock; three languages read best/."""
    for tool in ("Rscript", "gcc"):
        require(tool)
    place.write("t.py", TRAINER)
    place.write("pushes.py", PUSHES)
    place.write("judge.py", "import sys; print('score', -abs(int(sys.argv[1]) - 20))")
    tables = [word for option in reading.OPTIONS for word in ("--table", option)]
    done = place.run(
        "run", "--name", "best", "-n", "2", *tables, "--optimizer", "add", "--combine", "sum", "--export", "raw,npz,safetensors,csv",
        "--evaluate", f"{sys.executable} judge.py {{clock}}", "--evaluate-every", "10", "--metric", "score", "--patience", "2",
        "--keep-best", "--json", "--", sys.executable, "t.py", "{worker}",
    )  # fmt: skip
    summary = json.loads(done.stdout)
    assert len({worker["clocks"] for worker in summary["workers"]}) == 1 and summary["state"] == "finished"
    result = place.directory / "plugml-runs" / "best"
    best = json.loads((result / "best" / "result.json").read_text())
    clock = summary["best"]["clock"]
    assert abs(clock - 20) == min(abs(entry["clock"] - 20) for entry in summary["evaluations"])
    assert set(best["sums"]) == set(json.loads((result / "result.json").read_text())["sums"]) and len(best["sums"]) == 12

    found: dict[str, Any] = {}
    exec(PUSHES, found)
    wanted = modelled(found["pushes"], clock)
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    reading.check_numpy(result / "best", wanted, monkeypatch)
    reading.check_r(result / "best", wanted)
    reading.check_c(result / "best", tmp_path, wanted)
    reading.check_numpy(result, modelled(found["pushes"], summary["workers"][0]["clocks"]), monkeypatch)
    assert place.run("inspect", str(result / "best")).code == 0
