"""The cases that a program is led through: what befalls it, how it must end, and which sentence it breaks if it does not.

The first one, `plain`, is a good day.  What the program asked in it says at which requests the others strike.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ..page import CONSTANT_BYTES, OFFSET, PAGE_BYTES

WELL, BADLY, ANYHOW = "well", "badly", "anyhow"
_SEQUENCE = ("4.5", "4.6")
_DEFINITE = ("NOSERVER", "SIZE", "NONFINITE", "RANGE", "FORMAT", "NOSPC", "COLLIDE", "PERM", "INTERNAL")
_COMMA_LOCALES = ("de_DE", "fr_FR", "es_ES", "it_IT", "pt_BR", "nl_NL", "pl_PL", "ru_RU", "sv_SE", "da_DK")
RESUMED = (3, 5)  # generation and clock of a worker that goes on
EARLIER = 2  # requests of an earlier program in the same channel


class Plain(NamedTuple):
    """What the good day has told: verbs and lines by seq, files that were opened, whether each push differed from the others."""

    verbs: Mapping[int, str]
    lines: Sequence[bytes]
    opened: frozenset[str]
    said_hello: bool
    distinct: bool


class Case(NamedTuple):
    """`rule`: broken if the program hangs or does not end as it must, and nothing more exact was seen.  `blame`: what
    breaches mean here.  `alter`: is called with the channel's directory before the program starts.  `skip`: why the
    case cannot be had.  Without `served` there is no agent, and no request may come; without `channel` no channel."""

    name: str
    about: str
    rule: str
    faults: tuple[str, ...] = ()
    end: str = WELL
    blame: Mapping[str, str] = {}
    environ: Mapping[str, str] = {}
    alter: Callable[[Path], None] | None = None
    gen: int = 1
    clock: int = 0
    earlier: int = 0
    bell: str = "fifo"
    seeded: tuple[bytes, ...] = ()
    muffled: bool = False
    linger_s: float = 0.0
    served: bool = True
    channel: bool = True
    skip: str = ""
    also: frozenset[str] = frozenset()  # sentences that are reached, too, if all went well
    init: str = ""  # how tables begin, if not as the job says
    ops: tuple[str, ...] = ()  # of a driver
    optional: str = ""  # the op that a driver need not know


PLAIN = Case("plain", "a good day", "9.7")


def cases(plain: Plain) -> list[Case]:
    """All but the good day."""
    push = _target(plain, ("step", "push", "pushpull", "init"))
    tick = _target(plain, ("step", "clock"))
    return [
        *_replies(plain, push),
        *_refusals(plain, push),
        *_ends(push, tick),
        *_beginnings(plain),
        *_channels(plain),
        *_accepted(plain),
    ]


def _replies(plain: Plain, push: int) -> list[Case]:
    early = {rule: "5.4" for rule in _SEQUENCE}
    strange = {rule: "6.8" for rule in _SEQUENCE}
    some = sorted(seq for seq in plain.verbs if seq)[1:5]
    order = "the bell cannot be heard before the line is there, and each answer waits a moment"
    return [
        Case("order", order, "", end=ANYHOW, muffled=True, linger_s=0.03),
        Case("repeat", "each reply comes twice", "5.4", ("repeat@*",), blame=early),
        Case("stale", "an old reply comes before the one that is due", "5.4", tuple(f"stale@{seq}:0.06" for seq in some), blame=early),
        Case("strange", "replies have keys that nobody knows", "6.8", ("strange@*",), blame=strange),
        Case("slow", "one answer takes half a second", "5.9", (f"slow@{push}:0.5",)),
        Case("restart", "the agent dies before each store, and another one goes on", "5.4", ("restart@*:*",), blame=early),
    ]


def _refusals(plain: Plain, push: int) -> list[Case]:
    waits = plain.said_hello or any(b" t=" in line or b" async=1" in line for line in plain.lines)
    never = "" if waits else "the program says neither t= nor async=1: nobody answers it AGAIN (4.17)"
    again = {rule: "6.10" for rule in _SEQUENCE}
    several = tuple(f"err@{push + at}:{code}" for at, code in enumerate(_DEFINITE))
    return [
        Case("again", "one request is answered AGAIN first", "6.10", (f"again@{push}",), blame=again, skip=never),
        Case("err", "one request is refused", "4.5", (f"err@{push}:NOSERVER",), end=ANYHOW),
        Case("errs", "requests are refused for one reason after the other", "4.5", several, end=ANYHOW),
        Case("version", "err VERSION", "8.2", (f"err@{push}:VERSION",), end=BADLY),
        Case("fenced", "err FENCED: another one has taken its place", "8.2", (f"err@{push}:FENCED",), end=BADLY),
        Case("gone", "the agent never comes back, and the launcher answers GONE", "8.2", (f"gone@{push}",), end=BADLY),
    ]


def _ends(push: int, tick: int) -> list[Case]:
    return [
        Case("vanish", "agent and launcher end at once", "5.7", (f"vanish@{push}",), end=BADLY),
        Case("stop", "the stop rule fires", "6.7", (f"stop@{tick}",), skip="" if tick else "the program ends no clock"),
    ]


def _beginnings(plain: Plain) -> list[Case]:
    gen, clock = RESUMED
    leftover = b"ok 0 0 done=41".ljust(63) + b"\n"
    shy = "" if plain.said_hello else "the program never says hello"
    blame = {"4.5": "5.10", "4.6": "5.10"}
    return [
        Case("alone", "there is no PLUGML_DIR", "2.9", channel=False),
        Case("resume", f"generation {gen}, {clock} clocks finished before", "4.6", gen=gen, clock=clock),
        Case("leftover", "old answers to hello lie in rep", "5.10", seeded=(leftover,) * 2, blame=blame, skip=shy, also=frozenset({"5.10"})),
        Case("second", "an earlier program has used the channel", "6.3", earlier=EARLIER, skip=shy, also=frozenset({"6.3"}), blame={"4.5": "6.3"}),
        Case("comma", "the user's language has a decimal comma", "3.8", environ=_comma(), skip="" if _comma() else "no such locale is installed"),
    ]


def _channels(plain: Plain) -> list[Case]:
    no_info = "" if "info" in plain.opened else "the program does not read info"
    no_ctl = "" if "ctl" in plain.opened else "the program does not read ctl"
    return [
        Case("nowhere", "PLUGML_DIR names no directory", "2.10", end=BADLY, alter=shutil.rmtree, served=False),
        Case("keys", "info has unknown keys, in another order", "2.2", alter=_strange_info, skip=no_info, also=frozenset({"2.2"})),
        Case("version2", "info says version=2", "2.3", end=BADLY, alter=_next_version, served=False, skip=no_info),
        Case("major", "ctl has another abi_major", "7.11", end=BADLY, alter=_next_major, served=False, skip=no_ctl),
        Case("minor", "ctl has a greater abi_minor", "7.11", alter=_next_minor, skip=no_ctl, also=frozenset({"7.11"})),
        *_semaphores(plain, no_info),
    ]


def _semaphores(plain: Plain, skip: str) -> list[Case]:
    """Whoever does not read info cannot know; that bell=sem is the job's own choice helps him."""
    stale = tuple(f"stale@{seq}:0.02" for seq in sorted(plain.verbs)[1:4])
    gone = (f"gone@{max(plain.verbs)}",)
    return [
        Case("sem", "bell=sem, and old replies come before the one that is due", "2.15", stale, end=ANYHOW, bell="sem", skip=skip),
        Case("semgone", "bell=sem, and the agent never comes back", "5.13", gone, end=BADLY, bell="sem", skip=skip),
    ]


