"""What a driver is told to do, and what it must tell of it: the numbers and outcomes of a client library, compared.

A driver is a program that reads operations, one a line, from the file named in PLUGML_OPS, does them with the client
that is to be proven, and prints a line of each:

    <op> <outcome> <code> clock=<n> done=<0|1> w=<a,b,c,...>

`docs/conform.md` has the operations.  All conversations here are of one dense table with optimizer add, so that every
number is known to the last bit.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...core.job import JobSpec
from .cases import ANYHOW, BADLY, RESUMED, WELL, Case
from .observer import Breach
from .trial import Outcome

SHOWN = 6  # numbers that a line tells
#: Cases in which a driver would go on as it is told; drills have others in their place.
REPLACED = frozenset({"err", "errs", "version", "fenced", "gone", "stop", "alone", "nowhere"})
TALK = ("pull", "step:1", "step:2", "push:1", "push:2", "tick", "pushpull:5", "ping", "pull", "bye")
_DEFINITE = ("SIZE", "NONFINITE", "RANGE", "FORMAT", "NOSERVER", "NOSPC", "COLLIDE", "INTERNAL")


class Line(NamedTuple):
    """What a driver tells of one operation; `values` None = they are not compared."""

    op: str
    outcome: str  # 1 done, 0 alone, S stopped, E refused
    code: str = "OK"
    clock: int | None = None
    done: bool | None = None
    values: tuple[float, ...] | None = None


class Drill(NamedTuple):
    """A case with its operations; `pushes` and `sums` are what the servers must have at the end, None = not compared."""

    case: Case
    told: tuple[Line, ...]
    pushes: int | None = None
    sums: tuple[float, ...] | None = None
    said: str = ""  # a line of `who`


class Numbers:
    """The numbers of a job: a ramp pushed is constant + i."""

    def __init__(self, spec: JobSpec) -> None:
        table = spec.tables[0]
        self.count = table.count
        self.whole = table.dtype == "i64"

    def line(self, start: float, step: float = 1.0) -> tuple[float, ...]:
        return tuple(start + step * i for i in range(self.count))

    def shown(self, start: float, step: float = 1.0) -> tuple[float, ...]:
        return self.line(start, step)[:SHOWN]


def talk(numbers: Numbers, clock: int = 0) -> tuple[tuple[Line, ...], tuple[float, ...]]:
    """What every undisturbed TALK comes to: lines, and the sums that the servers have."""
    two = 3.0 if numbers.whole else 1.5  # two pushes in one clock: their mean, of whole numbers their sum
    slope = 2.0 if numbers.whole else 1.0
    lines = (
        Line("pull", "1", "OK", clock, False, numbers.shown(0, 0)), Line("step:1", "1", "OK", clock + 1, False, numbers.shown(1)),
        Line("step:2", "1", "OK", clock + 2, False, numbers.shown(3, 2)), Line("push:1", "1", "OK", clock + 2, False),
        Line("push:2", "1", "OK", clock + 2, False), Line("tick", "1", "OK", clock + 3, False), Line("pushpull:5", "1", "OK", clock + 3, False),
        Line("ping", "1", "OK", clock + 3, False), Line("pull", "1", "OK", clock + 3, False, numbers.shown(3 + two, 2 + slope)),
    )  # fmt: skip
    return lines, numbers.line(3 + two, 2 + slope)


def drilled(case: Case, numbers: Numbers) -> Drill | None:
    """A case of every program as a drill: a conversation that ends well has told the same as on a good day."""
    if case.end != WELL:
        return None
    lines, sums = talk(numbers, case.clock)
    return Drill(case, lines, 5, sums)


def drills(spec: JobSpec) -> list[Drill]:
    """What only a driver can show."""
    numbers = Numbers(spec)
    return [*_refused(numbers), *_ended(numbers), *_alone(), *_values(numbers), *_descriptors(numbers)]


def _refused(numbers: Numbers) -> list[Drill]:
    """One code after the other, and then a step that is carried out."""
    faults = tuple(f"err@{seq}:{code}" for seq, code in enumerate(_DEFINITE, 2))
    case = Case("told", "every refusal is told by its code, and the next step goes on", "8.1", faults, ops=("step:1", *["step:100"] * len(_DEFINITE), "step:2", "bye"))
    lines = (
        Line("step:1", "1", "OK", 1, False, numbers.shown(1)),
        *(Line("step:100", "E", code, 1, True, numbers.shown(1)) for code in _DEFINITE),
        Line("step:2", "1", "OK", 2, False, numbers.shown(3, 2)),
    )  # fmt: skip
    return [Drill(case, lines, 2, numbers.line(3, 2))]


def _ended(numbers: Numbers) -> list[Drill]:
    three = ("step:1", "step:100", "step:2", "bye")
    found = []
    for code in ("VERSION", "FENCED", "GONE"):
        fault = "gone@2" if code == "GONE" else f"err@2:{code}"
        case = Case(f"told-{code}", f"after {code} every call fails", "8.2", (fault,), end=BADLY, ops=three)
        found.append(Drill(case, (Line("step:1", "1"), Line("step:100", "E", code), Line("step:2", "E", code)), 1))
    failed = Case("last", "the last request was refused", "9.7", ("err@1:NONFINITE",), end=BADLY, ops=("step:1", "bye"))
    stop = Case("told-stop", "the stop rule ends the loop and is no error", "6.7", ("stop@2",), ops=("step:1", "step:1", "step:1", "bye"))
    lines = (
        Line("step:1", "1", "OK", 1, False), Line("step:1", "1", "OK", 2, True, numbers.shown(2, 2)), Line("step:1", "S", "STOP", 2, True, numbers.shown(2, 2)),
    )  # fmt: skip
    return [*found, Drill(failed, (Line("step:1", "E", "NONFINITE"),), 0), Drill(stop, lines, 2)]


def _alone() -> list[Drill]:
    ops = ("pull", "step:1", "push:1", "pushpull:2", "tick", "ping")
    alone = Case("told-alone", "without a channel every call says so", "2.9", channel=False, ops=(*ops, "bye"))
    nowhere = Case("told-nowhere", "with a broken channel every call fails", "2.10", end=BADLY, alter=shutil.rmtree, served=False, ops=("step:1", "bye"))
    return [Drill(alone, tuple(Line(op, "0") for op in ops)), Drill(nowhere, ())]


def _values(numbers: Numbers) -> list[Drill]:
    gen, clock = RESUMED
    offered = Case("init", "first values are offered and come back", "3.1", init="program", ops=("init:5", "init:7", "step:1", "bye"))
    lines = (Line("init:5", "1", "OK", 0, False), Line("init:7", "1", "OK", 0, False), Line("step:1", "1", "OK", 1, False, numbers.shown(6, 2)))
    who = Case("who", "a worker knows who it is and where to go on", "4.6", gen=gen, clock=clock, ops=("who", "step:1", "bye"))
    said = f"who plugged=1 main=1 worker=0 of=1 clock={clock}"
    size = Case("expect", "a wrong size is refused before anything is pushed", "3.4", end=BADLY, ops=(f"expect:{numbers.count}", f"expect:{numbers.count + 1}", "step:1", "bye"), optional="expect")
    wrong = (Line(f"expect:{numbers.count}", "1"), Line(f"expect:{numbers.count + 1}", "E", "SIZE"), Line("step:1", "E", "SIZE"))
    return [
        Drill(offered, lines, 1, numbers.line(6, 2)),
        Drill(who, (Line("step:1", "1", "OK", clock + 1, False),), 1, said=said),
        Drill(size, wrong, 0),
    ]


def _descriptors(numbers: Numbers) -> list[Drill]:
    """Both may be passed over: a driver that cannot do it prints a line of it, `<op> -`."""
    closed = Case("close", "descriptors are closed behind the client's back", "9.10", end=ANYHOW, ops=("step:1", "close", "step:2", "bye"), optional="close")
    forked = Case("fork", "a forked child may not speak for its parent", "9.9", end=ANYHOW, ops=("step:1", "fork", "step:2", "bye"), optional="fork")
    two = (Line("step:1", "1", "OK", 1, False), Line("step:2", "1", "OK", 2, False, numbers.shown(3, 2)))
    three = (two[0], Line("step:1", "E", "PERM"), two[1])
    return [Drill(closed, two, 2, numbers.line(3, 2)), Drill(forked, three, 2, numbers.line(3, 2))]


# -- compared


def compare(drill: Drill, outcome: Outcome) -> Outcome:
    """The outcome with what the driver told wrongly, if nothing else was seen before."""
    case = drill.case
    if case.optional and any(line.split()[:1] == [case.optional] for line in outcome.output.splitlines()):
        return outcome._replace(why=f"the driver knows no op {case.optional}", breaches=(), reached=frozenset())
    if outcome.breaches or outcome.why:
        return outcome
    seen = _difference(drill, outcome)
    if not seen:
        return outcome._replace(reached=outcome.reached | {case.rule})
    return outcome._replace(breaches=(Breach(case.rule, 0, seen),), reached=outcome.reached - {case.rule})


def _difference(drill: Drill, outcome: Outcome) -> str:
    if drill.said and drill.said not in outcome.output.splitlines():
        return f"it did not say {drill.said!r}"
    told = [line for text in outcome.output.splitlines() if (line := read_line(text)) is not None]
    if drill.told and len(told) != len(drill.told):
        return f"it told of {len(told)} operations, {len(drill.told)} were asked for: {outcome.tail.strip()[-200:]}"
    for wanted, line in zip(drill.told, told):
        wrong = _unlike(wanted, line)
        if wrong:
            return f"of {wanted.op} it told {wrong}"
    if drill.pushes is not None and outcome.pushes != drill.pushes:
        return f"{outcome.pushes} pushes were taken, {drill.pushes} were asked for"
    if drill.sums is not None and not np.array_equal(outcome.values, np.array(drill.sums)):
        return f"the servers have {_some(outcome.values)}, {_some(drill.sums)} is right"
    return ""


def _unlike(wanted: Line, line: Line) -> str:
    for what, mine, told in zip(("op", "outcome", "code", "clock", "done"), wanted, line):
        if mine is not None and mine != told:
            return f"{what} {_word(told)}, {_word(mine)} is right"
    if wanted.values is not None and line.values != wanted.values:
        return f"w={_some(line.values or ())}, w={_some(wanted.values)} is right"
    return ""


def _word(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _some(values: Sequence[float]) -> str:
    return ",".join(f"{float(value):.9g}" for value in values[:SHOWN])


def read_line(text: str) -> Line | None:
    """A driver's line; None for anything else that it prints.

    >>> read_line("step:1 1 OK clock=1 done=0 w=1,2").values
    (1.0, 2.0)
    """
    words = text.split()
    if len(words) != 6 or not words[3].startswith("clock=") or not words[4].startswith("done=") or not words[5].startswith("w="):
        return None
    try:
        values = tuple(float(word) for word in words[5][2:].split(",") if word)
        return Line(words[0], words[1], words[2], int(words[3][6:]), words[4][5:] == "1", values)
    except ValueError:
        return None
