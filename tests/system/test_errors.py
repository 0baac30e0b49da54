"""Every mistake gets a sentence that says what is wrong and what to do, the right exit code, and costs nothing.

What can be known is refused before anything starts; what a program gets wrong later is refused whole, and it is named.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import zmq

from tests.system.counting import (
    await_channel,
    await_clock,
    commands,
    counted,
    counter,
    job_file,
    kill,
    node_pid,
    sums,
)
from tests.system.run_kit import Done, Place, find_child, place, wait_for  # noqa: F401

#: Requests with plain files, as SPEC.md has them: what no client library would send can be sent.
RAW = """
import os, struct, sys
import numpy as np
channel = os.environ["PLUGML_DIR"]
req, rep = os.open(channel + "/req", os.O_RDWR), os.open(channel + "/rep", os.O_RDWR)
seq, clock = 0, int(os.environ["PLUGML_CLOCK"])

def ask(verb, grad=None, more=""):
    global seq, clock
    seq += 1
    if grad is not None:
        with open(channel + "/grad", "wb") as file:
            file.write(grad)
    with open(channel + "/cmd", "w") as file:
        file.write(f"{verb} {seq} {clock} {more}\\n")
    os.write(req, b"\\n")
    while True:
        words = os.read(rep, 64).decode().split()
        if words[1] == str(seq):
            clock = int(words[2])
            return " ".join(words), open(channel + "/err").read().strip()

def param(dtype):
    return np.fromfile(channel + "/param", dtype)
