"""The stored state and the changes on their way into it: one compare-and-swap in flight, later changes batch behind it.

Owns versions, retries and the order "stored first, answered then".  Refuses to know what a change means: it is a
function from the stored state to an outcome, tried anew on whatever state is the stored one when its turn comes.

    submit -> pending -> (together) StoreCas -> ok: state is new, answers leave
                                             -> unknown: the very same CAS again, until the store says what stands there
                                             -> conflict: it stands there already (an unknown one had landed), or another
                                                master has written: then this one has been deposed

One of several masters has a ledger for each of its reigns, and writes under that term; a lone one has its ledger for life.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, NamedTuple

from ..core.effects import Log, Stop
from ..core.errors import WorldError
from ..core.limits import Limits
from .catalog import Packer, State, fresh, unpack
from .decisions import Outcome
from .effects import CONFLICT, OK, STATE_KEY, StoreCas, StoreDone

Change = Callable[[State], Outcome]


class Released(NamedTuple):
    """What may leave now: effects, and the numbers of jobs whose map goes out."""

    effects: list[Any]
    maps: list[int]


class Ledger:
    """`state` is what the store surely holds; None until it has been read.

    `term` is that of the reign, 0 = there are no other masters: it is one above what is found, and who finds another
    one's writing ends the process.
    """

    def __init__(self, writer: str, limits: Limits, term: int = 0, numbers: Iterator[int] | None = None) -> None:
        self.limits = limits
        self.writer = writer
        self.term = term
        self.outdone: State | None = None  # what stands there is of a term that is not below ours: the reign is over
        self.packer = Packer()
        self.state: State | None = None
        self.version = 0
        self.trouble = ""  # what the store said last, "" = all is well
        self.pending: dict[Any, Change] = {}
        self.flying: StoreCas | None = None
        self._next: State | None = None  # the state of the flying CAS
        self._held = Released([], [])  # what leaves with it
        self._retry_us: int | None = None
        self._backoff_us = limits.resend_us
        self._numbers = numbers or count(1)

    # -- changes

    def submit(self, key: Any, change: Change, must: bool = False) -> bool:
        """Queue a change, in place of one of the same key that still waits.  False: there is no room, ask again.

        It goes to the end of the line: what came between may have undone the earlier one (who registers again was perhaps
        declared dead meanwhile).  `must`: nobody would ask again (a node is dead), so there is always room; nodes are
        bounded elsewhere.
        """
        if self.pending.pop(key, None) is None and len(self.pending) >= self.limits.changes_max and not must:
            return False
        self.pending[key] = change
        return True

    def advance(self) -> Released:
        """Try what is pending on the stored state: answers that change nothing leave at once, the others with their CAS."""
        if self.state is None or self.flying is not None or not self.pending:
            return Released([], [])
        changes = list(self.pending.values())
        self.pending.clear()
        after = self.state
        effects: list[Any] = []
        maps: list[int] = []
        for change in changes:
            outcome = change(after)
            after = outcome.state
            effects += outcome.effects
            maps += outcome.maps
        if after is self.state or after == self.state:
            return Released(effects, maps)
        self._held = Released(effects, maps)
        return Released([self._fly(self.version, after)], [])

    def _fly(self, version: int, state: State) -> StoreCas:
        assert self.flying is None
        self._next = state
        self.flying = StoreCas(STATE_KEY, version, self.packer.pack(state), next(self._numbers))
        return self.flying

    # -- the store

    def open(self, ring_ranges: int) -> StoreCas:
        """Read by writing: a new cluster's state is stored if there is none, else the conflict tells what stands there."""
        return self._fly(0, fresh(self.writer, ring_ranges)._replace(term=max(1, self.term)))

    def on_done(self, done: StoreDone, now_us: int) -> Released:
        """What became of the CAS in flight; an answer to any other is old."""
        flying = self.flying
        if flying is None or done.key != flying.key or done.number != flying.number or self.outdone is not None:
            return Released([], [])
        landed = done.outcome == CONFLICT and done.value == flying.value
        if done.outcome == OK or landed:
            return self._stored(done.version)
        if done.outcome == CONFLICT:
            return self._contradicted(done)
        return Released(self._unsure(done, now_us), [])

    def _stored(self, version: int) -> Released:
        assert self._next is not None
        effects: list[Any] = []
        if self.state is None:
            effects.append(Log("state_opened", {"term": self._next.term, "token": self._next.token, "jobs": len(self._next.jobs)}))
            effects.append(Log("ready", {}))
        if self.trouble:
            effects.append(Log("store_well", {"version": version}))
        held = self._held
        self.state, self.version = self._next, version
        self._settle()
        self.trouble = ""
        return Released([*effects, *held.effects], held.maps)

    def _contradicted(self, done: StoreDone) -> Released:
        """Something else stands there.  At the start that is the state to go on from; later it is another master."""
        opening = self.state is None
        self._settle()
        if done.version == 0:
            return Released([Stop(1, "the state store was emptied while the master ran: start the cluster anew")], [])
        try:
            found = unpack(done.value)
        except WorldError as error:
            return Released([Stop(1, str(error))], [])
        if self.term and (found.term >= self.term or not opening):
            self.outdone = found
            return Released([], [])
        if not opening:
            text = f"another master ({found.writer}, term {found.term}) has taken over the state store; this one ends"
            return Released([Stop(1, text)], [])
        self.version = done.version
        return Released([self._fly(done.version, found._replace(term=self.term or found.term + 1, writer=self.writer))], [])

    def _unsure(self, done: StoreDone, now_us: int) -> list[Any]:
        text = done.text or "the store does not say whether it has stored"
        effects = [Log("store_unsure", {"text": text})] if text != self.trouble else []
        self.trouble = text
        self._retry_us = now_us + self._backoff_us
        self._backoff_us = min(2 * self._backoff_us, self.limits.resend_us_max)
        return effects

    def _settle(self) -> None:
        """Nothing is in flight."""
        self.flying = self._next = None
        self._held = Released([], [])
        self._retry_us = None
        self._backoff_us = self.limits.resend_us

    # -- time

    def on_time(self, now_us: int) -> list[Any]:
        if self._retry_us is None or now_us < self._retry_us:
            return []
        assert self.flying is not None
        self._retry_us = None
        return [self.flying]

    def deadline_us(self) -> int | None:
        return self._retry_us

    def check(self) -> None:
        assert (self.flying is None) == (self._next is None)
        assert self._retry_us is None or self.flying is not None
        assert len(self.pending) <= self.limits.changes_max + 2 * self.limits.nodes_max
        if self.flying is None:
            assert not self._held.effects and not self._held.maps
        if self.state is not None and self._next is not None:
            assert self._next.term == self.state.term and self._next.token >= self.state.token
            assert self._next.last >= self.state.last
