"""`plugml run` from the outside: what is looked at before the start, where it runs, and what is put back at the end.

    checks -> guard -> result's place -> private cluster or a standing one -> the run -> cluster down -> place, guard

Everything that can be refused is refused before the first process is started.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import secrets
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from ..core.errors import PlugmlError, UsageError
from ..core.jobmap import FINISHED, STOPPED
from ..runtime import checkpoints
from ..runtime.descriptors import fill_standard
from ..shm_protocol.root import check_place
from . import datafiles, discovery, host, join, resume, words
from .check import Room, check_document, check_lines
from .discovery import ClusterFile
from .environment import thread_note
from .guard import Guard
from .main import SIGNALS, Options, Run
from .plan import RunPlan
from .result import Place, claim, would_claim
from .rounds import settle
from .saves import NEVER


class EarlyEndError(PlugmlError):
    """A signal came before the run could take it in order: what was made so far is put back."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"{words.signal_name(signum)} before the start: nothing was run")
        self.exit_code = 128 + signum


class Early:
    """Takes the signals until the loop does.

    A handler runs wherever the interpreter happens to be, also in hooks that swallow what it raises (those at a fork,
    a finalizer): so it notes the signal, and `check` raises where we stand on our own ground.
    """

    def __init__(self) -> None:
        self.signum = 0
        for signum in SIGNALS:
            if signal.getsignal(signum) != signal.SIG_IGN:
                signal.signal(signum, self._note)
        if signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL:
            signal.signal(signal.SIGUSR1, lambda signum, frame: None)  # there is nothing yet of which to make a checkpoint

    def _note(self, signum: int, _frame: object) -> None:
        self.signum = self.signum or signum

    def check(self) -> None:
        if self.signum:
            raise EarlyEndError(self.signum)

    def hand_over(self, take: Callable[[int], None]) -> None:
        """The loop has the signals by the time it calls this: one that came before it does too goes the same way."""
        if self.signum:
            take(self.signum)


def check_run(plan: RunPlan, options: Options, environ: Mapping[str, str]) -> int:
    """`--check`: look at everything, say what would happen, start nothing.  Raises `PlugmlError`."""
    plan, room = look_around(plan, environ)
    plan, told = resume.resolve(plan)
    plan = would_claim(replace(plan, notes=(*plan.notes, *told)))
    datafiles.check_folder(plan.data, Path(plan.result))
    if not plan.cluster:
        file, _note = cluster_of(plan, environ)
        discovery.check_private(file.state)
        check_place(file.root, allow_disk=options.allow_disk)
    if options.json:
        print(json.dumps(check_document(plan, room)))
    else:
        print("\n".join(check_lines(plan, room, _threads(plan, environ))))
    return 0


def look_around(plan: RunPlan, environ: Mapping[str, str]) -> tuple[RunPlan, Room]:
    """Programs, files and space, as far as they can be known before the start; the plan with its input.  Raises `PlugmlError`."""
    looked = datafiles.look(plan.data, plan.workers, plan.directory)
    plan = plan.with_data(looked) if plan.joins is None else replace(plan, data=looked)
    host.check_programs(plan, environ)
    host.check_place(plan)
    host.check_init_files(plan)
    room = host.room(plan, cluster_of(plan, environ)[0].root)
    host.check_space(room, plan)
    host.raise_descriptor_limit(plan.workers)
    return plan, room


def run_plan(plan: RunPlan, options: Options, environ: Mapping[str, str]) -> int:
    """Carry the plan out; gives the exit code.  Raises `PlugmlError` for what is refused before the start."""
    fill_standard()
    early = Early()
    discovery.clear_dead_runs(environ)  # before we look how much room there is
    notes = ["" if plan.stdin else host.stdin_note(0)]
    plan, _room = look_around(plan, environ)
    early.check()
    if plan.joins is not None:
        plan = join.claim_numbers(plan, environ)
    plan, told = resume.resolve(plan)
    notes += told
    restores: dict[int, int] = {}  # by clock
    while True:
        code, run = _attempt(plan, options, environ, notes, early)
        again = resume.after_loss(plan, run.plan, restores) if run.lost else None
        if again is None:
            return code if code is not None else _close(run)
        run.leave()
        plan, notes = again
        early = Early()


def _attempt(plan: RunPlan, options: Options, environ: Mapping[str, str], notes: list[str], early: Early) -> tuple[int | None, Run]:
    """One run of the job; its exit code, None where the last lines are not said yet: it may go on from a checkpoint."""
    guard = Guard.start()
    loop = asyncio.new_event_loop()
    try:
        file, note = cluster_of(plan, environ)
        plan, place = claim(plan)
        plan, told = with_checkpoints(plan) if plan.joins is None else (plan, join.notes(plan))
        notes = [*notes, note, *told]
        try:
            plan, told = _with_input(plan, place, early)
            run = Run(_signed(plan, place) if plan.joins is None else plan, options, environ, place, file.root, loop, guard)
            _on_ground(run, file, [*notes, *told], early)
            return (None if run.lost else _close(run)), run
        finally:
            place.release()
    finally:
        loop.close()
        guard.close()


