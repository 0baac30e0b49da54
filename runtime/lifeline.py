"""A child that dies with its parent, whatever becomes of that."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from signal import SIGKILL

_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None, use_errno=True).prctl  # looked up before any fork


def dying_with_us(signum: int = SIGKILL) -> Callable[[], None]:
    """For `preexec_fn` of a process that the calling one starts: the child gets `signum` when we die.

    Between fork and exec it makes two system calls, and takes nothing that could wait for another thread's lock.
    """
    parent = os.getpid()

    def die_with_parent() -> None:
        _prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(128 + signum)  # it died before we could ask to be told

    return die_with_parent
