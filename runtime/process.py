"""Child processes on the loop: started so that they die with us, their end known exactly, their output never in the way.

Owns pids, pidfds and pipes.  Knows nothing of workers or daemons, and restarts nothing: that is policy.

    spawn  own process group · PR_SET_PDEATHSIG · stdin is /dev/null or a file · stdout and stderr through pumps
    end    pidfd readable -> pipes closed, or a moment later -> the rest of them is read -> the group is swept if asked -> reaped -> on_exit(Exit)
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import warnings
from collections.abc import Callable, Mapping, Sequence
from signal import SIGCONT, SIGKILL, SIGTERM, Signals
from typing import NamedTuple

from .lifeline import dying_with_us
from .output import Piece, Splitter, Tail

CHUNK_BYTES = 64 << 10
CHUNKS_A_TURN = 4
LAST_CHUNKS = 64  # read after the end: a pipe holds 64 KiB, more comes only from grandchildren
TAIL_BYTES = 64 << 10
LINGER_S = 0.5  # for a filter behind the program's output, as in `exec > >(tee log)`, to write what it still has



class Exit(NamedTuple):
    """How a process ended: by itself with `code`, or (code -1) by signal `signum`."""

    code: int
    signum: int = 0
    core: bool = False

    @property
    def status(self) -> int:
        """One number for the wire: the code, or minus the signal."""
        return -self.signum if self.signum else self.code

    def __str__(self) -> str:
        if not self.signum:
            return f"exit code {self.code}"
        try:
            name = Signals(self.signum).name
        except ValueError:
            name = "no name"
        return f"killed by signal {self.signum} ({name})" + (", core dumped" if self.core else "")


class Pump:
    """Reads one pipe of a child as it comes, and keeps the last bytes in `tail`.

    `on_bytes(chunk)` gets every byte, b"" at the end; when it returns False nothing more is read until `resume`: the
    pipe fills, and then the program waits in its own write.  `on_piece` gets the same as printable lines.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        descriptor: int,
        on_bytes: Callable[[bytes], object] | None = None,
        on_piece: Callable[[Piece], object] | None = None,
        tail_bytes: int = TAIL_BYTES,
    ) -> None:
        self.tail = Tail(tail_bytes)
        self.open = True
        self.on_close: Callable[[], object] | None = None
        self._loop = loop
        self._descriptor = descriptor
        self._on_bytes = on_bytes
        self._on_piece = on_piece
        self._splitter = Splitter()
        self._paused = False
        os.set_blocking(descriptor, False)
        loop.add_reader(descriptor, self._read)

    def pause(self) -> None:
        if self.open and not self._paused:
            self._paused = True
            self._loop.remove_reader(self._descriptor)

    def resume(self) -> None:
        if self.open and self._paused:
            self._paused = False
            self._loop.add_reader(self._descriptor, self._read)

    def finish(self) -> None:
        """The child is gone: take what lies in the pipe, and close it although a grandchild may still hold it."""
        for _ in range(LAST_CHUNKS):
            if not self.open or not self._take():
                break
        self._close()

    def _read(self) -> None:
        for _ in range(CHUNKS_A_TURN):
            if not self._take() or self._paused:
                return

    def _take(self) -> bool:
        """One read; False when there is nothing more for now."""
        try:
            chunk = os.read(self._descriptor, CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            self._close()
            return False
        self.tail.feed(chunk)
        if self._on_bytes is not None and self._on_bytes(chunk) is False:
            self.pause()
        if self._on_piece is not None:
            for piece in self._splitter.feed(chunk):
                self._on_piece(piece)
        return True

    def _close(self) -> None:
        if not self.open:
            return
        self.open = False
        if not self._paused:
            self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        if self._on_bytes is not None:
            self._on_bytes(b"")
        if self._on_piece is not None:
            for piece in self._splitter.end():
                self._on_piece(piece)
        if self.on_close is not None:
            self.on_close()


class Child:
    """A running process.  Made by `spawn`; `exit` says how it ended, when it has."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        process: subprocess.Popen[bytes],
        pidfd: int,
        pumps: tuple[Pump, Pump],
        on_exit: Callable[[Exit], object],
        sweep_group: bool,
    ) -> None:
        self.pid = process.pid
        self.exit: Exit | None = None
        self.stdout, self.stderr = pumps
        self._loop = loop
        self._process = process
        self._on_exit = on_exit
        self._sweep_group = sweep_group
        self._killer: asyncio.TimerHandle | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._pidfd = pidfd
        loop.add_reader(pidfd, self._ended)

    def signal(self, number: int) -> None:
        """Send a signal to the whole process group.  After the end it does nothing: the number may be another's."""
        if self.exit is not None:
            return
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            return  # all of it has ended, or (setuid, sudo) is another user's: we shall hear of its end

    def stop(self, grace_s: float, number: int = SIGTERM) -> None:
        """Ask the group to end (also a stopped one), and kill it when the grace is over.  `on_exit` tells when."""
        if self.exit is not None or self._killer is not None:
            return
        self.signal(number)
        self.signal(SIGCONT)
        self._killer = self._loop.call_later(grace_s, self.signal, SIGKILL)

    def end_now(self) -> None:
        """Kill the group and wait for the end here; `on_exit` is called as ever."""
        self.signal(SIGKILL)
        if self.exit is None:
            self._reap(0)

    def _ended(self) -> None:
        """The program has; whoever it has started may still hold its pipes, and gets a moment to write the rest."""
        if not self._sweep_group or not (self.stdout.open or self.stderr.open):
            self._reap()
            return
        self._loop.remove_reader(self._pidfd)
        self._linger = self._loop.call_later(LINGER_S, self._reap)
        self.stdout.on_close = self.stderr.on_close = self._closed

    def _closed(self) -> None:
        if not (self.stdout.open or self.stderr.open):
            self._reap()

    def _reap(self, option: int = os.WNOHANG) -> None:
        info = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | option)
        if info is None:
            return
        self.stdout.on_close = self.stderr.on_close = None
        if self._linger is not None:
            self._linger.cancel()
        # The zombie keeps its number, and with it the group's, until it is reaped: the sweep hits nobody else.
        if self._sweep_group:
            self.signal(SIGKILL)
        os.waitid(os.P_PID, self.pid, os.WEXITED)
        by_signal = info.si_code in (os.CLD_KILLED, os.CLD_DUMPED)
        self.exit = Exit(-1, info.si_status, info.si_code == os.CLD_DUMPED) if by_signal else Exit(info.si_status)
        self._process.returncode = self.exit.status  # so that Popen does not wait for it again
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        if self._killer is not None:
            self._killer.cancel()
        self.stdout.finish()
        self.stderr.finish()
        self._on_exit(self.exit)


