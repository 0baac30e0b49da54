"""Runs that are stopped or killed and go on from a checkpoint: the same numbers to the last bit as one that never stopped."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plugml.runtime import checkpoints
from tests.system.run_kit import Place, Running, end_pid, find_child, place, wait_for  # noqa: F401

#: Each step depends on the values, the worker and the clock: whatever was lost, doubled or mixed up shows.
TRAINER = """
import sys, time
import numpy as np
from plugml.client import attach
n, s = int(sys.argv[1]), float(sys.argv[2])
plug = attach()
w = np.zeros(4000, dtype=np.float32)
plug.pull(w)
print("begins at clock", plug.clock, flush=True)
for clock in plug.clocks(n):
    time.sleep(s)
    plug.step(np.sin(w * (1 + plug.worker) + clock + np.arange(4000) / 999).astype(np.float32), w)
    print("did", clock + 1, flush=True)
"""
ONES = """
import sys, time
import numpy as np
from plugml.client import attach
plug = attach()
n = np.zeros(4, np.int64)
plug.pull(n)
for clock in plug.clocks(int(sys.argv[1])):
    time.sleep(0.03)
    plug.step(np.ones(4, np.int64), n)
    print("did", clock + 1, flush=True)
plug.bye()
"""
RUN = ("run", "-n", "2", "--name", "job", "--table", "w=4000,optimizer=adam,lr=0.05")


@pytest.fixture
def desk(place: Place) -> Place:  # noqa: F811
    place.write("train.py", TRAINER)
    return place


def trainer(clocks: int, sleep: float = 0.05) -> list[str]:
    return ["--", sys.executable, "train.py", str(clocks), str(sleep)]


def weights(desk: Place, job: str = "job") -> bytes:
    return (desk.directory / "plugml-runs" / job / "w.bin").read_bytes()


def whole_run(desk: Place, clocks: int) -> bytes:
    """The weights of a run that nobody stops."""
    desk.run(*RUN, *trainer(clocks, 0.0))
    found = weights(desk)
    shutil.rmtree(desk.directory / "plugml-runs")
    return found


def root_of(desk: Place) -> Path:
    return desk.directory / "plugml-runs" / "job" / "checkpoints"


def kept(desk: Place) -> int:
    """Clock of the newest one that is whole, 0 = there is none."""
    found, _ = checkpoints.newest(root_of(desk))
    return found.clock if found is not None else 0


def killed(running: Running, desk: Place) -> None:
    """Every process, and all that masters and servers have stored."""
    running.send(signal.SIGKILL)
    running.ended(-signal.SIGKILL)
    wait_for(desk.is_clean, "what was killed is swept away")


def test_all_is_killed_and_a_run_on_fewer_servers_goes_on(desk: Place) -> None:
    wanted = whole_run(desk, 40)
    running = desk.start(*RUN, "--servers", "4", "--checkpoint-every", "6", *trainer(40))
    running.heard("did 21")
    wait_for(lambda: kept(desk) >= 18, "a checkpoint of clock 18")
    killed(running, desk)
    clock = kept(desk)
    done = desk.run(*RUN, "--servers", "3", "--checkpoint-every", "6", "--resume", str(root_of(desk)), *trainer(40))
    assert f"[w0] begins at clock {clock}" in done.stdout and f"going on from the checkpoint of clock {clock}" in done.stderr
    assert weights(desk) == wanted
    assert kept(desk) > clock, "and makes its own"


def test_sigterm_makes_one_and_resume_auto_goes_on(desk: Place) -> None:
    wanted = whole_run(desk, 40)
    running = desk.start(*RUN, "--servers", "2", "--resume", "auto", *trainer(40))
    running.heard("did 7")
    running.send(signal.SIGUSR1)
    running.heard("plugml: checkpoint of clock")
    running.send(signal.SIGTERM)
    said = running.ended(75).stderr
    assert "has no checkpoint that is whole; the run begins at clock 0" in said and "run again with --resume auto" in said
    assert desk.result("job")["exit_code"] == 75 and len(checkpoints.numbers(root_of(desk))) == 2
    clock = kept(desk)
    assert f"[w1] begins at clock {clock}" in desk.run(*RUN, "--resume", "auto", *trainer(40, 0.0)).stdout
    assert weights(desk) == wanted


def test_somebody_else_asks_for_one_and_is_told_which_it_is(desk: Place) -> None:
    running = desk.start(*RUN, *trainer(1_000))
    running.heard("did 3")
    assert "there is no running job 'jib'; those that run: job" in desk.run("checkpoint", "jib", code=1).stderr
    told = json.loads(desk.run("checkpoint", "job", "--json").stdout)
    assert told["number"] == 1 and told["clock"] == kept(desk) >= 3 and Path(told["dir"]) == root_of(desk) / "000001"
    assert desk.run("checkpoint", "job").stdout.startswith("checkpoint 2 of job job is that of clock ")
    assert kept(desk) > told["clock"]
    killed(running, desk)
    clock = kept(desk)
    assert f"[w0] begins at clock {clock}" in desk.run(*RUN, "--resume", "auto", *trainer(clock + 2, 0.0)).stdout


def test_a_run_that_comes_to_its_end_after_sigterm_does_not_end_with_0(desk: Place) -> None:
    """The last clock is done before the checkpoint behind it is."""
    desk.write("slow.py", TRAINER.replace('print("did"', 'time.sleep(2 if clock == 2 else 0); print("did"'))
    running = desk.start(*RUN, "--grace", "60", "--", sys.executable, "slow.py", "3", "0")
    running.heard("did 2")
    running.send(signal.SIGTERM)
    assert running.ended(None).code in (75, 143)


def test_what_differs_is_named_and_what_may_differ_does(desk: Place) -> None:
    desk.run(*RUN, "--checkpoint-every", "3", *trainer(7, 0.1))
    base = ["run", "-n", "2", "--name", "job", "--resume", "auto"]
    table = "w=4000,optimizer=adam,lr=0.05"
    for words, text in (
        (["--table", table, "--seed", "4"], "seed = 0, here 4"),
        (["--table", "w=3999,optimizer=adam"], "table 'w' has shape"),
        (["--table", "w=4000,optimizer=momentum"], "table 'w' has optimizer"),
        (["--table", "v=4000,optimizer=adam"], "its tables are w, here v"),
        (["--table", table, "--consistency", "asp"], "table 'w' is bsp, here asp"),
    ):
        said = desk.run(*base, *words, *trainer(9, 0.0), code=2).stderr
        assert "is of another job" in said and text in said, said
    done = desk.run(*base, "--table", "w=4000,optimizer=adam,lr=0.01", "--check", *trainer(9, 0.0))
    assert "going on from the checkpoint of clock 6" in done.stdout
    assert "checkpoints of an earlier run" in desk.run(*RUN, *trainer(2, 0.0)).stderr


def test_another_number_of_workers_goes_on_where_all_stood(desk: Place) -> None:
    """Every worker pushes 1 in every clock: the sum tells how many took part in each."""
    desk.write("ones.py", ONES)
    words = ("--name", "ones", "--table", "n=4:i64,optimizer=add", "--resume", "auto", "--", sys.executable, "ones.py", "30")
    running = desk.start("run", "-n", "2", *words)
    running.heard("did 4")
    running.send(signal.SIGTERM)
    assert "checkpoint of clock" in running.ended(75).stderr
    newest, _ = checkpoints.newest(desk.directory / "plugml-runs" / "ones" / "checkpoints")
    assert newest is not None
    assert "5 workers instead of 2: programs find another `workers`" in desk.run("run", "-n", "5", *words).stderr
    found = np.fromfile(desk.directory / "plugml-runs" / "ones" / "n.bin", np.int64)
    assert set(found.tolist()) == {2 * newest.clock + 5 * (30 - newest.clock)}


def test_damage_is_found_before_the_start(desk: Place) -> None:
    desk.run(*RUN, "--checkpoint-every", "3", *trainer(7, 0.1))
    files = sorted((root_of(desk) / "000002").glob("r*.safetensors"))
    data = bytearray(files[0].read_bytes())
    data[len(data) // 2] ^= 1
    files[0].write_bytes(data)
    said = desk.run(*RUN, "--resume", str(root_of(desk) / "000002"), *trainer(9, 0.0), code=1).stderr
    assert "damaged" in said and f"clock 3 is whole: --resume {root_of(desk) / '000001'}" in said
    done = desk.run(*RUN, "--resume", "auto", *trainer(9, 0.0))
    assert "damaged" in done.stderr and "[w0] begins at clock 3" in done.stdout
    assert "has no manifest.json" in desk.run(*RUN, "--resume", "nowhere", *trainer(9), code=1).stderr


def status_of(desk: Place, cluster: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(desk.run("status", "--json", "--cluster", cluster).stdout)
    return found


@pytest.fixture
def small(desk: Place) -> Any:
    """A disk of 1 MiB."""
    where = desk.directory / "small"
    where.mkdir()
    if os.getuid() != 0 or os.system(f"mount -t tmpfs -o size=1m none '{where}' 2>/dev/null") != 0:
        pytest.skip("cannot mount a tmpfs here")
    yield where
    os.system(f"umount '{where}'")


def test_a_full_disk_costs_a_checkpoint_and_nothing_else(desk: Place, small: Path) -> None:
    running = desk.start(*RUN, "--checkpoint-dir", str(small), "--checkpoint-every", "4", *trainer(200))
    wait_for(lambda: checkpoints.newest(small)[0] is not None, "the first checkpoint")
    filler = small / "filler"
    with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while file.write(b"x" * 4096):
            pass
    before = checkpoints.newest(small)[0]
    assert before is not None
    cluster = next((desk.state / "plugml").iterdir()).name
    wait_for(lambda: any("No space left" in text for text in status_of(desk, cluster)["alarms"]), "an alarm")
    row = status_of(desk, cluster)["jobs"][0]
    assert row["checkpoint"]["clock"] >= before.clock and "No space left" in row["checkpoint"]["problem"]
    assert checkpoints.whole(Path(row["checkpoint"]["dir"])).clock == row["checkpoint"]["clock"], "the last one is as it was"
    filler.unlink()
    wait_for(lambda: not status_of(desk, cluster)["alarms"], "the alarm is over when one is kept again")
    said = running.ended(0).stderr
    assert "a checkpoint could not be made: " in said and "No space left" in said and "remember: " in said
    found, problems = checkpoints.newest(small)
    assert found is not None and not problems and found.clock > before.clock



PIECES = """
import sys, time
import numpy as np
from plugml.client import attach
plug = attach()
print("begins at clock", plug.clock, flush=True)
for piece in plug.pieces():
    number = int(piece.text.rpartition("p")[2].partition(".")[0])
    time.sleep(0.15)
    one = np.zeros(24, np.int64)
    one[number] = 1
    plug.step({"seen": one, "rows": (np.array([number, number + 1], np.uint32), np.ones((2, 3), np.float32) * (number + 1))})
    print("did", plug.clock, flush=True)
