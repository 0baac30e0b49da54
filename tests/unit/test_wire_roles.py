"""Every message has somebody to say it, and what the parts send is what their role may say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from plugml.wire import messages as m
from plugml.wire import roles

ROOT = Path(__file__).resolve().parents[2]
NAMES = {kind.__name__ for kind in get_args(m.Message)}


def said_by(role: str) -> set[str]:
    return {kind.__name__ for kind in roles._MAY_SAY[role]}


def test_every_message_is_somebodys_to_say() -> None:
    everything = set().union(*(said_by(role) for role in (roles.MASTER, roles.SERVER, roles.AGENT, roles.ADMIN)))
    assert NAMES - everything == set(), "say in wire/roles.py who sends it, or keys will refuse it"
    assert everything - NAMES == set()


@pytest.mark.parametrize(("folder", "role"), [("master", roles.MASTER), ("server", roles.SERVER), ("agent", roles.AGENT)])
def test_what_a_part_sends_its_role_may_say(folder: str, role: str) -> None:
    made = set()
    for path in (ROOT / folder).glob("*.py"):
        made |= set(re.findall(r"\bSend\([^()]*, (?:m\.)?([A-Z]\w+)\(", path.read_text())) & NAMES
    assert made and made - said_by(role) == set()


@pytest.mark.parametrize(("key", "names", "others"), [
    ("m0", ["m0", "m0.00000001"], ["m1", "m00", "m0.1", "s0.00000001", "m0.00000001.x", ""]),
    ("s1", ["s1.9f3a01c2", "s1"], ["s11.9f3a01c2", "s0.9f3a01c2", "a1.9f3a01c2", "s1.9F3A01C2"]),
    ("a12", ["a12.00000000"], ["a1.00000000", "c12.00000000"]),
    ("admin", ["c0.00000001", "u3.00000001"], ["m0", "s0.00000001", "admin"]),
    ("admin-ann", ["c0.00000001"], ["a0.00000001"]),
    ("x0", [], ["x0.00000001", "x0"]),
])  # fmt: skip
def test_a_key_is_good_for_its_own_names_alone(key: str, names: list[str], others: list[str]) -> None:
    assert [name for name in [*names, *others] if roles.may_be(key, name)] == names


def test_who_calls_whom() -> None:
    calls = {(caller, called) for called in ("m0", "s0.00000001", "a0.00000001", "c0.00000001") for caller in "msac" if roles.may_call(called, caller + "0")}
    assert {caller for caller, called in calls if called == "m0"} == set("msac")
    assert {caller for caller, called in calls if called.startswith("s0")} == set("sa")
    assert {called[0] for _, called in calls} == {"m", "s"}
