"""A result read by the very examples of docs/result.md, in Python, R and C; and what they must have found.

The result has the tables w (2,3 f64), m (2,3 f32 order F), e (sparse u32, width 2) and s (sparse str, width 2), in all formats.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = (ROOT / "docs" / "result.md").read_text()
HANG_S = 120.0
OPTIONS = [word for word in re.findall(r"--table (\S+)", DOCUMENT)]

#: Behind the example in R: everything that it has read, a number or a name a line, exact to the last bit.
R_TOLD = r"""
tell <- function(name, x) cat(name, paste(sprintf("%.17g", as.numeric(x)), collapse = " "), "\n", sep = "\t")
tell("w", t(w)); tell("m", t(m)); tell("e", t(e)); tell("s", t(s))
cat("e.rows", paste(rownames(e), collapse = " "), "\n", sep = "\t"); cat("s.keys", paste(rownames(s), collapse = "|"), "\n", sep = "\t")
tell("w4", t(w4)); tell("m4", t(m4)); tell("e4", t(as.matrix(e4[, -1]))); tell("s4", t(as.matrix(s4[, -1])))
tell("e4.rows", e4$row); stopifnot(!is.na(s4$key)); cat("s4.keys", paste(s4$key, collapse = "|"), "\n", sep = "\t")
"""


class Tables(NamedTuple):
    """What a result must hold; rows of sparse tables by number or key, in order."""

    w: Any
    m: Any
    e: dict[int, Any]
    s: dict[str, Any]


def example(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", DOCUMENT, re.DOTALL)
    return str(found)


def check_numpy(directory: Path, wanted: Tables, monkeypatch: Any) -> None:
    monkeypatch.chdir(directory)
    found: dict[str, Any] = {}
    exec(compile(example("python"), "docs/result.md", "exec"), found)
    for name in ("w", "w2", "w3", "w4"):
        assert found[name].dtype == "f8" and np.array_equal(found[name], wanted.w), name
    for name in ("m", "m2", "m3"):
        assert found[name].dtype == "f4" and np.array_equal(found[name], wanted.m), name
    for name, rows in (("e", wanted.e), ("e2", wanted.e), ("e3", wanted.e), ("s", wanted.s), ("s2", wanted.s)):
        assert list(found[name]) == list(rows), name
        for row, values in rows.items():
            assert found[name][row].dtype == "f4" and np.array_equal(found[name][row], values), (name, row)


def check_r(directory: Path, wanted: Tables) -> None:
    done = subprocess.run(
        ["Rscript", "--vanilla", "-e", example("r") + R_TOLD], cwd=directory, capture_output=True, text=True, timeout=HANG_S, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = dict(line.split("\t")[:2] for line in done.stdout.splitlines())

    def numbers(name: str, dtype: str) -> Any:
        return np.array([float(word) for word in told[name].split()]).astype(dtype)

    for name, dtype, values in (("w", "f8", wanted.w), ("m", "f4", wanted.m), ("m4", "f4", wanted.m)):
        assert np.array_equal(numbers(name, dtype), np.ravel(values)), name
    # R's own reader of decimals may be one bit off in an f64; what is f32 comes back whole.
    assert np.allclose(numbers("w4", "f8"), np.ravel(wanted.w), rtol=3e-16, atol=0)
    for name, rows in (("e", wanted.e), ("e4", wanted.e), ("s", wanted.s), ("s4", wanted.s)):
        assert np.array_equal(numbers(name, "f4"), np.ravel(list(rows.values()))), name
    for name in ("e.rows", "e4.rows"):
        assert [int(word) for word in told[name].split()] == list(wanted.e), name
    for name in ("s.keys", "s4.keys"):
        assert told[name].split("|") == list(wanted.s), name


def check_c(directory: Path, scratch: Path, wanted: Tables) -> None:
    (scratch / "read.c").write_text(example("c"))
    program = scratch / "read"
    subprocess.run(["gcc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-O2", "-o", program, scratch / "read.c"], check=True, timeout=HANG_S)
    done = subprocess.run([program], cwd=directory, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    first = re.match(r"w\[1\]\[2\] (\S+), m\[1\]\[2\] (\S+)", lines[0])
    assert first and float(first[1]) == wanted.w[1][2] and np.float32(first[2]) == wanted.m[1][2]
    assert float(lines[-1].split()[1]) == wanted.w[1][2]
    for word, rows in (("e", wanted.e), ("s", wanted.s), ("e.csv", wanted.e)):
        told = [line.split() for line in lines if line.split()[0] == word]
        assert [label for _, label, *_ in told] == [str(row) for row in rows], word
        assert np.array_equal(np.array([values for _, _, *values in told], "f4"), np.array(list(rows.values()), "f4")), word
