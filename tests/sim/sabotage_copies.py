"""Sabotages of the rules of copies: what a primary, a backup and a learner must and must not do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from plugml.core.effects import Send
from plugml.server.hosted import Hosted
from plugml.server.node import ServerMachine
from plugml.server.range import RangeMachine
from plugml.server.replica import Replica
from plugml.server.replica_follow import Follow
from plugml.server.replica_lead import Copy, Lead, Peer
from plugml.server.replica_learn import Learn
from plugml.wire import messages as m

Original = Callable[..., Any]


# -- primary


def commit_at_once(original: Original) -> Original:
    """Applied and acked as soon as it is appended."""
    return lambda self: self._log.last


def wait_for_one_copy(original: Original) -> Original:
    """With three copies, the fastest backup is enough."""

    def commit_point(self: Lead) -> int:
        counted = [peer.held for peer in self.peers.values() if peer.counts]
        return max(counted) if self._enough and counted else int(original(self))

    return commit_point


def any_number_is_enough(original: Original) -> Original:
    def init(self: Lead, *arguments: Any) -> None:
        original(self, *arguments)
        self._enough = True

    return init


def believe_in_full_copies(original: Original) -> Original:
    """A new primary takes the others to hold what it holds."""

    def init(self: Lead, *arguments: Any) -> None:
        original(self, *arguments)
        for peer in self.peers.values():
            if not peer.learns:
                peer.synced, peer.held, peer.sent = True, self._log.last, self._log.last

    return init


def count_learners_by_the_map(original: Original) -> Original:
    """A learner that was asked to be added counts when the map says so, not from the asking on."""

    def on_held(self: Lead, sender: str, last: int, now_us: int) -> Any:
        effects = original(self, sender, last, now_us)
        peer = self.peers.get(sender)
        if peer is not None and peer.learns:
            peer.counts = False
        return effects

    return on_held


def add_a_learner_early(original: Original) -> Original:
    """What the primary before may have committed is not waited for."""

    def init(self: Lead, *arguments: Any) -> None:
        original(self, *arguments)
        self._begun_at = 0

    return init


def add_an_empty_learner(original: Original) -> Original:
    """A learner is added when it first asks for its copy."""

    def on_copy_ask(self: Lead, sender: str, ask: m.CopyAsk, now_us: int) -> Any:
        effects = original(self, sender, ask, now_us)
        peer = self.peers.get(sender)
        return [*effects, self._ask("add", peer, "")] if peer is not None and peer.learns else effects

    return on_copy_ask


def go_on_without_the_slow(original: Original) -> Original:
    """A slow backup is not waited for any more when it was asked to be dropped, before the map says so."""

    def remind(self: Lead, peer: Peer, now_us: int) -> Any:
        slow = self._too_slow(peer, now_us)
        effects = original(self, peer, now_us)
        if slow and not peer.learns:
            peer.counts = False
        return effects

    return remind


def send_once(original: Original) -> Original:
    """What a copy has not acked is not sent again."""

    def remind(self: Lead, peer: Peer, now_us: int) -> Any:
        peer.due_us = None
        return []

    return remind


def sync_nobody(original: Original) -> Original:
    return lambda self, peer: []


def stamp_the_copy_late(original: Original) -> Original:
    """The copy says that it holds all of the log, where it holds what is applied."""

    def on_copy_ask(self: Lead, sender: str, ask: m.CopyAsk, now_us: int) -> Any:
        effects = original(self, sender, ask, now_us)
        peer = self.peers.get(sender)
        if peer is not None and peer.copy is not None:
            peer.copy = Copy(self._log.last, peer.copy.stream)
            effects = [effect._replace(message=effect.message._replace(version=self._log.last)) for effect in effects]
        return effects

    return on_copy_ask


def hear_any_epoch(original: Original) -> Original:
    """Words between copies count whatever epoch they are of."""

    def on_copy(self: ServerMachine, sender: str, message: Any) -> None:
        replica = _replica(self, message)
        if replica is not None and message.epoch < replica.seat.epoch:
            message = message._replace(epoch=replica.seat.epoch)
        original(self, sender, message)

    return on_copy


def no_seal(original: Original) -> Original:
    """A backup goes on with the primary before, whatever its map says."""

    def on_copy(self: ServerMachine, sender: str, message: Any) -> None:
        replica = _replica(self, message)
        if replica is not None and message.epoch < replica.seat.epoch and type(message) is m.Replicate and isinstance(replica.part, Follow):
            told = m.Held(message.job, message.range, message.epoch, message.token, max(replica.log.last, message.version))
            self._effects.append(Send(sender, told))
        original(self, sender, message)

    return on_copy


def serve_at_once(original: Original) -> Original:
    """A backup that becomes the primary answers before everything that its log held is committed."""

    def lead(self: Replica, *arguments: Any) -> Any:
        effects = original(self, *arguments)
        self._ready_at = 0
        self.serves = True
        return effects

    return lead


def keep_leading(original: Original) -> Original:
    """Whoever has led goes on answering when its map names another."""

    def step_down(self: Replica) -> None:
        serves = self.serves
        original(self)
        self.serves = serves

    return step_down


def forget_streams_at_promotion(original: Original) -> Original:
    def take_over(self: Replica, now_us: int) -> Any:
        effects = original(self, now_us)
        if self.serves:
            self.range.streams.rows.clear()
        return effects

    return take_over


def forget_closes_at_promotion(original: Original) -> Original:
    """The new keeper of a clock sends nothing again that the one before had under way."""

    def lead(self: Any, now_us: int) -> Any:
        effects = original(self, now_us)
        self.outbox.due_us = None
        return effects

    return lead


def ignore_tokens(original: Original) -> Original:
    """Whoever has seen a newer map is answered all the same."""

    def on_range(self: ServerMachine, sender: str, message: Any) -> None:
        hosted = self.jobs.get(message.job)
        replica = _replica(self, message)
        if hosted is not None and replica is not None:
            message = message._replace(token=min(message.token, hosted.token), epoch=replica.seat.epoch)
        original(self, sender, message)

    return on_range


# -- backup


def take_gaps(original: Original) -> Original:
    def on_replicate(self: Follow, sender: str, told: m.Replicate) -> Any:
        return original(self, sender, told._replace(version=min(told.version, self._log.last + 1)))

    return on_replicate


def apply_at_once(original: Original) -> Original:
    """A backup applies what it holds, committed or not."""

    def on_replicate(self: Follow, sender: str, told: m.Replicate) -> Any:
        effects = original(self, sender, told)
        if self.synced:
            self._log.commit(self._log.last)
        return effects

    return on_replicate


def say_too_much(original: Original) -> Original:
    """A backup says that it holds what was sent, though something before it is missing."""

    def on_replicate(self: Follow, sender: str, told: m.Replicate) -> Any:
        effects = original(self, sender, told)
        if told.version > self._log.last and self.synced:
            seat = self._seat
            effects.append(Send(sender, m.Held(seat.job, seat.range, seat.epoch, seat.token, told.version)))
        return effects

    return on_replicate


def cut_again(original: Original) -> Original:
    """A Sync that comes again is carried out again."""

    def on_sync(self: Follow, sender: str, sync: m.Sync) -> Any:
        if self.synced and self._log.committed <= sync.last:
            self._log.cut(max(self._log.committed, min(sync.last, self._log.last)))
        return original(self, sender, sync)

    return on_sync


def cut_all(original: Original) -> Original:
    """At a Sync everything is forgotten that is not known to be committed, though the primary has it too."""

    def on_sync(self: Follow, sender: str, sync: m.Sync) -> Any:
        if not self.synced and self._log.committed <= sync.last:
            self._log.cut(max(self._log.committed, min(sync.commit, self._log.last)))
        return original(self, sender, sync)

    return on_sync


def keep_what_was_never_committed(original: Original) -> Original:
    """What a backup holds beyond the primary's log stays."""

    def on_sync(self: Follow, sender: str, sync: m.Sync) -> Any:
        if self.synced:
            return original(self, sender, sync)
        self.synced = True
        self._log.commit(min(sync.commit, self._log.last))
        return [self._held(sender)]

    return on_sync


