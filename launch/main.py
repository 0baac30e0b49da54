"""The shell around the run's machine.  Owns the channels, the programs, the signals and the screen of one run.

Decides nothing about the run itself: what it does with each effect is one method.  What comes before and after it
(checks, places, the private cluster) is start.py's.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from .. import __version__
from ..core.errors import PlugmlError, WorldError
from ..core.limits import Limits
from ..runtime.driver import Driver
from ..runtime.process import Child, Exit, spawn
from ..shm_protocol.create import Channel, create_channel
from ..shm_protocol.info import parse_info
from . import data, host, private, words
from . import effects as e
from .agentlink import SOCKET, AgentLink
from .discovery import ClusterFile, keeper_of, state_home
from .environment import thread_note, worker_environment
from .evaluation import LOG, Evaluations
from .fifo import is_fifo, waiting
from .guard import Guard
from .machine import RunMachine
from .output import Screen, WorkerOutput
from .plan import RunPlan
from .progress import Progress
from .result import Place, Saved, publish
from .rounds import between
from .rules import rule_lines

TAIL_LINES = 12  # of a failed program's output
CLOSE_LIMIT_S = 10.0  # for a terminal that takes nothing, at the end
EXIT_CRASH = 70  # a bug of ours
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


Loop = asyncio.AbstractEventLoop


class Options(NamedTuple):
    """How the launcher speaks."""

    quiet: bool = False
    verbose: bool = False
    json: bool = False
    allow_disk: bool = False


def now_us() -> int:
    return time.monotonic_ns() // 1000


class Run:
    """One run in this process: `go` returns the exit code."""

    def __init__(
        self, plan: RunPlan, options: Options, environ: Mapping[str, str], place: Place, root: Path, loop: Loop, guard: Guard
    ) -> None:
        self.options = options
        self.environ = environ
        self.place = place
        self.root = root
        self.loop = loop
        self.guard = guard
        self.cpus = host.allowed_cpus()
        self.screen = Screen()
        self.colour = not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
        merge = options.json  # then stdout is for the summary alone
        self.outputs = {
            worker: WorkerOutput(worker, place.logs / f"w{worker}.log", self.screen, merge, self.colour) for worker in plan.numbers
        }
        self.programs: dict[tuple[int, int], Child] = {}
        judge = WorkerOutput(plan.workers, place.logs / LOG, self.screen, merge, self.colour, "eval")
        self.evaluations = Evaluations(loop, place, environ, self.cpus, guard, judge, self._feed, self._in_thread)
        rescue = f"{state_home(environ)[0]}-rescued/{plan.spec.name}-{secrets.token_hex(3)}"
        self.machine = RunMachine(plan, host.host_name(), str(place.logs), rescue, Limits(), now_us())
        self.driver = Driver(self.loop, self.machine, self._performers(), now_us)
        self.link = AgentLink(self.loop, root / SOCKET, self._on_link)
        live = self.screen.is_terminal(2) and not options.quiet
        self.progress = Progress(self.screen, live, options.quiet, self.colour, now_us())
        self.channels: dict[tuple[int, int], Channel] = {}
        self.standing: ClusterFile | None = None  # the cluster that we have joined, where `plugml up` keeps it
        self.finish: e.Finish | None = None
        self._publishing: tuple[e.PublishResult, Future[Saved]] | None = None  # the one whose outcome the machine has not heard
        self._late = 0  # a signal that came when all was done but the cluster's end
        self._pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="files")
        self._jobs: set[Future[Any]] = set()
        self._all_gone: asyncio.Future[None] | None = None
        self._port = host.free_port() if plan.torch else 0

    @property
    def plan(self) -> RunPlan:
        return self.machine.plan

    @property
    def lost(self) -> bool:
        """Whether it ended since its servers did, with a job that wants to go back to a checkpoint then."""
        return self.finish is not None and self.machine.lost and self.plan.joins is None and self.plan.spec.on_lost == "restore"

    def train(self) -> None:
        """The run, until it is over and nothing of it is left running."""
        self.loop.set_exception_handler(self._crash)
        for signum in SIGNALS:
            if signal.getsignal(signum) != signal.SIG_IGN:  # nohup, or a background job of a script
                self.loop.add_signal_handler(signum, self.on_signal, signum)
        if signal.getsignal(signal.SIGUSR1) != signal.SIG_IGN:
            self.loop.add_signal_handler(signal.SIGUSR1, self._feed, e.Signalled(signal.SIGUSR1))
        self.screen.on_room(lambda: self.loop.call_soon_threadsafe(self._resume))
        try:
            self.link.start()
            self.driver.start()
            self.loop.run_forever()
        finally:
            self._tidy()

    def _on_link(self, event: Any) -> None:
        """What the agent's line says.  With the line the whole cluster may have gone: then nobody is waited for."""
        self._feed(event)
        if isinstance(event, e.AgentDown) and self.standing is not None and not keeper_of(self.standing):
            self._feed(e.ClusterDown(f"cluster {self.standing.name} was taken down"))

    def on_signal(self, signum: int) -> None:
        if self.finish is not None:
            self._late = self._late or signum
        self._feed(e.Signalled(signum))

    def on_cluster_news(self, text: str, fatal: bool) -> None:
        self._feed(e.ClusterNews(text, fatal))

    # -- performing -----------------------------------------------------------------------------------------------------

    def _performers(self) -> dict[type[Any], Callable[[Any], object]]:
        return {
            e.Ask: lambda effect: self.link.ask(effect), e.MakeChannel: self._make_channel, e.DropChannel: self._drop_channel,
            e.DeclareGone: self._declare_gone, e.Spawn: self._spawn, e.Signal: self._signal, e.Look: self._look,
            e.PrepareResult: self._prepare, e.PublishResult: self._publish,
            e.DiscardResult: lambda effect: self.place.discard(effect.scratch), e.Tell: self._tell, e.Show: self._show,
            e.Finish: self._finish, e.PrepareModel: lambda effect: self.evaluations.prepare(),
            e.Evaluate: lambda effect: self.evaluations.evaluate(self.plan, effect),
            e.EndEvaluation: lambda effect: self.evaluations.end(), e.DropModel: self.evaluations.drop,
            e.KeepBest: lambda effect: self.evaluations.keep_best(self.plan, effect),
        }  # fmt: skip

    def _feed(self, event: Any) -> None:
        self.driver.feed("", event)

    def _make_channel(self, effect: e.MakeChannel) -> None:
        """In a thread: filling memory with pages takes a while, and a signal must be heard meanwhile."""

        def make() -> Channel:
            return create_channel(self.root, parse_info(effect.info))

        def made(job: Future[Channel]) -> None:
            error = job.exception()
            if error is None:
                channel = job.result()
                self.channels[effect.worker, effect.gen] = channel
                self._feed(e.ChannelMade(effect.worker, effect.gen, str(channel.directory)))
            elif isinstance(error, (OSError, PlugmlError)):
                self._feed(e.ChannelFailed(effect.worker, effect.gen, str(error), getattr(error, "exit_code", WorldError.exit_code)))
            else:
                raise error

        self._in_thread(make, made)

    def _in_thread(self, work: Callable[[], Any], then: Callable[[Future[Any]], None]) -> Future[Any]:
        job = self._pool.submit(work)
        self._jobs.add(job)

        def done(job: Future[Any]) -> None:
            self._jobs.discard(job)
            then(job)

        job.add_done_callback(lambda job: self.loop.call_soon_threadsafe(done, job))
        return job

    def _drop_channel(self, effect: e.DropChannel) -> None:
        channel = self.channels.pop((effect.worker, effect.gen), None)
        if channel is not None:
            self.loop.remove_reader(channel.req_fd)
            try:
                channel.close()
            except OSError as error:  # somebody still writes into it
                self.say("warn", f"{channel.directory} could not be removed: {error.strerror}")
                channel.close(remove=False)

    def _declare_gone(self, effect: e.DeclareGone) -> None:
        channel = self.channels.get((effect.worker, effect.gen))
        if channel is not None:
            channel.retire()
            self.loop.add_reader(channel.req_fd, channel.answer_gone)

    def _spawn(self, effect: e.Spawn) -> None:
        worker, gen = effect
        channel, output = self.channels[worker, gen], self.outputs[worker]
        environment = worker_environment(
            self.environ, self.plan, channel.info, str(channel.directory), self.cpus, self._port, __version__
        )
        stdin, argv = self.plan.stdin_of(worker), between(self.plan.round_of(worker), self.plan.arguments(worker))
        stdin = os.path.join(self.plan.directory, stdin) if stdin else os.devnull
        fifo = is_fifo(stdin)
        output.begin(gen)
        try:
            if self.plan.private_dir:
                private.link_all(self.plan, worker)
            child = spawn(
                self.loop, waiting(stdin, argv) if fifo else argv, env=environment, cwd=self.plan.start_of(worker),
                stdin=os.devnull if fifo else stdin,
                on_exit=lambda status: self._on_exit(worker, gen, status),
                on_stdout=output.keep, on_stdout_piece=lambda piece: output.show(1, piece),
                on_stderr=output.keep, on_stderr_piece=lambda piece: output.show(2, piece),
            )  # fmt: skip
        except OSError as error:
            self._feed(e.SpawnFailed(worker, gen, *host.start_failure(argv, error)))
            return
        self.programs[worker, gen] = child
        self.guard.watch(child.pid)
        self._feed(e.Spawned(worker, gen, child.pid))

    def _resume(self) -> None:
        """The screen has room again."""
        for child in self.programs.values():
            child.stdout.resume()
            child.stderr.resume()
        self.evaluations.resume()

    def _on_exit(self, worker: int, gen: int, status: Exit) -> None:
        """The program's group is swept and its pipes are read to the end."""
        child = self.programs.pop((worker, gen))
        self.guard.forget(child.pid)
        if self._all_gone is not None and not self.programs and not self._all_gone.done():
            self._all_gone.set_result(None)
        self._look(e.Look(worker, gen))  # a short program has not been looked at yet
        tail = child.stderr.tail.lines(TAIL_LINES) or child.stdout.tail.lines(TAIL_LINES)
        self._feed(e.Exited(worker, gen, status.status, tuple(tail)))

    def _signal(self, effect: e.Signal) -> None:
        child = self.programs.get((effect.worker, effect.gen))
        if child is not None:
            child.signal(effect.signum)
            child.signal(signal.SIGCONT)  # a stopped program hears nothing else

    def _look(self, effect: e.Look) -> None:
        worker, gen = effect
        channel = self.channels.get((worker, gen))
        spoke, there = look_at(channel.directory) if channel is not None else (False, False)
        child = self.programs.get((worker, gen))
        state = host.process_state(child.pid) if child is not None else ""
        self._feed(e.Looked(worker, gen, there, spoke, state))

    def _prepare(self, effect: e.PrepareResult) -> None:
        try:
            scratch = self.place.prepare(effect.directory)
        except OSError as error:
            self._feed(e.ResultFailed(effect.directory, error.strerror or str(error)))
        else:
            self._feed(e.ResultReady(effect.directory, scratch))

    def _publish(self, effect: e.PublishResult) -> None:
        scratch, directory = Path(effect.scratch), Path(effect.directory)
        tables, formats = self.plan.spec.tables, self.plan.formats

        def published(job: Future[Saved]) -> None:
            if self.finish is None:
                self._publishing = None
            error = job.exception()
            if error is None:
                self._feed(e.ResultSaved(effect.directory, *job.result()))
            elif isinstance(error, (OSError, WorldError)):
                self._feed(e.ResultFailed(effect.directory, getattr(error, "strerror", "") or str(error)))
            else:
                raise error

        job = self._in_thread(lambda: publish(tables, scratch, directory, effect.document, formats), published)
        self._publishing = effect, job

    def _finish(self, effect: e.Finish) -> None:
        self.finish = effect
        self.loop.stop()

    # -- speaking -------------------------------------------------------------------------------------------------------

    def _tell(self, effect: e.Tell) -> None:
        self.say(effect.level, effect.text)

    def say(self, level: str, text: str) -> None:
        """A sentence of ours, on stderr: details only with -v, with --quiet only what went wrong."""
        if (level == "detail" and not self.options.verbose) or (level in ("info", "detail") and self.options.quiet):
            return
        head = {"warn": "plugml: warning: ", "error": "plugml: error: "}.get(level, "plugml: ")
        if self.colour and self.screen.is_terminal(2):
            head = {"warn": f"\x1b[33m{head}\x1b[0m", "error": f"\x1b[31m{head}\x1b[0m"}.get(level, head)
        self.screen.write(2, f"{head}{text}\n".encode("utf-8", "replace"))

    def _show(self, effect: e.Show) -> None:
        line = self.progress.take(effect.picture, now_us())
        if line:
            self.say("info", line)

    def opening(self, notes: list[str]) -> None:
        """The first lines."""
        plan = self.plan
        if plan.joins is None:
            self.say("info", f"job {plan.spec.name}: {words.step_line(plan)}")
        thread_words = thread_note({**self.environ, **dict(plan.variables)}, self.cpus, plan.workers)
        shown = data.lines(plan.data, plan.workers, plan.result, plan.first)
        if len(shown) > words.NAMED_MAX and not self.options.verbose:
            shown = [*shown[: words.NAMED_MAX], f"data: ... {len(shown)} workers in all; result.json says who reads what"]
        rules = rule_lines(plan.rules, words.command_line(plan.rules.command))
        for note in (*notes, *plan.notes, *shown, *rules, thread_words):
            if note:
                self.say("info", note)
        self.say("detail", words.reproducible_line(plan))
        self.say("detail", f"output is kept in {self.place.logs}")

    def closing(self) -> int:
        """The last lines, and the summary as JSON if asked; the exit code."""
        finish = self.finish
        if finish is None:
            self.screen.close(CLOSE_LIMIT_S)
            return EXIT_CRASH
        summary, exit_code = self._with_late_result(finish.summary), finish.exit_code
        if self._late == signal.SIGTERM and exit_code == 0:
            exit_code = 128 + signal.SIGTERM
            summary = {**summary, "exit_code": exit_code, "reason": f"{summary['reason']}; SIGTERM came when the result was saved"}
            self.say("info", f"SIGTERM came when the result was saved already: exit code {exit_code}")
        for line in words.closing_lines(summary):
            self.say("info", line)
        for output in self.outputs.values():
            if output.log_error:
                self.say("warn", f"the log of a worker is not whole: {output.log_error}")
        if self.options.json:
            self.screen.write(1, json.dumps(summary).encode() + b"\n")
        if summary["exit_of"] != "plugml":
            self.say("error", f"exit code {exit_code} is that of {summary['exit_of']}")
        self.screen.close(CLOSE_LIMIT_S)
        failure = self.screen.failure(1)
        if failure is not None and self.options.json:
            return exit_code or WorldError.exit_code
        return exit_code

    def _with_late_result(self, summary: dict[str, Any]) -> dict[str, Any]:
        """The run was ended while its result was being written: now it is known what became of that."""
        if summary["result"] or self._publishing is None:
            return summary
        effect, job = self._publishing
        error = job.exception()
        if error is None:
            return {**summary, "result": effect.directory, "files": list(job.result().files)}
        self.place.discard(effect.scratch)
        self.say("error", f"the result could not be saved in {effect.directory}: {getattr(error, 'strerror', '') or error}")
        return summary

    def leave(self) -> None:
        """Another run goes on in its place, which has the last word."""
        self.screen.close(CLOSE_LIMIT_S)

    # -- the end --------------------------------------------------------------------------------------------------------

    def abandon(self) -> None:
        """There will be no run after all."""
        self._tidy()
        self.screen.close(CLOSE_LIMIT_S)

    def _tidy(self) -> None:
        """Nothing is left running or lying about, whatever brought us here."""
        self.driver.close()
        self.link.close()
        self._kill_all()
        self.evaluations.close()
        self._pool.shutdown(wait=True)
        for job in self._jobs:
            if not job.cancelled() and job.exception() is None and isinstance(job.result(), Channel):
                job.result().close()
        for key in list(self.channels):
            self._drop_channel(e.DropChannel(*key))
        for worker, output in self.outputs.items():
            output.close()
            if self.plan.private_dir:
                private.unlink_all(self.plan, worker)

    def _kill_all(self) -> None:
        """Programs that are still there when the run is over (or broken) end now; their ends are waited for."""
        if self.programs:
            self._all_gone = self.loop.create_future()
            for child in self.programs.values():
                child.signal(signal.SIGKILL)
            self.loop.run_until_complete(asyncio.wait([self._all_gone], timeout=CLOSE_LIMIT_S))

    def _crash(self, loop: Loop, context: dict[str, Any]) -> None:
        """An exception that nobody expected: tell the whole story, and end everything."""
        error = context.get("exception")
        for line in self.driver.story():
            self.say("error", f"before the crash: {line}")
        trace = "".join(traceback.format_exception(error)) if error is not None else ""
        self.say("error", f"plugml itself failed: {context.get('message', '')}\n{trace}please report this with the lines above")
        self.loop.stop()


def look_at(directory: Path) -> tuple[bool, bool]:
    """Has the program ever written a request line, and is its channel still there?"""
    try:
        with (directory / "cmd").open("rb") as file:
            return file.read(1) not in (b"", b"\0"), True
    except OSError as error:
        return False, not isinstance(error, FileNotFoundError)
