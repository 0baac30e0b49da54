"""Consistency models as arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugml.core.clock import Consistency
from plugml.core.errors import UsageError


@pytest.mark.parametrize("text", ["bsp", "asp", "ssp:0", "ssp:3"])
def test_a_model_reads_back_as_it_was_written(text: str) -> None:
    assert str(Consistency.parse(text)) == text


@pytest.mark.parametrize("text", ["", "BSP", "ssp", "ssp:", "ssp:-1", "ssp:x", "bsp:0", "asp:", "ssp:2147483648", None, 3, [], "ssp:²"])
def test_what_is_no_model_is_refused(text: object) -> None:
    with pytest.raises(UsageError, match="use bsp, asp or ssp:N"):
        Consistency.parse(text)


@given(clock=st.integers(0, 1 << 40), slack=st.integers(0, (1 << 31) - 1))
def test_the_gates_are_those_of_the_definitions(clock: int, slack: int) -> None:
    bsp, ssp, asp = Consistency.parse("bsp"), Consistency.parse(f"ssp:{slack}"), Consistency.parse("asp")
    assert (bsp.closed_needed(clock), ssp.closed_needed(clock), asp.closed_needed(clock)) == (clock, 0, 0)
    assert (bsp.slowest_needed(clock), asp.slowest_needed(clock)) == (clock, 0)
    assert ssp.slowest_needed(clock) == max(0, clock - slack)


def test_every_model_lets_the_first_pull_through() -> None:
    for text in ("bsp", "asp", "ssp:0"):
        model = Consistency.parse(text)
        assert model.closed_needed(0) == model.slowest_needed(0) == 0
