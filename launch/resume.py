"""From which checkpoint a run goes on: found, read whole, and held against what the run is, before anything is started.

Owns what must be equal.  Refuses to know how ranges are loaded.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..core.errors import UsageError, WorldError, shown
from ..core.job import JobSpec
from ..core.table import TableSpec
from ..runtime import checkpoints
from ..runtime.checkpoints import Manifest
from . import words
from .plan import RunPlan
from .saves import AUTO, NEVER

RESTORES_MAX = 3  # from one checkpoint
#: What a table must be like for its numbers to be its own.
_TABLE = ("name", "kind", "shape", "dtype", "storage", "index", "optimizer", "init", "init_settings")


def resolve(plan: RunPlan) -> tuple[RunPlan, list[str]]:
    """The plan with the checkpoint that it goes on from, and what must be said of it.  Raises `UsageError` and `WorldError`."""
    resume = plan.saves.resume
    if resume == NEVER:
        return plan, []
    plan = replace(plan, name_given=True)  # the place stays the same, so that the next one finds what this one leaves
    root = Path(plan.checkpoints)
    if resume != AUTO:
        return _from_directory(plan, Path(plan.directory) / resume)
    found, problems = checkpoints.newest(root)
    if found is None:
        said = [*problems[:1], f"resume=auto: {root} has no checkpoint that is whole; the run begins at clock 0"]
        return plan, said
    return _from(plan, found, problems)


def after_loss(plan: RunPlan, ran: RunPlan, restores: dict[int, int]) -> tuple[RunPlan, list[str]] | None:
    """The servers of a run were lost: the plan that goes back to its last checkpoint, None where there is none, or where that has not helped.

    `ran` is the plan as it was carried out; `restores` counts by clock.
    """
    found, _ = checkpoints.newest(Path(ran.checkpoints))
    if found is None or restores.get(found.clock, 0) >= RESTORES_MAX:
        return None
    restores[found.clock] = restores.get(found.clock, 0) + 1
    saves = plan.saves._replace(resume=AUTO, dir=ran.checkpoints)
    plan, told = resolve(replace(plan, spec=replace(plan.spec, name=ran.spec.name, resume=""), saves=saves, result_dir=ran.result_dir))
    return plan, [f"on_lost = restore: {told[-1] if told else ''}"]


def _from_directory(plan: RunPlan, place: Path) -> tuple[RunPlan, list[str]]:
    """Of one checkpoint, or of several: then the newest one that is whole."""
    if checkpoints.numbers(place) and not (place / checkpoints.MANIFEST).exists():
        found, problems = checkpoints.newest(place)
        if found is None:
            raise WorldError(f"no checkpoint in {place} is whole: {problems[0]}")
        return _from(plan, found, problems)
    try:
        return _from(plan, checkpoints.whole(place), [])
    except WorldError as error:
        others = [root_number for root_number in checkpoints.numbers(place.parent) if checkpoints.folder(root_number) != place.name]
        for number in reversed(others):
            other = place.parent / checkpoints.folder(number)
            try:
                found = checkpoints.whole(other)
            except WorldError:
                continue
            raise WorldError(f"{error}; the one of clock {found.clock} is whole: --resume {other}") from error
        raise


def _from(plan: RunPlan, found: Manifest, problems: list[str]) -> tuple[RunPlan, list[str]]:
    theirs = found.spec
    wrong = difference(theirs, plan.spec)
    if wrong:
        raise UsageError(f"the checkpoint in {found.place} is of another job: {wrong}; change that back, or begin anew with --resume never")
    spec = replace(plan.spec, name=theirs.name, tables=tuple(map(_laid_out, plan.spec.tables, theirs.tables)), resume=str(found.place))
    directory = plan.saves.dir or ("" if plan.saves.resume == AUTO else str(found.place.parent))
    absent, changed = _workers(found, plan)
    saves = plan.saves._replace(dir=directory, absent=absent)
    told = [*problems, *changed, f"going on from the checkpoint of clock {found.clock:,} in {found.place}"]
    if found.cut == "fuzzy":
        told.append("it was made while workers were pushing (not all tables are bsp): some of their last pushes may count twice")
    return replace(plan, spec=spec, saves=saves, name_given=True), told


def _laid_out(mine: TableSpec, theirs: TableSpec) -> TableSpec:
    """Blocks and buckets are those of the files."""
    return mine.with_buckets(theirs.buckets) if mine.kind == "sparse" else mine.with_block_bytes(theirs.block_bytes)


def _absent(found: Manifest) -> tuple[tuple[int, int], ...]:
    """Who had ended before the cut.  One that ended there just has nothing left to do."""
    rows = [(int(worker), int(end)) for worker, _gen, _first, end in found.document["workers"]]
    return tuple((worker, end) for worker, end in rows if 0 <= end and (found.cut == "fuzzy" or end < found.clock))


def _workers(found: Manifest, plan: RunPlan) -> tuple[tuple[tuple[int, int], ...], list[str]]:
    """Who had ended before the cut and stays away, and what must be said of those that take part.

    Raises `UsageError` where another number of workers would do again what one that has ended had done.
    """
    before, now = found.spec.workers, plan.workers
    absent = _absent(found)
    own = tuple((worker, end) for worker, end in absent if worker < before)
    joined = sum(int(row[0]) >= before for row in found.document["workers"]) - (len(absent) - len(own))
    told = []
    if joined:
        told.append(f"{words.count(joined, 'worker')} that had joined the job {'has' if joined == 1 else 'have'} no part in it any more: plugml run --join {plan.spec.name} brings others")
    if before == now:
        return own, told
    if own and not found.spec.pieces:
        gone = words.names([worker for worker, _ in own])
        raise UsageError(
            f"the checkpoint in {found.place} is of {words.count(before, 'worker')}, here {now}: {gone} had ended before it, and what is left was the part of the "
            f"others, which cannot be dealt out anew: go on with -n {before}, or begin anew with --resume never"
        )
    dealt = "pieces that are left go to whoever asks" if found.spec.pieces else "the input is dealt out anew" if plan.data.kind else "programs find another `workers`"
    rule = f", lr_scale = {plan.spec.lr_scale} makes another lr of it" if plan.spec.lr_scale != "none" else ""
    told.append(f"{words.count(now, 'worker')} instead of {before}: {dealt}{rule}; the numbers will not be those of a run with {before}")
    return (), told


def difference(theirs: JobSpec, mine: JobSpec) -> str:
    """The first thing in which a run is not the one that made a checkpoint, "" = there is none."""
    for key in ("seed", "pieces"):
        before, now = getattr(theirs, key), getattr(mine, key)
        if before != now:
            return f"{key} = {before}, here {now}"
    if max(1, mine.passes) < max(1, theirs.passes):
        return f"passes = {theirs.passes}, here only {mine.passes}"
    names, ours = [table.name for table in theirs.tables], [table.name for table in mine.tables]
    if names != ours:
        return f"its tables are {words.joined(names)}, here {words.joined(ours)}"
    for before, now in zip(theirs.tables, mine.tables):
        old, new = before.to_document(), now.to_document()
        for key in _TABLE:
            if old.get(key) != new.get(key):
                return f"table {now.name!r} has {key} = {shown(old.get(key))}, here {shown(new.get(key))}"
        model, ours_model = theirs.consistency_of(before).model, mine.consistency_of(now).model
        if model != ours_model:
            return f"table {now.name!r} is {model}, here {ours_model}"
    return ""
