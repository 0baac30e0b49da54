"""Where the master's state survives: a versioned value by key, replaced by compare-and-swap.

Owns the database file, its lock and the words for its errors.  Refuses to know what a value means.

    outcome    ok        stored, and on the disk
               conflict  not stored: another version stands there, and here it is
               unknown   not known to be stored (a full disk); the same call may be repeated

What can never get better in this process (a damaged or read-only file, an input/output error) raises `WorldError`.
After a failed fsync a repeat would only seem to succeed, so the process must end and read again what is there.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol
from zlib import crc32

from ..core.errors import WorldError
from .effects import CONFLICT, OK, UNKNOWN

APPLICATION_ID = 0x504C474D  # "PLGM", in the header of the database
SCHEMA = 1


class Swapped(NamedTuple):
    """What a compare-and-swap did, and what stands there now (version 0 = nothing)."""

    outcome: str
    version: int
    value: bytes
    text: str = ""


class StateStore(Protocol):
    """What a backend must do.  A master that knows nothing starts with `cas` at version 0: the conflict is its read."""

    def read(self, key: str) -> tuple[bytes, int]:
        """Value and version; (b"", 0) if there is none."""
        ...

    def cas(self, key: str, version: int, value: bytes) -> Swapped:
        """Replace the value if it is at `version`; the new one has version + 1."""
        ...

    def close(self) -> None: ...


class MemoryStore:
    """For tests and simulations.  `weather()` is asked before each write: "" = store, or what to do instead.

    lost      not stored, and the answer is `unknown`
    landed    stored, and the answer is `unknown` all the same
    """

    def __init__(self, weather: Callable[[], str] = lambda: "") -> None:
        self.values: dict[str, tuple[int, bytes]] = {}
        self.weather = weather

    def read(self, key: str) -> tuple[bytes, int]:
        version, value = self.values.get(key, (0, b""))
        return value, version

    def cas(self, key: str, version: int, value: bytes) -> Swapped:
        weather = self.weather()
        if weather == "lost":
            return Swapped(UNKNOWN, 0, b"", "no answer")
        stored_version, stored = self.values.get(key, (0, b""))
        if stored_version == version:
            self.values[key] = (version + 1, value)
        if weather == "landed":
            return Swapped(UNKNOWN, 0, b"", "no answer")
        if stored_version != version:
            return Swapped(CONFLICT, stored_version, stored)
        return Swapped(OK, version + 1, value)

    def close(self) -> None:
        """Nothing is open."""


class SqliteStore:
    """One file, one process: the embedded store of a single master.

    A write-ahead log with synchronous=FULL costs one fsync a commit, where a rollback journal costs three; the locking
    mode EXCLUSIVE keeps its index out of shared memory, so that nothing but the disk is needed.  Calls may come from
    any thread, one at a time.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = _lock(path)
        try:
            self._database = self._open()
        except BaseException:
            os.close(self._lock)
            raise

    def read(self, key: str) -> tuple[bytes, int]:
        with self._errors():
            return self._read(key)

    def cas(self, key: str, version: int, value: bytes) -> Swapped:
        try:
            with self._errors():
                return self._cas(key, version, value)
        except _Full as error:
            return Swapped(UNKNOWN, 0, b"", str(error))

    def close(self) -> None:
        """Fold the log into the file, and let another master have it."""
        try:
            self._database.close()
        finally:
            os.close(self._lock)

    # -- the database

    def _open(self) -> sqlite3.Connection:
        database: sqlite3.Connection | None = None
        try:
            with self._errors():
                database = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
                self._prepare(database)
                return database
        except BaseException:
            if database is not None:
                database.close()
            raise

    def _prepare(self, database: sqlite3.Connection) -> None:
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        application = _number(database, "PRAGMA application_id")
        schema = _number(database, "PRAGMA user_version")
        if application != APPLICATION_ID and _number(database, "SELECT count(*) FROM sqlite_master"):
            raise WorldError(f"{self.path} is the database of another program: give another --state")
        if application == APPLICATION_ID and schema != SCHEMA:
            raise WorldError(f"{self.path} has schema {schema}, this plugml reads {SCHEMA}: run the version that wrote it")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        if application != APPLICATION_ID:
            database.execute("BEGIN IMMEDIATE")
            database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            database.execute(f"PRAGMA user_version = {SCHEMA}")
            database.execute("CREATE TABLE state (key TEXT PRIMARY KEY, version INTEGER, value BLOB, crc32 INTEGER)")
            database.execute("COMMIT")
            _sync_directory(self.path.parent)
        answer = str(database.execute("PRAGMA quick_check").fetchone()[0])
        if answer != "ok":
            raise _damaged(self.path, answer)

    def _read(self, key: str) -> tuple[bytes, int]:
        row = self._database.execute("SELECT version, value, crc32 FROM state WHERE key = ?", (key,)).fetchone()
        if row is None:
            return b"", 0
        version, value, crc = row
        if not isinstance(value, bytes) or crc32(value) != crc:
            raise _damaged(self.path, "a checksum is wrong")
        return value, int(version)

    def _cas(self, key: str, version: int, value: bytes) -> Swapped:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            stored, stored_version = self._read(key)
            if stored_version != version:
                self._database.execute("ROLLBACK")
                return Swapped(CONFLICT, stored_version, stored)
            row = (key, version + 1, value, crc32(value))
            self._database.execute("INSERT OR REPLACE INTO state (key, version, value, crc32) VALUES (?, ?, ?, ?)", row)
            self._database.execute("COMMIT")
            return Swapped(OK, version + 1, value)
        finally:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Every error of the database as a sentence."""
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code == sqlite3.SQLITE_FULL:
                raise _Full(f"the disk of {self.path} is full: free space there; training goes on meanwhile") from error
            if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                raise _damaged(self.path, str(error)) from error
            if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
                raise WorldError(f"cannot write the state store {self.path} ({error}): give it back to this user, or give another --state") from error
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise WorldError(f"the state store {self.path} is open in another program: close it there, then start again") from error
            raise WorldError(f"the state store {self.path} failed ({error}): look at the disk, then start the master again") from error


class _Full(WorldError):
    """Surely not stored, and worth another try."""


def _damaged(path: Path, what: str) -> WorldError:
    return WorldError(
        f"the state store {path} is damaged ({what}): put a copy of it in its place, or move it away and start anew "
        "(the jobs that it knew are then forgotten)"
    )


def _lock(path: Path) -> int:
    """A descriptor that holds the store for this process until it is closed, however the process ends."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise WorldError(f"cannot make the state store {path} ({error.strerror}): give another --state") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except BlockingIOError:
        pid = os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        text = f"the state store {path} belongs to the master that runs as process {pid}: stop that one, or give another --state"
        raise WorldError(text) from None
    except OSError as error:
        os.close(descriptor)
        raise WorldError(f"cannot lock the state store {path} ({error.strerror}): give another --state") from error
    return descriptor


def _number(database: sqlite3.Connection, query: str) -> int:
    return int(database.execute(query).fetchone()[0])


def _sync_directory(directory: Path) -> None:
    """A new file is on the disk when its directory is."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
