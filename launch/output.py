"""What the workers print: whole in their logs, line by line and prefixed on the terminal.

    worker's pipe -> log file (every byte, as it came)
                  -> pieces of lines (runtime/output.py) -> Screen -> stdout, stderr

Nothing here grows with what a program prints.  A terminal that does not take its lines holds up the program that
prints them, as it does without us; it never holds up the launcher.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

from ..runtime.output import RETURN, Piece

QUEUE_BYTES_MAX = 1 << 20
_COLOURS = (36, 33, 32, 35, 34, 31)


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
        self._held = False  # somebody was told to read no more
        self._changed = threading.Condition()
        self._room: Callable[[], object] | None = None
        self._thread = threading.Thread(target=self._work, name="screen", daemon=True)
        self._thread.start()

    def is_terminal(self, stream: int) -> bool:
        return self._terminal[stream]

    def on_room(self, call: Callable[[], object]) -> None:
        """`call` is called, from the screen's thread, when a full queue has been written."""
        self._room = call

    def write(self, stream: int, data: bytes) -> None:
        with self._changed:
            if stream not in self._broken:
                self._queue.append((stream, data))
                self._size += len(data)
                self._changed.notify()

    def has_room(self) -> bool:
        """False = take no more from the programs; `on_room` tells when that is over."""
        with self._changed:
            full = self._size >= QUEUE_BYTES_MAX
            self._held = self._held or full
            return not full

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
                size, status = self._size, self._status
            self._put(work, status)
            with self._changed:
                self._size -= size
                has_room = self._held and self._size < QUEUE_BYTES_MAX // 2
                self._held = self._held and not has_room
            if has_room and self._room is not None:
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
            except BlockingIOError:  # whoever shares the pipe or terminal with us has made it so
                wait_writable(self._fds[stream])
            except OSError as error:  # closed, full, or a terminal that hung up
                with self._changed:
                    self._broken[stream] = error


def wait_writable(fd: int) -> None:
    """Until something can be written, or the reader has gone."""
    waiter = select.poll()
    waiter.register(fd, select.POLLOUT)
    waiter.poll()


class WorkerOutput:
    """Both streams of one worker, over all its generations; with a `label`, those of something else."""

    def __init__(self, worker: int, log: Path, screen: Screen, merge: bool, colour: bool, label: str = "") -> None:
        self.log = log
        self.log_error = ""
        self._screen = screen
        self._streams = {1: 2 if merge else 1, 2: 2}  # merge: stdout is for us alone
        self._prefixes = {stream: _prefix(worker, label or f"w{worker}", colour and screen.is_terminal(to)) for stream, to in self._streams.items()}
        self._fd = -1

    def begin(self, gen: int) -> None:
        """A generation starts: open the log; a later one goes on in the same file, after a line of ours."""
        if self.log_error:
            return
        if self._fd >= 0:
            self.keep(f"--- generation {gen} ---\n".encode())
            return
        try:
            self._fd = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except OSError as error:
            self.log_error = f"{self.log}: {error.strerror}"

    def keep(self, data: bytes) -> bool:
        """Bytes as they came from the program; False = read no more until the screen has room.

        A full disk ends the log, not the training.
        """
        view = memoryview(data)
        while view and self._fd >= 0:
            try:
                view = view[os.write(self._fd, view) :]
            except OSError as error:
                self.log_error = f"{self.log}: {error.strerror}"
                self.close()
        return self._screen.has_room()

    def show(self, stream: int, piece: Piece) -> None:
        """A piece of a line.  Of a progress bar only the state that it leaves behind: the others nobody would see."""
        if piece.ended != RETURN:
            self._screen.write(self._streams[stream], self._prefixes[stream] + piece.text.encode("utf-8", "replace") + b"\n")

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _prefix(worker: int, label: str, colour: bool) -> bytes:
    text = f"[{label}]"
    return f"\x1b[{_COLOURS[worker % len(_COLOURS)]}m{text}\x1b[0m ".encode() if colour else f"{text} ".encode()
