"""Programs that are not changed at all: what they do to their model file, in tiny programs, and what comes of it."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.system.run_kit import Place, end_pid, find_child, is_alive, place, wait_for  # noqa: F401

#: T way step: read model.txt, w -> 0.75 w + step, write it back in some way; `seen` counts the runs.
TRAINER = """
import os, signal, sys, time
way, step = sys.argv[1], float(sys.argv[2])
lines = open("model.txt").read().splitlines()
seen = int(lines[0].split()[1])
names = [line.split()[0] for line in lines[1:]]
w = [float(line.split()[1]) * 0.75 + step for line in lines[1:]]
if way == "shuffled":
    names, w = names[::-1], w[::-1]
if way == "growing":
    names, w = names + ["new"], w + [1.0]
if way == "nan":
    w[1] = float("nan")
text = "seen %d\\n" % (seen + 1) + "".join("%s %.17g\\n" % pair for pair in zip(names, w))
if way == "early":                      # a write test first, long before the numbers
    open("model.txt", "w").close()
if way == "rename":
    open("model.tmp", "w").write(text)
    os.rename("model.tmp", "model.txt")
elif way == "empty":
    open("model.txt", "w").close()
elif way == "gone":
    os.unlink("model.txt")
elif way == "half":
    open("model.txt", "w").write(text[: len(text) // 2])
elif way == "pickle":
    open("model.txt", "wb").write(bytes([128, 4, 149, 11, 0, 0, 0, 0, 0, 0, 0, 75, 1, 46]))
elif way == "nothing":
    pass
elif way in ("killed", "once"):
    file = open("model.txt", "w")
    file.write(text[: len(text) // 2])
    file.flush()
    if way == "killed" or not os.path.exists("was-killed"):
        open("was-killed", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    file.write(text[len(text) // 2 :])
elif way == "hangs":
    open("model.txt", "w").write(text[:9])
    time.sleep(1000)
else:
    open("model.txt", "w").write(text)
if way == "fails":
    sys.exit(3)
print("loss", sum(w), "on", 10 * step, "examples")
"""
START = "seen 0\na 0.5\nb -1.25\nc 3e-05\n"
WELL = ["plain", "early", "rename"]


def trainer(way: str, step: float = 0.125) -> list[str]:
    return [sys.executable, "t.py", way, str(step)]


def ready(place: Place) -> Path:  # noqa: F811
    place.write("t.py", TRAINER)
    return place.write("model.txt", START)


def numbers(text: str) -> list[float]:
    return [float(line.split()[1]) for line in text.splitlines()[1:]]


def after_three(*steps: float) -> Any:
    """The numbers of START after three rounds of programs that end at these steps, and the mean of them."""
    w = np.array(numbers(START))
    for _ in range(3):
        w = 0.75 * w + sum(steps) / len(steps)
    return w


def alone(place: Place, command: Sequence[str], rounds: int) -> bytes:  # noqa: F811
    """What the program makes of the model without us; the model is as it was afterwards."""
    before = (place.directory / "model.txt").read_bytes()
    for _ in range(rounds):
        subprocess.run(command, cwd=place.directory, check=True, stdout=subprocess.DEVNULL)
    after = (place.directory / "model.txt").read_bytes()
    (place.directory / "model.txt").write_bytes(before)
    return after


@pytest.mark.parametrize("way", WELL)
def test_a_lone_worker_makes_the_bytes_of_the_program_alone(place: Place, way: str) -> None:  # noqa: F811
    model = ready(place)
    expected = alone(place, trainer(way), 4)
    model.chmod(0o640)
    done = place.run("run", "--model", "model.txt", "--rounds", "4", "--", *trainer(way))
    assert model.read_bytes() == expected != START.encode()
    assert model.stat().st_mode & 0o777 == 0o640 and "4 pushes" in done.stderr
    assert sorted(path.name for path in place.directory.iterdir() if "model" in path.name) == ["model.txt"]
    assert "whole number of model.txt (line 1, behind 'seen') has changed: taken for a counter" in done.stderr


@pytest.mark.parametrize(("outer", "rule"), [("mean", lambda old, steps: old + steps.mean(0)), ("sum", lambda old, steps: old + steps.sum(0))])
def test_steps_of_two_workers_are_brought_together_after_each_round(place: Place, outer: str, rule: object) -> None:  # noqa: F811
    model = ready(place)
    place.run("run", "--model", "model.txt", "--rounds", "3", "--outer", outer, "--worker", " ".join(trainer("plain", 0.125)), "--worker", " ".join(trainer("rename", 0.5)))
    w = np.array(numbers(START))
    for _ in range(3):
        w = rule(w, np.array([0.75 * w + step - w for step in (0.125, 0.5)]))  # type: ignore[operator]
    assert np.allclose(numbers(model.read_text()), w, rtol=1e-14)
    assert model.read_text().startswith("seen 3\na ")


def test_nesterov_goes_through_momentum(place: Place) -> None:  # noqa: F811
    model = ready(place)
    place.run("run", "--model", "model.txt", "--rounds", "3", "-n", "2", "--outer", "nesterov", "--outer-lr", "0.5", "--outer-momentum", "0.8", "--", *trainer("plain"))
    w = np.array(numbers(START))
    v = np.zeros(3)
    for _ in range(3):
        g = w - (0.75 * w + 0.125)
        v = 0.8 * v + g
        w = w - 0.5 * (g + 0.8 * v)
    assert np.allclose(numbers(model.read_text()), w, rtol=1e-13)


def test_workers_are_weighed_by_what_they_say_or_read(place: Place) -> None:  # noqa: F811
    model = ready(place)
    workers = ["--worker", " ".join(trainer("plain", 0.1)), "--worker", " ".join(trainer("plain", 0.3))]
    done = place.run("run", "--model", "model.txt", "--rounds", "1", "--weight", "on ([0-9.]+) examples", "--metric", "loss", *workers)
    w = np.array(numbers(START))
    assert np.allclose(numbers(model.read_text()), 0.75 * w + (0.1 * 1 + 0.3 * 3) / 4, rtol=1e-13)
    assert "[w0] round 0: " in done.stdout and "[w1] loss" in done.stdout

    ready(place)
    place.write("a.csv", "1\n")
    place.write("b.csv", "1\n2\n3\n")
    workers = [word.replace("0.1", "0.1 {data}").replace("0.3", "0.3 {data}") for word in workers]
    place.run("run", "--model", "model.txt", "--rounds", "1", "--weight", "lines", "--data", "?.csv", *workers)
    assert np.allclose(numbers(model.read_text()), 0.75 * w + (0.1 * 1 + 0.3 * 3) / 4, rtol=1e-13)


@pytest.mark.parametrize(
    ("way", "says"),
    [
        ("empty", "it is empty"),
        ("gone", "No such file"),
        ("half", "it is not complete, or it grows|stands where"),
        ("growing", "it is not complete, or it grows"),
        ("shuffled", "stands where"),
        ("nan", "1 of its 4 numbers is not finite"),
        ("pickle", "it is a Python pickle"),
        ("fails", "exit code 3"),
    ],
)
def test_a_file_that_cannot_be_used_ends_the_run_and_changes_nothing(place: Place, way: str, says: str) -> None:  # noqa: F811
    """One of two workers: nobody gets half a round."""
    model = ready(place)
    done = place.run(
        "run", "--name", "j", "--model", "model.txt", "--rounds", "3", "--worker", " ".join(trainer("plain")), "--worker", " ".join(trainer(way)), code=3 if way == "fails" else 1
    )
    assert any(word in done.stderr for word in says.split("|")) and "othing of the round was pushed" in done.stderr, done.stderr
    assert model.read_text() == START
    assert "of job j were saved" not in done.stdout


def test_lines_in_another_order_are_met_by_key_where_it_is_said(place: Place) -> None:  # noqa: F811
    """One of two workers writes its lines backwards in each round."""
    model = ready(place)
    done = place.run("run", "--model", "model.txt:lines", "--rounds", "3", "--worker", " ".join(trainer("plain", 0.125)), "--worker", " ".join(trainer("shuffled", 0.5)))
    assert np.allclose(numbers(model.read_text()), after_three(0.125, 0.5), rtol=1e-14) and "(key 'seen') has changed: taken for a counter" in done.stderr


def test_a_program_that_leaves_its_file_alone_is_told_so(place: Place) -> None:  # noqa: F811
    model = ready(place)
    done = place.run("run", "--model", "model.txt", "--rounds", "2", "--", *trainer("nothing"))
    assert done.stderr.count("does it write to this file?") == 1 and model.read_text() == START


def test_a_program_that_is_killed_while_it_writes_pushes_nothing(place: Place) -> None:  # noqa: F811
    model = ready(place)
    done = place.run("run", "--model", "model.txt", "--rounds", "2", "--max-restarts", "1", "--", *trainer("killed"), code=128 + signal.SIGKILL)
    assert "SIGKILL ended" in done.stderr and "nothing was pushed, so there is no result to save" in done.stderr
    assert model.read_text() == START


def test_one_that_was_killed_once_goes_on_from_the_last_good_file(place: Place) -> None:  # noqa: F811
    model = ready(place)
    expected = alone(place, trainer("plain"), 3)
    done = place.run("run", "--model", "model.txt", "--rounds", "3", "--", *trainer("once"))
    assert model.read_bytes() == expected and "SIGKILL ended" in done.stderr


def test_nothing_is_left_of_a_run_that_is_ended_while_the_program_writes(place: Place) -> None:  # noqa: F811
    """The signal, and the death of the process in between: the program goes with it, and the model stays."""
    model = ready(place)
    run = place.start("run", "--model", "model.txt", "--rounds", "2", "--grace", "1", "--max-restarts", "0", "--", *trainer("hangs"))
    pid = find_child(run.pid, ["hangs", "t.py"], 2)
    private = place.directory / "plugml-runs" / "t" / "w0" / "dir" / "model.txt"
    wait_for(lambda: private.exists() and private.stat().st_size == 9, "the program writes")
    between = next(number for number in pid if "--" in Path(f"/proc/{number}/cmdline").read_text().split("\0"))
    end_pid(between)
    assert run.ended(None).code == 128 + signal.SIGKILL
    assert not any(map(is_alive, pid)) and model.read_text() == START

    run = place.start("run", "--name", "u", "--model", "model.txt", "--rounds", "2", "--grace", "1", "--", *trainer("hangs"))
    find_child(run.pid, ["hangs", "t.py"], 2)
    run.send(signal.SIGTERM)
    assert run.ended(None).code == 128 + signal.SIGTERM and model.read_text() == START


def slow(place: Place) -> list[str]:  # noqa: F811
    """Trains at once in its first two runs; then it hangs before it has written anything."""
    ready(place)
    place.write("slow.py", TRAINER.replace("lines =", "if '2' in open('model.txt').readline(): print('hangs', flush=True); time.sleep(1000)\nlines ="))
    return [sys.executable, "slow.py", "plain", "0.125"]


def test_a_run_that_is_interrupted_leaves_the_model_of_the_last_whole_round(place: Place) -> None:  # noqa: F811
    expected = alone(place, [sys.executable, "t.py", "plain", "0.125"], 2) if ready(place) else b""
    run = place.start("run", "--model", "model.txt", "--rounds", "5", "-n", "2", "--grace", "5", "--", *slow(place))
    run.heard("[w0] hangs")
    run.heard("[w1] hangs")
    run.send(signal.SIGINT)
    run.ended(128 + signal.SIGINT)
    model = place.directory / "model.txt"
    assert model.read_text().startswith("seen 2\n") and np.allclose(numbers(model.read_text()), numbers(expected.decode()), rtol=1e-14)
    assert not list((place.directory / "plugml-runs").rglob("final.*"))


def test_without_worker_0_the_model_comes_from_another(place: Place) -> None:  # noqa: F811
    model = ready(place)
    done = place.run(
        "run", "--model", "model.txt", "--rounds", "3", "--max-restarts", "0", "--on-worker-loss", "shrink",
        "--worker", " ".join(trainer("killed")), "--worker", " ".join(trainer("plain")), code=None,
    )  # fmt: skip
    assert np.allclose(numbers(model.read_text()), after_three(0.125), rtol=1e-14) and model.read_text().startswith("seen 3\n"), done.stderr


C_TRAINER = r"""
/* The model is a head of 12 bytes that counts the runs, and floats that are changed in place through a shared mapping. */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
int main(int argc, char **argv) {
    struct stat about;
    int fd = open(argv[1], O_RDWR);
    if (argc < 3 || fd < 0 || fstat(fd, &about)) return 1;
    char *map = mmap(0, about.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    int64_t seen;
    memcpy(&seen, map + 4, 8);
    seen++;
    memcpy(map + 4, &seen, 8);
    float *w = (float *)(map + 12), step = strtof(argv[2], 0);
    for (long i = 0; i < (long)(about.st_size - 12) / 4; i++) w[i] = w[i] * 0.9f + step;
    return 0;
}
"""


@pytest.fixture
def mapped(place: Place) -> Path:  # noqa: F811
    """The compiled trainer, and models/m.bin for it."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        if os.environ.get("PLUGML_REQUIRE_ALL"):
            pytest.fail("there is no C compiler")
        pytest.skip("there is no C compiler")
    source = place.write("t.c", C_TRAINER)
    subprocess.run([compiler, "-O1", "-o", str(place.directory / "trainer"), str(source)], check=True)
    (place.directory / "models").mkdir()
    (place.directory / "models" / "other.txt").write_text("not shared")
    model = place.directory / "models" / "m.bin"
    model.write_bytes(b"NET1" + struct.pack("<q", 0) + np.linspace(-1, 1, 1000, dtype="<f4").tobytes())
    return model


@pytest.mark.parametrize("layout", ["f32,offset=12", "f32,offset=-4000"])
def test_a_mapping_in_a_file_with_a_binary_head(place: Place, mapped: Path, layout: str) -> None:  # noqa: F811
    start = mapped.read_bytes()
    for _ in range(3):
        subprocess.run(["./trainer", "models/m.bin", "0.01"], cwd=place.directory, check=True)
    expected = mapped.read_bytes()
    mapped.write_bytes(start)
    place.run("run", "--model", f"models/m.bin:{layout}", "--rounds", "3", "--", "./trainer", "models/m.bin", "0.01")
    assert mapped.read_bytes() == expected

    mapped.write_bytes(start)
    place.run("run", "--model", f"models/m.bin:{layout}", "--rounds", "3", "-n", "2", "--", "./trainer", "models/m.bin", "0.01")
    assert mapped.read_bytes()[:12] == expected[:12] and np.allclose(np.frombuffer(mapped.read_bytes(), "<f4", -1, 12), np.frombuffer(expected, "<f4", -1, 12), rtol=1e-6)
    assert sorted(path.name for path in (place.directory / "models").iterdir()) == ["m.bin", "other.txt"]


NUMPY = """
import sys, numpy as np
with np.load("m.npz") as m:
    m = dict(m)
m["w"] = (m["w"] * np.float32(0.9) + np.float32(sys.argv[1])).astype(np.float32)
m["steps"] += 5
np.savez("m.npz", **dict(sorted(m.items(), reverse=int(m["steps"][0]) % 2 == 0)))      # members in another order
open("log.txt", "a").write("x")
"""


def test_arrays_are_met_by_name_and_whole_numbers_are_the_programs_own(place: Place) -> None:  # noqa: F811
    place.write("n.py", NUMPY)
    log = place.write("log.txt", "")
    model = place.directory / "m.npz"
    np.savez(model, w=np.ones(3, np.float32), steps=np.array([0]), b=np.full(2, 0.5))
    done = place.run("run", "--model", "m.npz", "--rounds", "3", "--worker", f"{sys.executable} n.py 0.1", "--worker", f"{sys.executable} n.py 0.3")
    with np.load(model) as got:
        w = np.ones(3)
        for _ in range(3):
            w = 0.9 * w + 0.2
        assert np.allclose(got["w"], w, rtol=1e-6) and got["steps"].tolist() == [15] and got["b"].tolist() == [0.5, 0.5]
    assert "log.txt, which all workers share, has changed" in done.stderr and log.read_text()
    log.write_text("")
    done = place.run("run", "--model", "m.npz", "--rounds", "2", "--side", "*.txt", "--", sys.executable, "n.py", "0.1")
    assert "which all workers share" not in done.stderr and log.read_text() == ""


TWO_FILES = """
import sys, numpy as np
step = float(sys.argv[1])
a, b = np.load("a/w.npy"), np.fromfile("b/w.npy", "<f4")
np.save("a/w.npy", a * 0.5 + step)
if len(sys.argv) > 2:
    b = b[:1]
(b - np.float32(step)).tofile("b/w.npy")
"""


def test_several_files_are_one_model(place: Place) -> None:  # noqa: F811
    """Two of one name; one cut file holds the whole round back."""
    place.write("two.py", TWO_FILES)
    a, b = place.directory / "a" / "w.npy", place.directory / "b" / "w.npy"
    for path in (a, b):
        path.parent.mkdir()
    np.save(a, np.array([1.0, 2.0]))
    np.array([8, 9], "<f4").tofile(b)
    words = ["run", "--model", "a/w.npy", "--model", "b/w.npy:f32", "--rounds", "2"]
    command = f"{sys.executable} two.py"
    done = place.run(*words, "--worker", f"{command} 1", "--worker", f"{command} 1 cut", code=1)
    assert "b/w.npy as the program left it cannot be compared" in done.stderr and np.load(a).tolist() == [1.0, 2.0]
    place.run(*words, "--worker", f"{command} 1", "--worker", f"{command} 2")
    assert np.load(a).tolist() == [1 / 4 + 2.25, 2 / 4 + 2.25] and np.fromfile(b, "<f4").tolist() == [5.0, 6.0]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--model", "model.txt", "--model", "model.txt", "--rounds", "1"], "named twice"),
        (["--model", "no.txt", "--rounds", "1"], "run the program once"),
        (["--model", "model.txt"], "needs --rounds"),
        (["--rounds", "2"], "not which file"),
        (["--model", "model.txt:f23", "--rounds", "1"], "f32"),
        (["--model", "t.bin", "--rounds", "1"], "it is serialised|a serialised Java object"),
        (["--model", "/etc/passwd", "--rounds", "1"], "from this directory down"),
        (["--model", "model.txt", "--rounds", "0"], "rounds = 0"),
        (["--model", "model.txt", "--rounds", "1", "--table", "w=3"], "both --model and tables"),
        (["--model", "model.txt", "--rounds", "1", "--consistency", "asp"], "together (bsp)"),
        (["--model", "model.txt", "--rounds", "1", "--lr", "0.1"], "takes its own steps"),
        (["--model", "model.txt", "--rounds", "1", "--outer", "men"], "mean"),
        (["--model", "model.txt", "--rounds", "1", "--outer-lr", "0.1"], "is for outer = nesterov"),
        (["--model", "model.txt", "--rounds", "1", "--weight", "lines"], "declares none"),
        (["--model", "model.txt", "--rounds", "1", "--weight", "([0-9]"], "no regular expression"),
        (["--model", "model.txt", "--rounds", "1", "--side", "../x"], "from this directory down"),
        (["--join", "j", "--model", "model.txt", "--rounds", "1"], "belongs to the job"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(place: Place, words: list[str], says: str) -> None:  # noqa: F811
    ready(place)
    (place.directory / "t.bin").write_bytes(b"\xac\xed\x00\x05sr")
    done = place.run("run", *words, "--", *trainer("plain"), code=2)
    assert any(word in done.stderr for word in says.split("|")), done.stderr
    assert not (place.directory / "plugml-runs").exists() and place.is_clean()


def test_the_same_in_a_file_and_what_check_says(place: Place) -> None:  # noqa: F811
    ready(place)
    place.write("job.toml", f'[job]\nworkers = 2\ncommand = {json.dumps(trainer("plain"))}\n[model]\nfile = "model.txt"\nrounds = 5\nouter = "sum"\n')
    done = place.run("run", "-f", "job.toml", "--check")
    assert "model.txt (4 numbers) is shared over 5 rounds; the workers' steps are added up" in done.stdout
    done = place.run("run", "-f", "job.toml", "--outer", "mean", "-n", "1", "--check", "--json")
    assert json.loads(done.stdout)["model"]["push"] == "assign"


FANN = """
use AI::FANN qw(:all);
my ($file, $data) = @ARGV;
my $net = AI::FANN->new_from_file($file);
my @rows;
open my $in, '<', $data or die;
while (<$in>) { my ($x, $y) = split; push @rows, [$x], [$y]; }
$net->train_on_data(AI::FANN::TrainData->new(@rows), 20, 0, 0.0);
$net->save($file);
printf "mse %.9g\\n", $net->MSE;
"""
FANN_NET = """
use AI::FANN qw(:all);
my $net = AI::FANN->new_standard(1, 6, 1);
$net->hidden_activation_function(FANN_SIGMOID_SYMMETRIC);
$net->output_activation_function(FANN_LINEAR);
$net->save("net.txt");
"""


def test_a_network_of_fann(place: Place) -> None:  # noqa: F811
    """A library that nobody here wrote: text with %.20e weights between whole ids, on one line."""
    if shutil.which("perl") is None or subprocess.run(["perl", "-MAI::FANN", "-e", "1"], capture_output=True, check=False).returncode:
        pytest.skip("AI::FANN is not installed (Debian: libai-fann-perl)")
    place.write("fann.pl", FANN)
    place.write("data.txt", "".join(f"{x / 100} {np.sin(3 * x / 100) / 2:.6f}\n" for x in range(-100, 100)))
    subprocess.run(["perl", "-e", FANN_NET], cwd=place.directory, check=True)
    net = place.directory / "net.txt"
    draw = random.Random(5)  # the library draws its first weights by the time of day
    drawn = re.sub(r"\((\d+), [^),]+\)", lambda found: f"({found[1]}, {draw.uniform(-0.5, 0.5):.20e})", net.read_text())
    start = drawn.encode()
    net.write_bytes(start)
    for _ in range(4):
        subprocess.run(["perl", "fann.pl", "net.txt", "data.txt"], cwd=place.directory, check=True, stdout=subprocess.DEVNULL)
    expected = net.read_bytes()
    net.write_bytes(start)
    place.run("run", "--model", "net.txt", "--rounds", "4", "--", "perl", "fann.pl", "net.txt", "data.txt")
    assert net.read_bytes() == expected

    net.write_bytes(start)
    done = place.run("run", "--model", "net.txt", "--rounds", "4", "-n", "2", "--shard", "data.txt", "--metric", "mse", "--", "perl", "fann.pl", "net.txt", "{data}")
    shown = [float(line.rpartition(" ")[2]) for line in done.stdout.splitlines() if "[w0] round" in line]
    assert len(shown) == 4 and shown[-1] < shown[0] / 3


def test_a_killed_worker_does_only_its_own_round_again(place: Place) -> None:  # noqa: F811
    model = ready(place)
    done = place.run("run", "--model", "model.txt", "--rounds", "3", "--worker", " ".join(trainer("once", 0.125)), "--worker", " ".join(trainer("plain", 0.5)))
    assert np.allclose(numbers(model.read_text()), after_three(0.125, 0.5), rtol=1e-14) and model.read_text().startswith("seen 3\n")
    assert "SIGKILL ended" in done.stderr and done.stdout.count("[w1] loss") == 3 and done.stdout.count("[w0] loss") == 3


def test_a_run_that_was_stopped_goes_on_from_its_checkpoint(place: Place) -> None:  # noqa: F811
    """The checkpoint has the numbers.  Counters come from the file that the stopped run has left, which may be a round ahead of it."""
    model = ready(place)
    expected = alone(place, trainer("plain"), 30)
    place.write("nap.py", TRAINER + "\ntime.sleep(0.2)\n")
    command = [sys.executable, "nap.py", "plain", "0.125"]
    run = place.start("run", "--name", "j", "--model", "model.txt", "--rounds", "30", "--checkpoint-every", "1", "--grace", "60", "--", *command)
    out = place.directory / "plugml-runs" / "j" / "checkpoints"
    wait_for(lambda: out.exists() and any(out.glob("*/manifest.json")), "a checkpoint")
    run.send(signal.SIGTERM)
    done = run.ended(75)
    assert 0 < int(model.read_text().split()[1]) < 30, done.stderr
    place.run("run", "--name", "j", "--model", "model.txt", "--rounds", "30", "--resume", "auto", "--", *command)
    assert model.read_bytes().splitlines()[1:] == expected.splitlines()[1:]
