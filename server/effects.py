"""What a range tells the node that it lives in, and what the node asks of its process, beyond messages to send."""

from __future__ import annotations

from typing import Any, NamedTuple


class JobFailed(NamedTuple):
    """A range cannot go on without storing what is no number.  The node reports it to the master."""

    job: int
    reason: str


class Reached(NamedTuple):
    """A range has applied a Close or a Roster: `key` says which, see `closing`.  The node acks it to the clock's keeper."""

    job: int
    range: int
    key: tuple[Any, int]


class AskSeat(NamedTuple):
    """The copies of a range have to change; the node asks the master until a map says so.  See wire.control.SeatAsk."""

    job: int
    range: int
    epoch: int
    verb: str
    node: str
    reason: str


class Turn(NamedTuple):
    """Perform what was given so far, let others have their turn, then feed this back: what is committed is applied on."""


class WarmUp(NamedTuple):
    """Bring in the compiled part for rows of sparse tables, beside the loop: it takes seconds.  Answered by `Warm`."""


class Warm(NamedTuple):
    """Rows can be kept from here on; or why they never can."""

    problem: str = ""
