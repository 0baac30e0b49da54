"""The same words as in test_clients_rows.py, said by programs under `plugml run`: the real agent and servers answer as the scripted ones."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

from tests.system.run_kit import Place, place  # noqa: F401

from .compiled import RECIPES
from .languages import ENVIRONMENT, STRICT, TOP, Toolchains, compile_c
from .test_clients_rows import COLLIDING, TALK, TOLD, ok, refused

HASHED = TOP / "examples" / "hashed"
TABLES = (
    "--table", "e=sparse:f32,width=2,rows=100,index=u32,batch=6,optimizer=add",
    "--table", "w=3:f64,optimizer=add",
    "--table", "f=sparse:f64,width=3,index=u64,batch=5,optimizer=add",
    "--table", "s=sparse:i64,width=1,index=str,batch=4,optimizer=add",
)  # fmt: skip


def said(place: Place, *words: str, code: int = 0) -> tuple[dict[str, list[str]], str]:  # noqa: F811
    """What each worker printed, and what plugml and all of them said on stderr."""
    place.environ |= ENVIRONMENT
    done = place.run("run", "--name", "talk", "--combine", "sum", *words, code=code)
    lines: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        worker, _blank, text = line.partition(" ")
        lines.setdefault(worker.strip("[]"), []).append(text)
    return lines, done.stderr


@pytest.mark.parametrize(
    ("name", "servers", "bell"),
    [("python", 1, "fifo"), ("python", 3, "sem"), ("c", 3, "fifo"), ("c", 1, "sem"), ("r", 1, "fifo"), ("dash", 2, "fifo"), ("mksh", 1, "fifo")]
    + [(name, 2, "fifo") for name in RECIPES],
)
def test_the_whole_conversation(place: Place, name: str, servers: int, bell: str, toolchains: Toolchains, require: Callable[[str], None]) -> None:  # noqa: F811
    if bell == "sem":
        require("module:posix_ipc")
        place.plugml = [sys.executable, "-m", "tests.marked"]
    command = [*toolchains.language(name).rows, *TALK]
    lines, _errors = said(place, "--servers", str(servers), "--bell", bell, *TABLES, "--", *command)

    assert lines == {"w0": TOLD}
    runs = place.directory / "plugml-runs" / "talk"
    rows = np.fromfile(runs / "e.bin", "<f4").reshape(-1, 2)
    numbers = np.fromfile(runs / "e.idx", "<u4")
    assert dict(zip(numbers.tolist(), rows.tolist())) == {5: [22, 24], 99: [11, 12], 0: [3, 5]}
    assert place.is_clean()


@pytest.mark.parametrize("name", ["python", "c", "r", "dash"])
def test_keys_that_collide_and_rows_that_are_none(place: Place, name: str, toolchains: Toolchains) -> None:  # noqa: F811
    ops = (f"rows:s:{COLLIDING[0]}:1", "step:1", f"rows:s:{COLLIDING[1]}:1", "step:1", "rows:e:100:1", "step:1", f"want:s:{COLLIDING[0]}", "pull:", "bye")
    lines, errors = said(place, *TABLES, "--", *toolchains.language(name).rows, *ops)

    assert lines["w0"] == [ok("step:1", 1, "w=1,2,3"), refused("step:1", "COLLIDE", 1), refused("step:1", "RANGE", 1), ok("pull:", 1, "w=1,2,3 s=1")]
    assert all(key in errors for key in COLLIDING)


@pytest.mark.parametrize("name", ["python", "c", "r", "dash"])
def test_pieces_and_the_stop_rule(place: Place, name: str, toolchains: Toolchains) -> None:  # noqa: F811
    for number in range(3):
        place.write(f"part {number}.txt", "")
    ops = ["next", "step:1", *["next"] * 6, "step:1", "step:1", "want:e:1", "pull:", "bye"]
    words = ["--pieces", "part *.txt", "--passes", "2", "--clocks", "2", *TABLES]
    lines, _errors = said(place, *words, "--", *toolchains.language(name).rows, *ops)

    pieces = [line for line in lines["w0"] if line.startswith("next ")]
    assert [line.split(" lag=0 ")[1].split(":")[:2] for line in pieces[:6]] == [[str(n), str(turn)] for turn in (0, 1) for n in range(3)]
    assert all(line.endswith(f"part {n % 3}.txt") for n, line in enumerate(pieces[:6])) and pieces[6].endswith(" none")
    after = [line for line in lines["w0"] if not line.startswith("next ")]
    assert after == [
        ok("step:1", 1, "w=1,2,3"), ok("step:1", 2, "w=2,4,6", stopped=1), "step:1 S STOP clock=2 stopped=1 lag=0", ok("pull:", 2, "w=2,4,6 e=0,0", stopped=1),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["python", "c", "r", "dash"])
def test_accepted_pushes_and_limits_between_two_workers(place: Place, name: str, toolchains: Toolchains) -> None:  # noqa: F811
    """A step whose limit is over while the other worker is asleep counts all the same."""
    drive = " ".join(f"'{word}'" for word in toolchains.language(name).rows)
    first = place.write("first.sh", f"{drive} async:1 rows:e:1:1 async:1 async:1 timeout:200 step:1 end\ntouch go\nexec {drive} pull: bye\n")
    second = place.write("second.sh", f"until [ -e go ]; do sleep 0.05; done\nexec {drive} rows:e:1:10 step:10 bye\n")
    lines, _errors = said(place, *TABLES, "--worker", f"sh {first}", "--worker", f"sh {second}")

    accepted = [ok("async:1", 0)] * 3
    assert lines["w0"] == [*accepted, refused("step:1", "TIMEOUT", 1), ok("pull:", 1, "w=14,19,24")]
    assert [line.replace(" lag=0", "") for line in lines["w1"]] == ["step:10 1 OK clock=1 stopped=0 w=14,19,24"]


def test_the_sparse_example_as_its_readme_says(place: Place, require: Callable[[str], None]) -> None:  # noqa: F811
    require("gcc")
    data = place.directory
    subprocess.run([sys.executable, str(HASHED / "generate.py"), str(data), "5", "1000"], check=True)
    program = str(compile_c(data / "trainer", HASHED / "trainer.c", *STRICT))
    (data / "all.txt").write_text("".join((data / f"part{part}.txt").read_text() for part in range(4)))

    def accuracy(*weights: str) -> float:
        command = [sys.executable, str(HASHED / "evaluate.py"), "part4.txt", *weights]
        environ = {**place.environ, **ENVIRONMENT}
        done = subprocess.run(command, cwd=data, env=environ, check=True, capture_output=True, text=True)
        return float(done.stdout.split("accuracy=")[1].split()[0])

    for words in (["all.txt", "5", "serial"], ["part0.txt", "5", "shard"]):
        subprocess.run([program, *words], cwd=data, env=place.environ, check=True, capture_output=True)
    for name, command in {"c": [program], "python": [sys.executable, str(HASHED / "trainer.py")]}.items():
        lines, _errors = said(place, "-n", "4", "--table", "w=sparse:f32,width=1,index=u64,lr=2", "--", *command, "part{worker}.txt", "5", f"{name}{{worker}}")
        assert sorted(lines) == ["w0", "w1", "w2", "w3"] and all(len(printed) == 5 for printed in lines.values())
        together = accuracy(*(f"{name}{worker}" for worker in range(4)))
        assert together > accuracy("shard") + 0.01 and together > accuracy("serial") - 0.02
