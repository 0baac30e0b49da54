"""What the agent's machine asks of its host beyond sending: files of a channel, answers to launchers, and the events back.

A channel is named by its directory (`<job>.<worker>.<gen>`).  The effects of one request, in the order that the
contract fixes; a process may die between any two of them:

    SetCurrent -> ReadPush -> (Send ...) -> WriteParam ... -> WriteResult -> SetDone -> Reply

`WriteError` comes before `WriteResult` when the request failed.  Whoever performs them feeds the events below with
sender "".
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..core.errors import Code

Buffer = Any  # anything with the buffer protocol, by reference

# -- effects on a channel -----------------------------------------------------------------------------------------------


class OpenChannel(NamedTuple):
    """Open the directory as a channel of ours and watch its bell.  Answered by ChannelOpened or ChannelFailed."""

    channel: str


class ReadCmd(NamedTuple):
    """Read the request line.  Answered by CmdRead."""

    channel: str


class ReadPush(NamedTuple):
    """Read `grad` (or parse `grad.txt`) into one aligned buffer laid out like the file.  Answered by PushRead.

    `exact`: the file's size must be the dense bytes (the request named no `n=`).
    """

    channel: str
    text: bool
    exact: bool


class ReadFiles(NamedTuple):
    """Read first values of tables with init=file: (path, offset, bytes) each.  Answered by FilesRead.

    They go into a buffer of `nbytes` that is laid out like `grad`.
    """

    channel: str
    nbytes: int
    files: tuple[tuple[str, int, int], ...]


class SetCurrent(NamedTuple):
    """`cur_seq`: the request has been read and is being worked on."""

    channel: str
    seq: int


class WriteParam(NamedTuple):
    """Write received bytes into `param` at an offset, in place.  Answered by ParamFailed, on error only."""

    channel: str
    offset: int
    buffer: Buffer


class WriteText(NamedTuple):
    """Write every dense value into `param.txt`; the buffer is laid out like `param`.  Answered by ParamFailed, on error only."""

    channel: str
    buffer: Buffer


class WriteResult(NamedTuple):
    """What the coming `SetDone(seq)` will stand for.  Until then the words of the request before it stay valid.

    `clock` counts the clocks that the worker has finished after the request; `weight` the sum of the weights of its pushes in that clock, and
    `pushes` their number in this generation.
    """

    channel: str
    seq: int
    clock: int
    version: int
    status: int
    weight: float
    pushes: int


class WriteError(NamedTuple):
    """The whole text of the last error."""

    channel: str
    text: str


class SetDone(NamedTuple):
    """The commit word: the request is answered, whatever happens to the reply."""

    channel: str
    seq: int


class Reply(NamedTuple):
    """64 bytes into the reply bell.  Answered by ReplyFailed when the program does not read its replies."""

    channel: str
    record: bytes


class SetState(NamedTuple):
    """The state word of the page (see shm_protocol)."""

    channel: str
    state: int


class CloseChannel(NamedTuple):
    """Stop watching the channel, note the state and, if asked, remove the directory."""

    channel: str
    state: int
    sweep: bool


# -- effects towards launchers and tools ------------------------------------------------------------------------------


class Tell(NamedTuple):
    """One JSON line to a connection of agent.sock (`ALL` = to each)."""

    connection: int
    document: dict[str, Any]


ALL = -1


class MakeExport(NamedTuple):
    """Start a raw file of `nbytes` under a temporary name in the directory `place`.  Answered by ExportFailed, on error only."""

    export: int
    place: str
    file: str
    nbytes: int


class WriteExport(NamedTuple):
    """Write bytes into a file that MakeExport started.  Answered by ExportFailed, on error only."""

    export: int
    file: str
    offset: int
    buffer: Buffer


class EndExport(NamedTuple):
    """Give every file of the export its final name, or (`keep` False) remove what was written.

    Answered by ExportEnded or ExportFailed when `keep`.
    """

    export: int
    keep: bool


# -- events: what those effects answer, and what the host reports ------------------------------------------------------


class Bell(NamedTuple):
    """The program has rung."""

    channel: str


class Found(NamedTuple):
    """At the agent's start: a channel that an earlier agent left and that its launcher still keeps."""

    channel: str


class ChannelOpened(NamedTuple):
    """The directory is ours to serve.  The words are those of `info` and of the page, valid for `done_seq`.

    `clock` counts the clocks that the worker has finished; before the first answer it is that of `info`.
    """

    channel: str
    job: str
    number: int
    worker: int
    gen: int
    done_seq: int
    cur_seq: int
    clock: int
    version: int
    status: int
    weight: float
    pushes: int
    elements: int  # of all dense tables


class ChannelFailed(NamedTuple):
    channel: str
    code: Code
    text: str


class CmdRead(NamedTuple):
    """The request line without its newline, None when there is no whole line yet; or why `cmd` cannot be read."""

    channel: str
    line: bytes | None
    code: Code = Code.OK
    text: str = ""


class PushRead(NamedTuple):
    """The numbers, or why they cannot be read.  The buffer stays as it is until the next ReadPush of the channel."""

    channel: str
    buffer: Buffer | None
    code: Code = Code.OK
    text: str = ""


class FilesRead(NamedTuple):
    """The files' values, or why they cannot be had."""

    channel: str
    buffer: Buffer | None
    code: Code = Code.OK
    text: str = ""


class ParamFailed(NamedTuple):
    channel: str
    code: Code
    text: str


class ReplyFailed(NamedTuple):
    """The program has left its bell full of unread replies."""

    channel: str
    text: str


class KeeperGone(NamedTuple):
    """Nobody keeps the channel any more: its launcher died without a word."""

    channel: str


class Asked(NamedTuple):
    """One JSON object from a connection of agent.sock."""

    connection: int
    document: dict[str, Any]


class Hung(NamedTuple):
    """A connection of agent.sock has ended."""

    connection: int


class ExportFailed(NamedTuple):
    export: int
    code: Code
    text: str


class ExportEnded(NamedTuple):
    export: int
    nbytes: int
