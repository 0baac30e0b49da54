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

REMEMBERED = 8  # clocks


class Told(NamedTuple):
    """The answer to a request: a piece and its pass, or NO_PIECE."""

    piece: int
    turn: int


class Hand(NamedTuple):
    """What a worker was told last, when it had finished so many `clocks`.

    `number` is the piece's place in the line of all passes, -1 = it holds none now.
    """

    gen: int
    request: int
    told: Told
    number: int
    clocks: int


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
        self._late: list[tuple[int, int]] = []  # (clocks, number) of pieces that were done by somebody who is ahead of `_settled` clocks
        self._settled = 0

    def ask(self, worker: int, gen: int, request: int, clocks: int = 0) -> Told | None:
        """The next piece for a worker that has finished so many clocks, or the same answer to the same request (and to SAME_PIECE); None for one that is over."""
        hand = self._hands.get(worker)
        if hand is not None and hand.gen == gen:
            if request in (hand.request, SAME_PIECE):
                return hand.told
            if request < hand.request:
                return None
            self.finish(worker, clocks)
        elif hand is not None:
            self.lose(worker)
        number = self._take()
        told = Told(number % self.pieces, number // self.pieces) if number >= 0 else Told(NO_PIECE, self.passes)
        self._hands[worker] = Hand(gen, request, told, number, clocks)
        return told

    def heard(self, worker: int, gen: int, request: int) -> bool:
        """Whether this request was answered before."""
        hand = self._hands.get(worker)
        return hand is not None and hand.gen == gen and request <= hand.request and request != SAME_PIECE

    def finish(self, worker: int, clocks: int = 0) -> None:
        """The piece that the worker holds is done, by pushes of its first `clocks` clocks."""
        number = self._put_down(worker)
        if number >= 0:
            self.done += 1
            if clocks > self._settled:
                self._late.append((clocks, number))

    def settle(self, clocks: int) -> None:
        """So many clocks are closed: what was done in them, but for the last few, is done for every checkpoint that is still to be written."""
        self._settled = max(self._settled, clocks - REMEMBERED)
        if self._late:
            self._late = [late for late in self._late if late[0] > self._settled]

    def undecided(self, worker: int, finished: int, clocks: int) -> bool:
        """Whether nobody knows yet if the worker's piece was done in its first `clocks` clocks: it has neither asked for the next one nor gone on."""
        hand = self._hands.get(worker)
        return hand is not None and hand.number >= 0 and finished <= clocks and hand.clocks < clocks

    def remembers(self, clocks: int) -> bool:
        """Whether what was done behind so many clocks is still known apart."""
        return self._settled <= clocks

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
        return (self.next, self.done, sorted(self._back), sorted(self._hands.items()), self._late, self._settled)

    def rewind(self, clocks: int) -> None:
        """From a checkpoint that has so many clocks: what was out comes back, as a whole, and what was done by later ones."""
        for finished, number in self._late:
            if finished > clocks:
                heapq.heappush(self._back, number)
                self.done -= 1
        self._late, self._settled = [], clocks
        for worker in list(self._hands):
            self.lose(worker)
        self._hands.clear()

    # -- copies

    def dump(self) -> dict[str, Any]:
        """Everything but what the job says, as a plain document."""
        hands = [(worker, hand.gen, hand.request, *hand.told, hand.number, hand.clocks) for worker, hand in sorted(self._hands.items())]
        return {"next": self.next, "done": self.done, "back": sorted(self._back), "hands": hands, "late": self._late, "settled": self._settled}

    def load(self, meta: Any) -> None:
        """What a copy's document says, in place of what is here.  Raises `PeerError`."""
        kinds = (plain.whole, plain.whole, plain.whole, plain.whole, plain.whole, plain.signed, plain.whole)
        found = plain.records(plain.field(meta, "hands"), *kinds)
        hands = [(worker, Hand(gen, request, Told(piece, turn), *rest)) for worker, gen, request, piece, turn, *rest in found]
        back = sorted(plain.whole(number, 0, max(0, self.total - 1)) for number in plain.listed(plain.field(meta, "back")))
        after, done = plain.whole(plain.field(meta, "next"), 0, self.total), plain.whole(plain.field(meta, "done"))
        out = [hand.number for _, hand in hands if hand.number >= 0] + back
        if len(set(out)) != len(out) or done + len(out) != after or max(out, default=-1) >= after:
            raise PeerError(f"a copy's work list has {done} pieces done and {len(out)} out, of {after}")
        late = [(clocks, number) for clocks, number in plain.records(plain.field(meta, "late"), plain.whole, plain.whole)]
        late_numbers = [number for _, number in late]
        if len(set(late_numbers + out)) != len(late) + len(out) or len(late) > done or max(late_numbers, default=-1) >= after:
            raise PeerError("a copy's work list has pieces done that cannot be")
        self._late, self._settled = late, plain.whole(plain.field(meta, "settled"))
        self._hands, self._back, self.next, self.done = plain.once(hands), back, after, done
