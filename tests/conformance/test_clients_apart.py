"""What is particular to one client: how C compiles, several tables by name, R's arrays, matrices shared between languages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from plugml.core.errors import Code
from plugml.core.job import JobSpec
from plugml.core.table import TableSpec
from plugml.shm_protocol import numbers
from plugml.shm_protocol.info import without

from .fake_agent import FakeAgent, run
from .languages import C_CLIENT, ENVIRONMENT, HERE, STRICT, TOP, compile_c

HANG_S = 60.0
TABLES = HERE / "drivers" / "tables.c"

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.mark.parametrize(
    ("compiler", "standard"),
    [("gcc", "c99"), ("gcc", "c11"), ("gcc", "gnu17"), ("g++", "c++11"), ("g++", "c++17")],
)
def test_c_client_compiles_without_a_warning_and_serves_several_tables(
    compiler: str, standard: str, tmp_path: Path, require: Callable[[str], None]
) -> None:
    require(compiler)
    sanitize = () if compiler == "g++" else ("-fsanitize=address,undefined", "-g")
    program = compile_c(tmp_path / "tables", TABLES, *STRICT, *sanitize, compiler=compiler, standard=standard)
    tables = TableSpec("bias", (3,), optimizer="add"), TableSpec("seen", (5,), dtype="i64", optimizer="add")
    agent = FakeAgent(JobSpec("tables", 1, tables))
    with agent:
        plugged = subprocess.run([program], env=agent.environment(), capture_output=True, text=True, timeout=HANG_S)
    alone = subprocess.run([program, "alone"], env=without(os.environ), capture_output=True, text=True, timeout=HANG_S)

    assert (plugged.returncode, plugged.stderr) == (0, "")
    assert (alone.returncode, alone.stderr) == (0, "")
    assert agent.byes == {0}


def test_c_client_compiles_by_the_one_line_of_its_readme(tmp_path: Path, require: Callable[[str], None]) -> None:
    require("cc")
    for name in ("plugml.h", "plugml.c", "plugml_shm.h"):
        (tmp_path / name).write_bytes((C_CLIENT / name).read_bytes())
    (tmp_path / "trainer.c").write_bytes((TOP / "examples" / "hello" / "hello.c").read_bytes())
    subprocess.run(["cc", "-O2", "trainer.c", "plugml.c", "-o", "trainer"], cwd=tmp_path, check=True, timeout=HANG_S)
    done = subprocess.run([tmp_path / "trainer", "3"], env=without(os.environ), capture_output=True, text=True, timeout=HANG_S)

    assert done.stdout.startswith("clock=3 w=-0.3")


def test_codes_are_the_same_numbers_everywhere() -> None:
    header = (C_CLIENT / "plugml.h").read_text()
    found = {name: int(number) for name, number in re.findall(r"PLUGML_([A-Z]+) = (\d+)", header)}
    script = (TOP / "clients" / "r" / "plugml.R").read_text()
    words = re.findall(r'"([A-Z]+)"', script[script.index("plugml_codes <- c(") : script.index("# ---- beginning")])

    assert found == {code.name: int(code) for code in Code}
    assert words == [code.name for code in Code]


# -- matrices: the element [i, j] is the same in every language


def matrix_job(order: str, workers: int) -> JobSpec:
    return JobSpec("matrix", workers, (TableSpec("m", (2, 3), dtype="f64", order=order, optimizer="add"),), combine="sum")


R_MATRIX = """
source(Sys.getenv("PLUGML_R"))
p <- plugml_attach()
G <- outer(0:1, 0:2, function(i, j) 10 * i + j)
W <- plugml_step(p, G)
stopifnot(identical(dim(W), c(2L, 3L)))
cat(sprintf("%g,%g,%g\\n", W[1, 3], W[2, 1], W[2, 2]))
wrong <- tryCatch(plugml_step(p, t(G)), plugml_SIZE = function(e) conditionMessage(e))
stopifnot(grepl("2x3", wrong), grepl("3x2", wrong))
plain <- plugml_pull(p, numeric(6))
stopifnot(is.null(dim(plain)), length(plain) == 6)
cat(plain, sep = " ")
invisible(plugml_bye(p))
"""

PYTHON_MATRIX = """
import numpy as np
from plugml.client import attach
plug = attach()
w = np.zeros((2, 3))
plug.step(np.fromfunction(lambda i, j: 1000 * (10 * i + j), (2, 3)), w)
print(f"{w[0, 2]:g},{w[1, 0]:g},{w[1, 1]:g}", end="")
plug.bye()
"""


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_matrix_means_the_same_in_python_and_r(order: str, tmp_path: Path, require: Callable[[str], None]) -> None:
    require("Rscript")
    (tmp_path / "m.R").write_text(R_MATRIX)
    (tmp_path / "m.py").write_text(PYTHON_MATRIX)
    top = TOP
    script = 'exec env PYTHONPATH="$1" PLUGML_R="$2" "$3" "$4" > "$5"'
    out = tmp_path / "r.out", tmp_path / "python.out"
    agent = FakeAgent(matrix_job(order, 2))
    codes = run(agent, [
        ["sh", "-c", script, "-", str(top), ENVIRONMENT["PLUGML_R"], "Rscript", str(tmp_path / "m.R"), str(out[0])],
        ["sh", "-c", script, "-", str(top), ENVIRONMENT["PLUGML_R"], sys.executable, str(tmp_path / "m.py"), str(out[1])],
    ])  # fmt: skip

    assert codes == [0, 0]
    expected = 1001.0 * np.fromfunction(lambda i, j: 10 * i + j, (2, 3))
    first, second = out[0].read_text().splitlines()
    assert first == out[1].read_text() == "2002,10010,11011"
    assert [float(word) for word in second.split()] == expected.ravel(order).tolist()
    assert np.array_equal(numbers.view(agent.server.values, agent.infos[0].dense[0]), expected.ravel(order))


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_shell_writes_a_matrix_in_the_files_order(order: str, tmp_path: Path) -> None:
    script = tmp_path / "m.sh"
    script.write_text(
        '. "$PLUGML_SH"\nplugml_attach || exit\nprintf "%s\\n" 0 1 2 10 11 12 > g\nplugml_step g w || exit\ntr "\\n" " " < w > out\nplugml_bye\n'
    )
    agent = FakeAgent(matrix_job(order, 1))
    codes = run(agent, [["env", f"PLUGML_SH={ENVIRONMENT['PLUGML_SH']}", "sh", str(script)]], cwd=str(tmp_path))

    assert codes == [0]
    assert [float(word) for word in (tmp_path / "out").read_text().split()] == [0, 1, 2, 10, 11, 12]


# -- R


R_TABLES = """
source(Sys.getenv("PLUGML_R"))
p <- plugml_attach()
W <- plugml_pull(p)
stopifnot(identical(names(W), c("m", "n")), identical(dim(W$m), c(2L, 2L)), identical(W$n, c(0, 0, 0)))
W <- plugml_step(p, list(n = c(1, 2, 3), m = matrix(1:4, 2)))
stopifnot(W$m[1, 2] == 3, W$n[3] == 3)
wrong <- function(expr) tryCatch({ expr; "nothing" }, plugml_error = function(e) e$code)
stopifnot(wrong(plugml_step(p, 1:3)) == "SIZE", wrong(plugml_step(p, list(n = 1:3))) == "SIZE",
          wrong(plugml_step(p, list(n = 1:3, m = 1:3))) == "SIZE", wrong(plugml_step(p, list(n = 1:3, m = 1:4, o = 1))) == "RANGE",
          wrong(plugml_step(p, list(n = c(1, 2, NA), m = 1:4))) == "NONFINITE",
          wrong(plugml_step(p, list(n = c(1, 2, 0.5), m = 1:4))) == "RANGE", wrong(plugml_step(p, list(n = 1:3, m = letters[1:4]))) == "FORMAT")
