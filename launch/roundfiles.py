"""The files of an unchanged program in its private directory, and what it prints.

The model file, what is named like it (FILE*) and --side files are copies; everything else is there by a link.
"""

from __future__ import annotations

import fnmatch
import os
import selectors
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import BinaryIO

TAIL_BYTES = 1 << 20  # of the output, in which numbers are looked for
_PIECE = 1 << 16
ACCEPTED = "accepted"  # prefix of the last file that was good: a worker that is started again goes on from it

Stamp = tuple[int, int, int]


def replace_file(path: str, data: bytes) -> None:
    """New bytes under a name, at once or not at all; the mode stays.  Raises `OSError`."""
    target = os.path.realpath(path)
    fresh = os.path.join(os.path.dirname(target), f".{os.path.basename(target)}.plugml-{os.getpid()}")
    try:
        with open(fresh, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if os.path.exists(target):
            shutil.copymode(target, fresh)
        os.replace(fresh, target)
    except BaseException:
        if os.path.exists(fresh):
            os.unlink(fresh)
        raise


def flat(path: str) -> str:
    """A path as one name: two files of one name may lie in two directories."""
    return path.replace("%", "%25").replace("/", "%2F")


def left_in(out: str, model: str) -> str:
    """Where a worker leaves the model of the last round, for the launcher."""
    return os.path.join(out, f"final.{flat(model)}")


class OwnFiles:
    """What one worker has for itself, in the current directory."""

    def __init__(self, directory: str, model: str, others: Sequence[str], side: Sequence[str], out: str) -> None:
        """`others` are the other model files, which have their own."""
        self.directory, self.model, self.others, self.side = directory, model, {model, *others}, side
        self._out = out
        self._accepted = os.path.join(out, f"{ACCEPTED}.{flat(model)}")
        self._unfolded: list[str] = []

    def lay_out(self, again: bool) -> bytes:
        """Copy what is the worker's own; gives the model file to begin with.  Raises `OSError`."""
        folder = os.path.dirname(self.model)
        if not again:  # of an earlier run in this place
            for old in (self._accepted, left_in(self._out, self.model)):
                if os.path.exists(old):
                    os.unlink(old)
        self._unfold(folder)
        base = os.path.basename(self.model)
        for name in os.listdir(os.path.join(self.directory, folder)):
            if os.path.join(folder, name) not in self.others and name.startswith(base):
                self._copy(os.path.join(folder, name), again)
        for pattern in self.side:
            self._unfold(os.path.dirname(pattern))
            for name in os.listdir(os.path.join(self.directory, os.path.dirname(pattern))):
                path = os.path.join(os.path.dirname(pattern), name)
                if fnmatch.fnmatch(path, pattern) and path not in self.others:
                    self._copy(path, again)
        source = self._accepted if again and os.path.exists(self._accepted) else os.path.join(self.directory, self.model)
        with open(source, "rb") as file:
            return file.read()

    def _copy(self, path: str, again: bool) -> None:
        source = os.path.join(self.directory, path)
        if not os.path.isfile(source) or (again and os.path.exists(path) and not os.path.islink(path)):
            return
        if os.path.lexists(path):
            os.unlink(path)
        shutil.copy(source, path)

    def _unfold(self, folder: str) -> None:
        """Each directory on the way is one of the worker's own, full of links, instead of a link itself."""
        path = ""
        for part in folder.split("/") if folder else ():
            path = os.path.join(path, part)
            if not os.path.islink(path):
                continue
            source = os.path.join(self.directory, path)
            os.unlink(path)
            os.mkdir(path)
            self._unfolded.append(path)
            for name in os.listdir(source):
                os.symlink(os.path.join(source, name), os.path.join(path, name))

    def give(self, data: bytes) -> None:
        """The model file for the program: one of its own, whatever stood under the name.  Raises `OSError`."""
        if os.path.islink(self.model):
            os.unlink(self.model)
        replace_file(self.model, data)
        shutil.copymode(os.path.join(self.directory, self.model), self.model)

    def take(self) -> bytes:
        """What the program has left.  Raises `OSError`."""
        with open(self.model, "rb") as file:
            return file.read()

    def accept(self, data: bytes) -> None:
        replace_file(self._accepted, data)

    def leave(self, data: bytes) -> None:
        replace_file(left_in(self._out, self.model), data)

    def clear(self) -> None:
        """The run is over: links that were made here go, what the program wrote stays."""
        for folder in reversed(self._unfolded):
            for entry in list(os.scandir(folder)):
                if entry.is_symlink():
                    os.unlink(entry.path)
        if os.path.exists(self._accepted):
            os.unlink(self._accepted)


def shared() -> dict[str, Stamp]:
    """The files that are here by a link, each with what changes when somebody writes it."""
    found = {}
    for entry in os.scandir("."):
        if entry.is_symlink() and entry.is_file():
            about = entry.stat()
            found[entry.name] = (about.st_ino, about.st_size, about.st_mtime_ns)
    return found


def changed(before: dict[str, Stamp]) -> list[str]:
    after = shared()
    return sorted(name for name, stamp in before.items() if after.get(name, stamp) != stamp)


class Listener:
    """What the program prints goes on to our own stdout and stderr; the end of it is kept where somebody looks for numbers in it."""

    def __init__(self, listens: bool) -> None:
        self.stdout = self.stderr = subprocess.PIPE if listens else None

    def listen(self, child: subprocess.Popen[bytes]) -> str:
        """Until the program has ended: something that it left behind may keep the pipes."""
        if child.stdout is None or child.stderr is None:
            child.wait()
            return ""
        kept = bytearray()
        ended = os.pidfd_open(child.pid)
        with selectors.DefaultSelector() as waits, child.stdout, child.stderr:
            for source, target in ((child.stdout, sys.stdout.buffer), (child.stderr, sys.stderr.buffer)):
                os.set_blocking(source.fileno(), False)
                waits.register(source, selectors.EVENT_READ, target)
            waits.register(ended, selectors.EVENT_READ, None)
            over = False
            while not over:
                ready = waits.select()
                over = any(key.data is None for key, _ in ready)
                for key in list(waits.get_map().values()) if over else [key for key, _ in ready]:
                    if key.data is not None and not _pass_on(key.fileobj, key.data, kept, whole=over):
                        waits.unregister(key.fileobj)
            os.close(ended)
        return kept.decode("utf-8", "replace")


def _pass_on(source: object, target: BinaryIO, kept: bytearray, whole: bool) -> bool:
    """What is there just now; False at its end."""
    while True:
        try:
            piece = os.read(source.fileno(), _PIECE)  # type: ignore[attr-defined]
        except BlockingIOError:
            return True
        target.write(piece)
        target.flush()
        kept += piece
        del kept[:-TAIL_BYTES]
        if not piece or not whole:
            return bool(piece)


def lines_in(paths: Sequence[str]) -> int:
    """Lines of all files together.  Raises `OSError`."""
    count = 0
    for path in paths:
        with open(path, "rb") as file:
            while piece := file.read(1 << 20):
                count += piece.count(b"\n")
    return count
