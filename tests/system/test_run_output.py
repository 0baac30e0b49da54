"""What programs print, what they read, and whoever does not read us."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from typing import Any

import pytest

from tests.system.run_kit import LIMIT_S, Place, children, place, wait_for  # noqa: F401

FLOOD = r"""
import os, sys
import numpy as np
from plugml.client import attach
plug = attach()
w = np.zeros(4, dtype=np.float32)
out, err = sys.stdout.buffer, sys.stderr.buffer
plug.step(np.ones(4, dtype=np.float32), w)
err.write(b"e" * 300_000); err.flush()
out.write(b"L" * SIZE + b"\n"); out.flush()
for percent in range(0, 101, 5):
    err.write(b"\r%d%%" % percent); err.flush()
err.write(b"\n")
out.write(b"\xff\xfe no utf-8 \x00\x00 nul\n"); out.flush()
plug.step(np.ones(4, dtype=np.float32), w)
out.write(b"after\n")
err.write(b"the last words\n")
sys.exit(int(sys.argv[1]))
"""


#: Runs a command and notes the most memory that it had.  (A child is born with the figure of its parent: a small one.)
MEASURED = """
import os, sys
pid = os.posix_spawn(sys.executable, sys.argv[1:], os.environ)
_, status, usage = os.wait4(pid, 0)
open("memory", "w").write(str(usage.ru_maxrss))
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.parametrize("size", [2_000_000, pytest.param(50_000_000, marks=pytest.mark.slow)])
def test_a_flood_of_output_hurts_nobody(place: Place, size: int) -> None:  # noqa: F811
    place.write("flood.py", FLOOD.replace("SIZE", str(size)))
    with (place.directory / "out").open("wb") as out, (place.directory / "err").open("wb") as err:
        place.plugml = [sys.executable, "-c", MEASURED, *place.plugml]
        process = place.start("run", "-n", "4", "--table", "w=4", "--", sys.executable, "flood.py", "0", stdout=out, stderr=err)
        process.process.wait(LIMIT_S)
    assert process.process.returncode == 0, (place.directory / "err").read_bytes()[-2000:]
    shown = (place.directory / "out").read_bytes()
    for line in shown.splitlines():
        assert line[:2] == b"[w" and line[3:5] == b"] " and b"[w" not in line[5:]
    assert shown.count(b"L") == 4 * size and shown.count(b"] after\n") == 4
    noise = (place.directory / "err").read_bytes()
    assert b"] 100%\n" in noise and b"55%" not in noise, "of a progress bar the last state is shown"
    for worker in range(4):
        log = (place.directory / f"plugml-runs/flood/logs/w{worker}.log").read_bytes()
        assert log.count(b"L") == size and log.count(b"e" * 300_000) == 1 and b"\r55%" in log and b"\x00\x00 nul\n" in log
    kilobytes = int((place.directory / "memory").read_text())
    assert kilobytes < 250_000, "the interpreter and numpy are most of it"


def test_the_tail_of_a_failure_can_be_read(place: Place) -> None:  # noqa: F811
    place.write("flood.py", FLOOD.replace("SIZE", "200000"))
    done = place.run("run", "--table", "w=4", "--quiet", "--", sys.executable, "flood.py", "3", code=3)
    text = done.stderr[done.stderr.index("plugml: error") :]
    assert "worker 0 on" in text and "exit code 3" in text and "the last words" in text and "exit code 3 is that of worker 0" in text
    assert max(map(len, text.splitlines())) < 1000 and "\0" not in text


