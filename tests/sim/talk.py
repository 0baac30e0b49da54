"""What is said on a channel, taken apart by a stranger's means: replies, and how a program ends.  Knows no machine."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

from .workload import Content

Steps = Generator[int, None, Any]  # yields microseconds until the next step, or WAIT for the bell
WAIT = -1


class Answer(NamedTuple):
    """A reply, taken apart by a stranger's means."""

    ok: bool
    seq: int
    clock: int
    words: dict[str, str]

    @property
    def code(self) -> str:
        return self.words.get("code", "OK")


class Failed(Exception):
    """The request was refused; a serial program ends with it."""


class Stopped(Exception):
    """The job has ended for all workers: the training loop ends."""


def parse(record: bytes) -> Answer:
    words = record.decode("ascii").split()
    rest = dict(word.split("=", 1) for word in words[3:])
    return Answer(words[0] == "ok", int(words[1]), int(words[2]), rest)


NOTHING = Content(False, ())
#: Verbs whose wait may be bounded by t=, those that may stand behind what was accepted before, and those that end with the job.
TIMED = ("push", "pull", "pushpull", "step", "clock")
STANDS_FOR_ALL = (*TIMED, "bye")
ENDED = ("push", "pushpull", "step", "clock")
READING = ("init", "pull", "pushpull", "step")
