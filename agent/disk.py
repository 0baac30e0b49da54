"""The agent's hands: what its machine wants done to files, done to real ones.

Owns open channels and their push buffers.  Decides nothing; what a file refuses becomes an event.
"""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import Code, RequestError
from ..shm_protocol.channel import AgentChannel, adopt
from ..shm_protocol.files import DiskFiles
from ..shm_protocol.numbers import aligned
from ..shm_protocol.page import FLAG_STOP
from ..shm_protocol.reading import Data
from ..shm_protocol.request import Request
from ..shm_protocol.root import is_kept, remove_channel
from . import effects as e
from .exportdisk import ExportDisk
from .piecefile import Pieces, read_piece

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
        self._buffers: dict[str, Buffers] = {}
        self._refused: set[str] = set()  # channels whose values could not be written, until the machine has heard of it
        self._failed: set[str] = set()  # channels whose own files refused a store, until the machine has heard of it
        self._exports = ExportDisk(loop, feed)
        self._pieces = Pieces()

    def performers(self) -> dict[type[Any], Callable[[Any], object]]:
        return {
            e.OpenChannel: self._open, e.ReadCmd: self._read_cmd, e.ReadData: self._read_data, e.ReadKept: self._read_kept,
            e.KeepPush: self._keep_push, e.DropPush: self._drop_push, e.ReadFiles: self._read_files, e.SetCurrent: self._set_current,
            e.WriteParam: self._write_param, e.WriteText: self._write_text, e.WriteData: self._write_data, e.WriteResult: self._write_result,
            e.WriteError: self._write_error, e.SetDone: self._set_done, e.Reply: self._reply, e.SetState: self._set_state,
            e.CloseChannel: self._close, **self._exports.performers(),
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
        self._exports.abandon()

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
        try:
            kept, sums, data_bytes = channel.kept_pushes(), channel.sums.read(channel.done_seq), channel.files.size("data")
        except RequestError as error:
            channel.abandon()
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
                result.status, result.weight, result.pushes, info.elements, kept, info.bell, bool(result.flags & FLAG_STOP),
                result.flags, sums, data_bytes,
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

    def _read_data(self, effect: e.ReadData) -> None:
        name, request = effect
        self._read(name, request, lambda channel, into: channel.read_data(request, into))

    def _read_kept(self, effect: e.ReadKept) -> None:
        name, slot, request = effect
        self._read(name, request, lambda channel, into: channel.read_kept(slot, request, into))

    def _read(self, name: str, request: Request, read: Callable[[AgentChannel, NDArray[np.uint8] | None], Data]) -> None:
        channel = self.channels.get(name)
        if channel is None:
            return
        try:
            into = self._free_buffer(name, channel) if request.pushes and request.takes_dense else None
            data = read(channel, into)
        except RequestError as error:
            self._feed(e.DataRead(name, code=error.code, text=error.text))
            return
        self._feed(e.DataRead(name, data.buffer, data.rows, data.wants, data.crc))

    def _keep_push(self, effect: e.KeepPush) -> None:
        channel = self.channels.get(effect.channel)
        if channel is None:
            return
        try:
            channel.keep(effect.slot, effect.request)
        except RequestError as error:
            self._feed(e.PushKept(effect.channel, effect.slot, error.code, error.text))
            return
        self._feed(e.PushKept(effect.channel, effect.slot))

    def _drop_push(self, effect: e.DropPush) -> None:
        self._store(effect.channel, lambda channel: channel.drop(effect.slot))

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

    def _free_buffer(self, name: str, channel: AgentChannel) -> NDArray[np.uint8]:
        buffers = self._buffers.get(name)
        if buffers is None:
            buffers = self._buffers[name] = Buffers(channel.reader.stored_bytes, self._is_lent)
        return buffers.free()

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
            channel.write_text(effect.buffer, effect.rows)
        except RequestError as error:
            self._refuse_param(effect.channel, error)

    def _write_data(self, effect: e.WriteData) -> None:
        channel = self.channels.get(effect.channel)
        if channel is None or effect.channel in self._refused:
            return
        try:
            nbytes = channel.write_data(read_piece(self._pieces, effect.path, effect.piece, effect.turn))
        except RequestError as error:
            self._refuse_param(effect.channel, error)
            return
        self._feed(e.DataWritten(effect.channel, nbytes))

    def _refuse_param(self, name: str, error: RequestError) -> None:
        """What stands for success is held back until the machine answers with WriteError."""
        self._refused.add(name)
        self._feed(e.ParamFailed(name, error.code, error.text))

    def _set_current(self, effect: e.SetCurrent) -> None:
        self._store(effect.channel, lambda channel: channel.set_current(effect.seq))

    def _write_result(self, effect: e.WriteResult) -> None:
        if effect.channel not in self._refused:
            self._store(effect.channel, lambda channel: channel.write_result(*effect[1:]))

    def _write_error(self, effect: e.WriteError) -> None:
        self._refused.discard(effect.channel)  # the machine has heard of it
        self._failed.discard(effect.channel)
        self._store(effect.channel, lambda channel: channel.write_error(effect.text))

    def _set_done(self, effect: e.SetDone) -> None:
        if effect.channel not in self._refused:
            self._store(effect.channel, lambda channel: channel.set_done(effect.seq))

    def _set_state(self, effect: e.SetState) -> None:
        self._store(effect.channel, lambda channel: channel.set_state(effect.state))

    def _store(self, name: str, store: Callable[[AgentChannel], None]) -> None:
        """After the first store that fails no other of the channel is made: each of them stands for those before it."""
        channel = self.channels.get(name)
        if channel is None or name in self._failed:
            return
        try:
            store(channel)
        except RequestError as error:
            self._fail(name, error)

    def _fail(self, name: str, error: RequestError) -> None:
        self._failed.add(name)
        self._feed(e.ChannelFailed(name, error.code, error.text))

    def _reply(self, effect: e.Reply) -> None:
        channel = self.channels.get(effect.channel)
        if channel is None or effect.channel in self._refused or effect.channel in self._failed:
            return
        try:
            read = channel.reply(effect.record)
        except RequestError as error:  # of the file that stands for the bell
            self._fail(effect.channel, error)
            return
        if not read:
            self._feed(e.ReplyFailed(effect.channel, "1,024 of them lie unread in rep"))

    def _close(self, effect: e.CloseChannel) -> None:
        name = effect.channel
        channel = self.channels.pop(name, None)
        self._buffers.pop(name, None)
        self._refused.discard(name)
        self._failed.discard(name)
        if channel is not None:
            self._deaf(name, channel)
            try:
                channel.close(effect.state)
            except RequestError:
                channel.abandon()  # its page was taken away: nobody can be told
        if effect.sweep:
            remove_channel(self._root_fd, name)


class Buffers:
    """Aligned memory for one channel's pushes, used again when nobody has any of it any more."""

    def __init__(self, nbytes: int, is_lent: Callable[[Any], bool]) -> None:
        self._nbytes = nbytes
        self._is_lent = is_lent
        self._buffers = [aligned(nbytes)]
        self._unused = self._holders(0)  # holders that each buffer has by lying here

    def free(self) -> NDArray[np.uint8]:
        """One that the machine has let go of and that no message under way still reads."""
        for number in range(len(self._buffers)):
            if self._holders(number) <= self._unused and not self._is_lent(self._buffers[number]):
                return self._buffers[number]
        made = aligned(self._nbytes)
        if len(self._buffers) < BUFFERS_MAX:
            self._buffers.append(made)
        return made

    def _holders(self, number: int) -> int:
        """References to the buffer, and to the memory that it is a part of: slices and views of it hold either."""
        return sys.getrefcount(self._buffers[number]) + sys.getrefcount(self._buffers[number].base)


def _read_whole(path: str, into: NDArray[np.uint8]) -> None:
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
