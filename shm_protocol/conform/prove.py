"""A program led through all cases: first a good day, then all the others, several at a time."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from ...core.errors import UsageError
from ...core.job import JobSpec
from .cases import PLAIN, Case, Plain, cases
from .drill import REPLACED, TALK, Numbers, compare, drilled, drills
from .fakeroot import sweep
from .trial import NOTHING, Command, Outcome, play
from .verdict import Report, report

AT_ONCE = 2 * max(2, os.cpu_count() or 2)  # most cases wait more than they compute


def prove(command: Command, spec: JobSpec, only: Sequence[str] = ()) -> Report:
    """Lead a program through the cases (`only` those named); what a good day does not bear out ends it."""
    begin = time.monotonic()
    sweep()
    command = command._replace(cancel=threading.Event())
    first = play_all([PLAIN], command, spec, NOTHING)[0]
    outcomes = [first]
    if _is_good(first):
        known = cases(first.plain)
        _check_names(only, known)
        outcomes += play_all([case for case in known if not only or case.name in only], command, spec, first.plain)
    return report(outcomes, time.monotonic() - begin)


def prove_driver(command: Command, spec: JobSpec, only: Sequence[str] = ()) -> Report:
    """The same for a driver, whose numbers and outcomes are compared, too.  The job has one dense table with optimizer add."""
    begin = time.monotonic()
    sweep()
    numbers = Numbers(spec)
    command = command._replace(ops=TALK, cancel=threading.Event())
    good = drilled(PLAIN, numbers)
    assert good is not None
    first = compare(good, play_all([PLAIN], command, spec, NOTHING)[0])
    outcomes = [first]
    if _is_good(first):
        known = [(case, drilled(case, numbers)) for case in cases(first.plain) if case.name not in REPLACED]
        known += [(drill.case, drill) for drill in drills(spec)]
        _check_names(only, [case for case, _drill in known])
        chosen = [(case, drill) for case, drill in known if not only or case.name in only]
        played = play_all([case for case, _drill in chosen], command, spec, first.plain)
        outcomes += [outcome if drill is None else compare(drill, outcome) for outcome, (_case, drill) in zip(played, chosen)]
    return report(outcomes, time.monotonic() - begin)


def _is_good(first: Outcome) -> bool:
    """Is there a good day to compare the others with?  What fails on it would be taken for a breach in each of them."""
    return not first.hung and bool(first.plain.lines) and first.code == 0


def _check_names(only: Sequence[str], known: Sequence[Case]) -> None:
    names = [case.name for case in known]
    for name in only:
        if name not in (PLAIN.name, *names):
            raise UsageError(f"there is no case {name!r} for this program; there are {', '.join(names)}")


def play_all(chosen: Sequence[Case], command: Command, spec: JobSpec, plain: Plain) -> list[Outcome]:
    """Several at a time, told in their order.  An interrupt, which only the main thread hears, ends every program first."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            asked = [pool.submit(play, case, command, spec, plain) for case in chosen]
            return [future.result() for future in asked]
        except BaseException:
            command.cancel.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
