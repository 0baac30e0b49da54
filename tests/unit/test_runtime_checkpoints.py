"""The directory of checkpoints: a crash at any step, a full disk, damage, and what may be removed."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from plugml.core.errors import WorldError
from plugml.runtime import checkpoints, solid
from plugml.server.effects import TidySaves, WriteManifest, WriteRange
from plugml.server.savedisk import complete

from .save_world import WORK, SaveWorld
from .test_server_checkpoint import quiet, spec_of, trained

CALLS = ("open", "write", "fsync", "rename", "unlink", "rmdir")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """What servers did to the disk for three checkpoints, and where."""
    root = tmp_path_factory.mktemp("made") / "root"
    done: list[Any] = []
    world = SaveWorld(spec_of(root), 1, loss=0, double=0)
    world.spoil = lambda effect: done.append(kept(effect))
    trained(world, 13)
    quiet(world)
    kinds = [type(effect) for effect in done]
    assert kinds.count(WriteManifest) == 3 and kinds.count(TidySaves) == 3 and WriteRange in kinds
    return root, done


def kept(effect: Any) -> Any:
    """The same with numbers of its own: the range's are used again."""
    if not isinstance(effect, WriteRange):
        return effect
    arrays = {name: array.copy() for name, array in effect.dump.arrays.items()}
    return effect._replace(dump=effect.dump._replace(arrays=arrays))


class Crash(BaseException):
    pass