def take_before_the_sync(original: Original) -> Original:
    def init(self: Follow, *arguments: Any) -> None:
        original(self, *arguments)
        self.synced = True

    return init


def backups_answer(original: Original) -> Original:
    return lambda self, entry, leads, now_us: original(self, entry, True, now_us)


# -- learner


def copy_without_streams(original: Original) -> Original:
    def load(self: RangeMachine, dump: Any) -> None:
        original(self, dump)
        self.streams.rows.clear()

    return load


def copy_without_staged(original: Original) -> Original:
    def load(self: RangeMachine, dump: Any) -> None:
        original(self, dump)
        self._staging.drop(self.closed)

    return load


def keep_an_old_copy(original: Original) -> Original:
    """A node that is named learner anew goes on with what it has."""

    def replica(self: Hosted, number: int, item: Any) -> Any:
        known = self.replicas.get(number)
        return known if known is not None else original(self, number, item)

    return replica


def begin_further_on(original: Original) -> Original:
    """The log of a filled copy begins where the primary's ends, by the first word that comes."""

    def on_replicate(self: Learn, sender: str, told: m.Replicate) -> Any:
        if self.whole and not self._heard and told.version > self._log.last:
            told = told._replace(version=self._log.last + 1)
        return original(self, sender, told)

    return on_replicate


def _replica(machine: ServerMachine, message: Any) -> Any:
    hosted = machine.jobs.get(message.job)
    return hosted.replicas.get(message.range) if hosted is not None else None
