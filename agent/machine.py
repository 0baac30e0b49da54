"""The agent: channels of programs on one side, servers and the master on the other.

A request's walk is `Operation`'s, a channel's turns are `Channel`'s; this brings each event to the side that it comes
from, and time to whoever is due.  Waits for nothing, reads no clock, touches no file: events in, effects out.

    programs   bells, requests, adoption       desk      launchers and tools
    servers    ranges and clocks               masters   registration, maps
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from zlib import crc32

from ..core.effects import Log
from ..core.errors import PeerError
from ..core.limits import Limits
from ..wire import messages as m
from . import effects as e
from .acceptance import FAR_US
from .desk import Desk
from .house import House
from .link import Identity
from .masters import Masters
from .operation import Operation
from .programs import Programs
from .servers import Servers
from .waits import explain

_OF_MASTER = frozenset({m.Registered, m.BeatAck, m.MapTold, m.JobTold, m.AttachTold, m.MoreTold, m.Done, m.AdminTold, m.NotLeader})


class AgentMachine:
    """One host's agent."""

    def __init__(self, identity: Identity, limits: Limits) -> None:
        house = self.house = House(identity, limits)
        desk = self.desk = Desk(house)
        servers = self.servers = desk.servers = Servers(house, desk)
        masters = self.masters = Masters(house, servers, desk)
        programs = Programs(house, servers, desk)
        self._handlers: dict[type[Any], Callable[[str, Any, int], list[Any]]] = {
            m.PushAck: servers.on_push_ack, m.Values: servers.on_values, m.Standing: servers.on_standing,
            m.LastTold: servers.on_last, m.InitAck: servers.on_init_ack, m.ClaimTold: servers.on_claim, m.Nack: servers.on_nack,
            m.Refuse: servers.on_refuse, m.Registered: masters.on_registered, m.BeatAck: masters.on_beat_ack,
            m.MapTold: masters.on_map, m.JobTold: masters.on_answer, m.AttachTold: masters.on_answer, m.MoreTold: masters.on_answer, m.Done: masters.on_answer,
            m.AdminTold: masters.on_answer, m.NextTold: servers.on_next, m.Twins: servers.on_twins, m.Scanned: servers.on_scanned,
            m.Partial: servers.on_partial, m.NotLeader: masters.on_not_leader,
        }  # fmt: skip
        self._events: dict[type[Any], Callable[[Any, int], list[Any]]] = {
            e.Bell: programs.on_bell, e.CmdRead: programs.on_cmd, e.DataRead: programs.on_data_read,
            e.PushKept: programs.on_push_kept, e.DataWritten: programs.on_data_written, e.FilesRead: programs.on_files_read, e.Found: programs.on_found,
            e.ChannelOpened: programs.on_opened, e.ChannelFailed: programs.on_failed, e.ParamFailed: programs.on_param_failed,
            e.ReplyFailed: programs.on_reply_failed, e.KeeperGone: programs.on_keeper_gone, e.Asked: desk.on_asked,
            e.Hung: desk.on_hung, e.ExportFailed: desk.exports.on_event, e.ExportEnded: desk.exports.on_event,
        }  # fmt: skip

    def on_message(self, sender: str, message: Any, now_us: int) -> list[Any]:
        if not sender:
            return self._events[type(message)](message, now_us)
        kind = type(message)
        handler = self._handlers.get(kind)
        try:
            if handler is None:
                raise PeerError(f"{kind.__name__} is nothing that an agent is sent")
            if kind in _OF_MASTER and not self.house.link.lead.knows(sender):
                raise PeerError(f"{kind.__name__} from a node that is no master")
            return handler(sender, message, now_us)
        except PeerError as error:
            return self._strange(sender, str(error))

    def on_time(self, now_us: int) -> list[Any]:
        house, link = self.house, self.house.link
        if now_us < house.next_us:
            return []
        effects = link.on_time(now_us, self.masters.oldest_token(), house.counters)
        effects += self.servers.on_time(now_us)
        next_us = self.servers.deadline_us(link.deadline_us())
        house.next_us = FAR_US
        for operation in house.all_operations():
            if operation.over:
                continue  # one before it in this row has ended it
            effects += operation.owed.on_time(now_us)
            if now_us >= operation.patience.explain_us and not operation.over:
                effects += self._explain(operation, now_us)
            house.settle(operation, effects, now_us)
        effects += self.desk.on_time(now_us)
        house.next_us = min(house.next_us, self.desk.deadline_us(next_us))
        return effects

    def deadline_us(self) -> int | None:
        return self.house.next_us

    def check(self) -> None:
        self.house.check()

    def digest(self) -> int:
        """A number that two runs of one history share."""
        return crc32("\n".join(self.house.state()).encode())

    def counters(self) -> dict[str, int]:
        return self.house.counters()

    def _explain(self, operation: Operation, now_us: int) -> list[Any]:
        """A wait that lasts says what it waits for, and again after four times as long."""
        operation.patience.explained(now_us)
        channel = operation.channel
        fields = {"job": channel.job, "worker": channel.worker, "text": explain(operation, self.house.channels.values(), now_us)}
        return [Log("waiting", fields), e.Tell(e.ALL, {"event": "waiting", "run": channel.number, **fields})]

    def _strange(self, sender: str, text: str) -> list[Any]:
        """A peer that breaks the protocol is counted; its word is dropped, everybody is served on."""
        counts = self.house.counts
        counts["strange"] += 1
        if counts["strange"] & (counts["strange"] - 1):
            return []  # the 1st, 2nd, 4th, 8th ... of them are told
        return [Log("strange_message", {"sender": sender, "text": text, "count": counts["strange"]})]
