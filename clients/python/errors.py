"""The outcome codes of the channel (SPEC.md, section 8), each with what happened and what to do."""

from __future__ import annotations

from enum import IntEnum


class Code(IntEnum):
    """Outcome of a request."""

    OK = 0
    SEQ = 1
    FORMAT = 2
    RANGE = 3
    SIZE = 4
    NONFINITE = 5
    TIMEOUT = 6
    AGAIN = 7
    NOSERVER = 8
    VERSION = 9
    PERM = 10
    GONE = 11
    NOSPC = 12
    COLLIDE = 13
    STOP = 14
    INTERNAL = 15
    FENCED = 16


#: What happened, and what to do.
MEANINGS: dict[Code, tuple[str, str]] = {
    Code.OK: ("The request was carried out.", "Go on."),
    Code.SEQ: ("The sequence number or the clock is not the next one.", "Send `hello` and go on at done_seq + 1."),
    Code.FORMAT: ("The request line could not be read.", "Write `<verb> <seq> <clock> [key=value ...]` and a newline."),
    Code.RANGE: (
        "A number, row or table lies outside what was declared.",
        "Compare the request with `info`; nothing was applied.",
    ),
    Code.SIZE: (
        "A data file has not the size that `info` promises.",
        "Write exactly the declared bytes; nothing was applied.",
    ),
    Code.NONFINITE: (
        "The push holds NaN or infinity, in a table or in a row.",
        "Look for an overflow in the program; nothing of the push was applied.",
    ),
    Code.TIMEOUT: (
        "The answer did not come within `t=`.",
        "A push was accepted and is carried out later: do not send it again, `pull`.",
    ),
    Code.AGAIN: (
        "There is no room for the request just now; nothing was done.",
        "Wait a moment and ring again with the same line.",
    ),
    Code.NOSERVER: (
        "A server that holds part of the model is gone or out of reach.",
        "See `plugml status`; the text names the server.",
    ),
    Code.VERSION: (
        "Program and agent speak different versions of the channel.",
        "Install the client that belongs to this plugml.",
    ),
    Code.PERM: (
        "A file of the channel has another owner, type or mode than it must have.",
        "Let only the program and its agent touch the channel.",
    ),
    Code.GONE: (
        "The agent is gone for good; whether the last request was carried out is unknown.",
        "End the program; run it again from the last checkpoint.",
    ),
    Code.NOSPC: ("There is no room: in the channel root, on a server, or in the job's memory.", "Make room where the text says, or ask for less."),
    Code.COLLIDE: (
        "Two string keys have the same hash; nothing was applied.",
        "Rename one of the two keys that the text names.",
    ),
    Code.STOP: ("The job's stop rule has fired.", "End the training loop normally."),
    Code.INTERNAL: ("plugml itself failed.", "Please report the text with the log of the agent."),
    Code.FENCED: (
        "A newer incarnation of this worker has taken its place.",
        "End the program: its successor is at work.",
    ),
}

#: After these the channel answers nothing any more.
FATAL = frozenset({Code.VERSION, Code.GONE, Code.FENCED})


class ChannelError(RuntimeError):
    """A request failed.  `code` says how, `text` to what, `remedy` what to do.

    All codes but GONE mean that the request was surely not applied.

    >>> str(ChannelError(Code.SIZE, "g has 3 elements, table w has 4"))
    'SIZE: g has 3 elements, table w has 4. Write exactly the declared bytes; nothing was applied.'
    """

    def __init__(self, code: Code, text: str = "") -> None:
        happened, self.remedy = MEANINGS[code]
        self.code = code
        self.text = text or happened.rstrip(".")
        super().__init__(f"{code.name}: {self.text}. {self.remedy}")