"""


def nothing_happened(place: Place, done: Done) -> None:  # noqa: F811
    """It was refused before the start."""
    assert "Traceback" not in done.stderr and done.stderr.splitlines()[-1].startswith("plugml: ")
    assert not (place.directory / "plugml-runs").exists() and not os.listdir(place.root)


# -- before the start -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("[job]\nworkerz = 3", "[job]: unknown key 'workerz'; did you mean 'workers'?"),
        ("[jobs]\nworkers = 3", "section: unknown key 'jobs'; did you mean 'job'?"),
        ("[[table]]\nname = 'w'\nshap = 4", "[[table]]: unknown key 'shap'; did you mean 'shape'?"),
        ("[[table]]\nshape = 4", "a table needs a name"),
        ("[[worker]]\ncomand = 'x'", "[[worker]]: unknown key 'comand'; did you mean 'command'?"),
        ("[[worker]]\ncommand = 'x'\ncount = '3'", "count = '3' is not a whole number"),
        ("[[table]]\nname = 'w'\nshape = 4\noptimizer = 'adam2'", "unknown value 'adam2'; did you mean 'adam'"),
        ("[result]\ndirectory = 'x'", "[result]: unknown key 'directory'; known are dir"),
        ("[job]\nconsistency = 'ssp'", "consistency 'ssp': use bsp, asp or ssp:N"),
    ],
)  # fmt: skip
def test_a_wrong_word_in_job_toml_names_the_nearest_right_one(place: Place, file: str, says: str) -> None:  # noqa: F811
    words = ["--table", "w=4"] if "table" not in file else []
    place.write("job.toml", file + "\n")
    command = ["--", "true"] if "worker]" not in file else []
    done = place.run("run", "-f", "job.toml", *words, *command, code=2)
    assert says in done.stderr
    nothing_happened(place, done)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("w=abc", "'abc' in the shape is no whole number (write 10,64 for 10 rows of 64)"),
        ("w=-4", "'-4' in the shape is no whole number"),
        ("w=4.5", "'4.5' in the shape is no whole number"),
        ("w=0", "table 'w': shape [0] must be one or more whole numbers from 1 on"),
        ("w=4:f33", "table 'w': dtype 'f33'; known are f32, f64, i64"),
        ("w=4,momentum=3", "--table w: unknown key 'momentum'"),
        ("w=4,lr=x", "--table w: lr = 'x' is no number"),
        ("w=4,lr=nan", "is not finite"),
        ("w", "write NAME=SHAPE[:dtype]"),
        ("=4", "table name ''"),
        ("w=4:i64", "sgd makes fractions of i64 numbers; use optimizer add"),
        ("w=99999999999,99999999999", "has more bytes than any machine"),
    ],
)  # fmt: skip
def test_a_table_that_cannot_be_is_refused_with_its_name(place: Place, table: str, says: str) -> None:  # noqa: F811
    for more in ([], ["--check"]):
        done = place.run("run", *more, "--table", table, "--", "true", code=2)
        assert says in done.stderr
        nothing_happened(place, done)


@pytest.mark.parametrize(
    ("text", "mode", "code", "says"),
    [
        ("#!/no/such/interpreter\n", 0o755, 127, "the interpreter in its first line is not"),
        ("\x7fnonsense", 0o755, 126, "a script needs a first line like #!/bin/sh"),
        ("#!/bin/sh\n", 0o644, 126, "is not executable: chmod +x it, or name its interpreter in front"),
    ],
)  # fmt: skip
def test_a_trainer_that_cannot_be_started(place: Place, text: str, mode: int, code: int, says: str) -> None:  # noqa: F811
    place.write("odd", text).chmod(mode)
    done = place.run("run", "-n", "2", "--table", "w=4", "--", "./odd", code=code)
    assert says in done.stderr and "Traceback" not in done.stderr
    assert not (place.directory / "plugml-runs").exists() and place.is_clean()


# -- programs that fail -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "code", "says"),
    [
        ("exit 3", 3, "failed: exit code 3, generation 1, before its first push"),
        ("kill -TERM $$", 143, "failed: killed by SIGTERM"),
        ("kill -SEGV $$", 139, "failed: killed by SIGSEGV, generation 1, before its first push"),
        ("exit 69", 69, "failed: exit code 69"),
        ("no-such-program", 127, "try: 127 is a shell's word for a command that was not found"),
        ("exec ./t.py", 126, "try: 126 is a shell's word for a file that is not executable"),
    ],
)  # fmt: skip
def test_a_trainer_that_fails_gives_its_own_code(place: Place, script: str, code: int, says: str) -> None:  # noqa: F811
    words = ["--max-restarts", "0", "--on-worker-loss", "stop", "--table", "w=4"]
    done = place.run("run", "-n", "2", *words, "--", "sh", "-c", f"echo the last words >&2; {script}", code=code)
    assert says in done.stderr and "the last words" in done.stderr and "whole output: " in done.stderr
    assert re.search(rf"error: exit code {code} is that of worker [01]$", done.stderr.strip())
    assert place.is_clean()


# -- what a program pushes --------------------------------------------------------------------------------------------


def test_a_gradient_of_the_wrong_length_is_refused_whole_with_a_hint(place: Place) -> None:  # noqa: F811
    place.write("raw.py", RAW + SIZES)
    done = place.run("run", "--table", "w=6:f64,optimizer=add", "--", sys.executable, "raw.py")
    lines = dict(line.removeprefix("[w0] ").split("|", 1) for line in done.stdout.splitlines())
    assert lines.pop("last") == "ok 10 1 v=3 n=6 lag=0|[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]", "of all that was refused nothing was applied"
    for number, (name, size) in enumerate({
        "markers": 56, "two records": 64, "other dtype": 24, "npy": 176, "short": 40, "empty": 0, "appended": 96, "text": 12, "long": 49,
    }.items(), 1):  # fmt: skip
        reply, text = lines.pop(name).split("|")
        assert reply == f"err {number} 0 code=SIZE", "the clock stays"
        assert text.startswith(f"SIZE seq={number}: grad has {size} bytes, 48 are declared (6 elements of f64)")
        for hint, names in HINTS.items():
            assert (hint in text) == (name in names), text
    assert not lines
    assert "worker 0 was refused: SIZE at clock 0: grad has 56 bytes" in done.stderr, "a program may keep it to itself"
    assert "remember: worker 0 finished, but was refused before" in done.stderr


HINTS = {"access='stream'": ("markers", "two records"), "float32 instead of float64?": ("other dtype",), "appended with '>>'": ("appended",)}
SIZES = """
good = np.arange(6, dtype="<f8")
def record(values):
    mark = struct.pack("<i", values.nbytes)
    return mark + values.tobytes() + mark
