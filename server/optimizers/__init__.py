"""Steps of a table as blocked numpy kernels: `KERNELS` by name, `Mix` to combine pushes, `advance` to run both."""

from .base import CHUNK, Kernel, Mix, Scratch, advance
from .registry import KERNELS

__all__ = ["CHUNK", "KERNELS", "Kernel", "Mix", "Scratch", "advance"]
