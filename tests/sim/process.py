"""A simulated process: the driver of one machine, which may die between any two effects.

Feeds the machine one event at a time and performs the returned effects one by one, in order, as the runtime's driver
does; an effect's answer is queued, never nested.  Between two effects simulated time may pass (others act meanwhile)
or the process may die.  Knows no effect but the general ones: performers are handed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from plugml.core.effects import Connect, Disconnect, Log, Send, Stop

from .network import Network
from .world import Violation, World

SPINS_MAX = 200  # on_time called so often without time passing: the deadline never goes away


class Killed(Exception):
    """Raised by a performer in the middle of an effect: the process dies there.  The text is the kind of fault."""


class Process:
    """One node: `node_id` stays over restarts, `name` has a new incarnation after each."""

    def __init__(
        self,
        world: World,
        network: Network,
        node_id: str,
        endpoint: str,
        make_machine: Callable[[Process], Any],
        performers: Callable[[Process], dict[type[Any], Callable[[Any], Any]]],
        fixed_name: bool = False,
    ) -> None:
        self.world = world
        self.network = network
        self.node_id = node_id
        self.endpoint = endpoint
        self.name = ""
        self.alive = False
        self.incarnation = 0
        self.machine: Any = None
        self.effects_performed = 0  # over all incarnations
        self.crash_rate = 0.0  # chance to die before an effect
        self.linger_rate = 0.0  # chance that time passes before an effect
        self.crash_at: list[int] = []  # die right after so many effects (all incarnations counted), ascending
        self.stopped: Stop | None = None
        self.machine_limits: Any = None  # for a machine that is not handed any
        self.on_death: Callable[[Process], None] = lambda process: None
        self.on_log: Callable[[Process, Log], None] = lambda process, log: None
        self.on_event: Callable[[Process, str, Any], None] = lambda process, sender, message: None  # after each one; None = time
        self.spared: Callable[[], bool] = lambda: False  # whoever draws deaths should look elsewhere now
        self._fixed_name = fixed_name
        self._make_machine = make_machine
        self._make_performers = performers
        self._performers: dict[type[Any], Callable[[Any], Any]] = {}
        self._inbox: deque[tuple[str, Any]] = deque()
        self._effects: deque[Any] = deque()
        self._running = False
        self._resting = False  # between two effects, or paused
        self._paused_until_us = 0
        self._timers_first = False  # after a pause: a loop may look at its timers or at its sockets first
        self._wake_us: int | None = None
        self._spins = 0
        self._spun_at_us = -1

    # -- life

    def start(self) -> None:
        assert not self.alive
        self.incarnation += 1
        self.name = self.node_id if self._fixed_name else f"{self.node_id}.{self.world.draw(0, 0xFFFFFFFF):08x}"
        self.alive = True
        self.stopped = None
        self._inbox.clear()
        self._effects.clear()
        self._running = self._resting = self._timers_first = False
        self._paused_until_us = 0
        self._wake_us = None
        self.world.note(self.name, "START")
        self.network.bind(self)
        self._performers = {
            Send: lambda effect: self.network.send(self, effect.to, effect.message),
            Connect: lambda effect: self.network.connect(self, effect.node, effect.endpoint),
            Disconnect: lambda effect: self.network.disconnect(self, effect.node),
            Log: self._log,
            Stop: self._stop,
        }
        self._performers.update(self._make_performers(self))
        self.machine = self._make_machine(self)
        self._run()

    def crash(self) -> None:
        """kill -9: what was not performed is never performed."""
        if not self.alive:
            return
        self.world.note(self.name, "CRASH")
        self.alive = False
        self.machine = None
        self.network.unbind(self)
        self.on_death(self)

    def pause(self, duration_us: int) -> None:
        """SIGSTOP: nothing is read or done until then; the clock jumps on resume."""
        self._paused_until_us = max(self._paused_until_us, self.world.now_us + duration_us)
        self._timers_first = self.world.happens(0.5)
        if not self._resting:
            self._rest(duration_us)

    def _log(self, effect: Log) -> None:
        self.world.note(self.name, "log", f"{effect.event} {effect.fields}")
        self.on_log(self, effect)

    def _stop(self, effect: Stop) -> None:
        self.world.note(self.name, "STOP", effect.text)
        self.stopped = effect
        self.alive = False
        self.network.unbind(self)
        self.on_death(self)

    # -- events

    def feed(self, sender: str, message: Any) -> None:
        """Queue an event; it is handled at once unless the process is busy, paused or dead."""
        if not self.alive:
            return
        self._inbox.append((sender, message))
        if not self._running and not self._resting:
            self._run()

    def feed_later(self, sender: str, message: Any) -> None:
        """An event for a machine that is just being made: it comes first once the process runs."""
        self._inbox.append((sender, message))

    def _run(self) -> None:
        self._running = True
        while self.alive and not self._resting:
            if self._effects:
                self._perform_next()
            elif self._timers_first:
                self._timers_first = False
                self._due()
            elif self._inbox:
                sender, message = self._inbox.popleft()
                if self.world.print_trace:
                    self.world.note(self.name, f"<- {sender or 'self'}", message)
                self._take(self.machine.on_message(sender, message, self.world.now_us), sender, message)
            elif not self._due():
                break
        self._running = False
        if self.alive and not self._resting:
            self._plan_wake()

    def _take(self, effects: list[Any], sender: str, message: Any) -> None:
        self._effects.extend(effects)
        self.machine.check()
        self.on_event(self, sender, message)

    def _due(self) -> bool:
        """Call on_time if its moment has come."""
        deadline = self.machine.deadline_us()
        now = self.world.now_us
        if deadline is None or deadline > now:
            return False
        self._spins = self._spins + 1 if self._spun_at_us == now else 1
        self._spun_at_us = now
        if self._spins > SPINS_MAX:
            raise Violation(f"{self.name}: on_time was called {SPINS_MAX} times and deadline_us still says {deadline} <= {now}")
        self._take(self.machine.on_time(now), "", None)
        return True

    def _perform_next(self) -> None:
        effect = self._effects[0]
        if self.crash_at and self.effects_performed >= self.crash_at[0]:
            del self.crash_at[0]
            self.world.fault("crash between effects", f"{self.name} before {type(effect).__name__}")
            self.crash()
            return
        if self.world.happens(self.crash_rate) and not self.spared():
            self.world.fault("crash between effects", f"{self.name} before {type(effect).__name__}")
            self.crash()
            return
        self._effects.popleft()
        self.effects_performed += 1
        performer = self._performers.get(type(effect))
        if performer is None:
            raise TypeError(f"{self.name} asked for an effect that nobody performs: {effect!r}")
        if type(effect) is not Send and self.world.print_trace:
            self.world.note(self.name, "does", effect)
        try:
            answer = performer(effect)
        except Killed as kind:
            self.world.fault(str(kind), f"{self.name} within {type(effect).__name__}")
            self.crash()
            return
        if answer is not None:
            self._inbox.append(("", answer))
        if self.world.happens(self.linger_rate):
            self._rest(self.world.draw(1, 400))

    # -- rest: nothing happens in this process for a while

    def _rest(self, duration_us: int) -> None:
        self._resting = True
        self.world.after(duration_us, self._resume, self.incarnation)

    def _resume(self, incarnation: int) -> None:
        if not self.alive or incarnation != self.incarnation:
            return
        left = self._paused_until_us - self.world.now_us
        if left > 0:
            self._rest(left)
            return
        self._resting = False
        self._run()

    def _plan_wake(self) -> None:
        deadline = self.machine.deadline_us()
        if deadline is None or (self._wake_us is not None and self._wake_us <= deadline):
            return
        self._wake_us = deadline
        late = self.world.draw(0, 200)
        self.world.after(max(0, deadline - self.world.now_us) + late, self._wake, self.incarnation, deadline)

    def _wake(self, incarnation: int, deadline: int) -> None:
        if not self.alive or incarnation != self.incarnation:
            return
        if self._wake_us == deadline:
            self._wake_us = None
        if not self._running and not self._resting:
            self._run()
