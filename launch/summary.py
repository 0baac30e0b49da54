"""How a run ended, as one document: for `--json`, for result.json and for the last lines.  Pure."""

from __future__ import annotations

from typing import Any

from ..core.jobmap import FINISHED
from . import data, words
from .crew import Crew, Verdict
from .referee import Referee
from .saving import Saver
from .watch import Watch


def summary(crew: Crew, watch: Watch, referee: Referee, saver: Saver, verdict: Verdict, cluster: str, us: int) -> dict[str, Any]:
    """Everything that is known; `us` is how long the run took."""
    plan, rules = crew.plan, referee.to_document()
    if verdict.state != FINISHED:
        rules["stopped_by"] = ""  # a rule may have fired, but something else ended the run
    return {
        "job": plan.spec.name, "cluster": cluster, "state": verdict.state, "reason": verdict.reason,
        "exit_code": verdict.exit_code, "exit_of": verdict.whose,
        "workers": [worker.to_document() for worker in crew.workers],
        "closed": watch.closed if plan.at_clocks else None, "uneven": words.uneven({worker.number: worker.clocks for worker in crew.workers}),
        "warnings": list(crew.warnings), **rules, "staleness": watch.staleness,
        "data": data.document(plan.data, plan.workers, plan.result),
        "result": saver.saved, "rescued": saver.rescued, "files": list(saver.files), "seconds": us // 1000 / 1000,
    }  # fmt: skip
