"""A range that was dumped and loaded, at any moment of any history, shows the same and goes on bit for bit."""

from __future__ import annotations

from random import Random

import pytest

from tests.unit.dump_history import Copy, History, carried, drawn_job


@pytest.mark.parametrize("seed", range(60))
def test_what_was_dumped_and_loaded_goes_on_bit_for_bit(seed: int) -> None:
    draw = Random(seed)
    spec = drawn_job(draw)
    first = Copy(spec)
    history = History(spec, draw, first)
    for _ in range(draw.randrange(60)):
        first.take(history.next())

    dump, at = first.dump(), first.whole()
    after = [history.next() for _ in range(draw.randrange(12))]
    said = [first.says(message) for message in after]  # steps go on beside the dump
    second = Copy(spec)
    second.load(carried(dump, second, draw))
    assert second.whole() == at
    first.holding.contents.let_go(dump)

    assert [second.says(message) for message in after] == said
    for _ in range(40):
        message = history.next()
        assert second.says(message) == first.says(message)
    assert second.range.mark == first.range.mark
    assert second.range.digest() == first.range.digest()
    assert second.whole() == first.whole()
