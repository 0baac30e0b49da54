"""Directories that plugml makes: a result with its result.json, and a channel as its program and agent see it.

Looks only: a channel that is in use is not disturbed, and what is read of it may be a moment old.
"""

from __future__ import annotations

import json
import os
import stat
import time
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import MEANINGS, Code, RequestError, UsageError
from ..shm_protocol.info import INFO_BYTES_MAX, Info, InfoTable, parse_info
from ..shm_protocol.page import PAGE_BYTES, STATES, read_constant, read_counters, read_log, read_moving
from ..shm_protocol.root import boot_id
from .look import Look, Report, doubts, size_doubts
from .lookfiles import look_at_file, pieces, sum_of

DOCUMENT_BYTES_MAX = 1 << 26
TEXT_BYTES_MAX = 4096
#: A result's tables are looked at in the first of these that is there; of the other files the sum is compared.
FORMATS = (".bin", ".idx", ".keys"), (".safetensors",), (".npz",), (".csv",)
_STATE_NAMES = {number: (name, about) for number, name, about in STATES}


def document_beside(path: Path) -> dict[str, Any] | None:
    """The result.json in the file's directory, if there is one that can be read."""
    try:
        with (path.parent / "result.json").open("rb") as file:
            found = json.loads(file.read(DOCUMENT_BYTES_MAX))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def entry_of(path: Path, document: dict[str, Any] | None) -> dict[str, Any] | None:
    """What result.json says of the table that a raw file belongs to."""
    if document is None or path.suffix not in FORMATS[0]:
        return None
    for entry in _list(document, "tables"):
        if isinstance(entry, dict) and entry.get("name") == path.name.removesuffix(path.suffix):
            return entry
    return None


def changed(path: Path, document: dict[str, Any] | None) -> str:
    """Whether a file is not the one that was saved: a sentence, "" if it is or nothing is known."""
    sums = document.get("sums") if document else None
    told = sums.get(path.name) if isinstance(sums, dict) else None
    if not isinstance(told, dict) or "crc32" not in told:
        return ""
    size = path.stat().st_size
    if size != told.get("bytes"):
        return f"{path.name} has {size:,} bytes, {told.get('bytes')} were saved"
    return "" if sum_of(path) == told["crc32"] else f"{path.name} is not as it was saved: its sum differs from that in result.json"


# -- a result ---------------------------------------------------------------------------------------------------------


def look_at_result(directory: Path) -> Report:
    """Every table once, every file compared with what was saved."""
    document = document_beside(directory / "x")
    if document is None:
        raise UsageError(f"{directory / 'result.json'} is no document of plugml: it cannot be read as JSON")
    report = Report(str(directory), "result")
    for key in ("job", "state", "exit_code", "reason", "closed", "seconds"):
        if isinstance(document.get(key), (str, int, float)) and document[key] != "":
            report.facts[key] = document[key]
    report.facts["workers"] = len(_list(document, "workers"))
    names = [name for name in _list(document, "files") if isinstance(name, str) and "/" not in name and name != "result.json"]
    for name in names:
        _look_at_member(directory / name, document, report, name.endswith(_first_format(names)))
    for warning in _list(document, "warnings"):
        report.notes.append(f"the run warned: {warning}")
    for other in ("best", "failed", "stopped"):
        if (directory / other / "result.json").exists():
            report.notes.append(f"{other}/ holds another result")
    return report


def _first_format(names: list[str]) -> tuple[str, ...]:
    return next((suffixes for suffixes in FORMATS if any(name.endswith(suffixes) for name in names)), ())


def _look_at_member(path: Path, document: dict[str, Any], report: Report, closely: bool) -> None:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise UsageError(f"{path.name} is no regular file")
        difference = changed(path, document)
        report.files.append((path.name, path.stat().st_size, difference and "changed" or "as it was saved"))
        report.problems += [difference] if difference else []
        if closely:
            seen = look_at_file(path, entry_of(path, document))
            report.looks += seen.looks
            report.problems += [text if path.name in text else f"{path.name}: {text}" for text in seen.problems]
    except OSError as error:
        report.problems.append(f"{path.name}: {error.strerror}")
    except UsageError as error:
        report.problems.append(str(error))


def _list(document: dict[str, Any], key: str) -> list[Any]:
    found = document.get(key)
    return found if isinstance(found, list) else []


# -- a channel --------------------------------------------------------------------------------------------------------


