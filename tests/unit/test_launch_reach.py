"""Where a node listens and by which keys, from what was asked for, what cluster.json says, and what lies beside it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from plugml.core.errors import KeysError, UsageError
from plugml.launch import reach
from plugml.launch.clusterfile import ELSEWHERE, ClusterFile
from plugml.launch.discovery import at_addresses, find, named
from plugml.launch.reach import (
    Wish,
    admin_trust,
    files_for,
    listen_at,
    make_cluster_keys,
    master_at,
    secured,
    trust_of,
    with_public_keys,
)
from plugml.runtime.keys import NO_TCP, Keys, make_keys, read_roster

LO = Wish(interface="lo")


@pytest.fixture
def cluster(tmp_path: Path) -> ClusterFile:
    root = tmp_path / "root"
    return ClusterFile("lab", root, tmp_path / "state", {"m0": f"ipc://{root}/ipc/m0"}, 0)


@pytest.fixture
def spread(cluster: ClusterFile) -> ClusterFile:
    made = master_at(cluster, "m0", LO, {})
    make_cluster_keys(made, ["m0", "s0", "a0"])
    return with_public_keys(made)


def test_within_a_host_nothing_changes_and_no_key_is_looked_for(cluster: ClusterFile) -> None:
    assert master_at(cluster, "m0", Wish(), {"PLUGML_KEYS": "/nowhere"}) == cluster
    assert listen_at(cluster, "s0", Wish()) == cluster.endpoint("s0")
    assert trust_of(cluster, "s0", cluster.endpoint("s0")) == admin_trust(cluster, {}) == NO_TCP


def test_a_master_on_tcp_says_where_it_is_and_servers_listen_towards_it(spread: ClusterFile) -> None:
    assert spread.masters["m0"].startswith("tcp://127.0.0.1:") and not spread.masters["m0"].endswith(":0")
    assert listen_at(spread, "m0", Wish()) == spread.masters["m0"], "a supervised master takes the address that was told"
    assert listen_at(spread, "s0", Wish()) == "tcp://127.0.0.1:0"
    assert listen_at(spread, "s0", Wish(ports=(7000, 7009))) == "tcp://127.0.0.1:7000-7009"
    assert spread.security == "keys" and spread.keys == str(spread.state / "keys")
    assert spread.public == {"m0": read_roster(spread.state / "keys")["m0"]}
    trust = trust_of(spread, "s0", "tcp://127.0.0.1:0")
    assert trust.keys is not None and trust.keys.pair.id == "s0" and not trust.insecure and not trust.plain_data
    assert ClusterFile.from_text(spread.to_text(), spread.state) == spread


def test_a_second_master_does_not_hide_behind_the_loopback(cluster: ClusterFile) -> None:
    away = cluster._replace(masters={"m0": "tcp://192.0.2.1:7000"})
    with pytest.raises(UsageError, match="is reached from this host alone, and the master is at 192.0.2.1"):
        master_at(away, "m1", LO, {})


def test_keys_are_looked_for_where_it_is_said_first(spread: ClusterFile) -> None:
    places = [secured(spread, Wish(keys="given"), {"PLUGML_KEYS": "/env"}), secured(spread, Wish(), {"PLUGML_KEYS": "/env"}), secured(spread, Wish(), {})]
    assert [Path(file.keys).name for file in places] == ["given", "env", "keys"]


def test_what_does_not_go_together_is_refused(spread: ClusterFile) -> None:
    with pytest.raises(UsageError, match="means no keys at all"):
        secured(spread, Wish(insecure=True, keys="x"), {})
    with pytest.raises(UsageError, match="means no keys at all"):
        secured(spread, Wish(insecure=True, plain_data=True), {})
    with pytest.raises(UsageError, match="cluster lab uses keys: a node without them is let in nowhere"):
        secured(spread, Wish(insecure=True), {})


def test_the_keys_of_another_cluster_are_seen_before_anything_is_opened(spread: ClusterFile, tmp_path: Path) -> None:
    make_keys(tmp_path / "other", ["m0", "s0"])
    with pytest.raises(KeysError, match="are not those of cluster lab: its master m0 has another one"):
        trust_of(secured(spread, Wish(keys=str(tmp_path / "other")), {}), "s0", "tcp://127.0.0.1:0")


def test_without_keys_and_with_plain_data_the_trust_says_so(cluster: ClusterFile) -> None:
    open_ = master_at(cluster, "m0", LO._replace(insecure=True), {})
    assert open_.security == "insecure" and trust_of(open_, "s0").insecure and admin_trust(open_, {}).insecure
    joined = secured(open_, Wish(), {"PLUGML_KEYS": "/x"})
    assert joined.security == "insecure" and with_public_keys(joined) == joined, "who joins it needs not say it again"
    plain = master_at(cluster, "m0", LO._replace(plain_data=True), {})
    make_cluster_keys(plain, ["m0", "s0"])
    assert plain.security == "plain-data" and trust_of(plain, "s0").plain_data and secured(plain, Wish(), {}).security == "plain-data"


def test_a_host_is_sent_the_roster_and_its_own_keys_alone(spread: ClusterFile, tmp_path: Path) -> None:
    files = files_for(Path(spread.keys), ["s0", "a0"])
    assert sorted(files) == ["a0.key", "roster.json", "s0.key"]
    there = tmp_path / "there"
    there.mkdir(mode=0o700)
    for name, contents in files.items():
        (there / name).write_bytes(contents)
        (there / name).chmod(0o600)
    assert Keys(there, "s0").public_of("m0") == spread.public["m0"]
    with pytest.raises(KeysError, match=r"s7\.key is not there"):
        files_for(Path(spread.keys), ["s7"])


def test_an_admin_takes_its_own_key_and_several_are_an_error(spread: ClusterFile) -> None:
    keys = Path(spread.keys)
    assert admin_trust(spread, {}).keys is not None
    make_keys(keys, ["admin-ann"], revoke=["admin"])
    taken = admin_trust(spread, {}).keys
    assert taken is not None and taken.pair.id == "admin-ann"
    make_keys(keys, ["admin-bob"])
    with pytest.raises(KeysError, match=r"holds several admins' keys \(admin-ann, admin-bob\): give the directory of one by PLUGML_KEYS"):
        admin_trust(spread, {})


def test_a_cluster_is_named_by_the_addresses_of_its_masters(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path), "PLUGML_ROOT": str(tmp_path / "root")}
    file = at_addresses("node7:7000,10.0.0.5:7001,[fd00::5]:7002", environ)
    assert file.masters == {"m0": "tcp://node7:7000", "m1": "tcp://10.0.0.5:7001", "m2": "tcp://[fd00::5]:7002"}
    assert (file.name, file.keeper, file.security) == ("node7-7000", ELSEWHERE, "keys")
    assert find("node7:7000", environ).masters == named("node7:7000", environ).masters == {"m0": "tcp://node7:7000"}  # type: ignore[union-attr]
    assert at_addresses("[fd00::5]:7002", environ).name == "fd00--5-7002" and len(at_addresses(f"{'x' * 60}.lab:1", environ).name) <= 40
    for wrong in ("node7:", "node7:0", "node7:1-5", ":7000", "a:1,"):
        with pytest.raises(UsageError):
            at_addresses(wrong, environ)


def test_a_file_that_another_host_wrote_has_our_places(spread: ClusterFile, tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path / "ours"), "PLUGML_ROOT": str(tmp_path / "ours-root")}
    path = tmp_path / "cluster.json"
    path.write_text(spread._replace(host="another-host", pid=77).to_text())
    path.chmod(0o600)
    file = find(str(path), environ)
    assert file.keeper == ELSEWHERE and file.pid == 0 and file.masters == spread.masters and file.public == spread.public
    assert file.root == tmp_path / "ours-root" and file.state == tmp_path / "ours" / "plugml" / "lab" and file.keys == ""
    path.write_text(spread._replace(host=socket.gethostname()).to_text())
    here = named(str(path), environ)
    assert here is not None and here.root == spread.root and here.keys == spread.keys


def test_a_file_of_a_newer_plugml_is_not_taken_for_less_than_it_says(spread: ClusterFile) -> None:
    with pytest.raises(UsageError, match="security 'better' is not known here"):
        ClusterFile.from_text(spread.to_text().replace('"keys",', '"better",', 1), spread.state)
    assert reach.KEYS == "keys"
