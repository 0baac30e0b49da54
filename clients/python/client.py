"""A program's handle on its channel: tables as numpy arrays, one request per call, clocks.

Refuses to know what the numbers mean.  One handle belongs to one thread at a time; a forked child must not use its
parent's.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Union, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import FATAL, ChannelError, Code
from .files import AGAIN_TRIES, INFO_BYTES_MAX, PIECE_BYTES_MAX, PROTOCOL_VERSION, ChannelFiles, Piece, Reply, pause
from .rows import Sections, SparseTable, is_pair
from .semaphore import Semaphore
from .tables import Table, matched, parse_tables, table_named

#: What may be pushed: one array, several by name (of a sparse table a pair of rows and values), or one after the other in
#: the order of the dense tables.
Numbers = Union[ArrayLike, Mapping[str, Any], None]
#: What may be filled in place.
Places = Union[NDArray[Any], Mapping[str, NDArray[Any]], Sequence[NDArray[Any]], None]
#: Rows of sparse tables that are asked for: numbers, or strings.
Wants = Mapping[str, Any]
#: The rows that came, by table: the i-th one is the i-th that was asked for.
Rows = dict[str, NDArray[Any]]

WEIGHT_MAX = 2.0**53
TIMEOUT_MS_MAX = 1 << 31


def attach(environ: Mapping[str, str] | None = None, *, mapped: bool = True) -> Client:
    """Attach to the channel that `PLUGML_DIR` names and say hello; without it, a handle that does nothing.

    `mapped=False` reads and writes the files instead of mapping them.  Raises `ChannelError` if there is a channel but
    it cannot be used: a program that should be plugged never runs alone.

    >>> attach({}).step([1.0], np.zeros(1))
    False
    """
    environ = os.environ if environ is None else environ
    directory = environ.get("PLUGML_DIR", "")
    return Client(directory, environ, mapped=mapped)


class Client:
    """A channel, or nothing when the program runs alone (`plugged` is False then).

    Arrays are given as one array (jobs with one table), as a mapping from table names, or as a sequence in the order of
    `tables`.  An array has the table's shape, or is flat in the order of the file.  `None` means that the numbers lie in
    `grad()` already, or shall stay in `param()`.

    Sparse tables travel by rows: `g` maps them to pairs of rows and values, `want` to the rows that shall come back.
    Beside rows the dense tables take part iff `g` gives them; in a `pull` iff `w` does.

    `timeout` is in seconds.  After TIMEOUT a push or step is under way: it must not be repeated, and the clock counts it.
    """

    def __init__(self, directory: str, environ: Mapping[str, str], *, mapped: bool = True) -> None:
        self.plugged = bool(directory)
        self.tables: tuple[Table, ...] = ()  # the dense ones
        self.sparse: dict[str, SparseTable] = {}
        self.job = environ.get("PLUGML_JOB", "") if self.plugged else ""
        self.worker = 0
        self.workers = 1
        self.clock = 0  # clocks finished
        self.lag = 0  # clocks that the slowest worker is behind
        self.version = 0  # of the values last pulled
        self.done = False  # the job's stop rule has fired: end the loop
        self._pid = os.getpid()
        self._seq = 0
        self._asked = b""  # a request whose reply was not read, because an interrupt came
        self._lost = False  # somebody else has used the channel: say hello again
        self._fatal: ChannelError | None = None
        self._closed = not self.plugged
        self._mapped = mapped
        self._buffers: dict[str, Any] = {}  # grad, param, gidx and want, laid out like the files
        if self.plugged:
            self._files = ChannelFiles(directory)
            try:
                self._open()
            except BaseException:
                self._files.close()
                raise

    # -- who and where am I

    def __bool__(self) -> bool:
        """True when plugged."""
        return self.plugged

    def main(self) -> bool:
        """True alone and in worker 0: the one that prints and saves."""
        return self.worker == 0

    def table(self, name: str | None = None) -> Table:
        """The dense table of that name; without a name the only one.  Raises `ChannelError` RANGE."""
        return table_named(self.tables, name)

    def grad(self, name: str | None = None) -> NDArray[Any]:
        """The place of a push, in the table's shape: fill it and call `step(None, w)`.  Not between a ring and its reply."""
        return self._view(name, "grad")

    def param(self, name: str | None = None) -> NDArray[Any]:
        """The values last pulled, in the table's shape, read-only; the next pull changes them."""
        return self._view(name, "param")

    @property
    def stopped(self) -> bool:
        """The job's stop rule has fired (`done`): the loop shall end."""
        return self.done

    # -- requests; each returns True when it was carried out and False alone; with `want` the rows that came, {} alone

    @overload
    def step(self, g: Numbers = None, w: Places = None, *, want: None = None, weight: float = 1.0, timeout: float | None = None) -> bool: ...
    @overload
    def step(self, g: Numbers = None, w: Places = None, *, want: Wants, weight: float = 1.0, timeout: float | None = None) -> Rows: ...
    def step(
        self, g: Numbers = None, w: Places = None, *, want: Wants | None = None, weight: float = 1.0, timeout: float | None = None
    ) -> bool | Rows:
        """Push `g`, end this clock, and fill `w` in place with what the consistency model lets this worker see.

        `weight` counts the examples behind `g`.  At the job's stop rule it sets `done` and leaves `w`.  Raises
        `ChannelError`; with any code but GONE and TIMEOUT nothing was applied and the clock has not moved.
        """
        return self._request("step", pushing=True, g=g, pulling=True, w=w, want=want, weight=weight, timeout=timeout)

    def push(self, g: Numbers = None, *, weight: float = 1.0, wait: bool = True, timeout: float | None = None) -> bool:
        """Push `g` without ending the clock; there may be several in one.

        With `wait=False` it comes back when the push is accepted; one that fails later is told by the next request.
        """
        words = "" if wait else " async=1"
        return bool(self._request("push", pushing=True, g=g, weight=weight, timeout=timeout, words=words))

    @overload
    def pull(self, w: Places = None, *, want: None = None, timeout: float | None = None) -> bool: ...
    @overload
    def pull(self, w: Places = None, *, want: Wants, timeout: float | None = None) -> Rows: ...
    def pull(self, w: Places = None, *, want: Wants | None = None, timeout: float | None = None) -> bool | Rows:
        """Fill `w` with the values that a worker in this clock may see."""
        return self._request("pull", pulling=True, w=w, want=want, timeout=timeout)

    @overload
    def pushpull(self, g: Numbers = None, w: Places = None, *, want: None = None, weight: float = 1.0, timeout: float | None = None) -> bool: ...
    @overload
    def pushpull(self, g: Numbers = None, w: Places = None, *, want: Wants, weight: float = 1.0, timeout: float | None = None) -> Rows: ...
    def pushpull(
        self, g: Numbers = None, w: Places = None, *, want: Wants | None = None, weight: float = 1.0, timeout: float | None = None
    ) -> bool | Rows:
        """`push`, then `pull`, without ending the clock."""
        return self._request("pushpull", pushing=True, g=g, pulling=True, w=w, want=want, weight=weight, timeout=timeout)

    def init(self, w: Places = None) -> bool:
        """Offer `w` as the first values of tables with init=program, and fill it with the values that the job took."""
        return bool(self._request("init", pushing=True, g=w, pulling=True, w=w))

    def tick(self, *, timeout: float | None = None) -> bool:
        """End this clock without a push."""
        return bool(self._request("clock", timeout=timeout))

    def ping(self) -> bool:
        """A round trip to the agent."""
        return bool(self._request("ping"))

    def next(self) -> Piece | None:
        """The next piece of input that this worker shall read; None alone, and when nothing is left.

        Asking for it says that the one before is done.
        """
        if not self.plugged:
            return None
        self._check_usable()
        self._judge(self._carry_out("next", f" {self.clock}"))
        line = self._files.text("data", PIECE_BYTES_MAX)  # not all replies say how long it is: one that is repeated does not
        return Piece.parse(line) if line else None

    def pieces(self, alone: Iterable[str] = ()) -> Iterator[Piece]:
        """The pieces of input for this worker, as they come; alone what `alone` lists, once.  Ends at the stop rule."""
        if not self.plugged:
            yield from (Piece(text, number, 0) for number, text in enumerate(alone))
            return
        while not self.done and (piece := self.next()) is not None:
            yield piece

    def bye(self) -> bool:
        """This worker has finished; nobody waits for it any more.  Closes the handle.  In a forked child it does nothing."""
        if self._closed or os.getpid() != self._pid:
            return False
        try:
            return bool(self._request("bye"))
        finally:
            self.close()

    def close(self) -> None:
        """Let go of the files without a word: the end of the program tells whether it was a good one."""
        if not self._closed:
            self._closed = True
            self._buffers.clear()  # views that the program still has keep the memory
            self._files.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: object, *_rest: object) -> None:
        """Say bye at the normal end of the block, nothing when it ends by an exception."""
        if kind is None:
            self.bye()
        else:
            self.close()

    def clocks(self, stop: int) -> Iterator[int]:
        """The clocks from the one to go on with to `stop` - 1; ends early when the job's stop rule fires.

        The body calls `step` or `tick` once.
        """
        while self.clock < stop and not self.done:
            clock = self.clock
            yield clock
            if not self.plugged:
                self.clock += 1
            elif self.clock == clock and not self.done:
                raise ChannelError(Code.SEQ, f"clock {clock} was not ended: call step() or tick() once in each turn of the loop")

    # -- inside

    def _view(self, name: str | None, place: str) -> NDArray[Any]:
        table = self.table(name)
        if self._closed:
            raise ChannelError(Code.SEQ, f"the handle is closed: take {place}() before bye()")
        array = table.view(self._buffers[place])
        array.flags.writeable = place == "grad"
        return array

    def _open(self) -> None:
        self._files.check_page()
        self._read_info(self._files.text("info", INFO_BYTES_MAX))
        for name, nbytes in self._caps.items():
            self._buffers[name] = self._files.map(name, nbytes) if self._mapped and nbytes else np.zeros(nbytes, np.uint8)
        self._files.discard_replies()
        self._hello()

    def _read_info(self, text: str) -> None:
        version = next((line[8:] for line in text.splitlines() if line.startswith("version=")), "none")
        if version != str(PROTOCOL_VERSION):
            raise ChannelError(Code.VERSION, f"the channel speaks version {version}, this client {PROTOCOL_VERSION}")
        try:
            head, self.tables, self.sparse = parse_tables(text)
            self.job, self.worker, self.workers = head["job"], int(head["worker"]), int(head["workers"])
            self._elements = int(head["count"])
            caps = {"grad": "cap_grad", "param": "cap_param", **({"gidx": "cap_idx", "want": "cap_idx"} if head["cap_idx"] != "0" else {})}
            self._caps = {name: int(head[cap]) for name, cap in caps.items()}
            bell, name = head["bell"], head.get("sem", "")
        except (KeyError, ValueError) as error:
            raise ChannelError(Code.VERSION, f"{self._files.path}/info cannot be read ({error})") from None
        if bell not in ("fifo", "sem"):
            raise ChannelError(Code.VERSION, f"the channel has the bell {bell}, which this client does not know: use bell=fifo")
        self._dense_bytes = max((table.offset + table.elements * table.dtype.itemsize for table in self.tables), default=0)
        if bell == "sem":
            self._files.semaphore = Semaphore(name)

    def _hello(self) -> None:
        self._files.ask(f"hello 0 {self.clock}\n".encode())
        reply = self._files.wait(0)
        self._judge(reply)
        self._seq, self.clock, self._lost = reply.done, reply.clock, False

    def _request(
        self, verb: str, *, pushing: bool = False, g: Any = None, pulling: bool = False, w: Any = None, want: Wants | None = None,
        weight: float = 1.0, timeout: float | None = None, words: str = "",
    ) -> bool | Rows:  # fmt: skip
        if not self.plugged:
            return False if want is None else {}
        self._check_usable()
        rows, g = self._split(g) if pushing and verb != "init" else ({}, g)
        sections = Sections.of(self.sparse, rows, want or {})
        dense = not sections or g is not None or (not pushing and w is not None)
        if w is not None and not dense:
            raise ChannelError(Code.FORMAT, "beside rows w is filled where g gives the dense tables, too: give them, or pull(w) alone")
        places = matched(self.tables, w, "w", writable=True) if pulling and w is not None else []
        words = f"{_weight(weight) if pushing else ''}{_limit(timeout)}{words}{sections.words()}"
        if dense and (pushing or sections):
            words = f" n={self._elements}{words}"
        if pushing:
            self._fill_push(g, sections, dense)
        if pulling and sections:
            self._fill_index(sections, "want", "wkey")
        reply = self._carry_out(verb, f" {self.clock}{words}")
        if reply.code is Code.STOP:
            self.done = True
            return True if want is None else self.pull(want=want)  # pulls are served on
        self._judge(reply)
        if pulling:
            self.version = reply.version
            if not self._mapped:
                nbytes = sections.param_bytes(self._dense_bytes if dense else 0)
                self._files.read_into("param", self._buffers["param"][:nbytes])
            for table, array in places:
                np.copyto(table.shaped(array), table.view(self._buffers["param"]), casting="same_kind")
        return True if want is None else sections.take(self._buffers["param"], self._dense_bytes if dense else 0)

    def _split(self, g: Any) -> tuple[dict[str, Any], Any]:
        """The sparse tables of what shall be pushed, and the rest: None if there is none."""
        if not isinstance(g, Mapping):
            return {}, g
        dense = {table.name for table in self.tables}
        rows = {name: value for name, value in g.items() if name in self.sparse or (name not in dense and is_pair(value))}
        rest = {name: value for name, value in g.items() if name not in rows}
        return rows, rest if rest or not rows else None

    def _fill_push(self, g: Any, sections: Sections, dense: bool) -> None:
        buffer, end = self._buffers["grad"], self._dense_bytes if dense else 0
        if g is not None:
            for table, array in matched(self.tables, g, "g"):
                np.copyto(table.view(buffer), table.shaped(array), casting="same_kind")
        if sections:
            end = sections.fill_grad(buffer, end)
            self._fill_index(sections, "gidx", "gkey")
        if not self._mapped:
            self._files.write("grad", buffer[:end])

    def _fill_index(self, sections: Sections, numbers: str, keys: str) -> None:
        if numbers in self._buffers:
            end = sections.fill_index(numbers, self._buffers[numbers])
            if not self._mapped:
                self._files.write(numbers, self._buffers[numbers][:end])
        if sections.has_strings:
            self._files.rewrite(keys, sections.keys(keys))

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise ChannelError(Code.PERM, f"process {os.getpid()} is a forked child of {self._pid}, whose channel this is: call plugml from there")
        if self._fatal is not None:
            raise self._fatal
        if self._closed:
            raise ChannelError(Code.SEQ, "the handle is closed: bye() and close() are the last calls")
        if self._asked:
            self._settle()
        if self._lost:
            self._hello()

    def _carry_out(self, verb: str, rest: str) -> Reply:
        seq = self._seq + 1
        line = f"{verb} {seq}{rest}\n".encode()
        seconds = 0.0
        for left in reversed(range(AGAIN_TRIES)):
            self._asked = line
            self._files.ask(line)
            try:
                reply = self._files.wait(seq)
            except ChannelError as error:
                self._fatal = error
                raise
            self._asked = b""
            if reply.code is not Code.AGAIN:
                break
            if left:
                seconds = pause(seconds)
        self._lost = reply.code is Code.SEQ
        if reply.code is Code.AGAIN:  # it has not been answered for good: its number is the next one's
            return reply
        self._seq, self.lag = seq, self.lag if reply.lag is None else reply.lag
        if reply.code not in FATAL:
            self.clock = reply.clock
        self.done = self.done or reply.stop
        return reply

    def _settle(self) -> None:
        """See a request through whose caller was interrupted: nobody else may have the files before it is answered."""
        seq = self._seq + 1
        if self._files.done_seq() < seq:
            self._files.ask(self._asked)  # it may not have got as far as the bell; twice does no harm
            self._files.wait(seq)
        self._files.discard_replies()
        self._asked, self._lost = b"", True

    def _judge(self, reply: Reply) -> None:
        if reply.ok:
            return
        error = ChannelError(reply.code, self._error_text(reply.code))
        if reply.code in FATAL:
            self._fatal = error
        raise error

    def _error_text(self, code: Code) -> str:
        """The agent's own sentence, if it is about this code."""
        try:
            text = self._files.text("err", 4096).strip()
        except ChannelError:
            return ""
        start, _colon, rest = text.partition(": ")
        return rest.rstrip(".") if start.split(" ")[0] == code.name else ""


def _weight(weight: float) -> str:
    if not 0 <= weight <= WEIGHT_MAX:
        raise ChannelError(Code.RANGE, f"weight={weight!r}; a weight is from 0 to 2^53")
    return "" if weight == 1.0 else f" w={float(weight)!r}"


def _limit(timeout: float | None) -> str:
    """The word for a limit in seconds."""
    if timeout is None:
        return ""
    if not 0 <= timeout * 1000 <= TIMEOUT_MS_MAX:
        raise ChannelError(Code.RANGE, f"timeout={timeout!r}; it is in seconds, from 0 on, up to {TIMEOUT_MS_MAX // 1000}")
    return f" t={math.ceil(timeout * 1000)}"
