"""What the master asks of its state store, and the event that answers."""

from __future__ import annotations

from typing import NamedTuple

OK, CONFLICT, UNKNOWN = "ok", "conflict", "unknown"

#: Keys of the one document (see catalog.State), and of who leads (see leadership.Word).
STATE_KEY, LEADER_KEY = "state", "leader"


class StoreCas(NamedTuple):
    """Replace the value of `key` if it is at `version` (0 = absent); a success has a higher version.  Answered by StoreDone."""

    key: str
    version: int
    value: bytes
    number: int = 0  # of this question among those of one process; its answer has it too


class StoreRead(NamedTuple):
    """What stands there?  Answered by StoreDone, ok or unknown."""

    key: str
    number: int = 0


class Reach(NamedTuple):
    """See whether this server can be called from here, where it says that it is.  Answered by Unreached, or not at all."""

    node: str
    endpoint: str


class Unreached(NamedTuple):
    """It cannot; `text` names both ends."""

    node: str
    text: str


class StoreDone(NamedTuple):
    """What became of a StoreCas or StoreRead.

    ok        stored for good: `version` and `value` are the new ones; or read: those that stand there (0 and b"" = absent)
    conflict  not stored: `version` and `value` are those that stand there (0 and b"" = absent)
    unknown   perhaps stored, perhaps not, perhaps later; `text` says what the store said
    """

    key: str
    outcome: str
    version: int
    value: bytes
    text: str = ""
    number: int = 0
