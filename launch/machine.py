"""The life of a run: from the agent's hello to the saved result, and with which exit code it ends.

    CONNECTING -> REGISTERING -> TRAINING -> (ENDING) -> (JUDGING) -> SAVING -> CLOSING -> DONE

Decides only; `main.py` starts, signals, writes and prints.  Knows no file, process, socket or clock.  The order of an
end: programs, then their channels, then the last evaluation and the result (the job's memory must still be there), then the job.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from zlib import crc32

from ..core.errors import Code
from ..core.jobmap import FAILED, FINISHED, LOST, STOPPED
from ..core.limits import Limits
from . import effects as e
from . import words
from .crew import Crew, Verdict
from .plan import NAMES_MAX, RunPlan
from .questions import Questions
from .referee import Referee
from .saving import Saver
from .signalled import CLOSING, CONNECTING, DONE, ENDING, JUDGING, REGISTERING, SAVING, SIGKILL, TRAINING, Interrupted
from .summary import summary
from .watch import Watch
from .worker import ENDED, HELD, IDLE, MAKING, RUNNING, STARTING

EX_WORLD, EX_USAGE, EX_NO_CLUSTER, EX_TEMPFAIL, EX_STOPPED = 1, 2, 69, 75, 143
STARTING_FACTOR = 4
UNHEARD = 3  # polls; an agent that leaves more of them unanswered is stopped, or drowns
REASON_MAX = 500  # characters of a reason that go to the master


class RunMachine(Interrupted):
    """One run of one job on one host.

    `logs` is where the workers' output is kept, for the sentences; `rescue` the directory that takes the result when
    its own place does not.
    """

    def __init__(self, plan: RunPlan, host: str, logs: str, rescue: str, limits: Limits, now_us: int) -> None:
        self.limits = limits
        self.phase = CONNECTING
        self.verdict: Verdict | None = None
        self.cluster = ""
        self.questions = Questions(lambda: self.plan.spec.name)
        self._ask = self.questions.ask
        self.crew = crew = Crew(plan, host, logs, self._ask, now_us)
        self.watch = Watch(crew, limits, now_us)
        self.referee = referee = Referee(crew, self.watch, self._ask)
        self.saver = Saver(crew, self._ask, rescue)
        self._start_us = now_us
        self._first_name = plan.spec.name
        self._suffix = 1
        self._up = False
        self._registered = False
        # When an agent that is away is given up.  One of our own has to be started first, on a host that may be busy.
        self._gone_us: int | None = now_us + limits.gone_us * (1 if plan.cluster else STARTING_FACTOR)
        self._poll_us: int | None = None
        self._unheard = 0  # polls that found the last one unanswered
        self._kill_us: int | None = None
        self._patience_us: int | None = None  # an end does not wait for ever for somebody's word
        self._waits_for_joined = False
        self.lost = False  # servers were, with all that they held: that is why the run ends
        self.interrupted()
        self._handlers: dict[type[Any], Callable[[Any, int], list[Any]]] = {
            e.AgentUp: self._on_agent_up, e.AgentDown: self._on_agent_down, e.ClusterDown: self._on_cluster_down, e.Answer: self._on_answer,
            e.AgentNews: self._on_news, e.ClusterNews: self._on_cluster_news, e.Signalled: self._on_signalled,
            e.ResultReady: self._on_saving, e.ResultSaved: self._on_saving, e.ResultFailed: self._on_saving,
            e.ModelReady: referee.on_ready, e.ModelFailed: referee.on_failed, e.Evaluated: referee.on_evaluated, e.BestKept: referee.on_kept,
            e.Looked: crew.on_looked, e.ChannelMade: crew.on_channel_made, e.ChannelFailed: crew.on_channel_failed, e.Exited: crew.on_exited,
            e.Spawned: crew.on_spawned, e.SpawnFailed: crew.on_spawn_failed,
        }  # fmt: skip
        self._answers: dict[str, Callable[..., list[Any]]] = {
            "register": self._registered_as, "standing": self._stood, "export": self._on_saving, "end": self._ended, "stop": referee.stopped,
            "model": referee.exported, "checkpoint": self._checkpointed, "attach": crew.attached, "opened": crew.opened, "exited": crew.left,
        }  # fmt: skip

    @property
    def plan(self) -> RunPlan:
        """The plan as it is carried out: a default name may have got a suffix."""
        return self.crew.plan

    # -- the surface of every machine -----------------------------------------------------------------------------------

    def on_message(self, sender: str, message: Any, now_us: int) -> list[Any]:
        assert sender == "", "a launcher hears only its own shell"
        if self.phase == DONE:
            return []
        if isinstance(message, (e.Spawned, e.Exited, e.ChannelMade)):
            self.watch.moved(now_us)
        return self._settle(self._handlers[type(message)](message, now_us), now_us)

    def on_time(self, now_us: int) -> list[Any]:
        if self.phase == DONE:
            return []
        out: list[Any] = []
        if self._gone_us is not None and now_us >= self._gone_us:
            out += self._give_up_agent(now_us)
        if self._kill_us is not None and now_us >= self._kill_us:
            out += self._kill()
        if self._poll_us is not None and now_us >= self._poll_us:
            out += self._poll(now_us)
        if self._patience_us is not None and now_us >= self._patience_us:
            out += self._lose_patience(now_us)
        out += self._wait_no_longer(now_us)
        if self.phase == TRAINING:
            out += self.referee.on_time(now_us)
        if self.phase != DONE and self.watch.due(now_us):
            ops = {op for op in self.questions.keys() if op != "standing" or self._unheard > UNHEARD}
            ops |= {"judging"} if self.phase == JUDGING else set()
            out += self.watch.explain(self._up, ops, self.phase == TRAINING, now_us)
        return self._settle(out, now_us)

    def deadline_us(self) -> int | None:
        if self.phase == DONE:
            return None
        rule_us = self.referee.due_us if self.phase == TRAINING else None
        times = (self._gone_us, self._kill_us, self._poll_us, self._patience_us, rule_us, self.watch.due_us, self._save_us)
        return min(t for t in times if t is not None)

    def check(self) -> None:
        self.crew.check()
        assert (self._gone_us is None) == (self._up or self.crew.deserted), "an absent agent has a time limit, a present one none"
        assert self._registered or self.phase in (CONNECTING, REGISTERING, DONE), self.phase
        assert self.verdict or self.phase not in (ENDING, JUDGING, SAVING, CLOSING, DONE), self.phase
        assert self.phase not in (JUDGING, SAVING, CLOSING) or not self.crew.which(RUNNING), "a result is saved after the last program"

    def digest(self) -> int:
        return crc32(repr((self.phase, self.verdict, self.crew.workers, self._up, self.questions.story())).encode())

    def _settle(self, effects: list[Any], now_us: int) -> list[Any]:
        """Carry out the verdicts among the effects, then go on to the next phase if this one has nothing to wait for."""
        out: list[Any] = []
        for effect in effects:
            out += self._end(effect, now_us) if isinstance(effect, Verdict) else [effect]
        return out + self._advance(now_us)

    # -- the agent ------------------------------------------------------------------------------------------------------

    def _on_agent_up(self, event: e.AgentUp, now_us: int) -> list[Any]:
        self._up, self._gone_us = not self.crew.deserted, None
        self.cluster = event.cluster
        if self.phase != CONNECTING:
            return [e.Tell("info", "the agent is back")] if self._up else []
        if self.verdict:
            return []
        self.phase = REGISTERING
        self.watch.moved(now_us)
        joins = {"job": self.plan.joins.job, "joined": 1} if self.plan.joins is not None else {}
        return [self._ask("register", spec=self.plan.spec.to_document(), **joins)]

    def _on_agent_down(self, event: e.AgentDown, now_us: int) -> list[Any]:
        if not self._up:
            return []
        self._up, self._gone_us = False, now_us + self.limits.gone_us
        return [e.Tell("warn", f"the agent is away ({event.text}); the channels wait for it")]

    def _on_cluster_down(self, event: e.ClusterDown, now_us: int) -> list[Any]:
        """The agent that is away will not come back."""
        return [] if self._gone_us is None else self._give_up_agent(now_us, event.text)

    def _give_up_agent(self, now_us: int, why: str = "") -> list[Any]:
        """Whether the last requests were carried out is unknown, and nobody will answer them any more."""
        self._gone_us = None
        self.questions.forget()
        gone = self.crew.desert()
        away = words.span(self.limits.gone_us)
        if self.phase == CONNECTING:
            return [Verdict(FAILED, "no agent answers; see `plugml status`", EX_NO_CLUSTER)]
        text = f"{why or f'the agent has not come back for {away}'}: code=GONE to the programs; run again"
        out = [*gone, Verdict(FAILED, text, EX_TEMPFAIL)]
        if self.phase == SAVING:
            return out + self.saver.nobody_has_it("the agent is gone") + self._saved(now_us)
        return out + (self._finish(now_us) if self.phase == CLOSING else [])

    def _on_answer(self, event: e.Answer, now_us: int) -> list[Any]:
        asked = self.questions.answered(event.number)
        if asked is None:
            return []
        op, number = asked
        handler = self._answers[op]
        return handler(self.crew.worker(number), event, now_us) if number >= 0 else handler(event, now_us)

    def _registered_as(self, event: e.Answer, now_us: int) -> list[Any]:
        taken = event.code == Code.COLLIDE.name
        if taken and not self.plan.name_given and self._suffix < NAMES_MAX and not self.verdict:
            self._suffix += 1
            self.crew.plan = self.plan.renamed(f"{self._first_name}-{self._suffix}")
            return [self._ask("register", spec=self.plan.spec.to_document())]
        if event.code:
            text = f"job {self.plan.spec.name!r} cannot be registered: {event.text}"
            return [Verdict(FAILED, text, EX_USAGE if taken else EX_WORLD)]

        self._registered, self.questions.run = True, event.fields["job"]
        if self.verdict:
            return self._close(now_us)
        self.phase = TRAINING
        self.watch.moved(now_us)
        self.referee.begin(now_us)
        self._poll_us = now_us + self._pause_us
        told = e.Tell("detail", f"job {self.plan.spec.name} is registered as number {event.fields.get('job')}")
        spec = event.fields.get("spec") or {}  # as the cluster has it: it has chosen what was left open
        copies = int(spec.get("copies") or 1)
        line = e.Tell("info" if copies > 1 else "detail", words.copies_line(copies, int(spec.get("min_insync") or 1)))
        return [told, line, *(self.crew.attach(worker) for worker in self.crew.which(IDLE))]

    def _on_news(self, event: e.AgentNews, now_us: int) -> list[Any]:
        news = event.document
        if news.get("job") != self.plan.spec.name or news.get("run", self.questions.run) != self.questions.run or not self._registered:
            return []
        if news.get("event") != "job":
            return self.watch.heard(news, now_us)
        state, reason = str(news.get("state")), str(news.get("reason") or "")
        if state == LOST:
            text = f"the job is lost: {reason or 'a server that held the only copy of a part is gone'}"
            failed = self.saver.nobody_has_it(reason) + self._saved(now_us) if self.phase == SAVING else []
            self.lost = self.verdict is None
            return [Verdict(LOST, text, EX_WORLD, gone=True), *failed]
        if state == FINISHED and self.plan.joins is not None:
            return [e.Tell("info", f"job {self.plan.spec.name} has come to its end"), Verdict(FINISHED, "the job has come to its end", self._least_code())]
        if state in (STOPPED, FAILED) and self.phase not in (SAVING, CLOSING):
            exit_code = EX_STOPPED if state == STOPPED else EX_WORLD
            what = "was stopped from outside" if state == STOPPED else "has failed"
            return [Verdict(state, f"the job {what}: {reason or 'no reason was given'}", exit_code, gone=True)]
        return []

    def _on_cluster_news(self, event: e.ClusterNews, now_us: int) -> list[Any]:
        self.lost = self.lost or (event.fatal and self.verdict is None)
        return [Verdict(LOST, event.text, EX_WORLD, gone=True)] if event.fatal else [e.Tell("warn", event.text)]

    # -- the end --------------------------------------------------------------------------------------------------------

    def _end(self, verdict: Verdict, now_us: int) -> list[Any]:
        """Begin the end, once: the first reason stands, except that a lost job explains why a program failed."""
        if self.phase == JUDGING:
            self.verdict = verdict
            return [e.Tell("error", verdict.reason), *self._give_up_judging(now_us)]
        if self.verdict is not None:
            explains = verdict.gone and self.phase == ENDING
            if explains:
                self.verdict = verdict._replace(exit_code=self.verdict.exit_code, whose=self.verdict.whose)
            return [e.Tell("error", verdict.reason)] if explains else []
        self.verdict = verdict
        self.watch.moved(now_us)
        if self._registered:
            self.phase = ENDING
        self._kill_us = now_us + self.plan.grace_us
        return [*([] if verdict.state in (STOPPED, FINISHED) and not verdict.gone else [e.Tell("error", verdict.reason)]), *self.crew.end()]

    def _kill(self) -> list[Any]:
        self._kill_us = None
        running = self.crew.which(RUNNING)
        if not running:
            return []
        text = f"{words.names([w.number for w in running])} did not end within {words.span(self.plan.grace_us)}: SIGKILL"
        return [e.Tell("warn", text), *(e.Signal(worker.number, worker.gen, SIGKILL) for worker in running)]

    def _advance(self, now_us: int) -> list[Any]:
        if self.phase in (CONNECTING, REGISTERING) and self.verdict:
            # A job that is being registered is waited for, so that it can be ended too.
            if self._up and "register" in self.questions.keys():
                return self._wait_a_while(now_us)
            return self._finish(now_us)
        if self.phase == JUDGING and self.referee.over:
            return self._save(now_us)
        if self.phase not in (TRAINING, ENDING):
            return []
        held = self.crew.which(HELD)
        rest = [worker for worker in self.crew.workers if worker.phase not in (ENDED, HELD)]
        if rest and not self.verdict and self._kill_us is None and (dismissed := self.crew.dismiss()):
            self._kill_us = now_us + self.plan.grace_us
            return dismissed
        if rest:
            asleep = self.phase == ENDING and not self.crew.which(RUNNING, MAKING, STARTING)
            return self._wait_a_while(now_us) if asleep else []
        if not self.verdict and self.plan.joins is None and self.crew.members > len(held):
            return self._wait_for_joined(self.crew.members - len(held))
        if held:
            text = f"{words.names([worker.number for worker in held])} did not come back, and nobody else is at work"
            status = held[0].status
            assert status is not None
            return self._settle([Verdict(FAILED, text, words.exit_code(status), f"worker {held[0].number}")], now_us)
        if not self.verdict and all(worker.unplugged for worker in self.crew.workers):
            self.verdict = Verdict(FAILED, "every worker was unplugged from outside: its channel is gone", EX_WORLD)
        self.verdict = self.verdict or Verdict(FINISHED, self.referee.ended_by() or "all workers have finished", self._least_code())
        return self._judge_last(now_us)

    def _wait_for_joined(self, count: int) -> list[Any]:
        """Workers of other launchers train on: what they push belongs to the result."""
        if self._waits_for_joined:
            return []
        self._waits_for_joined = True
        have = "has" if count == 1 else "have"
        return [e.Tell("info", f"all workers of this run have ended; {words.count(count, 'worker')} that {have} joined the job still {'trains' if count == 1 else 'train'}: waiting. Ctrl-C saves the result and ends the job")]

    def _judge_last(self, now_us: int) -> list[Any]:
        """A run that came to its end evaluates what came of it."""
        assert self.verdict
        if self.verdict.state != FINISHED or self.crew.deserted or not self.referee.wants_last():
            return [*self.referee.cancel(), *self._save(now_us)]
        self.phase, self._poll_us, self._kill_us, self._patience_us = JUDGING, None, None, None
        self.watch.moved(now_us)
        return self.referee.last()

    def _give_up_judging(self, now_us: int) -> list[Any]:
        return [*self.referee.cancel(), *self._save(now_us)]

    def _wait_a_while(self, now_us: int) -> list[Any]:
        if self._patience_us is None:
            self._patience_us = now_us + self.limits.explain_us
        return []

    def _lose_patience(self, now_us: int) -> list[Any]:
        """Whoever should give the last word does not: end without it."""
        self._patience_us = None
        ops = self.questions.keys()
        text = "; ".join(sorted(words.WAITS[op] for op in ops if op in words.WAITS))
        out: list[Any] = [e.Tell("warn", f"{text or 'waiting'} for {words.span(self.limits.explain_us)} in vain: ending without")]
        self.questions.forget()
        if self.phase != ENDING:
            return out + self._finish(now_us)
        for worker in self.crew.workers:
            if worker.phase not in (ENDED, HELD):
                out += self.crew.drop(worker)
        return out

    # -- the result -----------------------------------------------------------------------------------------------------

    def _save(self, now_us: int) -> list[Any]:
        """Save what was trained, unless there is nothing, or nobody who has it."""
        assert self.verdict
        if self.plan.joins is not None:  # values and job are the affair of the launcher that began it
            return self._finish(now_us)
        self.phase, self._poll_us, self._kill_us, self._patience_us = SAVING, None, None, None
        self.watch.moved(now_us)
        gone = self.verdict.gone or self.crew.deserted
        pushed = any(worker.pushes or worker.clocks or worker.uncounted for worker in self.crew.workers)
        if gone or not pushed:
            why = "nothing is saved: nobody has the values any more" if pushed else "nothing was pushed, so there is no result to save"
            return [e.Tell("info", why), *self._close(now_us)]
        last_look = [] if self.plan.at_clocks or not self._up else [self._ask("standing")]  # how stale the last pushes were
        return [*last_look, *self.saver.begin(self.verdict.state)]

    def _on_saving(self, event: Any, now_us: int) -> list[Any]:
        """What became of a step towards the result."""
        if self.phase != SAVING:
            return []
        if isinstance(event, e.ResultReady):
            return self.saver.on_ready(event)
        if isinstance(event, e.Answer):
            if not event.code:
                self.watch.closed = max(self.watch.closed, int(event.fields.get("clock") or 0))
            self._note_failed_save()
            out = self.saver.exported(event, {**self.summary(now_us), "spec": self.plan.spec.to_document()})
        else:
            out = self.saver.on_saved(event) if isinstance(event, e.ResultSaved) else self.saver.on_failed(event.text)
        return out + self._saved(now_us)

    def _saved(self, now_us: int) -> list[Any]:
        """Go on once nothing more can be done."""
        if not self.saver.done:
            return []
        self._note_failed_save()
        return self._close(now_us)

    def _note_failed_save(self) -> None:
        """It makes the run fail, also where the result was rescued; a run that failed before keeps its own code."""
        assert self.verdict
        if self.saver.failure and self.verdict.exit_code == 0:
            self.verdict = Verdict(FAILED, self.saver.failure, EX_WORLD)

    def _close(self, now_us: int) -> list[Any]:
        assert self.verdict
        self.phase = CLOSING
        if self.crew.deserted or self.plan.joins is not None:
            return self._finish(now_us)
        self._wait_a_while(now_us)
        state = FAILED if self.verdict.state == LOST else self.verdict.state
        return [self._ask("end", state=state, reason=self.verdict.reason[:REASON_MAX])]

    def _ended(self, event: e.Answer, now_us: int) -> list[Any]:
        return [*([e.Tell("detail", f"the job's end was not noted: {event.text}")] if event.code else []), *self._finish(now_us)]

    def _finish(self, now_us: int) -> list[Any]:
        assert self.verdict
        self.phase = DONE
        return [e.Finish(self.verdict.exit_code, self.summary(now_us))]

    def summary(self, now_us: int) -> dict[str, Any]:
        """How the run ended: for `--json`, for result.json and for the last lines."""
        assert self.verdict
        return summary(self.crew, self.watch, self.referee, self.saver, self.verdict, self.cluster, now_us - self._start_us)

    # -- watching -------------------------------------------------------------------------------------------------------

    def _poll(self, now_us: int) -> list[Any]:
        self._poll_us = now_us + self._pause_us
        looks: list[Any] = [e.Look(worker.number, worker.gen) for worker in self.crew.which(RUNNING)]
        asked = "standing" in self.questions.keys()
        self._unheard = self._unheard + 1 if asked else 0
        return looks if asked or not self._up else [*looks, self._ask("standing")]

    def _stood(self, event: e.Answer, now_us: int) -> list[Any]:
        if event.code:
            return []
        told = self.watch.stood(event.fields, now_us)
        return [*told, e.Show(self.referee.picture(self.watch.picture())), *(self.referee.stood() if self.phase == TRAINING else [])]

    @property
    def _pause_us(self) -> int:
        """From one look at the job to the next."""
        return self.limits.poll_us if self.referee.busy else self.limits.watch_us
