"""Moving a job's numbers: `Scatter` brings every part to its range once, `Gather` fetches every part once.

Both know parts, routes and what is still unanswered; neither knows why, nor when to ask again: the request that owns
them does.  All answers may come doubled, late and in any order.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from ..core.effects import Send
from ..wire import messages as m
from .cuts import Cuts
from .plan import Part
from .router import Credits, Job

Buffer = Any


class Stream:
    """The ordered pushes of one channel, as far as this process knows them.

    `prev` lacks a range whose last push we cannot know: one of an earlier agent, or one that was given up unanswered.
    `cuts` are those of its last rows.
    """

    __slots__ = ("worker", "gen", "fresh", "prev", "base", "cuts")

    def __init__(self, worker: int, gen: int, fresh: bool) -> None:
        self.worker = worker
        self.gen = gen
        self.fresh = fresh  # nothing was pushed before this process: an absent range has prev 0
        self.prev: dict[int, int] = {}
        self.base: dict[int, int] = {}  # version of the values that the program got last, per range
        self.cuts = Cuts()

    def prev_of(self, range_number: int) -> int | None:
        """Seq of the last push to a range, None = ask the range."""
        prev = self.prev.get(range_number)
        return 0 if prev is None and self.fresh else prev

    def forget(self, ranges: Any) -> None:
        """Pushes to these ranges were given up: whether they arrived is unknown."""
        self.fresh = False
        for number in ranges:
            self.prev.pop(number, None)


class Scatter:
    """One push (or one offer of first values) on its way to every range that it concerns."""

    __slots__ = (
        "job", "stream", "seq", "clock", "weight", "claim", "buffer", "credits", "token", "parts", "unsent", "unacked", "asking", "again", "behind", "held",
        "stopped",
    )  # fmt: skip

    def __init__(
        self, job: Job, stream: Stream, seq: int, clock: int, weight: float, buffer: Buffer | None, parts: tuple[Part, ...], credits: Credits, claim: int = 0
    ) -> None:
        self.job = job
        self.stream = stream
        self.seq = seq
        self.clock = clock
        self.weight = weight
        self.claim = claim  # above 0: first values under this claim instead of a push
        self.buffer = memoryview(buffer if buffer is not None else b"")  # of the dense parts
        self.credits = credits
        self.token = 0  # newest map version that an answer has shown
        self.parts = parts
        self.unsent: deque[Part] = deque(parts)
        self.unacked: dict[int, tuple[Part, str]] = {}  # by range, with the server that holds the credit
        self.asking: dict[int, Part] = {}  # prev is being asked for
        self.again = False  # something had to be asked for, or sent a second time
        self.behind: dict[int, int] = {}  # table -> pushes of others that it came behind, the most of any range
        self.held: list[Part] = []  # acked
        self.stopped = False  # a range has refused its part: no more are sent

    @property
    def sent(self) -> bool:
        return not self.unsent and not self.asking

    @property
    def at_once(self) -> bool:
        """Every part went out, each once, and none had to be asked about."""
        return self.sent and not self.again

    @property
    def done(self) -> bool:
        return not self.unsent and not self.unacked and not self.asking

    def pump(self, owner: Any) -> list[Send]:
        """Send what may be sent.  An owner that finds a window full is remembered there."""
        effects = []
        blocked: deque[Part] = deque()
        while self.unsent:
            part = self.unsent.popleft()
            route = self.job.routes[part.range]
            if not route.server:  # no copy leads it just now: a new map will tell
                blocked.append(part)
            elif not self.claim and self.stream.prev_of(part.range) is None:
                self.asking[part.range] = part
                self.again = True
                effects.append(self._last_ask(part))
            elif self.credits.take(route.server, part.nbytes):
                self.unacked[part.range] = (part, route.server)
                effects.append(self._message(part))
            else:
                self.credits.blocked[owner] = None
                blocked.append(part)
        self.unsent = blocked
        return effects

    def resend(self, moved: frozenset[int] | None = None) -> list[Send]:
        """What is unanswered once more, by the newest map; of these ranges only when they are named."""
        effects = []
        for number, part in self.asking.items():
            if (moved is None or number in moved) and self.job.routes[number].server:
                effects.append(self._last_ask(part))
        for number, (part, server) in self.unacked.items():
            now_at = self.job.routes[number].server
            if (moved is not None and number not in moved) or not now_at:
                continue
            if now_at != server:
                self.credits.give(server, part.nbytes)
                self.credits.force(now_at, part.nbytes)
                self.unacked[number] = (part, now_at)
            effects.append(self._message(part))
        self.again = self.again or bool(effects)
        return effects

    def on_last(self, told: m.LastTold) -> bool:
        """A range says which push it took last, since we asked or were wrong about it; tells whether that is news."""
        part = self.asking.pop(told.range, None)
        if part is None:
            prev = self.stream.prev_of(told.range)
            if told.range not in self.unacked or prev is None or not prev < told.seq < self.seq:
                return False
            part, server = self.unacked.pop(told.range)
            self.credits.give(server, part.nbytes)
            self.again = True
        # When it is this very push, the range knows it as a repeat whatever we call its predecessor.
        self.stream.prev[told.range] = told.seq if told.seq < self.seq else 0
        self.token = max(self.token, told.token)
        if not self.stopped:
            self.unsent.append(part)
        return True

    def on_ack(self, ack: m.PushAck | m.InitAck) -> bool:
        """A range holds its part; tells whether that is news."""
        if isinstance(ack, m.PushAck):
            if self.claim or ack.seq < self.seq:
                return False
        elif ack.claim != self.claim:
            return False
        entry = self.unacked.pop(ack.range, None)
        if entry is None:
            return False
        self.credits.give(entry[1], entry[0].nbytes)
        self.held.append(entry[0])
        self.token = max(self.token, ack.token)
        if isinstance(ack, m.PushAck):
            self.stream.prev[ack.range] = self.seq
            if ack.behind:
                for table in entry[0].tables:
                    self.behind[table] = max(ack.behind, self.behind.get(table, 0))
        return True

    def on_refuse(self, range_number: int) -> None:
        """A range has not taken its part and never will.  What has been sent to others is waited for: they may hold theirs."""
        entry = self.unacked.pop(range_number, None)
        if entry is not None:
            self.credits.give(entry[1], entry[0].nbytes)
        self.stopped = True
        self.unsent.clear()
        self.asking.clear()

    def give_up(self) -> None:
        """No further word on this push: what was sent and not acked may or may not have been taken."""
        for part, server in self.unacked.values():
            self.credits.give(server, part.nbytes)
        if not self.claim and self.unacked:
            self.stream.forget(list(self.unacked))
        self.unsent.clear()
        self.unacked.clear()
        self.asking.clear()

    def owing(self) -> list[int]:
        """Ranges that have not answered."""
        return [*self.unacked, *self.asking]

    def _message(self, part: Part) -> Send:
        job, stream, buffer = self.job, self.stream, self.buffer
        server, epoch = job.routes[part.range]
        payload = tuple(buffer[place.start : place.end] for place in part.slices)
        if part.frames:
            payload += part.frames
        if self.claim:
            return Send(server, m.Init(job.number, part.range, epoch, job.token, self.claim, part.segments, payload))
        prev = stream.prev_of(part.range)
        assert prev is not None
        component = m.Component(stream.worker, stream.gen, self.seq, prev, self.clock, self.weight)
        base = stream.base.get(part.range, 0)
        return Send(server, m.Push(job.number, part.range, epoch, job.token, base, (component,), part.segments, payload))

    def _last_ask(self, part: Part) -> Send:
        server, epoch = self.job.routes[part.range]
        return Send(server, m.LastAsk(self.job.number, part.range, epoch, self.job.token, self.stream.worker, self.stream.gen))


class Gather:
    """One read of every part: as it is, or (`at`) of a snapshot.  Its own window bounds what the servers answer at once.

    The window is this reader's alone: were it shared, pulls that are parked behind a barrier could keep out the pull
    of the very worker that the barrier waits for.
    """

    __slots__ = ("job", "request", "worker", "gen", "after", "closed", "at", "window_bytes", "used", "unsent", "open", "version", "pulled_bytes")

    def __init__(
        self, job: Job, request: int, worker: int, gen: int, parts: tuple[Part, ...], closed: int, window_bytes: int, at: int = 0
    ) -> None:
        self.job = job
        self.request = request
        self.worker = worker
        self.gen = gen
        self.closed = closed
        self.at = at
        self.after: dict[int, int] = {}  # range -> own push that must be visible
        self.window_bytes = window_bytes
        self.used: dict[str, int] = {}
        self.unsent: deque[Part] = deque(parts)
        self.open: dict[int, tuple[Part, str]] = {}
        self.version = 0  # sum of the ranges' log positions: it changes when any of them does
        self.pulled_bytes = 0

    @property
    def done(self) -> bool:
        return not self.unsent and not self.open

    def pump(self) -> list[Send]:
        effects = []
        blocked: deque[Part] = deque()
        while self.unsent:
            part = self.unsent.popleft()
            server = self.job.routes[part.range].server
            used = self.used.get(server, 0)
            if not server or used and used + part.nbytes > self.window_bytes:
                blocked.append(part)
                continue
            self.used[server] = used + part.nbytes
            self.open[part.range] = (part, server)
            effects.append(self._message(part))
        self.unsent = blocked
        return effects

    def resend(self, moved: frozenset[int] | None = None) -> list[Send]:
        """What is unanswered once more, by the newest map; of these ranges only when they are named."""
        effects = []
        for number, (part, server) in self.open.items():
            now_at = self.job.routes[number].server
            if (moved is not None and number not in moved) or not now_at:
                continue
            if now_at != server:
                self.used[server] -= part.nbytes
                self.used[now_at] = self.used.get(now_at, 0) + part.nbytes
                self.open[number] = (part, now_at)
            effects.append(self._message(part))
        return effects

    def on_values(self, values: m.Values) -> Part | None:
        """The part that this answers; None for an answer that we have already or did not ask for."""
        entry = self.open.get(values.range)
        if entry is None or values.segments != entry[0].segments or len(values.payload) != len(values.segments):
            return None
        if values.closed < self.closed:
            return None
        part, server = entry
        del self.open[values.range]
        self.used[server] -= part.nbytes
        self.version += values.version
        self.pulled_bytes += part.nbytes
        return part

    def owing(self) -> list[int]:
        return list(self.open)

    def _message(self, part: Part) -> Send:
        job = self.job
        server, epoch = job.routes[part.range]
        if self.at:
            return Send(server, m.PullAt(job.number, part.range, epoch, job.token, self.request, self.at, part.asked))
        after = self.after.get(part.range, 0)
        return Send(
            server,
            m.Pull(job.number, part.range, epoch, job.token, self.request, self.worker, self.gen, after, self.closed, part.asked, part.frames),
        )
