"""When to ask again: one request's timers.

Whatever is owed is asked for again when nothing at all has come for a while, ever later each time; a word from anybody
starts the wait anew.  (One lost message among many is asked for once the others are in.)
"""

from __future__ import annotations

from ..core.limits import Limits


class Patience:
    """`due_us`: look again then.  `explain_us`: by then, if nothing comes, say what is waited for."""

    __slots__ = ("limits", "due_us", "explain_us", "quiet_since_us", "_heard_us", "_backoff_us", "_nack_wait_us")

    def __init__(self, limits: Limits, now_us: int) -> None:
        self.limits = limits
        self.due_us = now_us + limits.resend_us
        self.explain_us = now_us + limits.explain_us
        self.quiet_since_us = now_us
        self._heard_us = now_us
        self._backoff_us = limits.resend_us
        self._nack_wait_us = 0

    def heard(self, now_us: int) -> None:
        """Something that was owed has come."""
        limits = self.limits
        self._heard_us = self.quiet_since_us = now_us
        self._backoff_us = limits.resend_us
        self._nack_wait_us = 0
        self.explain_us = now_us + limits.explain_us

    def nacked(self, now_us: int) -> None:
        """A server is not ready for us yet: ask again soon, but ever less often."""
        wait_us = self._nack_wait_us or max(1, self.limits.resend_us // 8)
        if self.due_us > now_us + wait_us:
            self._heard_us = now_us
            self._backoff_us = wait_us
            self.due_us = now_us + wait_us
            self._nack_wait_us = min(2 * wait_us, self.limits.resend_us_max)

    def is_over(self, now_us: int) -> bool:
        """Is it time to ask again?  Sets when to look next."""
        over = now_us >= self._heard_us + self._backoff_us
        if over:
            self._heard_us = now_us
            self._backoff_us = min(2 * self._backoff_us, self.limits.resend_us_max)
        self.due_us = self._heard_us + self._backoff_us
        return over

    def look_again(self, at_us: int) -> None:
        """Nothing is owed to us just now."""
        self.due_us = at_us

    def explained(self, now_us: int) -> None:
        """Say it again after four times as long."""
        self.explain_us = now_us + 3 * max(now_us - self.quiet_since_us, self.limits.explain_us)
