"""The simulator's own optimizer is known while a test of the simulator runs, and to nobody else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .ordered import registered


@pytest.fixture(autouse=True)
def _ordered() -> Iterator[None]:
    with registered():
        yield
