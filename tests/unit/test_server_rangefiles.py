"""The file of a range: what comes back is what went in, whole or not at all; anything else is refused with a sentence."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from plugml.core.errors import RequestError, WorldError
from plugml.core.job import JobSpec
from plugml.server import rangefiles
from plugml.server.dump import Dump
from plugml.server.rangefiles import SyncError, about, read_range, refers, write_range
from tests.unit.dump_history import Copy, History, lived

NAME = "c1/r0.safetensors"


def written(root: Path, spec: JobSpec, copy: Copy, name: str = NAME, earlier: str = "") -> rangefiles.Written:
    dump = copy.dump()
    try:
        return write_range(root, name, dump, about(spec, 1, 0), earlier)
    finally:
        copy.holding.contents.let_go(dump)


def loaded(root: Path, spec: JobSpec, name: str = NAME) -> Copy:
    copy = Copy(spec)
    copy.load(read_range(root, name, about(spec, 1, 0), copy.holding.layout))
    return copy


def refused(root: Path, spec: JobSpec, name: str = NAME) -> str:
    copy = Copy(spec)
    with pytest.raises(WorldError) as error:
        read_range(root, name, about(spec, 1, 0), copy.holding.layout)
    assert str(root / name).split("/c")[0] in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("seed", range(12))
def test_a_range_that_was_stored_goes_on_bit_for_bit(seed: int, tmp_path: Path) -> None:
    spec, first, history = lived(Random(seed))
    written(tmp_path, spec, first)
    second = loaded(tmp_path, spec)
    assert second.whole() == first.whole() and second.range.digest() == first.range.digest()
    for _ in range(20):
        message = history.next()
        assert second.says(message) == first.says(message)
    assert second.whole() == first.whole()


def test_others_read_the_file_as_safetensors(tmp_path: Path) -> None:
    spec, copy, _ = lived(Random(3))
    dump = copy.dump()
    write_range(tmp_path, NAME, dump, about(spec, 1, 0))
    tensors = load_file(tmp_path / NAME)
    assert tensors.keys() == dump.arrays.keys() and len(tensors) > 8
    for name, array in dump.arrays.items():
        assert tensors[name].dtype == array.dtype
        np.testing.assert_array_equal(tensors[name], array)
    with safe_open(tmp_path / NAME, framework="np") as file:
        said = file.metadata()
    assert json.loads(said["about"])["job"] == "story" and json.loads(said["meta"])["version"] == copy.range.version
    raw = (tmp_path / NAME).read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    start = 8 + int.from_bytes(raw[:8], "little")
    for name, array in dump.arrays.items():
        assert (start + header[name]["data_offsets"][0]) % array.dtype.itemsize == 0


# -- what is wrong with a file


def test_a_file_that_ends_too_early_is_refused_wherever_that_is(tmp_path: Path) -> None:
    spec, copy, _ = lived(Random(1))
    written(tmp_path, spec, copy)
    whole = (tmp_path / NAME).read_bytes()
    for length in {*range(10), len(whole) // 2, len(whole) - 1, *Random(1).sample(range(len(whole)), 40)}:
        (tmp_path / NAME).write_bytes(whole[:length])
        assert re.search("bytes|ends", refused(tmp_path, spec)), length
    (tmp_path / NAME).write_bytes(whole + b"\0")
    assert "describes" in refused(tmp_path, spec)


def test_no_flipped_bit_gets_in(tmp_path: Path) -> None:
    spec, copy, _ = lived(Random(1))
    written(tmp_path, spec, copy)
    whole = (tmp_path / NAME).read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    draw = Random(2)
    for at in [*range(64), *draw.sample(range(header), 150), *draw.sample(range(header, len(whole)), 150), len(whole) - 1]:
        spoiled = bytearray(whole)
        spoiled[at] ^= 1 << draw.randrange(8)
        (tmp_path / NAME).write_bytes(spoiled)
        refused(tmp_path, spec)


def test_what_is_of_another_job_is_refused_by_its_name(tmp_path: Path) -> None:
    spec, copy, _ = lived(Random(1))
    written(tmp_path, spec, copy)
    assert about(spec, 1, 0) == json.loads(json.dumps(about(spec, 1, 0)))
    from dataclasses import replace

    one = spec.tables[0]
    changed = {
        "job 'story', not 'other'": replace(spec, name="other"),
        "seed": replace(spec, seed=spec.seed + 1),
        "5 tables|6 tables": replace(spec, tables=spec.tables[1:]),
        f"table '{one.name}' with init": replace(spec, tables=(replace(one, init="uniform" if one.init == "zeros" else "zeros"), *spec.tables[1:])),
    }
    for text, other in changed.items():
        assert re.search(text, refused(tmp_path, other))
    target = Copy(spec)
    for wrong in (about(spec, 1, 5), about(spec, 4, 0)):
        with pytest.raises(WorldError, match="it is of range"):
            read_range(tmp_path, NAME, wrong, target.holding.layout)
    faster = replace(spec, workers=spec.workers, stop_clock=9)
    loaded(tmp_path, faster)


def craft(root: Path, change: Any) -> None:
    """The file with another header, whose checksum is right."""
    from zlib import crc32

    raw = (root / NAME).read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    header["__metadata__"]["header"] = "0" * 8
    change(header)
    text = json.dumps(header, separators=(",", ":")).encode()
    at = text.find(b'"header":"') + 10
    text = text[:at] + b"%08x" % crc32(text) + text[at + 8 :]
    (root / NAME).write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :])


def first_tensor(header: Any) -> Any:
    return header[[name for name in header if name != "__metadata__"][0]]


def meta_of(change: Any) -> Any:
    def spoil(header: Any) -> None:
        meta = json.loads(header["__metadata__"]["meta"])
        change(meta)
        header["__metadata__"]["meta"] = json.dumps(meta)

    return spoil


HOSTILE = {
    "another format": lambda header: header["__metadata__"].update(format="plugml range 2"),
    "no metadata": lambda header: header["__metadata__"].pop("meta"),
    "metadata that is no text": lambda header: header["__metadata__"].update(crc32=5),
    "a shape of no numbers": lambda header: first_tensor(header).update(shape=["x"]),
    "a negative shape": lambda header: first_tensor(header).update(shape=[-4]),
    "a boundless shape": lambda header: first_tensor(header).update(shape=[1 << 60]),
    "a shape of many sizes": lambda header: first_tensor(header).update(shape=[1] * 9),
    "a kind that is none": lambda header: first_tensor(header).update(dtype="Q7"),
    "a kind that is no text": lambda header: first_tensor(header).update(dtype=[1]),
    "offsets with a hole": lambda header: first_tensor(header).update(data_offsets=[8, 16]),
    "offsets of no numbers": lambda header: first_tensor(header).update(data_offsets="here"),
    "a tensor that is none": lambda header: header.update(extra=7),
    "one tensor less": lambda header: header.pop([name for name in header if name != "__metadata__"][-1]),
    "checksums of other arrays": lambda header: header["__metadata__"].update(crc32='{"a":1}'),
    "a checksum that is none": lambda header: header["__metadata__"].update(crc32=header["__metadata__"]["crc32"].replace(":", ":-", 1)),
    "arrays somewhere else": lambda header: header["__metadata__"].update(where='{"a":"../../x"}'),
    "nested without end": lambda header: header["__metadata__"].update(meta="[" * 100_000),
    "a version that is none": meta_of(lambda meta: meta.update(version=-1)),
    "a block of another range": meta_of(lambda meta: meta["contents"]["blocks"][0].__setitem__(1, 77)),
    "a block twice": meta_of(lambda meta: meta["contents"]["blocks"].append(meta["contents"]["blocks"][0])),
    "another count of rows": meta_of(lambda meta: meta["contents"]["buckets"][0].__setitem__(2, 1 << 31)),
    "rows without end": meta_of(lambda meta: meta["contents"]["buckets"][0].__setitem__(2, 1 << 62)),
    "no streams": meta_of(lambda meta: meta.pop("streams")),
    "a stream twice": meta_of(lambda meta: meta["streams"]["rows"].append(meta["streams"]["rows"][0])),
    "a worker that is text": meta_of(lambda meta: meta["streams"]["rows"][0].__setitem__(0, "w")),
    "no clock": meta_of(lambda meta: meta.update(clock={})),
    "a list for a mapping": meta_of(lambda meta: meta.update(contents=[])),
    "ticks of closed clocks": meta_of(lambda meta: meta["clock"].update(ticks=[[0, []]], closed=1)),
    "a slow member": meta_of(lambda meta: meta["clock"]["members"].update(slowest=1 << 40)),
    "more done than there is": meta_of(lambda meta: meta["clock"]["work"].update(done=5)),
    "claims from the future": meta_of(lambda meta: meta["clock"]["claims"].update(initialised=1 << 40)),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_file_made_with_intent_is_refused_too(what: str, tmp_path: Path) -> None:
    """All of it while it is read, or when it is loaded: a document that contradicts itself raises what a peer's raises."""
    from plugml.core.errors import PeerError

    spec, copy, _ = lived(Random(1))
    written(tmp_path, spec, copy)
    craft(tmp_path, HOSTILE[what])
    target = Copy(spec)
    empty = target.whole()
    with pytest.raises((WorldError, PeerError, RequestError)):
        target.load(read_range(tmp_path, NAME, about(spec, 1, 0), target.holding.layout))
    target.holding.forget()
    assert target.pool.used == target.pool.taken == 0
    assert Copy(spec).whole() == empty


