"""The primary's side of one range: sends entries to the other copies, hears what they hold, and says what is committed.

    entry appended -> Replicate to each copy that is in step -> Held(last) -> commit_point rises
    new epoch      -> Sync to each copy until it answers, then what it lacks
    learner        -> a copy by parts, then entries like a backup; once it holds what is committed it counts

What a copy has not acked is sent again by a timer, one batch at a time.  One that is too slow is dropped by the master's
map, never by us alone.  Refuses to know what an entry means and who may speak for the range.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..core.effects import Send
from ..core.errors import PeerError
from ..core.jobmap import Assignment
from ..wire import messages as m
from ..wire.codec import U8
from .dump import Stream
from .effects import AskSeat
from .log import Entry, Log
from .range import RangeMachine
from .replica_seat import Seat

_NO_ENTRY = (0, 0, "", None)
_SILENT = 10  # times `behind_us_max`: a learner that was not heard for so long is given up


class Copy(NamedTuple):
    """What the learner is filled with: the range as it was at `version`."""

    version: int
    stream: Stream


class Peer:
    """Another copy in this epoch: `held` is what it says that it holds, `sent` what is on its way, `told` what it was told is committed."""

    __slots__ = ("name", "learns", "counts", "synced", "held", "sent", "told", "due_us", "wait_us", "since_us", "copy")

    def __init__(self, name: str, learns: bool, wait_us: int, now_us: int) -> None:
        self.name = name
        self.learns = learns
        self.counts = not learns  # nothing is committed without it
        self.synced = False  # it has said in this epoch what it holds
        self.held = self.sent = self.told = 0
        self.due_us: int | None = None
        self.wait_us = wait_us
        self.since_us = now_us  # when it last came on, or began to owe something
        self.copy: Copy | None = None


class Lead:
    def __init__(self, seat: Seat, log: Log, held: RangeMachine, item: Assignment, min_insync: int, now_us: int) -> None:
        self._seat = seat
        self._log = log
        self._range = held
        self._born = item.born
        self._begun_at = log.last  # whoever led before may have committed up to here
        self._enough = len(item.replicas) >= min_insync
        self._may_drop = len(item.replicas) > min_insync
        wait_us = seat.limits.replicate_us
        self.peers = {name: Peer(name, False, wait_us, now_us) for name in item.replicas if name != seat.name}
        if item.learner:
            self.peers[item.learner] = learner = Peer(item.learner, True, wait_us, now_us)
            learner.due_us = now_us + seat.limits.behind_us_max
        self.alone = not self.peers and self._enough
        self._marked = 0  # version of the last mark
        self._mark_due_us = now_us + seat.limits.marks_us

    def begin(self, now_us: int) -> list[Any]:
        effects: list[Any] = []
        for peer in self.peers.values():
            if not peer.learns:
                effects += self._sync(peer)
                peer.due_us = self._next_due_us(peer, now_us)
        return effects

    # -- what is committed

    def commit_point(self) -> int:
        """Up to here every copy that counts holds the log; 0 = nothing may be committed."""
        if not self._enough:
            return 0
        least = self._log.last
        for peer in self.peers.values():
            if peer.counts and peer.held < least:
                least = peer.held
        return least

    def lacked(self) -> int:
        """What lies behind this version is kept for somebody who learns."""
        least = self._log.last
        for peer in self.peers.values():
            if peer.learns and (peer.synced or peer.copy is not None):
                least = min(least, peer.held if peer.synced or peer.copy is None else peer.copy.version)
        return least

    def full(self) -> bool:
        """Whether so much is uncommitted that nothing more is taken: agents come again."""
        return self._log.bytes_after(self._log.committed) > 2 * self._seat.limits.behind_bytes_max

    # -- sending

    def appended(self, entry: Entry, now_us: int) -> list[Any]:
        """To everybody who has all that lies before it; the others get it in their batches."""
        effects = []
        for peer in self.peers.values():
            if not peer.synced or peer.sent != entry.version - 1:
                continue
            if peer.held == peer.sent:  # it owed nothing
                peer.since_us, peer.wait_us = now_us, self._seat.limits.replicate_us
                peer.due_us = now_us + peer.wait_us
            peer.sent = entry.version
            effects.append(self._replicate(peer, entry, now_us))
        return effects

    def committed(self, now_us: int) -> None:
        """The commit has risen: who hears nothing else of it is told alone."""
        for peer in self.peers.values():
            if peer.synced and peer.due_us is None:
                peer.due_us = now_us + self._seat.limits.replicate_us

    def _batch(self, peer: Peer, now_us: int) -> list[Any]:
        """What it lacks behind `sent`, at most so many bytes but at least one entry."""
        effects: list[Any] = []
        left = self._seat.limits.replicate_bytes
        for entry in self._log.after(peer.sent):
            left -= entry.nbytes
            if effects and left < 0:
                break
            peer.sent = entry.version
            effects.append(self._replicate(peer, entry, now_us))
        peer.due_us = now_us + peer.wait_us
        return effects

    def _replicate(self, peer: Peer, entry: Entry | None, now_us: int) -> Send:
        """An entry, or (None) only news of the commit."""
        seat, log = self._seat, self._log
        peer.told = log.committed
        version, made, origin, message = (entry.version, entry.made, entry.origin, entry.message) if entry is not None else _NO_ENTRY
        mark = self._mark(now_us)
        return Send(
            peer.name, m.Replicate(seat.job, seat.range, seat.epoch, seat.token, version, log.committed, made, origin, mark, message)
        )  # fmt: skip

    def _mark(self, now_us: int) -> tuple[int, int]:
        """The checksum of what is applied, every `marks_us`, to all copies."""
        if now_us < self._mark_due_us and self._marked != self._range.version:
            return (0, 0)
        if now_us >= self._mark_due_us:
            self._marked, self._mark_due_us = self._range.version, now_us + self._seat.limits.marks_us
        return (self._range.version, self._range.mark)

    def _sync(self, peer: Peer) -> list[Any]:
        seat, log = self._seat, self._log
        return [Send(peer.name, m.Sync(seat.job, seat.range, seat.epoch, seat.token, log.last, log.committed, log.runs(log.committed)))]

    # -- hearing

    def on_held(self, sender: str, last: int, now_us: int) -> list[Any]:
        """Raises `PeerError` for more than there is."""
        peer = self.peers.get(sender)
        if peer is None:
            return []
        if peer.synced and last <= peer.held:  # a learner repeats itself until it hears from us
            return [self._replicate(peer, None, now_us)] if peer.learns and last == peer.held else []
        if last > self._log.last:
            raise PeerError(f"{sender} holds {last} entries of range {self._seat.range}, there are {self._log.last}")
        if not peer.synced and peer.learns and (peer.copy is None or peer.copy.version != last):
            return []  # it holds another copy than the one that we gave
        first = not peer.synced
        peer.synced, peer.held, peer.sent = True, last, max(peer.sent, last)
        peer.since_us, peer.wait_us = now_us, self._seat.limits.replicate_us
        self._let_go(peer)
        peer.due_us = self._next_due_us(peer, now_us)
        effects = self._batch(peer, now_us) if last == peer.sent < self._log.last else []
        if first and not effects:
            effects = [self._replicate(peer, None, now_us)]
        if peer.learns and not peer.counts and last >= max(self._log.committed, self._begun_at):
            peer.counts = True  # from now on, whatever becomes of the question: a map may name it at any moment
            effects.append(self._ask("add", peer, ""))
        return effects

    def _next_due_us(self, peer: Peer, now_us: int) -> int | None:
        """When to look after a copy again that nothing new is sent to."""
        if not peer.synced:
            return now_us + (self._seat.limits.behind_us_max if peer.learns else peer.wait_us)
        if peer.held < self._log.last or peer.told < self._log.committed:
            return now_us + peer.wait_us
        return now_us + self._seat.limits.resend_us_max if peer.learns else None

    def on_copy_ask(self, sender: str, ask: m.CopyAsk, now_us: int) -> list[Any]:
        """A part of the copy that the learner is filled with."""
        peer = self.peers.get(sender)
        if peer is None or not peer.learns or peer.synced or ask.born != self._born:
            return []
        if peer.copy is None:
            try:
                peer.copy = Copy(self._range.version, Stream(self._range.dump()))
            except MemoryError:
                return []  # it asks again
        if ask.version not in (0, peer.copy.version):
            return []
        peer.since_us = now_us
        return [Send(sender, self._part(peer.copy, ask.cursor))]

    def _part(self, copy: Copy, cursor: int) -> m.CopyTold:
        """Raises `PeerError` for one that there is not."""
        seat, stream = self._seat, copy.stream
        part = stream.part(cursor, seat.limits.copy_part_bytes)
        segment = m.Segment(0, 0, len(part), U8, m.RAW)
        return m.CopyTold(
            seat.job, seat.range, seat.epoch, seat.token, self._born, copy.version, cursor, stream.total, len(stream.head), (segment,), (part,)
        )  # fmt: skip

    # -- time

    @property
    def due_us(self) -> int | None:
        if not self.peers:
            return None
        due_us = self._mark_due_us if self._marked != self._range.version else None
        for peer in self.peers.values():
            if peer.due_us is not None and (due_us is None or peer.due_us < due_us):
                due_us = peer.due_us
        return due_us

    def on_time(self, now_us: int) -> list[Any]:
        effects: list[Any] = []
        marks = self._marked != self._range.version and now_us >= self._mark_due_us
        for peer in list(self.peers.values()):
            if peer.due_us is not None and now_us >= peer.due_us:
                effects += self._remind(peer, now_us)
            elif marks and peer.synced:
                effects.append(self._replicate(peer, None, now_us))
        if marks and self._marked != self._range.version:  # nobody hears it yet
            self._mark_due_us = now_us + self._seat.limits.marks_us
        return effects

    def _remind(self, peer: Peer, now_us: int) -> list[Any]:
        """It owes an answer, or is owed news of the commit."""
        effects: list[Any] = []
        slow = self._too_slow(peer, now_us)
        if slow:
            effects.append(self._ask("drop", peer, slow))
            if peer.learns and not peer.counts:
                self.forsake(peer)  # nobody counts on it: what was kept for it is free at once
                return effects
        elif peer.learns and peer.counts:
            effects.append(self._ask("add", peer, ""))
        if not peer.synced:
            effects += self._sync(peer) if not peer.learns else []
        elif peer.held < self._log.last:
            peer.sent = peer.held
            effects += self._batch(peer, now_us)
        elif peer.told < self._log.committed:
            effects.append(self._replicate(peer, None, now_us))
        peer.wait_us = min(2 * peer.wait_us, self._seat.limits.resend_us_max)
        peer.due_us = self._next_due_us(peer, now_us)
        return effects

    def _too_slow(self, peer: Peer, now_us: int) -> str:
        """Why the master should go on without it, as long as enough others are left; "" if it should not."""
        limits = self._seat.limits
        silent_us = now_us - peer.since_us
        lacked, most = self._log.bytes_after(peer.held), limits.behind_bytes_max
        if peer.learns and not peer.counts:
            if peer.copy is not None:
                lacked, most = self._log.bytes_after(peer.copy.version), max(most, 4 * peer.copy.stream.total)
            slow = lacked > most or silent_us > _SILENT * limits.behind_us_max
        else:
            owes = not peer.synced or peer.held < self._log.last
            slow = owes and (peer.learns or self._may_drop) and (lacked > most or silent_us > limits.behind_us_max)
        return f"it lacks {lacked} bytes of entries and has acked nothing for {silent_us // 1000} ms" if slow else ""

    def _ask(self, verb: str, peer: Peer, reason: str) -> AskSeat:
        return AskSeat(self._seat.job, self._seat.range, self._seat.epoch, verb, peer.name, reason)

    def forsake_learner(self, reason: str) -> list[Any] | None:
        """Go on alone, if nobody but a learner that nobody counts on has the range too; None if somebody else has."""
        if any([peer.counts for peer in self.peers.values()]) or not self._enough:
            return None
        asks = [self._ask("drop", peer, reason) for peer in self.peers.values()]
        for peer in list(self.peers.values()):
            self.forsake(peer)
        return asks

    def forsake(self, peer: Peer) -> None:
        self._let_go(peer)
        del self.peers[peer.name]
        self.alone = not self.peers and self._enough

    def _let_go(self, peer: Peer) -> None:
        if peer.copy is not None:
            self._range.let_go(peer.copy.stream.dump)
            peer.copy = None

    def end(self) -> None:
        """The epoch is over."""
        for peer in self.peers.values():
            self._let_go(peer)

    def check(self) -> None:
        for peer in self.peers.values():
            assert peer.held <= peer.sent <= self._log.last or not peer.synced
            assert not peer.counts or peer.learns or peer.copy is None
