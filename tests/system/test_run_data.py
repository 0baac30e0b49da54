"""Input for any number of workers: files, slices, pieces, private directories; names that nobody would choose."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.system.counting import await_channel, kill, worker_pid
from tests.system.run_kit import Place, place, wait_for  # noqa: F401

#: Prints what it got, byte for byte, reads every line of it, and pushes how many there were in all, once.
READER = """
import os, sys
import numpy as np
from plugml.client import attach
files = sys.argv[1:]
lines = [line for name in files for line in open(name, "rb")]
with open(os.path.join(os.environ["PLUGML_OUT"], "got"), "wb") as out:
    out.write(b"\\0".join(os.fsencode(name) for name in files))
plug = attach()
w = np.zeros(1)
for line in lines or []:
    plug.push(np.array([float(line)]))
plug.tick()
plug.pull(w)
print(len(lines), w[0])
"""
SUM = ["--table", "w=1:f64,optimizer=add", "--combine", "sum"]


def reader(place: Place) -> list[str]:  # noqa: F811
    place.write("read.py", READER)
    return [sys.executable, "read.py", "{data}"]


def test_a_slice_may_be_standard_input(place: Place) -> None:  # noqa: F811
    place.write("in.txt", "1\n2\n3\n4\n")
    done = place.run("run", "-n", "2", "--table", "w=4", "--shard", "in.txt", "--stdin", "{data}", "--", "cat")
    assert sorted(line[-1] for line in done.stdout.splitlines()) == ["1", "2", "3", "4"]
    assert done.stdout.count("[w0]") == 2


def test_each_worker_reads_its_files_whatever_they_are_called(place: Place) -> None:  # noqa: F811
    """Blanks, quotes, a newline, bytes that are no UTF-8; one file is empty, and holds nobody up."""
    names = [b"a b.csv", b"it's \"x\".csv", b"\xff\xfe.csv", b"new\nline.csv", b"{worker}.csv", b"$HOME&.csv", b"empty.csv"]
    folder = place.directory / "d 1"
    folder.mkdir()
    for number, name in enumerate(names):
        with open(os.path.join(os.fsencode(folder), name), "w") as file:
            file.write("" if name == b"empty.csv" else f"{10 ** number}\n")
    done = place.run("run", "-n", "2", "--name", "odd", *SUM, "--data", "d 1/*.csv", "--", *reader(place))
    runs = place.directory / "plugml-runs" / "odd"
    got = [(runs / f"w{worker}" / "got").read_bytes().split(b"\0") for worker in range(2)]
    expected = sorted(b"d 1/" + name for name in names)
    assert got == [expected[0::2], expected[1::2]]
    assert np.fromfile(runs / "w.bin")[0] == 111_111
    told = place.result("odd")["data"]
    assert [[os.fsencode(name) for name in each] for each in told["workers"]] == got and told["kind"] == "files"
    assert "data: worker 0 reads d 1/" in done.stderr


def test_a_worker_whose_file_is_empty_holds_nobody_up(place: Place) -> None:  # noqa: F811
    for name, text in (("0.csv", "1\n2\n"), ("1.csv", ""), ("2.csv", "4\n")):
        place.write(name, text)
    done = place.run("run", "-n", "3", "--name", "empty", *SUM, "--data", "?.csv", "--", *reader(place))
    assert np.fromfile(place.directory / "plugml-runs" / "empty" / "w.bin")[0] == 7
    assert "worker 1 ended with exit code 0 but never pushed" in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--data", "no*.csv"], "--data 'no*.csv' matches nothing"),
        (["--data", "t.py"], "1 file for 2 workers"),
        (["--shard", "no.csv"], "--shard no.csv: No such file"),
        (["--pieces", "no*"], "--pieces 'no*' matches nothing"),
        (["--data", "t.py", "--shard", "t.py"], "keep one"),
        (["--passes", "2"], "this job has none"),
    ],
)
@pytest.mark.parametrize("check", [False, True])
def test_input_that_is_not_there_is_refused_before_anything_starts(place: Place, words: list[str], says: str, check: bool) -> None:  # noqa: F811
    program = ["./t"] if "--pieces" in words else ["cat", "{data}"]
    place.write("t", "").chmod(0o755)
    done = place.run("run", "-n", "2", "--table", "w=4", *words, *["--check"] * check, "--", *program, code=2)
    assert says in done.stderr and not (place.directory / "plugml-runs").exists() and place.is_clean()


def test_a_file_is_cut_for_any_number_of_workers(place: Place) -> None:  # noqa: F811
    """Each line once, the line of names everywhere; the same seed cuts the same slices."""
    place.write("in.csv", "x\n" + "".join(f"{number}\n" for number in range(1, 101)))
    command = ["sh", "-c", f"tail -n +2 \"$0\" > rest-{{worker}}; head -1 \"$0\"; exec '{sys.executable}' read.py rest-{{worker}}", "{data}"]
    reader(place)
    for name in ("one", "two"):
        done = place.run("run", "-n", "3", "--name", name, *SUM, "--shard", "in.csv", "--", *command)
        assert np.fromfile(place.directory / "plugml-runs" / name / "w.bin")[0] == 5050
        assert sorted(line.split("] ")[1].split()[0] for line in done.stdout.splitlines()) == ["33", "33", "34", "x", "x", "x"]
    slices = [[(place.directory / "plugml-runs" / name / "shards" / f"{k}.csv").read_text() for k in range(3)] for name in ("one", "two")]
    assert slices[0] == slices[1]
    assert place.result("one")["data"]["workers"][2] == [str(place.directory / "plugml-runs" / "one" / "shards" / "2.csv")]
    place.run("run", "-n", "3", "--name", "three", "--seed", "5", *SUM, "--shard", "in.csv", "--", *command)
    assert (place.directory / "plugml-runs" / "three" / "shards" / "0.csv").read_text() != slices[0][0]


PIECES = """
import os, sys, time
import numpy as np
from plugml.client import attach
plug = attach()
w = np.zeros(1)
while (piece := plug.next()) is not None:
    number = float(open(piece.text).read())
    print("piece", piece.turn, piece.text, flush=True)
    time.sleep(float(sys.argv[1]))
    plug.push(np.array([number]))
