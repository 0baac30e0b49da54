"""`plugml run` from the first line to the last: results, summaries, refusals, signals, side by side."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.system.run_kit import Place, find_child, place, wait_for  # noqa: F401


def test_two_workers_train_one_model_and_the_result_is_saved(place: Place) -> None:  # noqa: F811
    done = place.run("run", "-n", "2", "--table", "w=4,lr=0.1", "--", *place.trainer(10))
    assert sorted(done.stdout.splitlines()) == [f"[w{n}] clock 10 first -1.0000001192092896" for n in (0, 1)]
    assert "2 workers, each step averages 2 gradients; lr 0.1 unchanged (linear rule: 0.2)" in done.stderr
    assert "result in" in done.stderr.splitlines()[-1]
    runs = place.directory / "plugml-runs" / "t"
    expected = np.float32(0)
    for _ in range(10):
        expected -= np.float32(0.1)
    assert np.fromfile(runs / "w.bin", "<f4").tolist() == [expected] * 4
    with np.load(runs / "tables.npz") as tables:
        assert tables["w"].tolist() == [expected] * 4
    result = place.result("t")
    assert result["state"] == "finished" and result["closed"] == 10 and [w["pushes"] for w in result["workers"]] == [10, 10]
    assert (runs / "logs" / "w1.log").read_text().startswith("clock 10")
    assert place.is_clean()


def test_a_job_file_says_it_all(place: Place) -> None:  # noqa: F811
    place.write(
        "job.toml",
        f"""
