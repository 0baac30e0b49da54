"""The state store in a real etcd of three members: nothing that it said is lost, whichever of them die, stop or fill up."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from plugml.master.etcd import EtcdStore, Unsure
from plugml.master.store import Swapped
from tests.conftest import require
from tests.system.etcd_kit import HANG_S, Etcd


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    require("etcd")
    made = Etcd(tmp_path)
    made.start()
    yield made
    made.end()


@pytest.fixture
def store(etcd: Etcd) -> Iterator[EtcdStore]:
    made = EtcdStore(etcd.url, "/plugml/lab/")
    yield made
    made.close()


def surely(store: EtcdStore, version: int, value: bytes, key: str = "state") -> Swapped:
    """The same again until it is known what stands there; its own value is a success."""
    end = time.monotonic() + HANG_S
    while True:
        swapped = store.cas(key, version, value)
        if swapped.outcome != "unknown":
            return swapped
        assert time.monotonic() < end, swapped.text


def seen(store: EtcdStore) -> tuple[bytes, int]:
    """What stands there, as soon as it is said: a member that wakes, or has lost its leader, may not know at first."""
    end = time.monotonic() + HANG_S
    while True:
        try:
            return store.read("state")
        except Unsure:
            assert time.monotonic() < end


def test_a_value_is_replaced_only_at_its_version(store: EtcdStore) -> None:
    assert store.read("state") == (b"", 0)
    assert store.cas("state", 5, b"x") == ("conflict", 0, b"", "")
    first = store.cas("state", 0, b"a")
    assert first.outcome == "ok" and first.version > 0 and store.read("state") == (b"a", first.version)
    assert store.cas("state", 0, b"b") == ("conflict", first.version, b"a", "")
    second = store.cas("state", first.version, b"")
    assert second.outcome == "ok" and second.version > first.version
    assert store.read("state") == (b"", second.version)
    assert store.cas("leader", 0, b"o").outcome == "ok" and store.read("state") == (b"", second.version)


def test_a_document_of_the_largest_size_goes_there_and_back(store: EtcdStore) -> None:
    value = bytes(range(256)) * 4096
    first = store.cas("state", 0, value)
    assert first.outcome == "ok" and store.read("state") == (value, first.version)
    assert store.cas("state", 0, b"x").value == value


def test_clusters_that_share_an_etcd_do_not_meet(etcd: Etcd, store: EtcdStore) -> None:
    other = EtcdStore(etcd.url, "/plugml/other/")
    store.cas("state", 0, b"ours")
    assert other.read("state") == (b"", 0)
    other.close()


def test_a_key_that_was_removed_and_made_again_has_another_version(etcd: Etcd, store: EtcdStore) -> None:
    first = store.cas("state", 0, b"a")
    etcd.ask("e0", "kv/deleterange", key=store._key("state"))
    assert store.cas("state", first.version, b"x") == ("conflict", 0, b"", "")
    again = store.cas("state", 0, b"a")
    assert again.outcome == "ok" and again.version > first.version
    assert store.cas("state", first.version, b"x").outcome == "conflict"


def test_with_one_member_of_three_dead_it_goes_on(etcd: Etcd, store: EtcdStore) -> None:
    first = store.cas("state", 0, b"a")
    etcd.kill(etcd.leader())
    second = surely(store, first.version, b"b")
    assert second.value == b"b"
    assert seen(store) == (b"b", second.version)


def test_with_two_of_three_dead_nothing_is_certain_and_nothing_is_lost(etcd: Etcd, store: EtcdStore) -> None:
    first = store.cas("state", 0, b"a")
    etcd.kill("e1", "e2")
    assert store.cas("state", first.version, b"b").outcome == "unknown"
    etcd.start("e1")
    second = surely(store, first.version, b"b")
    assert second.value == b"b" and second.version > first.version


def test_all_of_them_dead_and_back_again(etcd: Etcd, store: EtcdStore) -> None:
    first = store.cas("state", 0, b"a" * 100_000)
    etcd.kill(*etcd.names)
    assert store.cas("state", first.version, b"b").outcome == "unknown"
    etcd.start()
    assert seen(store) == (b"a" * 100_000, first.version)
    assert surely(store, first.version, b"c").value == b"c"


def test_a_member_that_stands_still_is_passed_by(etcd: Etcd, store: EtcdStore) -> None:
    first = store.cas("state", 0, b"a")
    stopped = etcd.leader()
    etcd.stop(stopped)
    second = surely(store, first.version, b"b")
    assert second.value == b"b"
    etcd.go_on(stopped)
    late = EtcdStore(f"etcd://{etcd.socket(stopped)}", "/plugml/lab/", HANG_S)
    assert seen(late) == (b"b", second.version), "it tells no old value when it wakes"
    late.close()


def test_a_member_whose_disk_is_full_ends_and_the_others_go_on(etcd: Etcd, store: EtcdStore) -> None:
    first = store.cas("state", 0, b"a")
    full = etcd.leader()
    waiting = threading.Thread(target=etcd.fill_disk, args=(full,))
    waiting.start()
    second = surely(store, first.version, b"b")
    waiting.join()
    assert second.value == b"b" and full not in etcd.running
    assert seen(store) == (b"b", second.version)


class Counter(threading.Thread):
    """Adds one to its own number again and again, by compare-and-swap of a document that has both; `done` are known to be stored.

    One whose answer was lost shows in what the other has written on top of it.
    """

    def __init__(self, url: str, name: str) -> None:
        super().__init__()
        self.store = EtcdStore(url, "/plugml/lab/")
        self.name = name
        self.done = 0
        self.wrong: list[dict[str, int]] = []
        self.over = threading.Event()
        self.progress = threading.Semaphore(0)

    def run(self) -> None:
        stored, version = {"a": 0, "b": 0}, 0
        while not self.over.is_set() and not self.wrong:
            mine = {**stored, self.name: stored[self.name] + 1}
            _, version, value, _ = surely(self.store, version, json.dumps(mine).encode(), "count")
            stored = json.loads(value) if value else stored
            if stored[self.name] not in (self.done, self.done + 1):
                self.wrong.append(stored)
            elif stored[self.name] > self.done:
                self.done += 1
                self.progress.release()
        self.store.close()

    def go_on(self) -> None:
        """Until it has got through three times more."""
        while self.progress.acquire(blocking=False):
            pass
        for _ in range(3):
            assert self.progress.acquire(timeout=HANG_S)


def test_two_that_count_together_through_every_trouble_count_right(etcd: Etcd, store: EtcdStore) -> None:
    """No addition is lost and none is made twice: what is confirmed is stored, what is unknown is asked again."""
    counters = [Counter(etcd.url, name) for name in ("a", "b")]
    for counter in counters:
        counter.start()

    def both() -> None:
        for counter in counters:
            counter.go_on()

    both()
    for trouble in ("kill the leader", "stop the leader", "kill two", "kill all", "kill one"):
        leader = etcd.leader()
        others = [name for name in etcd.names if name != leader]
        if trouble == "stop the leader":
            etcd.stop(leader)
            both()
            etcd.go_on(leader)
        elif trouble == "kill the leader":
            etcd.kill(leader)
            both()
            etcd.start(leader)
        elif trouble == "kill two":
            etcd.kill(leader, others[0])
            etcd.start(leader, others[0])
        elif trouble == "kill all":
            etcd.kill(*etcd.names)
            etcd.start()
        else:
            etcd.kill(others[0])
            both()
            etcd.start(others[0])
        both()
    for counter in counters:
        counter.over.set()
    for counter in counters:
        counter.join()
    assert [counter.wrong for counter in counters] == [[], []]
    assert json.loads(store.read("count")[0]) == {counter.name: counter.done for counter in counters}