for name, grad in {
    "markers": record(good), "two records": record(good[:3]) + record(good[3:]), "other dtype": good.astype("<f4").tobytes(),
    "npy": b"\\x93NUMPY" + bytes(122) + good.tobytes(), "short": good.tobytes()[:40], "empty": b"",
    "appended": good.tobytes() + good.tobytes(), "text": b"".join(b"%g\\n" % value for value in good), "long": good.tobytes() + b"!",
}.items():
    print(name, *ask("step", grad), sep="|")
print("last", ask("step", good.tobytes())[0], param("<f8").tolist(), sep="|")
"""


def test_nan_and_infinity_are_refused_whole_and_named(place: Place) -> None:  # noqa: F811
    """Worker 1 of 3: NaN in element 2 at clock 5, infinity at clock 6, and at clock 7 a minus zero and a denormal, which are good."""
    place.write("raw.py", RAW + NONFINITE)
    done = place.run("run", "-n", "3", "--table", "w=4,lr=0.1", "--", sys.executable, "raw.py")
    expected = np.float32(0)
    for _ in range(10):
        expected -= np.float32(0.1) * np.float32(1)
    # At clock 7 worker 1 pushed [-0.0, 1e-45, 1, 1] and the others ones.
    result = np.fromfile(place.directory / "plugml-runs/raw/w.bin", "<f4")
    np.testing.assert_allclose(result, [expected + np.float32(0.1 / 3)] * 2 + [expected] * 2, rtol=1e-5)
    for seq, clock, word in ((6, 5, "nan"), (8, 6, "-inf")):
        sentence = f"element 2 of table w is {word}; nothing was applied"
        assert f"[w1] err {seq} {clock} code=NONFINITE|NONFINITE seq={seq}: {sentence}\n" in done.stdout
        assert f"worker 1 was refused: NONFINITE at clock {clock}: {sentence}\n" in done.stderr
    assert [worker["pushes"] for worker in place.result("raw")["workers"]] == [10, 10, 10]


NONFINITE = """
worker = int(os.environ["PLUGML_WORKER"])
bad = {5: np.nan, 6: -np.inf}
while clock < 10:
    grad = np.ones(4, "<f4")
    if worker == 1 and clock in bad:
        grad[2] = bad.pop(clock)
        print(*ask("step", grad.tobytes()), sep="|")
        continue
    if worker == 1 and clock == 7:
        grad[:2] = -0.0, 1e-45
    reply, text = ask("step", grad.tobytes())
    assert reply.startswith("ok"), text
"""


def test_a_nan_that_nobody_catches_ends_the_run_with_worker_clock_table_and_element(place: Place) -> None:  # noqa: F811
    place.write("nan.py", NAN)
    done = place.run("run", "-n", "2", "--table", "v=3", "--table", "w=5,optimizer=add", "--", sys.executable, "nan.py", code=1)
    assert "worker 1 on" in done.stderr and "at clock 3" in done.stderr
    assert "NONFINITE" in done.stderr and "element 4 of table w is nan; nothing was applied" in done.stderr
    saved = np.fromfile(place.directory / "plugml-runs/nan/failed/w.bin", "<f4")
    assert saved.tolist() == [3.0] * 5, "the clocks before it"


NAN = """
import os
import numpy as np
from plugml.client import attach
plug = attach()
v, w = np.zeros(3, "<f4"), np.zeros(5, "<f4")
for clock in plug.clocks(6):
    grad = np.ones(5, "<f4")
    if clock == 3 and os.environ["PLUGML_WORKER"] == "1":
        grad[4] = np.nan
    plug.step({"v": np.ones(3, "<f4"), "w": grad}, {"v": v, "w": w})