def test_a_file_that_is_none_or_away_is_refused(tmp_path: Path) -> None:
    spec, _, _ = lived(Random(1), 1)
    assert "cannot be read: No such file" in refused(tmp_path, spec)
    (tmp_path / "c1").mkdir()
    (tmp_path / NAME).write_bytes(b"\xff" * 8 + b"{}")
    assert "no header" in refused(tmp_path, spec)
    (tmp_path / NAME).write_bytes((1 << 40).to_bytes(8, "little") + b"{}" * 50)
    assert "no header" in refused(tmp_path, spec)
    (tmp_path / NAME).unlink()
    (tmp_path / NAME).mkdir()
    assert "cannot be read" in refused(tmp_path, spec)


# -- the disk


def test_a_new_name_stands_for_what_the_disk_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers are on the disk before they get their name, and the name before anybody hears of it."""
    spec, copy, _ = lived(Random(1))
    done: list[str] = []
    rename, fsync = os.rename, os.fsync

    def spy_rename(one: Any, two: Any) -> None:
        done.append(f"rename {Path(two).name}")
        rename(one, two)

    def spy_fsync(fd: int) -> None:
        done.append("sync " + os.path.relpath(os.readlink(f"/proc/self/fd/{fd}"), tmp_path))
        fsync(fd)

    monkeypatch.setattr(os, "rename", spy_rename)
    monkeypatch.setattr(os, "fsync", spy_fsync)
    written(tmp_path, spec, copy)
    assert done == ["sync c1/.r0.safetensors.tmp", "rename r0.safetensors", "sync c1", "sync ."]


@pytest.mark.parametrize(("call", "text"), [("write", "cannot be written: No space left"), ("rename", "cannot be written: No space left")])
def test_a_full_disk_leaves_nothing(call: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, copy, _ = lived(Random(1))

    def full(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(WorldError, match=text):
            written(tmp_path, spec, copy)
    assert os.listdir(tmp_path / "c1") == []
    written(tmp_path, spec, copy)
    assert loaded(tmp_path, spec).whole() == copy.whole()


def test_nobody_replaces_a_file_that_is_there_or_is_being_written(tmp_path: Path) -> None:
    spec, copy, history = lived(Random(1))
    written(tmp_path, spec, copy)
    before = (tmp_path / NAME).read_bytes()
    for _ in range(5):
        copy.take(history.next())
    with pytest.raises(WorldError, match="cannot be written: File exists"):
        written(tmp_path, spec, copy)
    assert (tmp_path / NAME).read_bytes() == before and os.listdir(tmp_path / "c1") == ["r0.safetensors"]
    scratch = tmp_path / "c1" / ".r1.safetensors.tmp"
    scratch.write_bytes(b"somebody's")
    with pytest.raises(WorldError, match="cannot be written: File exists"):
        written(tmp_path, spec, copy, "c1/r1.safetensors")
    assert scratch.read_bytes() == b"somebody's"


def test_a_disk_that_fails_to_sync_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, copy, _ = lived(Random(1), 10)

    def broken(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(SyncError, match="Input/output error"):
        written(tmp_path, spec, copy)
    assert os.listdir(tmp_path / "c1") == []


def test_a_write_in_pieces_is_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, copy, _ = lived(Random(2))
    written(tmp_path, spec, copy)
    whole = (tmp_path / NAME).read_bytes()
    (tmp_path / NAME).unlink()
    write = os.write
    monkeypatch.setattr(rangefiles, "PIECE", 100)
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[: len(data) // 2 + 1]))
    written(tmp_path, spec, copy)
    assert (tmp_path / NAME).read_bytes() == whole
    assert loaded(tmp_path, spec).whole() == copy.whole()


# -- what has not changed since


def test_only_what_has_changed_is_written_again(tmp_path: Path) -> None:
    spec, copy, history = lived(Random(5), 80)
    files = []
    for number in range(6):
        name = f"c{number}/r0.safetensors"
        done = written(tmp_path, spec, copy, name, files[-1] if files else "")
        assert (tmp_path / name).stat().st_size == done.nbytes
        assert (done.spared > 0) == bool(refers(tmp_path, name)) and (number == 0) >= (done.spared == 0)
        assert refers(tmp_path, name) <= set(files)
        again = loaded(tmp_path, spec, name)
        assert again.whole() == copy.whole()
        files.append(name)
        for _ in range(3):
            copy.take(history.next())


def test_an_earlier_file_that_is_gone_or_spoiled_is_missed_by_name(tmp_path: Path) -> None:
    spec, copy, _ = lived(Random(5), 80)
    written(tmp_path, spec, copy, "c1/a")
    assert written(tmp_path, spec, copy, "c2/a", "c1/a").spared
    assert refers(tmp_path, "c2/a") == {"c1/a"}
    whole = (tmp_path / "c1/a").read_bytes()
    (tmp_path / "c1/a").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert "c1/a" in refused(tmp_path, spec, "c2/a")
    (tmp_path / "c1/a").unlink()
    assert "c1/a cannot be read" in refused(tmp_path, spec, "c2/a")
    assert written(tmp_path, spec, copy, "c3/a", "c1/a").spared == 0
    assert loaded(tmp_path, spec, "c3/a").whole() == copy.whole()


def test_another_run_of_equal_counts_is_no_earlier_file(tmp_path: Path) -> None:
    """Counts of changes begin anew in each run; what two runs have in common is what is equal."""
    spec, one, _ = lived(Random(5), 0)
    other = Copy(spec)
    draws = [History(spec, Random(seed), copy) for seed, copy in ((1, one), (2, other))]
    for _ in range(30):
        for history, copy in zip(draws, (one, other)):
            copy.take(history._push())
    written(tmp_path, spec, one, "c1/a")
    written(tmp_path, spec, other, "c2/a", "c1/a")
    assert loaded(tmp_path, spec, "c2/a").whole() == other.whole()


def test_a_dump_without_arrays_is_a_file_too(tmp_path: Path) -> None:
    spec = lived(Random(1), 0)[0]
    written(tmp_path, spec, Copy(spec))
    assert loaded(tmp_path, spec).whole() == Copy(spec).whole()
    assert isinstance(Copy(spec).dump(), Dump)
