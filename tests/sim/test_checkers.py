"""The checkers themselves: each planted fault is seen, and a good history is not."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from .checkers import (
    SLOT,
    Broken,
    Issued,
    Pull,
    check_counting,
    check_equal,
    check_exact,
    check_final,
    check_whole,
)  # fmt: skip

REPLICAS, WORKERS, GENS = 2, 3, 2


class Values:
    """A tiny parameter server that a test can sabotage."""

    def __init__(self) -> None:
        self.slots: np.ndarray[Any, Any] = np.zeros((REPLICAS, WORKERS, GENS, SLOT))

    def push(self, worker: int, gen: int, n: int) -> None:
        self.slots[:, worker, gen - 1, :3] += (1, n, n * n)


def history(chance: Random, sabotage: str = "") -> tuple[list[Pull], dict[tuple[int, int], Issued], np.ndarray[Any, Any]]:
    """Pushes and pulls of three workers in any order; one fault is planted half way."""
    values = Values()
    begun: dict[tuple[int, int], int] = {}
    pulls: list[Pull] = []
    old = values.slots.copy()
    for now in range(60):
        stream = (chance.randrange(WORKERS), 1 if now < 30 else 2)
        n = begun.get(stream, 0) + 1
        if chance.randrange(2) == 0:
            begun[stream] = n
            if now == 20:
                old = values.slots.copy()
            if sabotage == "drop" and now in (25, 26, 27, 28):
                continue
            values.push(*stream, n)
            if sabotage == "twice" and now > 25:
                values.push(*stream, n)
            if sabotage == "swap" and now > 25:
                values.push((stream[0] + 1) % WORKERS, stream[1], n)
                values.slots[:, stream[0], stream[1] - 1, :3] -= (1, n, n * n)
            if sabotage == "gap" and now > 25:
                values.slots[:, stream[0], stream[1] - 1, 1] += 1
            if sabotage == "half" and now > 25:
                values.slots[1:, stream[0], stream[1] - 1, :3] -= (1, n, n * n)
        else:
            seen = old if sabotage == "old" and now >= 40 else values.slots
            pulls.append(Pull(now, now, stream, 0, begun.get(stream, 0), seen.copy()))
    issued = {stream: Issued(count, count) for stream, count in begun.items()}
    return pulls, issued, values.slots


@pytest.mark.parametrize("seed", range(20))
def test_a_good_history_passes(seed: int) -> None:
    pulls, issued, final = history(Random(seed))
    check_counting(pulls, issued)
    check_final(final, issued)


@pytest.mark.parametrize("sabotage", ["drop", "twice", "swap", "gap", "half", "old"])
def test_a_planted_fault_is_seen(sabotage: str) -> None:
    caught = 0
    for seed in range(10):
        pulls, issued, final = history(Random(seed), sabotage)
        try:
            check_counting(pulls, issued)
            check_final(final, issued)
        except Broken:
            caught += 1
    assert caught >= 8, f"{sabotage}: seen in {caught} of 10 histories"


def test_reordered_pulls_go_back() -> None:
    values = Values()
    values.push(0, 1, 1)
    early = values.slots.copy()
    values.push(0, 1, 2)
    late = values.slots.copy()
    pulls = [Pull(1, 2, (1, 1), 0, 0, late), Pull(3, 4, (1, 1), 0, 0, early)]
    with pytest.raises(Broken, match="later pull shows fewer"):
        check_counting(pulls, {(0, 1): Issued(2, 2)})


def test_an_invented_push_is_seen() -> None:
    values = Values()
    values.push(2, 1, 1)
    with pytest.raises(Broken, match="which began 0"):
        check_counting([Pull(1, 2, (1, 1), 0, 0, values.slots)], {})


def test_a_reader_that_lacks_what_another_was_told_is_seen() -> None:
    values = Values()
    values.push(2, 1, 1)
    pull = Pull(1, 2, (1, 1), 0, 0, values.slots, {(2, 1): 1})
    check_counting([pull], {(2, 1): Issued(2, 1)})
    with pytest.raises(Broken, match="knew to be applied"):
        check_counting([pull._replace(known={(2, 1): 2})], {(2, 1): Issued(2, 2)})


def test_a_push_of_a_clock_that_is_not_closed_is_seen() -> None:
    values = Values()
    values.push(2, 1, 1)
    pull = Pull(1, 2, (1, 1), 0, 0, values.slots, {}, {(2, 1): 1})
    check_counting([pull], {(2, 1): Issued(2, 1)})
    with pytest.raises(Broken, match="at most 0"):
        check_counting([pull._replace(most={(2, 1): 0})], {(2, 1): Issued(2, 1)})


def test_a_lost_acked_push_is_seen_at_the_end() -> None:
    values = Values()
    values.push(0, 1, 1)
    check_final(values.slots, {(0, 1): Issued(2, 1)})
    with pytest.raises(Broken, match="2 acked"):
        check_final(values.slots, {(0, 1): Issued(2, 2)})


def test_exactness_is_to_the_bit_or_to_rounding() -> None:
    seen = np.array([1.0, 2.0 + 1e-13])
    check_exact((0, 1), 1, "w", seen, np.array([1.0, 2.0]), 1e-12)
    with pytest.raises(Broken, match="element 1"):
        check_exact((0, 1), 1, "w", seen, np.array([1.0, 2.0]), 0)


def test_two_readers_of_a_clock_read_the_same_bits() -> None:
    known: dict[int, tuple[tuple[int, int], bytes]] = {}
    check_equal(known, 1, (0, 1), b"a")
    check_equal(known, 1, (1, 1), b"a")
    with pytest.raises(Broken, match="different values at clock 1"):
        check_equal(known, 1, (1, 1), b"b")


def test_a_mixture_of_two_assignments_is_seen() -> None:
    known = {1.0: (0, 1), 2.0: (1, 1)}
    check_whole((0, 1), "w", np.full(4, 1.0), known)
    check_whole((0, 1), "w", np.zeros(4), known)
    with pytest.raises(Broken, match="nobody wrote"):
        check_whole((0, 1), "w", np.full(4, 3.0), known)
    with pytest.raises(Broken, match="nobody wrote"):
        check_whole((0, 1), "w", np.array([1.0, 1.0, 2.0, 2.0]), known)
