"""What the cases come to: a word for every sentence of SPEC.md, as text and as a document."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from .observer import Breach
from .rules import CONSEQUENCES, RULES, Rule
from .trial import Outcome

#: Words of a refusal that may mean other tables than the program's.
TABLES = ("SIZE", "RANGE", "FORMAT", "table")
OK, BROKEN, NOT_REACHED, UNSEEN = "ok", "BROKEN", "not reached", "not checked"


class Found(NamedTuple):
    """One sentence: the breach that tells most, the case in which it was seen, and how many cases saw one."""

    rule: Rule
    state: str
    case: str = ""
    breach: Breach | None = None
    cases: int = 0
    why: str = ""


class Report(NamedTuple):
    found: tuple[Found, ...]
    outcomes: tuple[Outcome, ...]
    seconds: float

    @property
    def broken(self) -> tuple[str, ...]:
        return tuple(found.rule.number for found in self.found if found.state == BROKEN)

    @property
    def failure(self) -> str:
        """Why there was no good day: what the program has said at its end; empty = there was one."""
        first = self.outcomes[0] if self.outcomes else None
        if first is None or first.hung or first.code in (0, None):
            return ""
        said = first.tail.strip().splitlines()
        reason = said[-1] if said else f"it ended with {first.code}"
        hint = "; give --table as for `plugml run`" if any(word in reason for word in TABLES) else ""
        return f"it fails on the good day: {reason}{hint}"

    def count(self, state: str) -> int:
        return sum(found.state == state for found in self.found)


def report(outcomes: Iterable[Outcome], seconds: float) -> Report:
    """Put together what each case has shown."""
    outcomes = tuple(outcomes)
    roots = [(outcome, root(outcome.breaches)) for outcome in outcomes if outcome.breaches]
    broken = {breach.rule for _outcome, breach in roots}
    told = {rule for rule in broken if not any(rule in CONSEQUENCES.get(other, ()) for other in broken)}
    reached = {rule for outcome in outcomes for rule in outcome.reached}
    found = []
    for rule in RULES.values():
        if rule.unseen:
            found.append(Found(rule, UNSEEN, why=rule.unseen))
        elif rule.number in told:
            seen = [(outcome, breach) for outcome, breach in roots if breach.rule == rule.number]
            found.append(Found(rule, BROKEN, seen[0][0].case.name, seen[0][1], len(seen)))
        elif rule.number in reached and rule.number not in broken:
            found.append(Found(rule, OK))
        else:
            found.append(Found(rule, NOT_REACHED, why=_why_not(rule, outcomes)))
    return Report(tuple(found), outcomes, seconds)


def root(breaches: tuple[Breach, ...]) -> Breach:
    """The breach that the others come from: the first one, unless a later one makes such things happen."""
    cause = breaches[0]
    for breach in breaches[1:]:
        if cause.rule in CONSEQUENCES.get(breach.rule, ()):
            cause = breach
    return cause


def _why_not(rule: Rule, outcomes: tuple[Outcome, ...]) -> str:
    reasons = [outcome.why for outcome in outcomes if outcome.why and rule.number in (outcome.case.rule, *outcome.case.also)]
    failed = [outcome.case.name for outcome in outcomes if outcome.breaches and rule.number == outcome.case.rule]
    if reasons:
        return reasons[0]
    if len(outcomes) == 1 and (outcomes[0].breaches or outcomes[0].code):
        return "the good day was none, and no other case came"
    if failed:
        return f"case {failed[0]} failed by another sentence"
    return f"it takes: {rule.needs}" if rule.needs else "its case was not asked for"


# -- told


def text(found: Report, verbose: bool) -> str:
    """A line for each sentence that is checked, more for those that are broken; `verbose`: all sentences, and the cases."""
    lines = []
    for item in found.found:
        if item.state == UNSEEN and not verbose:
            continue
        lines.append(f"{item.state:<12} {item.rule.number:<5} {item.rule.text}{f': {item.why}' if item.why else ''}")
        if item.breach is not None:
            lines += _told(item)
    if verbose:
        lines += ["", *(_case_line(outcome) for outcome in found.outcomes)]
    total = sum(not outcome.case.skip for outcome in found.outcomes)
    which = f" ({', '.join(found.broken)})" if found.broken else ""
    counts = f"{found.count(OK)} ok, {len(found.broken)} broken{which}, {found.count(NOT_REACHED)} not reached"
    lines += ["", f"{counts}; {total} cases in {found.seconds:.1f} s"]
    return "\n".join([*lines, found.failure] if found.failure else lines)


def _told(item: Found) -> list[str]:
    assert item.breach is not None
    where = f"case {item.case}" + (f", request {item.breach.seq}" if item.breach.seq else "")
    more = f" (and in {item.cases - 1} more)" if item.cases > 1 else ""
    indent = " " * 19
    return [f"{indent}seen: {item.breach.seen}", f"{indent}in: {where}{more}", f"{indent}do: {item.rule.remedy}"]


def _case_line(outcome: Outcome) -> str:
    case = outcome.case
    if case.skip:
        how = f"left out: {case.skip}"
    elif outcome.breaches:
        how = "broken: " + ", ".join(dict.fromkeys(breach.rule for breach in outcome.breaches))
    else:
        how = f"proves nothing: {outcome.why}" if outcome.why else "ok"
    return f"case {case.name:<9} {outcome.seconds:5.1f} s  {case.about}: {how}"


def document(found: Report) -> dict[str, Any]:
    """For programs."""
    return {
        "ok": not found.broken and not found.failure,
        "failure": found.failure,
        "seconds": round(found.seconds, 3),
        "sentences": [_entry(item) for item in found.found],
        "cases": [
            {
                "name": outcome.case.name, "about": outcome.case.about, "seconds": round(outcome.seconds, 3), "exit": outcome.code,
                "hung": outcome.hung, "why": outcome.case.skip or outcome.why, "stderr": outcome.tail,
                "breaches": [breach._asdict() for breach in outcome.breaches],
            }
            for outcome in found.outcomes
        ],
    }  # fmt: skip


def _entry(item: Found) -> dict[str, Any]:
    entry: dict[str, Any] = {"number": item.rule.number, "text": item.rule.text, "state": item.state}
    if item.breach is not None:
        entry |= {"case": item.case, "request": item.breach.seq, "seen": item.breach.seen, "do": item.rule.remedy, "cases": item.cases}
    if item.why:
        entry["why"] = item.why
    return entry
