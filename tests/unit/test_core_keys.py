"""Where things lie on the ring: vectors that every implementation must repeat, and an even spread."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from plugml.core.keys import GOLDEN, block_key, clock_key, mix, name_hash, range_of, table_hash

U64 = st.integers(0, (1 << 64) - 1)


def test_the_published_vectors_hold() -> None:
    assert mix(0) == 0xE220A8397B1DCDAF
    assert mix(1) == 0x910A2DEC89025CC1
    assert name_hash("") == mix(0xCBF29CE484222325)
    assert name_hash("a") == mix(0xAF63DC4C8601EC8C)  # FNV-1a of "a", as its authors publish it
    assert name_hash("foobar") == mix(0x85944171F73967E8)


def test_a_table_a_clock_and_a_block_have_their_keys() -> None:
    assert table_hash("job", "w") == name_hash("job/w")
    assert clock_key("job") == name_hash("job//clock")
    assert table_hash("job", "w") != table_hash("other", "w")
    assert block_key(7, 0) == 7
    assert block_key(7, 3) == (7 + 3 * GOLDEN) % (1 << 64)


@given(key=U64, power=st.integers(0, 16))
def test_a_range_is_the_arc_that_holds_the_key(key: int, power: int) -> None:
    ranges = 1 << power
    assert range_of(key, ranges) == key * ranges >> 64


@given(start=U64)
def test_the_blocks_of_a_table_spread_over_the_ranges(start: int) -> None:
    """Golden-ratio steps: 256 blocks never pile up, wherever the table starts."""
    counts = [0] * 64
    for block in range(256):
        counts[range_of(block_key(start, block), 64)] += 1
    assert 2 <= min(counts) and max(counts) <= 6


@given(first=U64, second=U64)
def test_mixing_loses_nothing(first: int, second: int) -> None:
    assert (mix(first) == mix(second)) == (first == second)
