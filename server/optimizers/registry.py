"""Every optimizer by the name that a table gives it.  A new one is one file and one line here (and in core.table)."""

from __future__ import annotations

from .add import ADD
from .assign import ASSIGN
from .base import Kernel
from .sgd import SGD

KERNELS: dict[str, Kernel] = {kernel.name: kernel for kernel in (SGD, ADD, ASSIGN)}
