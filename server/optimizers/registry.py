"""Every optimizer by the name that a table gives it.  A new one is one file and one line here (and in core.kinds)."""

from __future__ import annotations

from .adagrad import ADAGRAD
from .adam import ADAM, ADAMW
from .add import ADD
from .assign import ASSIGN
from .base import Kernel
from .momentum import MOMENTUM, NESTEROV
from .rmsprop import RMSPROP
from .sgd import SGD

_ALL: tuple[Kernel, ...] = (SGD, MOMENTUM, NESTEROV, ADAGRAD, RMSPROP, ADAM, ADAMW, ADD, ASSIGN)
KERNELS: dict[str, Kernel] = {kernel.name: kernel for kernel in _ALL}
