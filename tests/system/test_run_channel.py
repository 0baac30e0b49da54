"""A channel by hand: `plugml channel` on a standing cluster, and runs that join one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.system.run_kit import LIMIT_S, Done, Place, is_alive, place, wait_for  # noqa: F401


@pytest.fixture
def cluster(place: Place) -> Iterator[str]:  # noqa: F811
    """A standing cluster, taken down at the end."""
    place.environ["PLUGML_ROOT"] = str(place.root / "c")
    place.run("up", "-d", "--name", "standing")
    yield "standing"
    place.run("down", "standing", "--purge", code=None)  # a test may have taken it down


def shell(place: Place, script: str) -> Done:  # noqa: F811
    plugml = " ".join(place.plugml)
    done = subprocess.run(
        ["sh", "-c", script.replace("plugml ", plugml + " ")], cwd=place.directory, env=place.environ, capture_output=True, text=True,
        timeout=LIMIT_S, check=False,
    )  # fmt: skip
    return Done(done.returncode, done.stdout, done.stderr)


def test_a_program_started_by_hand_is_plugged_in(place: Place, cluster: str) -> None:  # noqa: F811
    trainer = " ".join(place.trainer(5))
    done = shell(place, f'eval "$(plugml channel try --table w=4,optimizer=add)"; env | grep ^PLUGML_; {trainer}')
    assert done.code == 0 and "PLUGML_WORKERS=1" in done.stdout and "clock 5 first 5.0" in done.stdout, done
    directory = next(line for line in done.stdout.splitlines() if line.startswith("PLUGML_DIR=")).removeprefix("PLUGML_DIR=")
    keeper = int(Path(directory, "holder").read_text())
    assert os.path.isdir(directory), "the channel outlives the program"
    done = place.run("channel", "try", "--table", "w=4,optimizer=add", code=2)
    assert "channel try is open already; close it by `plugml channel --close try`" in done.stderr
    assert "the terminal that its program was started from" in place.run("logs", "try", code=2).stderr
    closed = place.run("channel", "--close", "try").stderr
    assert "channel try is closed after 5 clocks and 5 pushes; its values are gone (--result DIR" in closed
    assert not os.path.exists(directory) and not is_alive(keeper)
    assert "there is no channel 'try'" in place.run("channel", "--close", "try", code=2).stderr


def test_the_values_of_a_channel_by_hand_are_saved_at_its_end(place: Place, cluster: str) -> None:  # noqa: F811
    trainer = " ".join(place.trainer(1))
    done = shell(place, f'eval "$(plugml channel try --table w=4,optimizer=add)"; {trainer}')
    assert done.code == 0, done
    assert "--result belongs to --close" in place.run("channel", "x", "--table", "w=4", "--result", "out", code=2).stderr
    out = place.directory / "out"
    out.mkdir()
    (out / "tables.npz").write_text("mine")
    said = place.run("channel", "--close", "try", "--result", "out", code=2).stderr
    assert "tables.npz is there, and no run has made it: choose another place with --result DIR" in said
    assert (out / "tables.npz").read_text() == "mine" and os.listdir(out) == ["tables.npz"]
    (out / "tables.npz").unlink()
    said = place.run("channel", "--close", "try", "--result", "out").stderr  # it has stayed open
    assert "channel try is closed after 1 clock and 1 push; result in " in said
    with np.load(place.directory / "out" / "tables.npz") as tables:
        assert tables["w"].tolist() == [1.0] * 4
    assert (place.directory / "out" / "result.json").exists() and len(list((place.directory / "out").iterdir())) == 3


def test_a_keeper_that_is_killed_is_swept_by_the_agent(place: Place, cluster: str) -> None:  # noqa: F811
    done = place.run("channel", "try", "--table", "w=4")
    directory = next(line for line in done.stdout.splitlines() if "PLUGML_DIR=" in line).partition("=")[2]
    os.kill(int(Path(directory, "holder").read_text()), signal.SIGKILL)
    wait_for(lambda: not os.path.exists(directory), "the agent has swept it")


def test_down_closes_the_channels_by_hand_and_leaves_nothing_in_memory(place: Place, cluster: str) -> None:  # noqa: F811
    done = place.run("channel", "try", "--table", "w=4")
    directory = next(line for line in done.stdout.splitlines() if "PLUGML_DIR=" in line).partition("=")[2]
    keeper = int(Path(directory, "holder").read_text())
    root = Path(directory).parent
    assert "stays" not in place.run("down", cluster, "--purge").stderr
    assert not is_alive(keeper) and not root.exists()


def test_a_root_that_a_run_still_needs_is_named_and_purged_when_it_has_ended(place: Place, cluster: str) -> None:  # noqa: F811
    running = place.start("run", "--cluster", cluster, "--name", "x", "--table", "w=4", "--", "sh", "-c", "echo ready; sleep 604")
    running.heard("[w0] ready")
    running.send(signal.SIGSTOP)  # else it ends as soon as its cluster is down
    said = place.run("down", cluster, "--purge", "--wait", "0.5", code=1).stderr
    assert "channels of job x are kept there" in said and f"plugml down {cluster} --purge" in said
    running.send(signal.SIGKILL)
    running.process.wait()
    root = Path(place.environ["PLUGML_ROOT"])
    assert root.is_dir()
    place.run("down", cluster, "--purge")
    assert not root.exists()
    assert "no cluster" in place.run("down", cluster, "--purge", code=69).stderr


def test_purge_touches_no_directory_of_another_name(place: Place) -> None:  # noqa: F811
    root = place.directory / "other"
    root.mkdir()
    (root / "precious").write_text("1")
    place.environ["PLUGML_ROOT"] = str(root)
    place.run("down", "typo", "--purge", code=69)
    assert (root / "precious").exists()


def test_a_channel_needs_a_cluster(place: Place) -> None:  # noqa: F811
    assert "no cluster runs here" in place.run("channel", "try", "--table", "w=4", code=69).stderr
    place.run("channel", code=2)
    place.run("channel", "try", code=69)


def test_two_runs_join_one_cluster(place: Place, cluster: str) -> None:  # noqa: F811
    both = [place.start("run", "-n", "2", "--cluster", cluster, "--table", "w=4,optimizer=add", "--", *place.trainer(20, 0.01, g)) for g in (1, 2)]
    ends = [running.ended() for running in both]
    assert {"clock 20 first 20.0", "clock 20 first 40.0"} == {line.split("] ")[1] for done in ends for line in done.stdout.splitlines()}
    assert sorted(path.parent.name for path in (place.directory / "plugml-runs").glob("*/w.bin")) == ["t", "t-2"]


def test_kill_9_of_a_joined_launcher_is_swept_by_the_agent(place: Place, cluster: str) -> None:  # noqa: F811
    running = place.start("run", "-n", "2", "--cluster", cluster, "--name", "x", "--table", "w=4", "--", "sh", "-c", "echo ready; sleep 604")
    running.heard("[w1] ready")
    assert len(list(place.root.glob("c/x.*"))) == 2
    running.send(signal.SIGKILL)
    running.process.wait()
    wait_for(lambda: not list(place.root.glob("c/x.*")), "the channels are swept")
    again = place.run("run", "--cluster", cluster, "--name", "x", "--table", "w=4", "--", "true", code=None)
    assert again.code in (0, 2) and "Traceback" not in again.stderr


@pytest.mark.slow
def test_an_agent_gone_for_good_ends_the_run_with_75(place: Place, cluster: str) -> None:  # noqa: F811
    """Keeper and daemons of the cluster are killed at once: nobody restarts the agent."""
    place.write("caught.py", CAUGHT)
    running = place.start("run", "--cluster", cluster, "--table", "w=4", "--", sys.executable, "caught.py")
    running.heard("[w0] training")
    keeper = int((place.state / "plugml" / cluster / "cluster.lock").read_text())
    os.kill(keeper, signal.SIGKILL)
    done = running.ended(75)
    assert "code=GONE to the programs" in done.stderr and "[w0] GONE" in done.stdout


CAUGHT = """
import signal, sys, time
import numpy as np
from plugml.client import ChannelError, attach
signal.signal(signal.SIGTERM, signal.SIG_IGN)
plug = attach()
w = np.zeros(4, dtype=np.float32)
plug.step(np.ones(4, dtype=np.float32), w)
print("training", flush=True)
try:
    while True:
        plug.step(np.ones(4, dtype=np.float32), w)
        time.sleep(0.05)
except ChannelError as error:
    print(error, flush=True)
"""
