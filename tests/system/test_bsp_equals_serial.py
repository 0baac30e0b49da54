"""BSP equals the serial full-batch program, step by step: 1, 2 and 4 workers, equal and unequal shards, every language.

The trainers are the demo's, with one line more that writes the model down after each step.  The data are a small part of
the digits, since a shell is slow.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tests.conformance.languages import ENVIRONMENT, EXAMPLES, STRICT, TOP, compile_c
from tests.leaks import own_root

STEPS = 60
LR = "0.3"  # not a power of two: every product is rounded
ROWS = 96
WEIGHTS = 650
HANG_S = 300.0
TRAINERS = EXAMPLES / "digits"

#: After which text of each trainer the line that writes the model down goes, and that line.
TRACE = {
    "c": (
        "                w[i] -= lr * g[i];\n",
        '        FILE *trace = fopen(getenv("TRACE"), "a");\n'
        '        for (int i = 0; i < COUNT; i++)\n            fprintf(trace, "%.17g\\n", (double)w[i]);\n        fclose(trace);\n',
    ),
    "py": ("        w -= lr * g\n", '    with open(__import__("os").environ["TRACE"], "a") as trace:\n        np.savetxt(trace, w.ravel(), fmt="%.17g")\n'),
    "R": ("# plugml: was W <- W - lr * G\n", '  cat(sprintf("%.17g\\n", t(W)), sep = "", file = Sys.getenv("TRACE"), append = TRUE)\n'),
    "sh": ("# plugml: was only the update\n", '    cat "$w" >> "$TRACE"\n'),
}

SHARDS = {
    "one worker": (96,),
    "two equal": (48, 48),
    "two unequal": (71, 25),
    "four equal": (24, 24, 24, 24),
    "four unequal": (45, 31, 17, 3),
}


class Trained(NamedTuple):
    """The model after each step, as every worker saw it."""

    traces: list[np.ndarray]  # each STEPS x WEIGHTS


class Bench:
    """A standing cluster, the data, and the traced trainers; each serial run is made once."""

    def __init__(self, directory: Path, root: Path, require: Callable[[str], None]) -> None:
        self.directory = directory
        self.require = require
        self.environ = {
            **{key: value for key, value in os.environ.items() if not key.startswith("PLUGML_") or key == "PLUGML_TEST_MARK"},
            **ENVIRONMENT, "PYTHONPATH": str(TOP), "XDG_STATE_HOME": str(directory / "state"), "PLUGML_ROOT": str(root),
        }  # fmt: skip
        self._runs = 0
        self._commands: dict[tuple[str, str], list[str]] = {}
        self._serial: dict[tuple[str, str], np.ndarray] = {}
        self.rows = self._data()

    def _data(self) -> list[str]:
        from sklearn.datasets import load_digits

        digits = load_digits()
        return [f"{label} {' '.join(str(int(pixel)) for pixel in image)}\n" for label, image in zip(digits.target[:ROWS], digits.data[:ROWS])]

    def plugml(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "plugml", *words]
        return subprocess.run(command, env=self.environ, capture_output=True, text=True, timeout=HANG_S, stdin=subprocess.DEVNULL)

    def command(self, language: str, dtype: str) -> list[str]:
        if (language, dtype) not in self._commands:
            self._commands[language, dtype] = self._build(language, dtype)
        return self._commands[language, dtype]

    def _build(self, language: str, dtype: str) -> list[str]:
        suffix = {"c": "c", "python": "py", "r": "R"}.get(language, "sh")
        source = self.directory / f"trainer.{suffix}"
        source.write_text(traced((TRAINERS / source.name).read_text(), suffix))
        if language == "c":
            self.require("gcc")
            real = "float" if dtype == "f32" else "double"
            return [str(compile_c(self.directory / f"trainer-{dtype}", source, *STRICT, f"-DREAL={real}"))]
        if language == "python":
            return [sys.executable, str(source)]
        self.require({"r": "Rscript"}.get(language, language))
        return ["Rscript", "--vanilla", str(source)] if language == "r" else [language, str(source)]

    def words(self, language: str, dtype: str, shard: Path, out: Path) -> list[str]:
        """One trainer's command line."""
        trace = f"TRACE={out}"
        last = [dtype] if language == "python" else []
        return ["env", trace, *self.command(language, dtype), str(shard), str(STEPS), f"{out}.last", LR, *last]

    def serial(self, language: str, dtype: str) -> np.ndarray:
        """The trace of one program alone on all rows."""
        if (language, dtype) not in self._serial:
            shard, out = self.directory / "all.txt", self.directory / f"serial-{language}-{dtype}"
            shard.write_text("".join(self.rows))
            subprocess.run(
                self.words(language, dtype, shard, out), env=self.environ, check=True, timeout=HANG_S, stdout=subprocess.DEVNULL
            )
            self._serial[language, dtype] = read_trace(out)
        return self._serial[language, dtype]

    def train(self, languages: tuple[str, ...], dtype: str, shards: tuple[int, ...]) -> Trained:
        """One worker per shard, by `plugml run` on the standing cluster."""
        self._runs += 1
        place = self.directory / f"run{self._runs}"
        place.mkdir()
        command = ["run", "--cluster", "bench", "--quiet", "--name", place.name, "--consistency", "bsp", "--result", str(place / "result")]
        command += ["--table", f"w=10,65:{dtype},lr={LR}"]
        start = 0
        for number, (language, rows) in enumerate(zip(languages, shards)):
            shard = place / f"shard{number}"
            shard.write_text("".join(self.rows[start : start + rows]))
            start += rows
            command += ["--worker", shlex.join(self.words(language, dtype, shard, place / f"trace{number}"))]
        assert start == ROWS
        done = self.plugml(*command)
        assert done.returncode == 0, done.stdout + done.stderr
        return Trained([read_trace(place / f"trace{number}") for number in range(len(shards))])


