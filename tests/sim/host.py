"""One host's memory: channels that outlive agents and programs, what an agent's effects do to them, and turn-taking's checks.

The agent's side is the real one (`shm_protocol.channel`) over the twin in memory.  Every store is looked at: done_seq
goes up by one, after its result and before its reply; `param` belongs to the program from done_seq until it asks again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from zlib import crc32

import numpy as np

from plugml.agent import effects as fx
from plugml.core.errors import Code, RequestError
from plugml.shm_protocol.channel import AgentChannel
from plugml.shm_protocol.info import Info, parse_info
from plugml.shm_protocol.page import CLOSED, FLAG_STOP, OFFSET, RECORD_BYTES, read_moving
from plugml.shm_protocol.twin import MemoryFiles, adopt_twin

from .process import Killed
from .workload import FILED
from .world import Violation, World


class Files(MemoryFiles):
    """The files of one channel, each store of the agent looked at."""

    def __init__(self, name: str, info: Info) -> None:
        super().__init__(info)
        self.name = name
        self.done_seq = 0
        self.param_sum = self._sum()  # when done_seq moved last
        self.is_full: Callable[[], bool] = lambda: False
        self.answers: dict[int, bytes] = {}  # seq -> its first reply

    def write(self, name: str, offset: int, data: Any) -> None:
        if name in ("param", "param.txt", "data"):
            self._check_param(name, offset, memoryview(data).nbytes)
            if self.is_full():
                raise RequestError(Code.NOSPC, f"{name} cannot be written: No space left on device")
        super().write(name, offset, data)
        if name == "ctl" and offset == OFFSET["done_seq"]:
            self._check_done(int.from_bytes(bytes(data), "little"))

    def _check_param(self, name: str, offset: int, nbytes: int) -> None:
        words = read_moving(bytes(self.contents["ctl"]))
        if words.cur_seq != words.done_seq + 1:
            raise Violation(f"{self.name}: {name} written after done_seq = {words.done_seq} (cur_seq {words.cur_seq})")
        if name == "param" and offset + nbytes > len(self.contents["param"]):
            raise Violation(f"{self.name}: {nbytes} bytes at {offset} leave param")

    def _check_done(self, seq: int) -> None:
        if seq != self.done_seq + 1:
            raise Violation(f"{self.name}: done_seq goes from {self.done_seq} to {seq}")
        self.done_seq = seq
        self.param_sum = self._sum()

    def _sum(self) -> int:
        return crc32(self.contents.get("data", b""), crc32(self.contents["param.txt"], crc32(self.contents["param"])))

    def send(self, record: bytes) -> bool:
        """A reply: done_seq comes first, and a repeat says the same."""
        if len(record) != RECORD_BYTES or not record.endswith(b"\n"):
            raise Violation(f"{self.name}: a reply of {len(record)} bytes")
        words = record.split()
        seq = int(words[1])
        if words[0] == b"ok" and seq:
            if seq > self.done_seq:
                raise Violation(f"{self.name}: replied to {seq} while done_seq is {self.done_seq}")
            said = b" ".join(word for word in words if not word.startswith(b"lag="))  # as it is now
            first = self.answers.setdefault(seq, said)
            if first != said:
                raise Violation(f"{self.name}: seq {seq} was answered {first!r} and then {said!r}")
            self.check_param_untouched()
        return super().send(record)

    @property
    def answered(self) -> bool:
        return bool(self.posts if self.sem else self.replies)

    def take_reply(self) -> bytes | None:
        """What the program finds when it is woken."""
        if not self.answered:
            return None
        if not self.sem:
            return self.replies.popleft()
        self.posts = 0
        return bytes(self.contents["reply"])

    def check_param_untouched(self) -> None:
        if self._sum() != self.param_sum:
            raise Violation(f"{self.name}: param or data changed after done_seq = {self.done_seq}")


class Channel:
    """One worker incarnation's directory, as launcher and program hold it."""

    def __init__(self, info: Info) -> None:
        self.name = info.directory_name
        self.info = info
        self.worker = info.worker
        self.gen = info.gen
        self.files = Files(self.name, info)
        self.swept = False
        self.listener: Callable[[], None] = lambda: None  # the program that sleeps at the reply bell

    @property
    def keeper(self) -> bool:
        return self.files.kept

    @property
    def done_seq(self) -> int:
        return self.files.done_seq

    @property
    def error(self) -> str:
        return bytes(self.files.contents["err"]).decode(errors="replace").strip("\0\n")


