"""`make demo`, as a person sees it: with every language, with some missing, and interrupted."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
HANG_S = 600.0
LAST = re.compile(r"demo ok accuracy=(0\.9\d\d) serial=(0\.9\d\d) alone=(0\.\d\d\d) workers=(\S+)\Z")
#: What the demo needs of the system besides compilers and interpreters.
TOOLS = ("sh", "cat", "cp", "mv", "rm", "mktemp", "sleep", "od", "wc", "env", "as", "ld", "uname", "dirname")

pytestmark = pytest.mark.usefixtures("no_leaks")


def start(work: Path, environ: dict[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, str(TOP / "examples" / "digits" / "demo.py"), str(work)]
    environ = {**environ, "XDG_STATE_HOME": str(work.parent / "state")}
    return subprocess.Popen(command, env=environ, cwd=work.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def check_last_line(output: str, workers: str) -> None:
    found = LAST.match(output.splitlines()[-1])
    assert found, output
    accuracy, serial, alone = (float(text) for text in found.groups()[:3])
    assert accuracy >= 0.95
    assert accuracy == serial > alone
    assert found[4] == workers


def test_four_languages(tmp_path: Path, require: Callable[[str], None]) -> None:
    for tool in ("cc", "Rscript", "awk", "module:sklearn"):
        require(tool)
    process = start(tmp_path / "demo", dict(os.environ))
    output, errors = process.communicate(timeout=HANG_S)

    assert process.returncode == 0, errors
    check_last_line(output, "c,python,r,sh")
    assert "lines added or changed to plug in: c 5, python 6, r 6, sh 6" in output
    assert "is not installed" not in output


def test_languages_that_are_not_installed_are_replaced_by_c(tmp_path: Path, require: Callable[[str], None]) -> None:
    for tool in ("cc", "module:sklearn"):
        require(tool)
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in (*TOOLS, "cc"):
        found = shutil.which(name)
        if found:
            (tools / name).symlink_to(found)
    process = start(tmp_path / "demo", {**os.environ, "PATH": str(tools)})
    output, errors = process.communicate(timeout=HANG_S)

    assert process.returncode == 0, errors
    check_last_line(output, "c,python,c,c")
    assert "R is not installed: the C trainer takes its shard" in output
    assert "awk is not installed: the C trainer takes its shard" in output


def test_an_interrupt_ends_everything(tmp_path: Path, require: Callable[[str], None]) -> None:
    for tool in ("cc", "module:sklearn"):
        require(tool)
    process = start(tmp_path / "demo", dict(os.environ))
    assert process.stdout is not None
    for line in process.stdout:
        if "step 1 loss" in line:
            process.send_signal(signal.SIGINT)
            break
    _output, errors = process.communicate(timeout=HANG_S)

    assert process.returncode == 130
    assert "demo interrupted" in errors
