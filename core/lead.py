"""Whom to ask: the one master that a node believes to lead, among all that it knows.

Owns the highest term seen and the walk from one master to the next.  Refuses to know what is asked, and when: whoever
asks says so (`asked`), and says what came (`heard`, `refused`).

    A master that says nothing for suspect_us is left for the next in turn, one that does not lead for the one it names.
    Words of an older term than one that was seen are not heeded: their speaker was deposed, and may not know it yet.
"""

from __future__ import annotations

from collections.abc import Mapping

from .limits import Limits

FORGOTTEN = 4  # times dead_us: if there were only lower terms for so long, the masters' store was lost and begins anew


class Lead:
    def __init__(self, masters: Mapping[str, str], limits: Limits) -> None:
        """`masters` are id -> endpoint, at least one."""
        self.masters = dict(sorted(masters.items()))
        self.master = next(iter(self.masters))  # whom to ask
        self.term = 0  # the highest that a leader has shown
        self._limits = limits
        self._left = ""  # it was left in this term: nobody's word that it leads is taken
        self._asked_us: int | None = None  # when the question was put that nobody has answered since
        self._low_us: int | None = None  # since when there were only words of lower terms

    def knows(self, sender: str) -> bool:
        return sender in self.masters

    def asked(self, now_us: int) -> bool:
        """Something is about to be said to it.  True: it was silent for too long, and it is another one from here on."""
        if self._asked_us is None:
            self._asked_us = now_us
        if now_us - self._asked_us < self._limits.suspect_us or len(self.masters) == 1:
            return False
        self._leave()
        self._asked_us = now_us
        return True

    def heard(self, sender: str, term: int, now_us: int) -> bool:
        """A word of one that leads in `term`.  False: another one has led since, do not heed it."""
        if term < self.term and not self._forgotten(now_us):
            return False
        self.term = term
        self.master = sender
        self._left = ""
        self._asked_us = self._low_us = None
        return True

    def refused(self, sender: str, term: int, leader: str) -> bool:
        """`sender` does not lead; it believes that `leader` does, since `term`.  True: ask that one at once."""
        named = leader in self.masters and leader != sender
        if term > self.term and named:
            self.term = term
            self._move(leader)
            self._left = ""
            return True
        if sender != self.master or len(self.masters) == 1:
            return False  # an answer to what was asked before the last step
        if term == self.term and named and leader != self._left:
            self._left = sender
            self._move(leader)
            return True
        self._leave()
        return False

    def _forgotten(self, now_us: int) -> bool:
        """A lone master's term is taken as it is, one of several after a while: nobody has led in a higher one since."""
        if len(self.masters) == 1:
            return True
        if self._low_us is None:
            self._low_us = now_us
        return now_us - self._low_us >= FORGOTTEN * self._limits.dead_us

    def _leave(self) -> None:
        names = list(self.masters)
        self._left = self.master
        self._move(names[(names.index(self.master) + 1) % len(names)])

    def _move(self, master: str) -> None:
        self.master = master
        self._asked_us = None
