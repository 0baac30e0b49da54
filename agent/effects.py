"""What the agent's machine asks of its host beyond sending: files of a channel, answers to launchers, and the events back.

A channel is named by its directory (`<job>.<worker>.<gen>`).  The effects of one request, in the order that the
contract fixes; a process may die between any two of them:

    SetCurrent -> ReadData -> (KeepPush) -> (Send ...) -> WriteParam ... -> WriteResult -> SetDone -> Reply

`WriteError` comes before `WriteResult` when the request failed.  Whoever performs them feeds the events below with
sender "".
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..core.errors import Code
from ..shm_protocol.request import Request
from ..shm_protocol.rows import Rows

Buffer = Any  # anything with the buffer protocol, by reference

# -- effects on a channel -----------------------------------------------------------------------------------------------


class OpenChannel(NamedTuple):
    """Open the directory as a channel of ours and watch its bell.  Answered by ChannelOpened or ChannelFailed."""

    channel: str


class ReadCmd(NamedTuple):
    """Read the request line.  Answered by CmdRead."""

    channel: str


class ReadData(NamedTuple):
    """Read what a push brings and which rows are wanted, and check all of it.  Answered by DataRead.

    For every request that pushes, and for every one with sections.
    """

    channel: str
    request: Request


class KeepPush(NamedTuple):
    """Copy the files that the request names into `pend.<slot>`, its head last.  Answered by PushKept.

    Checks nothing but sizes: what ReadData has not found good must not be accepted.  The slot must be free.
    """

    channel: str
    slot: int
    request: Request


class ReadKept(NamedTuple):
    """As ReadData, out of `pend.<slot>`.  Answered by DataRead."""

    channel: str
    slot: int
    request: Request


class DropPush(NamedTuple):
    """The push in `pend.<slot>` has been carried out, or has failed for good: the slot is free."""

    channel: str
    slot: int


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
    """Write `param.txt`: every dense value (the buffer is laid out like `param`, None = they take no part), then `rows`.

    The numbers are of the program's dtype; `rows` has one array for each section that wants some, in their order.
    Answered by ParamFailed, on error only.
    """

    channel: str
    buffer: Buffer | None
    rows: tuple[Any, ...] = ()


class WriteData(NamedTuple):
    """Write `<turn> <piece> <text>` into `data`, the text being line `piece` of the file `path`; path "" = nothing is left.

    Answered by DataWritten, or ParamFailed.
    """

    channel: str
    path: str
    piece: int
    turn: int


class WriteResult(NamedTuple):
    """What the coming `SetDone(seq)` will stand for.  Until then the words of the request before it stay valid.

    `clock` counts the clocks that the worker has finished after the request; `weight` the sum of the weights of its pushes in that clock, and
    `pushes` their number in this generation.  `flags` are those of done_flags (page.FLAG_STOP ...).  `sums` are the weights of the
    sparse tables in that clock, by name.
    """

    channel: str
    seq: int
    clock: int
    version: int
    status: int
    weight: float
    pushes: int
    flags: int = 0
    sums: tuple[tuple[str, float], ...] = ()


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


class CutExport(NamedTuple):
    """The final size of a file that was made with nbytes 0 and grew as it was written.  Answered by ExportFailed, on error only."""

    export: int
    file: str
    nbytes: int


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

    `clock` counts the clocks that the worker has finished; before the first answer it is that of `info`.  `kept` are pushes that an
    earlier agent accepted and did not see to the end: slot and request line, in the order of their seq.  `stop`: the reply of
    done_seq said it.
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
    kept: tuple[tuple[int, bytes], ...] = ()
    bell: str = "fifo"
    stop: bool = False
    flags: int = 0  # done_flags, the agent's own bits among them
    sums: tuple[tuple[str, float], ...] = ()  # as in WriteResult
    data_bytes: int = 0  # of `data`


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


class DataRead(NamedTuple):
    """What the request needs, or why it cannot be read.  Sizes, finiteness, ranges, keys are checked, numbers are of the storage's kind.

    `buffer` holds the dense part, laid out like `JobSpec.stored_layout`, None if it takes no part; it stays as it is until the
    next ReadData or ReadKept of the channel that finds it unlent.  `rows` has an entry for each section that pushes some, `wants`
    for each that wants some, as they came.  `crc` is the sample for `Tick.crc`.
    """

    channel: str
    buffer: Buffer | None = None
    rows: tuple[Rows, ...] = ()
    wants: tuple[Rows, ...] = ()
    crc: int = 0
    code: Code = Code.OK
    text: str = ""


class PushKept(NamedTuple):
    """The push is in its slot, whatever becomes of this process; or why it is not."""

    channel: str
    slot: int
    code: Code = Code.OK
    text: str = ""


class DataWritten(NamedTuple):
    """`data` has so many bytes now."""

    channel: str
    nbytes: int


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