class Faults:
    """The k-th call that changes the disk is the last one, half done, or fails with an error and the work goes on."""

    def __init__(self, patch: pytest.MonkeyPatch, at: int, error: int = 0) -> None:
        self.left, self.error, self.count = at, error, 0
        for name in CALLS:
            patch.setattr(os, name, self.wrapped(name, getattr(os, name)))

    def wrapped(self, name: str, real: Any) -> Any:
        def call(*arguments: Any, **more: Any) -> Any:
            if name == "open" and not (arguments[1] if len(arguments) > 1 else more.get("flags", 0)) & os.O_CREAT:
                return real(*arguments, **more)
            self.count += 1
            self.left -= 1
            if self.left == 0:
                if name == "write":
                    real(arguments[0], arguments[1][: len(arguments[1]) // 2])
                if self.error:
                    raise OSError(self.error, os.strerror(self.error))
                raise Crash
            return real(*arguments, **more)

        return call


def replay(root: Path, done: list[Any], patch: pytest.MonkeyPatch, at: int, error: int = 0) -> tuple[int, list[Any]]:
    """Do the work until the fault; returns the last checkpoint that was completed before, and events that told of trouble."""
    shutil.rmtree(root, ignore_errors=True)
    last, troubles = 0, []
    with patch.context() as inner:
        faults = Faults(inner, at, error)
        try:
            for effect in done:
                event = WORK[type(effect)](effect)
                if event is not None and event.problem:
                    troubles.append(event)
                elif isinstance(effect, WriteManifest):
                    last = effect.number
        except Crash:
            return last, troubles
    assert not error or faults.left <= 0 or not troubles
    return last, [*troubles, None] if faults.left > 0 else troubles


def test_after_a_crash_at_any_step_the_last_whole_one_is_found(work: tuple[Path, list[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    root, done = work
    at = 0
    while True:
        at += 1
        last, told = replay(root, done, monkeypatch, at)
        found, _ = checkpoints.newest(root)
        assert (found.number if found is not None else 0) in (last, last + 1), f"crash at step {at}"
        if found is not None:
            checkpoints.verify(found)
        if told:
            break
    assert at > 40, "there are more steps than that"


@pytest.mark.parametrize("error", [28, 5])
def test_an_error_at_any_step_costs_at_most_the_one_under_way(work: tuple[Path, list[Any]], monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    """Servers stop the attempt at the first trouble; here the rest of the work is done all the same, and must not make it worse."""
    root, done = work
    for at in range(1, 400, 3):
        try:
            last, told = replay(root, done, monkeypatch, at, error)
        except solid.SyncError:
            continue  # that process ends
        found, problems = checkpoints.newest(root)
        assert found is not None or last == 0, problems
        if told == [None]:
            return
    raise AssertionError("the work has no end")


def test_what_is_damaged_is_passed_over_and_named(work: tuple[Path, list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, done = work
    replay(root, done, monkeypatch, 1 << 30)
    pairs = checkpoints.numbers(root)
    assert pairs == [2, 3]

    def spoiled(spoil: Any) -> tuple[int, str]:
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        shutil.copytree(root, tmp_path / "copy")
        newest = tmp_path / "copy" / "000003"
        spoil(newest)
        found, problems = checkpoints.newest(tmp_path / "copy")
        assert found is not None
        return found.number, problems[0] if problems else ""

    def range_of(place: Path) -> Path:
        return next(place.glob("r*.safetensors"))

    def flip(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 4
        path.write_bytes(data)

    assert spoiled(lambda place: range_of(place).write_bytes(b""))[0] == 2
    assert "has 0 bytes" in spoiled(lambda place: range_of(place).write_bytes(b""))[1]
    assert "damaged: its checksum differs" in spoiled(lambda place: flip(range_of(place)))[1]
    assert "cannot be read" in spoiled(lambda place: range_of(place).unlink())[1]
    assert "was never completed" in spoiled(lambda place: (place / "manifest.json").unlink())[1]
    number, text = spoiled(lambda place: flip(place / "manifest.json"))
    assert number == 2 and "manifest" in text
    number, text = spoiled(lambda place: (place.parent / "000009").mkdir())
    assert number == 3 and "000009" in text
    assert spoiled(lambda place: (place / ".r00001.safetensors.tmp").write_bytes(b"x")) == (3, "")


def test_a_manifest_says_only_what_this_version_reads(work: tuple[Path, list[Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root, done = work
    replay(root, done, monkeypatch, 1 << 30)
    place = tmp_path / "000003"
    place.mkdir()
    document = json.loads((root / "000003" / "manifest.json").read_text())

    def refused(**changes: Any) -> str:
        whole = {**document, **changes}
        if "sum" not in changes:
            whole["sum"] = checkpoints._sum(whole)
        (place / "manifest.json").write_text(json.dumps(whole))
        with pytest.raises(WorldError) as caught:
            checkpoints.read(place)
        return str(caught.value)

    assert "its format is not" in refused(format="plugml checkpoint 2")
    assert "its checksum differs" in refused(sum=1)
    assert "names the file" in refused(files={"../x": [1, 2]})
    assert "of checkpoint 000007" in refused(number=7)
    assert "damaged" in refused(job={"name": "x"}) and "damaged" in refused(files=3) and "damaged" in refused(clock="x")
    (place / "manifest.json").write_text("[" * 100_000)
    with pytest.raises(WorldError, match="damaged"):
        checkpoints.read(place)


def test_files_that_a_kept_one_needs_stay(tmp_path: Path) -> None:
    """4 needs a file of 1; 2 and 3 may go once two are kept."""
    document = {"clock": 1, "cut": "closed", "job": spec_of(tmp_path).to_document(), "ring_ranges": 4, "workers": []}
    for number in range(1, 6):
        file = tmp_path / checkpoints.range_file(number, 0)
        file.parent.mkdir()
        file.write_bytes(b"x" * number)
        earlier = [] if number in (1, 5) else [checkpoints.range_file(1, 0)]
        checkpoints.write_manifest(tmp_path, number, document, {checkpoints.range_file(number, 0): solid.checksum(file)}, earlier, number - 1)
    checkpoints.tidy(tmp_path, 4, 2)
    assert checkpoints.numbers(tmp_path) == [1, 3, 4, 5], "what is newer than the kept one is not looked at"
    assert checkpoints.whole(tmp_path / "000004").needs == {1, 4}
    checkpoints.tidy(tmp_path, 5, 1)
    assert checkpoints.numbers(tmp_path) == [5]


def test_a_manifest_that_needs_what_is_not_known_is_none(tmp_path: Path) -> None:
    document = {"clock": 1, "cut": "closed", "job": spec_of(tmp_path).to_document(), "ring_ranges": 4, "workers": []}
    (tmp_path / "000001").mkdir()
    checkpoints.write_manifest(tmp_path, 1, document, {}, [], 0)
    told = complete(WriteManifest(1, 2, str(tmp_path), 1, document, {}, ((1, 7),)))
    assert "r00007" in told.problem and "does not know it" in told.problem


def manifest_of(root: Path, number: int, earlier: list[str] | None = None, kept: int = 0) -> None:
    file = root / checkpoints.range_file(number, 0)
    file.parent.mkdir(parents=True)
    file.write_bytes(b"x" * number)
    document = {"clock": 1, "cut": "closed", "job": spec_of(root).to_document(), "ring_ranges": 4, "workers": []}
    checkpoints.write_manifest(root, number, document, {checkpoints.range_file(number, 0): solid.checksum(file)}, earlier or [], kept)


def test_directories_on_the_way_last_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody has made them, and perhaps not synced; one that may not be read is passed over."""
    root = tmp_path / "runs" / "digits" / "checkpoints"
    synced: list[int] = []
    real, opened = os.fsync, os.open

    def fsync(fd: int) -> None:
        synced.append(os.fstat(fd).st_ino)
        real(fd)

    def guarded(path: Any, *rest: Any, **more: Any) -> int:
        if Path(path) == root.parent:
            raise PermissionError(13, "Permission denied")
        return opened(path, *rest, **more)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "open", guarded)
    manifest_of(root, 1)
    monkeypatch.undo()
    lasting = [place for place in (root / "000001").parents if place.stat().st_ino in synced]
    assert lasting[:3] == [root, root.parent.parent, tmp_path] and checkpoints.whole(root / "000001").number == 1


def test_nothing_refers_to_a_file_that_is_not_there_any_more(tmp_path: Path) -> None:
    manifest_of(tmp_path, 1)
    manifest_of(tmp_path, 2, [checkpoints.range_file(1, 0)], 1)
    (tmp_path / checkpoints.range_file(1, 0)).write_bytes(b"")
    with pytest.raises(WorldError, match="r00000.safetensors has 0 bytes, not 1"):
        manifest_of(tmp_path, 3, [checkpoints.range_file(1, 0)], 2)
    assert not (tmp_path / "000003" / checkpoints.MANIFEST).exists()
    (tmp_path / checkpoints.range_file(1, 0)).unlink()
    with pytest.raises(WorldError, match="r00000.safetensors cannot be read"):
        manifest_of(tmp_path, 4, [checkpoints.range_file(1, 0)], 2)


def test_what_is_not_whole_is_none_of_those_that_are_kept(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        manifest_of(tmp_path, number)
    (tmp_path / checkpoints.range_file(2, 0)).unlink()
    checkpoints.tidy(tmp_path, 3, 2)
    assert checkpoints.numbers(tmp_path) == [1, 3], "two that are whole stay"
