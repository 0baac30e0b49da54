"""The result's place: claimed before the start, filled at the end, never left half under a final name.

    <dir>/result.json  the tables in each format that was asked for  logs/w0.log ...  w0/ ... (what the programs write)
    <dir>/.lock        flock held while a run uses the place
    <dir>/.saving-*    files before they are renamed; result.json is renamed last and holds the sum of each file
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import stat
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..core.errors import UsageError
from ..core.jobmap import FINISHED
from ..core.table import TableSpec
from .export import DEFAULT, Values, file_names
from .export_files import values_of, write_formats
from .plan import NAMES_MAX, RunPlan

LOGS = "logs"
FAILED, CUT_SHORT = "failed", "stopped"
DOCUMENT = "result.json"
_CHUNK_BYTES = 1 << 22
_DOCUMENT_BYTES_MAX = 1 << 26
_SUFFIXES = (".bin", ".idx", ".keys", ".npz", ".safetensors", ".csv")


class Place:
    """A claimed directory for the result of one run.  `directory` is absolute."""

    def __init__(self, directory: Path, lock_fd: int, made: list[Path]) -> None:
        self.directory = directory
        self._lock_fd = lock_fd
        self._made = made  # what we made, outermost first: removed again when nothing came of the run

    @property
    def logs(self) -> Path:
        return self.directory / LOGS

    def prepare(self, directory: str) -> str:
        """An empty directory beside the final place.  Raises `OSError`."""
        os.makedirs(directory, exist_ok=True)
        for old in Path(directory).glob(".saving-*"):  # of a run that was killed while it saved
            shutil.rmtree(old, ignore_errors=True)
        return tempfile.mkdtemp(prefix=".saving-", dir=directory)

    def discard(self, scratch: str) -> None:
        shutil.rmtree(scratch, ignore_errors=True)

    def release(self) -> None:
        """Let go of the place and remove what is empty in it; a run that left nothing leaves no directory either."""
        if self._lock_fd < 0:
            return
        for log in self.logs.glob("w[0-9]*.log"):
            if log.stat().st_size == 0:
                log.unlink()
        for entry in (self.logs, *self.directory.glob("w[0-9]*")):
            if entry == self.logs or entry.name[1:].isdecimal():  # not `w1-mine`: the place may be the user's own directory
                _remove_empty(entry)
        (self.directory / ".lock").unlink(missing_ok=True)
        for made in reversed(self._made):
            _remove_empty(made)
        os.close(self._lock_fd)
        self._lock_fd = -1


def claim(plan: RunPlan) -> tuple[RunPlan, Place]:
    """Take the plan's result directory for this run; a default name gets a suffix where it is taken.

    Raises `UsageError` when the place is in use or cannot be written.
    """
    for candidate, directory in _candidates(plan):
        _look(directory, plan)
        made = _make(directory, plan)
        fd = _lock(directory, _has_own_name(plan))
        if fd >= 0:
            return replace(candidate, result_dir=str(directory), finished_before=_is_finished(directory)), Place(directory, fd, made)
    raise _all_taken(plan)


def would_claim(plan: RunPlan) -> RunPlan:
    """The plan as `claim` would give it, as far as that can be seen without making anything.  Raises `UsageError`."""
    for candidate, directory in _candidates(plan):
        _look(directory, plan)
        try:
            fd = os.open(directory / ".lock", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return replace(candidate, result_dir=str(directory))  # nobody has been there
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _in_use(directory) from None
        finally:
            os.close(fd)
        return replace(candidate, result_dir=str(directory))
    raise _all_taken(plan)


def _has_own_name(plan: RunPlan) -> bool:
    """Nobody has said how the place is called: a taken one is passed by."""
    return not plan.name_given and "{job}" in plan.result_dir


def _candidates(plan: RunPlan) -> Iterator[tuple[RunPlan, Path]]:
    for number in range(1, NAMES_MAX + 1):
        candidate = plan if number == 1 else plan.renamed(f"{plan.spec.name}-{number}")
        directory = Path(candidate.result)
        if not (_has_own_name(plan) and directory.exists()):
            yield candidate, directory


def _look(directory: Path, plan: RunPlan) -> None:
    """Refuse a place into which nothing can be written, before anything is made."""
    try:
        os.lstat(directory)
    except FileNotFoundError:
        pass  # it will be made
    except OSError as error:  # a name that is too long, a file on the way
        raise _not_writable(directory, error.strerror) from error
    inside = [directory / name for name in (LOGS, *(f"w{worker}" for worker in plan.numbers), FAILED, CUT_SHORT, *["best"] * plan.rules.keep_best)]
    for place in (directory, *inside):
        trouble = _trouble_at(place)
        if trouble:
            raise _not_writable(directory, trouble)
    trouble = _trouble_at(Path(plan.checkpoints)) if plan.saves.dir else ""
    if trouble:
        raise UsageError(f"no checkpoint can be written to {plan.checkpoints}: {trouble}; choose another place with --checkpoint-dir DIR")
    for place in (directory, directory / FAILED, directory / CUT_SHORT):
        _refuse_strange(place, file_names(plan.spec.tables, plan.formats))


def _trouble_at(place: Path) -> str:
    """Why nothing can be made in this directory, which may not be there yet; "" if something can."""
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    if not place.is_dir():
        return f"{place} is no directory"
    if not os.access(place, os.W_OK | os.X_OK):
        return f"{place} " + ("is read-only" if os.statvfs(place).f_flag & os.ST_RDONLY else "may not be written by you")
    return ""


def _refuse_strange(place: Path, names: Sequence[str]) -> None:
    strange = [name for name in names if os.path.lexists(place / name) and name not in _files_before(place)]
    if strange:
        raise UsageError(f"{place / strange[0]} is there, and no run has made it: choose another place with --result DIR")


@contextmanager
def held(directory: Path, tables: Sequence[TableSpec]) -> Iterator[None]:
    """The place of one result that is not a run's, refused as a run's is; nobody else writes there meanwhile.

    What was made is removed again where nothing came into it.  Raises `UsageError`.
    """
    _refuse_strange(directory, file_names(tables, DEFAULT))
    missing = [place for place in (directory, *directory.parents) if not os.path.lexists(place)]
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_writable(directory, error.strerror) from error
    fd = _lock(directory, False)
    try:
        yield
    finally:
        (directory / ".lock").unlink(missing_ok=True)
        for made in missing:
            _remove_empty(made)
        os.close(fd)


def _in_use(directory: Path) -> UsageError:
    return UsageError(f"another run is using {directory}: wait for it, or choose another --name or --result")


def _all_taken(plan: RunPlan) -> UsageError:
    return UsageError(f"{plan.result} and {NAMES_MAX - 1} like it exist already: choose a name with --name, or a place with --result DIR")


def _make(directory: Path, plan: RunPlan) -> list[Path]:
    missing: list[Path] = []
    place = directory
    while not place.exists() and place != place.parent:
        missing.insert(0, place)
        place = place.parent
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / LOGS).mkdir(exist_ok=True)
        for worker in plan.numbers:
            (directory / f"w{worker}").mkdir(exist_ok=True)
    except OSError as error:
        raise _not_writable(directory, error.strerror) from error
    return missing


def _lock(directory: Path, may_try_another: bool) -> int:
    """Descriptor that holds the place, -1 when it is in use and another name may be tried."""
    path = directory / ".lock"
    while True:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _not_writable(directory, error.strerror) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            if may_try_another:
                return -1
            raise _in_use(directory) from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):  # file systems without locks: nothing to hold
                os.close(fd)
                raise _not_writable(directory, error.strerror) from error
        if os.path.exists(path) and os.path.samestat(os.fstat(fd), os.stat(path)):
            return fd
        os.close(fd)  # its last holder has just removed it


def _not_writable(directory: Path, why: str | None) -> UsageError:
    return UsageError(f"the result cannot be written to {directory}: {why}; choose another place with --result DIR")


class Saved(NamedTuple):
    """What `publish` has done: names in the place, and what the user should hear of the numbers."""

    files: tuple[str, ...]
    warnings: tuple[str, ...]


def publish(
    tables: tuple[TableSpec, ...], scratch: Path, directory: Path, document: dict[str, Any], formats: Sequence[str] = DEFAULT
) -> Saved:
    """Check the agent's raw files, write every format and `result.json`, and rename all of it to its final names.

    Raises `WorldError` or `OSError`; the final names are then as they were.
    """
    values = [values_of(table, scratch) for table in tables]
    described = [_described(one, scratch) for one in values]
    write_formats(values, scratch, formats)
    names = file_names(tables, formats)
    files = {name: {"bytes": (scratch / name).stat().st_size, "crc32": _sum(scratch / name)} for name in names}
    for entry in described:
        first = f"{entry['name']}.bin"
        if first in files:
            entry.update(file=first, **files[first])
    names.append(DOCUMENT)
    warnings = [f"table {entry['name']} holds numbers that are not finite" for entry in described if not entry["finite"]]
    whole = {**document, "tables": described, "result": str(directory), "files": names, "sums": files}
    whole["warnings"] = [*document.get("warnings", ()), *warnings]
    (scratch / DOCUMENT).write_text(json.dumps(whole, indent=1) + "\n")
    mode = stat.S_IMODE((scratch / DOCUMENT).stat().st_mode)
    for name in names:
        os.chmod(scratch / name, mode)  # the agent wrote the tables by the umask of whoever started the cluster
        _sync(scratch / name)

    surplus = _files_before(directory) - set(names)
    for name in names[:-1]:
        os.replace(scratch / name, directory / name)
    for name in surplus:  # of an earlier result in other formats: two models in one place would pass for one
        (directory / name).unlink(missing_ok=True)
    os.replace(scratch / DOCUMENT, directory / DOCUMENT)
    _sync(directory)
    shutil.rmtree(scratch)
    return Saved(tuple(names), tuple(warnings))


def _described(values: Values, scratch: Path) -> dict[str, Any]:
    """A table for result.json: what its files hold, and whether every number is finite."""
    table = values.table
    entry: dict[str, Any] = {
        "name": table.name, "kind": table.kind, "shape": list(values.array.shape), "dtype": table.dtype, "order": table.order,
    }  # fmt: skip
    if table.kind == "sparse":
        entry.update(rows=len(values.array), width=table.width, index=table.index_name)
    return {**entry, "finite": _is_finite(scratch / f"{table.name}.bin", table)}


def _is_finite(path: Path, table: TableSpec) -> bool:
    if table.dtype == "i64":
        return True
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):  # a multiple of every number's size
            if not np.isfinite(np.frombuffer(chunk, table.numpy_dtype)).all():
                return False
    return True


def _sum(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            value = zlib.crc32(chunk, value)
    return value


def _files_before(directory: Path) -> set[str]:
    """Files of values that an earlier result in this place says it has, or that a run was about to rename when it was killed."""
    names: set[str] = set()
    for document in (directory / DOCUMENT, *directory.glob(f".saving-*/{DOCUMENT}")):
        try:
            with document.open("rb") as file:
                listed = json.loads(file.read(_DOCUMENT_BYTES_MAX))["files"]
            names |= {name for name in listed if "/" not in name and name.endswith(_SUFFIXES)}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # none, or none of ours
    return names


def _is_finished(directory: Path) -> bool:
    """Does the result of a run that came to its end lie there?"""
    try:
        with (directory / DOCUMENT).open("rb") as file:
            return bool(json.loads(file.read(_DOCUMENT_BYTES_MAX))["state"] == FINISHED)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _remove_empty(directory: Path) -> None:
    try:
        directory.rmdir()
    except OSError:  # not there, or something lies in it: then it stays
        return
