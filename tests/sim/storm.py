"""The weather over one cluster: what goes wrong, how often, and whom it spares.

Owns the moments of the planned faults.  Most runs are *careful*: no server is harmed while a range of a running job would
be left without another living copy, so that jobs outlive the deaths of servers; in the others jobs are lost by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from plugml.master.catalog import is_drained
from plugml.server.effects import Retiring

from .process import Process
from .supervisor import Order, Watched
from .weather import GENS_WORN

if TYPE_CHECKING:
    from .cluster import Cluster

UNDRAIN_US = 15_000_000
HARMED_US = 500_000  # whoever was paused or cut off counts as harmed for so much longer


class Storm:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.plan = cluster.plan
        self.blows = True
        self.server_died = False
        self.retiring: dict[str, None] = {}  # processes that were told to end when they may
        self._harmed: dict[str, int] = {}  # server id -> until when nobody relies on it

    def begin(self) -> None:
        plan, cluster = self.plan, self.cluster
        self.every(plan.agent_crash_us, lambda: self._crash(self._one_of(cluster.agents), "agent crash"))
        self.every(plan.master_crash_us, lambda: self._crash(self._one_of(cluster.masters), "master crash"))
        self.every(plan.program_kill_us, self._kill_program)
        self.every(plan.launcher_kill_us, self._kill_launcher)
        self.every(plan.host_loss_us, self._lose_host)
        self.every(plan.pause_us, self._pause)
        self.every(plan.master_pause_us, self._pause_master)
        self.every(plan.store_cut_us, self._cut_store)
        self.every(plan.cut_us, self._cut)
        self.every(plan.slow_us, self._slow)
        self.every(plan.talk_us, lambda: self._one_of(cluster.launchers).small_talk())
        self.every(plan.server_crash_us, self._crash_server)
        self.every(plan.suspicion_us, self._suspect)
        self.every(plan.order_us, self._order)
        self.every(plan.retire_us, self._retire)
        if plan.server_crash_at_us:
            self.world.after(plan.server_crash_at_us, self._crash_server)

    def every(self, mean_us: int, happen: Callable[[], None]) -> None:
        """Let something happen again and again while the weather lasts."""
        if not mean_us:
            return

        def now() -> None:
            if self.blows:
                happen()
                self.world.after(self.world.draw(1, 2 * mean_us), now)

        self.world.after(self.world.draw(1, 2 * mean_us), now)

    def _one_of(self, items: list[Any]) -> Any:
        return items[self.world.draw(0, len(items) - 1)]

    # -- whom it spares

    def worn(self) -> bool:
        """The counting table has no room for many more generations: the weather spares agents and programs."""
        if max(run.ledger.roll.newest_gen for run in self.cluster.runs) < GENS_WORN:
            return False
        for agent in self.cluster.agents:
            agent.crash_rate = 0.0
        return True

    def spares(self, server: Process) -> bool:
        """Whether the server is the last one, in health, that holds some range."""
        if not self.plan.careful:
            return False
        state = self.cluster.truth.state
        for job in state.jobs.values() if state is not None else ():
            for seat in job.seats.values() if job.running else ():
                if server.name in seat.replicas and not any(self._is_well(name) for name in seat.replicas if name != server.name):
                    return True
        return False

    def _is_well(self, name: str) -> bool:
        process = self.cluster.server_named(name)
        return process is not None and self._harmed.get(process.node_id, -1) < self.world.now_us

    def _harm(self, server: Process, duration_us: int) -> None:
        self._harmed[server.node_id] = self.world.now_us + duration_us + HARMED_US

    # -- deaths

    def _crash(self, process: Process, kind: str) -> None:
        if process.alive and not self.worn():
            self.world.fault(kind, process.name)
            process.crash()

    def _crash_server(self) -> None:
        server = self._one_of(self.cluster.servers)
        if server.alive and self.blows and not self.spares(server):
            self.server_died = True
            self.world.fault("server crash", server.name)
            server.crash()

    def break_disk(self, server: Process) -> None:
        """Its disk could not say that it holds what it was given: the server ends."""
        self.server_died = True
        server.crash()

    def _retire(self) -> None:
        """SIGTERM: a server is to end when others have what it holds, of whom there are some."""
        server = self._one_of(self.cluster.servers)
        state = self.cluster.truth.state
        drained = state.drained if state is not None else ()
        others = [
            other for other in self.cluster.servers
            if other is not server and other.alive and other.name not in self.retiring and not is_drained(other.name, drained)
        ]  # fmt: skip
        if server.alive and others and server.name not in self.retiring:
            self.world.fault("retire", server.name)
            self.retiring[server.name] = None
            server.feed("", Retiring())

    def _suspect(self) -> None:
        """A server is said to have ended, and goes on; whoever watches over it ends it a while later."""
        server, supervisor = self._one_of(self.cluster.servers), self.cluster.supervisor
        if not server.alive or supervisor is None or self.spares(server):
            return
        self.world.fault("false suspicion", server.name)
        self.server_died = True
        self.cluster.truth.false_exits[server.name] = None
        supervisor.feed("", Watched(server.name, -9))
        duration_us = self.world.draw(10_000, 3_000_000)
        self._harm(server, duration_us)
        self.world.after(duration_us, self._end, server, server.name)

    def _end(self, server: Process, name: str) -> None:
        if server.alive and server.name == name:
            server.crash()

    def _kill_program(self) -> None:
        alive = [program for launcher in self.cluster.launchers for program in launcher.programs.values()]
        if alive and not self.worn():
            program = self._one_of(alive)
            self.world.fault("program kill", program.channel.name)
            program.kill()

    def _kill_launcher(self) -> None:
        launcher = self._one_of(self.cluster.launchers)
        if not launcher.alive or launcher.done or self.worn():
            return
        self.world.fault("launcher kill", launcher.host.name)
        launcher.kill()
        if self.world.happens(0.5) and launcher.agent.alive:
            self.world.fault("agent crash", "together with its launcher")
            launcher.agent.crash()
        self.world.after(self.world.draw(1_000, 500_000), launcher.start)

    def _lose_host(self) -> None:
        """The host fails: its agent, launchers, programs and channels go at once.  It comes back with an empty memory."""
        cluster = self.cluster
        at = self.world.draw(0, len(cluster.hosts) - 1)
        host, agent = cluster.hosts[at], cluster.agents[at]
        launchers = [launcher for launcher in cluster.launchers if launcher.host is host and launcher.alive]
        if not agent.alive or any(launcher.workers and launcher.done for launcher in launchers) or self.worn():
            return  # whoever has finished asks for the result: only once
        self.world.fault("host loss", host.name)
        for launcher in launchers:
            launcher.kill()
            self.world.after(self.world.draw(1_000, 800_000), launcher.start)
        agent.crash()
        host.lose_everything()

    # -- silence

    def _pause(self) -> None:
        process = self._one_of(self.cluster.processes)
        if not process.alive:
            return
        is_server = process in self.cluster.servers
        long = self.plan.long_pause and is_server and (self.plan.lonely or not self.spares(process))
        duration_us = self.world.draw(1_000, self.plan.limits.dead_us * 2 if long else self.plan.limits.dead_us // 2)
        if long:
            self._harm(process, duration_us)
        self.world.fault("pause", f"{process.name} for {duration_us} us")
        process.pause(duration_us)

    def _pause_master(self) -> None:
        """Perhaps for so long that another one leads when it wakes."""
        master = self._one_of(self.cluster.masters)
        if master.alive:
            duration_us = self.world.draw(1_000, 2 * self.plan.limits.leader_dead_us)
            self.world.fault("master asleep", f"{master.name} for {duration_us} us")
            master.pause(duration_us)

    def _cut_store(self) -> None:
        master = self._one_of(self.cluster.masters)
        self.cluster.store.cut(master.endpoint, self.world.draw(1_000, 2 * self.plan.limits.leader_dead_us))

    def _cut(self) -> None:
        """One way, between any two; a long one mostly where somebody else can take over."""
        source, target = self._one_of(self.cluster.processes), self._one_of(self.cluster.processes)
        if source is target:
            return
        ends = [end for end in (source, target) if end in self.cluster.servers]
        long = self.plan.long_cut and (self.plan.lonely or not any(self.spares(server) for server in ends))
        duration_us = self.world.draw(1_000, self.plan.limits.dead_us * 2 if long else self.plan.limits.dead_us // 2)
        for server in ends if long else ():
            self._harm(server, duration_us)
        self.cluster.network.cut(source.endpoint, target.endpoint, duration_us)

    def _slow(self) -> None:
        source, target = self._one_of(self.cluster.processes), self._one_of(self.cluster.processes)
        if source is not target:
            self.cluster.network.slow(source.endpoint, target.endpoint, self.world.draw(1_000, 1_000_000))

    def end(self) -> None:
        """The weather is over; when the last orders have been carried out, who was drained is taken back if nobody else is left."""
        self.blows = False
        if self.plan.order_us:
            self.world.after(UNDRAIN_US, self._undrain)

    def _undrain(self) -> None:
        cluster, supervisor = self.cluster, self.cluster.supervisor
        drained = cluster.truth.state.drained if cluster.truth.state is not None else ()
        spared = max(0, len(cluster.servers) - 2)
        for server in drained[spared:] if supervisor is not None else ():
            supervisor.feed("", Order("drain", {"server": server, "cancel": True}))

    # -- orders of people

    def _order(self) -> None:
        cluster, supervisor = self.cluster, self.cluster.supervisor
        if supervisor is None:
            return
        server = self._one_of(cluster.servers).node_id
        drained = cluster.truth.state.drained if cluster.truth.state is not None else ()
        kind = self.world.draw(0, 3)
        if kind == 0:
            order = Order("scale", {"cancel": self.world.happens(0.2)})
        elif kind == 1 or len(drained) >= len(cluster.servers) // 2:
            order = Order("drain", {"server": self._one_of(list(drained) or [server]), "cancel": True})
        else:
            order = Order("drain", {"server": server, "cancel": False})
        self.world.fault(f"order {order.verb}", str(order.arguments))
        supervisor.feed("", order)
