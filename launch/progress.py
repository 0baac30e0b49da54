"""How the training goes: a live line on a terminal, a plain line every few seconds elsewhere, nothing with --quiet.

Owns rates and words; the screen owns the terminal.  Knows no job.
"""

from __future__ import annotations

import shutil
from collections import deque

from . import words
from .effects import Picture
from .output import Screen

WINDOW_US = 10_000_000  # rates are those of the last ten seconds
PLAIN_US, PLAIN_US_MAX = 5_000_000, 60_000_000  # plain lines come more and more seldom


class Progress:
    """`take` a picture whenever there is one."""

    def __init__(self, screen: Screen, live: bool, quiet: bool, colour: bool, start_us: int) -> None:
        self._screen = screen
        self._live = live
        self._quiet = quiet
        self._colour = colour
        self._start_us = start_us
        self._seen: deque[tuple[int, int]] = deque([(start_us, 0)])  # (when, clocks of all workers together)
        self._plain_us = PLAIN_US
        self._next_us = start_us + PLAIN_US
        self._last = ""

    def take(self, picture: Picture, now_us: int) -> str:
        """Draw it; returns the plain line that should be printed now, "" most of the time."""
        self._seen.append((now_us, sum(picture.clocks.values())))
        while now_us - self._seen[0][0] > WINDOW_US:
            self._seen.popleft()
        if self._quiet:
            return ""
        if self._live:
            self._draw(picture, now_us)
            return ""
        if now_us < self._next_us:
            return ""
        self._next_us = now_us + self._plain_us
        self._plain_us = min(2 * self._plain_us, PLAIN_US_MAX)
        line = self.line(picture, now_us)
        return "" if picture.clocks and max(picture.clocks.values()) == 0 else line

    def line(self, picture: Picture, now_us: int) -> str:
        """`clock 120, 35.2 clocks/s, slowest w3 (118), fastest w0 (120), 4 workers, accuracy 0.97 at clock 100, 12 s, about 3 min left`"""
        parts = [f"clock {min(picture.clocks.values(), default=0)}", f"{self.rate(len(picture.clocks)):.1f} clocks/s"]
        low, high = min(picture.clocks.values(), default=0), max(picture.clocks.values(), default=0)
        if high > low:
            slow = next(worker for worker, clock in sorted(picture.clocks.items()) if clock == low)
            fast = next(worker for worker, clock in sorted(picture.clocks.items()) if clock == high)
            parts.append(f"slowest w{slow} ({low}), fastest w{fast} ({high})")
        parts.append(f"{words.count(picture.running, 'worker')} running")
        if picture.restarts:
            parts.append(words.count(picture.restarts, "restart"))
        if picture.metric:
            parts.append(picture.metric)
        left = self.left_us(picture, now_us)
        return ", ".join([*parts, words.span(now_us - self._start_us), *([f"about {words.span(left)} left"] if left is not None else [])])

    def left_us(self, picture: Picture, now_us: int) -> int | None:
        """Until all workers end, as far as that is known: by the clock of the slowest, or by the time of the rule."""
        ends = [max(0, picture.end_us - now_us)] if picture.end_us else []
        rate = self.rate(len(picture.clocks))
        if picture.goal and rate > 0:
            ends.append(int(1e6 * max(0, picture.goal - min(picture.clocks.values(), default=0)) / rate))
        return min(ends, default=None)

    def rate(self, workers: int) -> float:
        """Clocks per second of one worker, on average."""
        (then_us, before), (now_us, after) = self._seen[0], self._seen[-1]
        return (after - before) / max(1, workers) / ((now_us - then_us) / 1e6) if now_us > then_us else 0.0

    def _draw(self, picture: Picture, now_us: int) -> None:
        """One line, not wider than the terminal: a bar of how far they are (how even, where nobody knows the end), and the words."""
        from rich.console import Console  # not needed where nobody looks
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        width = max(20, shutil.get_terminal_size().columns - 1)
        low, high = min(picture.clocks.values(), default=0), max(picture.clocks.values(), default=0)
        bar = ProgressBar(total=max(1, picture.goal or high), completed=low, width=12, pulse=high == 0, animation_time=now_us / 1e6)
        grid = Table.grid(padding=(0, 1))
        grid.add_column(no_wrap=True)
        grid.add_column(no_wrap=True, overflow="ellipsis")
        grid.add_row(bar, self.line(picture, now_us))
        console = Console(force_terminal=True, width=width, no_color=not self._colour, color_system="standard" if self._colour else None)
        with console.capture() as captured:
            console.print(grid, end="")
        self._screen.status(captured.get().split("\n")[0].encode("utf-8", "replace"))
