"""The digits example for tests that run it several times: its shards, its C trainer, the accuracy of a result."""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "examples" / "digits"
CLOCKS = 200
ACCURACY_MIN = 0.95
TABLE = "w=10,65:f64,lr=1.0"
HANG_S = 300.0


class Digits(NamedTuple):
    """The prepared data, and how a worker is started on its shard."""

    data: Path
    trainer: Path
    shards: tuple[Path, ...]

    def words(self, out: Path, clocks: int = CLOCKS) -> list[str]:
        """`--worker ...` of four workers, each writing its last model into `out`."""
        found = []
        for number, shard in enumerate(self.shards):
            found += ["--worker", shlex.join([str(self.trainer), str(shard), str(clocks), str(out / f"w{number}.txt")])]
        return found

    def accuracy(self, result: Path) -> float:
        """Part of the held-out images that the model in a result gets right."""
        weights = np.fromfile(result / "w.bin").reshape(10, 65)
        return float(example("evaluate").accuracy(self.data / "test.txt", weights))


def example(name: str) -> Any:
    """A module of the example."""
    spec = importlib.util.spec_from_file_location(f"digits_{name}", DIGITS / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def prepared(directory: Path) -> Digits:
    """Data and a compiled trainer in the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, str(DIGITS / "prepare.py"), str(directory / "data")], capture_output=True, text=True, timeout=HANG_S, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    client = ROOT / "clients" / "c"
    trainer = directory / "trainer"
    command = [os.environ.get("CC", "cc"), "-O2", "-ffp-contract=off", f"-I{client}", DIGITS / "trainer.c", client / "plugml.c", "-lm", "-o", trainer]
    subprocess.run(command, check=True, timeout=HANG_S)
    shards = tuple(sorted((directory / "data").glob("shard*.txt")))
    assert len(shards) == 4
    return Digits(directory / "data", trainer, shards)
