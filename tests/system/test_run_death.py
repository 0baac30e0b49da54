"""Who dies in a run, and what happens then: programs, launcher, agent, server, master."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.system.run_kit import ROOT, Place, Running, children, end_pid, find_child, is_alive, place, wait_for  # noqa: F401

DIES = """
import os, sys
import numpy as np
from plugml.client import attach
mode, worker, gen = sys.argv[1], int(os.environ["PLUGML_WORKER"]), int(os.environ["PLUGML_GEN"])
if mode == "import" and worker == 1:
    import nosuchmodule
plug = attach()
w = np.zeros(4, dtype=np.float32)
plug.pull(w)
for clock in plug.clocks(10):
    if worker == 1 and clock == 4:
        if mode == "exit":
            sys.exit("a bug at clock 4")
        if mode == "segv" or (mode == "once" and gen == 1):
            os.kill(os.getpid(), 11)
        if mode == "zero":
            sys.exit(0)
    plug.step(np.full(4, 1 + worker, dtype=np.float32), w)
print("clock", clock + 1, "gen", gen, "first", float(w[0]))
"""

WORDS = ["run", "-n", "3", "--table", "w=4,optimizer=add", "--combine", "sum"]


def dies(place: Place, mode: str, *more: str) -> list[str]:  # noqa: F811
    place.write("dies.py", DIES)
    return [*WORDS, *more, "--", sys.executable, "dies.py", mode]


def value(place: Place, where: str = "dies") -> float:  # noqa: F811
    numbers = np.fromfile(place.directory / "plugml-runs" / where / "w.bin", "<f4").tolist()
    assert len(set(numbers)) == 1, "torn"
    return float(numbers[0])


@pytest.mark.parametrize(("mode", "says"), [("import", "nosuchmodule"), ("exit", "a bug at clock 4")])
def test_a_bug_stops_the_run_at_once_with_its_words(place: Place, mode: str, says: str) -> None:  # noqa: F811
    done = place.run(*dies(place, mode), code=1)
    assert "worker 1 on" in done.stderr and says in done.stderr and "restarting" not in done.stderr
    assert done.stderr.splitlines()[-1] == "plugml: error: exit code 1 is that of worker 1"
    assert "dies.py" in done.stderr and "logs/w1.log" in done.stderr and "try:" in done.stderr
    if mode == "exit":
        assert value(place, "dies/failed") == 4 * 6, "what was trained until then lies apart"
    assert not (place.directory / "plugml-runs" / "dies" / "w.bin").exists()


def test_a_program_killed_by_a_signal_goes_on_as_a_new_generation(place: Place) -> None:  # noqa: F811
    done = place.run(*dies(place, "once"))
    assert "worker 1 was killed by SIGSEGV at clock 4; restarting it (1 of 3 restarts)" in done.stderr
    assert value(place) == 10 * 6, "nothing lost, nothing doubled"
    result = place.result("dies")
    assert result["workers"][1]["restarts"] == 1 and result["uneven"] == ""
    assert [worker["pushes"] for worker in result["workers"]] == [10, 10, 10]
    assert "[w1] clock 10 gen 2 first 60.0" in done.stdout


def test_one_that_dies_again_and_again_stops_the_run_if_told_so(place: Place) -> None:  # noqa: F811
    done = place.run(*dies(place, "segv", "--max-restarts", "2", "--on-worker-loss", "stop"), code=139)
    assert done.stderr.count("; restarting it") == 2 and "killed by SIGSEGV, generation 3, at clock 4" in done.stderr
    assert place.result("dies/failed")["exit_code"] == 139


def test_shrink_goes_on_without_it_and_says_so(place: Place) -> None:  # noqa: F811
    done = place.run(*dies(place, "segv", "--max-restarts", "1", "--on-worker-loss", "shrink"))
    assert "going on without it (shrink)" in done.stderr and "worker 1: 4 clocks, others 10" in done.stderr
    assert value(place) == 4 * 6 + 6 * 4
    assert place.result("dies")["workers"][1]["outcome"] == "lost"


def test_wait_holds_the_others_until_somebody_decides(place: Place) -> None:  # noqa: F811
    process = place.start(*dies(place, "segv", "--max-restarts", "0"))
    process.heard("the others wait for it (on_worker_loss=wait)")
    process.send(signal.SIGINT)
    process.ended(130)
    assert value(place) == 4 * 6


def test_leaving_early_with_0_cannot_pass_for_a_full_run(place: Place) -> None:  # noqa: F811
    done = place.run(*dies(place, "zero"))
    assert "worker 1: 4 clocks, others 10" in done.stderr
    assert value(place) == 4 * 6 + 6 * 4


def test_ok_exit_is_no_failure(place: Place) -> None:  # noqa: F811
    done = place.run(*dies(place, "exit", "--ok-exit", "0,1"))
    assert "failed" not in done.stderr and "worker 1: 4 clocks, others 10" in done.stderr


LONG = ["run", "-n", "2", "--table", "w=4,optimizer=add", "--combine", "sum"]
FAMILY = "sleep 601 & sleep 602 | cat & exec {python} t.py {clocks} 0.02 1"


def family(clocks: int) -> list[str]:
    """A program with children of its own."""
    return [*LONG, "--name", "fam", "--", "sh", "-c", FAMILY.format(python=sys.executable, clocks=clocks)]


def clocks_done(place: Place) -> int:  # noqa: F811
    for ctl in place.root.glob("*/fam.0.*/ctl"):
        return int.from_bytes(ctl.read_bytes()[0x80:0x88], "little")
    return 0


def test_kill_9_of_the_launcher_leaves_nothing(place: Place) -> None:  # noqa: F811
    process = place.start(*family(100_000))
    sleepers = find_child(process.pid, ["sleep"], 4)
    workers = find_child(process.pid, ["t.py", "100000"], 2)
    trained(process, place, 3)
    process.send(signal.SIGKILL)
    process.process.wait()
    wait_for(lambda: not any(is_alive(pid) for pid in (*sleepers, *workers)), "programs and their children have ended")
    wait_for(place.is_clean, "root and state of the private cluster are gone")


def test_kill_9_of_the_launcher_and_its_cluster_leaves_no_semaphore(place: Place) -> None:  # noqa: F811
    """The agent dies in the same moment, so that it cannot be the one who removes them."""
    process = place.start("run", "-n", "2", "--bell", "sem", "--table", "w=4", "--", "sleep", "607")
    find_child(process.pid, ["sleep", "607"], 2)
    infos = [path.read_text() for path in place.root.glob("*/*/info")]
    files = [Path("/dev/shm") / f"sem.{line[5:]}" for text in infos for line in text.splitlines() if line.startswith("sem=/")]
    assert len(files) == 2 and all(path.exists() for path in files)
    (agent,) = find_child(process.pid, ["agent"])
    end_pid(agent, signal.SIGSTOP)
    process.send(signal.SIGKILL)
    process.ended(-signal.SIGKILL)
    wait_for(place.is_clean, "root and state of the private cluster are gone")
    assert not any(path.exists() for path in files)


def test_what_a_run_leaves_that_died_with_its_guard_is_removed_by_the_next(place: Place) -> None:  # noqa: F811
    process = place.start(*LONG, "--name", "fam", "--", *place.trainer(100_000, 0.02))
    trained(process, place, 3)
    processes = children(process.pid)
    (guard,) = find_child(process.pid, [str(ROOT / "plugml" / "launch" / "guard.py")])
    end_pid(guard)
    process.send(signal.SIGKILL)
    process.process.wait()
    wait_for(lambda: not any(is_alive(pid) for pid in processes), "its processes have ended")
    assert not place.is_clean(), "else this shows nothing"
    place.run("run", "--table", "w=4", "--", *place.trainer(1))
    assert place.is_clean()


def trained(process: Running, place: Place, clocks: int) -> None:  # noqa: F811
    """Wait until worker 0 has come so far in its present generation."""
    wait_for(lambda: clocks_done(place) > clocks or process.process.poll() is not None, f"{clocks} clocks")
    assert process.process.poll() is None, process.stdout + process.stderr


def test_what_a_program_leaves_running_ends_with_it(place: Place) -> None:  # noqa: F811
    process = place.start(*family(3))
    sleepers = find_child(process.pid, ["sleep"], 4)
    process.ended()
    wait_for(lambda: not any(is_alive(pid) for pid in sleepers), "its children have ended")


def test_kill_9_of_the_agent_is_not_noticed_by_the_programs(place: Place) -> None:  # noqa: F811
    process = place.start(*family(60))
    for clocks in (3, 20, 40):
        trained(process, place, clocks)
        end_pid(find_child(process.pid, ["agent", "--id"])[0])
    done = process.ended()
    assert "the agent is away" in done.stderr and "the agent is back" in done.stderr
    assert value(place, "fam") == 120 and [worker["pushes"] for worker in place.result("fam")["workers"]] == [60, 60]


def test_kill_9_of_the_master_disturbs_nobody(place: Place) -> None:  # noqa: F811
    process = place.start(*family(60))
    trained(process, place, 3)
    end_pid(find_child(process.pid, ["master", "--id"])[0])
    done = process.ended()
    assert "master m0 ended (killed by signal 9" in done.stderr
    assert value(place, "fam") == 120


def test_kill_9_of_a_server_is_a_named_error(place: Place) -> None:  # noqa: F811
    process = place.start(*family(100_000))
    trained(process, place, 3)
    end_pid(find_child(process.pid, ["server", "--id"])[0])
    done = process.ended(1)
    assert "server s0 held the only copy" in done.stderr
    assert not (place.directory / "plugml-runs" / "fam" / "w.bin").exists()


def test_10_kills_of_workers_tear_nothing(place: Place) -> None:  # noqa: F811
    """Each at another moment; every clock of every worker counts once."""
    kills = 10
    process = place.start(*LONG, "--name", "fam", "--max-restarts", str(kills), "--", sys.executable, "t.py", "200", "0.02", "1")
    for number in range(kills):
        trained(process, place, 3)
        end_pid(find_child(process.pid, ["t.py", "200"], 2)[number % 2])
        wait_for(lambda: process.stderr.count("; restarting it") > number, "it is restarted")  # noqa: B023
    process.ended()
    assert value(place, "fam") == 400
    assert not list(place.root.iterdir())


def test_a_stopped_worker_is_named_and_goes_on(place: Place) -> None:  # noqa: F811
    process = place.start(*family(40))
    trained(process, place, 3)
    pid = find_child(process.pid, ["t.py", "40"], 2)[0]
    os.kill(pid, signal.SIGSTOP)
    assert f"kill -CONT {pid}" in process.heard("which is stopped by a signal")
    os.kill(pid, signal.SIGCONT)
    process.ended()
    assert value(place, "fam") == 80


def test_a_worker_that_never_says_hello_is_named_with_the_way_out(place: Place) -> None:  # noqa: F811
    place.write("half.sh", f"if [ $PLUGML_WORKER = 1 ]; then exec sleep 603; fi; exec {sys.executable} t.py 5 0 1")
    process = place.start(*LONG, "--name", "fam", "--on-worker-loss", "shrink", "--", "sh", "half.sh")
    assert "plugml channel --close fam.1" in process.heard("waiting for worker 1, which has not said hello")
    cluster = next(place.root.iterdir()).name
    done = place.run("channel", "--close", "fam.1", "--cluster", cluster)
    assert "worker 1 of job fam is unplugged" in done.stderr
    done = process.ended()
    assert "worker 1 was unplugged from outside" in done.stderr and value(place, "fam") == 5
    assert [worker["outcome"] for worker in place.result("fam")["workers"]] == ["finished", "unplugged"]
