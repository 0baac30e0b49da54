"""What the workers print: whole in their logs, line by line and prefixed on the terminal, its tail for a failure's text.

    worker's pipe -> log file (every byte, as it came)
                  -> Lines (whole lines; very long ones cut, a progress bar's states collapsed) -> Screen -> stdout, stderr

Nothing here grows with what a program prints.  A terminal that does not take its lines holds up the program that
prints them, as it does without us; it never holds up the launcher.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

LINE_BYTES_MAX = 16 << 10  # a longer line is shown in pieces; the log has it whole
TAIL_LINES, TAIL_CHARS = 12, 300
QUEUE_BYTES_MAX = 1 << 20
_UNSEEN = {number: None for number in range(32) if number not in (9,)} | {127: None}
_COLOURS = (36, 33, 32, 35, 34, 31)


class Lines:
    """Bytes in, lines out.  Holds at most one line's beginning."""

    def __init__(self) -> None:
        self._rest = b""

    def take(self, data: bytes) -> list[bytes]:
        """Lines that these bytes complete, without their ends."""
        parts = (self._rest + data).split(b"\n")
        rest = parts.pop()
        shown: list[bytes] = []
        for part in parts:
            _cut(_last_state(part), shown)
        rest = _open_state(rest)
        if len(rest) > LINE_BYTES_MAX:
            whole = len(rest) // LINE_BYTES_MAX * LINE_BYTES_MAX
            _cut(rest[:whole], shown)
            rest = rest[whole:]
        self._rest = rest
        return shown

    def end(self) -> list[bytes]:
        """The line that was never ended, if any."""
        rest, self._rest = _last_state(self._rest), b""
        return [rest] if rest else []


def _last_state(line: bytes) -> bytes:
    """What a terminal shows at the end of a line in which carriage returns overwrote what was before."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def _open_state(rest: bytes) -> bytes:
    """The same for a line that goes on: only what can still be shown is kept."""
    body = rest.rstrip(b"\r")
    return body.rpartition(b"\r")[2] + rest[len(body) : len(body) + 1]


def _cut(line: bytes, into: list[bytes]) -> None:
    if len(line) <= LINE_BYTES_MAX:
        into.append(line)
        return
    into += [line[start : start + LINE_BYTES_MAX] for start in range(0, len(line), LINE_BYTES_MAX)]


def readable(line: bytes) -> str:
    """A line for an error text: valid, without control characters, not too long."""
    text = line[: 8 * TAIL_CHARS].decode("utf-8", "replace").translate(_UNSEEN).rstrip()
    return text if len(text) <= TAIL_CHARS else text[:TAIL_CHARS] + " ..."


class Screen:
    """Writes to stdout and stderr from a thread of its own, keeps a status line below, and survives a closed pipe.

    `status` is redrawn after every write; it is shown only where stderr is a terminal.
    """

    def __init__(self, out: int = 1, err: int = 2) -> None:
        self._fds = {1: out, 2: err}
        self._terminal = {1: os.isatty(out), 2: os.isatty(err)}
        self._broken: dict[int, OSError] = {}
        self._queue: deque[tuple[int, bytes]] = deque()
        self._size = 0
        self._status = b""
        self._shown = False
        self._ending = False
        self._changed = threading.Condition()
        self._room: Callable[[], None] | None = None
        self._thread = threading.Thread(target=self._work, name="screen", daemon=True)
        self._thread.start()

    def is_terminal(self, stream: int) -> bool:
        return self._terminal[stream]

    def on_room(self, call: Callable[[], None]) -> None:
        """`call` is called, from the screen's thread, when a full queue has been written."""
        self._room = call

    def write(self, stream: int, data: bytes) -> bool:
        """Queue bytes; False = take no more from the programs until there is room."""
        with self._changed:
            if stream not in self._broken:
                self._queue.append((stream, data))
                self._size += len(data)
                self._changed.notify()
            return self._size < QUEUE_BYTES_MAX

    def status(self, line: bytes) -> None:
        """Replace the line below; empty removes it."""
        with self._changed:
            if line != self._status and self._terminal[2] and 2 not in self._broken:
                self._status = line
                self._queue.append((2, b""))
                self._changed.notify()

    def failure(self, stream: int) -> OSError | None:
        """Why nothing more is written to this stream."""
        return self._broken.get(stream)

    def close(self, limit_s: float) -> None:
        """Write what is queued, for at most so long: a terminal that stands still must not keep us."""
        self.status(b"")
        with self._changed:
            self._ending = True
            self._changed.notify()
        self._thread.join(limit_s)

    # -- the thread -----------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._ending:
                    self._changed.wait()
                if not self._queue:
                    return
                work, self._queue = self._queue, deque()
                size, status, was_full = self._size, self._status, self._size >= QUEUE_BYTES_MAX
            self._put(work, status)
            with self._changed:
                self._size -= size
            if was_full and self._room is not None:
                self._room()

    def _put(self, work: deque[tuple[int, bytes]], status: bytes) -> None:
        """Write runs of one stream together; the status line is wiped first and drawn last."""
        if self._shown:
            self._write_all(2, b"\r\x1b[2K")
            self._shown = False
        run: list[bytes] = []
        for number, (stream, data) in enumerate(work):
            run.append(data)
            if number + 1 == len(work) or work[number + 1][0] != stream:
                self._write_all(stream, b"".join(run))
                run = []
        if status:
            self._write_all(2, status)
            self._shown = True

    def _write_all(self, stream: int, data: bytes) -> None:
        view = memoryview(data)
        while view and stream not in self._broken:
            try:
                view = view[os.write(self._fds[stream], view) :]
            except OSError as error:  # closed, full, or a terminal that hung up
                with self._changed:
                    self._broken[stream] = error