"""


@pytest.mark.parametrize("workers", [3, 2, 5])
def test_pieces_and_rows_go_on_where_they_were(desk: Place, workers: int) -> None:
    """Each piece counts exactly once, the ones that were out at the checkpoint again as a whole; also with fewer workers, or more."""
    desk.write("pieces.py", PIECES)
    (desk.directory / "in").mkdir()
    for number in range(24):
        desk.write(f"in/p{number}.txt", "x")
    words = ("run", "-n", "3", "--name", "work", "--table", "seen=24:i64,optimizer=add", "--table", "rows=sparse,width=3,rows=100,lr=1")
    words = (*words, "--combine", "sum", "--servers", "2", "--pieces", "in/p*.txt", "--resume", "auto", "--export", "raw", "--", sys.executable, "pieces.py")
    running = desk.start(*words)
    running.heard("did 3")
    running.send(signal.SIGTERM)
    assert "checkpoint of clock" in running.ended(75).stderr
    said = desk.run(*(str(workers) if word == "3" else word for word in words)).stderr
    assert (f"{workers} workers instead of 3: pieces that are left go to whoever asks" in said) == (workers != 3)
    result = desk.directory / "plugml-runs" / "work"
    assert set(np.frombuffer((result / "seen.bin").read_bytes(), np.int64)) == {1}
    rows = np.frombuffer((result / "rows.idx").read_bytes(), np.uint32)
    values = np.frombuffer((result / "rows.bin").read_bytes(), np.float32).reshape(-1, 3)
    found = {int(row): float(-value[0]) for row, value in zip(rows, values, strict=True)}
    assert found == {row: (row + 1 if row < 24 else 0) + row for row in range(25)}


def test_a_lost_server_takes_the_run_back_to_its_checkpoint(desk: Place) -> None:
    wanted = whole_run(desk, 40)
    running = desk.start(*RUN, "--servers", "2", "--copies", "1", "--on-lost", "restore", "--checkpoint-every", "5", *trainer(40))
    running.heard("did 13")
    wait_for(lambda: kept(desk) >= 10, "a checkpoint of clock 10")
    end_pid(find_child(running.pid, ["server", "s1"])[0])
    said = running.ended(0).stderr
    assert "the job is lost: server s1 held the only copy" in said and "on_lost = restore: going on from the checkpoint of clock" in said
    assert weights(desk) == wanted and desk.result("job")["state"] == "finished"


def test_a_lost_server_ends_a_run_that_has_no_checkpoint(desk: Place) -> None:
    running = desk.start(*RUN, "--copies", "1", "--on-lost", "restore", *trainer(400))
    running.heard("did 3")
    end_pid(find_child(running.pid, ["server", "s0"])[0])
    assert "the job is lost" in running.ended(1).stderr
