"""A cluster in one process: builds it from a plan, lets the weather loose, heals it, and says whether it held.

Phase 1, safety: faults come as planned; every read is checked when it happens, every machine after every event.
Phase 2, liveness: the faults end, the dead are started again, and whatever is pending must finish in bounded time,
or the run fails with the reasons that the machines give.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from plugml.agent import effects as fx
from plugml.core.effects import Log
from plugml.core.errors import PlugmlError
from plugml.core.limits import SECOND
from plugml.master.effects import StoreCas, StoreDone

from . import machines
from .host import Host
from .jobrun import JobRun
from .launcher import Launcher
from .network import Network
from .ordered import registered
from .process import Process
from .store import MemoryStore
from .supervisor import Supervisor, Watched
from .weather import GENS_WORN, Plan
from .world import Violation, World

HEALED_US_MAX = 90 * SECOND  # simulated time that pending work may take once the weather is over
AT_REST_US_MAX = 30 * SECOND
#: Whatever a machine, a checker or the codec raises is a finding; only the end of the harness itself is not.
FINDINGS = (
    ArithmeticError, AssertionError, AttributeError, BufferError, LookupError, NameError, OSError, PlugmlError, RuntimeError,
    TypeError, ValueError, Violation, struct.error,
)  # fmt: skip


class Cluster:
    """One run.  What is pushed depends on `seed`, which is the world's unless another run is to push the same."""

    def __init__(self, world: World, plan: Plan, seed: int | None = None) -> None:
        assert plan.spec is not None
        self.world = world
        self.plan = plan
        self.network = Network(world, plan.network)
        self.store = MemoryStore(world, plan.store_unknown)
        self.stormy = True
        self._connections = 0
        self._server_died = False
        self.hosts = [Host(world, f"h{number}") for number in range(plan.agents)]
        for host in self.hosts:
            host.full_rate = plan.param_full
        self.master = self._process("m0", self._make_master, self._master_performers, fixed_name=True)
        self.servers = [self._process(f"s{i}", self._make_server, lambda process: machines.server_performers()) for i in range(plan.servers)]
        self.supervisor = self._process("u0", lambda process: Supervisor(plan.limits), lambda process: {}) if plan.supervised else None
        self.agents = [self._agent(number, host) for number, host in enumerate(self.hosts)]
        self.runs = [self._run_of(plan, world.seed if seed is None else seed), *(self._run_of(other, world.seed + 1) for other in plan.others)]
        self._rounds = plan.rounds - 1

    @property
    def launchers(self) -> list[Launcher]:
        return [launcher for run in self.runs for launcher in run.launchers]

    def _run_of(self, plan: Plan, seed: int) -> JobRun:
        return JobRun(self.world, plan, seed, list(zip(self.hosts, self.agents)), self._draw_connection, self._may_be_lost)

    def _may_be_lost(self) -> bool:
        return self._server_died or bool(self.plan.cut_us or self.plan.pause_us or self.plan.network.drop)

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
            return machines.make_agent(process, self.plan.limits, host)

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
        self.master.crash_rate = self.plan.effect_crash
        return agent

    def _tell(self, agent: Process, name: str, effect: fx.Tell) -> None:
        for launcher in self.launchers:
            if launcher.agent is agent:
                launcher.told(name, effect.connection, effect.document)

    def _make_server(self, process: Process) -> Any:
        return machines.make_server(process, self.plan.limits)

    def _make_master(self, process: Process) -> Any:
        return machines.make_master(process, self.plan.limits, self.plan.servers)

    def _master_performers(self, process: Process) -> dict[type[Any], Any]:
        incarnation = process.incarnation

        def swap(effect: StoreCas) -> None:
            def answer(key: str, outcome: str, version: int, value: bytes) -> None:
                if process.alive and process.incarnation == incarnation:
                    text = "simulated" if outcome == "unknown" else ""
                    process.feed("", StoreDone(key, outcome, version, value, text, effect.number))

            self.store.compare_and_swap(effect.key, effect.version, effect.value, answer)

        return {StoreCas: swap}

    def _draw_connection(self) -> int:
        self._connections += 1
        return self._connections

    def _died(self, process: Process) -> None:
        if process.stopped is not None:
            raise Violation(f"{process.name} stopped by itself: {process.stopped}")
        for host, agent in zip(self.hosts, self.agents):
            if agent is process:
                host.forget_agent()
        for launcher in self.launchers:
            if launcher.agent is process:
                self.world.after(self.world.draw(10, 500), launcher.agent_died)
        if self.supervisor is not None and process is not self.master and self.world.happens(0.7):
            self.supervisor.feed("", Watched(process.name, -9))
        self.world.after(self.world.draw(1_000, 400_000), self._start_again, process)

    def _start_again(self, process: Process) -> None:
        if not process.alive:
            process.start()

    def _logged(self, process: Process, log: Log) -> None:
        self.world.reached(f"log {log.event}")

    # -- weather

    def start(self) -> None:
        if self.supervisor is not None:
            self.supervisor.start()
        processes = [self.master, *self.servers, *self.agents]
        if self.plan.shuffled_start:
            for process in processes:
                self.world.after(self.world.draw(0, 800_000), self._start_again, process)
        else:
            for process in processes:
                self._start_again(process)
        for run in self.runs:
            run.start()
        self._plan_weather()

    def _plan_weather(self) -> None:
        plan = self.plan
        self._every(plan.agent_crash_us, lambda: self._crash(self._one_of(self.agents)))
        self._every(plan.master_crash_us, lambda: self._crash(self.master))
        self._every(plan.program_kill_us, self._kill_program)
        self._every(plan.launcher_kill_us, self._kill_launcher)
        self._every(plan.host_loss_us, self._lose_host)
        self._every(plan.pause_us, self._pause)
        self._every(plan.cut_us, self._cut)
        self._every(plan.slow_us, self._slow)
        self._every(plan.talk_us, lambda: self._one_of(self.launchers).small_talk())
        if plan.server_crash_at_us:
            self.world.after(plan.server_crash_at_us, self._crash_server)

    def _every(self, mean_us: int, happen: Callable[[], None]) -> None:
        """Let something happen again and again while the weather lasts."""
        if not mean_us:
            return

        def now() -> None:
            if self.stormy:
                happen()
                self.world.after(self.world.draw(1, 2 * mean_us), now)

        self.world.after(self.world.draw(1, 2 * mean_us), now)

    def _worn(self) -> bool:
        """The counting table has no room for many more generations: the weather spares agents and programs."""
        if max(run.ledger.roll.newest_gen for run in self.runs) < GENS_WORN:
            return False
        for agent in self.agents:
            agent.crash_rate = 0.0
        return True

    def _one_of(self, items: list[Any]) -> Any:
        return items[self.world.draw(0, len(items) - 1)]

    def _crash(self, process: Process) -> None:
        if process.alive and not self._worn():
            self.world.fault("agent crash" if process in self.agents else "master crash", process.name)
            process.crash()

    def _crash_server(self) -> None:
        server = self._one_of(self.servers)
        if server.alive and self.stormy:
            self._server_died = True
            self.world.fault("server crash", server.name)
            server.crash()

    def _kill_program(self) -> None:
        alive = [program for launcher in self.launchers for program in launcher.programs.values()]
        if alive and not self._worn():
            program = self._one_of(alive)
            self.world.fault("program kill", program.channel.name)
            program.kill()

    def _kill_launcher(self) -> None:
        launcher = self._one_of(self.launchers)
        if not launcher.alive or launcher.done or self._worn():
            return
        self.world.fault("launcher kill", launcher.host.name)
        launcher.kill()
        if self.world.happens(0.5) and launcher.agent.alive:
            self.world.fault("agent crash", "together with its launcher")
            launcher.agent.crash()
        self.world.after(self.world.draw(1_000, 500_000), launcher.start)

    def _lose_host(self) -> None:
        """The host fails: its agent, launchers, programs and channels go at once.  It comes back with an empty memory."""
        at = self.world.draw(0, len(self.hosts) - 1)
        host, agent = self.hosts[at], self.agents[at]
        launchers = [launcher for launcher in self.launchers if launcher.host is host and launcher.alive]
        if not agent.alive or any(launcher.workers and launcher.done for launcher in launchers) or self._worn():
            return  # whoever has finished asks for the result: only once
        self.world.fault("host loss", host.name)
        for launcher in launchers:
            launcher.kill()
            self.world.after(self.world.draw(1_000, 800_000), launcher.start)
        agent.crash()
        host.lose_everything()

    def _pause(self) -> None:
        process = self._one_of([self.master, *self.servers, *self.agents])
        if process.alive:
            long = self.plan.long_pause and process in self.servers
            duration = self.world.draw(1_000, self.plan.limits.dead_us * 2 if long else self.plan.limits.dead_us // 2)
            self.world.fault("pause", f"{process.name} for {duration} us")
            process.pause(duration)

    def _pair(self) -> tuple[str, str]:
        everybody = [self.master, *self.servers, *self.agents]
        source, target = self._one_of(everybody), self._one_of(everybody)
        return source.endpoint, target.endpoint

    def _cut(self) -> None:
        source, target = self._pair()
        if source != target:
            self.network.cut(source, target, self.world.draw(1_000, self.plan.limits.dead_us // 2))

    def _slow(self) -> None:
        source, target = self._pair()
        if source != target:
            self.network.slow(source, target, self.world.draw(1_000, 1_000_000))

    # -- a run

    def run(self) -> str:
        """Both phases; returns how the jobs ended, raises one of FINDINGS."""
        with registered():
            return self._run()

    def _run(self) -> str:
        self.start()
        self.world.run_until(self._over, self.plan.weather_us)
        self.heal()
        if not self.world.run_until(self._over, self.world.now_us + HEALED_US_MAX):
            raise Violation("the weather is over and still:\n  " + "\n  ".join(self.waits()))
        outcomes = sorted({run.outcome for run in self.runs})
        if outcomes == ["finished"]:
            self._check_nothing_left()
        for process in [self.master, *self.servers, *self.agents]:
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
        self.stormy = False
        self.network.heal()
        for host in self.hosts:
            host.full_rate = 0.0
        self.store.unknown_rate = 0.0
        for process in [self.master, *self.servers, *self.agents]:
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
        for process in [self.master, *self.servers, *self.agents]:
            reasons = getattr(process.machine, "reasons", None)
            if process.alive and reasons is not None:
                lines += [f"{process.name}: {reason}" for reason in reasons(self.world.now_us)]
        return lines
