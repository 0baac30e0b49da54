"""The agent's hands: what its machine wants done to files, done to real ones.

Owns open channels, their push buffers, and exports under way.  Decides nothing; what a file refuses becomes an event.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from numpy import uint8
from numpy.typing import NDArray

from ..core.errors import Code, RequestError
from ..shm_protocol.channel import AgentChannel, adopt
from ..shm_protocol.files import DiskFiles
from ..shm_protocol.numbers import aligned
from ..shm_protocol.root import is_kept, remove_tree
from . import effects as e

Feed = Callable[[Any], None]
BUFFERS_MAX = 4  # per channel; more are lent only if old pushes were sent again and again


class Disk:
    """Performers for every channel and export effect."""

    def __init__(self, loop: asyncio.AbstractEventLoop, root_fd: int, agent_id: int, feed: Feed, is_lent: Callable[[Any], bool]) -> None:
        self.channels: dict[str, AgentChannel] = {}
        self._loop = loop
        self._root_fd = root_fd
        self._agent_id = agent_id
        self._feed = feed
        self._is_lent = is_lent
        self._buffers: dict[str, list[NDArray[uint8]]] = {}
        self._refused: set[str] = set()  # channels whose values could not be written, until the machine has heard of it
        self._exports: dict[int, ExportFiles] = {}
        self._thread = ThreadPoolExecutor(1, "export")

    def performers(self) -> dict[type[Any], Callable[[Any], object]]:
        return {
            e.OpenChannel: self._open, e.ReadCmd: self._read_cmd, e.ReadPush: self._read_push, e.ReadFiles: self._read_files, e.SetCurrent: self._set_current,
            e.WriteParam: self._write_param, e.WriteText: self._write_text, e.WriteResult: self._write_result,
            e.WriteError: self._write_error, e.SetDone: self._set_done, e.Reply: self._reply, e.SetState: self._set_state,
            e.CloseChannel: self._close, e.MakeExport: self._make_export, e.WriteExport: self._write_export,
            e.EndExport: self._end_export,
        }  # fmt: skip

    def beat(self, now_ns: int) -> None:
        """Show every program that the agent lives, and look whether its launcher does."""
        for name, channel in list(self.channels.items()):
            try:
                channel.beat(now_ns)
            except RequestError as error:
                self._feed(e.ChannelFailed(name, error.code, error.text))
        self.look_for_keepers()

    def look_for_keepers(self) -> None:
        for name in list(self.channels):
            if not is_kept(self._root_fd, name):
                self._feed(e.KeeperGone(name))

    def abandon(self) -> None:
        """The agent ends: channels stay as they are, for the next one."""
        for name, channel in self.channels.items():
            self._deaf(name, channel)
            channel.abandon()
        self.channels.clear()
        for files in self._exports.values():
            files.remove()
        self._exports.clear()
        self._thread.shutdown(wait=True, cancel_futures=True)

    # -- channels

    def _open(self, effect: e.OpenChannel) -> None:
        name = effect.channel
        if name in self.channels:
            return
        try:
            channel = adopt(self._root_fd, name, self._agent_id)
        except RequestError as error:
            self._feed(e.ChannelFailed(name, error.code, error.text))
            return
        self.channels[name] = channel
        assert isinstance(channel.files, DiskFiles)
        self._loop.add_reader(channel.files.req_fd, self._on_bell, name, channel)
        info, result = channel.info, channel.result
        clock = result.clock if result.seq else info.clock
        self._feed(
            e.ChannelOpened(
                name, info.job, info.number, info.worker, info.gen, result.seq, channel.cur_seq, clock, result.version,
                result.status, result.weight, result.pushes, info.elements,
            )
        )  # fmt: skip

    def _on_bell(self, name: str, channel: AgentChannel) -> None:
        if channel.drain_bell():
            self._feed(e.Bell(name))
        else:
            self._deaf(name, channel)
            self._feed(e.KeeperGone(name))

    def _deaf(self, name: str, channel: AgentChannel) -> None:
        if isinstance(channel.files, DiskFiles) and channel.files.req_fd >= 0:
            self._loop.remove_reader(channel.files.req_fd)

    def _read_cmd(self, effect: e.ReadCmd) -> None:
        channel = self.channels.get(effect.channel)
        if channel is None:
            return
        try:
            self._feed(e.CmdRead(effect.channel, channel.read_cmd()))
        except RequestError as error:
            self._feed(e.CmdRead(effect.channel, None, error.code, error.text))

    def _read_push(self, effect: e.ReadPush) -> None:
        channel = self.channels.get(effect.channel)
        if channel is None:
            return
        buffer = self._free_buffer(effect.channel, channel)
        try:
            channel.read_push(effect.text, effect.exact, buffer)
        except RequestError as error:
            self._feed(e.PushRead(effect.channel, None, error.code, error.text))
            return
        self._feed(e.PushRead(effect.channel, buffer))

    def _read_files(self, effect: e.ReadFiles) -> None:
        """First values from files that the user named: read once, at the job's start."""
        buffer = aligned(effect.nbytes)
        for path, offset, nbytes in effect.files:
            try:
                _read_whole(path, buffer[offset : offset + nbytes])
            except OSError as error:
                text = f"init file {path}: {error.strerror or error}"
                self._feed(e.FilesRead(effect.channel, None, Code.PERM if error.errno == errno.EACCES else Code.SIZE, text))
                return
        self._feed(e.FilesRead(effect.channel, buffer))

    def _free_buffer(self, name: str, channel: AgentChannel) -> NDArray[uint8]:
        """A buffer that no message under way still reads.

        If there were none left, the first is used all the same: only copies of pushes that are long acked still lie in
        it, and a range drops those by their seq, whatever bytes they carry.
        """
        buffers = self._buffers.setdefault(name, [])
        for buffer in buffers:
            if not self._is_lent(buffer):
                return buffer
        if len(buffers) >= BUFFERS_MAX:
            return buffers[0]
        buffers.append(aligned(channel.info.cap_grad))
        return buffers[-1]

    def _write_param(self, effect: e.WriteParam) -> None:
        channel = self.channels.get(effect.channel)
        if channel is None or effect.channel in self._refused:
            return
        try:
            channel.write_param(effect.offset, effect.buffer)
        except RequestError as error:
            self._refuse_param(effect.channel, error)

    def _write_text(self, effect: e.WriteText) -> None:
        channel = self.channels.get(effect.channel)
        if channel is None or effect.channel in self._refused:
            return
        try:
            channel.write_text(effect.buffer)
        except RequestError as error:
            self._refuse_param(effect.channel, error)

    def _refuse_param(self, name: str, error: RequestError) -> None:
        """What stands for success is held back until the machine answers with WriteError."""
        self._refused.add(name)
        self._feed(e.ParamFailed(name, error.code, error.text))

    def _set_current(self, effect: e.SetCurrent) -> None:
        self._store(effect.channel, lambda channel: channel.set_current(effect.seq))

    def _write_result(self, effect: e.WriteResult) -> None:
        name, seq, clock, version, status, weight, pushes = effect
        if name not in self._refused:
            self._store(name, lambda channel: channel.write_result(seq, clock, version, status, weight, pushes))

    def _write_error(self, effect: e.WriteError) -> None:
        self._refused.discard(effect.channel)
        self._store(effect.channel, lambda channel: channel.write_error(effect.text))

    def _set_done(self, effect: e.SetDone) -> None:
        if effect.channel not in self._refused:
            self._store(effect.channel, lambda channel: channel.set_done(effect.seq))

    def _set_state(self, effect: e.SetState) -> None:
        self._store(effect.channel, lambda channel: channel.set_state(effect.state))

    def _store(self, name: str, store: Callable[[AgentChannel], None]) -> None:
        channel = self.channels.get(name)
        if channel is None:
            return
        try:
            store(channel)
        except RequestError as error:
            self._feed(e.ChannelFailed(name, error.code, error.text))

    def _reply(self, effect: e.Reply) -> None:
        channel = self.channels.get(effect.channel)
        if channel is None or effect.channel in self._refused:
            return
        if not channel.reply(effect.record):
            self._feed(e.ReplyFailed(effect.channel, "1,024 of them lie unread in rep"))

    def _close(self, effect: e.CloseChannel) -> None:
        name = effect.channel
        channel = self.channels.pop(name, None)
        self._buffers.pop(name, None)
        self._refused.discard(name)
        if channel is not None:
            self._deaf(name, channel)
            try:
                channel.close(effect.state)
            except RequestError:
                channel.abandon()  # its page was taken away: nobody can be told
        if effect.sweep:
            remove_tree(self._root_fd, name)

    # -- exports

    def _make_export(self, effect: e.MakeExport) -> None:
        files = self._exports.setdefault(effect.export, ExportFiles(Path(effect.place)))
        self._export_step(effect.export, lambda: files.make(effect.file, effect.nbytes))

    def _write_export(self, effect: e.WriteExport) -> None:
        files = self._exports.get(effect.export)
        if files is not None:
            self._export_step(effect.export, lambda: files.write(effect.file, effect.offset, effect.buffer))

    def _export_step(self, number: int, step: Callable[[], None]) -> None:
        """The first failure of an export is told; what comes after it does nothing."""
        try:
            step()
        except OSError as error:
            files = self._exports.pop(number)
            files.remove()
            self._feed(e.ExportFailed(number, *_explained(files.place, error)))

    def _end_export(self, effect: e.EndExport) -> None:
        files = self._exports.pop(effect.export, None)
        if files is None:
            return
        if not effect.keep:
            files.remove()
            return
        # Waiting for the disk belongs into a thread: other jobs' programs go on meanwhile.
        future = self._loop.run_in_executor(self._thread, files.publish)
        future.add_done_callback(lambda done: self._published(effect.export, files, done))

    def _published(self, number: int, files: ExportFiles, done: asyncio.Future[int]) -> None:
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            self._feed(e.ExportEnded(number, done.result()))
        elif isinstance(error, OSError):
            self._feed(e.ExportFailed(number, *_explained(files.place, error)))
        else:
            raise error


