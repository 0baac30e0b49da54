"""The command line by itself: help, errors with their exit codes, and what it must not import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HANG_S = 60.0
VERBS = ("run", "channel", "up", "down", "status", "logs", "jobs", "stop", "rm", "master", "server", "agent", "keygen", "completion")


def plugml(*words: str, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PLUGML_") or key == "PLUGML_TEST_MARK"}
    argv = [sys.executable, "-m", "plugml", *words]
    return subprocess.run(argv, env={**environment, **environ}, cwd=cwd, capture_output=True, text=True, timeout=HANG_S, check=False)


def test_help_lists_every_verb_and_imports_nothing_heavy() -> None:
    code = """
import sys
from plugml.cli.main import main
assert main(["--help"]) == 0
heavy = {"numpy", "zmq", "uvloop", "msgpack", "asyncio", "rich"} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr
    for verb in VERBS:
        assert f"\n  {verb} " in done.stdout


@pytest.mark.parametrize("flag", ["-h", "--help"])
@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example(verb: str, flag: str) -> None:
    done = plugml(verb, flag)
    assert done.returncode == 0 and f"plugml {verb}" in done.stdout.split("\n", 1)[1] and "xample" in done.stdout


def test_without_a_word_it_is_help() -> None:
    done = plugml()
    assert done.returncode == 0 and done.stdout == plugml("--help").stdout and not done.stderr
    assert done.stdout.lower().count("usage") == 1


def test_version() -> None:
    done = plugml("--version")
    assert done.returncode == 0 and done.stdout.startswith("plugml ")


@pytest.mark.parametrize(("words", "sentence"), [
    (["statsu"], "no verb 'statsu'; did you mean 'status'?"),
    (["zzz"], "no verb 'zzz'; there are run, channel, conform, inspect, up,"),
    (["status", "--jsn"], "'--jsn'. Did you mean '--json'?"),
    (["up", "--servers", "0"], "'--servers': 0 is not in the range"),
    (["up", "--name", "a/b"], "cluster name 'a/b': use 1 to 63 letters"),
    (["up", "--name", "x" * 41], "has 41 characters; at most 40"),
    (["stop"], "Missing argument 'JOB'"),
    (["completion", "tcsh"], "'tcsh' is not one of 'bash', 'zsh', 'fish'"),
])  # fmt: skip
def test_a_wrong_word_is_a_usage_error_with_a_hint(words: list[str], sentence: str) -> None:
    done = plugml(*words)
    assert done.returncode == 2 and not done.stdout
    assert sentence.lower() in done.stderr.lower() and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("plugml: ")


@pytest.mark.parametrize("words", [["status"], ["jobs"], ["logs"], ["stop", "j"], ["rm", "j"], ["down"]], ids=" ".join)
def test_a_cluster_that_is_not_there_is_69_with_what_to_do(words: list[str], tmp_path: Path) -> None:
    which = ["nobody"] if words == ["down"] else ["--cluster", "nobody"]
    done = plugml(*words, *which, XDG_STATE_HOME=str(tmp_path))
    assert done.returncode == 69 and "no cluster 'nobody' runs here" in done.stderr and not done.stdout


def test_output_that_cannot_be_written_is_told() -> None:
    with open("/dev/full", "w") as full:
        argv = [sys.executable, "-m", "plugml", "--version"]
        done = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 1 and "No space left on device" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_survived(closed: str) -> None:
    done = subprocess.run(["sh", "-c", f'"$0" -m plugml --version {closed}', sys.executable], timeout=HANG_S, check=False)
    assert done.returncode == 0


def test_completion_completes_verbs_and_flags() -> None:
    script = plugml("completion", "bash")
    assert script.returncode == 0 and "_PLUGML_COMPLETE" in script.stdout
    done = plugml(_PLUGML_COMPLETE="bash_complete", COMP_WORDS="plugml st", COMP_CWORD="1")
    assert {line.partition(",")[2] for line in done.stdout.split()} == {"status", "stop"}


def test_a_module_of_the_working_directory_takes_nobodys_place(tmp_path: Path, no_leaks: None) -> None:
    for name in ("select.py", "zmq.py", "json.py", "socket.py"):
        (tmp_path / name).write_text("raise SystemExit('taken')\n")
    where = ["--name", f"cwd-{os.getpid()}", "--servers", "1"]
    argv = [sys.executable, "-P", "-m", "plugml"]
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    for words in (["up", "-d", *where, "--json"], ["down", where[1], "--purge"]):
        done = subprocess.run([*argv, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=HANG_S, check=False)
        assert done.returncode == 0, done.stderr
        if "--json" in words:
            assert json.loads(done.stdout)["name"] == where[1]