stopifnot(plugml_clock(p) == 1, plugml_done(p))
stopifnot(wrong(plugml_step(p, list(n = 1:3, m = c(1, 2, 3, NaN)))) == "NONFINITE")
W <- plugml_step(p, list(n = 1:3, m = matrix(1:4, 2)))
stopifnot(W$n[3] == 6, !plugml_done(p), plugml_clock(p) == 2, plugml_version(p) > 0, plugml_lag(p) == 0)
plugml_bye(p)
stopifnot(wrong(plugml_step(p, list(n = 1:3, m = 1:4))) == "GONE")
"""


def test_r_takes_and_gives_a_named_list_of_tables(tmp_path: Path, require: Callable[[str], None]) -> None:
    require("Rscript")
    (tmp_path / "t.R").write_text(R_TABLES)
    tables = TableSpec("m", (2, 2), dtype="f64", optimizer="add"), TableSpec("n", (3,), dtype="i64", optimizer="add")
    agent = FakeAgent(JobSpec("lists", 1, tables))
    codes = run(agent, [["env", f"PLUGML_R={ENVIRONMENT['PLUGML_R']}", "Rscript", "--vanilla", str(tmp_path / "t.R")]])

    assert codes == [0]
    assert agent.server.pushes == [2] and agent.byes == {0}


@pytest.mark.parametrize("magic", [0x8B1F, 0x685A42, 0x587A37FD])  # gzip, bzip2, xz
def test_r_does_not_take_values_for_a_compressed_file(magic: int, tmp_path: Path, require: Callable[[str], None]) -> None:
    require("Rscript")
    script = tmp_path / "z.R"
    script.write_text(
        f'source(Sys.getenv("PLUGML_R"))\np <- plugml_attach()\nfor (i in 1:2) w <- plugml_step(p, rep({magic}, 4) * (i == 1))\n'
        f"stopifnot(w == {magic})\nplugml_bye(p)\n"
    )
    agent = FakeAgent(JobSpec("zip", 1, (TableSpec("n", (4,), dtype="i64", optimizer="add"),)))
    codes = run(agent, [["env", f"PLUGML_R={ENVIRONMENT['PLUGML_R']}", "Rscript", "--vanilla", str(script)]])

    assert codes == [0]


# -- counting with several workers, while the agent dies


@pytest.mark.parametrize("consistency", ["bsp", "asp"])
def test_no_push_is_lost_or_doubled_while_the_agent_dies_at_every_store(
    consistency: str, tmp_path: Path, require: Callable[[str], None]
) -> None:
    require("Rscript")
    require("gcc")
    examples = TOP / "examples" / "hello"
    count = compile_c(tmp_path / "count", examples / "count.c", *STRICT)
    steps, n = 12, 50
    table = TableSpec("w", (n,), dtype="i64", optimizer="add")
    faults = [f"restart@{seq}:{1 + seq % 9}" for seq in range(1, steps + 2)]
    agent = FakeAgent(JobSpec("count", 3, (table,), consistency=consistency), faults)
    own = [f"{key}={value}" for key, value in ENVIRONMENT.items()]
    codes = run(agent, [
        [str(count), str(steps)],
        ["env", *own, "Rscript", "--vanilla", str(examples / "count.R"), str(steps)],
        ["env", *own, "sh", str(examples / "count.sh"), str(steps)],
    ])  # fmt: skip

    assert codes == [0, 0, 0]
    assert agent.deaths >= steps
    pushed = sum((clock + 1) * (worker + 1) for clock in range(steps) for worker in range(3))
    expected = pushed + 3 * steps * np.arange(n)
    assert np.array_equal(numbers.view(agent.server.values, agent.infos[0].dense[0]), expected)
    assert agent.server.pushes == [steps] * 3


@pytest.mark.parametrize("language", ["c", "python", "sh"])
def test_the_smallest_trainers_run_alone_and_plugged(language: str, tmp_path: Path, require: Callable[[str], None]) -> None:
    hello = TOP / "examples" / "hello"
    if language == "c":
        require("gcc")
        command = [str(compile_c(tmp_path / "hello", hello / "hello.c", *STRICT))]
    else:
        command = [sys.executable, str(hello / "hello.py")] if language == "python" else ["sh", str(hello / "hello.sh")]
    environ = {"PYTHONPATH": str(TOP), **ENVIRONMENT}
    alone = subprocess.run([*command, "10"], env={**without(os.environ), **environ}, capture_output=True, text=True, timeout=HANG_S)
    agent = FakeAgent(JobSpec("hello", 1, (TableSpec("w", (4,), settings={"lr": 0.1}),)))
    with agent:
        plugged = subprocess.run([*command, "10"], env={**agent.environment(), **environ}, capture_output=True, text=True, timeout=HANG_S)

    assert (alone.returncode, alone.stderr, plugged.returncode, plugged.stderr) == (0, "", 0, "")
    expected = "clock=10 w=-1.00000012,-1.00000012,-1.00000012,-1.00000012\n"
    assert plugged.stdout == expected
    assert alone.stdout == (expected if language != "sh" else "clock=10 w=-1,-1,-1,-1\n")  # a shell's own step is in float64
    assert agent.server.pushes == [10]
