"""Which of several masters leads: a key that only compare-and-swap changes, and each master's own clock.

Owns the key `leader`, its beats, claims and terms.  Refuses to know the state and the nodes: whoever leads writes the
state under its term, and a write that meets a higher one ends the reign (`ledger`).

    FOLLOW --nobody, resigned, or the same beat for leader_dead_us--> CLAIM --stored--> LEAD
    CLAIM  --somebody else was faster--> FOLLOW
    LEAD   --somebody else has claimed, or no beat of ours is stored for leader_dead_us--> FOLLOW

A leader counts from the moment when it *asked* for its last stored beat, the others from when they first saw it: so it
has stopped before anybody takes over, as long as clocks run at one rate.  Where they do not, the state's versions fence.
A claim that was made on old news fails, since the key has another version by then.  An `unknown` is asked again,
unchanged, until it is known what stands there.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any, NamedTuple

import msgpack

from ..core.effects import Log
from ..core.errors import WorldError
from ..core.limits import Limits
from .effects import CONFLICT, LEADER_KEY, OK, UNKNOWN, StoreCas, StoreDone, StoreRead


class Phase(Enum):
    FOLLOW = "follow"
    CLAIM = "claim"
    LEAD = "lead"


class Word(NamedTuple):
    """What stands in the key.  `writer` is the process (`m0.9f3a01c2`), `beat` counts what it has written in its term."""

    master: str
    writer: str
    term: int
    endpoint: str
    beat: int
    resigned: bool = False

    def pack(self) -> bytes:
        return msgpack.packb(list(self))  # type: ignore[no-any-return]


def unpack(value: bytes) -> Word | None:
    """The word in these bytes; None for none at all.  Raises `WorldError` for anything else."""
    if not value:
        return None
    try:
        word = Word(*msgpack.unpackb(value))
        good = all(type(item) is kind for item, kind in zip(word, (str, str, int, str, int, bool)))
    except (TypeError, ValueError, msgpack.exceptions.UnpackException) as error:
        raise WorldError(f"the key {LEADER_KEY!r} of the state store cannot be read ({error}): {REMEDY}") from error
    if not good or word.term < 1:
        raise WorldError(f"the key {LEADER_KEY!r} of the state store holds {word!r}, no master's word: {REMEDY}")
    return word


REMEDY = "another program writes there; give the cluster an etcd, or a prefix, of its own"


class Leadership:
    """`name` is the master's id, `writer` its incarnation; `numbers` gives each question to the store its own."""

    def __init__(self, name: str, writer: str, endpoint: str, limits: Limits, numbers: Iterator[int]) -> None:
        self.name = name
        self.writer = writer
        self.endpoint = endpoint
        self.limits = limits
        self.phase = Phase.FOLLOW
        self.term = 0  # the highest ever seen
        self.trouble = ""  # what the store said last, "" = all is well
        self._numbers = numbers
        self._floor = 0  # a reign needs this term at least
        self._seen: Word | None = None  # what stands there, as far as we know
        self._version = 0
        self._watched_us: int | None = None  # since when we have seen just that, without a gap in our looking
        self._flying: StoreCas | StoreRead | None = None
        self._first_us = 0  # when what is flying was asked for the first time
        self._sent_us = 0  # and the last time
        self._answered = True  # it came back `unknown`, or nothing is flying
        self._confirmed_us = 0  # when the last beat that is surely stored was asked for
        self._due_us = 0  # of the next question, or of the next time for an unknown one
        self._hailed: tuple[int, str] | None = None  # the leader that the log has named

    @property
    def reign(self) -> int:
        """The term in which this master leads, 0 = it does not."""
        return self._seen.term if self.phase is Phase.LEAD and self._seen is not None else 0

    def leader(self, now_us: int) -> str:
        """The master that leads as far as this one knows, "" = nobody does, or nobody knows."""
        if self.phase is Phase.LEAD:
            return self.name
        seen = self._seen
        if self.phase is Phase.CLAIM or seen is None or seen.resigned or seen.master == self.name or self._watched_us is None:
            return ""
        return seen.master if now_us - self._watched_us < self.limits.leader_dead_us else ""

    # -- time

    def on_time(self, now_us: int) -> list[Any]:
        effects: list[Any] = []
        if self.phase is Phase.LEAD and now_us - self._confirmed_us >= self.limits.leader_dead_us:
            effects += self._follow("no beat of its own could be stored for too long")
        if now_us < self._due_us or not self._answered:
            return effects
        if self._flying is not None:  # it came back unknown
            return [*effects, self._send(self._flying, now_us)]
        if self.phase is Phase.LEAD:
            return [*effects, self._beat(now_us)]
        return [*effects, self._fly(StoreRead(LEADER_KEY, next(self._numbers)), now_us)]

    def deadline_us(self) -> int | None:
        due_us = self._due_us if self._answered else None
        if self.phase is not Phase.LEAD:
            return due_us
        end_us = self._confirmed_us + self.limits.leader_dead_us
        return end_us if due_us is None else min(due_us, end_us)

    def was_late(self) -> None:
        """This process was not run for a while: it has not seen what happened meanwhile."""
        self._watched_us = None

    # -- the store

    def on_done(self, done: StoreDone, now_us: int) -> list[Any]:
        """What became of the question in flight; an answer to any other is old."""
        flying = self._flying
        if flying is None or done.key != LEADER_KEY or done.number != flying.number:
            return []
        if done.outcome == UNKNOWN:
            return self._unsure(flying, done, now_us)
        effects: list[Any] = [Log("store_well", {"key": LEADER_KEY})] if self.trouble else []
        self.trouble = ""
        self._flying, self._answered = None, True
        self._due_us = max(now_us, self._sent_us + self.limits.leader_beat_us)
        stored = isinstance(flying, StoreCas) and (done.outcome == OK or done.value == flying.value)
        if self.phase is Phase.FOLLOW or not stored:
            return [*effects, *self._saw(done, now_us)]
        # A repeat of ours that meets our own value was stored by an earlier try: who knows when.
        asked_us = self._first_us if done.outcome == CONFLICT else self._sent_us
        return [*effects, *self._stored(done, asked_us, now_us)]

    def _unsure(self, flying: StoreCas | StoreRead, done: StoreDone, now_us: int) -> list[Any]:
        text = done.text or "the store does not say whether it has stored"
        effects = [Log("store_unsure", {"key": LEADER_KEY, "text": text})] if text != self.trouble else []
        self.trouble = text
        self._watched_us = None  # what could not be seen may have changed, and changed back
        self._answered = True
        if self.phase is Phase.FOLLOW:
            self._flying = None  # a beat of a reign that is over, or a look: it is looked again
        self._due_us = now_us + min(self.limits.resend_us, self.limits.leader_beat_us)
        return effects

    def _stored(self, done: StoreDone, asked_us: int, now_us: int) -> list[Any]:
        """A claim or a beat of ours stands there."""
        word = unpack(done.value)
        assert word is not None and word.writer == self.writer
        self._seen, self._version = word, done.version
        self.term = max(self.term, word.term)
        if word.term < self._floor or now_us - asked_us >= self.limits.leader_dead_us:
            self.phase = Phase.CLAIM  # it is ours, but under too low a term, or nobody may believe it any more
            return [self._claim(now_us)]
        self._confirmed_us = asked_us
        if self.phase is Phase.LEAD:
            return []
        self.phase = Phase.LEAD
        self._hailed = (word.term, self.name)
        return [Log("leads", {"term": word.term})]

    def _saw(self, done: StoreDone, now_us: int) -> list[Any]:
        """What stands there was written by somebody else, or in a reign of ours that is over."""
        effects: list[Any] = []
        word = unpack(done.value) if done.version else None
        if self.phase is Phase.LEAD:
            effects += self._follow(f"{word.writer} leads in term {word.term}" if word else "the key of the leader was removed")
        self.phase = Phase.FOLLOW
        if self._watched_us is None or (word, done.version) != (self._seen, self._version):
            self._watched_us = now_us
        self._seen, self._version = word, done.version
        self.term = max(self.term, word.term if word else 0)
        if word is None or word.resigned or now_us - self._watched_us >= self.limits.leader_dead_us:
            self.phase = Phase.CLAIM
            return [*effects, self._claim(now_us)]
        return [*effects, *self._hail(word)]

    def _hail(self, word: Word) -> list[Any]:
        if word.writer == self.writer or self._hailed == (word.term, word.master):
            return []
        self._hailed = (word.term, word.master)
        return [Log("follows", {"master": word.master, "term": word.term, "writer": word.writer}), Log("ready", {})]

    # -- what is written

    def _claim(self, now_us: int) -> StoreCas:
        word = Word(self.name, self.writer, max(self.term + 1, self._floor), self.endpoint, 0)
        return self._write(word, now_us)

    def _beat(self, now_us: int) -> StoreCas:
        assert self._seen is not None
        return self._write(self._seen._replace(beat=self._seen.beat + 1), now_us)

    def _write(self, word: Word, now_us: int) -> StoreCas:
        cas = StoreCas(LEADER_KEY, self._version, word.pack(), next(self._numbers))
        self._fly(cas, now_us)
        return cas

    def _fly(self, effect: StoreCas | StoreRead, now_us: int) -> StoreCas | StoreRead:
        assert self._flying is None
        self._flying, self._first_us = effect, now_us
        return self._send(effect, now_us)

    def _send(self, effect: StoreCas | StoreRead, now_us: int) -> StoreCas | StoreRead:
        self._sent_us, self._answered = now_us, False
        return effect

    # -- the end of a reign

    def outdone(self, term: int, now_us: int) -> list[Any]:
        """The state was written under a term as high as ours: our key is younger than it (it was lost).  Lead above it."""
        self._floor = max(self._floor, term + 1)
        return self.abdicate(now_us, f"the state was written in term {term}")

    def abdicate(self, now_us: int, why: str) -> list[Any]:
        """The reign is over, whatever the key says."""
        return self._follow(why) if self.phase is Phase.LEAD else []

    def last_word(self, value: bytes) -> bytes:
        """What to write over this value at a clean end, b"" = nothing: it is not ours."""
        word = unpack(value)
        if word is None or word.writer != self.writer or word.resigned:
            return b""
        return word._replace(beat=word.beat + 1, resigned=True).pack()

    def _follow(self, why: str) -> list[Any]:
        term, self.phase = self.reign, Phase.FOLLOW
        self._watched_us = self._hailed = None
        if self._answered:
            self._flying = None  # a beat that is perhaps stored is not repeated: it would be one of a reign that is over
        return [Log("deposed", {"term": term, "why": why})]

    def check(self) -> None:
        assert self._answered or self._flying is not None
        if self.phase is not Phase.FOLLOW:
            assert self.phase is not Phase.CLAIM or isinstance(self._flying, StoreCas)
            assert not isinstance(self._flying, StoreRead)
        if self.phase is Phase.LEAD:
            assert self._seen is not None and self._seen.writer == self.writer
            assert self._seen.term == self.term >= self._floor

    def state(self) -> tuple[Any, ...]:
        """For the machine's digest."""
        return (self.phase.value, self.term, self._version, self._watched_us, self._confirmed_us, self._due_us, self._answered)
