"""Steps of a table as blocked numpy kernels: `KERNELS` by name, `Mix` to combine pushes, `advance` to run both on a block,
`advance_rows` on rows of a sparse table."""

from .advance import advance, advance_rows
from .base import CHUNK, Kernel, Scratch, working
from .mix import Mix
from .registry import KERNELS

__all__ = ["CHUNK", "KERNELS", "Kernel", "Mix", "Scratch", "advance", "advance_rows", "working"]
