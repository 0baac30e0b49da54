"""The channel root: every reason to refuse one says what to do, one agent serves it, and only the abandoned is swept."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plugml.core.errors import RootError
from plugml.core.job import JobSpec
from plugml.core.table import TableSpec
from plugml.shm_protocol import root as roots
from plugml.shm_protocol.create import create_channel
from plugml.shm_protocol.info import Info
from tests.leaks import own_root

pytestmark = pytest.mark.usefixtures("no_leaks")
SPEC = JobSpec("job", 2, (TableSpec("w", (4,)),))


@pytest.fixture
def place() -> Iterator[Path]:
    path = own_root()
    yield path
    if path.is_dir():
        path.chmod(0o700)
        fd = os.open("/dev/shm", os.O_RDONLY | os.O_DIRECTORY)
        roots.remove_tree(fd, path.name)
        os.close(fd)


def test_a_root_is_made_private_whatever_the_umask(place: Path) -> None:  # SPEC 10.2
    before = os.umask(0o777)
    try:
        assert roots.prepare_root(place) == []
    finally:
        os.umask(before)
    assert place.stat().st_mode & 0o777 == 0o700
    roots.prepare_root(place)


def test_a_root_that_others_can_reach_is_refused(place: Path) -> None:
    place.mkdir(mode=0o755)
    place.chmod(0o755)
    with pytest.raises(RootError, match=f"has mode 0755, others could reach it; run: chmod 700 {place}"):
        roots.prepare_root(place)


def test_a_root_on_a_disk_is_refused_unless_allowed(tmp_path: Path, does_not_apply: Callable[[str], None]) -> None:  # SPEC 10.2
    if roots.file_system(tmp_path) in roots.IN_MEMORY:
        does_not_apply("the temporary directory lies in memory")
    with pytest.raises(RootError, match="not in memory; set PLUGML_ROOT to a directory on tmpfs"):
        roots.prepare_root(tmp_path / "root")
    roots.prepare_root(tmp_path / "root", allow_disk=True)


def test_a_root_that_is_a_link_or_a_file_is_refused(place: Path) -> None:
    place.symlink_to("/dev/shm")
    try:
        with pytest.raises(RootError, match="is no directory; remove it"):
            roots.check_root(place)
    finally:
        place.unlink()
    place.touch()
    try:
        with pytest.raises(RootError, match="is no directory; remove it"):
            roots.prepare_root(place)
    finally:
        place.unlink()


def test_a_root_of_somebody_else_is_refused(place: Path, does_not_apply: Callable[[str], None]) -> None:  # SPEC 10.2
    if os.getuid() != 0:
        does_not_apply("only the superuser can make another user's directory")
    place.mkdir(mode=0o700)
    os.chown(place, 12345, 12345)
    with pytest.raises(RootError, match="belongs to user 12345, not to you; set PLUGML_ROOT"):
        roots.check_root(place)


def test_a_root_that_somebody_else_could_exchange_is_refused(place: Path, does_not_apply: Callable[[str], None]) -> None:
    place.mkdir(mode=0o700)
    place.chmod(0o777)
    (warning,) = roots.prepare_root(place / "inner")
    assert "who could exchange it: chmod go-w" in warning
    place.chmod(0o1777)
    assert not roots.prepare_root(place / "inner")
    if os.getuid() != 0:
        does_not_apply("only the superuser can make another user's directory")
    os.chown(place, 12345, 12345)
    for inner in (place / "inner", place / "above" / "inner"):
        with pytest.raises(RootError, match="belongs to user 12345, who could exchange it; set PLUGML_ROOT"):
            roots.prepare_root(inner)
    assert os.listdir(place) == ["inner"]  # nothing was made before
    link = place.with_name(place.name + "-link")
    link.symlink_to(place)
    try:
        with pytest.raises(RootError, match="belongs to user 12345"):
            roots.prepare_root(link / "inner")
    finally:
        link.unlink()


def test_a_root_without_a_parent_is_refused(place: Path) -> None:
    with pytest.raises(RootError, match="parent .* does not exist"):
        roots.prepare_root(place / "a" / "b" / "c")


def test_a_missing_root_is_refused(place: Path) -> None:
    with pytest.raises(RootError, match="cannot be used: No such file or directory; start an agent there first"):
        roots.check_root(place)


def test_a_root_must_leave_room_for_a_socket(place: Path) -> None:  # SPEC 10.3
    with pytest.raises(RootError, match="longer than 96 bytes, so no socket fits"):
        roots.prepare_root(place / ("x" * 80))
    with pytest.raises(RootError, match="not an absolute path"):
        roots.prepare_root(Path("here"))


def test_the_environment_chooses_the_root() -> None:  # SPEC 10.1
    assert roots.default_root("c", {"PLUGML_ROOT": "/dev/shm/mine"}) == Path("/dev/shm/mine")
    chosen = roots.default_root("c", {})
    assert chosen in (Path(f"/run/plugml/{os.getuid()}/c"), Path(f"/dev/shm/plugml-{os.getuid()}/c"))


def test_too_little_space_is_told_in_bytes(place: Path) -> None:
    roots.prepare_root(place)
    roots.need_space(place, 1)
    with pytest.raises(RootError, match=r"is full: 4611686018427387904 bytes needed, \d+ available; remove"):
        roots.need_space(place, 1 << 62)


def test_too_few_inodes_are_told_as_such(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.mkdir(mode=0o700)
    found = os.statvfs(place)
    few = os.statvfs_result((found.f_bsize, found.f_frsize, 1000, 900, 900, 30, 3, 3, found.f_flag, found.f_namemax))
    monkeypatch.setattr(os, "statvfs", lambda path: few)
    text = str(roots.full_error(place, 4096))
    assert "is full: it has 30 inodes and 3 are free" in text and "mount -o remount,nr_inodes=..." in text


def test_one_agent_serves_a_root(place: Path) -> None:  # SPEC 9.3
    roots.prepare_root(place)
    held = roots.lock_agent(place)
    with pytest.raises(RootError, match=rf"another agent \(process {os.getpid()}\) serves"):
        roots.lock_agent(place)
    os.close(held)
    os.close(roots.lock_agent(place))


def test_names_of_channels() -> None:
    assert roots.channel_parts("a.b-1.2.33") == ("a.b-1", 2, 33)
    for name in ("agent.sock", "agent.lock", ".tmp-a.1.1", ".a.1.1", "a.1", "a.1.x", "ipc", "a.1.1/x"):
        assert roots.channel_parts(name) is None, name


def test_a_sweep_keeps_what_is_kept_and_removes_the_rest(place: Path) -> None:  # SPEC 9.2 9.5
    roots.prepare_root(place)
    boot = roots.boot_id()
    live = create_channel(place, Info.of(SPEC, 0, 1, boot, 0))
    orphan = create_channel(place, Info.of(SPEC, 1, 1, boot, 0))
    orphan.close(remove=False)
    old = create_channel(place, Info.of(SPEC, 1, 2, "f" * 32, 0))
    dead = create_channel(place, Info.of(SPEC, 0, 3, boot, 0))
    dead.retire()
    abandoned = create_channel(place, Info.of(SPEC, 0, 4, boot, 0))
    abandoned.retire()
    abandoned.close(remove=False)
    (place / ".tmp-half").mkdir()
    (place / ".tmp-half" / "grad").write_bytes(b"123")
    in_work = place / ".tmp-in-work"
    in_work.mkdir()
    keeper = os.open(in_work / "keeper", os.O_CREAT | os.O_RDWR)
    fcntl.flock(keeper, fcntl.LOCK_EX)
    (place / "agent.stat").write_text("x")
    (place / "ipc").mkdir()
    try:
        swept = roots.sweep(place, boot)
        assert swept.channels == ("job.0.1",)
        reasons = dict(swept.removed)
        assert reasons.pop("job.1.2") == "it is of another boot of this host"
        assert set(reasons) == {"job.1.1", ".tmp-half", abandoned.name}
        assert set(reasons.values()) == {"nobody keeps it: its launcher is gone"}
        assert sorted(os.listdir(place)) == sorted([dead.name, ".tmp-in-work", "agent.stat", "ipc", "job.0.1"])
        assert roots.sweep(place, boot) == roots.Swept(("job.0.1",), ())
    finally:
        os.close(keeper)
        for channel in (live, old, dead):
            channel.close()


def test_a_sweep_follows_no_link_out_of_the_root(place: Path, tmp_path: Path) -> None:  # SPEC 10.4
    roots.prepare_root(place)
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis").write_text("years of work")
    (place / "job.0.1").symlink_to(precious)
    half = place / "job.0.2"
    half.mkdir()
    (half / "grad").symlink_to(precious / "thesis")
    (half / "more").symlink_to(precious)
    swept = roots.sweep(place, roots.boot_id())
    assert {name for name, _reason in swept.removed} == {"job.0.1", "job.0.2"}
    assert os.listdir(place) == []
    assert (precious / "thesis").read_text() == "years of work"


def test_no_warning_about_logind_for_system_users_and_own_mounts(monkeypatch: pytest.MonkeyPatch) -> None:
    below_shm, own_mount = Path("/dev/shm/plugml-1000/c"), Path("/run/plugml/1000/c")
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: 1000)
        patch.setattr(Path, "is_dir", lambda _self: True)
        patch.setattr(Path, "glob", lambda _self, _pattern: iter(()))
        patch.setattr(Path, "read_text", lambda _self, **_more: "#RemoveIPC=no\n")
        warned, silent = roots._remove_ipc_warning(below_shm), roots._remove_ipc_warning(own_mount)
        patch.setattr(Path, "read_text", lambda _self, **_more: "[Login]\nRemoveIPC=no\n")
        configured = roots._remove_ipc_warning(below_shm)
        patch.setattr(os, "getuid", lambda: 999)
        system_user = roots._remove_ipc_warning(below_shm)
    assert "set RemoveIPC=no in logind.conf" in warned
    assert (silent, configured, system_user) == ("", "", "")
