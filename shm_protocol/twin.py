"""A channel in plain memory for the simulator: the same agent-side code over a dict of bytearrays.

Each store calls `on_store` first, which may raise to kill the agent just before it.  Bells and replies stay where they
are until somebody takes them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from ..core.errors import Code, RequestError
from .channel import AgentChannel
from .create import files_of
from .info import Info
from .page import RECORD_BYTES, Moving, new_page

PIPE_RECORDS = 65536 // RECORD_BYTES


class MemoryFiles:
    """The files of one channel: they outlive agent and program.  The program's side uses `contents`, `rung`, `replies`."""

    def __init__(self, info: Info, on_store: Callable[[], None] = lambda: None) -> None:
        self.contents: dict[str, bytearray] = {name: bytearray(size) for name, _mode, size in files_of(info)}
        self.contents["info"][:] = info.format().encode()
        self.contents["ctl"][:] = new_page(info.constant(0), Moving(clock=info.clock))
        self.contents["err"][:] = b"\n"
        self.rung = 0
        self.sem = info.bell == "sem"
        self.posts = 0  # of the semaphore
        self.replies: deque[bytes] = deque()
        self.kept = True
        self.on_store = on_store

    def _file(self, name: str) -> bytearray:
        found = self.contents.get(name)
        if found is None:
            raise RequestError(Code.PERM, f"{name} cannot be reached: No such file or directory")
        return found

    def size(self, name: str) -> int:
        return len(self._file(name))

    def read(self, name: str, nbytes: int) -> bytes:
        return bytes(self._file(name)[:nbytes])

    def read_into(self, name: str, buffer: Any, offset: int = 0) -> int:
        into, found = memoryview(buffer).cast("B"), self._file(name)
        nbytes = max(0, min(len(into), len(found) - offset))
        into[:nbytes] = found[offset : offset + nbytes]
        return nbytes

    def write(self, name: str, offset: int, data: Any) -> None:
        self.on_store()
        into, view = self._file(name), memoryview(data).cast("B")
        if len(into) < offset + len(view):
            into.extend(bytes(offset + len(view) - len(into)))
        into[offset : offset + len(view)] = view

    def truncate(self, name: str, nbytes: int) -> None:
        self.on_store()
        found = self._file(name)
        del found[nbytes:]
        found.extend(bytes(nbytes - len(found)))

    def send(self, record: bytes) -> bool:
        if self.sem:
            self.write("reply", 0, record)
        self.on_store()
        if self.sem:
            self.posts += 1
            return True
        if len(self.replies) >= PIPE_RECORDS:
            return False
        self.replies.append(record)
        return True

    def wake(self) -> None:
        self.posts += self.sem

    def drain(self) -> bool:
        self.rung = 0
        return self.kept

    def check_bells(self) -> None:
        return

    def close(self) -> None:
        return


def adopt_twin(files: MemoryFiles, info: Info, agent_id: int, clock_ns: Callable[[], int] = lambda: 0) -> AgentChannel:
    """Take over a channel in memory, as `channel.adopt` does on disk.  Raises `RequestError` PERM when nobody keeps it."""
    if not files.kept:
        raise RequestError(Code.PERM, "the channel is kept by nobody: its launcher is gone")
    return AgentChannel(files, info, bytes(files.contents["ctl"]), agent_id, clock_ns)
