"""What a range tells the node that it lives in, and what the node asks of its process, beyond messages to send."""

from __future__ import annotations

from typing import NamedTuple


class JobFailed(NamedTuple):
    """A range cannot go on without storing what is no number, and keeps what it has.  The node tells the keeper of the clock."""

    job: int
    range: int
    code: int
    reason: str


class Turn(NamedTuple):
    """Perform what was given so far, then feed this back at once: a long close goes on while its first answers travel."""


class WarmUp(NamedTuple):
    """Bring in the compiled part for rows of sparse tables, beside the loop: it takes seconds.  Answered by `Warm`."""


class Warm(NamedTuple):
    """Rows can be kept from here on; or why they never can."""

    problem: str = ""