"""


@pytest.mark.parametrize("consistency", ["bsp", "asp"])
def test_finite_pushes_whose_sum_overflows_end_loudly_with_a_finite_result(place: Place, consistency: str) -> None:  # noqa: F811
    place.write("raw.py", RAW + OVERFLOW)
    words = ["--consistency", consistency, "--table", "w=4,optimizer=add"]
    done = place.run("run", "-n", "2", "--combine", "sum", *words, "--", sys.executable, "raw.py", code=None)
    assert done.code != 0 and "Traceback" not in done.stderr.replace("[w", "")
    assert "NONFINITE" in done.stderr and "the step of block 0 of table 'w' leaves the range of f32" in done.stderr
    assert "worker 0 was refused: " in done.stderr or "worker 1 was refused: " in done.stderr
    (path,) = (place.directory / "plugml-runs").rglob("w.bin")
    assert path.parent.name == "failed", "they must not pass for a result"
    assert np.fromfile(path, "<f4") == pytest.approx([2e38 if consistency == "bsp" else 3e38] * 4), "the step before"


OVERFLOW = """
for _ in range(4):
    reply, text = ask("step", np.full(4, 1e38, "<f4").tobytes())
    if not reply.startswith("ok"):
        sys.exit(text)
"""


@pytest.mark.parametrize("consistency", ["bsp", "asp"])
def test_rows_that_overflow_leave_their_last_values_in_failed(place: Place, consistency: str) -> None:  # noqa: F811
    """On two servers: the dense table, which makes the step, is saved beside them."""
    place.write("rows.py", ROWS)
    tables = ["--table", "w=4,optimizer=add,combine=sum", "--table", "e=sparse,width=2,rows=10,optimizer=add,combine=sum"]
    done = place.run("run", "--servers", "2", "--consistency", consistency, *tables, "--", sys.executable, "rows.py", code=None)
    assert done.code != 0 and "of table 'e' leaves the range of f32" in done.stderr
    failed = place.directory / "plugml-runs/rows/failed"
    assert np.fromfile(failed / "e.idx", "<u4").tolist() == [3, 7]
    assert np.fromfile(failed / "e.bin", "<f4") == pytest.approx([3e38, 1, 3, 3])
    assert np.fromfile(failed / "w.bin", "<f4").tolist() in ([3.0] * 4, [4.0] * 4)


ROWS = """
import numpy as np
from plugml.client import attach
plug = attach()
for clock in plug.clocks(5):
    grads = [[1e38, 1 / 3], [1, 1]]
    plug.step({"w": np.ones(4, "<f4"), "e": ([3, 7], grads)}, want={"e": [3]})
