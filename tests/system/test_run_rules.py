"""Evaluation beside training, stop rules and the best model, with real programs: what docs/run.md promises of them."""

from __future__ import annotations

import json
import re
import shlex
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.system.run_kit import Place, place, wait_for  # noqa: F401

#: The first number falls by 0.1 a clock; the nearer to -4, the better the model.
TEST = """
import os, sys
import numpy as np
assert "PLUGML_DIR" not in os.environ
from plugml.client import attach
assert not attach(), "the same program runs alone here"
w = np.load(os.path.join(sys.argv[1], "tables.npz"))["w"]
assert len(set(w.tolist())) == 1, "not of one clock"
assert np.fromfile(os.path.join(sys.argv[1], "w.bin"), "<f4").tolist() == w.tolist()
print("looked at clock", sys.argv[2], flush=True)
print("accuracy=%.6f" % -abs(w[0] + 4))
"""


def table(directory: Path) -> float:
    return float(np.fromfile(directory / "w.bin", "<f4")[0])


def evaluation(place: Place, every: int = 10, **more: str) -> list[str]:  # noqa: F811
    place.write("test.py", TEST)
    command = more.pop("command", f"{shlex.quote(sys.executable)} test.py {{model}} {{clock}}")
    return ["--evaluate", command, "--evaluate-every", str(every), "--metric", "accuracy"]


def test_patience_ends_all_workers_at_one_clock_and_the_best_is_kept(place: Place) -> None:  # noqa: F811
    """The number grows till clock 40 and falls after that; the result is read back in every format that was asked for."""
    words = ["--patience", "3", "--keep-best", "--export", "raw,npz,csv", "--json", "--name", "early"]
    running = place.start("run", "-n", "3", "--table", "w=4,lr=0.1", *evaluation(place), *words, "--", *place.trainer(100_000, 0.02))
    done = running.ended()
    summary = json.loads(done.stdout)
    clocks = {worker["clocks"] for worker in summary["workers"]}
    assert clocks == {summary["stop_clock"]}, "all workers end at one clock"
    assert summary["state"] == "finished" and summary["stopped_by"].startswith("accuracy has not become better in 3 evaluations")
    readings = {reading["clock"]: reading["value"] for reading in summary["evaluations"]}
    for clock, value in readings.items():
        assert value == pytest.approx(-abs(-0.1 * clock + 4), abs=1e-4), "each saw the values of its clock"
    best = summary["best"]
    assert best["value"] == max(readings.values()) and readings[best["clock"]] == best["value"]
    assert list(readings) == sorted(readings) and list(readings)[-1] == summary["stop_clock"], "the final values are evaluated too"

    runs = place.directory / "plugml-runs" / "early"
    assert best["dir"] == str(runs / "best")
    kept = json.loads((runs / "best" / "result.json").read_text())
    assert (kept["clock"], kept["value"]) == (best["clock"], best["value"])
    expected = pytest.approx(-0.1 * best["clock"], abs=1e-4)
    assert table(runs / "best") == expected
    with np.load(runs / "best" / "tables.npz") as tables:
        assert tables["w"][0] == expected
    assert float((runs / "best" / "w.csv").read_text().split()[1]) == expected
    assert table(runs) == pytest.approx(-0.1 * summary["stop_clock"], abs=1e-3)
    assert place.result("early")["best"] == best
    log = (runs / "logs" / "evaluate.log").read_text()
    assert log.count("accuracy=") == len(readings) and "[eval] accuracy=" in done.stderr
    assert f"best accuracy {best['value']:g} at clock {best['clock']}, kept in {runs}/best" in done.stderr
    assert not list(runs.glob(".*")), "no tables of evaluations are left"


@pytest.mark.parametrize("consistency", ["ssp:2", "asp"])
def test_patience_where_no_clock_is_closed(place: Place, consistency: str) -> None:  # noqa: F811
    place.write("test.py", TEST.replace('assert len(set(w.tolist())) == 1, "not of one clock"', ""))
    command = f"{shlex.quote(sys.executable)} test.py {{model}} {{clock}}"
    words = ["--evaluate", command, "--evaluate-every", "10", "--metric", "accuracy", "--patience", "2", "--json", "--consistency", consistency]
    done = place.run("run", "-n", "2", "--table", "w=4,lr=0.1", *words, "--", *place.trainer(100_000, 0.02))
    summary = json.loads(done.stdout)
    assert {worker["clocks"] for worker in summary["workers"]} == {summary["stop_clock"]}
    assert done.stderr.count("not those of one clock") == 1
    assert summary["staleness"] and {row["table"] for row in summary["staleness"]} == {"w"}


def test_clocks_and_seconds_end_all_workers_at_one_clock(place: Place) -> None:  # noqa: F811
    words = ["--table", "w=4,optimizer=add", "--combine", "sum"]
    first = place.start("run", "-n", "3", *words, "--name", "clocks", "--clocks", "25", "--", *place.trainer(100_000))
    second = place.start("run", "-n", "2", *words, "--name", "seconds", "--seconds", "1.5", "--json", "--", *place.trainer(1_000_000, 0.01))
    assert first.ended().stdout.count("clock 25 first 75.0") == 3
    summary = json.loads(second.ended().stdout)
    (clock,) = {worker["clocks"] for worker in summary["workers"]}
    assert clock == summary["stop_clock"] > 10 and summary["stopped_by"] == "1.5 s are over"
    assert table(place.directory / "plugml-runs" / "seconds") == 2 * clock
    assert place.result("clocks")["stopped_by"] == "25 clocks are done"


