"""Names and places of clusters: default names, states on shared file systems, files of others."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from plugml.core.errors import NoClusterError, UsageError, WorldError
from plugml.launch import discovery
from plugml.launch.discovery import ClusterFile, Hold, find, keeper_of, named, new_name, places, running, state_home
from plugml.shm_protocol.root import lock_agent


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Variables of a user whose clusters are all in the test's own directory."""
    environ = {"XDG_STATE_HOME": str(tmp_path / "state"), "HOME": str(tmp_path)}
    monkeypatch.setattr(discovery, "default_root", lambda name, environ: tmp_path / "roots" / name)

    def directories(environ: dict[str, str]) -> list[Path]:
        tops = (tmp_path / "state" / "plugml", tmp_path / "roots")
        return [entry for top in tops if top.is_dir() for entry in sorted(top.iterdir())]

    monkeypatch.setattr(discovery, "_directories", directories)
    return environ


def start(name: str, environ: dict[str, str], keeper: str = "up") -> Hold:
    file, _ = places(name, None, None, environ)
    file.root.mkdir(parents=True, mode=0o700)
    hold = Hold(file._replace(pid=os.getpid(), keeper=keeper))
    hold.publish()
    return hold


def test_a_default_name_fits_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_]{1,16}-[A-Za-z0-9_]{1,16}-[0-9a-f]{6}", new_name())

    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr("getpass.getuser", nobody)
    monkeypatch.setattr("socket.gethostname", lambda: "ho st-ä.example.org")
    assert re.fullmatch(rf"{os.getuid()}-ho_st__-[0-9a-f]{{6}}", new_name())
    assert discovery.check_cluster_name(new_name())


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "lustre", "gpfs", "fuse.sshfs"])
def test_a_state_on_a_shared_file_system_goes_elsewhere_and_it_is_said(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "file_system", lambda path: kind)
    environ = {"HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "scratch")}
    home, note = state_home(environ)
    assert home == tmp_path / "scratch" / f"plugml-state-{os.getuid()}"
    assert kind in note and str(home) in note and "databases break" in note
    file, note = places("lab", None, None, environ)
    assert file.state == home / "lab" and note
    given, note = places("lab", None, tmp_path / "mine", environ)
    assert given.state == tmp_path / "mine" and not note


def test_a_state_on_a_disk_of_this_host_is_where_the_rules_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "file_system", lambda path: "ext4")
    assert state_home({"HOME": str(tmp_path)}) == (tmp_path / ".local" / "state" / "plugml", "")
    assert state_home({"HOME": "/", "XDG_STATE_HOME": str(tmp_path)}) == (tmp_path / "plugml", "")


def test_the_only_one_is_meant_and_none_or_several_are_errors(home: dict[str, str]) -> None:
    with pytest.raises(NoClusterError, match="no cluster runs here; start one by `plugml up -d`"):
        find("", home)
    one = start("one", home)
    assert find("", home).name == "one" and keeper_of(one.cluster) == os.getpid()
    two = start("two", home)
    with pytest.raises(NoClusterError, match="several clusters run here: one, two; say which"):
        find("", home)
    assert find("two", home).name == "two" and find("", {**home, "PLUGML_CLUSTER": "one"}).name == "one"
    assert find("one", {**home, "PLUGML_CLUSTER": "two"}).name == "one"
    with pytest.raises(NoClusterError, match="no cluster 'three' runs here; .* those that run: one, two"):
        find("three", home)
    two.withdraw()
    assert find("", home).name == "one"
    one.withdraw(purge=True)
    assert running(home) == [] and not one.cluster.state.exists() and two.cluster.state.exists()


def test_what_a_killed_keeper_left_is_cleaned_by_the_next_look(home: dict[str, str]) -> None:
    hold = start("lab", home)
    hold.close()  # as its death does
    assert running(home) == []
    assert not hold.cluster.root.exists() and not (hold.cluster.state / "cluster.json").exists()
    assert hold.cluster.state.exists()


def test_of_a_dead_run_nothing_is_kept(home: dict[str, str]) -> None:
    lab, dead, alive = start("lab", home), start("dead", home, "run"), start("alive", home, "run")
    lab.close()
    dead.close()
    discovery.clear_dead_runs(home)
    assert not dead.cluster.root.exists() and not dead.cluster.state.exists()
    assert lab.cluster.root.exists() and alive.cluster.root.exists(), "only dead runs are meant"
    half = start("half", home, "run")
    half.close()
    shutil.rmtree(half.cluster.root)
    other = start("other", home, "run")
    other.close()
    shutil.rmtree(other.cluster.state)
    assert [cluster.name for cluster in running(home)] == ["alive"]
    for hold in (half, other):
        assert not hold.cluster.root.exists() and not hold.cluster.state.exists()
    alive.withdraw(purge=True)


def test_a_dead_run_that_an_agent_still_serves_is_removed_later(home: dict[str, str]) -> None:
    hold = start("dead", home, "run")
    hold.close()
    agent = lock_agent(hold.cluster.root)
    discovery.clear_dead_runs(home)
    assert hold.cluster.root.exists() and hold.cluster.state.exists()
    os.close(agent)
    discovery.clear_dead_runs(home)
    assert not hold.cluster.root.exists() and not hold.cluster.state.exists()


def test_a_root_whose_state_is_gone_is_cleaned_too(home: dict[str, str]) -> None:
    hold = start("lab", home)
    hold.close()
    for path in sorted(hold.cluster.state.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    hold.cluster.state.rmdir()
    assert running(home) == [] and not hold.cluster.root.exists()


def test_one_that_is_just_starting_is_left_alone(home: dict[str, str]) -> None:
    old = start("lab", home)
    old.close()
    new = Hold(old.cluster)  # it has its lock, and has not written its file yet
    assert [cluster.name for cluster in running(home)] == ["lab"] and old.cluster.root.exists()
    with pytest.raises(WorldError, match=f"cluster lab runs already .process {os.getpid()}."):
        Hold(old.cluster)
    new.close()


def test_a_root_that_another_cluster_uses_is_refused_and_stays(home: dict[str, str]) -> None:
    one = start("one", home)
    other, _ = places("two", one.cluster.root, None, home)
    hold = Hold(other)
    with pytest.raises(WorldError, match="is in use by another cluster"):
        hold.publish()
    hold.withdraw()
    assert named("one", home) == one.cluster and (one.cluster.root / "cluster.json").exists()
    one.withdraw()


def test_a_file_keeps_what_it_says(tmp_path: Path) -> None:
    file = ClusterFile("lab", tmp_path / "r", tmp_path / "s", {"m0": "ipc:///r/ipc/m0"}, 7, "run")
    assert ClusterFile.from_text(file.to_text(), tmp_path) == file
    assert file.endpoint("s3") == f"ipc://{tmp_path}/r/ipc/s3" and file.logs == tmp_path / "s" / "logs"


@pytest.mark.parametrize("name", ["", "a b", "a/b", ".a", "-a", "x" * 41, "ä"])
def test_a_name_that_could_not_be_a_path_is_refused(name: str, home: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="cluster name"):
        places(name, None, None, home)
