"""docs/run.md and docs/job.md are kept honest: their example runs, and no key, flag or exit code is left out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from plugml.cli.run import run
from plugml.launch.jobfile import JOB_KEYS, PLAIN, SECTIONS, WORKER_KEYS
from plugml.launch.tables import TABLE_KEYS

ROOT = Path(__file__).resolve().parents[2]
RUN, JOB = ((ROOT / "docs" / name).read_text() for name in ("run.md", "job.md"))
HANG_S = 120.0


def example() -> str:
    return re.findall(r"```toml\n(.*?)```", RUN, re.DOTALL)[0]


def test_every_key_and_flag_is_there() -> None:
    for key in (*WORKER_KEYS, *(key for keys in PLAIN.values() for key in keys)):
        assert f"`{key}`" in RUN, key
    for section in SECTIONS:
        assert f"[{section}]" in RUN, section
    for key in TABLE_KEYS:
        assert re.search(rf"\b{key}\b", JOB), key
    for option in run.params:
        flags = [flag for flag in option.opts if flag.startswith("-")]
        assert not flags or any(re.search(rf"(?<![\w-]){flag}(?![\w-])", RUN) for flag in flags), f"{flags} is not in docs/run.md"
    assert set(tomllib.loads(example())["job"]) == set(JOB_KEYS) - {"cluster"}


def test_the_example_runs(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(example())
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(tmp_path / "state")}
    words = [sys.executable, "-m", "plugml", "run", "-f", str(tmp_path / "job.toml"), "--result", str(tmp_path / "result")]
    done = subprocess.run(words, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr
    names = {path.name for path in (tmp_path / "result").iterdir()}
    assert {"w.bin", "tables.npz", "result.json", "logs"} <= names
    assert done.stdout.count("clock=20 w=") == 2
