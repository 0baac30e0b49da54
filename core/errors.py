"""The error tree, and the words that stand for errors on the wire and in the channel.

Three kinds, three answers: a *bug* is an assertion and ends the process, a *peer* that breaks the protocol is dropped
while we keep serving, and the *world* (disk, memory, network) is retried within bounds and then told to the user.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Code(IntEnum):
    """Outcome of a request, the same number in the ctl page, on the wire and in every client."""

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


class Meaning(NamedTuple):
    """What happened and what to do, each one sentence."""

    happened: str
    remedy: str


MEANINGS: dict[Code, Meaning] = {
    Code.OK: Meaning("The request was carried out.", "Go on."),
    Code.SEQ: Meaning("The sequence number or the clock is not the next one.", "Send `hello` and go on at done_seq + 1."),
    Code.FORMAT: Meaning("The request line could not be read.", "Write `<verb> <seq> <clock> [key=value ...]` and a newline."),
    Code.RANGE: Meaning("A number, row or table lies outside what was declared.", "Compare the request with `info`; nothing was applied."),
    Code.SIZE: Meaning("A data file has not the size that `info` promises.", "Write exactly the declared bytes; nothing was applied."),
    Code.NONFINITE: Meaning("The push holds NaN or infinity, in a table or in a row.", "Look for an overflow in the program; nothing of the push was applied."),
    Code.TIMEOUT: Meaning("The answer did not come within `t=`.", "A push was accepted and is carried out later: do not send it again, `pull`."),
    Code.AGAIN: Meaning("There is no room for the request just now; nothing was done.", "Wait a moment and ring again with the same line."),
    Code.NOSERVER: Meaning("A server that holds part of the model is gone or out of reach.", "See `plugml status`; the text names the server."),
    Code.VERSION: Meaning("Program and agent speak different versions of the channel.", "Install the client that belongs to this plugml."),
    Code.PERM: Meaning("A file of the channel has another owner, type or mode than it must have.", "Let only the program and its agent touch the channel."),
    Code.GONE: Meaning("The agent is gone for good; whether the last request was carried out is unknown.", "End the program; run it again from the last checkpoint."),
    Code.NOSPC: Meaning("There is no room: in the channel root, on a server, or in the job's memory.", "Make room where the text says, or ask for less."),
    Code.COLLIDE: Meaning("Two string keys have the same hash; nothing was applied.", "Rename one of the two keys that the text names."),
    Code.STOP: Meaning("The job's stop rule has fired.", "End the training loop normally."),
    Code.INTERNAL: Meaning("plugml itself failed.", "Please report the text with the log of the agent."),
    Code.FENCED: Meaning("A newer incarnation of this worker has taken its place.", "End the program: its successor is at work."),
}


class PlugmlError(Exception):
    """Root of everything that plugml raises on purpose."""


class UsageError(PlugmlError):
    """The user asked for something that cannot be: exit code 2, nothing was started."""

    exit_code = 2


class PeerError(PlugmlError):
    """A peer broke the protocol: it is dropped and counted, everybody else is served on."""


class WorldError(PlugmlError):
    """Disk, memory or network said no."""

    exit_code = 1


class NoClusterError(PlugmlError):
    """There is no such cluster, or several and none was named."""

    exit_code = 69


class RootError(WorldError):
    """The channel root is full, has a foreign owner or is no in-memory file system."""

    exit_code = 73


class KeysError(WorldError):
    """Keys are missing, cannot be trusted, or are refused."""

    exit_code = 77


class RequestError(PlugmlError):
    """A definite refusal: the request was surely not applied.

    >>> str(RequestError(Code.SIZE, "grad has 8 bytes, 16 were declared"))
    'SIZE: grad has 8 bytes, 16 were declared'
    """

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(f"{code.name}: {text}")
        self.code = code
        self.text = text


def shown(value: object) -> str:
    """A value for an error's text: short, whatever it is.

    >>> shown(10 ** 5000)
    'a number of thousands of digits'
    """
    try:
        text = repr(value)
    except ValueError:  # Python refuses to write very long numbers
        return "a number of thousands of digits"
    except RecursionError:
        return "something deeply nested"
    return text if len(text) <= 80 else text[:77] + "..."
