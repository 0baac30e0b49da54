"""What programs and their channels do: bells, requests, adoption, and the end of a channel."""

from __future__ import annotations

from typing import Any

from ..core.effects import Log
from ..shm_protocol.page import FLAG_TOLD
from ..shm_protocol.request import parse_request
from . import effects as e
from .behind import Behind
from .channel import Channel
from .desk import Desk
from .house import House
from .router import Job
from .servers import Servers
from .transfer import Stream


class Programs:
    def __init__(self, house: House, servers: Servers, desk: Desk) -> None:
        self.house = house
        self.servers = servers
        self.desk = desk

    def on_bell(self, bell: e.Bell, now_us: int) -> list[Any]:
        channel = self.house.channels.get(bell.channel)
        return [] if channel is None else channel.on_bell(now_us)

    def on_cmd(self, read: e.CmdRead, now_us: int) -> list[Any]:
        house = self.house
        channel = house.channels.get(read.channel)
        if channel is None:
            return []
        before = channel.request
        effects = channel.on_cmd(read)
        if channel.request is None or channel.request is before:
            return effects
        operation = house.begin(channel, house.jobs[channel.number], now_us)
        effects += operation.start(now_us)
        return house.settle(operation, effects, now_us)

    def on_data_read(self, data: e.DataRead, now_us: int) -> list[Any]:
        effects: list[Any] = []
        for operation in self.house.of_channel(data.channel):
            if operation.reading:  # at most one of them
                effects += operation.on_data(data, now_us)
                return self.house.settle(operation, effects, now_us)
        return effects

    def on_push_kept(self, kept: e.PushKept, now_us: int) -> list[Any]:
        operation = self.house.operations.get(kept.channel)
        return [] if operation is None else self.house.settle(operation, operation.acceptance.on_kept(kept), now_us)

    def on_data_written(self, written: e.DataWritten, now_us: int) -> list[Any]:
        operation = self.house.operations.get(written.channel)
        return [] if operation is None else self.house.settle(operation, operation.on_data_written(written), now_us)

    def on_files_read(self, files: e.FilesRead, now_us: int) -> list[Any]:
        effects: list[Any] = []
        for operation in self.house.of_channel(files.channel):
            effects += operation.on_files_read(files, now_us)
            self.house.settle(operation, effects, now_us)
        return effects

    def on_found(self, found: e.Found, now_us: int) -> list[Any]:
        return [e.OpenChannel(found.channel)]

    def on_opened(self, opened: e.ChannelOpened, now_us: int) -> list[Any]:
        """Adoption, the only way in: for a channel that was made just now and for one that an earlier agent left."""
        house = self.house
        if opened.channel in house.channels:
            return self.desk.on_opened(opened.channel)
        channel = Channel(opened, now_us)
        job = house.job(channel.number, channel.job)
        house.channels[channel.name] = channel
        house.by_stream[channel.number, channel.worker, channel.gen] = channel
        fresh = opened.done_seq == 0 and opened.cur_seq == 0
        house.streams[channel.name] = Stream(channel.worker, channel.gen, fresh)
        house.behind[channel.name] = Behind(channel)
        self.desk.launchers.on_opened(channel)
        self.desk.guests.settled(channel.number, channel.worker)
        effects: list[Any] = [Log("adopt", {"channel": channel.name, "done_seq": channel.done_seq, "clock": channel.clock})]
        effects += self._take_over(channel, job, opened, now_us)
        effects += house.want_map(job, now_us)
        effects += self.servers.join(job, channel.worker, channel.gen, now_us)
        effects += self.desk.on_opened(channel.name)
        return [*effects, e.ReadCmd(channel.name)]

    def _take_over(self, channel: Channel, job: Job, opened: e.ChannelOpened, now_us: int) -> list[Any]:
        """Requests that an earlier agent accepted go on; what it had not answered lies in `cmd`, what it has told is over."""
        effects: list[Any] = []
        for slot, line in opened.kept:
            request = parse_request(line)
            if request.seq > channel.done_seq or opened.flags & FLAG_TOLD:
                effects.append(e.DropPush(channel.name, slot))
                continue
            operation = self.house.take_over(channel, job, request, slot, now_us)
            effects.append(Log("accepted", {"channel": channel.name, "seq": request.seq, "slot": slot}))
            effects += operation.start(now_us)
            self.house.settle(operation, effects, now_us)
        channel.adopted(any(operation.delivery.ticking for operation in self.house.of_channel(channel.name)))
        return effects

    def on_failed(self, failed: e.ChannelFailed, now_us: int) -> list[Any]:
        effects: list[Any] = [Log("channel_failed", {"channel": failed.channel, "code": failed.code.name, "text": failed.text})]
        channel = self.house.channels.get(failed.channel)
        if channel is not None:
            self.house.break_off(failed.channel)
            effects += channel.break_off(failed.text)
            effects.append(self.house.news(channel, "broken", failed.text))
        return effects + self.desk.on_channel_failed(failed)

    def on_param_failed(self, failed: e.ParamFailed, now_us: int) -> list[Any]:
        channel = self.house.channels.get(failed.channel)
        if channel is None:
            return []
        operation = self.house.operations.get(failed.channel)
        if operation is not None:
            return self.house.settle(operation, operation.on_param_failed(failed), now_us)
        return channel.on_param_failed(failed) + self.house.refused(channel)

    def on_reply_failed(self, failed: e.ReplyFailed, now_us: int) -> list[Any]:
        channel = self.house.channels.get(failed.channel)
        if channel is None:
            return []
        self.house.break_off(failed.channel)
        return [*channel.on_reply_failed(failed), self.house.news(channel, "broken", channel.last_error)]

    def on_keeper_gone(self, gone: e.KeeperGone, now_us: int) -> list[Any]:
        """The launcher has died without a word: what its program asked for is dropped, and the channel is swept."""
        channel = self.house.channels.get(gone.channel)
        if channel is None or not channel.kept:
            return []
        channel.kept = False
        if self.house.abandon(channel):
            return []
        return self.desk.farewell(channel, now_us)
