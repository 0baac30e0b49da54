"""The state store: swaps, survives, and says in a sentence what is wrong with it."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plugml.core.errors import WorldError
from plugml.master.store import MemoryStore, SqliteStore, StateStore


@pytest.fixture(params=["sqlite", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StateStore]:
    made: StateStore = SqliteStore(tmp_path / "state" / "master.sqlite") if request.param == "sqlite" else MemoryStore()
    yield made
    made.close()


def test_a_value_is_replaced_only_at_its_version(store: StateStore) -> None:
    assert store.read("state") == (b"", 0)
    assert store.cas("state", 1, b"x") == ("conflict", 0, b"", "")
    assert store.cas("state", 0, b"a") == ("ok", 1, b"a", "")
    assert store.cas("state", 0, b"b") == ("conflict", 1, b"a", "")
    assert store.cas("state", 1, b"") == ("ok", 2, b"", "")
    assert store.read("state") == (b"", 2)
    assert store.cas("other", 0, b"o") == ("ok", 1, b"o", "")
    assert store.read("state") == (b"", 2)


def test_what_is_stored_is_there_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "master.sqlite"
    first = SqliteStore(path)
    first.cas("state", 0, b"a" * 500_000)
    first.cas("state", 1, b"b" * 500_000)
    first.close()
    second = SqliteStore(path)
    assert second.read("state") == (b"b" * 500_000, 2)
    second.close()
    assert path.stat().st_mode & 0o777 == 0o600


WRITER = """
import sys
from pathlib import Path
from plugml.master.store import SqliteStore
store = SqliteStore(Path(sys.argv[1]))
for number in range(int(sys.argv[2])):
    assert store.cas("state", number, b"%d" % number * 1000).outcome == "ok"
print("stored", flush=True)
sys.stdin.read()
"""


def writer(path: Path, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(path), str(count)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "stored\n"
    return process


def killed(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_what_is_stored_survives_a_killed_master(tmp_path: Path) -> None:
    path = tmp_path / "master.sqlite"
    killed(writer(path, 7))
    store = SqliteStore(path)
    assert store.read("state") == (b"6" * 1000, 7)
    store.close()


def test_a_second_master_is_told_who_the_first_one_is(tmp_path: Path) -> None:
    path = tmp_path / "master.sqlite"
    process = writer(path, 1)
    try:
        with pytest.raises(WorldError, match=f"process {process.pid}"):
            SqliteStore(path)
    finally:
        killed(process)
    SqliteStore(path).close()


def test_a_second_store_in_one_process_is_refused_too(tmp_path: Path) -> None:
    first = SqliteStore(tmp_path / "master.sqlite")
    with pytest.raises(WorldError, match=f"process {os.getpid()}"):
        SqliteStore(tmp_path / "master.sqlite")
    assert first.cas("state", 0, b"a").outcome == "ok"
    first.close()


def prepared(path: Path, value: bytes = b"a" * 20_000) -> None:
    store = SqliteStore(path)
    store.cas("state", 0, value)
    store.close()


def garbage(path: Path) -> None:
    path.write_bytes(b"garbage " * 1000)


def cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    at = data.rindex(b"a" * 1000)
    data[at + 500] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [garbage, cut, flipped])
def test_a_damaged_store_is_called_damaged(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    path = tmp_path / "master.sqlite"
    prepared(path)
    damage(path)
    with pytest.raises(WorldError, match="damaged"):
        store = SqliteStore(path)
        try:
            store.cas("state", 0, b"b")
        finally:
            store.close()


def test_the_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "master.sqlite"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE bank (account)")
    other.commit()
    other.close()
    before = path.read_bytes()
    with pytest.raises(WorldError, match="another program"):
        SqliteStore(path)
    assert path.read_bytes() == before


def test_a_newer_schema_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "master.sqlite"
    prepared(path)
    newer = sqlite3.connect(path)
    newer.execute("PRAGMA user_version = 99")
    newer.close()
    with pytest.raises(WorldError, match="schema 99"):
        SqliteStore(path)


def test_a_store_that_another_program_has_open_says_so(tmp_path: Path) -> None:
    path = tmp_path / "master.sqlite"
    prepared(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    try:
        with pytest.raises(WorldError, match="open in another program"):
            SqliteStore(path)
    finally:
        other.close()
    SqliteStore(path).close()


def test_a_full_disk_is_an_answer_and_the_next_try_may_succeed(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "master.sqlite")
    assert store.cas("state", 0, b"a").outcome == "ok"
    pages = store._database.execute("PRAGMA page_count").fetchone()[0]
    store._database.execute(f"PRAGMA max_page_count = {pages}")
    swapped = store.cas("state", 1, b"b" * 1_000_000)
    assert swapped.outcome == "unknown" and "is full" in swapped.text
    assert store.read("state") == (b"a", 1)
    store._database.execute("PRAGMA max_page_count = 1000000")
    assert store.cas("state", 1, b"b" * 1_000_000).outcome == "ok"
    store.close()


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WorldError, match="--state"):
        SqliteStore(tmp_path / "file" / "master.sqlite")


def test_a_read_only_store_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "master.sqlite"
    store = SqliteStore(path)
    store._database.execute("PRAGMA query_only = 1")
    with pytest.raises(WorldError, match="cannot write"):
        store.cas("state", 0, b"a")
    store.close()


def test_a_memory_store_can_keep_quiet_about_what_it_did() -> None:
    weather = iter(["lost", "landed", ""])
    store = MemoryStore(lambda: next(weather))
    assert store.cas("state", 0, b"a").outcome == "unknown" and store.read("state") == (b"", 0)
    assert store.cas("state", 0, b"a").outcome == "unknown" and store.read("state") == (b"a", 1)
    assert store.cas("state", 0, b"a") == ("conflict", 1, b"a", "")
