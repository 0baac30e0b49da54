"""`plugml run` from the outside: what is looked at before the start, where it runs, and what is put back at the end.

    checks -> guard -> result's place -> private cluster or a standing one -> the run -> cluster down -> place, guard

Everything that can be refused is refused before the first process is started.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from ..runtime.descriptors import fill_standard
from . import host, words
from .check import Room, check_document, check_lines
from .environment import thread_note
from .guard import Guard
from .main import Options, Run
from .plan import RunPlan
from .result import Place, claim


def check_run(plan: RunPlan, options: Options, environ: Mapping[str, str]) -> int:
    """`--check`: look at everything, say what would happen, start nothing.  Raises `PlugmlError`."""
    room = look_around(plan, environ)
    if options.json:
        print(json.dumps(check_document(plan, room)))
    else:
        print("\n".join(check_lines(plan, room, _threads(plan, environ))))
    return 0


def look_around(plan: RunPlan, environ: Mapping[str, str]) -> Room:
    """Programs, files and space, as far as they can be known before the start.  Raises `PlugmlError`."""
    host.check_programs(plan, environ)
    host.check_init_files(plan)
    room = host.room(plan, root_of(plan, environ))
    host.check_space(room, plan)
    return room


def run_plan(plan: RunPlan, options: Options, environ: Mapping[str, str]) -> int:
    """Carry the plan out; gives the exit code.  Raises `PlugmlError` for what is refused before the start."""
    fill_standard()
    note = "" if plan.stdin else host.stdin_note(0)
    look_around(plan, environ)
    host.raise_descriptor_limit(plan.workers)
    guard = Guard.start()
    try:
        plan, place = claim(plan)
        try:
            return _on_ground(_signed(plan), options, environ, place, guard, note)
        finally:
            place.release()
    finally:
        guard.close()


def _signed(plan: RunPlan) -> RunPlan:
    """The job says who runs it; the random word keeps two equal jobs apart."""
    return plan.with_settings(
        command=words.command_line(plan.commands[0]), host=host.host_name(), pid=os.getpid(), run=secrets.token_hex(8)
    )


def _threads(plan: RunPlan, environ: Mapping[str, str]) -> str:
    return thread_note({**environ, **dict(plan.variables)}, host.allowed_cpus(), plan.workers)


def root_of(plan: RunPlan, environ: Mapping[str, str]) -> Path:
    """Where the channels will lie."""
    return Path("/dev/shm")