plug.tick()
"""


@pytest.mark.parametrize("consistency", ["asp", "bsp"])
def test_pieces_are_handed_out_once_a_pass(place: Place, consistency: str) -> None:  # noqa: F811
    place.write("pieces.py", PIECES)
    (place.directory / "p 1").mkdir()
    for number in range(7):
        place.write(f"p 1/{number} .txt", str(10**number))
    words = ["--pieces", "p 1/*.txt", "--passes", "2", "--consistency", consistency, "--name", "work"]
    done = place.run("run", "-n", "3", *SUM, *words, "--", sys.executable, "pieces.py", "0.02")
    handed = sorted(line.split("] piece ")[1] for line in done.stdout.splitlines())
    assert handed == sorted(f"{turn} p 1/{number} .txt" for turn in range(2) for number in range(7))
    assert np.fromfile(place.directory / "plugml-runs" / "work" / "w.bin")[0] == 2_222_222
    assert place.result("work")["data"]["passes"] == 2


def test_a_piece_of_a_dead_worker_comes_back_and_slices_are_pieces_too(place: Place) -> None:  # noqa: F811
    place.write("in.txt", "".join(f"{number}\n" for number in range(12)))
    place.write("pieces.py", PIECES.replace("float(open(piece.text).read())", "sum(map(float, open(piece.text)))"))
    words = ["--pieces", "in.txt:lines:6", "--consistency", "asp", "--name", "count"]
    running = place.start("run", "-n", "2", *SUM, *words, "--", sys.executable, "pieces.py", "0.4")
    await_channel(running, place.root, "count.1.1")
    running.heard("[w1] piece")
    kill(worker_pid(running, 1, 1))
    done = running.ended()
    handed = [line.split()[-1] for line in done.stdout.splitlines() if "] piece " in line]
    assert len(set(handed)) == 6 and len(handed) in (6, 7), "the broken one as a whole, once more"
    assert np.fromfile(place.directory / "plugml-runs" / "count" / "w.bin")[0] in (66, 66 + _sum(handed))


def _sum(handed: list[str]) -> float:
    """What the piece that was handed out twice holds: its push may have been made before the kill."""
    twice = [name for name in set(handed) if handed.count(name) == 2]
    return sum(sum(map(float, Path(name).read_text().split())) for name in twice)


def test_shrink_says_which_files_nobody_reads_any_more(place: Place) -> None:  # noqa: F811
    for number in range(4):
        place.write(f"{number}.csv", "1\n")
    words = ["--data", "?.csv", "--on-worker-loss", "shrink", "--max-restarts", "0", "--name", "count"]
    running = place.start("run", "-n", "2", "--table", "w=4,lr=0.1", *words, "--", *place.trainer(300, 0.01), "{data}")
    await_channel(running, place.root, "count.1.1")
    kill(worker_pid(running, 1, 1))
    done = running.ended()
    assert "going on without it (shrink): no longer seen: 1.csv, 3.csv" in done.stderr
    assert any("no longer seen: 1.csv, 3.csv" in text for text in place.result("count")["warnings"])


def test_workers_start_apart_and_find_what_was_beside_them(place: Place) -> None:  # noqa: F811
    place.write("trainer", f'#!/bin/sh\necho $PLUGML_WORKER >> mine.txt; cat shared/x; exec "{sys.executable}" "$@"\n').chmod(0o755)
    (place.directory / "shared").mkdir()
    place.write("shared/x", "shared\n")
    words = ["--private-dir", "--name", "apart", "--table", "w=4,lr=0.1"]
    done = place.run("run", "-n", "3", *words, "--", "./trainer", "t.py", "5", "0", "1")
    assert done.stdout.count("shared") == 3 and done.stdout.count("clock 5") == 3
    runs = place.directory / "plugml-runs" / "apart"
    for worker in range(3):
        assert [path.name for path in (runs / f"w{worker}" / "dir").iterdir()] == ["mine.txt"], "the links are gone, its own file stays"
        assert (runs / f"w{worker}" / "dir" / "mine.txt").read_text() == f"{worker}\n"
    assert not (place.directory / "mine.txt").exists()


def test_a_signal_while_a_file_is_cut_leaves_nothing_running(place: Place) -> None:  # noqa: F811
    with (place.directory / "big.txt").open("w") as file:
        file.writelines(f"{number}\n" for number in range(2_000_000))
    running = place.start("run", "-n", "2", "--table", "w=4", "--shard", "big.txt", "--name", "big", "--", "cat", "{data}")
    wait_for(lambda: (place.directory / "plugml-runs" / "big" / "shards" / "0.txt").exists(), "it is being cut")
    running.send(signal.SIGTERM)
    assert "SIGTERM before the start: nothing was run" in running.ended(143).stderr
    assert place.is_clean() and not (place.directory / "plugml-runs").exists()


def test_a_place_whose_name_no_message_can_hold_is_refused_at_once(place: Place) -> None:  # noqa: F811
    odd = os.path.join(os.fsencode(place.directory), b"odd \xff")
    os.mkdir(odd)
    place.directory = Path(os.fsdecode(odd))
    done = place.run("run", "--table", "w=4", "--", "true", code=2)
    assert "has a name that is no UTF-8: choose another place with --result DIR" in done.stderr
    place.run("run", "--table", "w=4", "--result", str(place.directory.parent / "fine"), "--", "true")


def test_who_reads_what_is_told_as_json(place: Place) -> None:  # noqa: F811
    for number in range(3):
        place.write(f"{number}.csv", "1\n")
    told = json.loads(place.run("run", "-n", "2", "--table", "w=4", "--data", "?.csv", "--check", "--json", "--", "cat", "{data}").stdout)
    assert told["data"]["workers"] == [["0.csv", "2.csv"], ["1.csv"]] and told["commands"] == [["cat", "0.csv", "2.csv"], ["cat", "1.csv"]]