def traced(text: str, suffix: str) -> str:
    """A trainer's source that writes the model down after each step."""
    after, line = TRACE[suffix]
    assert text.count(after) == 1, f"trainer.{suffix} has changed: where does its step end?"
    return text.replace(after, after + line)


def read_trace(path: Path) -> np.ndarray:
    values = np.loadtxt(path)
    assert values.size == STEPS * WEIGHTS
    return values.reshape(STEPS, WEIGHTS)


def check_equal(trained: Trained, serial: np.ndarray, relative: float) -> None:
    """Every worker saw the same model after each step, and it was the serial one."""
    for trace in trained.traces[1:]:
        assert np.array_equal(trace, trained.traces[0])
    difference = np.abs(trained.traces[0] - serial).max(axis=1) / np.abs(serial).max(axis=1)
    assert difference.max() <= relative, f"step {int(difference.argmax()) + 1} differs by {difference.max():.2e}"


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, require: Callable[[str], None]) -> Iterator[Bench]:
    require("module:sklearn")
    root = own_root("bsp")
    bench = Bench(tmp_path_factory.mktemp("bsp"), root, require)
    up = bench.plugml("up", "-d", "--name", "bench", "--servers", "2")
    assert up.returncode == 0, up.stderr
    yield bench
    down = bench.plugml("down", "bench")
    assert down.returncode == 0, down.stderr
    assert not root.exists() or not list(root.iterdir())
    if root.exists():
        root.rmdir()


@pytest.mark.parametrize("shards", SHARDS.values(), ids=SHARDS)
@pytest.mark.parametrize("language", ["c", "python", "r", "dash"])
def test_workers_together_are_the_serial_program_in_float64(language: str, shards: tuple[int, ...], bench: Bench) -> None:
    trained = bench.train((language,) * len(shards), "f64", shards)

    check_equal(trained, bench.serial("c", "f64"), 1e-12)


@pytest.mark.parametrize("shards", SHARDS.values(), ids=SHARDS)
@pytest.mark.parametrize("language", ["c", "python", "r", "dash"])
def test_workers_together_are_the_serial_program_in_float32(language: str, shards: tuple[int, ...], bench: Bench) -> None:
    trained = bench.train((language,) * len(shards), "f32", shards)

    check_equal(trained, bench.serial("c", "f32"), 1e-5)
    if language != "dash":  # text has only as many digits as bring the float back
        assert np.array_equal(np.float32(trained.traces[0]), trained.traces[0])


def test_four_languages_together_are_the_serial_program(bench: Bench) -> None:
    trained = bench.train(("c", "python", "r", "dash"), "f64", SHARDS["four unequal"])

    check_equal(trained, bench.serial("c", "f64"), 1e-12)


@pytest.mark.parametrize(("language", "dtype"), [("c", "f64"), ("c", "f32"), ("python", "f64"), ("python", "f32")])
def test_one_worker_is_bit_for_bit_the_program_alone(language: str, dtype: str, bench: Bench) -> None:
    trained = bench.train((language,), dtype, SHARDS["one worker"])

    assert np.array_equal(trained.traces[0], bench.serial(language, dtype))
