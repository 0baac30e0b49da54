"""One machine and the world: events go in one by one, effects come out and are performed in order.

Owns the queue of events, the one timer of the machine, and the story (the last events) that an exception is told
with.  Refuses to know what any event or effect means: performers are looked up by the effect's type.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from ..core.effects import Machine

Performer = Callable[[Any], object]

STORY_EVENTS = 50
#: Fields that hold data by reference: the story must not keep a frame from being used again.
_HEAVY = frozenset({"payload", "buffer", "buffers", "pieces", "data", "document"})


class _Time:
    """The event that stands for `on_time` in the queue."""


class Driver:
    """Feeds `machine` and performs what it answers.

    A performer may call `feed` at once: the answer is queued, never nested.  An exception of the machine or of a
    performer goes up to the loop, and the machine gets no further event, since its state can no longer be trusted.
    With PLUGML_CHECK=1 in the environment the machine checks itself after every event.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        machine: Machine,
        performers: Mapping[type[Any], Performer],
        now_us: Callable[[], int],
    ) -> None:
        self.machine = machine
        self.performers = performers
        self.closed = False
        self._loop = loop
        self._now_us = now_us
        self._events: deque[tuple[str, Any]] = deque()
        self._story: deque[tuple[int, str, type[Any], tuple[Any, ...]]] = deque(maxlen=STORY_EVENTS)
        self._kept: dict[type[Any], tuple[int, ...]] = {}  # by type: the fields that the story may hold
        self._running = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_us = 0  # when the armed timer fires
        self._checks = os.environ.get("PLUGML_CHECK", "") not in ("", "0")

    def feed(self, sender: str, message: Any) -> None:
        """Give the machine one event.  Its effects are performed when this returns; from inside a performer, it is queued."""
        if self.closed:
            return
        self._events.append((sender, message))
        if not self._running:
            self._run()

    def start(self) -> None:
        """Look at the machine's deadline for the first time: some machines act before anybody speaks to them."""
        if not self._running:
            self._arm()

    def close(self) -> None:
        """No more events and no more timer.  The effects of the event under way are still performed."""
        self.closed = True
        self._events.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def story(self) -> list[str]:
        """The last events, oldest first, as lines for a log."""
        lines = []
        for at_us, sender, cls, fields in self._story:
            names = [name for name in getattr(cls, "_fields", ()) if name not in _HEAVY]
            told = " ".join(f"{name}={value!r}" for name, value in zip(names, fields))
            lines.append(f"{at_us} {sender or '-'} {cls.__name__} {told}".rstrip())
        return lines

    # -- inside -------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        events, performers, machine = self._events, self.performers, self.machine
        self._running = True
        sound = False
        try:
            while events:
                sender, message = events.popleft()
                now_us = self._now_us()
                self._note(now_us, sender, message)
                if type(message) is _Time:
                    effects = machine.on_time(now_us)
                else:
                    effects = machine.on_message(sender, message, now_us)
                if self._checks:
                    self._check(message, now_us)
                for effect in effects:
                    performers[type(effect)](effect)
            sound = True
        finally:
            self._running = False
            if not sound:
                self.close()
        self._arm()

    def _check(self, message: Any, now_us: int) -> None:
        self.machine.check()
        if type(message) is _Time:
            deadline_us = self.machine.deadline_us()
            late = deadline_us is not None and deadline_us <= now_us
            assert not late, f"{type(self.machine).__name__}.on_time({now_us}) left the deadline at {deadline_us}"

    def _on_timer(self) -> None:
        self._timer = None
        deadline_us = self.machine.deadline_us()
        if deadline_us is not None and deadline_us <= self._now_us():
            self.feed("", _Time())
        else:
            self._arm()

    def _arm(self) -> None:
        """Have one timer at or before the machine's deadline.  One that fires too early just looks again."""
        if self.closed:
            return
        deadline_us = self.machine.deadline_us()
        if deadline_us is None or (self._timer is not None and self._timer_us <= deadline_us):
            return

        if self._timer is not None:
            self._timer.cancel()
        # Whole milliseconds, rounded up and never none: the loop's timers have no finer grain and would spin.
        wait_ms = max(1, -(-(deadline_us - self._now_us()) // 1000))
        self._timer_us = deadline_us
        self._timer = self._loop.call_later(wait_ms / 1000, self._on_timer)

    def _note(self, now_us: int, sender: str, message: Any) -> None:
        cls = type(message)
        kept = self._kept.get(cls)
        if kept is None:
            names = getattr(cls, "_fields", ())
            kept = self._kept[cls] = tuple(i for i, name in enumerate(names) if name not in _HEAVY)
        self._story.append((now_us, sender, cls, tuple([message[i] for i in kept])))
