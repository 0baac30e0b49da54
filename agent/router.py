"""A job as this agent sees it: its plan (once), its routes (per map), how its clock stands; and the credits of pushes.

Owns what all channels of a job share.  Refuses to know requests and channels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..core.effects import Send
from ..core.errors import Code, PeerError
from ..core.job import JobSpec
from ..core.jobmap import FAILED, FINISHED, LOST, RUNNING, STOPPED, JobMap
from ..wire import messages as m
from .plan import Gate, Plan
from .staleness import Staleness

CODES = frozenset(int(code) for code in Code)
#: What a program is told when its job has come to this state.
STATE_CODES = {FINISHED: Code.STOP, STOPPED: Code.STOP, FAILED: Code.GONE, LOST: Code.NOSERVER}


def code_of(number: int) -> Code:
    """The code of a peer's refusal, whatever number it sends."""
    return Code(number) if number in CODES and number else Code.INTERNAL


class Route(NamedTuple):
    """Who leads a range, and under which fence; "" when every copy is lost."""

    server: str
    epoch: int


NOWHERE = Route("", 0)


class Job:
    """One job as this agent sees it: map, plan, standing of its clock."""

    __slots__ = (
        "number", "name", "map", "plan", "routes", "clock_route", "token", "token_wanted", "checked_token", "closed", "slowest", "members",
        "initialised", "_stop_clock", "waiting", "waiting_since_us", "asked_us", "finished", "gens", "nacked", "one_home", "staleness", "twins",
        "saves", "save_problem", "failure", "left_behind",
    )  # fmt: skip

    def __init__(self, number: int, name: str) -> None:
        self.number = number
        self.name = name
        self.map: JobMap | None = None
        self.plan: Plan | None = None
        self.routes: dict[int, Route] = {}
        self.clock_route = NOWHERE
        self.one_home = False  # every range and the clock have their only copy on one server: it does in a row what is sent in a row
        self.token = 0  # version of the map that we act by
        self.token_wanted = 1  # a map of this version or later exists
        self.checked_token = 0  # the cluster's token when we asked last whether it changed this map
        self.closed = 0
        self.slowest = 0
        self.members = 0
        self.initialised = 0
        self.saves = (0, 0, 0, 0)  # checkpoints, as in a Standing
        self.save_problem = ""  # why the one that was settled last came to nothing
        self._stop_clock = -1  # as the clock has told
        self.waiting: tuple[int, ...] = ()
        self.waiting_since_us: dict[int, int] = {}
        self.asked_us = 0  # when we asked last how the clock stands
        self.nacked: set[int] = set()  # ranges that refused us for our map, since the last one
        self.finished: dict[int, int] = {}  # worker -> clocks, as far as we were told
        self.gens: dict[int, int] = {}  # worker -> newest generation that we were told of
        self.staleness = Staleness()
        self.twins: dict[tuple[int, int], int] = {}  # workers whose pushes are alike -> clocks, as told to launchers last
        self.left_behind: set[tuple[int, int]] = set()  # (worker, gen) of which we have said that they left: their host is gone
        self.failure: tuple[Code, str] | None = None  # why it cannot go on, while its values can still be read

    @property
    def spec(self) -> JobSpec:
        assert self.map is not None
        return self.map.spec

    @property
    def workers(self) -> int:
        """All that have ever had a part in the job, as far as our map knows."""
        return self.map.workers if self.map is not None else 0

    @property
    def running(self) -> bool:
        return self.map is not None and self.map.state == RUNNING

    @property
    def stop_clock(self) -> int:
        """Where all workers end, as far as we know; -1 = nothing is decided."""
        if self._stop_clock >= 0:
            return self._stop_clock
        return self.map.spec.stop_clock or -1 if self.map is not None else -1

    def ends_before(self, clock: int) -> bool:
        """Is `clock` one that no worker takes part in any more?"""
        return 0 <= self.stop_clock <= clock

    @property
    def ready(self) -> bool:
        """Tables that are given their first values have them."""
        return self.plan is not None and (not self.plan.first_tables or self.initialised > 0)

    def takes_pushes_of(self, clock: int, gate: Gate) -> bool:
        """Ranges keep pushes of the clock that is closed next and of the one behind it.  A later one would be answered
        only when others have ticked, and its bytes must not take up the window that their pushes need."""
        return gate.closed(clock) <= self.closed + 1

    def newest_gen(self, worker: int) -> int:
        """Lower ones are fenced."""
        told = self.gens.get(worker, 0)
        return told if self.map is None else max(told, self.map.gens.get(worker, 0))

    def ended(self) -> tuple[Code, str] | None:
        """Why nothing can be done for this job any more."""
        if self.map is None or self.map.state == RUNNING:
            return None
        reason = self.map.reason or "no reason was given"
        return STATE_CODES[self.map.state], f"job {self.name!r} is {self.map.state}: {reason}"

    def on_map(self, new: JobMap) -> tuple[frozenset[int], bool]:
        """Take a map unless it is older than ours; tells which ranges have moved or were refused, and whether the clock has.

        Raises `PeerError` for a map that does not hold every range of the job.
        """
        if self.map is not None and new.token < self.map.token:
            return frozenset(), False
        if self.plan is None:
            self.plan = Plan.of(new.spec, new.ring_ranges)
        routes = {number: Route(item.primary, item.epoch) for number, item in new.ranges.items()}
        if new.clock_range not in routes or not self.plan.ranges <= routes.keys():
            raise PeerError(f"the map of job {new.spec.name!r} lacks ranges that hold its tables or its clock")
        clock_moved = new.clock_range in self.nacked or self.clock_route != routes[new.clock_range]
        moved = self.nacked | {number for number, route in routes.items() if self.routes.get(number) != route}
        self.nacked = set()
        self.map, self.token, self.routes = new, new.token, routes
        self.clock_route = routes[new.clock_range]
        self.one_home = {item.replicas for item in new.ranges.values()} == {(self.clock_route.server,)}
        return frozenset(moved), clock_moved

    def on_standing(self, standing: m.Standing, now_us: int) -> bool:
        """Numbers of a clock never fall, so that a late notice changes nothing.  True: this may concern every stream."""
        news = False
        if standing.worker != m.NOBODY:
            self.finished[standing.worker] = max(self.finished.get(standing.worker, 0), standing.finished)
            if standing.gen > self.gens.get(standing.worker, 0):
                self.gens[standing.worker] = standing.gen
                news = True  # lower ones are fenced
        if standing.initialised > self.initialised:
            self.initialised = standing.initialised
            news = True
        if standing.stop_clock >= 0 and (self._stop_clock < 0 or standing.stop_clock < self._stop_clock):
            self._stop_clock = standing.stop_clock  # of two words the earlier end: a late notice changes nothing
            news = True
        if standing.saves > self.saves:  # what has begun and what is settled never falls
            self.saves, self.save_problem = standing.saves, standing.problem
        if standing.closed < self.closed or standing.slowest < self.slowest:
            return news
        news = news or standing.closed > self.closed or standing.slowest > self.slowest
        self.closed = standing.closed
        self.slowest = standing.slowest
        self.members = standing.members
        if standing.waiting != self.waiting:
            since = self.waiting_since_us
            self.waiting = standing.waiting
            self.waiting_since_us = {worker: since.get(worker, now_us) for worker in standing.waiting}
        return news

    def to_clock(self, kind: Any, worker: int, gen: int, *more: Any, token: int = 0) -> list[Send]:
        """A message of a stream to the keeper of the clock; nothing while nobody keeps it."""
        server, epoch = self.clock_route
        if not server:
            return []
        return [Send(server, kind(self.number, epoch, token if token > self.token else self.token, worker, gen, *more))]

    def lag_of(self, clock: int) -> int | None:
        """Clocks that the slowest member is behind a worker in `clock`; None before the clock has said anything."""
        return max(0, clock - self.slowest) if self.members else None

    def stop_ask(self, reason: str) -> list[Send]:
        """To the keeper of the clock: a stop rule has fired."""
        server, epoch = self.clock_route
        return [Send(server, m.StopAsk(self.number, epoch, self.token, reason))] if server else []

    def save_ask(self, after: int) -> list[Send]:
        """To the keeper of the clock: a checkpoint is wanted, other than those up to `after`."""
        server, epoch = self.clock_route
        return [Send(server, m.SaveAsk(self.number, epoch, self.token, after))] if server else []

    def known_document(self) -> dict[str, Any]:
        """The clock as a tool shows it."""
        return {
            "closed": self.closed, "slowest": self.slowest, "members": self.members, "initialised": self.initialised > 0,
            "stop_clock": self.stop_clock, "clocks": {str(worker): clock for worker, clock in sorted(self.finished.items())},
            "waiting": list(self.waiting), "save_problem": self.save_problem,
            "staleness": self.staleness.to_document([table.name for table in self.spec.tables]) if self.map is not None else [],
        }  # fmt: skip


class Credits:
    """Unanswered bytes of pushes per server, over all channels: what keeps a slow server's queue bounded.

    A push is answered whatever others do, so that waiting for room cannot close a circle.
    """

    __slots__ = ("window_bytes", "used", "blocked")

    def __init__(self, window_bytes: int) -> None:
        self.window_bytes = window_bytes
        self.used: dict[str, int] = {}
        self.blocked: dict[Any, None] = {}  # who waits for room, in order of asking

    def take(self, server: str, nbytes: int) -> bool:
        """Room for so many bytes?  One message always goes into an empty window."""
        used = self.used.get(server, 0)
        if used and used + nbytes > self.window_bytes:
            return False
        self.used[server] = used + nbytes
        return True

    def force(self, server: str, nbytes: int) -> None:
        """Count bytes that must go whatever the window says: a push that moves to another server."""
        self.used[server] = self.used.get(server, 0) + nbytes

    def give(self, server: str, nbytes: int) -> None:
        left = self.used[server] - nbytes
        assert left >= 0, f"{server}: more bytes answered than sent"
        if left:
            self.used[server] = left
        else:
            del self.used[server]
