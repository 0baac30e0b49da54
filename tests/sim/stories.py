"""What chance shows too rarely, step by step: a promise that somebody sees broken.

Each raises AssertionError when it is, and passes as servers are.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from plugml.core.errors import WorldError
from plugml.wire import messages as m
from tests.unit.replica_trio import LIMITS, A, B, C, Trio, counts
from tests.unit.test_server_checkpoint import test_where_members_are_held_the_cut_is_exact_without_closes
from tests.unit.test_server_rangefiles import NAME, lived, written


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


def a_file_of_a_checkpoint_is_written_once_more() -> None:
    """Somebody is asked late for a file that is there: what it holds by now is not what the checkpoint is of."""
    with TemporaryDirectory() as directory:
        spec, copy, history = lived(Random(1))
        written(Path(directory), spec, copy)
        before = (Path(directory) / NAME).read_bytes()
        copy.take(history.next())
        with suppress(WorldError):
            written(Path(directory), spec, copy)
        assert (Path(directory) / NAME).read_bytes() == before, "it is of another moment now"


def members_are_held_at_a_cut() -> None:
    """SSP: nobody comes beyond the cut before every range has it."""
    with TemporaryDirectory() as directory:
        test_where_members_are_held_the_cut_is_exact_without_closes(Path(directory), 1, 2)
