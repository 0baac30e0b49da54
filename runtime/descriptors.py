"""File descriptors of this process: the three standard ones are taken, and there may be many.  Imports almost nothing."""

from __future__ import annotations

import os
import resource
import sys


def fill_standard() -> None:
    """Open /dev/null for each of 0, 1, 2 that was closed, before anything else is opened.

    Otherwise the next socket or database would get such a number, and a stray print would write into it.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # open() gives the lowest free number: it is this one, as those below are taken.
            assert os.open(os.devnull, os.O_RDWR) == number
            os.set_inheritable(number, True)
    # Python gave up on the closed ones at its start.
    sys.stdin = sys.stdin or open(0, closefd=False)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)
    sys.stderr = sys.stderr or open(2, "w", closefd=False)


def raise_limit() -> int:
    """Allow as many open files as the system lets us; gives the number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            return soft  # hard = unlimited where the kernel has a lower bound of its own
    return hard
