"""What programs and their channels do: bells, requests, adoption, and the end of a channel."""

from __future__ import annotations

from typing import Any

from ..core.effects import Log
from . import effects as e
from .channel import Channel
from .desk import Desk
from .house import House
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

    def on_push_read(self, push: e.PushRead, now_us: int) -> list[Any]:
        operation = self.house.operations.get(push.channel)
        return [] if operation is None else self.house.settle(operation, operation.on_push_read(push, now_us), now_us)

    def on_files_read(self, files: e.FilesRead, now_us: int) -> list[Any]:
        operation = self.house.operations.get(files.channel)
        return [] if operation is None else self.house.settle(operation, operation.on_files_read(files, now_us), now_us)

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
        effects: list[Any] = [Log("adopt", {"channel": channel.name, "done_seq": channel.done_seq, "clock": channel.clock})]
        effects += house.want_map(job, now_us)
        effects += self.servers.join(job, channel.worker, channel.gen, now_us)
        effects += self.desk.on_opened(channel.name)
        return [*effects, e.ReadCmd(channel.name)]

    def on_failed(self, failed: e.ChannelFailed, now_us: int) -> list[Any]:
        effects: list[Any] = [Log("channel_failed", {"channel": failed.channel, "code": failed.code.name, "text": failed.text})]
        channel = self.house.channels.get(failed.channel)
        if channel is not None:
            self.house.drop_operation(failed.channel)
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
        self.house.drop_operation(failed.channel)
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