class WorkerOutput:
    """Both streams of one worker, over all its generations."""

    def __init__(self, worker: int, log: Path, screen: Screen, merge: bool, quiet: bool, colour: bool) -> None:
        self.log = log
        self.log_error = ""
        self._screen = screen
        self._streams = {1: 2 if merge else 1, 2: 2}  # merge: stdout is for us alone
        self._quiet = quiet
        self._prefixes = {stream: _prefix(worker, colour and screen.is_terminal(self._streams[stream])) for stream in (1, 2)}
        self._lines = {1: Lines(), 2: Lines()}
        self._tails: dict[int, deque[bytes]] = {1: deque(maxlen=TAIL_LINES), 2: deque(maxlen=TAIL_LINES)}
        self._fd = -1

    def begin(self, gen: int) -> None:
        """A generation starts: open the log; a later one goes on in the same file, after a line of ours."""
        self._tails[1].clear()
        self._tails[2].clear()
        try:
            if self._fd < 0:
                self._fd = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o666)
            else:
                self._keep(f"--- generation {gen} ---\n".encode())
        except OSError as error:
            self.log_error = f"{self.log}: {error.strerror}"

    def take(self, stream: int, data: bytes) -> bool:
        """Bytes from the program; False = read no more until the screen has room."""
        self._keep(data)
        return self._show(stream, self._lines[stream].take(data))

    def end(self, stream: int) -> None:
        """The stream has ended: show what had no newline."""
        self._show(stream, self._lines[stream].end())

    def tail(self) -> tuple[str, ...]:
        """The last readable lines of stderr, or of stdout when nothing came on stderr."""
        lines = [readable(line) for line in self._tails[2] or self._tails[1]]
        return tuple(line for line in lines if line)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _show(self, stream: int, lines: list[bytes]) -> bool:
        if not lines:
            return True
        self._tails[stream].extend(lines[-TAIL_LINES:])
        if self._quiet:
            return True
        prefix = self._prefixes[stream]
        return self._screen.write(self._streams[stream], b"".join([b"%s%s\n" % (prefix, line) for line in lines]))

    def _keep(self, data: bytes) -> None:
        view = memoryview(data)
        while view and self._fd >= 0:
            try:
                view = view[os.write(self._fd, view) :]
            except OSError as error:  # a full disk ends the log, not the training
                self.log_error = f"{self.log}: {error.strerror}"
                self.close()


def _prefix(worker: int, colour: bool) -> bytes:
    text = f"[w{worker}]"
    return f"\x1b[{_COLOURS[worker % len(_COLOURS)]}m{text}\x1b[0m ".encode() if colour else f"{text} ".encode()
