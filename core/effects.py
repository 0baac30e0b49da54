"""What a state machine may ask of the world.  Effects are values; their order is the contract.

What must be held or stored comes before what may be sent: whoever performs effects performs them one by one, in
order, and may die between any two of them.  Effects that only one part has (a file of the channel, a
compare-and-swap of the state store) are defined beside that part's machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol


class Send(NamedTuple):
    """Send a message to a node.  Nobody promises that it arrives."""

    to: str  # the node's name, "<id>.<incarnation>", which is its socket identity too
    message: Any  # one of wire.messages


class Connect(NamedTuple):
    """From now on messages to `node` go out by a connection of ours to `endpoint`.  Repeating it changes nothing."""

    node: str
    endpoint: str


class Disconnect(NamedTuple):
    """The node is gone: forget its connection and what waits in it."""

    node: str


class Log(NamedTuple):
    """One line `event key=value ...`, written once per change."""

    event: str
    fields: dict[str, Any]


class Stop(NamedTuple):
    """End this process in order: a definite end, with the exit code and the sentence for the user."""

    exit_code: int
    text: str


class Machine(Protocol):
    """The surface of every state machine: it decides, never waits, and never reads a clock.

    `sender` is the node that a message came from, or "" for an event of the same process (an effect's outcome).
    """

    def on_message(self, sender: str, message: Any, now_us: int) -> list[Any]: ...

    def on_time(self, now_us: int) -> list[Any]: ...

    def deadline_us(self) -> int | None: ...

    def check(self) -> None: ...

    def digest(self) -> int: ...


#: `draw(low, high)` gives an integer of that closed range; the only randomness a machine has.
Draw = Callable[[int, int], int]

Effects = Sequence[Any]