[job]
name = "mine"
consistency = "bsp"
combine = "sum"
lr = 0.5
[[worker]]
command = ["{sys.executable}", "t.py", "3", "0", "1"]
[[worker]]
command = "{sys.executable} t.py 3 0 2"
[[table]]
name = "w"
shape = 4
[result]
dir = "out-{{job}}"
""",
    )
    place.run("run", "-f", "job.toml", "--quiet")
    assert np.fromfile(place.directory / "out-mine" / "w.bin", "<f4").tolist() == [-4.5] * 4


def test_check_says_what_would_happen_and_starts_nothing(place: Place) -> None:  # noqa: F811
    done = place.run("run", "-n", "8", "--lr", "0.1", "--table", "w=10,64", "--check", "--", "sh", "-c", "true {worker}")
    for words in ("8 workers, each step averages 8 gradients; lr 0.1 unchanged (linear rule: 0.8)", "own lr is not used", "worker 7: sh -c 'true 7'"):
        assert words in done.stdout
    assert done.stdout.splitlines()[-1] == "ok" and "needed in" in done.stdout
    assert not (place.directory / "plugml-runs").exists() and place.is_clean()
    document = json.loads(place.run("run", "--table", "w=4", "--check", "--json", "--", "true").stdout)
    assert document["job"]["name"] == "true"


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["-f", "nosuch.toml", "--", "true"], 2, "nosuch.toml: No such file"),
        (["-f", "bad.toml", "--", "true"], 2, "did you mean 'consistency'?"),
        (["-f", "broken.toml", "--", "true"], 2, "no valid TOML"),
        (["-f", "deep.toml", "--", "true"], 2, "too many brackets"),
        (["-f", "zero.toml", "--table", "w=4", "--", "true"], 2, "holds a zero byte"),
        (["-n", "0", "--table", "w=4", "--", "true"], 2, "from 1 to"),
        (["--", "true"], 2, "has no table"),
        (["--table", "w=4"], 2, "nothing to run"),
        (["--tabel", "w=4", "--", "true"], 2, "--table"),
        (["--table", "w=4", "--", "./nosuch"], 127, "cannot be found"),
        (["--table", "w=4", "--", "nosuchprogram"], 127, "not found in PATH"),
        (["--table", "w=4", "--", "./t.py"], 126, "not executable"),
        (["--table", "w=4", "--cluster", "nosuch", "--", "true"], 69, "no cluster 'nosuch'"),
        (["--table", "w=14262238,1280000", "--", "true"], 73, "use fewer workers"),
        (["--table", "w=4", "--result", "t.py/x", "--", "true"], 2, "--result DIR"),
        (["--table", "w=4", "--stdin", "nosuch", "--", "true"], 2, "nosuch"),
        (["--table", "w=4", "--stdin", ".", "--", "true"], 2, "--stdin .: a directory"),
        (["-n", "2", "--table", "w=4", "--stdin", "fifo", "--", "true"], 2, "2 workers would share it"),
        (["--table", "w=4", "--", ""], 2, "the command after `--` is empty"),
        (["--table", "w=4", "--ok-exit", "x", "--", "true"], 2, "whole numbers"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(place: Place, words: list[str], code: int, says: str) -> None:  # noqa: F811
    place.write("bad.toml", "[job]\nconsistancy = 'bsp'\n")
    place.write("broken.toml", "[job\n")
    place.write("deep.toml", f"x = {'[' * 100_000}{']' * 100_000}\n")
    place.write("zero.toml", '[job]\nenv = ["A=\\u0000"]\n')
    os.mkfifo(place.directory / "fifo")
    done = place.run("run", *words, code=code)
    assert says in done.stderr and "Traceback" not in done.stderr
    assert not (place.directory / "plugml-runs").exists() and place.is_clean()


@pytest.mark.parametrize(
    ("words", "variables", "code", "says"),
    [
        (["--result", "t.py"], {}, 2, "t.py is no directory"),
        (["--result", "t.py/x"], {}, 2, "choose another place with --result DIR"),
        (["--result", "x" * 300], {}, 2, "File name too long; choose another place with --result DIR"),
        (["--name", "odd"], {}, 2, "w0 is no directory"),
        (["--checkpoint-dir", "t.py/c"], {}, 2, "t.py is no directory; choose another place with --checkpoint-dir DIR"),
        (["--evaluate", "nosuch {model}", "--evaluate-every", "3"], {}, 127, "evaluation nosuch was not found in PATH"),
        (["--evaluate", "./t.py {model}", "--evaluate-every", "3"], {}, 126, "evaluation ./t.py is not executable"),
        ([], {"XDG_STATE_HOME": "/dev/null"}, 2, "set XDG_STATE_HOME or give --state"),
        ([], {"XDG_STATE_HOME": "/" + "x" * 300}, 2, "set XDG_STATE_HOME or give --state"),
        ([], {"PLUGML_ROOT": "/dev/null"}, 73, "the channel root"),
        ([], {"PLUGML_ROOT": "/dev/shm/" + "x" * 100}, 73, "no socket fits into it"),
        (["--shard", "t.py", "--name", "folder", "--stdin", "{data}"], {}, 2, "no run has made it"),
    ],
)
def test_check_and_the_start_find_the_same(
    place: Place, words: list[str], variables: dict[str, str], code: int, says: str  # noqa: F811
) -> None:
    runs = place.directory / "plugml-runs"
    (runs / "folder" / "shards").mkdir(parents=True)
    (runs / "odd").mkdir()
    (runs / "odd" / "w0").write_text("")
    before = sorted(runs.rglob("*"))
    place.environ.update(variables)
    for more in (["--check"], []):
        done = place.run("run", *more, "--table", "w=4", *words, "--", "true", code=code)
        assert says in done.stderr and "Traceback" not in done.stderr
    left = {path.name for path in set(runs.rglob("*")) - set(before)}
    assert not left and place.is_clean()


def test_a_written_backslash_is_no_zero_byte(place: Place) -> None:  # noqa: F811
    place.write("job.toml", "[job]\ncommand = ['printf', '\\x00']\n[[table]]\nname = 'w'\nshape = [4]\n")
    assert place.run("run", "-f", "job.toml", "--check").stdout.endswith("ok\n")


def test_uneven_workers_end_by_themselves_and_are_named(place: Place) -> None:  # noqa: F811
    each = [f"{sys.executable} t.py {clocks} 0 1" for clocks in (3, 9, 9)]
    done = place.run("run", "--json", "--table", "w=4", *(word for text in each for word in ("--worker", text)))
    summary = json.loads(done.stdout)
    assert summary["uneven"] == "worker 0: 3 clocks, others 9" and summary["state"] == "finished"
    assert "[w0] clock 3" in done.stderr and "worker 0: 3 clocks, others 9" in done.stderr


def test_a_program_that_is_not_plugged_in_is_a_warning(place: Place) -> None:  # noqa: F811
    done = place.run("run", "--table", "w=4", "--", "true")
    assert "worker 0 ended with exit code 0 but never pushed" in done.stderr
    assert not (place.directory / "plugml-runs").exists(), "nothing came of it"


def test_ctrl_c_stops_the_workers_and_saves(place: Place) -> None:  # noqa: F811
    process = place.start("run", "-n", "2", "--table", "w=4,optimizer=add", "--", *place.trainer(100_000, 0.02))
    wait_for(lambda: (place.directory / "plugml-runs/t/logs/w1.log").exists(), "worker 1 has started")
    find_child(process.pid, ["t.py"], 2)
    wait_for_clocks(place, 3)
    process.send(signal.SIGINT)
    done = process.ended(130)
    assert "result in" in done.stderr
    result = place.result("t")
    value = np.fromfile(place.directory / "plugml-runs/t/w.bin", "<f4")[0]
    assert result["state"] == "stopped" and result["exit_code"] == 130
    assert value == result["closed"] >= 3, "the mean of two pushes of 1 at each closed clock, added"


def wait_for_clocks(place: Place, clocks: int) -> None:  # noqa: F811
    """Until the channel of worker 0 has answered so many requests (done_seq in its ctl page)."""

    def done_seq() -> int:
        for ctl in place.root.glob("*/*.0.*/ctl"):
            return int.from_bytes(ctl.read_bytes()[0x80:0x88], "little")
        return 0

    wait_for(lambda: done_seq() > clocks, f"{clocks} clocks")


def test_sigterm_ends_with_143_and_a_stubborn_program_is_killed(place: Place) -> None:  # noqa: F811
    place.write("stubborn.sh", "trap '' TERM; echo ready; while :; do sleep 0.2; done")
    process = place.start("run", "--grace", "1", "--table", "w=4", "--", "sh", "stubborn.sh")
    process.heard("[w0] ready")
    process.send(signal.SIGTERM)
    assert "did not end within 1 s: SIGKILL" in process.ended(143).stderr


def test_a_signal_during_the_start_leaves_no_place_behind(place: Place) -> None:  # noqa: F811
    """Whichever step it meets: the place is claimed, and nothing was pushed."""
    process = place.start("run", "--table", "w=4", "--", "sleep", "604")
    wait_for((place.directory / "plugml-runs" / "sleep").exists, "the place is claimed")
    process.send(signal.SIGTERM)
    process.ended(143)
    assert not (place.directory / "plugml-runs").exists()


def test_a_signal_among_many_starts_is_heard(place: Place) -> None:  # noqa: F811
    """Nearly all of that time the interpreter is in a fork, where hooks swallow what a handler raises."""
    process = place.start("run", "--servers", "900", "--table", "w=4", "--", "sleep", "605")
    find_child(process.pid, ["server"], 20)
    process.send(signal.SIGTERM)
    said = process.ended(143).stderr
    assert "SIGTERM before the start: nothing was run" in said and "Traceback" not in said
    assert not (place.directory / "plugml-runs").exists() and place.is_clean()


def test_the_second_ctrl_c_ends_at_once(place: Place) -> None:  # noqa: F811
    place.write("stubborn.sh", "trap '' TERM; echo ready; while :; do sleep 0.2; done")
    process = place.start("run", "--grace", "600", "--table", "w=4", "--", "sh", "stubborn.sh")
    process.heard("[w0] ready")
    process.send(signal.SIGTERM)
    process.heard("once more ends at once")
    process.send(signal.SIGINT)
    assert "ended at once, nothing saved" in process.ended(130).stderr


def test_the_second_ctrl_c_tells_of_a_result_that_was_just_being_written(place: Place) -> None:  # noqa: F811
    place.write("big.py", BIG.replace("262144", "3_000_000"))
    words = ["--table", "w=3000000,optimizer=add", "--export", "csv", "--name", "late"]
    process = place.start("run", *words, "--", sys.executable, "big.py", "2", "")
    runs = place.directory / "plugml-runs" / "late"
    wait_for(lambda: list(runs.glob(".saving-*/w.csv")), "the result is being written")
    process.send(signal.SIGINT)
    process.heard("all workers have ended already")
    process.send(signal.SIGINT)
    done = process.ended(130)
    assert "nothing saved" not in done.stderr and f"result in {runs}: w.csv, result.json" in done.stderr
    assert (runs / "w.csv").stat().st_size == 3 + 3_000_000 * 4 and not list(runs.glob(".saving-*"))


def test_two_runs_side_by_side_in_one_directory(place: Place) -> None:  # noqa: F811
    both = [place.start("run", "-n", "2", "--table", "w=4,optimizer=add", "--", *place.trainer(20, 0.01, g)) for g in (1, 2)]
    for process in both:
        process.ended()
    values = sorted(float(np.fromfile(path, "<f4")[0]) for path in (place.directory / "plugml-runs").glob("*/w.bin"))
    assert values == [20, 40]


def test_the_same_name_twice_at_once_is_an_error(place: Place) -> None:  # noqa: F811
    process = place.start("run", "--name", "mine", "--table", "w=4", "--", "sh", "-c", "echo ready; sleep 600")
    process.heard("[w0] ready")
    assert "another run is using" in place.run("run", "--name", "mine", "--table", "w=4", "--", "true", code=2).stderr
    process.send(signal.SIGINT)
    process.ended(130)


def test_names_and_arguments_pass_unharmed(place: Place) -> None:  # noqa: F811
    odd = place.directory / "my data ä'$x;"
    odd.mkdir()
    place.directory = odd
    place.write("show.py", "import json, os, sys\nprint(json.dumps([sys.argv[1:], os.getcwd(), os.environ['ODD']]))\n")
    argv = ["", "a b", "it's", "x&y", "*", "$HOME", "{worker}", '{"k": 1}', "two\nlines", "-v", "--"]
    place.environ |= {"ODD": "a\nb", "BASH_FUNC_f%%": "() {  echo hi\n}"}
    done = place.run("run", "-n", "2", "--table", "w=4", "--", sys.executable, "show.py", *argv)
    shown = dict(line.split("] ", 1) for line in done.stdout.splitlines())
    for worker in (0, 1):
        got, where, variable = json.loads(shown[f"[w{worker}"])
        assert got == [*argv[:6], str(worker), *argv[7:]] and where == str(odd) and variable == "a\nb"


def test_every_program_is_told_who_it_is(place: Place) -> None:  # noqa: F811
    place.environ |= {"PMI_RANK": "9", "SLURM_PROCID": "9"}
    words = ["run", "-n", "2", "--seed", "5", "--env", "A=b c", "--table", "w=3", "--table", "v=2,optimizer=add"]
    done = place.run(*words, "--", "sh", "-c", "env > $PLUGML_OUT/env; echo {seed} {out}")
    for worker in (0, 1):
        out = place.directory / "plugml-runs" / "sh" / f"w{worker}"
        variables = dict(line.split("=", 1) for line in (out / "env").read_text().splitlines() if "=" in line)
        assert variables["PLUGML_WORKER"] == str(worker) and variables["PLUGML_WORKERS"] == "2" and variables["PLUGML_GEN"] == "1"
        assert variables["PLUGML_JOB"] == "sh" and variables["PLUGML_ELEMENTS"] == "5" and variables["PLUGML_CLOCK"] == "0"
        assert variables["A"] == "b c" and variables["PYTHONUNBUFFERED"] == "1"
        assert not {"PMI_RANK", "SLURM_PROCID", "RANK", "WORLD_SIZE"} & set(variables)
        assert f"[w{worker}] {variables['PLUGML_SEED']} {out}" in done.stdout
    assert len({line.split()[1] for line in done.stdout.splitlines()}) == 2, "each worker has a seed of its own"


@pytest.mark.parametrize(("workers", "threads"), [(1, 2), (2, 1), (3, 1)])
def test_threads_share_the_cpus(place: Place, workers: int, threads: int, does_not_apply: Any) -> None:  # noqa: F811
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        does_not_apply("one CPU only")
    words = ["--table", "w=4", "--", "sh", "-c", "echo $OMP_NUM_THREADS $MKL_NUM_THREADS"]
    done = place.run("run", "-n", str(workers), *words, preexec_fn=lambda: os.sched_setaffinity(0, cpus[:2]))
    assert sorted(done.stdout.splitlines()) == [f"[w{n}] {threads} {threads}" for n in range(workers)]
    assert done.stderr.count("NUM_THREADS=") == 1
    place.environ["OMP_NUM_THREADS"] = "5"
    done = place.run("run", *words)
    assert done.stdout == "[w0] 5\n" and "NUM_THREADS" not in done.stderr


def test_a_full_disk_is_an_error_and_keeps_the_earlier_result(place: Place, tmp_path: Path, does_not_apply: Any) -> None:  # noqa: F811
    small = tmp_path / "small"
    small.mkdir()
    if os.getuid() != 0 or os.system(f"mount -t tmpfs -o size=6m none {small} 2>/dev/null") != 0:
        does_not_apply("only root can mount a small file system")
    try:
        words = ["run", "--result", str(small / "r"), "--table", "w=262144,optimizer=add", "--"]
        place.write("big.py", BIG)
        place.run(*words, sys.executable, "big.py", "1", "")
        done = place.run(*words, sys.executable, "big.py", "2", str(small / "filler"), code=1)
        assert "could not be saved in" in done.stderr and "is full" in done.stderr
        rescued = Path(done.stderr.split("result in ")[1].split(": ")[0])
        document = json.loads((rescued / "result.json").read_text())
        assert (document["state"], document["exit_code"]) == ("failed", 1) and "could not be saved in" in document["rescued"]
        assert rescued.parent == place.state / "plugml-rescued" and np.fromfile(rescued / "w.bin", "<f4").tolist() == [2.0] * 262144
        assert np.fromfile(small / "r" / "w.bin", "<f4").tolist() == [1.0] * 262144, "the earlier result"
        assert sorted(path.name for path in (small / "r").iterdir()) == ["result.json", "tables.npz", "w.bin"]
        done = place.run(*words, sys.executable, "big.py", "2", "", code=2)
        assert "choose another place with --result DIR" in done.stderr, "what is known beforehand is refused beforehand"
        (small / "filler").unlink()
        assert os.system(f"mount -o remount,ro {small}") == 0
        for more in (["--check"], []):
            done = place.run("run", *more, "--result", str(small / "r"), "--table", "w=4", "--", "true", code=2)
            assert "is read-only; choose another place with --result DIR" in done.stderr
    finally:
        os.system(f"umount {small}")


BIG = """
import os, sys
import numpy as np
from plugml.client import attach
plug = attach()
w = np.zeros(262144, dtype=np.float32)
for clock in plug.clocks(1):
    plug.step(np.full(262144, float(sys.argv[1]), dtype=np.float32), w)
if sys.argv[2]:
    with open(sys.argv[2], "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
"""
