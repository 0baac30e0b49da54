"""Key files: made once, private, and every way in which they may be wrong is a sentence with exit code 77."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
import zmq

from plugml.core.errors import KeysError
from plugml.runtime import keys
from plugml.runtime.keys import Keys, check_library, make_keys, read_pair, read_roster

IDS = ("m0", "s0", "s1", "a0", "admin")


@pytest.fixture
def made(tmp_path: Path) -> Path:
    make_keys(tmp_path / "keys", IDS)
    return tmp_path / "keys"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_each_id_gets_a_pair_of_its_own_that_nobody_else_can_read(made: Path) -> None:
    assert mode(made) == 0o700
    roster = read_roster(made)
    assert list(roster) == list(IDS) and len(set(roster.values())) == len(IDS)
    for id_ in IDS:
        assert mode(made / f"{id_}.key") == 0o600
        pair = read_pair(made, id_)
        assert pair.public == roster[id_] == zmq.curve_public(pair.secret.encode()).decode()
        assert pair.secret not in repr(pair) and pair.secret not in (made / "roster.json").read_text()
    assert (made / ".gitignore").read_text() == "*\n"


def test_files_are_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_keys(tmp_path / "keys", ["s0"])
    finally:
        os.umask(before)
    assert mode(tmp_path / "keys" / "s0.key") == 0o600 and mode(tmp_path / "keys" / "roster.json") == 0o644
    Keys(tmp_path / "keys", "s0")


def test_made_again_it_makes_what_is_missing_and_touches_nothing_else(made: Path) -> None:
    before = read_roster(made)
    assert make_keys(made, IDS) == []
    (made / "s1.key").unlink()  # it was moved to its host
    assert make_keys(made, [*IDS, "s2"]) == ["s2"]
    after = read_roster(made)
    assert {id_: after[id_] for id_ in IDS} == before and not (made / "s1.key").exists()
    assert make_keys(made, [], renew=["s1"]) == ["s1"] and read_roster(made)["s1"] != before["s1"]
    assert sorted(path.name for path in made.iterdir()) == [".gitignore", "a0.key", "admin.key", "m0.key", "roster.json", "s0.key", "s1.key", "s2.key"]


@pytest.mark.parametrize("id_", ["", "s", "s007", "x0", "s0.9f3a01c2", "../s0", "administrator", "admin-", "s10000"])
def test_what_names_no_key_is_refused_before_anything_is_made(tmp_path: Path, id_: str) -> None:
    with pytest.raises(KeysError, match="names no key: use m0, s0, a0"):
        make_keys(tmp_path / "keys", ["s0", id_])
    assert not (tmp_path / "keys").exists()


@pytest.mark.parametrize("bits", [0o640, 0o604, 0o620, 0o601])
def test_a_key_that_others_can_touch_is_not_used(made: Path, bits: int) -> None:
    (made / "s0.key").chmod(bits)
    with pytest.raises(KeysError, match=rf"s0\.key has mode {bits:04o}; whoever can read it can be s0: chmod 600 ") as caught:
        Keys(made, "s0")
    assert caught.value.exit_code == 77
    (made / "s0.key").chmod(0o400)
    Keys(made, "s0")


def test_a_roster_or_directory_that_others_can_write_is_not_used(made: Path) -> None:
    (made / "roster.json").chmod(0o664)
    with pytest.raises(KeysError, match=r"roster\.json has mode 0664; whoever can write it decides who is let in: chmod 644"):
        Keys(made, "s0")
    (made / "roster.json").chmod(0o644)
    made.chmod(0o770)
    with pytest.raises(KeysError, match="can be written by others .mode 0770.: chmod 700"):
        Keys(made, "s0")


def test_a_link_in_the_place_of_a_key_is_not_followed(made: Path) -> None:
    (made / "s1.key").rename(made / "moved")
    (made / "s1.key").symlink_to(made / "moved")
    with pytest.raises(KeysError, match=r"cannot read .*s1\.key: Too many levels"):
        Keys(made, "s1")


def test_a_fifo_in_the_place_of_a_key_holds_nobody_up(made: Path) -> None:
    (made / "s1.key").unlink()
    os.mkfifo(made / "s1.key", 0o600)
    with pytest.raises(KeysError, match="is no regular file"):
        Keys(made, "s1")


def test_what_is_missing_is_said_with_where_it_comes_from(made: Path, tmp_path: Path) -> None:
    with pytest.raises(KeysError, match=r"s7\.key is not there: copy it from where `plugml keygen` made it"):
        Keys(made, "s7")
    with pytest.raises(KeysError, match=r"there are no keys in .*nowhere: No such file or directory; make them by `plugml keygen --out"):
        Keys(tmp_path / "nowhere", "s0")
    (made / "roster.json").unlink()
    with pytest.raises(KeysError, match=r"roster\.json is not there"):
        Keys(made, "s0")


def test_a_key_under_another_nodes_file_name_is_seen(made: Path) -> None:
    (made / "s0.key").rename(made / "s1.key")
    with pytest.raises(KeysError, match=r"s1\.key holds the key of 's0': each node has its own, copy s1\.key"):
        Keys(made, "s1")


def test_a_key_that_the_roster_does_not_know_is_seen_at_once(made: Path) -> None:
    kept = (made / "roster.json").read_text()
    make_keys(made, [], renew=["s0"])
    (made / "roster.json").write_text(kept)
    with pytest.raises(KeysError, match=r"gives s0 another key than s0\.key: copy both again"):
        Keys(made, "s0")


def spoil(path: Path, **change: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"version": 2}', "\xff", "[" * 100_000, "{" * 2_000_000])
def test_nonsense_in_a_file_is_a_sentence(made: Path, text: str) -> None:
    for name in ("s0.key", "roster.json"):
        kept = (made / name).read_bytes()
        (made / name).write_bytes(text.encode("latin-1"))
        with pytest.raises(KeysError, match=f"{name} cannot be read as a file of `plugml keygen`"):
            Keys(made, "s0")
        (made / name).write_bytes(kept)
    Keys(made, "s0")


def test_halves_that_do_not_belong_together_are_seen_and_never_shown(made: Path) -> None:
    other = read_pair(made, "s1")
    spoil(made / "s0.key", secret=other.secret)
    with pytest.raises(KeysError, match="its two halves do not belong together") as caught:
        Keys(made, "s0")
    assert other.secret not in str(caught.value)


@pytest.mark.parametrize("public", ["", "short", "x" * 39 + "\x7f", "é" * 40, 7, None])
def test_a_roster_with_what_is_no_key_is_refused(made: Path, public: object) -> None:
    spoil(made / "roster.json", keys={**read_roster(made), "s1": public})
    with pytest.raises(KeysError, match="holds something that is no key"):
        Keys(made, "s0")


def test_a_roster_with_a_key_twice_or_under_no_name_is_refused(made: Path) -> None:
    roster = read_roster(made)
    spoil(made / "roster.json", keys={**roster, "a0": roster["s1"]})
    with pytest.raises(KeysError, match="gives a0 and s1 the same key: each needs its own"):
        Keys(made, "s0")
    spoil(made / "roster.json", keys={**roster, "root": roster["s1"]})
    with pytest.raises(KeysError, match="names a key 'root'"):
        Keys(made, "s0")
    spoil(made / "roster.json", keys=[])
    with pytest.raises(KeysError, match="is no roster of keys"):
        Keys(made, "s0")


# -- while a node runs ------------------------------------------------------------------------------------------------


def test_a_changed_roster_is_read_again_and_told_by_what_changed(made: Path) -> None:
    held = Keys(made, "s0")
    assert held.refresh() == set() and held.public_of("s1.9f3a01c2") == read_roster(made)["s1"]
    make_keys(made, ["s2"], renew=["a0"])
    old = held.public_of("a0.00000001")
    assert held.refresh() == {"s2", "a0"} and held.owner_of(old) == "" and held.owner_of(held.public_of("s2")) == "s2"
    roster = read_roster(made)
    del roster["s1"]
    spoil(made / "roster.json", keys=roster)
    assert held.refresh() == {"s1"} and held.public_of("s1") == ""


def test_a_roster_that_was_spoiled_meanwhile_changes_nothing_but_is_told(made: Path) -> None:
    held = Keys(made, "s0")
    kept = (made / "roster.json").read_text()
    (made / "roster.json").write_text("half a ro")
    assert held.refresh() == set() and "cannot be read" in held.trouble and held.public_of("s1")
    (made / "roster.json").unlink()
    assert held.refresh() == set() and "is not there" in held.trouble
    (made / "roster.json").write_text(kept)
    assert held.refresh() == set() and held.trouble == ""


# -- the library ------------------------------------------------------------------------------------------------------


def test_an_old_library_and_one_without_curve_are_sentences() -> None:
    check_library(curve=True)
    with pytest.raises(KeysError, match=r"the zmq library here is 4\.3\.3, plugml needs 4\.3\.4 or later"):
        check_library(curve=False, version=(4, 3, 3))
    with pytest.raises(KeysError, match="was built without CURVE: install pyzmq as a wheel"):
        check_library(curve=True, has_curve=False)
    check_library(curve=False, has_curve=False)


def test_no_secret_is_shown_by_anything_that_may_be_logged(made: Path) -> None:
    held = Keys(made, "s0")
    shown = repr(held) + str(held) + repr(held.pair) + str(keys.Trust(held)) + f"{keys.Trust(held)!r}"
    assert held.pair.secret not in shown
