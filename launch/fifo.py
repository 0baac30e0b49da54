"""Standard input from a FIFO: opening one waits for a writer, and it is the program that must wait, not the launcher.

    launcher --- spawn ---> this file as a program: opens the FIFO, waits there --- exec ---> the program

It waits with the program's pid, group and environment, so that signals and the launcher's death end it like the program.
This file imports nothing of ours.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
from collections.abc import Sequence


def is_fifo(path: str) -> bool:
    """A FIFO with a name, which may have no writer yet; a pipe that somebody has open already (/dev/fd/N) is none."""
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode) and os.path.exists(os.path.realpath(path))
    except OSError:
        return False


def waiting(path: str, argv: Sequence[str]) -> list[str]:
    """The command that opens the FIFO as standard input, then becomes `argv`."""
    return [sys.executable, "-I", "-S", os.path.abspath(__file__), path, *argv]


def main() -> None:
    path, *argv = sys.argv[1:]
    # What Python has changed of its own process is put back: the program begins as one that was started at once.
    for signum in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(signum, signal.SIG_DFL)
    with open("/proc/self/environ", "rb") as file:
        pairs = [entry.partition(b"=") for entry in file.read().split(b"\0") if entry]
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        os.dup2(fd, 0)
        os.execvpe(argv[0], argv, {name: value for name, _, value in pairs})
    except OSError as error:
        sys.stderr.write(f"{argv[0]}: {error.strerror}\n")
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # while it waits it ends as silently as `cat` does
    main()