def _accepted(plain: Plain) -> list[Case]:
    """Only for programs that ask for it."""
    found: list[Case] = []
    for line in plain.lines:
        words = line.decode(errors="replace").split()
        limit = next((word[2:] for word in words[3:] if word.startswith("t=")), "")
        if limit.isdigit() and int(limit) <= 2000 and words[0] != "pull" and not any(case.name == "timeout" for case in found):
            late = f"late@{words[1]}:{int(limit) / 1000 + 0.2}"
            found.append(Case("timeout", "an answer does not come within t=", "4.17", (late,), end=ANYHOW))
        if "async=1" in words and not any(case.name == "failed" for case in found):
            found.append(Case("failed", "an accepted push fails later", "4.16", (f"fail@{words[1]}:RANGE",), end=ANYHOW, also=frozenset({"4.16"})))
    return found


def _target(plain: Plain, verbs: tuple[str, ...]) -> int:
    """The request at which something happens: the second such, else the only one; 0 = there is none."""
    found = [seq for seq, verb in sorted(plain.verbs.items()) if verb in verbs]
    found = found or ([seq for seq in sorted(plain.verbs) if seq] if "init" in verbs else [])
    return found[min(1, len(found) - 1)] if found else 0


def _strange_info(directory: Path) -> None:
    """The same facts: unknown keys, single keys the other way round, more words in a table's line."""
    lines = (directory / "info").read_text().splitlines()
    single = [line for line in lines if not line.startswith("table=")]
    tables = [f"{line} zeta=1" for line in lines if line.startswith("table=")]
    _replace_info(directory, ["later=soon", *reversed(single), "x-y.z=", *tables, "last=1"])


def _next_version(directory: Path) -> None:
    lines = (directory / "info").read_text().splitlines()
    _replace_info(directory, ["version=2" if line.startswith("version=") else line for line in lines])


def _replace_info(directory: Path, lines: list[str]) -> None:
    new = directory / "info.new"
    new.write_text("\n".join(lines) + "\n")
    new.chmod(0o444)
    os.rename(new, directory / "info")


def _next_major(directory: Path) -> None:
    _patch_ctl(directory, "abi_major")


def _next_minor(directory: Path) -> None:
    _patch_ctl(directory, "abi_minor")


def _patch_ctl(directory: Path, field: str) -> None:
    page = bytearray((directory / "ctl").read_bytes())
    at = OFFSET[field]
    struct.pack_into("<H", page, at, struct.unpack_from("<H", page, at)[0] + 1)
    crc_at = OFFSET["crc32"]
    page[crc_at : crc_at + 4] = bytes(4)
    struct.pack_into("<I", page, crc_at, zlib.crc32(page[:CONSTANT_BYTES]))
    with open(directory / "ctl", "r+b") as file:
        file.write(page[:PAGE_BYTES])


def _comma() -> dict[str, str]:
    """A language of this host with a decimal comma, as variables."""
    try:
        known = subprocess.run(["locale", "-a"], capture_output=True, text=True, check=False).stdout.split()
    except FileNotFoundError:
        known = []
    for name in known:
        if name.split(".")[0] in _COMMA_LOCALES and "utf" in name.lower():
            return {"LC_ALL": name, "LANG": name}
    return {}
