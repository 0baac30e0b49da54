"""What chance shows too rarely, message by message: three servers, one range, and a promise that somebody sees broken.

Each raises AssertionError when it is, and passes as servers are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from plugml.wire import messages as m
from tests.unit.replica_trio import LIMITS, A, B, C, Trio, counts


def _seen(said: list[Any]) -> list[list[float]]:
    """What pulls were answered."""
    return [np.frombuffer(message.payload[0]).tolist() for message in said if isinstance(message, m.Values)]


def a_new_primary_is_asked_before_all_is_committed() -> None:
    """A read that was shown a push is not taken back: the primary has answered it, and died before the others heard that it counts."""
    there = Trio(counts(copies=3))
    there.map(A, B, C)
    there.push(1)
    there.pull()
    assert _seen(there.take()) == [[1, 1, 1]]
    there.deaf.add(A)
    there.map(B, C, to=(B,))  # C has not heard of it: nobody says that it holds the push
    there.pull(to=B)
    assert _seen(there.take()) == [], "nothing is shown before it is known what was"
    there.hear_map(C)
    there.time(LIMITS.replicate_us)
    there.time(LIMITS.replicate_us)
    assert _seen(there.take()) == [[1, 1, 1]]


def a_deposed_primary_is_asked() -> None:
    """Whoever has seen the newer map is not shown what was before it: A is cut off, and still believes that it leads."""
    there = Trio()
    there.map(A, B)
    there.push(1)
    there.map(B, to=(B,))
    there.push(2)
    there.pull()
    assert _seen(there.take()) == [[2, 2, 2]]
    there.pull(to=A)
    assert _seen(there.take()) == [], "A knows of one push"
