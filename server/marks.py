"""The running checksum of one range: what its entries have made of it, cheap enough for each of them.

Of every block or bucket that an entry steps it takes a window of the values, which moves with the log position: what
differs between two copies is met sooner or later.  Knows neither copies nor who compares.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

import numpy as np

from .contents import Prepared

WINDOW_BYTES = 4096


def fold(mark: int, version: int, said: object, prepared: Prepared) -> int:
    """The checksum after the entry `version`; `said` is whatever of the entry and of the streams is no number of a table."""
    mark = crc32(b"%d %r" % (version, said), mark)
    for _, state in prepared.news:
        mark = crc32(_window(state.values, version), mark)
    for step in prepared.steps:
        mark = crc32(_window(step.values, version), mark)
    return mark


def _window(values: np.ndarray[Any, np.dtype[Any]], version: int) -> memoryview:
    whole = values.data.cast("B")
    if whole.nbytes <= WINDOW_BYTES:
        return whole
    at = version * WINDOW_BYTES % whole.nbytes
    return whole[at : at + WINDOW_BYTES]