def test_plugml_reads_nothing_of_what_the_shell_has_typed(place: Place) -> None:  # noqa: F811
    script = f"""printf 'a\\nb\\nc\\n' | while read x; do echo "turn $x"; {sys.executable} -m plugml run --table w=4 --quiet -- cat; done"""
    done = subprocess.run(["sh", "-c", script], cwd=place.directory, env=place.environ, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert [line for line in done.stdout.splitlines() if line.startswith("turn")] == ["turn a", "turn b", "turn c"]


def test_piped_input_goes_to_nobody_and_a_file_to_each(place: Place) -> None:  # noqa: F811
    for worker in (0, 1):
        place.write(f"in{worker}", f"data {worker}\n")
    with (place.directory / "in0").open() as data:
        done = place.run("run", "-n", "2", "--table", "w=4", "--", "sh", "-c", "cat; echo end", stdin=data)
    assert sorted(done.stdout.splitlines()) == ["[w0] end", "[w1] end"] and "--stdin FILE" in done.stderr
    done = place.run("run", "-n", "2", "--table", "w=4", "--stdin", "in{worker}", "--", "cat")
    assert sorted(done.stdout.splitlines()) == ["[w0] data 0", "[w1] data 1"] and "--stdin FILE" not in done.stderr


def test_a_fifo_is_waited_for_by_its_program_not_by_the_launcher(place: Place) -> None:  # noqa: F811
    """The program begins when somebody writes, as itself; one whose FIFO stays without a writer still hears Ctrl-C."""
    for worker in (0, 1):
        os.mkfifo(place.directory / f"in{worker}")
    words = ["run", "-n", "2", "--table", "w=4", "--stdin", "in{worker}", "--env", "MARK=a=b", "--"]
    script = 'echo "$MARK $(sed -n s/SigIgn:.//p /proc/self/status)"; exec cat'
    running = place.start(*words, "sh", "-c", script)
    find_waiting(running.pid, 2)
    (place.directory / "in1").write_text("data 1\n")
    running.heard("[w1] data 1")
    assert "[w0]" not in running.stdout
    (place.directory / "in0").write_text("data 0\n")
    done = running.ended()
    bare = subprocess.run(["sed", "-n", "s/SigIgn:.//p", "/proc/self/status"], capture_output=True, text=True, check=True).stdout.strip()
    assert sorted(done.stdout.splitlines()) == [f"[w0] a=b {bare}", "[w0] data 0", f"[w1] a=b {bare}", "[w1] data 1"]

    running = place.start(*words, "cat")
    find_waiting(running.pid, 2)
    running.send(signal.SIGINT)
    assert "[w" not in running.ended(130).stdout
    assert place.is_clean()


def find_waiting(pid: int, count: int) -> None:
    """Until so many programs below `pid` wait for a writer of their FIFO."""
    wait_for(lambda: sum(any(word.endswith("fifo.py") for word in line) for line in children(pid).values()) == count, "they wait")


@pytest.mark.parametrize("closed", ["<&-", "<&- 2>/dev/null", ">&- 2>&-", "<&- >&- 2>&-"])
def test_it_works_with_standard_descriptors_closed(place: Place, closed: str) -> None:  # noqa: F811
    script = f"{sys.executable} -m plugml run --table w=4,optimizer=add -- {' '.join(place.trainer(3))} {closed}"
    done = subprocess.run(["sh", "-c", script], cwd=place.directory, env=place.environ, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert place.result("t")["closed"] == 3
    assert (place.directory / "plugml-runs/t/logs/w0.log").read_text() == "clock 3 first 3.0\n"


@pytest.mark.parametrize("to", ["| head -1", "> /dev/full", "2>&1 | head -1"])
def test_a_reader_that_goes_away_does_not_end_the_training(place: Place, to: str) -> None:  # noqa: F811
    place.write("talk.sh", 'i=0; while [ $i -lt 200 ]; do i=$((i+1)); echo "line $i"; done')
    run = f"{sys.executable} -m plugml run -n 2 --table w=4 -- sh talk.sh"
    script = f"({run}; echo $? > code) {to}"
    done = subprocess.run(["sh", "-c", script], cwd=place.directory, env=place.environ, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert "Traceback" not in done.stderr and (place.directory / "code").read_text() == "0\n"
    for worker in (0, 1):
        assert (place.directory / f"plugml-runs/talk/logs/w{worker}.log").read_text().count("\n") == 200


def test_a_summary_that_nobody_gets_is_an_error(place: Place) -> None:  # noqa: F811
    with open("/dev/full", "w") as full:
        done = place.run("run", "--json", "--table", "w=4", "--", "true", code=1, stdout=full)
    assert "Traceback" not in done.stderr


def test_quiet_json_and_no_colour(place: Place) -> None:  # noqa: F811
    done = place.run("run", "--quiet", "--table", "w=4", "--", *place.trainer(2))
    assert done.stderr == "" and done.stdout.startswith("[w0] clock 2")
    done = place.run("run", "--json", "--quiet", "--table", "w=4", "--", *place.trainer(2))
    assert json.loads(done.stdout)["workers"][0]["clocks"] == 2


def on_terminal(place: Place, *words: str, **environ: str) -> bytes:  # noqa: F811
    """Everything that a terminal of 80 columns shows."""
    master, slave = os.openpty()
    place.environ |= {"TERM": "xterm", "COLUMNS": "80", **environ}
    process = place.start(*words, stdout=slave, stderr=slave)
    os.close(slave)
    shown = bytearray()
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # the last one has closed the terminal
            break
        if not part:
            break
        shown += part
    os.close(master)
    process.ended()
    return bytes(shown)


def test_a_terminal_shows_a_live_line(place: Place) -> None:  # noqa: F811
    shown = on_terminal(place, "run", "-n", "2", "--table", "w=4", "--", *place.trainer(30, 0.1))
    assert b"clocks/s" in shown and b"\r\x1b[2K" in shown and b"\x1b[36m[w0]\x1b[0m clock 30" in shown
    last = shown[shown.rindex(b"\x1b[2K") :]
    assert b"clocks/s" not in last, "nothing of it is left at the end"
    shown = on_terminal(place, "run", "--table", "w=4", "--", *place.trainer(30, 0.1), NO_COLOR="1")
    assert b"clocks/s" in shown and b"\x1b[3" not in shown
    shown = on_terminal(place, "run", "--quiet", "--table", "w=4", "--", *place.trainer(30, 0.05))
    assert b"clocks/s" not in shown


def test_more_workers_than_the_soft_limit_of_open_files_allows(place: Place) -> None:  # noqa: F811
    def limit(soft: int, hard: int) -> Any:
        return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    place.run("run", "-n", "24", "--table", "w=4", "--", "true", preexec_fn=limit(64, 4096))
    done = place.run("run", "-n", "24", "--table", "w=4", "--", "true", code=2, preexec_fn=limit(64, 64))
    assert "24 workers need" in done.stderr and "64 are allowed" in done.stderr


def test_a_background_run_is_not_stopped_by_its_terminal(place: Place) -> None:  # noqa: F811
    """A program that reads gets end of file, not SIGTTIN."""
    master, slave = os.openpty()
    process = place.start("run", "--table", "w=4", "--", "cat", stdin=slave)
    os.close(slave)
    process.ended()
    os.close(master)
