"""The script: which bad day befalls which request of which worker, and the agent's death before a store.

    repeat@S         the reply to S is given twice
    stale@S:SECONDS  the reply to the request before comes once more, so long before the one to S (0 if not said)
    strange@S        the reply to S has keys that nobody knows, and lacks v=, n=, k= and lag=
    slow@S:SECONDS   the reply comes late
    late@S:SECONDS   S is carried out so late: a `t=` may run out, and a push with async=1 is answered long before
    fail@S:CODE      S, a push with async=1, is answered ok and fails later
    restart@S:K      the agent dies before its K-th store of request S (K from 1; `*` = before each in turn), another one
                     adopts the channel
    err@S:CODE       S is refused with that code, nothing is applied
    again@S          S is answered AGAIN first, and carried out when the program rings again
    stop@S           the stop rule fires at S: stop=1, and what would push or tick after it is answered STOP
    gone@S           the agent never comes back: the launcher answers GONE
    vanish@S         agent and launcher end at S: nobody answers

S may be `*`: every request.  Refuses to know what a request is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ...core.errors import Code, UsageError

EVERY = -1
KINDS = ("repeat", "stale", "strange", "slow", "late", "fail", "restart", "err", "again", "stop", "gone", "vanish")


class Fault(NamedTuple):
    kind: str
    seq: int
    argument: str = ""

    @classmethod
    def parse(cls, text: str) -> Fault:
        """`kind@seq[:argument]`.  Raises `UsageError`."""
        kind, _at, rest = text.partition("@")
        seq, _colon, argument = rest.partition(":")
        if kind not in KINDS or not (seq == "*" or seq.isdigit()):
            raise UsageError(f"fault {text!r}: use kind@seq[:argument] with kind one of {', '.join(KINDS)}")
        if kind in ("err", "fail") and argument and argument not in Code.__members__:
            raise UsageError(f"fault {text!r}: {argument} is no code")
        return cls(kind, EVERY if seq == "*" else int(seq), argument)


class Killed(BaseException):
    """The scripted death of the agent."""


class Script:
    """The faults of one run, and which of them have come: each befalls a request once."""

    def __init__(self, faults: Sequence[Fault | str]) -> None:
        self.faults = [Fault.parse(fault) if isinstance(fault, str) else fault for fault in faults]
        self.fired: list[str] = []
        self._once: set[tuple[str, int, int]] = set()
        self._stores: dict[tuple[int, int], int] = {}  # (worker, seq) -> stores of this agent's life
        self._kill_at: dict[tuple[int, int], int] = {}

    def fault(self, kind: str, worker: int, seq: int) -> Fault | None:
        """The fault of this kind that befalls the request now."""
        for fault in self.faults:
            if fault.kind == kind and fault.seq in (seq, EVERY) and seq and (kind, worker, seq) not in self._once:
                self._once.add((kind, worker, seq))
                self._tell(fault, worker)
                return fault
        return None

    def store(self, worker: int, seq: int, action: Callable[[], object]) -> None:
        """One store of a request, before which the script may kill the agent (`Killed`)."""
        key = (worker, seq)
        self._stores[key] = self._stores.get(key, 0) + 1
        for fault in self.faults:
            if fault.kind != "restart" or fault.seq not in (seq, EVERY) or seq == 0:
                continue
            if fault.argument == "*":
                at = self._kill_at.get(key, 0) + 1
            else:
                at = int(fault.argument or 1) if key not in self._kill_at else 0
            if self._stores[key] == at:
                self._kill_at[key], self._stores[key] = at, 0
                self._tell(fault, worker)
                raise Killed
        action()

    def _tell(self, fault: Fault, worker: int) -> None:
        self.fired.append(f"worker {worker}: {fault.kind}@{'*' if fault.seq == EVERY else fault.seq}:{fault.argument}")