def _close(run: Run) -> int:
    """The model file of unchanged programs is put in its place, and the last lines are said; the exit code."""
    plan, verdict = run.plan, run.machine.verdict
    problem = ""
    if plan.model is not None and verdict is not None:
        problem = settle(plan.model, plan.directory, [plan.out(worker) for worker in plan.numbers], verdict.state in (FINISHED, STOPPED))
        if problem:
            run.say("error", problem)
    return run.closing() or int(bool(problem))


def with_checkpoints(plan: RunPlan) -> tuple[RunPlan, list[str]]:
    """The plan with numbers above all that its directory of checkpoints has, and what must be said of those."""
    known = checkpoints.numbers(Path(plan.checkpoints))
    told = []
    if known and not plan.spec.resume and plan.saves.resume == NEVER:
        told.append(f"{plan.checkpoints} has checkpoints of an earlier run, which give way to those of this one; --resume auto would go on from them")
    return plan.with_checkpoints(max(known, default=0) + 1), told


def _with_input(plan: RunPlan, place: Place, early: Early) -> tuple[RunPlan, list[str]]:
    """Cut and list the input in the run's place; the plan that names it, and what must be said.  Raises `PlugmlError`."""
    try:
        records, listed = datafiles.lay_out(plan.data, plan.workers, plan.spec.seed, plan.directory, place.directory, early.check)
    except OSError as error:
        raise UsageError(f"the input cannot be cut into {place.directory}: {error.strerror}; choose another place with --result DIR") from error
    told = []
    if records and min(records) == 0:
        told.append(f"{plan.data.source} has {words.count(sum(records), 'record')} for {len(records)} slices: some are empty")
    elif records:
        each = f"{min(records):,}" + (f" or {max(records):,}" if max(records) > min(records) else "")
        told.append(f"data: {plan.data.source} has {words.count(sum(records), 'record')}, {each} in each of {len(records)} slices")
    return (plan.with_settings(pieces_file=listed) if listed else plan), told


def cluster_of(plan: RunPlan, environ: Mapping[str, str]) -> tuple[ClusterFile, str]:
    """The standing cluster that is joined, or the places of a private one, and what must be said of them."""
    if plan.cluster:
        return discovery.find(plan.cluster, environ), ""
    name = discovery.new_name()
    # PLUGML_ROOT is where channels may lie, not whose they are: two runs must not meet in it.
    root = Path(environ["PLUGML_ROOT"]) / name if environ.get("PLUGML_ROOT") else None
    return discovery.places(name, root, None, environ)


def _on_ground(run: Run, file: ClusterFile, notes: list[str], early: Early) -> None:
    """The run, on a cluster that stands or on one of its own."""
    run.opening(notes)
    run.loop.call_soon(early.hand_over, run.on_signal)
    if run.plan.cluster:
        run.standing = file if file.keeper == "up" else None
        run.train()
        return
    from .cluster import LocalCluster  # it brings sockets that a joined cluster does not need

    for directory in (file.root, file.state):
        run.guard.remove(str(directory))
    say = functools.partial(run.say, "info")
    options = run.options
    cluster = LocalCluster(
        run.loop, file, run.environ, servers=run.plan.servers, private=True, keep_logs=run.place.logs,
        allow_disk=options.allow_disk, verbose=options.verbose, say=say,
        check=early.check,
    )  # fmt: skip
    cluster.on_news = run.on_cluster_news
    try:
        cluster.start()
    except BaseException:
        run.abandon()
        raise
    waiting = run.loop.create_task(cluster.wait_ready())
    try:
        run.train()
    finally:
        waiting.cancel()
        run.loop.run_until_complete(asyncio.gather(waiting, return_exceptions=True))
        run.loop.run_until_complete(cluster.stop())


def _signed(plan: RunPlan, place: Place) -> RunPlan:
    """The job says who runs it and where its logs are; the random word keeps two equal jobs apart."""
    command, run = words.command_line(plan.commands[0]), secrets.token_hex(8)
    return plan.with_settings(command=command, host=host.host_name(), pid=os.getpid(), run=run, logs=str(place.logs), data=plan.data.kind)


def _threads(plan: RunPlan, environ: Mapping[str, str]) -> str:
    return thread_note({**environ, **dict(plan.variables)}, host.allowed_cpus(), plan.workers)
