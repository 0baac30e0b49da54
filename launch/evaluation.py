"""Evaluations of a run: the tables' place, the command, its output, the best model's files.  Does what referee.py decides.

    <result>/.plugml-model-* tables of the evaluation that runs
    <result>/best/           the best one's, in the result's formats
    <result>/logs/evaluate.log
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from ..core.errors import PlugmlError
from ..runtime.process import Child, Exit, spawn
from . import effects as e
from . import host
from .environment import evaluation_environment
from .export import DEFAULT, raw_files
from .export_files import values_of, write_formats
from .guard import Guard
from .output import WorkerOutput
from .plan import RunPlan
from .result import Place, publish
from .rules import reading_of

TAIL_LINES = 8
BEST = "best"
MODEL = ".plugml-model-"
LOG = "evaluate.log"

Thread = Callable[[Callable[[], Any], Callable[["Future[Any]"], None]], object]


class Evaluations:
    """One at a time.  `feed` takes the answers; `in_thread(work, then)` keeps files out of the loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, place: Place, environ: Mapping[str, str], cpus: float, guard: Guard,
        output: WorkerOutput, feed: Callable[[Any], None], in_thread: Thread,
    ) -> None:  # fmt: skip
        self._loop = loop
        self._place = place
        self._environ = environ
        self._cpus = cpus
        self._guard = guard
        self._output = output
        self._feed = feed
        self._in_thread = in_thread
        self._child: Child | None = None
        self._begun = False
        self._closed = False

    def prepare(self) -> None:
        """A place for the tables, and none of an earlier run that was killed."""
        try:
            if not self._begun:
                self._sweep()
            model = tempfile.mkdtemp(prefix=MODEL, dir=self._place.directory)
        except OSError as error:
            self._feed(e.ModelFailed(error.strerror or str(error)))
        else:
            self._feed(e.ModelReady(model))

    def evaluate(self, plan: RunPlan, effect: e.Evaluate) -> None:
        """Write what people read tables from, then run the command."""
        directory = Path(effect.directory)

        def complete() -> None:
            write_formats([values_of(table, directory) for table in plan.spec.tables], directory, DEFAULT)

        def completed(job: Future[Any]) -> None:
            error = job.exception()
            if error is None:
                self._start(plan, effect)
            elif isinstance(error, (OSError, PlugmlError)):
                self._feed(e.Evaluated(effect.directory, effect.clock, None, str(error), ()))
            else:
                raise error

        self._in_thread(complete, completed)

    def _start(self, plan: RunPlan, effect: e.Evaluate) -> None:
        argv = plan.evaluation(effect.directory, effect.clock)
        environment = evaluation_environment(self._environ, plan, effect.directory, effect.clock, self._cpus)
        if not self._begun:
            self._output.begin(1)
        self._begun = True
        self._output.keep(f"--- clock {effect.clock} ---\n".encode())
        try:
            child = spawn(
                self._loop, argv, env=environment, cwd=plan.directory,
                on_exit=lambda exit: self._ended(plan, effect, exit),
                on_stdout=self._output.keep, on_stdout_piece=lambda piece: self._output.show(1, piece),
                on_stderr=self._output.keep, on_stderr_piece=lambda piece: self._output.show(2, piece),
            )  # fmt: skip
        except OSError as error:
            self._feed(e.Evaluated(effect.directory, effect.clock, None, host.start_failure(argv, error)[0], ()))
            return
        self._child = child
        self._guard.watch(child.pid)

    def _ended(self, plan: RunPlan, effect: e.Evaluate, exit: Exit) -> None:
        child, self._child = self._child, None
        assert child is not None
        self._guard.forget(child.pid)
        value, text = None, str(exit)
        if exit.status == 0:
            texts = (pump.tail.raw().decode("utf-8", "replace").replace("\r", "\n") for pump in (child.stdout, child.stderr))
            value = next((found for text in texts if (found := reading_of(text, plan.rules.metric)) is not None), None)
            text = f"it printed no number behind {plan.rules.metric!r}" if plan.rules.metric else "it printed no number"
        tail = child.stderr.tail.lines(TAIL_LINES) or child.stdout.tail.lines(TAIL_LINES)
        if not self._closed:
            self._feed(e.Evaluated(effect.directory, effect.clock, value, text, tuple(tail)))

    def resume(self) -> None:
        """The screen has room again."""
        if self._child is not None:
            self._child.stdout.resume()
            self._child.stderr.resume()

    def end(self, signum: int = signal.SIGTERM) -> None:
        if self._child is not None:
            self._child.signal(signum)
            self._child.signal(signal.SIGCONT)

    def keep_best(self, plan: RunPlan, effect: e.KeepBest) -> None:
        """Under its name all files are of one model: each is renamed when all are written, the list last."""
        model, best = Path(effect.directory), self._place.directory / BEST

        def keep() -> None:
            scratch = Path(self._place.prepare(str(best)))
            for table in plan.spec.tables:
                for name in raw_files(table):  # whatever else the command has left there is not the model
                    os.rename(model / name, scratch / name)
            publish(plan.spec.tables, scratch, best, effect.document, plan.formats)

        def kept(job: Future[Any]) -> None:
            error = job.exception()
            if error is not None and not isinstance(error, (OSError, PlugmlError)):
                raise error
            text = "" if error is None else getattr(error, "strerror", "") or str(error)
            self._feed(e.BestKept(str(best), text))

        self._in_thread(keep, kept)

    def drop(self, effect: e.DropModel) -> None:
        shutil.rmtree(effect.directory, ignore_errors=True)

    def close(self) -> None:
        """Nothing is left running or lying about."""
        self._closed = True
        if self._child is not None:
            self._child.end_now()
        self._sweep()
        self._output.close()

    def _sweep(self) -> None:
        for model in self._place.directory.glob(f"{MODEL}*"):
            shutil.rmtree(model, ignore_errors=True)