class Host:
    """Channels of one agent root."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.channels: dict[str, Channel] = {}
        self.exports: dict[int, tuple[str, dict[str, bytearray]]] = {}
        self.exported: dict[str, dict[str, bytes]] = {}  # by directory: the newest complete export
        self.stores = 0  # of the agent, over all incarnations
        self.die_at_store: int | None = None
        self.full_rate = 0.0  # chance that `param` cannot be written
        self._watched: dict[str, Callable[[Any], None]] = {}  # the live agent's ears
        self._served: dict[str, AgentChannel] = {}

    # -- launcher

    def make(self, text: str, sizes: dict[str, int]) -> Channel:
        """The launcher makes the directory from the text of `info`."""
        info = parse_info(text)
        if sizes["grad"] != info.cap_grad or sizes["param"] != info.cap_param:
            raise Violation(f"{info.directory_name}: sizes {sizes} do not fit its info")
        if info.directory_name in self.channels:
            return self.channels[info.directory_name]
        channel = Channel(info)
        channel.files.on_store = self._count_store
        channel.files.is_full = self._is_full
        self.channels[channel.name] = channel
        return channel

    def unkeep(self, channel: Channel) -> None:
        """The keeper's lock falls with its process."""
        if channel.files.kept:
            channel.files.kept = False
            self._hear(channel, fx.KeeperGone(channel.name))

    # -- program

    def ring(self, channel: Channel) -> None:
        """A newline into `req`: it stays in the pipe until an agent reads it."""
        channel.files.rung += 1
        self._wake(channel)

    def _wake(self, channel: Channel) -> None:
        served = self._served.get(channel.name)
        if served is not None and channel.files.rung:
            served.drain_bell()
            self._hear(channel, fx.Bell(channel.name))

    def _hear(self, channel: Channel, event: Any) -> None:
        ear = self._watched.get(channel.name)
        if ear is not None:
            ear(event)

    # -- agent

    def found(self) -> list[str]:
        """Channels that a starting agent finds, swept first if nobody keeps them."""
        for channel in list(self.channels.values()):
            if not channel.keeper:
                self.sweep(channel)
        return sorted(self.channels)

    def forget_agent(self) -> None:
        self._watched.clear()
        self._served.clear()
        self.exports.clear()

    def sweep(self, channel: Channel) -> None:
        channel.swept = True
        self.channels.pop(channel.name, None)

    def lose_everything(self) -> None:
        """The machine has gone: what was in its memory is no more."""
        for channel in list(self.channels.values()):
            self.sweep(channel)
        self.exported.clear()

    def _is_full(self) -> bool:
        full = self.world.happens(self.full_rate)
        if full:
            self.world.fault("param full")
        return full

    def _count_store(self) -> None:
        if self.die_at_store is not None and self.stores >= self.die_at_store:
            self.die_at_store = None
            raise Killed("agent killed between stores")
        self.stores += 1

    def performers(self, ear: Callable[[Any], None], is_lent: Callable[[Any], bool]) -> dict[type[Any], Callable[[Any], Any]]:
        """What a live agent's effects do here; `ear` feeds it events that are nobody's answer."""
        return _Performer(self, ear, is_lent).table()

    def adopt(self, name: str, ear: Callable[[Any], None]) -> Any:
        """OpenChannel: the same for a new channel and for one that a dead agent left."""
        channel = self.channels.get(name)
        if channel is None:
            return fx.ChannelFailed(name, Code.GONE, f"{name} is no channel")
        try:
            served = adopt_twin(channel.files, channel.info, self.world.draw(1, 1 << 60))
        except RequestError as error:
            return fx.ChannelFailed(name, error.code, error.text)
        self._served[name] = served
        self._watched[name] = ear
        if channel.files.rung:
            self.world.after(0, self._wake, channel)
        info, result = channel.info, served.result
        clock = result.clock if served.done_seq else info.clock
        return fx.ChannelOpened(
            name, info.job, info.number, info.worker, info.gen, served.done_seq, served.cur_seq, clock, result.version,
            result.status, result.weight, result.pushes, info.elements, served.kept_pushes(), info.bell, bool(result.flags & FLAG_STOP),
            result.flags, served.sums.read(served.done_seq), served.files.size("data"),
        )  # fmt: skip

    def served(self, name: str) -> AgentChannel:
        served = self._served.get(name)
        if served is None:
            raise Violation(f"an effect on {name}, which is not open")
        return served

    def close(self, effect: fx.CloseChannel) -> None:
        self._watched.pop(effect.channel, None)
        served = self._served.pop(effect.channel, None)
        if served is not None:
            served.close(effect.state)
        channel = self.channels.get(effect.channel)
        if channel is not None and effect.sweep:
            assert effect.state == CLOSED or not channel.keeper
            self.sweep(channel)


