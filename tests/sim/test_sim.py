"""Seeds for every check, and sabotages that they must catch.  PLUGML_SEEDS=200 runs more; a failure names its replay."""

from __future__ import annotations

import os

import pytest

from .__main__ import differs, fingerprint, simulate
from .mutants import MUTANTS, Mutant, hunt

SEEDS = int(os.environ.get("PLUGML_SEEDS", "25"))
QUICK = 8  # mutants of the everyday run; the slow ones come with `make test-all`


@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
def test_a_seed_is_clean(seed: int) -> None:
    _world, wrong = simulate(seed)
    assert not wrong, f"{wrong}\nreplay: python -m tests.sim {seed} --trace"


@pytest.mark.parametrize("seed", [3, 20])
def test_a_seed_gives_the_same_digest_in_another_process(seed: int) -> None:
    world, wrong = simulate(seed)
    assert not wrong
    assert differs(seed, fingerprint(world)) is None


@pytest.mark.parametrize("mutant", MUTANTS[:QUICK], ids=lambda mutant: mutant.title)
def test_a_sabotage_is_caught(mutant: Mutant) -> None:
    assert hunt(mutant) is not None, f"no run has caught: {mutant.title}"


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS[QUICK:], ids=lambda mutant: mutant.title)
def test_every_other_sabotage_is_caught(mutant: Mutant) -> None:
    assert hunt(mutant) is not None, f"no run has caught: {mutant.title}"
