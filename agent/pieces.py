"""`next`: one piece of the job's input, handed out by the keeper of the clock, written into `data`.

The clock answers the same request of a stream the same, however often it is asked: a piece is handed out once per pass.
A piece that could not be written stays the worker's: an agent that no longer knows it asks for the same once more.
"""

from __future__ import annotations

from typing import Any

from ..core.effects import Send
from ..core.errors import Code, RequestError
from ..core.job import JobSpec
from ..wire import messages as m
from . import effects as e
from .channel import Channel
from .router import Job


def check_pieces(spec: JobSpec) -> None:
    """Raises `RequestError` for a job that has none to hand out."""
    if not spec.pieces or not isinstance(spec.settings.get("pieces_file"), str):
        raise RequestError(Code.FORMAT, "next: this job has no list of pieces to hand out; read your share by PLUGML_WORKER")


class Piece:
    """One request for a piece.  A piece that could not be written stays with the channel, for the next request."""

    __slots__ = ("channel", "job", "number", "asked", "told")

    def __init__(self, channel: Channel, job: Job, seq: int) -> None:
        self.channel = channel
        self.job = job
        self.number = m.SAME_PIECE if channel.piece_owed and channel.piece is None else seq
        self.asked = False
        self.told = False

    def pump(self) -> list[Any]:
        if self.asked or self.told:
            return []
        if self.channel.piece is not None:
            return self._write()
        self.asked = True
        return list(self._ask())

    def on_told(self, told: m.NextTold) -> list[Any]:
        if self.told or not self.asked or told.request != self.number:
            return []
        self.channel.piece = (told.piece, told.turn)
        self.channel.piece_owed = True
        return self._write()

    def _write(self) -> list[Any]:
        self.told = True
        assert self.channel.piece is not None
        piece, turn = self.channel.piece
        path = "" if piece == m.NO_PIECE else str(self.job.spec.settings["pieces_file"])
        return [e.WriteData(self.channel.name, path, piece, turn)]

    @property
    def owed_by_clock(self) -> bool:
        return self.asked and not self.told

    def resend_to_clock(self) -> list[Send]:
        return self._ask() if self.owed_by_clock else []

    def _ask(self) -> list[Send]:
        return self.job.to_clock(m.NextAsk, self.channel.worker, self.channel.gen, self.number)
