"""A simulated launcher: one per host, speaks the ops of agent.sock, keeps channels, starts programs and restarts them.

Its connection ends with the agent or with itself; what was not answered is asked again, as the contract allows.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from plugml.agent import effects as fx
from plugml.core.job import JobSpec

from .exports import judge_export, judge_rescued
from .host import Channel, Host
from .ledger import Ledger
from .process import Process
from .programs import Program
from .weather import Plan
from .workload import end_clock
from .world import Violation, World

LINE_MAX = 64 << 10
RETRY_US = 50_000
GREETING = ("hello", "join", "register")  # said first at every connection


class Launcher:
    """Looks after the workers of one host until all of them have finished."""

    def __init__(
        self, world: World, host: Host, agent: Process, plan: Plan, ledger: Ledger, workers: list[int],
        connection: Callable[[], int],
    ) -> None:  # fmt: skip
        self.world = world
        self.host = host
        self.agent = agent
        self.plan = plan
        self.ledger = ledger
        self.workers = workers
        self.finished: list[int] = []
        self.programs: dict[int, Program] = {}
        self.channels: dict[str, Channel] = {}  # that this launcher keeps
        self.failures: dict[int, str] = {}
        self.restarts = 0
        self.job_number = 0
        self.job_state = ""
        self.reason = ""
        self.alive = False
        self.starting: list[int] = []  # workers between attach and the start of their program
        self.arm: Callable[[Program], None] = lambda program: None  # a scenario may plan a program's death
        self._draw_connection = connection
        self._connection: int | None = None
        self._ready = False  # the agent at the other end knows the job
        self._registered = False  # and the workers of this launcher's life have been attached
        self._agent_name = ""
        self._pending: dict[int, tuple[dict[str, Any], Callable[[dict[str, Any]], None]]] = {}
        self._number = 0
        self.life = 0
        self._exports = 0

    @property
    def spec(self) -> JobSpec:
        return self.ledger.spec

    @property
    def done(self) -> bool:
        return len(self.finished) == len(self.workers)

    # -- life

    def start(self) -> None:
        self.alive = True
        self.life += 1
        self._pending.clear()
        self._registered = False
        self.world.note("launcher", "START", self.host.name)
        self._connect()

    def kill(self) -> None:
        """The launcher dies; its programs die with it, its locks fall, its connection ends."""
        if not self.alive:
            return
        self.alive = False
        self.world.note("launcher", "KILLED", self.host.name)
        self._pending.clear()
        self.starting.clear()
        for program in list(self.programs.values()):
            program.kill()
        self.programs.clear()
        channels, self.channels = self.channels, {}
        for channel in channels.values():
            self.host.unkeep(channel)
        if self._connection is not None and self.agent.alive:
            self.agent.feed("", fx.Hung(self._connection))
        self._connection = None
        self._ready = False

    # -- the socket

    def ask(self, op: str, fields: dict[str, Any], then: Callable[[dict[str, Any]], None]) -> None:
        """Ask until answered ok; a refusal is asked again after a while unless it is the job's end."""
        self._number += 1
        document = {"op": op, "id": self._number, **fields}
        if "job" in fields and op not in ("register", "opened", "join"):
            document["run"] = self.job_number
        self._pending[self._number] = (document, then)
        if self._ready or op in GREETING:
            self._write(document)

    def _connect(self) -> None:
        """Connect when an agent is there, then repeat what is unanswered."""
        if not self.alive:
            return
        if not self.agent.alive:
            self.world.after(RETRY_US, self._retry, self.life)
            return
        if self._connection is not None:
            return
        self._connection = self._draw_connection()
        self._agent_name = self.agent.name
        self._pending = {number: item for number, item in self._pending.items() if item[0]["op"] not in GREETING}
        self.ask("hello", {"version": 1}, lambda answer: None)
        self._greet()

    def _greet(self) -> None:
        again = {"job": self.job_number} if self.job_number else {}
        self.ask("register", {"spec": self.spec.to_document(), **again}, self._greeted)

    def _greeted(self, answer: dict[str, Any]) -> None:
        """This agent knows the job: repeat what is unanswered, or begin."""
        self.job_number = int(answer["job"])
        self.ledger.registered(JobSpec.from_document(answer["spec"]))
        self._repeat()
        if not self._registered:
            self._registered = True
            for worker in self.workers:
                if worker not in self.finished:
                    self.attach(worker)

    def _repeat(self) -> None:
        self._ready = True
        for document, _then in list(self._pending.values()):
            if document["op"] not in GREETING:
                self._write(document)

    def _retry(self, life: int) -> None:
        if self.alive and life == self.life:
            self._connect()

    def agent_died(self) -> None:
        if self._connection is not None:
            self._connection = None
            self._ready = False
            self._connect()

    def _write(self, document: dict[str, Any]) -> None:
        if self._connection is not None:
            if document["op"] == "attach":
                self.ledger.roll.ask(document["worker"])
            line = json.dumps(document)
            if len(line) > LINE_MAX:
                raise Violation(f"a line of {len(line)} bytes to the agent")
            self.world.after(self.world.draw(5, 200), self._deliver, self._agent_name, self._connection, line)

    def _deliver(self, agent_name: str, connection: int, line: str) -> None:
        if self.agent.alive and self.agent.name == agent_name and connection == self._connection:
            self.agent.feed("", fx.Asked(connection, json.loads(line)))

    def told(self, agent_name: str, connection: int, document: dict[str, Any]) -> None:
        """A line from the agent."""
        line = json.dumps(document)
        if len(line) > LINE_MAX:
            raise Violation(f"the agent's line has {len(line)} bytes: {line[:200]}")
        if connection in (self._connection, fx.ALL) and agent_name == self._agent_name:
            self.world.after(self.world.draw(5, 200), self._hear, agent_name, connection, line, self.life)

    def _hear(self, agent_name: str, connection: int, line: str, life: int) -> None:
        if not self.alive or life != self.life or agent_name != self._agent_name:
            return
        if connection not in (self._connection, fx.ALL):
            return
        document = json.loads(line)
        self.world.note("launcher", "<-", line[:200])
        if "event" in document:
            self._event(document)
            return
        pending = self._pending.pop(document["id"], None)
        if pending is None:
            return
        asked, then = pending
        if document["ok"]:
            then(document)
            return
        self._refused(asked, document, then)

    def _event(self, document: dict[str, Any]) -> None:
        if document["event"] == "job" and (document["job"], document["run"]) == (self.spec.name, self.job_number):
            self._job_news(str(document.get("state", "")), str(document.get("reason", "")))
        elif document["event"] == "failing" and (document["job"], document["run"]) == (self.spec.name, self.job_number):
            self._job_news("failed", str(document["text"]))

    def _job_news(self, state: str, reason: str) -> None:
        if state and state != "running":
            self.job_state, self.reason = state, reason

    def _refused(self, asked: dict[str, Any], answer: dict[str, Any], then: Callable[[dict[str, Any]], None]) -> None:
        """A refusal of something that is right: the job is lost, or it is asked again later."""
        if answer.get("code") == "NOSERVER" and asked["op"] == "register" and "min_insync" in str(answer.get("text", "")):
            self.world.reached("too few servers for min_insync")
            self._again(asked, then)
            return
        if answer.get("code") == "NOSERVER":
            self._job_news("lost", str(answer.get("text", "")))
            if asked["op"] == "attach":
                self.failures[asked["worker"]] = str(answer.get("text", ""))
            return
        if asked["op"] in ("exited", "opened"):
            return  # the channel is gone already
        if answer.get("code") == "NONFINITE" and asked["op"] in ("attach", "export") and self.ledger.doomed:
            self._job_news("failed", str(answer.get("text", "")))
            self.starting = [worker for worker in self.starting if worker != asked.get("worker")]
            if str(asked.get("dir", "")).endswith("/failed"):
                self.export(asked["dir"], then)  # the news met the first read: it is read once more, as it is
            return
        if asked["op"] == "export" and asked.get("at") and answer.get("code") in ("RANGE", "AGAIN"):
            self.world.reached("snapshot that is not kept")
            return
        if answer.get("code") in ("STOP", "GONE"):
            self._ended_already(asked, answer)
            return
        if answer.get("code") == "AGAIN":
            self._again(asked, then)
            return
        raise Violation(f"the agent refused {asked}: {answer}")

    def _again(self, asked: dict[str, Any], then: Callable[[dict[str, Any]], None]) -> None:
        self._pending[asked["id"]] = (asked, then)
        self.world.after(RETRY_US, self._write, asked)

    def _ended_already(self, asked: dict[str, Any], answer: dict[str, Any]) -> None:
        """The job is finished or has failed: what is still asked is answered so."""
        if answer["code"] == "GONE":
            self._job_news("failed", str(answer.get("text", "")))
        if asked["op"] == "register":
            self._repeat()  # the agent knows the job by its number now
        elif asked["op"] == "attach":
            self.starting = [worker for worker in self.starting if worker != asked["worker"]]
        elif asked["op"] not in ("export", "stop"):
            raise Violation(f"the agent refused {asked}: {answer}")

    # -- workers

    def attach(self, worker: int) -> None:
        if self.alive and worker not in self.starting:
            self.starting.append(worker)
            self.ask("attach", {"job": self.spec.name, "worker": worker}, lambda answer: self._attached(worker, answer))

    def _attached(self, worker: int, answer: dict[str, Any]) -> None:
        gen, clock = int(answer["gen"]), int(answer["clock"])
        self.ledger.grant(worker, gen + self.ledger.roll.earlier, clock)
        channel = self.host.make(str(answer["info"]), answer["sizes"])
        if (channel.worker, channel.gen) != (worker, gen) or channel.info.number != self.job_number:
            raise Violation(f"attach of worker {worker} gave {channel.info}")
        self.channels[channel.name] = channel
        fields = {"job": self.spec.name, "worker": worker, "gen": gen, "dir": channel.name}
        self.ask("opened", fields, lambda _answer: self._opened(worker, channel, clock))

    def _opened(self, worker: int, channel: Channel, clock: int) -> None:
        if worker in self.starting:
            self.starting.remove(worker)
        roll = self.ledger.roll
        gone = worker in roll.saying_bye or self.ledger.doomed  # of a job that cannot go on whoever was refused has left
        if clock > max(end_clock(self.ledger.seed, self.plan, worker), roll.first[worker]) and not gone:
            raise Violation(f"worker {worker} is to resume at clock {clock}, after its end")
        program = Program(self.world, self.host, self.plan, self.ledger, channel, clock, self._ended)
        self.programs[worker] = program
        self.arm(program)

    def _ended(self, program: Program, how: str) -> None:
        """waitpid has spoken."""
        worker, gen = program.stream[0], program.channel.gen
        self.programs.pop(worker, None)
        if not self.alive:
            return
        fields: dict[str, Any] = {"job": self.spec.name, "worker": worker, "gen": gen}
        channel = program.channel
        if how == "finished":
            fields |= {"how": "finished", "clock": program.clock}
            self.ask("exited", fields, lambda answer: self._finish(program))
        elif how == "killed" and self._gives_up(worker):
            self.world.reached("a worker that is not coming back")
            self.ledger.roll.leaving.setdefault(worker)
            fields |= {"how": "lost"}
            self.ask("exited", fields, lambda answer: self._lose(program, int(answer["clocks"])))
        elif how == "killed":
            self.restarts += 1
            fields |= {"how": "restarting"}
            self.ask("exited", fields, lambda answer: self._restart(program))
        else:
            self.failures[worker] = how
            if how.startswith("NONFINITE") and self.ledger.doomed:
                self._job_news("failed", how)  # its program said so on its way out: nobody has to come with the news
            fields |= {"how": "lost"}
            self.ask("exited", fields, lambda answer: self._release(channel))

    def _release(self, channel: Channel) -> None:
        """The agent serves the channel no more: let go of keeper and bells, and sweep what is left."""
        self.channels.pop(channel.name, None)
        self.host.unkeep(channel)
        if not channel.swept:
            self.world.reached("channel swept by its launcher")
            self.host.sweep(channel)

    def _gives_up(self, worker: int) -> bool:
        """Worker 0 always comes back, and who has said bye has left already."""
        return worker > 0 and worker not in self.ledger.roll.saying_bye and self.world.happens(self.plan.gone)

    def _finish(self, program: Program) -> None:
        self._release(program.channel)
        self._have_finished(program.stream[0])

    def _have_finished(self, worker: int) -> None:
        if worker not in self.finished:
            self.finished.append(worker)

    def _lose(self, program: Program, clocks: int) -> None:
        """The worker has left; what it had been promised was carried out first."""
        program.confirm()
        self._release(program.channel)
        self.ledger.left(program.stream[0], clocks)
        self._have_finished(program.stream[0])
        if self.world.happens(self.plan.rejoins):
            self.world.after(self.world.draw(1_000, 500_000), self._join_again, program.stream[0])

    def _restart(self, program: Program) -> None:
        program.confirm()
        self._release(program.channel)
        self.attach(program.stream[0])

    def _join_again(self, worker: int) -> None:
        """A worker that had left comes back, unless all has ended."""
        if self.alive and self._registered and not self.job_state and not self.done and worker in self.finished:
            self.world.reached("a worker joins again")
            self.finished.remove(worker)
            self.attach(worker)

    def stop(self) -> None:
        """A stop rule has fired."""
        if not self.job_number:
            return
        fields = {"job": self.spec.name, "reason": "the loss does not fall any more"}
        self.ask("stop", fields, self._stopped)

    def _stopped(self, answer: dict[str, Any]) -> None:
        self.world.reached("stop rule")
        self.ledger.stopping.told(int(answer["stop_clock"]), max(self.ledger.roll.ticking.values(), default=0))

    def end_job(self, then: Callable[[dict[str, Any]], None]) -> None:
        reason = self.reason if self.job_state else "every worker has finished"
        self.ask("end", {"job": self.spec.name, "state": self.job_state or "finished", "reason": reason}, then)

    def export(self, place: str, then: Callable[[dict[str, Any]], None], at: int = 0) -> None:
        self.ask("export", {"job": self.spec.name, "dir": place} | ({"at": at} if at else {}), then)

    def small_talk(self) -> None:
        """What tools ask while training goes on; and an export, which must stand at one closed clock."""
        if not self._ready or len(self._pending) > 20:
            return
        kind = self.world.draw(0, 3)
        if kind == 0:
            self.ask("standing", {"job": self.spec.name}, lambda answer: None)
        elif kind == 1:
            self.ask("stat", {}, lambda answer: None)
        elif kind == 2:
            self._exports += 1
            place = f"/{self.spec.name}/snapshot-{self._exports}"
            every = self.spec.snapshot_every if self.ledger.closes else 0
            at = every * (min(self.ledger.roll.ticking.values(), default=0) // every) if every and self.world.happens(0.8) else 0
            if at:
                self.world.reached("export of a snapshot")
            self.export(place, lambda answer: self._judge(place, answer), at)
        else:
            self._write({"op": "frobnicate", "id": -1})

    def _judge(self, place: str, answer: dict[str, Any]) -> None:
        if self.ledger.doomed and self.job_state == "failed":
            return judge_rescued(self.ledger, self.host.exported[place])  # each range was read as it is
        self.world.reached("export while training")
        judge_export(self.ledger, self.host.exported[place], int(answer["clock"]), final=False)

    def waits(self) -> list[str]:
        """What this launcher still waits for, for the report of a stuck run."""
        state = "alive" if self.alive else "dead"
        lines = [f"launcher of {self.host.name} is {state}: finished {self.finished} of {self.workers}, starting {self.starting}, job {self.job_state}"]
        lines += [f"op {document}" for document, _then in self._pending.values()]
        for program in self.programs.values():
            since = program.waiting_since_us
            if since is not None:
                lines.append(f"{program.channel.name}: seq {program.seq} clock {program.clock} since {since / 1e6:.3f} s")
        return lines
