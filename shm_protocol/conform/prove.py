"""A program led through all cases: first a good day, then all the others, several at a time."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from ...core.job import JobSpec
from .cases import PLAIN, Case, cases
from .trial import Command, Outcome, play
from .verdict import Report, report

AT_ONCE = 2 * max(2, os.cpu_count() or 2)  # most cases wait more than they compute


def prove(command: Command, spec: JobSpec, only: Sequence[str] = ()) -> Report:
    """Lead a program through the cases (`only` those named); what a good day does not bear out ends it."""
    begin = time.monotonic()
    first = play(PLAIN, command, spec)
    outcomes = [first]
    if not first.hung and first.plain.lines:
        chosen = [case for case in cases(first.plain) if not only or case.name in only]
        outcomes += play_all(chosen, command, spec, first)
    return report(outcomes, time.monotonic() - begin)


def play_all(chosen: Sequence[Case], command: Command, spec: JobSpec, first: Outcome) -> list[Outcome]:
    """Several at a time, told in their order."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(lambda case: play(case, command, spec, first.plain), chosen))
