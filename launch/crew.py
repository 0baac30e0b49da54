"""The workers of a run: plugged in, started, restarted or given up, each on its own.  Pure.

    IDLE -> ATTACHING -> MAKING -> OPENING -> STARTING -> RUNNING -> LEAVING -> ENDED
                ^                                                       |
                +------------------- a new generation ------------------+---> HELD (dead, still a member)

Decides what the death of a program means.  What it means for the run goes up as a `Verdict` among the effects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..core.errors import Code
from ..core.jobmap import FAILED, FINISHED, STOPPED
from . import data, words
from . import effects as e
from .plan import RunPlan
from .worker import ATTACHING, ENDED, HELD, IDLE, LEAVING, MAKING, OPENING, RUNNING, STARTING, WITH_CHANNEL, Worker

SIGTERM = 15
EX_WORLD, EX_ROOT_FULL = 1, 73
LOST_WORKER = "lost"  # outcome of a worker that the others go on without


class Verdict(NamedTuple):
    """Why the run ends: the job's last state, the reason for people, the exit code and whose code that is.  `gone`: so are the values."""

    state: str
    reason: str
    exit_code: int
    whose: str = "plugml"
    gone: bool = False


Ask = Callable[..., e.Ask]  # ask(op, worker number or -1, fields...)