class ExportFiles:
    """Files under temporary names in one directory; all of them get their names, or none."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._open: dict[str, tuple[int, str]] = {}  # final name -> descriptor, temporary name

    def make(self, name: str, nbytes: int) -> None:
        if name in self._open:
            return
        temporary = f".{name}.{secrets.token_hex(4)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(self.place / temporary, flags, 0o644)
        self._open[name] = (fd, temporary)
        os.posix_fallocate(fd, 0, nbytes)  # a full disk is found here, before anything was read

    def write(self, name: str, offset: int, buffer: Any) -> None:
        fd, _temporary = self._open[name]
        view = memoryview(buffer).cast("B")
        done = 0
        while done < len(view):
            done += os.pwrite(fd, view[done:], offset + done)

    def publish(self) -> int:
        """On disk first, then under the final names; returns the bytes.  Runs in a thread.  Raises OSError."""
        total = 0
        try:
            for fd, _temporary in self._open.values():
                os.fsync(fd)
                total += os.fstat(fd).st_size
            for name, (_fd, temporary) in self._open.items():
                os.rename(self.place / temporary, self.place / name)
            directory = os.open(self.place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        finally:
            self.remove()
        return total

    def remove(self) -> None:
        """Whatever has no final name yet is gone after this."""
        for fd, temporary in self._open.values():
            os.close(fd)
            (self.place / temporary).unlink(missing_ok=True)
        self._open.clear()


def _read_whole(path: str, into: NDArray[uint8]) -> None:
    """Fill the array from a file of exactly its size.  Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        size = os.fstat(fd).st_size
        if size != into.nbytes:
            raise OSError(0, f"it has {size} bytes, its table {into.nbytes}")
        done = 0
        while done < into.nbytes:
            part = os.preadv(fd, [into.data[done:]], done)
            if part == 0:
                raise OSError(0, "it shrank while it was read")
            done += part
    finally:
        os.close(fd)


def _explained(place: Path, error: OSError) -> tuple[Code, str]:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return Code.NOSPC, f"{place} is full: nothing was exported; free space or choose another place"
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return Code.FORMAT, f"{place} is no directory: make it before the export"
    return Code.PERM, f"{place} cannot be written: {error.strerror}; nothing was exported"
