"""Checkpoints as the master knows them: the pointer to the newest one that is kept, and the last thing that went wrong.

The change that stores a pointer is the moment from which a checkpoint counts.  Nodes need none of it: no map goes out.
"""

from __future__ import annotations

from typing import Any

from ..core.effects import Log, Send
from ..core.errors import Code
from ..wire import messages as m
from .catalog import Job, Saved, State
from .decisions import Outcome

PROBLEM_MAX = 500
PLACE_MAX = 2_048


def note(state: State, sender: str, ask: m.SaveEnd) -> Outcome:
    """Remember what became of a checkpoint.  A late word of an earlier one changes nothing; whoever repeats one is answered the same."""

    def told(code: Code, text: str = "") -> Send:
        return Send(sender, m.Done(ask.request, code, text))

    job = state.jobs.get(ask.job)
    if job is None or sender not in job.endpoints or len(ask.place) > PLACE_MAX:
        return Outcome(state, (told(Code.PERM, f"job {ask.job} has no part on {sender}, or its checkpoints no place"),))
    saved = job.saved
    if ask.problem:
        after = saved._replace(problem=f"checkpoint {ask.number} of clock {ask.clock}: {ask.problem[:PROBLEM_MAX]}")
        line = Log("checkpoint_failed", {"job": job.number, "name": job.spec.name, "number": ask.number, "text": after.problem})
    elif ask.number <= saved.number:
        return Outcome(state, (told(Code.OK),))
    else:
        after = Saved(ask.number, ask.clock, ask.place, "")
        line = Log("checkpoint", {"job": job.number, "name": job.spec.name, "number": ask.number, "clock": ask.clock, "dir": ask.place})
    if after == saved:
        return Outcome(state, (told(Code.OK),))
    # Nobody decides by it: the token stays and no node is disturbed.
    return Outcome(state._replace(jobs={**state.jobs, job.number: job._replace(saved=after)}), (line, told(Code.OK)))


def alarm(job: Job) -> list[str]:
    """What somebody should know of, as a sentence."""
    if not job.saved.problem:
        return []
    last = f"the last one that is kept is of clock {job.saved.clock}, in {job.saved.place}" if job.saved.number else "none is kept yet"
    return [f"job {job.spec.name}: {job.saved.problem}; training goes on, {last}"]


def document(job: Job) -> dict[str, Any]:
    """For `status`; `dir` is what `plugml run --resume` takes."""
    saved = job.saved
    where = f"{saved.place}/{saved.number:06d}" if saved.number else ""
    return {"number": saved.number, "clock": saved.clock, "dir": where, "problem": saved.problem}
