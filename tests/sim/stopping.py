"""Where all workers end: decided once, said by stop=1 exactly there, and nobody goes further."""

from __future__ import annotations

from .checkers import Broken, Stream


class Stopping:
    """`limit` is the end that the job names itself, 0 = none.  Who has left before is bound to nothing."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.decided = -1  # as an answer to `stop`, or a reply with stop=1, has told
        self.unstopped: dict[int, int] = {}  # worker -> clocks of its newest reply without stop=1
        self.stopped: dict[int, int] = {}  # the same, with it

    def told(self, clock: int, ticking: int) -> None:
        """`stop` of agent.sock was answered; nobody has asked for the end of more than `ticking` clocks."""
        if clock > ticking + 1:
            raise Broken(f"the stop clock is {clock}, although nobody is further than in clock {ticking}")
        self._decide(clock, "an answer to stop")

    def replied(self, stream: Stream, clock: int, stop: bool) -> None:
        """An ok that ends or reads a clock."""
        if stop:
            self.stopped[stream[0]] = clock
            self._decide(clock, f"stream {stream}")
        else:
            self.unstopped[stream[0]] = clock
        self._check()

    def refused(self, stream: Stream, clock: int) -> None:
        """STOP: the stream stands at the stop clock."""
        self._decide(clock, f"STOP of stream {stream}")

    def left(self, worker: int) -> None:
        self.unstopped.pop(worker, None)
        self.stopped.pop(worker, None)

    def nearest(self, clock: int) -> int:
        return min(clock, self.decided) if self.decided >= 0 else clock

    def _decide(self, clock: int, who: str) -> None:
        # The end that the job names itself may be brought nearer, while nobody has reached it.
        if self.decided >= 0 and clock != self.decided and not (self.decided == self.limit and clock < self.decided):
            raise Broken(f"{who} says that all end at clock {clock}, {self.decided} was said before")
        self.decided = clock
        self._check()

    def _check(self) -> None:
        ends = [end for end in (self.decided, self.limit or -1) if end >= 0]
        if not ends:
            return
        end = min(ends)
        late = {worker: clock for worker, clock in self.unstopped.items() if clock >= end}
        if late:
            raise Broken(f"the stop clock is {end}; workers were at clocks {late} and not told stop=1")
        if any(clock > end for clock in self.stopped.values()):
            raise Broken(f"the stop clock is {end}, workers were told stop=1 at {self.stopped}")

    def judge(self) -> None:
        self._check()
