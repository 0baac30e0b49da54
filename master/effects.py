"""What the master asks of its state store, and the event that answers."""

from __future__ import annotations

from typing import NamedTuple

OK, CONFLICT, UNKNOWN = "ok", "conflict", "unknown"

#: Key of the one document (see catalog.State).
STATE_KEY = "state"


class StoreCas(NamedTuple):
    """Replace the value of `key` if it is at `version` (0 = absent); a success has version + 1.  Answered by StoreDone."""

    key: str
    version: int
    value: bytes


class StoreDone(NamedTuple):
    """What became of a StoreCas.

    ok        stored for good: `version` and `value` are the new ones
    conflict  not stored: `version` and `value` are those that stand there (0 and b"" = absent)
    unknown   perhaps stored, perhaps not, perhaps later; `text` says what the store said
    """

    key: str
    outcome: str
    version: int
    value: bytes
    text: str = ""
