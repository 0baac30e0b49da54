"""A program's handle on its channel: tables as numpy arrays, one request per call, clocks.

Refuses to know what the numbers mean.  One handle belongs to one thread at a time; a forked child must not use its
parent's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Union

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import FATAL, ChannelError, Code
from .files import INFO_BYTES_MAX, PROTOCOL_VERSION, ChannelFiles, Reply, pause

#: What may be pushed: one array, several by name, or one after the other in the order of the tables.
Numbers = Union[ArrayLike, Mapping[str, ArrayLike], None]
#: What may be filled in place.
Places = Union[NDArray[Any], Mapping[str, NDArray[Any]], Sequence[NDArray[Any]], None]

_DTYPES: dict[str, np.dtype[Any]] = {"f32": np.dtype("<f4"), "f64": np.dtype("<f8"), "i64": np.dtype("<i8")}
WEIGHT_MAX = 2.0**53


class Table(NamedTuple):
    """A dense table: its shape, and where it lies in the files (`offset` in bytes)."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    order: str
    offset: int
    elements: int

    def view(self, buffer: Any) -> NDArray[Any]:
        """The table inside a buffer laid out like `grad` and `param`, in its shape and order; nothing is copied."""
        flat: NDArray[Any] = np.frombuffer(buffer, self.dtype, self.elements, self.offset)
        return flat.reshape(self.shape, order="F" if self.order == "F" else "C")


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
    """

    def __init__(self, directory: str, environ: Mapping[str, str], *, mapped: bool = True) -> None:
        self.plugged = bool(directory)
        self.tables: tuple[Table, ...] = ()
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
        self._buffers: dict[str, Any] = {}  # grad and param, laid out like the files
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
        """The table of that name; without a name the only one.  Raises `ChannelError` RANGE."""
        if name is None and len(self.tables) == 1:
            return self.tables[0]
        for table in self.tables:
            if table.name == name:
                return table
        known = ", ".join(table.name for table in self.tables) or "none"
        raise ChannelError(Code.RANGE, f"{'no table is named' if name is None else f'there is no table {name!r}'}; known are {known}")

    def grad(self, name: str | None = None) -> NDArray[Any]:
        """The place of a push, in the table's shape: fill it and call `step(None, w)`.  Not between a ring and its reply."""
        return self._view(name, "grad")

    def param(self, name: str | None = None) -> NDArray[Any]:
        """The values last pulled, in the table's shape, read-only; the next pull changes them."""
        return self._view(name, "param")

    # -- requests; each returns True when it was carried out and False alone

    def step(self, g: Numbers = None, w: Places = None, *, weight: float = 1.0) -> bool:
        """Push `g`, end this clock, and fill `w` in place with what the consistency model lets this worker see.

        `weight` counts the examples behind `g`.  At the job's stop rule it sets `done` and leaves `w`.  Raises
        `ChannelError`; with any code but GONE nothing was applied and the clock has not moved.
        """
        return self._request("step", pushing=True, g=g, pulling=True, w=w, weight=weight)

    def push(self, g: Numbers = None, *, weight: float = 1.0) -> bool:
        """Push `g` without ending the clock; there may be several in one."""
        return self._request("push", pushing=True, g=g, weight=weight)

    def pull(self, w: Places = None) -> bool:
        """Fill `w` with the values that a worker in this clock may see."""
        return self._request("pull", pulling=True, w=w)

    def pushpull(self, g: Numbers = None, w: Places = None, *, weight: float = 1.0) -> bool:
        """`push`, then `pull`, without ending the clock."""
        return self._request("pushpull", pushing=True, g=g, pulling=True, w=w, weight=weight)

    def init(self, w: Places = None) -> bool:
        """Offer `w` as the first values of tables with init=program, and fill it with the values that the job took."""
        return self._request("init", pushing=True, g=w, pulling=True, w=w)

    def tick(self) -> bool:
        """End this clock without a push."""
        return self._request("clock")

    def ping(self) -> bool:
        """A round trip to the agent."""
        return self._request("ping")

    def bye(self) -> bool:
        """This worker has finished; nobody waits for it any more.  Closes the handle.  In a forked child it does nothing."""
        if self._closed or os.getpid() != self._pid:
            return False
        try:
            return self._request("bye")
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
        nbytes = max((table.offset + table.elements * table.dtype.itemsize for table in self.tables), default=0)
        for name in ("grad", "param"):
            self._buffers[name] = self._files.map(name, nbytes) if self._mapped and nbytes else np.zeros(nbytes, np.uint8)
        self._files.discard_replies()
        self._hello()

    def _read_info(self, text: str) -> None:
        head: dict[str, str] = {}
        tables = []
        for line in text.splitlines():
            words = dict(word.partition("=")[::2] for word in line.split(" "))
            if "table" in words:
                tables.append(words)
            else:
                head.update(words)
        if head.get("version") != str(PROTOCOL_VERSION):
            raise ChannelError(Code.VERSION, f"the channel speaks version {head.get('version')}, this client {PROTOCOL_VERSION}")
        try:
            self.job, self.worker, self.workers = head["job"], int(head["worker"]), int(head["workers"])
            self._elements = int(head["count"])
            self.tables = tuple(
                Table(
                    words["table"], tuple(int(n) for n in words["shape"].split(",")), _DTYPES[words["dtype"]], words["order"],
                    int(words["offset"]), int(words["count"]),
                )
                for words in tables
                if words["kind"] == "dense"
            )  # fmt: skip
        except (KeyError, ValueError) as error:
            raise ChannelError(Code.VERSION, f"{self._files.path}/info cannot be read ({error})") from None

    def _hello(self) -> None:
        self._files.ask(f"hello 0 {self.clock}\n".encode())
        reply = self._files.wait(0)
        self._judge(reply)
        self._seq, self.clock, self._lost = reply.done, reply.clock, False

    def _request(
        self, verb: str, *, pushing: bool = False, g: Any = None, pulling: bool = False, w: Any = None, weight: float = 1.0
    ) -> bool:
        if not self.plugged:
            return False
        self._check_usable()
        places = self._matched(w, "w", writable=True) if pulling and w is not None else []
        line = f" {self.clock}"
        if pushing:
            if not 0 < weight <= WEIGHT_MAX:
                raise ChannelError(Code.RANGE, f"weight={weight!r}; a weight is above 0 and at most 2^53")
            if g is not None:
                for table, array in self._matched(g, "g"):
                    np.copyto(table.view(self._buffers["grad"]), _shaped(table, array), casting="same_kind")
            if not self._mapped:
                self._files.write("grad", self._buffers["grad"])
            line += f" n={self._elements}" if weight == 1.0 else f" n={self._elements} w={float(weight)!r}"
        reply = self._carry_out(verb, line)
        if reply.code is Code.STOP:
            self.done = True
            return True
        self._judge(reply)
        if pulling:
            self.version = reply.version
            if not self._mapped:
                self._files.read_into("param", self._buffers["param"])
            for table, array in places:
                np.copyto(_shaped(table, array), table.view(self._buffers["param"]), casting="same_kind")
        return True

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
        while True:
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
            seconds = pause(seconds)
        self._seq, self.lag = seq, reply.lag
        self._lost = reply.code is Code.SEQ
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

    def _matched(self, arrays: Any, what: str, *, writable: bool = False) -> list[tuple[Table, NDArray[Any]]]:
        """The given arrays beside their tables, each checked before anything is written.  Raises `ChannelError` SIZE, RANGE."""
        if isinstance(arrays, Mapping):
            pairs = [(self.table(name), array) for name, array in arrays.items()]
            if not writable and len(pairs) != len(self.tables):
                missing = [table.name for table in self.tables if table.name not in arrays]
                raise ChannelError(Code.SIZE, f"{what} lacks the tables {', '.join(missing)}: a dense push holds all of them")
        elif len(self.tables) == 1:
            pairs = [(self.tables[0], arrays)]
        elif isinstance(arrays, (list, tuple)) and len(arrays) == len(self.tables):
            pairs = list(zip(self.tables, arrays))
        else:
            names = ", ".join(table.name for table in self.tables)
            raise ChannelError(Code.SIZE, f"{what} must be a mapping or a sequence of the {len(self.tables)} tables {names}")
        result = []
        for table, given in pairs:
            if writable and not (isinstance(given, np.ndarray) and given.flags.writeable):
                raise ChannelError(Code.PERM, f"{what} for table {table.name} must be a numpy array that can be written")
            array = np.asarray(given)
            if array.shape != table.shape and array.shape != (table.elements,):
                raise ChannelError(Code.SIZE, f"{what} for table {table.name} has shape {array.shape}, the table has {table.shape}: {_agree(table, array)}")
            here, there = (table.dtype, array.dtype) if writable else (array.dtype, table.dtype)
            if not np.can_cast(here, there, casting="same_kind"):
                raise ChannelError(Code.RANGE, f"{what} for table {table.name}: {here} cannot become {there}")
            result.append((table, array))
        return result


def _agree(table: Table, array: NDArray[Any]) -> str:
    """What to change where a table and an array have different shapes."""
    declared, given = (",".join(map(str, shape)) for shape in (table.shape, array.shape))
    if not given:
        return f"give an array of the table's shape, or declare the table as --table {table.name}=1"
    return f"make them agree: the job declares --table {table.name}={declared}, this array needs --table {table.name}={given}"


def _shaped(table: Table, array: NDArray[Any]) -> NDArray[Any]:
    """The array in the table's shape; a flat one is in the order of the file."""
    if array.shape == table.shape:
        return array
    return array.reshape(table.shape, order="F" if table.order == "F" else "C")