def look_at_channel(directory: Path) -> Report:
    """What `info` promises, what `ctl` says of the last request, and the numbers in `grad` and `param`."""
    report = Report(str(directory), "channel")
    try:
        info = parse_info(_head(directory / "info", INFO_BYTES_MAX + 1).decode(errors="replace"))
    except RequestError as error:
        report.problems.append(f"info cannot be read: {error.text}")
        return report
    report.facts.update(
        job=info.job, worker=info.worker, workers=info.workers, gen=info.gen, bell=info.bell, elements=info.elements,
        this_boot=info.boot_id == boot_id(),
    )  # fmt: skip
    if not report.facts["this_boot"]:
        report.problems.append("it was made before this host was started: nobody is at its other end")
    _page(directory, info, report)
    for table in info.tables:
        if table.kind == "sparse":
            rows = f"{table.rows:,} rows" if table.rows else "any number of rows"
            report.notes.append(f"table {table.name}: sparse, {rows} of {table.width} {table.dtype}, named by {table.index_type}")
    _texts(directory, report)
    for name, cap in (("grad", info.cap_grad), ("param", info.cap_param)):
        _data_file(directory / name, cap, info, report)
    with os.scandir(directory) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.is_file(follow_symlinks=False):
                report.files.append((entry.name, entry.stat(follow_symlinks=False).st_size, ""))
    return report


def _page(directory: Path, info: Info, report: Report) -> None:
    try:
        page = _head(directory / "ctl", PAGE_BYTES)
        constant = read_constant(page)
    except (OSError, RequestError) as error:
        report.problems.append(f"ctl cannot be read: {getattr(error, 'text', '') or getattr(error, 'strerror', '')}")
        return
    moving = read_moving(page)
    state, about = _STATE_NAMES.get(moving.state, (str(moving.state), "a state that this plugml does not know"))
    report.facts.update(
        state=state, state_means=about, done_seq=moving.done_seq, cur_seq=moving.cur_seq, clock=moving.clock, version=moving.version,
        status=moving.status, counters={name: count for name, count in read_counters(page).items() if count},
    )  # fmt: skip
    if report.facts["this_boot"] and moving.agent_beat:
        report.facts["agent_beat_s"] = round(max(0, time.monotonic_ns() - moving.agent_beat) / 1e9, 1)
    if (constant.gen, constant.worker, constant.cap_grad) != (info.gen, info.worker, info.cap_grad):
        report.problems.append("ctl and info speak of different channels")
    if moving.status:
        code = Code(moving.status) if moving.status in Code._value2member_map_ else Code.INTERNAL
        report.problems.append(f"the last request was refused with {code.name}: {MEANINGS[code].happened} {MEANINGS[code].remedy}")
    if state == "BROKEN":
        report.problems.append(f"the channel is BROKEN: {about}")
    for _, entry in read_log(page):
        report.notes.append(f"{entry.times} x {entry.text}")


def _data_file(path: Path, cap: int, info: Info, report: Report) -> None:
    """grad or param: its size, and the numbers of the dense tables where they surely lie in it."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            sparse = len(info.dense) < len(info.tables)
            least = 0 if sparse else _dense_bytes(info)
            if not least <= size <= cap:
                head = file.read(4)
                file.seek(max(0, size - 4))
                hint = size_doubts(size, least, head, file.read(4))
                report.problems.append(f"{path.name} has {size:,} bytes, the channel {cap:,}" + (f": {hint}" if hint else ""))
            if not sparse or " n=" in str(report.facts.get("cmd", "")):  # else it holds rows of the last request only
                report.looks += [_look_inside(file, path.name, table, report) for table in info.dense]
    except OSError as error:
        report.problems.append(f"{path.name}: {error.strerror}")


def _dense_bytes(info: Info) -> int:
    return max((table.offset + table.nbytes for table in info.dense), default=0)


def _look_inside(file: Any, name: str, table: InfoTable, report: Report) -> Look:
    look = Look(f"{name}/{table.name}", table.dtype, table.shape, table.order)
    file.seek(table.offset)
    first = True
    for piece in pieces(file, np.dtype(table.numpy_dtype), table.nbytes):
        if first:
            hint = doubts(piece[: 1 << 16].tobytes(), piece.dtype)
            report.problems += [f"{look.name}: {hint}"] if hint else []
            first = False
        look.add(piece)
    if look.bad:
        report.problems.append(f"{look.name}: {look.finite}")
    return look


def _texts(directory: Path, report: Report) -> None:
    """The request line and the whole text of the last error."""
    for name in ("cmd", "err"):
        try:
            text = _head(directory / name, TEXT_BYTES_MAX).decode(errors="replace").strip("\0\n")
        except OSError:
            continue
        if text:
            report.facts[name] = text.split("\n")[0] if name == "cmd" else text


def _head(path: Path, nbytes: int) -> bytes:
    with path.open("rb") as file:
        return file.read(nbytes)
