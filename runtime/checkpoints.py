"""The directory of a job's checkpoints: what is whole in it, what is wrong, what can go.

    <root>/000012/r00017.safetensors ...   a file for each range
    <root>/000012/manifest.json            written last: the job, the cut, and every file that is needed, with its checksum

Owns names, the manifest and the order of removals.  Refuses to know what is in a range's file.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from ..core.errors import UsageError, WorldError, shown
from ..core.job import JobSpec
from . import solid

FORMAT = "plugml checkpoint 1"
MANIFEST = "manifest.json"
MANIFEST_MAX = 64 << 20
_NUMBER = re.compile(r"[0-9]{6,12}\Z")


class Manifest(NamedTuple):
    """A checkpoint as its manifest describes it.  `files` are named from the root: bytes and crc32."""

    place: Path
    number: int
    clock: int
    cut: str
    spec: JobSpec
    ring_ranges: int
    files: dict[str, tuple[int, int]]
    document: dict[str, Any]

    @property
    def needs(self) -> set[int]:
        """Numbers of the checkpoints whose files it has."""
        return {int(name.partition("/")[0]) for name in self.files} | {self.number}


def folder(number: int) -> str:
    return f"{number:06d}"


def range_file(number: int, range_number: int) -> str:
    """
    >>> range_file(12, 17)
    '000012/r00017.safetensors'
    """
    return f"{folder(number)}/r{range_number:05d}.safetensors"


def number_of(name: str) -> int:
    """Of the checkpoint that a range's file belongs to."""
    return int(name.partition("/")[0])


# -- writing


def write_manifest(root: Path, number: int, document: Mapping[str, Any], files: Mapping[str, tuple[int, int]], earlier: Iterable[str], kept: int) -> None:
    """Complete a checkpoint whose files are there.  Raises `WorldError`; there is no manifest then, unless it is a `SyncError`."""
    needed = dict(files)
    names = sorted(earlier)
    if names:
        before = read(root / folder(kept))
        missing = [name for name in names if name not in before.files]
        if missing:
            raise WorldError(f"{missing[0]} is needed, and checkpoint {kept} does not know it")
        needed.update({name: before.files[name] for name in names})
        _check_sizes(root, {name: needed[name] for name in names})
    whole = {"format": FORMAT, "number": number, **document, "files": {name: list(item) for name, item in sorted(needed.items())}}
    whole["sum"] = _sum(whole)
    path = root / folder(number) / MANIFEST
    try:
        solid.place(path, [memoryview(json.dumps(whole, indent=1).encode())])
        solid.sync_path(path.parent)
    except OSError as error:
        raise WorldError(f"{path} cannot be written: {error.strerror or error}") from error


def discard(root: Path, number: int) -> None:
    """Nothing comes of this checkpoint.  What cannot be removed stays: without a manifest it is nothing."""
    place = root / folder(number)
    with suppress(OSError):
        (place / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(place, ignore_errors=True)


def tidy(root: Path, number: int, keep: int) -> None:
    """Checkpoint `number` is kept: remove those before it but the newest `keep` (itself among them) and what these need."""
    needed: set[int] = set()
    left = keep
    for known in sorted(numbers(root), reverse=True):
        if known > number or not left:
            continue
        try:
            found = read(root / folder(known))
            _check_sizes(root, found.files)
        except WorldError:
            continue  # never whole, or not any more
        needed |= found.needs
        left -= 1
    for known in numbers(root):
        if known < number and known not in needed:
            discard(root, known)


# -- reading


def numbers(root: Path) -> list[int]:
    """Of everything that looks like a checkpoint, ascending."""
    try:
        return sorted(int(entry.name) for entry in root.iterdir() if _NUMBER.match(entry.name) and entry.is_dir())
    except OSError:
        return []


def read(place: Path) -> Manifest:
    """The manifest in a checkpoint's directory.  Raises `WorldError` with a sentence."""
    path = place / MANIFEST
    try:
        with path.open("rb") as file:
            text = file.read(MANIFEST_MAX + 1)
    except FileNotFoundError:
        raise WorldError(f"{place} has no {MANIFEST}: it was never completed, or is no checkpoint") from None
    except OSError as error:
        raise WorldError(f"{path} cannot be read: {error.strerror}") from error
    try:
        document = json.loads(text) if len(text) <= MANIFEST_MAX else None
        return _manifest(place, document)
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError, UsageError) as error:
        raise WorldError(f"{path} is damaged, or no manifest that this plugml reads: {error}") from error


def _manifest(place: Path, document: Any) -> Manifest:
    if type(document) is not dict or document.get("format") != FORMAT:
        raise ValueError(f"its format is not {FORMAT!r}")
    total = document.pop("sum")
    if total != _sum(document):
        raise ValueError("its checksum differs")
    files = {str(name): (int(nbytes), int(crc)) for name, (nbytes, crc) in document["files"].items()}
    for name in files:
        if not re.fullmatch(r"[0-9]{6,12}/r[0-9]{5}\.safetensors", name):
            raise ValueError(f"it names the file {shown(name)}")
    number, clock, ranges = (int(document[key]) for key in ("number", "clock", "ring_ranges"))
    if folder(number) != place.name:
        raise ValueError(f"it is of checkpoint {folder(number)}")
    return Manifest(place, number, clock, str(document["cut"]), JobSpec.from_document(document["job"]), ranges, files, document)


def verify(manifest: Manifest) -> None:
    """Read every file that it needs.  Raises `WorldError` for the first that is not what it was."""
    root = manifest.place.parent
    _check_sizes(root, manifest.files)
    for name, wanted in sorted(manifest.files.items()):
        try:
            if solid.checksum(root / name) != wanted:
                raise WorldError(f"{root / name} is damaged: its checksum differs")
        except OSError as error:
            raise WorldError(f"{root / name} cannot be read: {error.strerror}") from error


def _check_sizes(root: Path, files: Mapping[str, tuple[int, int]]) -> None:
    """Whether files are there and none is shorter or longer than it was."""
    for name, (nbytes, _crc) in sorted(files.items()):
        try:
            found = (root / name).stat().st_size
        except OSError as error:
            raise WorldError(f"{root / name} cannot be read: {error.strerror}") from error
        if found != nbytes:
            raise WorldError(f"{root / name} has {found} bytes, not {nbytes}")


def whole(place: Path) -> Manifest:
    """The checkpoint in a directory, every file of it read and found good.  Raises `WorldError`."""
    manifest = read(place)
    verify(manifest)
    return manifest


def newest(root: Path) -> tuple[Manifest | None, list[str]]:
    """The newest checkpoint that is whole, and what is wrong with newer ones."""
    problems: list[str] = []
    for number in reversed(numbers(root)):
        try:
            return whole(root / folder(number)), problems
        except WorldError as error:
            problems.append(str(error))
    return None, problems


def _sum(document: Mapping[str, Any]) -> int:
    return crc32(json.dumps({key: value for key, value in document.items() if key != "sum"}, sort_keys=True, separators=(",", ":")).encode())
