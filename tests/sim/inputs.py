"""Input pieces as programs saw them: each goes out once a pass, in order, and comes back when its worker dies.

A piece is *out* with a stream that was told it, *done* once that stream was answered its next question or its bye, *back*
when the stream died with it, and *unsure* when it died while such a question was under way: then only the keeper knows.
"""

from __future__ import annotations

from .checkers import Broken, Stream

OUT, DONE, BACK, UNSURE = "out", "done", "back", "unsure"


class Input:
    """The line of all passes; a piece's number in it is turn x pieces + piece."""

    def __init__(self, pieces: int, passes: int) -> None:
        self.pieces = pieces
        self.total = pieces * max(1, passes)
        self.state: dict[int, str] = {}
        self.holder: dict[int, Stream] = {}
        self.holds: dict[Stream, int] = {}
        self.asking: dict[Stream, None] = {}  # a question, or a bye, is under way
        self.refused: dict[Stream, None] = {}  # was told that there is no room for its piece
        self.hidden: dict[Stream, None] = {}  # died while asking: may have been given a piece that nobody saw
        self.replaced: dict[Stream, None] = {}  # dead, and its successor has joined or it has left: what it held has come back
        self.unseen_left = 0  # streams that left with a piece which they had never seen: it comes back then
        self.began: dict[Stream, int] = {}  # how many such had left when the stream's question began

    # -- what happens to streams

    def ask(self, stream: Stream) -> None:
        self.asking[stream] = None
        if stream not in self.refused:  # else the piece that it is about to see was taken out for an earlier question
            self.began[stream] = self.unseen_left

    def died(self, stream: Stream) -> None:
        number = self.holds.pop(stream, None)
        asking = stream in self.asking
        if number is not None:
            self.state[number] = UNSURE if asking else BACK
        if asking:
            del self.asking[stream]
            self.hidden[stream] = None

    def succeeded(self, worker: int, gen: int) -> None:
        """Every lower incarnation is fenced: its piece is there for others."""
        for stream in [*self.hidden, *self.holder.values()]:
            if stream[0] == worker and stream[1] < gen:
                self.replaced[stream] = None
                self.hidden.pop(stream, None)

    def left(self, stream: Stream) -> None:
        """It has said bye or ended: what it held is done, and what it never saw is there for others."""
        if stream in self.refused:
            del self.refused[stream]
            self.unseen_left += 1
        self._finish(stream)

    def refuse(self, stream: Stream) -> None:
        """Its piece could not be handed over."""
        self.refused[stream] = None

    def _finish(self, stream: Stream) -> None:
        self.asking.pop(stream, None)
        self.refused.pop(stream, None)
        number = self.holds.pop(stream, None)
        if number is not None:
            self.state[number] = DONE

    # -- what a stream is told

    def begin(self) -> list[int]:
        """What must be out, or done, before a question that begins now may be told that nothing is left."""
        return [
            number for number, state in self.state.items()
            if state == BACK and self.holder[number] in self.replaced
        ]  # fmt: skip

    def told(self, stream: Stream, turn: int, piece: int) -> None:
        number = turn * self.pieces + piece
        if not (0 <= piece < self.pieces and 0 <= number < self.total):
            raise Broken(f"stream {stream} was given piece {piece} of pass {turn}, which there is not")
        state = self.state.get(number)
        if state in (OUT, DONE):
            raise Broken(f"stream {stream} was given piece {piece} of pass {turn}, which {self.holder[number]} has ({state})")
        if state is None:
            missing = [other for other in range(number) if other not in self.state]
            if len(missing) > self._unseen(stream):
                raise Broken(f"stream {stream} was given piece {piece} of pass {turn} while {missing[:5]} were never given to anybody")
        self._finish(stream)
        self.state[number], self.holder[number], self.holds[stream] = OUT, stream, number

    def told_empty(self, stream: Stream, due: list[int]) -> None:
        """Nothing is left; `due` is what `begin` said when the question began."""
        self._finish(stream)
        lost = [number for number in due if self.state[number] == BACK]
        if lost:
            raise Broken(f"stream {stream} was told that nothing is left, but pieces {lost[:5]} had come back from the dead")
        missing = [number for number in range(self.total) if number not in self.state]
        if len(missing) > self._unseen(stream):
            raise Broken(f"stream {stream} was told that nothing is left, but pieces {missing[:5]} were never given to anybody")

    def _unseen(self, stream: Stream) -> int:
        """Pieces that may be out without anybody having seen them: each question under way, and each that died with its program."""
        return sum(other != stream for other in self.asking) + len(self.hidden) + self.unseen_left - self.began.get(stream, 0)
