"""One range of one job: takes each push once, steps its blocks, answers pulls when they may be answered.

    consider   the primary, before a message becomes an entry of the log: known stream? repeat? gap? room?
    apply      every copy, in the order of the log: step or stage now, from the state as of the entry before

    BSP        a push is staged under (worker, clock); Close(clock) sums the members' and steps once
    ASP, SSP   a push steps as it is applied; a mean scales the step by w / sum of w over the members of its clock

Nothing that is not a finite number is ever visible: results are prepared beside the values and swapped in.  What comes
to nothing does so on every copy, and its stream's row remembers why.  Owns the streams' table, staged pushes and, in the
clock's range, the clock.  Refuses to know who else has copies and ranges, and whether its messages arrive.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union
from zlib import crc32

from ..core.effects import Effects, Send
from ..core.errors import Code, PeerError, RequestError
from ..core.job import JobSpec
from ..core.jobmap import Bucket, Piece
from ..core.limits import Limits
from ..wire import messages as m
from .admission import check_push
from .blocks import Blocks, Scalars, Slices, whole
from .clock import ClockMachine
from .contents import NOTHING, Contents, Holder, Load, Prepared, Taken
from .dump import Dump, Layout, check_shapes
from .effects import Cut, JobFailed, Reached
from .holding import Facts, Holding
from .log import Entry
from .marks import fold
from .memory import Memory
from .pool import Pool
from .reads import Reads, fenced
from .shares import Shares
from .staging import Staged, Staging
from .streams import ASTRAY, FENCED, NEXT, SEEN, VOID, WAITS
from .underway import Underway

_NO_CHANGE = Prepared([], [], NOTHING)


_PLAIN = Taken(NOTHING, [], None)
Verdict = Union[Taken, Effects]


class NoRoom(Exception):
    """This copy has no memory for an entry; others may have it.  Nothing of the entry is applied."""

    def __init__(self, why: RequestError) -> None:
        super().__init__(why.text)
        self.why = why


class RangeMachine(Reads):
    """A machine without deadlines: everything happens because a message came."""

    def __init__(
        self, job: int, number: int, spec: JobSpec, pieces: Sequence[Piece], buckets: Sequence[Bucket], memory: Memory, pool: Pool,
        limits: Limits, epoch: int, token: int, clock: ClockMachine | None = None,
    ) -> None:  # fmt: skip
        super().__init__(job, number, epoch, token, Contents(spec, number, pieces, buckets, memory, pool), limits.parked_max)
        self.claim = 0  # of the first values that were taken
        self.shares = Shares(spec.workers)
        self.clock = clock  # of the job, if it is kept here
        self.mark = 0  # checksum of what was applied while `marking`
        self.marking = False
        self.underway = Underway(pool)
        self._limits = limits
        self._staging = Staging()

    @property
    def blocks(self) -> Blocks:
        return self.contents.blocks

    def cost(self, entry: Entry) -> int:
        """About how many bytes it takes to apply an entry."""
        if type(entry.message) is not m.Close:
            return entry.nbytes
        return self.blocks.nbytes + self._staging.row_bytes(entry.message.clock)

    # -- consider: what becomes an entry.  Looks at what is applied, and at what the log holds beyond that.

    def consider(self, sender: str, message: Any) -> Verdict:
        """A push, first values, a Close or a Roster: taken, or what is answered (silence is an answer too)."""
        verdict: Verdict = _CONSIDER[type(message)](self, sender, message)
        return verdict

    def _on_push(self, sender: str, push: m.Push) -> Verdict:
        """Take a push once, however often it arrives.  A sum of several workers' pushes is taken as one, or not at all."""
        components = push.components
        if len(components) != 1 and (not components or len({component.worker for component in components}) != len(components)):
            raise PeerError(f"a push of {len(components)} components, which are not one worker's each")
        looks = [self.streams.look(component) for component in components]
        if self.underway.count:
            looks = [self.underway.look(component, look) for component, look in zip(components, looks)]
        if looks.count(NEXT) != len(looks):
            return self._not_next(sender, components, looks)

        try:
            load = self.contents.read(push.segments, push.payload)
            holders = load.holders()
            staged = any([holder.staged for holder in holders])
            if staged and components[0].clock > max(self.closed, self.underway.closed) + 1:
                return []  # too early to keep: the agent sends it again, when the clocks before it may have closed
            self._check(components, holders, staged)
            return Taken(load, holders, self.contents.admit(load) if load.groups else None)
        except RequestError as refusal:
            return [Send(sender, self._refuse(refusal, *component[:3])) for component in components]

    def _not_next(self, sender: str, components: Sequence[m.Component], looks: Sequence[int]) -> Effects:
        """What a push is told that is not the next one of each of its streams."""
        streams = self.streams
        if all(look == SEEN for look in looks):
            return [Send(sender, self._ack(worker, gen, streams.last(worker, gen))) for worker, gen, *_ in components]
        effects = []
        for component, look in zip(components, looks):
            worker, gen, seq, *_ = component
            if look == FENCED:
                effects.append(Send(sender, self._refuse(fenced(worker, gen, streams.gen(worker)), worker, gen, seq)))
            elif look == VOID:
                effects.append(Send(sender, self._refuse(streams.why(component), worker, gen, seq)))
        if WAITS in looks:
            return effects  # what is under way is answered when it is applied
        lasts = tuple([
            (worker, gen, streams.last(worker, gen))
            for (worker, gen, *_), look in zip(components, looks) if look not in (FENCED, VOID)
        ])  # fmt: skip
        if lasts and (effects or SEEN in looks):  # the sum is of no use any more: each comes alone
            return [*effects, Send(sender, m.Partial(self.job, self.number, self.epoch, self.token, lasts))]
        # A gap alone: an earlier push is still on its way, the agent sends both again.  But if one that the agent had
        # given up has come after all, it has to know before this one is in order.
        effects += [Send(sender, self._last_told(*last)) for last, look in zip(lasts, looks) if look == ASTRAY]
        return effects

    def holds(self, worker: int, gen: int, seq: int) -> bool:
        """Whether this push of the stream is its last one here, and every copy has it."""
        return self.rows.get(worker) == (gen, seq)

    def _check(self, components: Sequence[m.Component], holders: Sequence[Holder], staged: bool) -> None:
        """Whether the push may be taken at all, its numbers aside.  Raises `RequestError`."""
        if self.failure is not None:
            raise RequestError(self.failure.code, self.failure.text)
        check_push(components, holders, staged, self.closed, self._staging, self._limits)

    def _on_init(self, sender: str, init: m.Init) -> Verdict:
        """Take the values of the highest claim; the same claim again is a repeat."""
        newest = max(self.claim, self.underway.claim)
        if init.claim == newest:
            return [self._init_ack(sender, init)] if newest == self.claim else []
        try:
            if init.claim < newest:
                raise RequestError(Code.FENCED, f"claim {newest} on the first values has taken the place of {init.claim}")
            load = self.contents.read(init.segments, init.payload)
            self.contents.check_offer(load)
        except RequestError as refusal:
            return [Send(sender, self._refuse(refusal, m.NOBODY, 0, init.claim))]
        return Taken(load, [], None)

    def _on_close(self, sender: str, close: m.Close) -> Verdict:
        """Close exactly the next clock: an earlier one is a repeat, a later one comes again."""
        return _PLAIN if close.clock == max(self.closed, self.underway.closed) and self.failure is None else []

    def _on_roster(self, sender: str, roster: m.Roster) -> Verdict:
        return _PLAIN if roster.number > max(self.shares.number, self.underway.roster) else []

    # -- apply: the same on every copy; only the one that leads has effects

    def apply(self, entry: Entry, leads: bool, now_us: int) -> Slices[list[Any]]:
        """Make a committed entry visible, slice by slice; between two nobody may look at the range.  Raises `NoRoom`."""
        assert entry.version == self.version + 1
        if self.underway.count:
            self.underway.done(entry)
        kind = type(entry.message)
        self.version += 1
        try:
            if kind is m.Push:
                effects = yield from self._apply_push(entry, leads)
            elif kind is m.Close:
                effects = yield from self._apply_close(entry, leads)
            elif kind is m.Init:
                effects = self._apply_init(entry, leads)
            elif kind is m.Roster:
                effects = self._apply_roster(entry, leads)
            else:
                effects = self._apply_to_clock(entry, now_us)
        except NoRoom:
            self.version -= 1
            raise
        return effects if leads else []

    def void(self, entry: Entry, why: RequestError) -> list[Any]:
        """The only copy had no memory for the entry: it comes to nothing."""
        message = entry.message
        self.version += 1
        self._fold(entry, ("void", int(why.code)), _NO_CHANGE)
        if type(message) is m.Close:
            return self._fail(RequestError(why.code, _unclosed(message, why)))
        if type(message) is m.Init:
            return [Send(entry.origin, self._refuse(why, m.NOBODY, 0, message.claim))]
        return [Send(entry.origin, self._refuse(why, *component[:3])) for component in message.components]

    def _apply_push(self, entry: Entry, leads: bool) -> Slices[list[Any]]:
        push: m.Push = entry.message
        components = push.components
        taken = entry.taken
        try:
            if taken is None or entry.seen + 1 != entry.version:  # others came between, or it was considered elsewhere
                looks = [self.streams.look(component) for component in components]
                if looks.count(NEXT) != len(looks):
                    self._fold(entry, "passed over", _NO_CHANGE)
                    return list(self._not_next(entry.origin, components, looks)) if leads else []
                load = self.contents.read(push.segments, push.payload)
                holders = load.holders()
                self._check(components, holders, any([holder.staged for holder in holders]))
                taken = Taken(load, holders, self.contents.buckets.wanted(load.groups) if load.groups else None)
            scalars = self._scalars(components, taken.holders)
            prepared = yield from self.contents.prepare(taken.load, scalars, taken.room)
        except RequestError as refusal:
            return self._come_to_nothing(entry, refusal, leads)

        self.streams.measure(components, push.base, bool(scalars))
        newer = self.streams.take(components)
        yield from self.contents.apply(prepared)
        yield from self._take_push(entry, scalars, prepared.staged)
        if self.marking:
            self._fold(entry, components, prepared)
        return self._took_push(entry.origin, components, newer) if leads else []

    def _come_to_nothing(self, entry: Entry, why: RequestError, leads: bool) -> list[Any]:
        """The reason lies in state and entry, so it is the same on every copy; but memory is this one's own."""
        if why.code == Code.NOSPC and self.failure is None:
            raise NoRoom(why)
        components = entry.message.components
        self.streams.void(components, why)
        self._fold(entry, ("void", int(why.code)), _NO_CHANGE)
        return [Send(entry.origin, self._refuse(why, *component[:3])) for component in components] if leads else []

    def _scalars(self, components: Sequence[m.Component], holders: Sequence[Holder]) -> Scalars:
        """Scalars of the steps that this push makes at once, by table."""
        first, *others = components
        found: Scalars = {}
        for holder in holders:
            if holder.staged or holder.table in found:
                continue
            share = self.shares.share(holder.table, first, others) if holder.mean else 1.0
            found[holder.table] = holder.scalars(first.clock, share)
        return found

    def _take_push(self, entry: Entry, scalars: Scalars, staged: Load) -> Slices[None]:
        components = entry.message.components
        for table in scalars:
            for component in components:
                self.shares.note(table, component)
        if scalars:
            self.streams.stepped(components, entry.version)
        if staged.items or staged.groups:
            pushed = yield from self.contents.hold(staged)
            self._staging.add(Staged(components, staged.items, pushed))

    def _took_push(self, sender: str, components: Sequence[m.Component], newer: bool) -> list[Any]:
        effects: list[Any] = [Send(sender, self._ack(*component[:3])) for component in components]
        if newer:
            effects += self._fence_parked()
        if self._parking.count:
            for component in components:
                effects += self._answer(self._parking.take_for_push(component.worker))
        return effects

    def _apply_close(self, entry: Entry, leads: bool) -> Slices[list[Any]]:
        close: m.Close = entry.message
        if close.clock != self.closed or self.failure is not None:
            self._fold(entry, "passed over", _NO_CHANGE)
            return []
        plan = self._staging.plan(close.clock, close.members)
        scalars = {holder.table: holder.scalars(close.clock) for holder in plan.holders()}
        try:
            prepared = yield from self.contents.close(plan, dict(close.totals), scalars)
        except RequestError as refusal:
            if refusal.code == Code.NOSPC:
                raise NoRoom(refusal) from None
            self._fold(entry, ("void", int(refusal.code)), _NO_CHANGE)
            return self._fail(RequestError(refusal.code, _unclosed(close, refusal)))
        yield from self.contents.apply(prepared)
        self._staging.drop(close.clock)
        self.closed = close.clock + 1
        self.contents.closed(self.closed)
        if self.marking:
            self._fold(entry, close[3:], prepared)
        if self.clock is not None:
            self.clock.work.settle(self.closed)
        if not leads:
            return []
        cut = [self.cut(close.save)] if close.save else []
        effects: list[Any] = [Reached(self.job, self.number, (m.Close, self.closed)), *cut]
        return effects + self._answer(self._parking.take_for_close()) if self._parking.count else effects

    def _apply_init(self, entry: Entry, leads: bool) -> list[Any]:
        init: m.Init = entry.message
        if init.claim <= self.claim:
            self._fold(entry, "passed over", _NO_CHANGE)
            return []
        try:
            load = entry.taken.load if entry.taken is not None else self.contents.read(init.segments, init.payload)
            prepared = self.contents.offer(load)
        except RequestError as refusal:  # of numbers that the primary found good it can only be memory
            raise NoRoom(refusal) from None
        whole(self.contents.apply(prepared))
        self.claim = init.claim
        self._fold(entry, init.claim, prepared)
        return [self._init_ack(entry.origin, init)] if leads else []

    def _apply_roster(self, entry: Entry, leads: bool) -> list[Any]:
        """Members of clocks, and the newest gen of each worker: lower ones are fenced."""
        roster: m.Roster = entry.message
        self._fold(entry, roster[3:], _NO_CHANGE)
        if roster.number <= self.shares.number:
            return []
        self.shares.take(roster)
        for worker, gen, _, _ in roster.members:
            self.streams.fence(worker, gen)
        return [Reached(self.job, self.number, (m.Roster, roster.number)), *self._fence_parked()] if leads else []

    def _apply_to_clock(self, entry: Entry, now_us: int) -> list[Any]:
        message = entry.message
        assert self.clock is not None
        if self.marking:
            self._fold(entry, message[3:], _NO_CHANGE)
        if type(message) is m.CloseAck:
            self.clock.outbox.settle(message.closed)
            return []
        return self.clock.on_message(entry.origin, message, now_us)

    def _fold(self, entry: Entry, said: object, prepared: Prepared) -> None:
        if self.marking:
            self.mark = fold(self.mark, entry.version, said, prepared)

    def _fail(self, failure: RequestError) -> list[Any]:
        """The values stay as they were, for exports to read; whoever waits is told, and the job ends with the reason."""
        self.failure = failure
        return [*self.failed(), *(Send(sender, self._refuse_pull(failure, pull)) for sender, pull in self._parking.take_if(lambda pull: True))]

    def failed(self) -> list[Any]:
        """What the keeper of the clock has to hear, if nothing can go on."""
        return [JobFailed(self.job, self.number, int(self.failure.code), self.failure.text)] if self.failure is not None else []

    def _init_ack(self, sender: str, init: m.Init) -> Send:
        return Send(sender, m.InitAck(self.job, self.number, self.epoch, self.token, init.claim))

    # -- copies

    def _holding(self) -> Holding:
        return Holding(self.contents, self._staging, self.streams, self.shares, self.clock)

    def dump(self) -> Dump:
        """What is applied, until `let_go`.  Raises MemoryError."""
        return self._holding().dump(Facts(self.version, self.closed, self.claim, self.mark, self.failure))

    def cut(self, number: int) -> Cut:
        """What is applied, for checkpoint `number`."""
        try:
            return Cut(self.job, self.number, number, self.dump())
        except MemoryError:
            return Cut(self.job, self.number, number, None)

    def let_go(self, dump: Dump) -> None:
        self.contents.let_go(dump)

    def layout(self, meta: Any) -> Layout:
        """The arrays of a dump.  Raises `PeerError`, and `RequestError` where there is no room for it."""
        return self._holding().layout(meta)

    def load(self, dump: Dump) -> None:
        """Stand where the dump stands.  Raises `PeerError`, `RequestError` and MemoryError: `forget` then."""
        self.version, self.closed, self.claim, self.mark, self.failure = self._holding().load(dump)

    def restore(self, dump: Dump) -> None:
        """The same from a checkpoint of another run, whose incarnations are all over.  Raises as `load` does."""
        check_shapes(dump, self.layout(dump.meta))
        self.load(dump)
        self._holding().rewind(self.closed)

    def forget(self) -> None:
        """Nothing is held any more; the memory is free."""
        self._holding().forget()

    # -- what must always hold

    def check(self) -> None:
        self.check_parked(self._limits.parked_max)
        newest: dict[tuple[int, int, int], int] = {}
        for clock, worker, gen, seq in self._staging.pushes():
            assert self.closed <= clock <= self.closed + 1, f"a push of clock {clock} waits, {self.closed} are closed"
            assert seq > newest.get((clock, worker, gen), 0), "staged pushes of a stream are out of order"
            assert (gen, seq) <= self.rows[worker], "a staged push that the streams' table does not know"
            newest[clock, worker, gen] = seq
        if self.clock is not None:
            self.clock.check()

    def digest(self) -> int:
        """Equal on all copies at an equal log position."""
        state = (self.version, self.closed, self.claim, sorted(self.rows.items()), self._staging.pushes())
        total = crc32(repr(state).encode(), self.contents.digest())
        return total if self.clock is None else crc32(b"%d" % self.clock.digest(), total)


def _unclosed(close: m.Close, why: RequestError) -> str:
    return f"clock {close.clock} cannot be closed: {why.text}"


_CONSIDER: dict[type[Any], Any] = {
    m.Push: RangeMachine._on_push,
    m.Close: RangeMachine._on_close,
    m.Init: RangeMachine._on_init,
    m.Roster: RangeMachine._on_roster,
}