class Crew:
    """`ending`: no program is to be started any more.  `deserted`: the agent is gone for good, nobody answers."""

    def __init__(self, plan: RunPlan, host: str, logs: str, ask: Ask, now_us: int) -> None:
        self.plan = plan
        self.workers = [Worker(number, moved_us=now_us) for number in plan.numbers]
        for number, clock in plan.saves.absent:
            worker = self.worker(number)
            worker.phase, worker.outcome, worker.clocks = ENDED, FINISHED, clock
        self.warnings: list[str] = []
        self.ending = False
        self.deserted = False
        self.members = 0  # of the job's clock, as far as we were told last: those that have joined too
        self._host = host
        self._logs = logs
        self._ask = ask

    def worker(self, number: int) -> Worker:
        return self.workers[number - self.plan.first]

    def which(self, *phases: str) -> list[Worker]:
        return [worker for worker in self.workers if worker.phase in phases]

    def check(self) -> None:
        for worker in self.workers:
            assert worker.restarts <= self.plan.spec.max_restarts, worker
            assert worker.phase != HELD or (self.plan.spec.on_worker_loss == "wait" and self.plan.joins is None), worker
            assert worker.phase not in WITH_CHANNEL or worker.gen > 0, worker

    # -- in -------------------------------------------------------------------------------------------------------------

    def attach(self, worker: Worker) -> e.Ask:
        worker.phase = ATTACHING
        return self._ask("attach", worker.number)

    def attached(self, worker: Worker, event: e.Answer, now_us: int) -> list[Any]:
        if event.code:
            worker.phase = ENDED
            return [self._refused(worker, "attached", event)]
        worker.gen = int(event.fields["gen"])
        worker.start_clock = int(event.fields.get("clock") or 0)
        worker.clocks = max(worker.clocks, worker.start_clock)
        worker.moved_us = now_us
        if self.ending:
            return self._leave(worker, "restarting")
        worker.phase = MAKING
        return [e.MakeChannel(worker.number, worker.gen, str(event.fields["info"]))]

    def on_channel_made(self, event: e.ChannelMade, now_us: int) -> list[Any]:
        worker = self.worker(event.worker)
        if self.ending:
            return self._leave(worker, "restarting")
        worker.phase = OPENING
        return [self._ask("opened", worker.number, gen=worker.gen, dir=event.directory)]

    def on_channel_failed(self, event: e.ChannelFailed, now_us: int) -> list[Any]:
        verdict = Verdict(FAILED, f"no channel for worker {event.worker}: {event.text}", event.exit_code)
        return [verdict, *self._leave(self.worker(event.worker), "restarting")]

    def opened(self, worker: Worker, event: e.Answer, now_us: int) -> list[Any]:
        if event.code:
            return [self._refused(worker, "plugged in", event), *self._leave(worker, "restarting")]
        if self.ending:
            return self._leave(worker, "restarting")
        worker.phase = STARTING
        return [e.Spawn(worker.number, worker.gen)]

    def on_spawned(self, event: e.Spawned, now_us: int) -> list[Any]:
        worker = self.worker(event.worker)
        worker.phase, worker.pid, worker.moved_us, worker.spoke = RUNNING, event.pid, now_us, False
        worker.uncounted = True
        told = e.Tell("detail", f"worker {worker.number} runs as process {event.pid}, generation {worker.gen}")
        return [told, e.Signal(worker.number, worker.gen, SIGTERM)] if self.ending else [told]

    def on_spawn_failed(self, event: e.SpawnFailed, now_us: int) -> list[Any]:
        worker = self.worker(event.worker)
        worker.outcome, worker.status = FAILED, event.exit_code
        text = f"worker {event.worker} on {self._host} could not be started: {event.text}"
        return [Verdict(FAILED, text, event.exit_code), *self._leave(worker, "restarting")]

    def _refused(self, worker: Worker, what: str, event: e.Answer) -> Verdict:
        exit_code = EX_ROOT_FULL if event.code == Code.NOSPC.name else EX_WORLD
        return Verdict(FAILED, f"worker {worker.number} cannot be {what}: {event.code}: {event.text}", exit_code)

    def on_looked(self, event: e.Looked, now_us: int) -> list[Any]:
        """How a program is.  A channel that is gone was closed by somebody else: its worker takes part no more."""
        worker = self.worker(event.worker)
        if worker.phase != RUNNING or worker.gen != event.gen:
            return []
        worker.spoke, worker.state = event.spoke, event.state
        if event.there or worker.unplugged or self.ending:
            return []
        worker.unplugged = True
        return self.warn(f"worker {worker.number} was unplugged from outside: the others go on without it")

    def dismiss(self) -> list[Any]:
        """Nobody is left but programs that were unplugged: they may end, too."""
        rest = [worker for worker in self.workers if worker.phase not in (ENDED, HELD)]
        if not rest or not all(worker.unplugged and worker.phase == RUNNING for worker in rest):
            return []
        for worker in rest:
            worker.dismissed = True
        return [e.Signal(worker.number, worker.gen, SIGTERM) for worker in rest]

    # -- out ------------------------------------------------------------------------------------------------------------

    def on_exited(self, event: e.Exited, now_us: int) -> list[Any]:
        worker = self.worker(event.worker)
        if event.gen != worker.gen or worker.phase != RUNNING:
            return []
        worker.status, worker.tail, worker.pid = event.status, event.tail, 0
        if worker.unplugged and (event.status < 0 or worker.dismissed):
            return self._leave(worker, "finished")  # it could do nothing without its channel
        # A program that failed stays a member for now: the others must not run on before it is decided.
        return self._leave(worker, "finished" if event.status in self.plan.ok_exit else "restarting")

    def _leave(self, worker: Worker, how: str) -> list[Any]:
        """Tell the agent that this generation has ended; its answer decides what comes next."""
        if self.deserted:
            return self.drop(worker)
        worker.phase, worker.how = LEAVING, how
        return [self._ask("exited", worker.number, gen=worker.gen, how=how)]

    def drop(self, worker: Worker) -> list[Any]:
        """Give the channel up without the agent's word."""
        worker.phase = ENDED
        worker.outcome = worker.outcome or (FINISHED if worker.how == "finished" else STOPPED)
        return [e.DropChannel(worker.number, worker.gen)]

    def left(self, worker: Worker, event: e.Answer, now_us: int) -> list[Any]:
        """The agent has closed the channel and says how far the worker came: now the policy can be applied."""
        worker.clocks = max(worker.clocks, int(event.fields.get("clocks") or 0))
        worker.last_error = str(event.fields.get("last_error") or worker.last_error)
        worker.uncounted = False
        self.members = int(event.fields.get("members") or 0)
        if worker.how != LOST_WORKER:  # the second word on the same generation counts nothing again
            worker.pushes += int(event.fields.get("pushes") or 0)
        dropped = e.DropChannel(worker.number, worker.gen)
        if worker.how == "finished":
            return [dropped, *self._finished(worker)]
        if worker.how == LOST_WORKER:
            worker.phase = ENDED
            return [dropped]
        if self.ending and self.plan.joins is None:
            worker.phase, worker.outcome = ENDED, worker.outcome or STOPPED
            return [dropped]
        if self.ending:  # the job goes on without it, and nobody must wait for it
            worker.outcome = worker.outcome or STOPPED
            return [dropped, *self._leave(worker, LOST_WORKER)]
        return [dropped, *self._died(worker)]

    def _finished(self, worker: Worker) -> list[Any]:
        worker.phase, worker.outcome = ENDED, "unplugged" if worker.unplugged else FINISHED
        if worker.last_error:
            self.warnings.append(f"worker {worker.number} finished, but was refused before: {worker.last_error}")
        if worker.pushes or worker.unplugged or self.ending:
            return []
        status = words.ending(worker.status or 0)
        head = f"worker {worker.number} ended with {status} but never pushed"
        if worker.clocks:
            return self.warn(f"{head}: it finished {words.count(worker.clocks, 'clock')} and gave nothing to them")
        if worker.spoke:
            return self.warn(f"{head}: it used its channel, but only to ask or to pull")
        return self.warn(f"{head}: is its program plugged in?")

    def _died(self, worker: Worker) -> list[Any]:
        """A deterministic crash is not retried; death by signal is, up to max_restarts, and then the policy holds.

        Deterministic is an exit code of the program's own, or a fault of its own before its first push.  A kill (out
        of memory, somebody's hand) may come at any time, and says nothing of the program.
        """
        status, spec = worker.status, self.plan.spec
        policy = spec.on_worker_loss if self.plan.joins is None else "shrink"  # those that were there before do not wait for it
        assert status is not None
        exhausted = worker.restarts >= spec.max_restarts
        deterministic = status > 0 or (worker.pushes == 0 and status in words.CRASHES)
        if deterministic or (exhausted and policy == "stop"):
            failure = self._failure(worker, status)
            return [failure, *(self._leave(worker, LOST_WORKER) if self.plan.joins is not None else [])]

        what = f"worker {worker.number} was {words.ending(status)} {words.when(worker.clocks, worker.pushes)}"
        if not exhausted:
            worker.restarts += 1
            text = f"{what}; restarting it ({worker.restarts} of {words.count(spec.max_restarts, 'restart')})"
            return [e.Tell("warn", text), self.attach(worker)]

        what = f"{what}, after {words.count(worker.restarts, 'restart')}"
        worker.outcome = LOST_WORKER
        if policy == "shrink":
            unseen = data.unseen(self.plan.data, worker.number - self.plan.first, self.plan.workers, self.plan.result)
            out = self.warn(f"{what}; going on without it (shrink): {unseen}")
            return out + self._leave(worker, LOST_WORKER)
        worker.phase = HELD
        return self.warn(f"{what}; the others wait for it (on_worker_loss=wait). Ctrl-C saves the result and ends the run")

    def _failure(self, worker: Worker, status: int) -> Verdict:
        worker.phase, worker.outcome = ENDED, FAILED
        text = words.failure_lines(
            worker.number, self._host, self.plan.arguments(worker.number), status, worker.gen,
            words.when(worker.clocks, worker.pushes), worker.tail, worker.last_error, f"{self._logs}/w{worker.number}.log",
        )  # fmt: skip
        return Verdict(FAILED, text, words.exit_code(status), f"worker {worker.number}")

    def end(self) -> list[Any]:
        """From now on nothing is started; what runs is told to end."""
        self.ending = True
        for worker in self.which(IDLE, HELD):
            worker.phase, worker.outcome = ENDED, worker.outcome or STOPPED
        return [e.Signal(worker.number, worker.gen, SIGTERM) for worker in self.which(RUNNING)]

    def desert(self) -> list[Any]:
        """The agent is gone for good: answer GONE to the programs, and wait for nothing that it should say."""
        self.deserted = True
        out: list[Any] = [e.DeclareGone(worker.number, worker.gen) for worker in self.which(STARTING, RUNNING)]
        for worker in self.which(ATTACHING, OPENING, LEAVING):
            out += self.drop(worker)
        return out

    def warn(self, text: str) -> list[Any]:
        self.warnings.append(text)
        return [e.Tell("warn", text)]