def spawn(
    loop: asyncio.AbstractEventLoop,
    argv: Sequence[str | bytes],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    stdin: str | int = os.devnull,
    on_exit: Callable[[Exit], object] = lambda exit: None,
    on_stdout: Callable[[bytes], object] | None = None,
    on_stderr: Callable[[bytes], object] | None = None,
    on_stdout_piece: Callable[[Piece], object] | None = None,
    on_stderr_piece: Callable[[Piece], object] | None = None,
    pass_fds: Sequence[int] = (),
    death_signal: int = SIGKILL,
    sweep_group: bool = True,
) -> Child:
    """Start a program as a child that dies with this process.  Call it in the loop's thread, which must be the main one.

    `stdin` is a path or a descriptor.  The output goes to the callbacks of `Pump`, those of stdout and stderr apart.
    `sweep_group`: what the program left running in its process group is killed when it has ended itself.  Raises
    OSError when the program, or `cwd`, or `stdin` is not there: `filename` says which.
    """
    held: list[int] = []  # descriptors that are ours alone, until the pumps have them
    try:
        if isinstance(stdin, str):
            stdin = os.open(stdin, os.O_RDONLY | os.O_CLOEXEC)
            held.append(stdin)
        out_read, out_write = os.pipe2(os.O_CLOEXEC)
        held += [out_read, out_write]
        err_read, err_write = os.pipe2(os.O_CLOEXEC)
        held += [err_read, err_write]
        with warnings.catch_warnings():
            # Python from 3.12 on warns of forks beside threads; what runs between fork and exec takes no lock.
            warnings.simplefilter("ignore", DeprecationWarning)
            process = subprocess.Popen(
                list(argv),
                stdin=stdin,
                stdout=out_write,
                stderr=err_write,
                env=None if env is None else dict(env),
                cwd=cwd,
                pass_fds=tuple(pass_fds),
                process_group=0,
                preexec_fn=dying_with_us(death_signal),
            )
        try:
            pidfd = os.pidfd_open(process.pid)
        except OSError:  # no descriptor left
            process.kill()
            process.wait()
            raise
        for descriptor in (out_read, err_read):
            held.remove(descriptor)
    finally:
        for descriptor in held:
            os.close(descriptor)
    pumps = Pump(loop, out_read, on_stdout, on_stdout_piece), Pump(loop, err_read, on_stderr, on_stderr_piece)
    return Child(loop, process, pidfd, pumps, on_exit, sweep_group)