"""


@pytest.mark.parametrize("language", ["c", "r", "sh", "python"])
def test_an_array_that_is_no_table_is_named_on_both_sides(place: Place, language: str) -> None:  # noqa: F811
    """The program has whole numbers (C), five elements (others); the table is another."""
    place.write("five.py", FIVE)
    each = [[sys.executable, "five.py"]] if language == "python" else commands(place, 3, 0, [language])
    table = "w=4:f32,optimizer=add"
    if language in ("r", "sh"):
        place.write("five.R", 'source(Sys.getenv("PLUGML_R")); p <- plugml_attach(); plugml_step(p, rep(1, 5))')
        place.write("five.sh", '. "$PLUGML_SH"; plugml_attach || exit; printf "1\\n1\\n1\\n1\\n1\\n" > five; plugml_step five five || exit')
        each = [["Rscript", "five.R"]] if language == "r" else [["sh", "five.sh"]]
    done = place.run("run", "--table", table, "--", *each[0], code=None)
    assert done.code not in (0, None) and "worker 0 on" in done.stderr
    assert "SIZE" in done.stderr, done.stderr
    words = ("i64", "f32") if language == "c" else ("5", "4")
    assert all(re.search(rf"\b{word}\b", done.stderr) for word in words), done.stderr
    assert not list((place.directory / "plugml-runs").rglob("w.bin"))


FIVE = """
import numpy as np
from plugml.client import attach
plug = attach()
plug.step(np.ones(5, "<f4"), np.zeros(5, "<f4"))
"""


# -- the channel root -------------------------------------------------------------------------------------------------


@pytest.fixture
def small(place: Place, tmp_path: Path, does_not_apply: Callable[[str], None]) -> Iterator[Path]:  # noqa: F811
    """A tmpfs of 4 MiB as channel root."""
    where = tmp_path / "small"
    where.mkdir()
    if os.getuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,mode=0700", "none", where], check=False).returncode:
        does_not_apply("only root can mount a small file system")
    place.environ["PLUGML_ROOT"] = str(where)
    yield where
    left = os.listdir(where)
    subprocess.run(["umount", "-l", where], check=True)
    assert not [name for name in left if name != "filler"], left


def test_a_root_that_is_too_small_is_refused_before_the_start(place: Place, small: Path) -> None:  # noqa: F811
    done = place.run("run", "-n", "3", "--table", "w=200000", "--", "true", code=73)
    assert f"the channels of 3 workers need 4.7 MiB, and {small}" in done.stderr
    assert "use fewer workers, or set PLUGML_ROOT to a larger tmpfs" in done.stderr
    nothing_happened(place, done)
    place.run("run", "-n", "2", "--table", "w=200000,optimizer=add", "--", sys.executable, "-c", ONCE)


ONCE = """
import numpy as np
from plugml.client import attach
plug = attach()
plug.step(np.ones(200000, "<f4"), np.zeros(200000, "<f4"))
"""


def test_a_root_that_fills_up_while_training_costs_only_who_needs_more(place: Place, small: Path) -> None:  # noqa: F811
    """Binary values were given their memory at the start; text needs more, and its program is told."""
    place.write("raw.py", RAW + FULL)
    done = place.run("run", "--table", "w=20000,optimizer=add", "--", sys.executable, "raw.py", str(small / "filler"))
    lines = [line.removeprefix("[w0] ").split("|") for line in done.stdout.splitlines()]
    assert lines[0][0].startswith("ok ") and lines[2][0].startswith("ok ") and lines[2][1] == "2.0"
    assert lines[1][0].split()[-1] == "code=NOSPC" and "full" in lines[1][1] and "worker 0 was refused: NOSPC" in done.stderr
    assert np.fromfile(place.directory / "plugml-runs/raw/w.bin", "<f4").tolist() == [2.0] * 20000


FULL = """
with open(sys.argv[1], "wb", buffering=0) as filler:
    try:
        while True:
            filler.write(bytes(4096))
    except OSError:
        pass
ones = np.ones(20000, "<f4")
def step(more=""):
    with open(channel + "/grad", "r+b") as file:
        file.write(ones.tobytes())
    return ask("step", None, more)
print(step("n=20000")[0], param("<f4")[7], sep="|")
print(*ask("pull", None, "fmt=text"), sep="|")
print(step("n=20000")[0], param("<f4")[7], sep="|")
"""


def test_a_generation_that_finds_no_room_ends_the_run_with_73(place: Place, small: Path) -> None:  # noqa: F811
    """Somebody else has taken the room that the dead generation left, while the master was away."""
    process = place.start("run", "-n", "2", "--table", "w=200000,optimizer=add", "--", sys.executable, "-c", MANY)
    process.heard("[w1] training")
    filler = (small / "filler").open("wb", buffering=0)
    kill(node_pid(process, "master"))
    kill(find_child(process.pid, [MANY])[0])
    try:
        while process.process.poll() is None:
            try:
                filler.write(bytes(4096))
            except OSError:
                wait_for(lambda: os.statvfs(small).f_bavail > 0 or process.process.poll() is not None, "room, or the end")
    finally:
        filler.close()
    done = process.ended(73)
    assert "no channel for worker" in done.stderr and "is full: " in done.stderr and "set PLUGML_ROOT to a larger one" in done.stderr


MANY = """
import numpy as np
from plugml.client import attach
plug = attach()
w = np.zeros(200000, "<f4")
for clock in plug.clocks(1000000):
    plug.step(np.ones(200000, "<f4"), w)
    if clock == 0:
        print("training", flush=True)