class _Performer:
    """The effects of one agent incarnation."""

    def __init__(self, host: Host, ear: Callable[[Any], None], is_lent: Callable[[Any], bool]) -> None:
        self.host = host
        self.ear = ear
        self.is_lent = is_lent
        self.refused: dict[str, None] = {}  # channels whose values could not be written

    def table(self) -> dict[type[Any], Callable[[Any], Any]]:
        served = self.host.served
        return {
            fx.OpenChannel: lambda effect: self.host.adopt(effect.channel, self.ear),
            fx.ReadCmd: self.read_cmd, fx.ReadData: self.read_data, fx.ReadKept: self.read_kept, fx.ReadFiles: self.read_files,
            fx.KeepPush: self.keep_push, fx.DropPush: lambda effect: served(effect.channel).drop(effect.slot),
            fx.WriteData: self.unless_refused(self.write_data),
            fx.SetCurrent: lambda effect: served(effect.channel).set_current(effect.seq),
            fx.WriteParam: self.unless_refused(lambda effect: served(effect.channel).write_param(effect.offset, effect.buffer)),
            fx.WriteText: self.unless_refused(lambda effect: served(effect.channel).write_text(effect.buffer, effect.rows)),
            fx.WriteResult: self.unless_refused(lambda effect: served(effect.channel).write_result(*effect[1:])),
            fx.WriteError: self.write_error,
            fx.SetDone: self.unless_refused(lambda effect: served(effect.channel).set_done(effect.seq)),
            fx.Reply: self.unless_refused(self.reply),
            fx.SetState: lambda effect: served(effect.channel).set_state(effect.state),
            fx.CloseChannel: self.close,
            fx.MakeExport: self.make_export, fx.WriteExport: self.write_export, fx.CutExport: self.cut_export, fx.EndExport: self.end_export,
        }  # fmt: skip

    def unless_refused(self, perform: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """After a failed write, what was decided before the machine heard of it is passed over, up to its WriteError."""

        def performed(effect: Any) -> Any:
            if effect.channel in self.refused:
                return None
            try:
                return perform(effect)
            except RequestError as error:
                self.refused[effect.channel] = None
                return fx.ParamFailed(effect.channel, error.code, error.text)

        return performed

    def write_error(self, effect: fx.WriteError) -> None:
        self.refused.pop(effect.channel, None)
        self.host.served(effect.channel).write_error(effect.text)

    def close(self, effect: fx.CloseChannel) -> None:
        self.refused.pop(effect.channel, None)
        self.host.close(effect)

    def read_files(self, effect: fx.ReadFiles) -> Any:
        """Files with first values: each number is FILED."""
        buffer = np.zeros(effect.nbytes, np.uint8)
        for _path, offset, nbytes in effect.files:
            buffer[offset : offset + nbytes] = np.frombuffer(np.full(nbytes // 8, FILED).tobytes(), np.uint8)
        return fx.FilesRead(effect.channel, buffer)

    def read_cmd(self, effect: fx.ReadCmd) -> Any:
        try:
            return fx.CmdRead(effect.channel, self.host.served(effect.channel).read_cmd())
        except RequestError as error:
            return fx.CmdRead(effect.channel, None, error.code, error.text)

    def read_data(self, effect: fx.ReadData) -> Any:
        served = self.host.served(effect.channel)
        return self._read(effect.channel, lambda: served.read_data(effect.request, self._buffer(served)))

    def read_kept(self, effect: fx.ReadKept) -> Any:
        served = self.host.served(effect.channel)
        return self._read(effect.channel, lambda: served.read_kept(effect.slot, effect.request, self._buffer(served)))

    def _buffer(self, served: AgentChannel) -> Any:
        return np.zeros(served.reader.stored_bytes, np.uint8)

    def _read(self, channel: str, read: Callable[[], Any]) -> Any:
        try:
            data = read()
        except RequestError as error:
            return fx.DataRead(channel, code=error.code, text=error.text)
        return fx.DataRead(channel, data.buffer, data.rows, data.wants, data.crc)

    def keep_push(self, effect: fx.KeepPush) -> Any:
        try:
            self.host.served(effect.channel).keep(effect.slot, effect.request)
        except RequestError as error:
            return fx.PushKept(effect.channel, effect.slot, error.code, error.text)
        return fx.PushKept(effect.channel, effect.slot)

    def write_data(self, effect: fx.WriteData) -> Any:
        line = f"{effect.turn} {effect.piece} {effect.path}\n".encode() if effect.path else b""
        return fx.DataWritten(effect.channel, self.host.served(effect.channel).write_data(line))

    def reply(self, effect: fx.Reply) -> Any:
        if not self.host.served(effect.channel).reply(effect.record):
            return fx.ReplyFailed(effect.channel, "64 KiB of replies are unread")
        channel = self.host.channels.get(effect.channel)
        if channel is not None:
            channel.listener()
        return None

    def make_export(self, effect: fx.MakeExport) -> None:
        self.host.exports.setdefault(effect.export, (effect.place, {}))[1][effect.file] = bytearray(effect.nbytes)

    def write_export(self, effect: fx.WriteExport) -> None:
        data = memoryview(effect.buffer).cast("B")
        self.host.exports[effect.export][1][effect.file][effect.offset : effect.offset + data.nbytes] = data

    def cut_export(self, effect: fx.CutExport) -> None:
        del self.host.exports[effect.export][1][effect.file][effect.nbytes :]

    def end_export(self, effect: fx.EndExport) -> Any:
        place, files = self.host.exports.pop(effect.export, ("", {}))
        if not effect.keep:
            return None
        self.host.exported[place] = {name: bytes(data) for name, data in files.items()}
        return fx.ExportEnded(effect.export, sum(len(data) for data in files.values()))
