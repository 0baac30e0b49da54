"""Input on the disk: globs, slices of a file, the list of pieces.  Looks and cuts; what goes to whom is data.py.

A file is cut in bounded memory: two passes, of which the first notes where each record begins.
"""

from __future__ import annotations

import glob
import os
import shutil
import stat
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import UsageError
from .data import CUTS, FILES, PIECES, PIECES_DIR, SHARD, SHARDS, Data, check_found, slice_path

CHUNK_BYTES = 1 << 22
LIST = "list.txt"  # of pieces, a line each
MARK = ".made-by-plugml-run"  # in a folder of slices: what lies beside it is ours
BATCH = 4_096  # records that are read between two writes
NEWLINE, QUOTE, RETURN = 0x0A, 0x22, 0x0D

Offsets = np.ndarray[Any, np.dtype[np.int64]]


def look(data: Data, workers: int, directory: str) -> Data:
    """Find what the globs meet, and the file that is cut; names stay relative as they were written.  Raises `UsageError`."""
    if data.source:
        _check_source(data, directory)
        return data
    if data.kind not in (FILES, PIECES):
        return data
    found: dict[bytes, str] = {}
    for pattern in data.globs:
        names = [pattern] if os.path.lexists(os.path.join(directory, pattern)) else _matches(pattern, directory)
        if not names:
            what = "--data" if data.kind == FILES else "--pieces"
            raise UsageError(f"{what} {pattern!r} matches nothing in {directory}")
        found.update((os.fsencode(name), name) for name in names)
    looked = replace(data, found=tuple(found[key] for key in sorted(found)))
    check_found(looked, workers)
    return looked


def _matches(pattern: str, directory: str) -> list[str]:
    return glob.glob(pattern, root_dir=directory, recursive=True)


def _check_source(data: Data, directory: str) -> None:
    path = os.path.join(directory, data.source)
    flag = f"--{data.kind} {data.source}"
    word = data.source.rpartition(":")[2]
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # before it is opened: a FIFO would wait for its writer
            raise UsageError(f"{flag}: not a regular file, so it cannot be cut")
        with open(path, "rb"):
            pass
    except OSError as error:
        hint = f" (known ways to cut are {', '.join(CUTS)})" if ":" in data.source and "/" not in word else ""
        raise UsageError(f"{flag}: {error.strerror}{hint}") from error


def source_bytes(data: Data, directory: str) -> int:
    """Room that the slices will take."""
    return os.path.getsize(os.path.join(directory, data.source)) if data.source else 0


def lay_out(data: Data, workers: int, seed: int, directory: str, place: Path, check: Callable[[], object]) -> tuple[list[int], str]:
    """Cut and list what the run's directory `place` shall hold; gives the records of each slice and the path of the list.

    `check` is called now and then, and may raise.  Raises `OSError` and `UsageError`.
    """
    if data.kind not in (SHARD, PIECES):
        return [], ""
    name, count = (SHARDS, workers) if data.kind == SHARD else (PIECES_DIR, data.slices)
    folder = place / name
    check_folder(data, place)
    _make_ours(folder)
    try:
        paths = [Path(slice_path(str(place), name, number, count, data.source)) for number in range(count)]
        records = cut(Path(directory, data.source), data.cut, paths, seed, check) if data.source else []
        if data.kind == SHARD:
            return records, ""
        with (folder / LIST).open("wb") as file:
            file.writelines(os.fsencode(text) + b"\n" for text in data.pieces(str(place)))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return records, str(folder / LIST)


def check_folder(data: Data, place: Path) -> None:
    """Refuse to take somebody's own folder for that of the slices.  Raises `UsageError`."""
    folder = place / (SHARDS if data.kind == SHARD else PIECES_DIR)
    if data.kind in (SHARD, PIECES) and folder.exists() and not (folder / MARK).exists():
        raise UsageError(f"{folder} is there, and no run has made it: choose another place with --result DIR")


def _make_ours(folder: Path) -> None:
    """An empty folder for slices.  One that an earlier run has left is used again."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir()
    (folder / MARK).touch()


def cut(source: Path, kind: str, paths: Sequence[Path], seed: int, check: Callable[[], object] = lambda: None) -> list[int]:
    """Deal the records of a file into slices of equal length (+-1), in an order drawn by `seed`; gives their numbers.

    The first record of a csv file is its line of names, and stands first in each slice.
    """
    with source.open("rb") as file:
        starts, stops = _records(file.fileno(), kind, source, check)
        names = int(kind == "csv" and len(starts) > 0)
        header = _record(file.fileno(), int(starts[0]), int(stops[0])) if names else b""
        order = np.random.Generator(np.random.PCG64(seed)).permutation(np.arange(names, len(starts)))
        shares = np.array_split(order, len(paths))
        for path, share in zip(paths, shares, strict=True):
            with path.open("wb") as out:
                out.write(header)
                for start in range(0, len(share), BATCH):
                    check()
                    chosen = share[start : start + BATCH]
                    pairs = zip(starts[chosen].tolist(), stops[chosen].tolist(), strict=True)
                    out.writelines(_record(file.fileno(), begin, stop) for begin, stop in pairs)
    return [len(share) for share in shares]


def _record(fd: int, begin: int, stop: int) -> bytes:
    """A line; the last one of a file may lack its newline, and needs one inside a slice."""
    record = os.pread(fd, stop - begin, begin)
    return record if record.endswith(b"\n") else record + b"\n"


def _records(fd: int, kind: str, source: Path, check: Callable[[], object]) -> tuple[Offsets, Offsets]:
    """Where each record begins, and where it ends.  An empty line is a record only where every line is."""
    starts, stops = array("q"), array("q")
    begin = position = inside = 0  # inside: an odd number of quotes came before
    last = 0  # octet of the chunk before
    while chunk := os.pread(fd, CHUNK_BYTES, position):
        check()
        octets = np.frombuffer(chunk, np.uint8)
        ends = np.flatnonzero(octets == NEWLINE)
        if kind == "csv":
            quotes = np.cumsum(octets == QUOTE)
            ends = ends[(quotes[ends] + inside) % 2 == 0]
            inside = (inside + int(quotes[-1])) % 2
        if len(ends):
            after = ends.astype(np.int64) + (position + 1)
            begins = np.concatenate(([begin], after[:-1])).astype(np.int64)
            if kind != "lines":
                first = np.where(begins >= position, octets[np.maximum(begins - position, 0)], last)
                kept = (after - begins > 2) | ((after - begins == 2) & (first != RETURN))
                begins, after = begins[kept], after[kept]
            starts.frombytes(begins.tobytes())
            stops.frombytes(after.tobytes())
            begin = position + int(ends[-1]) + 1
        position += len(chunk)
        last = chunk[-1]
    if inside:
        raise UsageError(f"{source} has an odd number of double quotes, so nobody can tell where its rows end; cut it by {source}:lines")
    if begin < position:
        starts.append(begin)
        stops.append(position)
    return np.array(starts, np.int64), np.array(stops, np.int64)