"""


def test_a_root_that_is_not_ours_alone_is_refused(place: Place, tmp_path: Path) -> None:  # noqa: F811
    cases = [(place.root / ("x" * 90), "is longer than 96 bytes, so no socket fits into it; choose a shorter PLUGML_ROOT")]
    if os.stat(tmp_path).st_dev != os.stat("/dev/shm").st_dev:
        cases.append((tmp_path / "disk", "not in memory; set PLUGML_ROOT to a directory on tmpfs such as one under /dev/shm, or say --allow-disk"))
    foreign = place.root / "foreign"
    if os.getuid() == 0:
        foreign.mkdir(mode=0o700)
        os.chown(foreign, 12345, 12345)
        cases.append((foreign, "belongs to user 12345, who could exchange it; set PLUGML_ROOT to a directory of your own"))
    cases.append((place.root / "a" / "b", f"parent {place.root}/a does not exist; make it or set PLUGML_ROOT"))
    for root, says in cases:
        place.environ["PLUGML_ROOT"] = str(root)
        done = place.run("run", "--table", "w=4", "--", "true", code=73)
        assert says in done.stderr, done.stderr
        assert not (place.directory / "plugml-runs").exists() and "Traceback" not in done.stderr
    if foreign.exists():
        foreign.rmdir()
    wide = place.root / "wide"
    wide.mkdir()
    wide.chmod(0o755)
    for says, owner in ((f"has mode 0755, others could reach it; run: chmod 700 {wide}", 0), ("belongs to user 12345, not to you", 12345)):
        if owner and os.getuid() != 0:
            continue
        os.chown(wide, owner or os.getuid(), -1)
        done = place.run("up", "-d", "--name", "x", "--root", str(wide), code=73)
        assert says in done.stderr and not os.listdir(wide)
    wide.rmdir()
    assert not os.listdir(place.root)


def test_a_disk_may_be_said_aloud(place: Place, tmp_path: Path) -> None:  # noqa: F811
    place.environ["PLUGML_ROOT"] = str(tmp_path / "r")
    (tmp_path / "r").mkdir(mode=0o700)
    place.run("run", "--allow-disk", "--table", "w=4,optimizer=add", "--", *place.trainer(3))
    assert not os.listdir(tmp_path / "r")


# -- two of one kind --------------------------------------------------------------------------------------------------


@pytest.fixture
def standing(place: Place) -> Iterator[Path]:  # noqa: F811
    """The root of a standing cluster of that name."""
    place.environ["PLUGML_ROOT"] = str(place.root / "c")
    place.run("up", "-d", "--name", "standing")
    yield place.root / "c"
    place.run("down", "standing", "--purge")


def test_what_is_taken_is_refused_and_its_holder_named(place: Place, standing: Path) -> None:  # noqa: F811
    document = json.loads(place.run("status", "--cluster", "standing", "--json").stdout)
    pids = {node["node"].partition(".")[0]: node["pid"] for node in document["nodes"]}
    where = ["--cluster", "standing"]
    done = place.run("server", *where, "--id", "s0", code=1)
    assert f"another process ({pids['s0']}) is node s0 of cluster standing on this host" in done.stderr
    done = place.run("agent", *where, "--id", "a1", code=73)
    assert f"another agent (process {pids['a0']}) serves the channel root {standing}" in done.stderr
    done = place.run("master", *where, "--id", "m0", code=1)
    assert "node m0 of cluster standing" in done.stderr or f"runs already (process {document['pid']})" in done.stderr
    done = place.run("master", *where, "--id", "m1", code=1)
    assert f"cluster standing runs already (process {document['pid']})" in done.stderr
    done = place.run("up", "-d", "--name", "standing", code=1)
    assert f"cluster standing runs already (process {document['pid']})" in done.stderr
    place.run("run", *where, "--table", "w=4,optimizer=add", "--", *place.trainer(3))


def test_a_running_jobs_name_is_taken(place: Place, standing: Path) -> None:  # noqa: F811
    """Also from another directory."""
    words = ["run", "--cluster", "standing", "--name", "mine", "--table", "w=4,optimizer=add"]
    first = place.start(*words, "--", *place.trainer(1_000_000, 0.01))
    await_channel(first, place.root, "mine.0.1")
    other = place.directory / "other"
    other.mkdir()
    here, place.directory = place.directory, other
    place.write("t.py", (here / "t.py").read_text())
    done = place.run(*words, "--", *place.trainer(3), code=2)
    assert "job 'mine' cannot be registered" in done.stderr and "--name" in done.stderr
    place.directory = here
    await_clock(first, standing, 0, 3, "mine")
    first.send(signal.SIGINT)
    first.ended(130)


# -- nonsense ---------------------------------------------------------------------------------------------------------

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)  # of ZMTP 3.0


def test_garbage_on_every_socket_while_training(place: Place, standing: Path) -> None:  # noqa: F811
    steps = 400
    process = place.start("run", "-f", str(job_file(place, commands(place, steps, 10, ["c", "sh"]), cluster="standing")))
    await_channel(process, place.root, "count.1.1")
    await_clock(process, standing, 1, 3)
    before = json.loads(place.run("status", "--cluster", "standing", "--json").stdout)
    sockets = [path for path in (*standing.iterdir(), *(standing / "ipc").iterdir()) if path.is_socket()]
    assert {path.name for path in sockets} == {"agent.sock", "m0", "s0", "s1", "notify"}
    for path in sockets:
        for data in (
            os.urandom(3000), b"GET / HTTP/1.1\r\n\r\n", GREETING, GREETING + os.urandom(500), GREETING + b"\x06" + b"\xff" * 8 + bytes(100),
            GREETING + b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER" + b"\x02" + struct.pack(">Q", 1 << 62) + bytes(4096),
            b"[" * 70_000, b"x" * 70_000,
            b'{"op": "exited", "id": 1, "job": "nobody", "worker": -1}\n{"op": 5}\nnull\n',
        ):  # fmt: skip
            shout(path, data)
        if path.parent.name == "ipc" and path.name != "notify":
            frames(path)
    assert process.process.poll() is None, f"training is over before the end of the noise:\n{process.stderr}"
    after = json.loads(place.run("status", "--cluster", "standing", "--json").stdout)
    assert [node["node"] for node in after["nodes"]] == [node["node"] for node in before["nodes"]], "nobody has died of it"
    done = process.ended()
    assert sums(place) == counted([steps] * 2) and done.stdout.count("count worker=") == 2

    def told() -> bool:
        lines = {line.split()[0][:2]: line for line in place.run("status", "--cluster", "standing").stdout.splitlines() if line}
        return "connections were nonsense" in lines["a0"] and all("messages were nonsense" in lines[id_] for id_ in ("s0", "s1"))

    wait_for(told, "status says who was sent nonsense")
    assert counter(standing, "garbage") >= 3


def frames(path: Path) -> None:
    """Good ZMTP, but no messages of ours; under names of ours, too."""
    context = zmq.Context()
    for identity in (b"a0.00000001", b"s0.00000001", b"m0", b"nobody at all"):
        dealer = context.socket(zmq.DEALER)
        dealer.set(zmq.IDENTITY, identity)
        dealer.set(zmq.LINGER, 1_000)
        dealer.connect(f"ipc://{path}")
        for _ in range(5):
            dealer.send_multipart([b"PLGM" + os.urandom(60), os.urandom(200)])
            dealer.send_multipart([b""] * 20)
        dealer.send(bytes(8 << 20))  # longer than any frame may be
        dealer.close()
    context.term()


def shout(path: Path, data: bytes) -> None:
    """Say it, and listen until we are thrown out or nothing more comes at once."""
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_UNIX, kind) as call:
            call.settimeout(0.05)
            try:
                call.connect(str(path))
                call.sendall(data)
                while call.recv(4096):
                    pass
            except OSError:
                continue
