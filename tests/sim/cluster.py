"""A cluster in one process: builds it from a plan, lets the weather loose, heals it, and says whether it held.

Phase 1, safety: faults come as planned; every read is checked when it happens, every machine after every event.
Phase 2, liveness: the faults end, the dead are started again, and whatever is pending must finish in bounded time,
or the run fails with the reasons that the machines give.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from plugml.agent import effects as fx
from plugml.core.effects import Log
from plugml.core.errors import PlugmlError
from plugml.core.limits import SECOND
from plugml.master.effects import StoreCas, StoreDone, StoreRead

from . import machines
from .copies import Copies
from .disk import Disk
from .host import Host
from .jobrun import JobRun
from .launcher import Launcher
from .ledger import Ledger
from .medium import Medium
from .network import Network
from .ordered import registered
from .process import Process
from .store import MemoryStore
from .storm import Storm
from .supervisor import Supervisor, Watched
from .truth import Truth
from .weather import Plan
from .world import Violation, World

HEALED_US_MAX = 90 * SECOND  # simulated time that pending work may take once the weather is over
AT_REST_US_MAX = 30 * SECOND
#: Whatever a machine, a checker or the codec raises is a finding; only the end of the harness itself is not.
FINDINGS = (
    ArithmeticError, AssertionError, AttributeError, BufferError, LookupError, NameError, OSError, PlugmlError, RuntimeError,
    TypeError, ValueError, Violation, struct.error,
)  # fmt: skip


class Left(NamedTuple):
    """What a run has left to the one that goes on from its checkpoint."""

    medium: Medium
    ledger: Ledger
    absent: tuple[int, ...]  # workers that had left by then


class Cluster:
    """One run.  What is pushed depends on `seed`, which is the world's unless another run is to push the same."""

    def __init__(self, world: World, plan: Plan, seed: int | None = None, left: Left | None = None) -> None:
        assert plan.spec is not None
        self.world = world
        self.plan = plan
        self.network = Network(world, plan.network)
        self.truth = Truth(world, plan.limits.dead_us)
        self.store = MemoryStore(world, plan.store_unknown)
        self.store.stored = self._stored
        self.copies = Copies(world, self.truth, self.server_named)
        self.saves = Disk(world, plan, self.truth, self.copies, left.medium if left is not None else None)
        self.network.on_send = self._sends
        self.network.on_arrival = self.truth.arrives
        self.storm = Storm(self)
        self.saves.spares, self.saves.breaks = self.storm.spares, self.storm.break_disk
        self._connections = 0
        self._masters = machines.masters(plan.masters)
        self.hosts = [Host(world, f"h{number}") for number in range(plan.agents)]
        for host in self.hosts:
            host.full_rate = plan.param_full
        self.masters = [self._master(node_id) for node_id in self._masters]
        self.servers = [self._server(number) for number in range(plan.servers)]
        self.supervisor = self._process("u0", lambda process: Supervisor(plan.limits, self._masters), lambda process: {}) if plan.supervised else None
        self.agents = [self._agent(number, host) for number, host in enumerate(self.hosts)]
        self._began = False
        self.runs = [self._run_of(plan, world.seed if seed is None else seed, left), *(self._run_of(other, world.seed + 1) for other in plan.others)]
        self._rounds = plan.rounds - 1

    @property
    def launchers(self) -> list[Launcher]:
        return [launcher for run in self.runs for launcher in (*run.launchers, *run.joiners)]

    @property
    def master(self) -> Process:
        """The only one."""
        assert len(self.masters) == 1
        return self.masters[0]

    @property
    def processes(self) -> list[Process]:
        return [*self.masters, *self.servers, *self.agents]

    def server_named(self, name: str) -> Process | None:
        """The living process of that name."""
        return next((server for server in self.servers if server.alive and server.name == name), None)

    def _run_of(self, plan: Plan, seed: int, left: Left | None = None) -> JobRun:
        known = (left.ledger, left.absent) if left is not None else ()
        return JobRun(self.world, plan, seed, list(zip(self.hosts, self.agents)), self._draw_connection, self, *known)

    def may_be_lost(self) -> bool:
        """Something has happened that may have cost all copies of a range; whether it has is looked at in `truth`."""
        return self.storm.server_died or bool(self.plan.server_effect_crash)

    def may_show_the_end(self, number: int, whole: bool) -> bool:
        """No server leads a range that is another's by now: who has heard of no newer map could be shown its values.

        `whole`: every copy that there can be is there again, and all of them have the same bits.
        """
        job = self.truth.job(number)
        if job is None:
            return True
        for server in self.servers:
            hosted = server.machine.jobs.get(number) if server.alive else None
            for at, replica in hosted.replicas.items() if hosted is not None else ():
                if replica.leads and job.seats[at].replicas[0] != server.name:
                    return False
        return not whole or self._is_whole(number)

    def _is_whole(self, number: int) -> bool:
        return not self.storm.blows and not self._missing(number)

    def _missing(self, number: int) -> list[str]:
        drained = self.truth.state.drained if self.truth.state is not None else ()
        there = [server for server in self.servers if server.alive and server.node_id not in drained]
        return self.truth.missing(number, len(there)) or self.copies.apart(number)

    # -- processes

    def _process(
        self, node_id: str, make: Callable[[Process], Any], performers: Callable[[Process], dict[type[Any], Any]],
        fixed_name: bool = False,
    ) -> Process:  # fmt: skip
        process = Process(self.world, self.network, node_id, f"ipc://{node_id}", make, performers, fixed_name)
        process.linger_rate = self.plan.linger
        process.on_death = self._died
        process.on_log = self._logged
        return process

    def _agent(self, number: int, host: Host) -> Process:
        def make(process: Process) -> Any:
            return machines.make_agent(process, self.plan.limits, host, self._masters)

        def performers(process: Process) -> dict[type[Any], Any]:
            name = process.name

            def ear(event: Any) -> None:
                if process.alive and process.name == name:
                    process.feed("", event)

            known = host.performers(ear, lambda array: self.network.is_lent(process, array))
            known[fx.Tell] = lambda effect: self._tell(process, name, effect)
            return known

        agent = self._process(f"a{number}", make, performers)
        agent.crash_rate = self.plan.effect_crash
        return agent

    def _tell(self, agent: Process, name: str, effect: fx.Tell) -> None:
        for launcher in self.launchers:
            if launcher.agent is agent:
                launcher.told(name, effect.connection, effect.document)

    def _server(self, number: int) -> Process:
        host = f"host-{number % self.plan.server_hosts}" if self.plan.server_hosts else f"host-s{number}"

        def make(process: Process) -> Any:
            return machines.make_server(process, self.plan.limits, self._masters, host)

        server = self._process(f"s{number}", make, lambda process: {**machines.server_performers(), **self.saves.performers(process)})
        server.machine_limits = self.plan.limits
        server.crash_rate = self.plan.server_effect_crash
        server.spared = lambda: self.storm.spares(server)
        server.on_event = self.copies.after
        return server

    def _master(self, node_id: str) -> Process:
        alone = self.plan.masters == 1 and not self.plan.rivals

        def make(process: Process) -> Any:
            return machines.make_master(process, self.plan.limits, self.plan.servers - self.plan.late_servers, alone)

        master = self._process(node_id, make, self._master_performers, fixed_name=True)
        master.crash_rate = self.plan.effect_crash
        master.on_event = self.truth.after
        return master

    def _master_performers(self, process: Process) -> dict[type[Any], Any]:
        incarnation = process.incarnation

        def answering(number: int) -> Any:
            def answer(key: str, outcome: str, version: int, value: bytes) -> None:
                if process.alive and process.incarnation == incarnation:
                    text = "simulated" if outcome == "unknown" else ""
                    process.feed("", StoreDone(key, outcome, version, value, text, number))

            return answer

        def swap(effect: StoreCas) -> None:
            self.store.compare_and_swap(effect.key, effect.version, effect.value, answering(effect.number), process.endpoint)

        def read(effect: StoreRead) -> None:
            self.store.read(effect.key, answering(effect.number), process.endpoint)

        return {StoreCas: swap, StoreRead: read}

    def _stored(self, key: str, value: bytes) -> None:
        before = self.truth.state
        self.truth.stored(key, value)
        if self.truth.state is not before:
            self.copies.stored()
            self.saves.stored()

    def _sends(self, process: Process, message: Any) -> None:
        if process in self.servers:
            self.truth.sends(message)
            self.copies.sends(process, message)

    def _draw_connection(self) -> int:
        self._connections += 1
        return self._connections

    def _died(self, process: Process) -> None:
        if process.stopped is not None and process.name in self.storm.retiring and not process.stopped.exit_code:
            self.world.reached("a server that was told to end has handed over what it held")
            self.truth.ends(process.name)
        elif process.stopped is not None:
            raise Violation(f"{process.name} stopped by itself: {process.stopped}")
        for host, agent in zip(self.hosts, self.agents):
            if agent is process:
                host.forget_agent()
        for launcher in self.launchers:
            if launcher.agent is process:
                self.world.after(self.world.draw(10, 500), launcher.agent_died)
        if process in self.servers:
            self.saves.died(process)
        if process not in self.masters:
            self.truth.ended[process.name] = None
            if self.supervisor is not None and self.world.happens(0.7):
                self.supervisor.feed("", Watched(process.name, -9))
        self.world.after(self.world.draw(1_000, 400_000), self._start_again, process)

    def _start_again(self, process: Process) -> None:
        if not process.alive:
            process.start()

    def _logged(self, process: Process, log: Log) -> None:
        self.world.reached(f"log {log.event}")
        if log.event == "copy_broken":
            raise Violation(f"{process.name} says of its own copy: {log.fields}")
        if process in self.masters:
            self.truth.logged(process, log)

    # -- a run

    def start(self) -> None:
        if self.supervisor is not None:
            self.supervisor.start()
        late = self.plan.servers - self.plan.late_servers
        for process in self.processes:
            delay_us = self.world.draw(0, 800_000) if self.plan.shuffled_start else 0
            if process in self.servers[late:]:
                delay_us = self.world.draw(500_000, 3_000_000)
                self.world.fault("a server joins late", process.node_id)
            if delay_us:
                self.world.after(delay_us, self._start_again, process)
            else:
                self._start_again(process)
        for run in self.runs:
            run.start()
        self.storm.begin()

    def run(self) -> str:
        """Both phases; returns how the jobs ended, raises one of FINDINGS."""
        with registered():
            try:
                return self._run()
            finally:
                self.saves.end()

    def run_until(self, done: Callable[[], bool]) -> bool:
        """A run that somebody else ends; tells whether it was so, and jobs are not over."""

        def ends() -> bool:
            return self._over() or done()

        if not self._weather(ends):
            self.heal()
            self.world.run_until(ends, self.world.now_us + HEALED_US_MAX)
        return done() and not self._over()

    def _weather(self, done: Callable[[], bool]) -> bool:
        """Phase 1; whether it was done before the weather is over."""
        self._began = True
        self.start()
        return self.world.run_until(done, self.plan.weather_us)

    def _run(self) -> str:
        if not self._began:
            self._weather(self._over)
        if self.storm.blows:
            self.heal()
        if not self.world.run_until(self._over, self.world.now_us + HEALED_US_MAX):
            raise Violation("the weather is over and still:\n  " + "\n  ".join(self.waits()))
        outcomes = sorted({run.outcome for run in self.runs})
        if outcomes == ["finished"]:
            self._check_nothing_left()
        for process in self.processes:
            if process.alive:
                self.world.fold(process.machine.digest())
        return "+".join(outcomes)

    def _check_nothing_left(self) -> None:
        """The job has ended: its channels are swept, its memory is given back, nothing is owed to anybody; late words too change nothing."""
        self.world.run_until(lambda: False, self.world.now_us + self.plan.network.straggle_us[1] + SECOND)
        if not self.world.run_until(self._at_rest, self.world.now_us + AT_REST_US_MAX):
            raise Violation(f"the job has ended, but this is left: {self._left()}")
        if any(host.channels for host in self.hosts):
            raise Violation(f"channels are left behind: {[sorted(host.channels) for host in self.hosts]}")

    def _at_rest(self) -> bool:
        return not self._left()

    def _left(self) -> list[str]:
        kept = ["channels", "busy", "unanswered_bytes", "jobs", "ranges", "bytes"]
        return [
            f"{process.name}: {name} {counters[name]}"
            for process in (*self.servers, *self.agents) if process.alive
            for counters in (self.network.beats.get(process.name, {}),)
            for name in kept if counters.get(name)
        ]  # fmt: skip

    def heal(self) -> None:
        self.world.note("weather", "HEALED")
        self.storm.end()
        self.saves.blows = False
        self.network.heal()
        for host in self.hosts:
            host.full_rate = 0.0
        self.store.heal()
        for process in self.processes:
            process.crash_rate = process.linger_rate = 0.0
            self._start_again(process)

    def _over(self) -> bool:
        """All jobs have ended; the first one may be run once more under its name."""
        over = [run.over() for run in self.runs]
        if not all(over):
            return False
        if self._rounds and self.runs[0].outcome == "finished":
            self._rounds -= 1
            self.world.reached("a second run of a job's name")
            self.runs[0].close()
            self.runs[0] = self._run_of(self.plan, self.world.seed + 2)
            self.runs[0].start()
            return False
        return True

    def waits(self) -> list[str]:
        """Why the run does not end, in the words of launchers and machines."""
        lines = [line for run in self.runs for line in run.waits()]
        if self.truth.state is not None:
            for number, job in self.truth.state.jobs.items():
                lines += [f"job {number} lacks: {text}" for text in (self._missing(number) if job.running else ())]
        for process in self.processes:
            reasons = getattr(process.machine, "reasons", None)
            if process.alive and reasons is not None:
                lines += [f"{process.name}: {reason}" for reason in reasons(self.world.now_us)]
        return lines
