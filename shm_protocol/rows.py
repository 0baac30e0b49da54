"""Rows of sparse tables as a request names them: by numbers, by keys, raw and as text.  Knows no files.

Everything works on all rows at once.  What comes is kept as it came: unsorted, twins still twice.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Rows(NamedTuple):
    """Rows of one table.  `values` has a line for each, in the storage's kind of number, None where rows are wanted.

    With string keys `ids` are their hashes, `keys` their bytes one behind the other, and key i ends before byte `ends[i]`.
    """

    table: int
    ids: NDArray[np.uint64]
    values: NDArray[Any] | None = None
    keys: NDArray[np.uint8] | None = None
    ends: NDArray[np.int64] | None = None

    @property
    def size(self) -> int:
        return len(self.ids)