def test_a_job_file_says_the_rules(place: Place) -> None:  # noqa: F811
    place.write("test.py", TEST)
    trainer = json.dumps(place.trainer(1_000))
    place.write(
        "job.toml",
        f"""
[job]
name = "ruled"
workers = 2
command = {trainer}
lr = 0.1
[[table]]
name = "w"
shape = 4
[evaluate]
command = [{json.dumps(sys.executable)}, "test.py", "{{model}}", "{{clock}}"]
every = 1000
metric = "accuracy=(.*)"
[stop]
clocks = 30
[result]
keep_best = true
""",
    )
    place.run("run", "-f", "job.toml")
    result = place.result("ruled")
    assert [reading["clock"] for reading in result["evaluations"]] == [30], "one that is never due is made at the end"
    assert table(place.directory / "plugml-runs" / "ruled" / "best") == table(place.directory / "plugml-runs" / "ruled")


def test_an_evaluation_that_fails_does_not_disturb_the_training(place: Place) -> None:  # noqa: F811
    command = "sh -c 'echo what went wrong >&2; exit 3'"
    done = place.run("run", "-n", "2", "--table", "w=4,lr=0.1", *evaluation(place, 10, command=command), "--clocks", "60", "--", *place.trainer(100, 0.03))
    assert re.search(r"warning: the evaluation of clock \d+ failed: exit code 3\n +what went wrong", done.stderr)
    assert done.stdout.count("clock 60 ") == 2
    assert place.result("t")["evaluations_failed"] >= 1 and place.result("t")["best"] is None


def test_ctrl_c_keeps_the_best_and_ends_the_evaluation(place: Place) -> None:  # noqa: F811
    """Its second evaluation never ends by itself, nor by SIGTERM."""
    place.write("hang.sh", 'echo "accuracy=1"; if [ -e once ]; then trap "" TERM; touch hangs; sleep 1000 & wait; sleep 1000; fi; touch once\n')
    words = [*evaluation(place, 10, command="sh hang.sh"), "--keep-best", "--name", "cut"]
    running = place.start("run", "-n", "2", "--table", "w=4,lr=0.1", *words, "--", *place.trainer(100_000, 0.01))
    wait_for(lambda: (place.directory / "hangs").exists(), "the second evaluation hangs")
    running.send(signal.SIGINT)
    running.ended(130)
    runs = place.directory / "plugml-runs" / "cut"
    best = json.loads((runs / "best" / "result.json").read_text())
    assert table(runs / "best") == pytest.approx(-0.1 * best["clock"], abs=1e-4)
    result = place.result("cut")
    assert result["best"]["clock"] == best["clock"] and result["state"] == "stopped" and table(runs) < table(runs / "best")
    assert place.is_clean()


def test_sigterm_during_the_last_evaluation_saves_and_ends_with_143(place: Place) -> None:  # noqa: F811
    words = evaluation(place, 1000, command="sh -c 'touch judging; exec sleep 1000'")
    running = place.start("run", "-n", "2", "--table", "w=4,lr=0.1", *words, "--name", "late", "--", *place.trainer(20))
    wait_for(lambda: (place.directory / "judging").exists(), "the last evaluation runs")
    running.send(signal.SIGTERM)
    done = running.ended(143)
    assert "all workers have ended already" in done.stderr
    assert place.result("late")["state"] == "finished" and table(place.directory / "plugml-runs" / "late") == pytest.approx(-2.0, abs=1e-4)


def test_check_says_what_is_evaluated_and_what_ends_the_run(place: Place) -> None:  # noqa: F811
    words = [*evaluation(place), "--patience", "2", "--clocks", "500", "--seconds", "60", "--keep-best"]
    said = place.run("run", "--table", "w=4", *words, "--check", "--", *place.trainer(1)).stdout
    assert "evaluation every 10 clocks, beside training: " in said and "reads 'accuracy'" in said
    assert "all workers end at one clock after 500 clocks, or after 60 s, or when accuracy has not become better (max) in 2 evaluations" in said
    assert "the best model (max accuracy) is kept in best/" in said and not (place.directory / "plugml-runs").exists()


def test_a_cluster_that_is_taken_down_ends_the_run_at_once(place: Place) -> None:  # noqa: F811
    place.environ["PLUGML_ROOT"] = str(place.root / "c")
    place.run("up", "-d", "--name", "lab")
    running = place.start("run", "--cluster", "lab", "-n", "2", "--table", "w=4", "--", *place.trainer(1_000_000, 0.01))
    wait_for(lambda: len(list((place.root / "c").glob("t.1.*"))) == 1, "worker 1 is plugged in")
    place.run("down", "lab", "--purge")
    assert place.is_clean(), "down returns when all is gone, though the run had its channels there till then"
    done = running.ended(None)
    assert done.code in (75, 143) and ("was taken down" in done.stderr or "was stopped from outside" in done.stderr), done.stderr
    assert "has not come back for 30 s" not in done.stderr


def test_down_waits_for_programs_that_do_not_end_at_once(place: Place) -> None:  # noqa: F811
    """Their run gives them their grace, and keeps its channels meanwhile."""
    place.environ["PLUGML_ROOT"] = str(place.root / "c")
    place.run("up", "-d", "--name", "lab")
    place.write("stubborn.sh", "trap '' TERM; echo ready; while :; do sleep 0.2; done")
    running = place.start("run", "--cluster", "lab", "--grace", "3", "--table", "w=4", "--", "sh", "stubborn.sh")
    running.heard("[w0] ready")
    place.run("down", "lab")
    assert not (place.root / "c").exists()
    assert "did not end within 3 s: SIGKILL" in running.ended(None).stderr
    place.run("down", "lab", "--purge")
