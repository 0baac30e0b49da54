"""The pieces of a job's input: each is handed out once a pass, in order, and comes back when its worker is lost.

A worker holds one piece at a time; asking for the next one says that it is done.  Owns who holds what and what came back.
Refuses to know what a piece is, which workers are members, and whether its answers arrive.
"""

from __future__ import annotations

import heapq
from typing import Any, NamedTuple

from ..core.errors import PeerError
from ..wire.messages import NO_PIECE, SAME_PIECE
from . import plain


class Told(NamedTuple):
    """The answer to a request: a piece and its pass, or NO_PIECE."""

    piece: int
    turn: int


class Hand(NamedTuple):
    """What a worker was told last.  `number` is the piece's place in the line of all passes, -1 = it holds none now."""

    gen: int
    request: int
    told: Told
    number: int


class Worklist:
    """`pieces` in `passes`; what came back goes out before what was never out, the earliest first."""

    def __init__(self, pieces: int, passes: int) -> None:
        self.pieces = pieces
        self.total = pieces * max(1, passes)
        self.passes = max(1, passes)
        self.next = 0  # in the line of all passes
        self.done = 0
        self._hands: dict[int, Hand] = {}
        self._back: list[int] = []  # a heap

    def ask(self, worker: int, gen: int, request: int) -> Told | None:
        """The next piece for a worker, or the same answer to the same request (and to SAME_PIECE); None for one that is over."""
        hand = self._hands.get(worker)
        if hand is not None and hand.gen == gen:
            if request in (hand.request, SAME_PIECE):
                return hand.told
            if request < hand.request:
                return None
            self.finish(worker)
        elif hand is not None:
            self.lose(worker)
        number = self._take()
        told = Told(number % self.pieces, number // self.pieces) if number >= 0 else Told(NO_PIECE, self.passes)
        self._hands[worker] = Hand(gen, request, told, number)
        return told

    def heard(self, worker: int, gen: int, request: int) -> bool:
        """Whether this request was answered before."""
        hand = self._hands.get(worker)
        return hand is not None and hand.gen == gen and request <= hand.request and request != SAME_PIECE

    def finish(self, worker: int) -> None:
        """The piece that the worker holds is done."""
        if self._put_down(worker) >= 0:
            self.done += 1

    def lose(self, worker: int) -> None:
        """The piece that the worker holds goes to somebody else, or to its next incarnation."""
        number = self._put_down(worker)
        if number >= 0:
            heapq.heappush(self._back, number)

    def _put_down(self, worker: int) -> int:
        hand = self._hands.get(worker)
        if hand is None or hand.number < 0:
            return -1
        self._hands[worker] = hand._replace(number=-1)
        return hand.number

    def _take(self) -> int:
        if self._back:
            return heapq.heappop(self._back)
        if self.next == self.total:
            return -1
        self.next += 1
        return self.next - 1

    def check(self) -> None:
        out = [hand.number for hand in self._hands.values() if hand.number >= 0]
        assert len(set(out + self._back)) == len(out) + len(self._back), "a piece is out twice"
        assert self.done + len(out) + len(self._back) == self.next <= self.total, "a piece is missing"

    def state(self) -> tuple[Any, ...]:
        return (self.next, self.done, sorted(self._back), sorted(self._hands.items()))

    def rewind(self) -> None:
        """From a checkpoint: what was out comes back, as a whole."""
        for worker in list(self._hands):
            self.lose(worker)
        self._hands.clear()

    # -- copies

    def dump(self) -> dict[str, Any]:
        """Everything but what the job says, as a plain document."""
        hands = [(worker, hand.gen, hand.request, *hand.told, hand.number) for worker, hand in sorted(self._hands.items())]
        return {"next": self.next, "done": self.done, "back": sorted(self._back), "hands": hands}

    def load(self, meta: Any) -> None:
        """What a copy's document says, in place of what is here.  Raises `PeerError`."""
        kinds = (plain.whole, plain.whole, plain.whole, plain.whole, plain.whole, plain.signed)
        found = plain.records(plain.field(meta, "hands"), *kinds)
        hands = [(worker, Hand(gen, request, Told(piece, turn), number)) for worker, gen, request, piece, turn, number in found]
        back = sorted(plain.whole(number, 0, max(0, self.total - 1)) for number in plain.listed(plain.field(meta, "back")))
        after, done = plain.whole(plain.field(meta, "next"), 0, self.total), plain.whole(plain.field(meta, "done"))
        out = [hand.number for _, hand in hands if hand.number >= 0] + back
        if len(set(out)) != len(out) or done + len(out) != after or max(out, default=-1) >= after:
            raise PeerError(f"a copy's work list has {done} pieces done and {len(out)} out, of {after}")
        self._hands, self._back, self.next, self.done = plain.once(hands), back, after, done
